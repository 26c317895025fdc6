"""Rows, bands and limits from an answer of the plugin, and how they are shown."""

from __future__ import annotations

import io

import pytest
from msgspec import structs

from hugewise.console import TextConsole
from hugewise.predict import machines, text
from hugewise.predict.line import Interval
from hugewise.predict.prediction import FORMAT, Band, Prediction, limits, rows
from hugewise.predict.timing import Layout, Timing
from hugewise.predict.trace import Answer, Counts, Size, Traced, Walks
from hugewise.report.document import Figure, figures
from hugewise.report.terminal import show

ZEN = machines.load("zen-5")
CHOSEN = [("zen-5", page) for page in ZEN.page]  # 4K, 4K coalesced, 2M, 1G


def counts(l1: int, lru: int, random: int, steps: tuple[int, int, int] = (9, 8, 7)) -> Counts:
    return Counts(l1, Walks(lru, steps), Walks(random, (steps[0] + 1, steps[1], steps[2])))


def answer(**other: object) -> Answer:
    told = {
        "version": 1,
        "target": "x86_64",
        "instructions": 2000,
        "accesses": 900,
        "records": 100,
        "threads": 1,
        "untraced": 0,
        "forks": 0,
        "replaced": False,
        "touched": 300,
        "sizes": (Size(21, 2, 1), Size(30, 1, None)),
        "configurations": (
            counts(40, 20, 30),
            counts(10, 4, 6, (3, 2, 1)),
            counts(1, 0, 0, (0, 0, 0)),
            counts(1, 1, 1),
        ),
    }
    return Answer(**{**told, **other})  # type: ignore[arg-type]


def test_variants_of_a_page_are_one_row_and_its_band() -> None:
    four, two, one = rows(CHOSEN, answer())
    assert (four.page, two.page, one.page) == ("4K", "2M", "1G")
    assert four.l1_misses_pki == Band(5, 20)
    assert four.misses_pki == Band(2, 15)  # 4 of the coalesced under LRU, 30 of the others at random
    assert four.steps_pki == Band(0.5, 5)
    assert two.steps_pki == Band(0, 0.5)


def test_memory_is_rounded_up_to_pages_that_were_touched() -> None:
    four, two, one = rows(CHOSEN, answer())
    assert four.memory is None
    assert two.memory is not None
    assert (two.memory.touched, two.memory.added) == (4 << 20, (4 << 20) - 300 * 4096)
    assert two.memory.needed == 2 << 20
    assert one.memory is not None
    assert one.memory.needed is None  # without walks no memory holds 90% of them


@pytest.mark.parametrize(
    ("changed", "status", "said"),
    [
        ({}, 3, "ended with status 3"),
        ({"forks": 2}, 0, "The program forked 2 children, which were not traced"),
        ({"untraced": 5}, 0, "5 threads were not traced"),
        ({"threads": 4}, 0, "Each of the 4 threads has a TLB of its own"),
        ({"target": "aarch64"}, 0, "The program is for aarch64"),
    ],
)
def test_what_was_not_seen_is_said(changed: dict[str, object], status: int, said: str) -> None:
    plain = limits(Traced(answer(), 0, 1.0), [ZEN])
    found = limits(Traced(answer(**changed), status, 1.0), [ZEN])
    assert said in " ".join(found)
    assert len(found) == len(plain) + 1
    assert "The kernel's own accesses" in " ".join(plain)


def prediction() -> Prediction:
    traced = Traced(answer(), 0, 1.0)
    return Prediction(
        format=FORMAT,
        command=("./prog", "[bold]\x1b[2J"),
        architecture="x86_64",
        status=0,
        emulator="/usr/bin/qemu-x86_64",
        traced_s=1.0,
        instructions=2000,
        accesses=900,
        records=100,
        threads=1,
        touched_bytes=300 << 12,
        rows=tuple(rows(CHOSEN, answer())),
        machines={"zen-5": ZEN},
        limits=limits(traced, [ZEN]),
    )


def test_a_terminal_of_80_columns_has_the_table_without_escapes() -> None:
    out = io.StringIO()
    console = TextConsole(out)
    console.width = 80
    show(text.document(prediction()), console=console)
    told = out.getvalue()
    assert "AMD Zen 5" in told
    assert "2.00 to 15.00" in " ".join(told.split())
    assert "[bold]" in told
    assert told.replace("\n", "").isprintable()
    assert max(map(len, told.splitlines())) <= 80


def timed(why: str | None, predicted: Interval | None) -> Prediction:
    rows = tuple(structs.replace(row, seconds=predicted) for row in prediction().rows)
    layouts = tuple(
        Layout(name, (1.05, 1.25), 1.05, 7, (6, 5), predicted) for name in ("base", "mosaic:0-25%=thp", "thp")
    )
    timing = Timing(why=why, host="zen-5", known=False, heap_bytes=8 << 20, entries="split", layouts=layouts)
    return structs.replace(prediction(), rows=rows, timing=timing)


def test_times_are_shown_with_their_intervals_and_the_layouts_behind_them() -> None:
    out = io.StringIO()
    console = TextConsole(out)
    console.width = 80
    show(text.document(timed(None, Interval(1.0, 0.94, 1.1))), console=console)
    told = " ".join(out.getvalue().split())
    assert "from 3 layouts of the heap, each timed 2 times" in told
    assert "5% off at most" in told
    assert "2M on 4K 1 0.94 to 1.1" in told
    assert "AMD Zen 5: not this host's processor" in told
    assert "entries of huge pages of base pages" in told
    assert max(map(len, out.getvalue().splitlines())) <= 80


def test_without_times_the_reason_stands_there() -> None:
    found = text.document(timed("it forked", None))
    assert "No time is predicted: it forked." in str(found.lead)
    assert [section.key for section in found.sections if section.key in ("time", "layouts")] == ["layouts"]
    assert "--time 2m" in str(text.document(prediction()).lead)


def test_the_figure_has_a_bar_for_each_row() -> None:
    (figure,) = figures(text.document(prediction()))
    assert isinstance(figure, Figure)
    drawn = figure.spec["data"]["values"]
    assert [row["page"] for row in drawn] == ["4K", "2M on 4K", "1G on 4K"]
    assert drawn[0]["high"] == 5


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [(0, 0, "0"), (0.0001, 0.0002, "<0.001"), (0.5, 2.25, "0.500 to 2.25"), (123.4, 123.4, "123")],
)
def test_a_band_is_read_to_three_digits(low: float, high: float, shown: str) -> None:
    assert text.band(Band(low, high)) == shown


def test_a_change_is_that_of_the_middles() -> None:
    assert text.change(Band(1, 3), Band(0.5, 0.5)) == "-75%"
    assert text.change(Band(0, 0), Band(1, 1)) == "–"
