"""Metrics that a study judges beside a cell's own: from the log of a run to what everybody is told of them."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hugewise.analysis import analysis, combining, forecast
from hugewise.analysis.changes import Values, changes
from hugewise.analysis.pooling import summarised
from hugewise.model.design import beside_its_own
from hugewise.model.metric import Metric
from hugewise.model.results import CellResult
from hugewise.report import forecast as report
from hugewise.report.cell_answers import selection
from hugewise.report.data_files import comparisons_csv
from hugewise.report.reasons import in_words
from hugewise.report.summary import summary
from hugewise.store.records import CellRecord
from tests.analysis.test_forecast import cell, normal, the_study, write_run
from tests.build import known
from tests.build.logs import rewritten
from tests.report.told import printed

COST = Metric("server_cpu_us", "us", "lower", "CPU time for each operation")
FAULTS = Metric("page_faults", "faults", "lower", "page faults")
# The rate says nothing in 24 pairs; what an operation costs, and faults, differ by 15% with hardly any spread.
RATES = normal(0.2, 24)
SHIFTS = {COST.name: -0.15, FAULTS.name: 0.15}


def a_run(folder: Path, cells: tuple[CellRecord, ...] | None = None, **changes: Any) -> Path:
    of = the_study()
    cells = (cell("chase", "thp", also=(COST, FAULTS)),) if cells is None else cells
    return write_run(folder, of, RATES, cells=cells, **{"beside": SHIFTS, **changes})


def found(path: Path) -> CellResult:
    return analysis.analyze(path).cells[0]


def test_each_is_judged_by_its_own_values(tmp_path: Path) -> None:
    one = found(a_run(tmp_path))
    assert [(each.metric, each.verdict) for each in one.comparisons] == [("ns_per_load", "undecided")]
    assert [(each.metric, each.verdict, each.n) for each in one.declared] == [
        ("server_cpu_us", "better", 13),
        ("page_faults", "worse", 13),
    ]
    assert [known(each.ratio) for each in one.declared] == pytest.approx([0.861, 1.162], abs=0.005)
    assert one.judged == (*one.comparisons, *one.declared)
    assert [one.metric_named(each.metric).unit for each in one.judged] == ["ns", "us", "faults"]
    assert len({each.alpha for each in one.judged}) == 1
    assert sum(known(each.alpha) for each in one.judged) == pytest.approx(0.01)


def test_a_value_that_is_absent_on_a_side_is_no_value(tmp_path: Path) -> None:
    one = found(a_run(tmp_path, beside={COST.name: None, FAULTS.name: 0.15}))
    cost, faults = one.declared
    assert (cost.verdict, cost.n) == ("none", 0)
    assert "server_cpu_us of thp absent" in in_words(cost.reason)
    assert faults.verdict == "worse"


def test_what_a_run_does_not_declare_is_not_judged(tmp_path: Path) -> None:
    one = found(a_run(tmp_path, (cell("chase", "thp"),)))
    assert not one.declared
    assert not one.also
    assert known(one.comparisons[0].alpha) == pytest.approx(0.01)


def test_a_metric_that_was_not_calibrated_has_no_verdict_where_the_cells_own_has(tmp_path: Path) -> None:
    withheld = {beside_its_own("chase", COST.name): "a resident design must be calibrated"}
    one = found(a_run(tmp_path, run={"withheld": withheld}))
    assert [each.verdict for each in one.judged] == ["undecided", "none", "worse"]
    assert "must be calibrated" in in_words(one.declared[0].reason)


def test_tables_and_pages_have_their_unit_and_direction(tmp_path: Path) -> None:
    results = analysis.analyze(a_run(tmp_path))
    rows = list(csv.DictReader(io.StringIO(comparisons_csv(results))))
    assert [(row["metric"], row["unit"], row["better"], row["verdict"]) for row in rows] == [
        ("ns_per_load", "ns", "lower", "undecided"),
        ("server_cpu_us", "us", "lower", "better"),
        ("page_faults", "faults", "lower", "worse"),
    ]


def test_they_stand_among_the_changes_with_their_verdicts_and_not_again_as_medians(tmp_path: Path) -> None:
    results = analysis.analyze(a_run(tmp_path))
    of = results.cells[0]
    told = changes(of, Values.of(of, results.attempts))
    assert [(one.metric, one.unit, one.verdict) for one in told][:3] == [
        ("ns_per_load", "ns", "undecided"),
        ("server_cpu_us", "us", "better"),
        ("page_faults", "faults", "worse"),
    ]
    assert not {"ns_per_load", "server_cpu_us", "page_faults"} & {one.metric for one in told[3:]}


def test_a_reader_of_the_short_report_sees_which_one_carries_the_claim(tmp_path: Path) -> None:
    said = printed(summary(analysis.analyze(a_run(tmp_path))))
    assert {"▲ better", "▼ worse"} <= {line[-8:].strip() for line in said.splitlines()}
    assert "thp, s" in said and "thp, p" in said


def test_how_many_comparisons_share_the_error_rate_is_told_with_all_of_them(tmp_path: Path) -> None:
    results = analysis.analyze(a_run(tmp_path, (cell("chase", "thp", "mthp", also=(COST, FAULTS)),)))
    assert "6 comparisons" in selection(results)
    unjudged = replace(
        results.cells[0], declared=tuple(replace(each, method="unjudged") for each in results.cells[0].declared)
    )
    assert "2 comparisons" in selection(replace(results, cells=(unjudged,)))


def test_two_runs_of_it_are_judged_together_and_held_against_each_other(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    for path, seed in zip(runs, (1, 2), strict=True):
        rewritten(path, lambda records, seed=seed: [records[0] | named(seed), *records[1:]])  # type: ignore[misc]
    together = combining.answer(runs)
    assert [(one.metric, one.verdict) for one in together.comparisons] == [
        ("ns_per_load", "undecided"),
        ("server_cpu_us", "better"),
        ("page_faults", "worse"),
    ]
    both = combining.compared(*runs)
    assert [(one.metric, one.unit) for one in both.effects] == [
        ("ns_per_load", "ns"),
        ("server_cpu_us", "us"),
        ("page_faults", "faults"),
    ]


def named(seed: int) -> dict[str, Any]:
    return {"run": f"20261120T21000{seed}Z-000{seed}", "seed_hash": f"{seed:064x}", "host": {"name": f"host-{seed}"}}


def test_each_is_planned_by_its_own_spread_and_an_arm_goes_on_until_all_have_their_pairs(tmp_path: Path) -> None:
    planned = forecast.forecast(the_study(), [a_run(tmp_path)], effect=0.05)
    rate, cost, faults = planned.rows
    assert [row.metric for row in planned.rows] == ["ns_per_load", "server_cpu_us", "page_faults"]
    assert planned.comparisons == 3
    assert known(rate.sd) == pytest.approx(0.2, abs=0.001)
    assert (known(cost.sd), known(faults.sd)) == pytest.approx((0.01, 0.01), abs=0.001)
    assert known(rate.needed) > 10 * known(cost.needed)
    (alone,) = forecast.forecast(the_study(), [a_run(tmp_path / "alone", (cell("chase", "thp"),))], effect=0.05).rows
    assert known(alone.needed) < known(rate.needed), "its share of the error rate is three times as large"
    each = known(planned.seconds) / known(rate.needed)
    assert each == pytest.approx(known(rate.seconds)), "three metrics are of the same attempts"
    told = printed(report.study(planned), width=160)
    assert "ns_per_load, server_cpu_us, page_faults; change against base" in told
    assert "thp, ns_per_load: half of such campaigns" in told
    assert [line.split()[:2] for line in told.splitlines() if line.startswith("thp ")] == [
        ["thp", name] for name in ("ns_per_load", "server_cpu_us", "page_faults")
    ]


def test_hosts_of_a_fleet_are_pooled_on_the_cells_own_metric(tmp_path: Path) -> None:
    (one,) = summarised(a_run(tmp_path)).comparisons
    assert one.found.metric == "ns_per_load"
    assert known(one.estimate).pairs == 24
    carried = known(summarised(a_run(tmp_path / "again")).evidence)
    assert [each.metric for each in carried.comparisons] == ["ns_per_load"]


def test_a_screening_tells_what_it_does_not_judge_as_medians(tmp_path: Path) -> None:
    results = analysis.analyze(a_run(tmp_path))
    of = replace(results.cells[0], declared=())
    assert "server_cpu_us" in {one.metric for one in changes(of, Values.of(of, results.attempts))[1:]}
