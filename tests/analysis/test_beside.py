"""Rows of what was published beside what was measured, for each of the five sources, on runs made by hand."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hugewise import published
from hugewise.analysis.analysis import analyze
from hugewise.analysis.published import agreement, agreement_of_change, published_rows, sign, size, trend
from hugewise.model.reason import Known
from hugewise.model.results import Beside, Level, Measured, Results
from hugewise.report.reasons import in_words
from hugewise.study.workload import cell_of
from tests.analysis.test_forecast import DATA, normal, the_study, write_run
from tests.build import known
from tests.build.restated import EVERY, lkml, lpc, percona_2018, percona_2019, redhat


def of(results: Results) -> Beside:
    return known(results.beside)


def numbers_in(value: Any) -> set[float]:
    """Every number of a source's file, wherever it stands."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return set()
    if isinstance(value, dict):
        return set().union(*(numbers_in(inner) for inner in value.values()))
    if isinstance(value, list):
        return set().union(*(numbers_in(inner) for inner in value))
    return {float(value)}


def source_of(name: str) -> dict[str, Any]:
    path = Path(published.__file__).with_name(f"{name}.toml")
    data: dict[str, Any] = msgspec.toml.decode(path.read_bytes())
    return data


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_what_is_published_is_the_sources_and_what_is_measured_the_runs(make: Any) -> None:
    results = make()
    found = of(results)
    held = numbers_in(source_of(found.name))
    said = msgspec.json.decode(msgspec.json.encode(found))
    for point in said["points"]:
        own = {key: point[key] for key in ("percent", "arm_sample", "baseline_sample", "confidence")}
        # Sources print the size of an effect and call it faster or slower: the sign is that of the means.
        assert {abs(number) for number in numbers_in(own)} <= {abs(number) for number in held}
    for finding in said["findings"]:
        assert numbers_in({key: value for key, value in finding.items() if key != "measured"}) == set()
    assert numbers_in(said["runs"]) <= held
    judged = {(one.cell, each.arm): each for one in results.cells for each in one.comparisons}
    for told in found.points:
        measured = told.measured
        assert (measured is None) == (told.agreement == "not measured here")
        assert measured is not None or told.reason
        if measured is not None and measured.verdict != "not judged":
            one = judged[told.cell, told.policy]
            assert (measured.ratio, measured.low, measured.n) == (one.ratio, one.low, one.n)
        elif measured is not None:
            assert (measured.low, measured.high, measured.confidence) == (None, None, None)


def test_figures_stand_point_by_point() -> None:
    found = of(lpc())
    rows = {(p.entry, p.quantity, p.policy): p for p in found.points}
    assert rows["memcached", "ops_per_s", "thp"].percent == 17
    assert rows["memcached", "ops_per_s", "thp"].agreement == "same sign"
    assert rows["memcached", "ops_per_s", "mthp-64k"].percent == 0
    assert rows["memcached", "ops_per_s", "mthp-64k"].agreement == "undecided here"
    assert rows["redis", "ops_per_s", "mthp-64k"].agreement == "opposite sign"
    assert rows["redis", "ops_per_s", "thp"].agreement == "equivalent here"
    latency = rows["memcached", "p99_latency", "thp"]
    assert latency.measured is not None and latency.measured.verdict == "not judged"
    assert (latency.percent, latency.agreement) == (-36, "not judged here")
    walks = rows["memcached", "dtlb_walk_steps", "thp"]
    assert (walks.measured, in_words(walks.reason)) == (None, "this machine has no hardware counters")
    assert rows["kernel-build", "real_time", "mthp-64k"].measured.metric == "wall_s"  # type: ignore[union-attr]
    assert "16K (16KPS)" in found.elsewhere and "2M (4KPS)" not in found.elsewhere


