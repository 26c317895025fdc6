"""Changes of every metric: what is judged keeps its interval, the rest is a change of medians, nothing is invented."""

import pytest
from msgspec.structs import replace

from hugewise.analysis.changes import Values, changes, known_metrics, value_of
from hugewise.model.reason import Known, ZeroMedian
from hugewise.report.reasons import in_words
from tests.build.restated import CALL, OPS, cell
from tests.build.results import example


def test_the_judged_metric_is_the_comparison_itself() -> None:
    for one in example().cells:
        found = {
            change.arm: change
            for change in changes(one, Values.of(one, example().attempts))
            if change.metric == one.metric.name
        }
        for comparison in one.comparisons:
            change = found[comparison.arm]
            assert (change.ratio, change.low, change.high) == (comparison.ratio, comparison.low, comparison.high)
            assert (change.verdict, change.n) == (comparison.verdict, comparison.n)


def test_other_metrics_are_medians_without_an_interval() -> None:
    one, attempts = cell(
        "kv", "kv", OPS, {}, {"base": (100.0, "none"), "thp": (110.0, "better")}, {"p99_us": (80.0, 60.0)}
    )
    change = next(each for each in changes(one, Values.of(one, attempts)) if each.metric == "p99_us")
    assert change.ratio == pytest.approx(0.75)
    assert (change.low, change.high, change.verdict) == (None, None, None)
    assert (change.n, change.n_baseline, change.value, change.value_baseline) == (24, 24, 60.0, 80.0)


def test_what_is_not_there_has_its_reason_and_no_ratio() -> None:
    one, attempts = cell(
        "kv",
        "kv",
        OPS,
        {},
        {"base": (100.0, "none"), "thp": (110.0, "better")},
        {"instructions": (None, None), "swap": (0.0, 0.0), "bloat": (0.0, 5.0)},
    )
    found = {each.metric: each for each in changes(one, Values.of(one, attempts))}
    assert found["instructions"].ratio is None
    assert in_words(found["instructions"].reason) == "this machine has no hardware counters"
    assert (found["swap"].ratio, found["swap"].reason) == (None, Known("zero"))
    assert (found["bloat"].ratio, found["bloat"].reason) == (None, ZeroMedian("base"))


def test_only_accepted_attempts_of_the_cell_count() -> None:
    one, attempts = cell("kv", "kv", CALL, {}, {"base": (100.0, "none"), "thp": (110.0, "worse")}, {"n": (1.0, 1.0)})
    other = [replace(each, cell="other", metrics={"n": 9.0}) for each in attempts]
    failed = [replace(each, state="failed", metrics={"n": 9.0}) for each in attempts]
    change = next(each for each in changes(one, Values.of(one, [*attempts, *other, *failed])) if each.metric == "n")
    assert (change.value, change.n) == (1.0, 24)


def test_times_of_every_attempt_are_metrics_and_unknown_workloads_have_the_common_ones() -> None:
    attempt = replace(example().attempts[0], metrics={})
    assert value_of(attempt, "wall_s") == 2.1
    assert value_of(attempt, "pool_bytes") == 0
    assert value_of(attempt, "state") is None
    assert "page_faults" in known_metrics("of nobody")
    assert known_metrics("mmap-perf")["ns_per_call"].unit == "ns"
