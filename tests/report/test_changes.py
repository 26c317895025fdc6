"""The table of changes and counters side by side: intervals where there are some, reasons where there is nothing."""

from __future__ import annotations

from msgspec.structs import replace

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
    assert table.head == ("counter", "base", "thp", "change")
    found = {row[0]: row[1:] for row in table.rows}
    assert found["page faults"] == ("55,945 ± 0%, n 24", "21,300 ± 0%, n 24", "−61.93%")
    assert found["time elapsed"] == ("2.100 s ± 0%, n 24", "2.100 s ± 0%, n 24", "0%")
    assert found["instructions"] == ("– (this machine has no hardware counters)", "–", "–")
    assert found["cache misses"] == ("– (not recorded)", "–", "–")
    assert counters_table(lpc(), lpc().cells[0]) is None


def test_nothing_to_compare_gives_no_table_and_hostile_text_stays_text() -> None:
    results = example()
    assert changes_table(results, replace(results.cells[0], arms=results.cells[0].arms[:1])) is None
    assert changes_table(replace(results, attempts=()), replace(results.cells[0], comparisons=())) is None
    table = known(changes_table(results, results.cells[2]))
    assert all(entry.isprintable() for row in (*table.rows, table.head) for entry in row)
    assert HOSTILE not in table.caption