def test_a_printed_zero_is_rounded() -> None:
    """+0.35% to +2.19% does not contradict a source that prints 0%."""
    point = next(p for p in of(lpc()).points if p.measured is not None)
    near = replace(known(point.measured), verdict="worse", ratio=1.0137, low=1.0035, high=1.0219)
    assert "has room for the least that our interval has" in agreement_of_change(0, near, near.ratio)
    assert agreement_of_change(0, replace(near, low=1.006), near.ratio) == "an effect here, none published"
    assert agreement_of_change(2, near, near.ratio) == "same sign"
    assert agreement_of_change(None, near, near.ratio) == "no change published"


@pytest.mark.parametrize(
    ("percent", "low", "high", "size_of_it"),
    [
        (17, 1.10, 1.25, "within"),
        (17, 1.04, 1.09, "larger"),
        (17, 1.20, 1.30, "smaller"),
        (-36, 0.80, 0.90, "larger"),
        (-36, 0.50, 0.60, "smaller"),
        (0, 1.02, 1.05, "smaller"),
        (0, 0.95, 0.98, "smaller"),
        (0, 1.0035, 1.0219, "rounded"),
        (0, 1.0055, 1.0219, "smaller"),
        (-5, 0.956, 0.97, "larger"),
        (-5, 0.954, 0.97, "rounded"),
        (3.63, 1.03637, 1.05, "smaller"),
        (3.63, 1.03634, 1.05, "rounded"),
        (1e-5, 1.0000002, 1.1, "smaller"),
        (1.5e-5, 1.000000152, 1.1, "rounded"),
        (-100, 0.0, 0.0, "within"),
        (2, 0.95, 0.99, "larger"),
        (17, 0.97, 1.05, "larger"),
        (-100, 0.5, 0.9, "larger"),
        (17, None, 1.05, "larger"),
        (17, 1.10, None, "within"),
        (17, None, None, None),
        (None, 1.10, 1.25, None),
    ],
)
def test_a_published_change_lies_within_the_interval_or_beyond_all_of_it(
    percent: float | None, low: float | None, high: float | None, size_of_it: str | None
) -> None:
    """In its own direction: a fall by 36% is larger than one by 10% to 20%."""
    point = next(p for p in of(lpc()).points if p.measured is not None)
    assert size(percent, replace(known(point.measured), low=low, high=high)) == size_of_it
    assert size(percent, None) is None


def test_words_stand_where_there_are_no_figures() -> None:
    found = {(f.entry, f.policy): f for f in of(lpc()).findings}
    assert found["x264", "thp"].agreement == "an effect here, none published"
    assert found["x264", "mthp-64k"].agreement == "no effect in either"
    assert found["x264", "thp"].figures.startswith("none")
    assert of(percona_2018()).points == ()


def test_a_trend_is_read_off_the_first_and_the_last_level() -> None:
    trends = [f for f in of(percona_2018()).findings if f.parameter]
    by_clients = [f for f in trends if f.parameter == "clients" and f.policy == "hugetlb-2m"]
    assert [[level.value for level in f.measured] for f in by_clients] == [["4", "16", "64"]] * 2
    assert {f.agreement for f in by_clients} == {"same trend"}
    by_size = [f for f in trends if f.parameter == "database_share" and f.policy == "hugetlb-2m"]
    assert [[level.value for level in f.measured] for f in by_size] == [["0.4", "0.8"]] * 3
    assert {f.agreement for f in by_size} == {"undecided here"}
    assert by_size[0].condition == "while the database fits shared_buffers"


def test_a_cell_that_the_source_does_not_speak_of_is_not_held_against_it() -> None:
    signs = [f for f in of(percona_2018()).findings if f.effect == "better" and f.policy == "hugetlb-2m"]
    assert len(signs) == 10
    for finding in signs:
        (level,) = finding.measured
        spilled = "=1.5-" in level.cell or level.cell == "spill"
        assert (finding.agreement == "beyond what was published") == spilled
        assert level.measured is not None


