"""The table of changes and counters side by side: intervals where there are some, reasons where there is nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from msgspec.structs import replace

from hugewise.model.results import Results
from hugewise.report.sections.changes import changes_table, counters_table
from tests.build import known
from tests.build.restated import lkml, lpc
from tests.build.results import HOSTILE, example
from tests.report.told import rows


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
