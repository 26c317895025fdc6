"""Every metric of a cell under every arm: its change, its memory, and its tail."""

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from hugewise.analysis.analysis import analyze
from hugewise.model.over_time import ArmFootprint
from hugewise.model.results import CellResult, Results
from hugewise.report.sections.cell import trades_table
from hugewise.report.sections.effects import changes_table
from tests.build import known
from tests.build.restated import lpc
from tests.build.results import HOSTILE, example
from tests.report.told import page, rows


def test_every_metric_is_a_row_and_what_was_judged_has_its_interval() -> None:
    results = lpc()
    extra = tuple(replace(one, metrics={**one.metrics, "khugepaged_cpu_s": 0.5}) for one in results.attempts)
    cell = results.cells[0]
    found = rows(changes_table(replace(results, attempts=extra), cell))
    assert found["khugepaged_cpu_s"][1:] == ("0.00%, n 24", "0.00%, n 24"), "new ones come by themselves"
    assert found["page_faults"] == ("900,000 faults, n 24", "−73.3%, n 24", "−87.8%, n 24")
    assert found["cycles"] == ("– (this machine has no hardware counters)", "–", "–")
    assert found["swap_bytes"][1:] == ("– (0 in both)", "– (0 in both)")
    judged = found["ops_per_s: ratio of geometric means"]
    assert judged[1].startswith("? undecided: −0.09% (−0.50% to +0.32%), n 24")
    assert judged[2].startswith("▲ better: +12.31% (+11.78% to +12.85%), n 24")
    setting = tuple(replace(one, judged="setting", delivered_share=0.0) for one in cell.comparisons)
    found = rows(changes_table(results, replace(cell, comparisons=setting)))
    assert found["ops_per_s: ratio of geometric means"][1].endswith(", of the setting (0% delivered)")


def test_end_points_stand_below_the_judged_metric() -> None:
    results = lpc()
    cell = results.cells[0]
    slow = replace(cell.comparisons[1], estimand="ratio of means", verdict="undecided")
    found = rows(changes_table(results, replace(cell, end_points=(slow,))))
    assert list(found)[:2] == ["ops_per_s: ratio of geometric means", "ops_per_s: ratio of means"]
    assert found["ops_per_s: ratio of means"][1:] == ("–", found["ops_per_s: ratio of means"][2])
    assert found["ops_per_s: ratio of means"][2].startswith("? undecided: ")


def test_an_arm_has_its_median_where_the_baseline_is_0_and_pages_their_size() -> None:
    results = lpc()
    cell = results.cells[0]
    count = {arm.arm: 0.0 if arm.arm == cell.baseline else 64.0 for arm in cell.arms}
    attempts = tuple(
        replace(one, metrics={"allocations_2m": count[one.arm], "odd": count[one.arm]})
        for one in results.attempts
        if one.cell == cell.cell
    )
    found = rows(changes_table(replace(results, attempts=attempts), cell))
    assert found["allocations_2m"] == ("0, n 24", "64 (128 MiB), n 24", "64 (128 MiB), n 24")
    assert found["odd"] == ("0, n 24", "64, n 24", "64, n 24")


def test_a_cell_of_one_arm_has_the_medians_of_its_baseline() -> None:
    results = lpc()
    cell = results.cells[0]
    base = tuple(arm for arm in cell.arms if arm.arm == cell.baseline)
    found = changes_table(results, replace(cell, arms=base, comparisons=()))
    assert rows(found)["page_faults"] == ("900,000 faults, n 24",)
    assert known(found).caption == f"medians of {cell.baseline}"


def test_nothing_to_compare_gives_no_table_and_hostile_text_stays_text() -> None:
    results = example()
    assert changes_table(replace(results, attempts=()), replace(results.cells[0], comparisons=())) is None
    table = known(changes_table(results, results.cells[2]))
    assert all(entry.isprintable() for row in (*table.rows, table.head) for entry in row)
    assert HOSTILE not in table.caption


RUNS = Path(__file__).parents[1] / "golden" / "runs"
MIB = 1 << 20


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Page faults under three policies, 10 attempts each, as a machine recorded them."""
    return analyze(shutil.copytree(RUNS / "deployed", tmp_path_factory.mktemp("run") / "deployed"))


def with_memory(results: Results, **ratios: tuple[float, float | None, float | None]) -> CellResult:
    """The first cell, whose arms take so many times the baseline's 512 MiB."""
    prints = tuple(
        ArmFootprint(
            arm=arm.replace("_", "-"),
            baseline="base",
            value=512 * MIB * ratio,
            value_baseline=512 * MIB,
            n=10,
            ratio=ratio,
            low=low,
            high=high,
            confidence=0.95,
        )
        for arm, (ratio, low, high) in ratios.items()
    )
    return replace(results.cells[0], footprints=prints)


def test_speed_against_memory_has_the_effects_and_the_footprints(recorded: Results) -> None:
    table = rows(trades_table(with_memory(recorded, thp=(3.0, 2.5, 3.5), thp_defer=(1.5, 1.2, None))))
    assert table["thp"][1:3] == ("512 MiB", "1.50 GiB")
    assert table["thp"][4] == "11.8 MiB"
    assert table["thp-defer"][3] == "+50% (at least +20%)"
    dearer = replace(recorded.cells[0].metric, better="higher")
    worse = replace(with_memory(recorded, thp=(3.0, 2.5, 3.5)), metric=dearer)
    assert rows(trades_table(worse))["thp"][4] == "–", "nothing is gained"


def test_arms_that_take_as_much_memory_as_the_baseline_have_no_such_table(recorded: Results) -> None:
    (cell,) = recorded.cells
    assert [one.ratio for one in cell.footprints] == [1.0, 1.0]
    assert [one.value for one in cell.footprints] == [64 * MIB, 64 * MIB]
    assert trades_table(cell) is None


def test_memory_of_the_first_pairs_alone_is_said_to_be(recorded: Results) -> None:
    """Of 10 pairs the interval is of all; of a long run it is of the first ones, which the table says."""
    cell = with_memory(recorded, thp=(3.0, 2.5, 3.5))
    assert "first" not in trades_table(cell).caption  # type: ignore[union-attr]
    long = replace(cell, comparisons=tuple(replace(one, n=1_000) for one in cell.comparisons))
    said = "; the interval of memory is of the first 10 pairs"
    assert trades_table(long).caption.endswith(said)  # type: ignore[union-attr]
    assert said in page(replace(recorded, cells=(long,)))
