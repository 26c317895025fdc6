"""Every metric of a cell under every arm: tables and figures of changes."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from msgspec.structs import replace

from hugewise.analysis.analysis import analyze
from hugewise.analysis.changes import Values, changes
from hugewise.model.over_time import ArmFootprint
from hugewise.model.results import CellResult, Results
from hugewise.model.trial import Attempt
from hugewise.report.figures.effects import heat, heat_caption, heat_rows
from hugewise.report.figures.pareto import front, pareto, trades
from hugewise.report.figures.tail import of_attempts, of_operations
from hugewise.report.figures.theme import colours, points
from hugewise.report.images import inline, render
from hugewise.report.sections.cell import trades_table
from hugewise.report.sections.effects import changes_table, counters_table
from tests.build import known
from tests.build.few_blocks import demo
from tests.build.operations import with_operations
from tests.build.restated import lkml, lpc
from tests.build.results import HOSTILE, example, plain
from tests.report.test_figures import luminance
from tests.report.told import page, rows


def test_every_metric_is_a_row_and_new_ones_come_by_themselves() -> None:
    results = lpc()
    extra = tuple(replace(one, metrics={**one.metrics, "khugepaged_cpu_s": 0.5}) for one in results.attempts)
    found = rows(changes_table(replace(results, attempts=extra), results.cells[0]))
    assert found["khugepaged_cpu_s"][1:] == ("0.00%, n 24", "0.00%, n 24")
    assert found["page_faults"] == ("900,000 faults, n 24", "−73.3%, n 24", "−87.8%, n 24")
    assert found["cycles"] == ("– (this machine has no hardware counters)", "–", "–")
    assert found["swap_bytes"][1:] == ("– (0 in both)", "– (0 in both)")


def test_what_was_judged_has_its_interval_and_undecided_says_so() -> None:
    results = lpc()
    judged = rows(changes_table(results, results.cells[0]))["ops_per_s: ratio of geometric means"]
    assert judged[1].startswith("? undecided: −0.09% (−0.50% to +0.32%), n 24")
    assert judged[2].startswith("▲ better: +12.31% (+11.78% to +12.85%), n 24")


def test_end_points_stand_below_the_judged_metric() -> None:
    results = lpc()
    cell = results.cells[0]
    slow = replace(cell.comparisons[1], estimand="ratio of means", verdict="undecided")
    found = rows(changes_table(results, replace(cell, end_points=(slow,))))
    assert list(found)[:2] == ["ops_per_s: ratio of geometric means", "ops_per_s: ratio of means"]
    assert found["ops_per_s: ratio of means"][1:] == ("–", found["ops_per_s: ratio of means"][2])
    assert found["ops_per_s: ratio of means"][2].startswith("? undecided: ")


def test_a_setting_says_what_was_delivered() -> None:
    results = lpc()
    cell = results.cells[0]
    setting = tuple(replace(one, judged="setting", delivered_share=0.0) for one in cell.comparisons)
    found = rows(changes_table(results, replace(cell, comparisons=setting)))
    assert found["ops_per_s: ratio of geometric means"][1].endswith(", of the setting (0% delivered)")


def test_counters_stand_side_by_side_for_mapping_calls_only() -> None:
    results = lkml()
    table = known(counters_table(results, results.cells[0]))
    assert table.head == ("counter", "base", "thp")
    found = {row[0]: row[1:] for row in table.rows}
    assert found["page faults"] == ("55,945", "21,300, −61.93%, the same in all 24 blocks")
    assert found["page faults: spread"] == ("± 0%, n 24", "± 0%, n 24")
    assert found["time elapsed"] == ("2.100 s", "2.100 s, 0%, the same in all 24 blocks")
    assert found["instructions"] == ("– (this machine has no hardware counters)", "–")
    assert found["cache misses"] == ("– (not recorded)", "–")
    assert "cache misses: spread" not in found
    assert counters_table(lpc(), lpc().cells[0]) is None


def with_faults(values: Mapping[str, Sequence[float]]) -> Results:
    """The run with so many page faults in the first attempts of each arm, and none told of the others."""
    results = lkml()
    left = {arm: list(several) for arm, several in values.items()}
    attempts = []
    for one in sorted(results.attempts, key=lambda each: each.block):
        metrics = {name: value for name, value in one.metrics.items() if name != "page_faults"}
        if left[one.arm]:
            metrics["page_faults"] = left[one.arm].pop(0)
        attempts.append(replace(one, metrics=metrics))
    return replace(results, attempts=tuple(attempts))


def test_a_counter_that_varies_has_the_interval_of_its_pairs() -> None:
    """Pairs differ by a factor of 0.9, 0.8 and 1: the t interval of their logarithms, by hand."""
    results = with_faults({"base": [1000.0, 2000.0, 4000.0], "thp": [900.0, 1600.0, 4000.0]})
    found = rows(counters_table(results, results.cells[0]))
    logs = [math.log(ratio) for ratio in (0.9, 0.8, 1.0)]
    middle, error = fmean(logs), stdev(logs) / math.sqrt(3)
    half = 4.302653 * error  # Student's t of 2 degrees of freedom at 95%
    low, high = (100 * math.expm1(middle + side * half) for side in (-1, 1))
    said = re.fullmatch(r"2,167, −(\d+)% \(−(\d+)% to \+(\d+)%\)", found["page faults"][1])
    assert results.confidence == 0.95
    assert [int(one) for one in known(said).groups()] == [
        round(abs(one)) for one in (100 * math.expm1(middle), low, high)
    ]
    assert found["page faults: spread"] == ("± 65%, n 3", "± 75%, n 3")


def test_a_change_has_no_interval_of_one_pair_and_there_is_none_of_nothing() -> None:
    one = with_faults({"base": [1000.0], "thp": [900.0]})
    assert rows(counters_table(one, one.cells[0]))["page faults"] == ("1,000", "900, −10%")
    none = with_faults({"base": [0.0, 0.0], "thp": [5.0, 5.0]})
    found = rows(counters_table(none, none.cells[0]))
    assert found["page faults"] == ("0", "5")
    assert found["page faults: spread"] == ("n 2", "± 0%, n 2")


def test_nothing_to_compare_gives_no_table_and_hostile_text_stays_text() -> None:
    results = example()
    assert changes_table(results, replace(results.cells[0], arms=results.cells[0].arms[:1])) is None
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


def data(spec: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spec["data"]["values"]
    return found


def titles(spec: Any) -> list[str]:
    return re.findall(r"<title>(.*?)</title>", inline(render(spec), name="f", title="figure"))


def of_arm(results: Results, arm: str) -> list[Attempt]:
    return [one for one in results.attempts if one.arm == arm and one.state == "accepted"]


def test_the_tail_is_the_share_of_the_attempts_that_took_as_long(recorded: Results) -> None:
    (cell,) = recorded.cells
    spec = of_attempts(points(recorded, cell), cell, colours(recorded))
    assert spec is not None
    assert spec["layer"][0]["encoding"]["y"]["axis"]["values"] == [1, pytest.approx(0.1)]
    for arm in cell.arms:
        values = [one.metrics["ns_per_page"] for one in of_arm(recorded, arm.arm)]
        mine = [row for row in data(spec) if row["arm"] == arm.arm]
        assert len(mine) == len(set(values)) == 10
        factor = mine[-1]["value"] / max(value for value in values if value is not None)
        for row in mine:
            at_least = sum(value is not None and value * factor >= row["value"] * (1 - 1e-12) for value in values)
            assert row["share"] == pytest.approx(at_least / 10)
    assert any("thp-defer: 10% of the attempts took " in one for one in titles(spec))


def test_no_tail_of_few_attempts_or_of_what_is_no_time(recorded: Results) -> None:
    (cell,) = recorded.cells
    few = replace(recorded, attempts=tuple(one for one in recorded.attempts if one.block % 2))
    assert of_attempts(points(few, cell), cell, colours(recorded)) is None
    rate = replace(cell, metric=replace(cell.metric, unit="faults/s", better="higher"))
    assert of_attempts(points(recorded, rate), rate, colours(recorded)) is None


def test_the_tail_of_operations_is_drawn_from_the_whole_histogram() -> None:
    results = demo()
    cell = with_operations(results.cells[0])
    spec = of_operations(cell, colours(results))
    assert spec is not None
    assert [(row["arm"], row["value"], row["share"]) for row in data(spec)][2] == ("base", 40_000.0, 0.00002)
    assert spec["layer"][0]["encoding"]["x"]["scale"]["type"] == "log"
    assert spec["layer"][0]["encoding"]["y"]["axis"]["values"][-1] == pytest.approx(1e-5)
    assert "thp: 0.002% of the operations took 90,000 µs or longer" in titles(spec)
    assert of_operations(results.cells[0], colours(results)) is None


def test_the_table_of_colours_has_the_numbers_of_the_changes(recorded: Results) -> None:
    (cell,) = recorded.cells
    values = Values.of(cell, recorded.attempts)
    found = heat_rows(cell, values)
    spec = heat(cell, found)
    assert spec is not None
    ratios = {(one.metric, one.arm): one for one in changes(cell, values)}
    shown = data(spec)
    assert {row["arm"] for row in shown} == {"thp", "thp-defer"}
    for row in shown:
        one = ratios[row["metric"], row["arm"]]
        assert row["ratio"] == one.ratio
        assert row["way"] == ("lower" if row["ratio"] < 1 else "higher")
        assert row["weight"] == pytest.approx(0.5 * min(abs(math.log2(row["ratio"])), 1), abs=1e-4)
        assert ("▲" in row["text"]) == (one.verdict == "better")
    assert next(iter(found.shown)) == "ns_per_page", "what was judged comes first"
    told = [one for one in titles(spec) if one.startswith("thp, ns_per_page: ")]
    assert told == ["thp, ns_per_page: −86.7%, 99.5% interval −91.1% to −80.1%, 10 pairs, better"]
    assert sum("not judged, medians of 10 and 10 attempts" in one for one in titles(spec)) > 4


def test_of_many_metrics_those_that_changed_most_are_shown_and_the_caption_says_so() -> None:
    results = plain()
    cell = results.cells[0]
    names = [f"counter_{number:02d}" for number in range(40)]

    def changed(one: Attempt) -> Attempt:
        known = {name: 1.0 if one.baseline else 1 + place / 100 for place, name in enumerate(names)}
        return replace(one, metrics={**one.metrics, **known})

    attempts = tuple(map(changed, results.attempts))
    found = heat_rows(cell, Values.of(cell, attempts))
    assert len(found.shown) == 24
    assert found.of > 40
    assert "counter_39" in found.shown
    assert "counter_01" not in found.shown
    assert f"The 24 that were judged or changed most, of {found.of}" in heat_caption(found, "base")


def test_numbers_on_the_colours_keep_their_contrast_on_white_and_on_black() -> None:
    for fill in ("#2a78d6", "#d2700a"):
        for paper, ink in (("#ffffff", "#1d2126"), ("#14171b", "#e6e8eb")):
            mixed = "#" + "".join(
                f"{round((int(fill[at : at + 2], 16) + int(paper[at : at + 2], 16)) / 2):02x}" for at in (1, 3, 5)
            )
            light, dark = sorted((luminance(mixed), luminance(ink)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (fill, paper)


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
    cell = with_memory(recorded, thp=(3.0, 2.5, 3.5), thp_defer=(1.5, 1.2, None))
    found = trades(cell)
    spec = pareto(cell, found, colours(recorded))
    assert spec is not None
    by_arm = {one.arm: one for one in cell.comparisons}
    assert [one.arm for one in found] == ["thp", "thp-defer"]
    for one in found:
        told = by_arm[one.arm]
        assert told.ratio is not None
        assert told.high is not None
        assert one.gain.value == pytest.approx(100 * (1 - told.ratio)), "lower is better"
        assert one.gain.low == pytest.approx(100 * (1 - told.high))
    memory = found[0].memory
    assert [memory.value, memory.low, memory.high] == [1024 * MIB, 768 * MIB, 1280 * MIB]
    assert found[0].price == pytest.approx(1.0 / found[0].gain.value)
    assert found[1].memory.high == math.inf
    marks = spec["layer"][-1]["data"]["values"]
    assert [(row["memory"], row["gain"]) for row in marks] == [
        (pytest.approx(1.0), found[0].gain.value),
        (pytest.approx(0.25), found[1].gain.value),
    ]
    across = next(one["data"]["values"] for one in spec["layer"] if one.get("mark", {}).get("strokeWidth") == 2)
    assert (across[0]["low"], across[0]["high"]) == (0.75, 1.25)
    assert across[1]["over"], "an end that is not known leaves the figure"
    table = rows(trades_table(cell))
    assert table["thp"][1:3] == ("512 MiB", "1.50 GiB")
    assert table["thp"][4] == "11.8 MiB"


def test_what_nothing_else_beats_in_both_is_the_front(recorded: Results) -> None:
    better = front(trades(with_memory(recorded, thp=(3.0, 2.5, 3.5), thp_defer=(1.5, 1.2, 1.8))))
    assert [memory for memory, _ in better] == [0, 256 * MIB, 1024 * MIB]
    dear = front(trades(with_memory(recorded, thp=(1.5, 1.2, 1.8), thp_defer=(3.0, 2.5, 3.5))))
    assert [memory for memory, _ in dear] == [0, 256 * MIB], "thp gains more for less"


def test_arms_that_take_as_much_memory_as_the_baseline_are_not_drawn_against_it(recorded: Results) -> None:
    (cell,) = recorded.cells
    assert [one.ratio for one in cell.footprints] == [1.0, 1.0]
    assert [one.value for one in cell.footprints] == [64 * MIB, 64 * MIB]
    assert trades(cell) == []
    assert pareto(cell, trades(cell), colours(recorded)) is None
    assert trades_table(cell) is None


def test_the_page_has_them_where_there_are_data(recorded: Results) -> None:
    whole = replace(recorded, cells=(with_memory(recorded, thp=(3.0, 2.5, 3.5)),))
    assert "speed and memory" in page(whole)
    assert "speed and memory" not in page(recorded)


def test_memory_of_the_first_pairs_alone_is_said_to_be(recorded: Results) -> None:
    """Of 10 pairs the interval is of all; of a long run it is of the first ones, which table and figure say."""
    cell = with_memory(recorded, thp=(3.0, 2.5, 3.5))
    assert "first" not in trades_table(cell).caption  # type: ignore[union-attr]
    long = replace(cell, comparisons=tuple(replace(one, n=1_000) for one in cell.comparisons))
    said = "; the interval of memory is of the first 10 pairs"
    assert trades_table(long).caption.endswith(said)  # type: ignore[union-attr]
    assert page(replace(recorded, cells=(long,))).count(said) == 2