def test_one_level_is_no_trend() -> None:
    results = percona_2018()
    cells = tuple(one for one in results.cells if one.parameters["database_share"] in {0.4, 1.5})
    arms = {"base": "base4k", "hugetlb-2m": "hugetlb2m"}
    source = published.load("percona-2018-hugepages-postgresql")
    found = published_rows(source, [("pgbench", "pgbench"), ("spill", "pgbench")], arms, replace(results, cells=cells))
    (by_size,) = [f for f in found.findings if f.parameter == "database_share" and f.policy == "hugetlb-2m"]
    assert (by_size.agreement, by_size.measured) == ("not measured here", ())
    assert in_words(by_size.reason) == "database_share has one level here within what was published"
    fixed = replace(results, cells=results.cells[:1])
    found = published_rows(source, [("pgbench", "pgbench")], arms, fixed)
    assert {in_words(f.reason) for f in found.findings if f.parameter and f.policy} == {
        *("clients is not varied here", "database_share is not varied here")
    }


def test_what_was_left_out_says_why_once() -> None:
    absent = [f for f in of(percona_2018()).findings if f.policy == "hugetlb-1g"]
    assert len(absent) == 3
    assert {in_words(f.reason) for f in absent} == {"left out: the kernel granted 1 of 3 pages"}
    tpcc = [f for f in of(percona_2019()).findings if f.entry == "tpcc"]
    assert [(f.agreement, in_words(f.reason)) for f in tpcc] == [
        ("not measured here", "left out: go-tpc is not on the PATH")
    ]


def test_a_benchmark_brings_its_own_samples() -> None:
    rows = {p.entry: p for p in of(redhat()).points}
    memory = rows["sysbench-memory"]
    assert memory.percent == -2.4
    assert memory.arm_sample is not None and memory.arm_sample.mean == 128.34
    assert memory.agreement == "same sign"
    assert rows["iperf3"].percent == 0.4
    assert rows["iperf3"].agreement == "opposite sign"
    assert (rows["gdb-build"].cell, rows["gdb-build"].reason) == ("", Known("no cell"))


def test_arms_that_nothing_stands_for_are_shown_alone() -> None:
    rows = of(lkml()).points
    assert len(rows) == 9
    assert {in_words(row.reason) for row in rows} == {"no policy of the study stands for it"}
    cycles = next(row for row in rows if row.quantity == "cycles")
    assert (cycles.percent, cycles.baseline_sample.mean) == (3.63, 3_781_392_474)  # type: ignore[union-attr]
    assert next(row for row in rows if row.quantity == "page-faults").percent is None


def test_another_baseline_is_never_compared() -> None:
    results = lpc()
    arms = {"base": "64K (4KPS)", "thp": "2M (4KPS)"}
    found = published_rows(published.load("lpc-2024-mthp-arm64"), [("memcached", "memcached")], arms, results)
    thp = next(point for point in found.points if point.policy == "thp")
    assert thp.measured is None
    assert in_words(thp.reason) == "the baseline base stands for 64K (4KPS), not for 4K (4KPS)"
    found = published_rows(
        published.load("lpc-2024-mthp-arm64"), [("memcached", "memcached")], {"thp": "2M (4KPS)"}, results
    )
    assert in_words(found.points[0].reason) == "the baseline base stands for no published arm, not for 4K (4KPS)"


def test_two_policies_may_stand_for_one_arm() -> None:
    results = lpc()
    arms = {"base": "4K (4KPS)", "thp": "2M (4KPS)", "mthp-64k": "2M (4KPS)"}
    found = published_rows(published.load("lpc-2024-mthp-arm64"), [("redis", "redis")], arms, results)
    assert [p.policy for p in found.points if p.quantity == "ops_per_s"] == ["thp", "mthp-64k"]


def test_a_setting_is_named_with_what_was_delivered() -> None:
    results = lpc()
    first = results.cells[0]
    comparisons = tuple(replace(one, judged="setting", delivered_share=0.03) for one in first.comparisons)
    results = replace(results, cells=(replace(first, comparisons=comparisons), *results.cells[1:]))
    arms = {"base": "4K (4KPS)", "thp": "2M (4KPS)"}
    found = published_rows(published.load("lpc-2024-mthp-arm64"), [("memcached", "memcached")], arms, results)
    measured = known(found.points[0].measured)
    assert (measured.judged, measured.delivered_share) == ("setting", 0.03)


