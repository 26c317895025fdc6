"""The page of predicted walk steps beside the published ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from hugewise.predict import machines
from hugewise.predict.prediction import FORMAT, Band, Prediction, Row
from hugewise.published import Table
from tools.results import predicted
from tools.results.page import MARK

FOLDER = Path(__file__).parents[2] / "docs" / "results"
PAGES = sorted(path.stem for path in FOLDER.glob("*.json"))


def row(page: str, base: str, steps: tuple[float, float]) -> Row:
    return Row(
        machine=predicted.MACHINE,
        page=page,
        base=base,
        policy="base",
        l1_misses_pki=Band(9, 9),
        misses_pki=Band(1, 1),
        steps_pki=Band(*steps),
        memory=None,
    )


def found(*rows: Row) -> Prediction:
    return Prediction(
        format=FORMAT,
        command=("server",),
        architecture="x86_64",
        status=0,
        emulator="qemu-x86_64",
        traced_s=1.0,
        instructions=1000,
        accesses=500,
        records=50,
        threads=1,
        touched_bytes=1 << 20,
        rows=rows,
        machines={predicted.MACHINE: machines.load(predicted.MACHINE)},
        limits=("Nothing.",),
    )


def published(*changes: float) -> Table:
    arms = ("4K (4KPS)", "64K (4KPS)", "2M (4KPS)", "16K (16KPS)")[: len(changes)]
    return Table(
        name="redis", workload="redis", unit="% change", arms=arms, changes={"dtlb_walk_steps_pki": (*changes,)}
    )


def test_arms_stand_beside_the_published_changes_with_their_bands() -> None:
    rows = (row("4K", "4K", (4, 6)), row("64K", "4K", (2, 3)), row("2M", "4K", (0.1, 0.1)))
    (small, huge) = predicted.beside(published(0, -25, -90), found(*rows), "dtlb_walk_steps_pki")
    assert (small.arm, small.published, small.ratio) == ("64K (4KPS)", -25, 0.5)
    assert (small.low, small.high) == (2 / 6, 3 / 4)
    assert small.factor == 1.5  # 0.75 remain, and 0.5
    assert round(huge.factor, 6) == 5  # 0.1, and 0.02


def test_nothing_that_remains_differs_by_more_than_any_factor() -> None:
    (none,) = predicted.beside(
        published(0, -25), found(row("4K", "4K", (4, 6)), row("64K", "4K", (0, 0))), "dtlb_walk_steps_pki"
    )
    assert none.factor == float("inf")


def test_signs_and_pairs_in_order_are_counted() -> None:
    rows = (row("4K", "4K", (5, 5)), row("64K", "4K", (6, 6)), row("2M", "4K", (1, 2)), row("16K", "16K", (2, 3)))
    told = predicted.beside(published(0, -5, -60, -60), found(*rows), "dtlb_walk_steps_pki")
    assert predicted.signs(told) == 2  # of 64K more steps are predicted
    assert predicted.ordered(told) == (2, 0, 0)  # two that are published alike have no order
    assert predicted.ordered(predicted.beside(published(0, -70, -60), found(*rows), "dtlb_walk_steps_pki")) == (0, 1, 0)
    assert predicted.ordered([told[1], told[2]._replace(published=-61)]) == (0, 0, 1)  # their bands meet


def test_what_is_missed_once_has_no_order() -> None:
    rows = (row("4K", "4K", (5, 5)), row("64K", "4K", (0.0002, 0.0002)), row("2M", "4K", (0.0001, 0.0001)))
    assert predicted.ordered(predicted.beside(published(0, -5, -60), found(*rows), "dtlb_walk_steps_pki")) == (0, 0, 1)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_its_data_say(name: str) -> None:
    made = predicted.render(predicted.read(FOLDER / f"{name}.json"))
    assert (FOLDER / f"{name}.md").read_bytes() == made
    assert made.startswith(MARK)


def test_the_page_of_the_talk_is_there() -> None:
    assert PAGES == ["lpc-2024-tlb"]
