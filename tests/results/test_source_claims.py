"""Every claim of a publication, and the studies that test it: as the sources and the studies have them."""

from __future__ import annotations

import pytest

from hugewise import published
from tests.build.restated import EVERY, beside_nothing
from tools.results.claims import (
    SourceClaim,
    Way,
    arms_elsewhere,
    claim_of,
    claimed,
    claims_in,
    restating,
    shipped_studies,
    ways,
    ways_beside,
)

STUDIES = shipped_studies()


def claim(source: str, *parts: str) -> SourceClaim:
    """The one claim whose words and key have all of these."""
    found = [one for one in claims_in(published.load(source)) if all(part in (*one.key, one.said) for part in parts)]
    assert len(found) == 1, [one.said for one in found]
    return found[0]


def told(source: str, one: SourceClaim) -> list[tuple[str, str, str, str, str]]:
    return [(w.study, w.label, w.policy, w.scale, w.guests) for w in ways(one, published.load(source), STUDIES)]


@pytest.mark.parametrize("name", published.names())
def test_every_figure_and_every_claim_of_a_source_is_there_once(name: str) -> None:
    source = published.load(name)
    every = list(claims_in(source))
    assert len({one.key for one in every}) == len(every)
    figures = sum(len(table.changes) * (len(table.arms) - 1) for table in source.tables)
    figures += sum(len(one.counter) for one in source.counters) + len(source.benchmarks)
    words = sum(len(finding.entries) * len(finding.claim) for finding in source.findings)
    assert len(every) == figures + words > 0
    assert {one.entry for one in every} == set(source.entries)
    assert restating(source, STUDIES)


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_rows_of_a_page_are_of_claims_that_the_source_makes(make: object) -> None:
    results = make()  # type: ignore[operator]
    known = {one.key for one in claims_in(published.load(results.beside.name))}
    rows = {claim_of(one.row) for one in claimed([results])}
    assert rows and rows <= known


def test_a_claim_is_tested_where_a_workload_names_it_and_has_both_arms() -> None:
    lpc = "lpc-2024-mthp-arm64"
    figure = claim(lpc, "redis", "ops_per_s", "2M (4KPS)")
    assert figure.said == "2M (4KPS) changes ops_per_s by +16% against 4K (4KPS)"
    assert claim(lpc, "redis", "p99_latency", "64K (4KPS)").said == (
        "64K (4KPS) does not change p99_latency (0%) against 4K (4KPS)"
    )
    assert claim("lkml-2009", "mmap-perf", "cpu-migrations").said == (
        "paravirt beside native: cpu-migrations, no change printed"
    )
    assert told(lpc, figure) == [
        ("lpc-2024-base-pages", "redis", "4k-2m", "published", "emulated"),
        ("lpc-2024-base-pages-debian", "redis", "debian-4k-2m", "published", "emulated"),
        ("lpc-2024-mthp", "redis", "thp", "small", ""),
        ("lpc-2024-mthp", "redis-libc", "thp", "small", ""),
    ]
    other = claim(lpc, "redis", "ops_per_s", "16K (16KPS)")
    assert {way[0] for way in told(lpc, other)} == {"lpc-2024-base-pages", "lpc-2024-base-pages-debian"}
    assert arms_elsewhere(other, published.load(lpc), STUDIES) == [
        "lpc-2024-base-pages",
        "lpc-2024-base-pages-debian",
    ]


def test_guests_count_what_needs_no_clock_and_nothing_else() -> None:
    lpc = "lpc-2024-mthp-arm64"
    of = {
        quantity: {one[0]: one[4] for one in told(lpc, claim(lpc, "kernel-build", quantity, "64K (64KPS)"))}
        for quantity in ("page_faults", "real_time")
    }
    assert of == {"page_faults": {"lpc-2024-base-pages": ""}, "real_time": {"lpc-2024-base-pages": "emulated"}}
    lkml = "lkml-2009-paravirt"
    of = {
        quantity: {one[0]: one[4] for one in told(lkml, claim(lkml, "mmap-perf", quantity, "paravirt"))}
        for quantity in ("instructions", "cycles")
    }
    assert of == {"instructions": {lkml: ""}, "cycles": {lkml: "counting"}}


def test_a_trend_wants_several_levels() -> None:
    source = "percona-2018-hugepages-postgresql"
    trends = [one for one in claims_in(published.load(source)) if one.parameters == ("clients",)]
    assert [told(source, one)[0][:2] for one in trends] == [("percona-2018-hugepages", "tpcb")] * 2
    sizes = [one for one in claims_in(published.load(source)) if "database_share" in one.parameters]
    # One of the two sizes fits into the buffers, and of the other the source does not say this.
    assert [told(source, one) for one in sizes] == [[], []]


def test_a_claim_is_not_tested_beyond_what_the_source_speaks_of() -> None:
    source = "percona-2018-hugepages-postgresql"
    gains = [one for one in claims_in(published.load(source)) if not one.parameters]
    assert [one.arm for one in gains] == ["hugetlb2m", "hugetlb1g"]
    assert {way[1] for way in told(source, gains[0])} == {"tpcb", "select-only"}  # the spill does not fit
    assert {way[1] for way in told(source, gains[1])} == {"tpcb", "spill"}  # look-ups have no arm of 1 GiB


def test_a_command_names_the_scale_where_the_study_as_written_does_not_do() -> None:
    way = Way("s", "redis", ("redis", "redis-sla"), "thp", "small")
    assert way.command == "hugewise run s --only redis"
    assert way._replace(scale="published").command == "hugewise run s --only redis --scale published"
    assert way.has("redis") and way.has("redis-keys=1") and not way.has("redis-sla")


def test_a_way_says_which_metric_its_cell_does_not_judge() -> None:
    lpc = "lpc-2024-mthp-arm64"
    source = published.load(lpc)
    lacks = {
        quantity: {way.lacks for way in ways(claim(lpc, "memcached", quantity, "2M (4KPS)"), source, STUDIES)}
        for quantity in ("ops_per_s", "p99_latency", "ipc_user", "dtlb_walk_steps_pki")
    }
    assert lacks == {
        "ops_per_s": {""},
        "p99_latency": {"", "p99_us"},  # declared beside it, but not where guests count faults
        "ipc_user": {"ipc_user"},
        "dtlb_walk_steps_pki": {"walk_steps_pki"},
    }
    beside = {
        quantity: [way.beside for way in ways(claim(lpc, "kernel-build", quantity, "64K (4KPS)"), source, STUDIES)]
        for quantity in ("real_time", "system_time")
    }
    assert beside["real_time"][-1] is False and beside["system_time"][-1] is True  # the last is lpc-2024-mthp


def test_arms_of_a_cell_that_is_set_beside_nothing_are_known() -> None:
    lpc = "lpc-2024-mthp-arm64"
    source = published.load(lpc)
    near = ways_beside(claim(lpc, "redis", "ops_per_s", "16K (16KPS)"), source, beside_nothing("redis", STUDIES))
    assert [(one.study, one.label, one.lacks, one.counts, one.guests, one.arch) for one in near] == [
        (study, "redis", "", "lifetime_faults", "emulated", "arm64")
        for study in ("lpc-2024-base-pages", "lpc-2024-base-pages-debian")
    ]
    assert ways_beside(claim(lpc, "kernel-build", "page_faults", "16K (16KPS)"), source, STUDIES) == []