def test_a_cell_belongs_to_the_longest_label() -> None:
    labels = ["pgbench", "pgbench-ro", "kv"]
    assert [cell_of(labels, cell) for cell in ("pgbench-clients=4", "pgbench-ro-clients=4", "kv", "other")] == [
        *(0, 1, 2, None)
    ]


def judged(verdict: Any, ratio: float | None = 1.1, low: float | None = 1.05, high: float | None = 1.15) -> Measured:
    return Measured(
        arm="thp",
        baseline="base",
        metric="tps",
        n=9,
        ratio=ratio,
        low=low,
        high=high,
        confidence=0.99,
        verdict=verdict,
        estimand="ratio of geometric means",
        judged="backing",
        delivered_share=1.0,
    )


@given(st.sampled_from([-1, 0, 1, None]), st.floats(0.01, 100), st.sampled_from(["undecided", "none", "not judged"]))
def test_without_a_decision_there_is_no_sign(said: int | None, ratio: float, verdict: str) -> None:
    assert "sign" not in agreement(said, judged(verdict, ratio), ratio)
    assert "trend" not in agreement(said, judged(verdict, ratio), ratio)


@given(st.sampled_from([-1, 1]), st.floats(0.01, 100).filter(lambda ratio: ratio != 1))
def test_signs_are_those_of_the_change(said: int, ratio: float) -> None:
    words = agreement(said, judged("better", ratio), ratio)
    assert words == ("same sign" if sign(ratio - 1) == said else "opposite sign")


@pytest.mark.parametrize(
    ("first", "last", "better", "words"),
    [
        ((1.00, 1.02), (1.05, 1.09), "higher", "same trend"),
        ((1.05, 1.09), (1.00, 1.02), "higher", "opposite trend"),
        ((1.00, 1.06), (1.05, 1.09), "higher", "undecided here"),
        ((0.98, 1.00), (0.91, 0.95), "lower", "same trend"),
        ((0.91, 0.95), (0.98, 1.00), "lower", "opposite trend"),
        ((None, None), (0.91, 0.95), "lower", "no verdict here"),
        ((0.98, None), (0.91, 0.95), "lower", "same trend"),
        ((None, 0.98), (0.91, 0.95), "lower", "undecided here"),
        ((None, 0.9), (0.91, 0.95), "lower", "opposite trend"),
        ((1.05, None), (None, 1.01), "higher", "opposite trend"),
        ((1.05, None), (1.5, None), "higher", "undecided here"),
    ],
)
def test_a_trend_needs_intervals_apart(first: Any, last: Any, better: str, words: str) -> None:
    levels = [
        Level(cell=f"c{n}", value=str(n), measured=judged("undecided", 1.0, low, high), reason="")
        for n, (low, high) in enumerate((first, last))
    ]
    assert trend(levels, better)[0] == words
    assert trend(levels[:1], better) == ("not measured here", Known("one level"))


def test_a_runs_folder_brings_the_published_side_with_it(tmp_path: Path) -> None:
    named = {"published": "percona-2019-thp-postgresql", "published_arms": {"base": "thp_off", "thp": "thp_on"}}
    of_study = the_study(**named, workload=[{"name": "chase", "published": "tpcb"}])
    found = analyze(write_run(tmp_path, of_study, normal(0.01, 8)))
    (finding,) = known(found.beside).findings
    assert (finding.entry, finding.policy, finding.agreement) == ("tpcb", "thp", "not measured here")
    assert in_words(finding.reason) == "no metric of this cell measures it (tps, tpmC, tpmc, tpm_c, TPS)"
    assert analyze(write_run(tmp_path, the_study(**DATA), normal(0.01, 8))).beside is None
