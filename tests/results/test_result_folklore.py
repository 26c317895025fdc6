"""Common claims and what the pages make of them: by comparisons that there are, each claim by one that can be had."""

import pytest
from msgspec.structs import replace

from hugewise.model.results import Guests, Results, Verdict
from hugewise.published import CommonClaim, claims
from hugewise.published import TestedBy as By
from hugewise.report import markdown
from tests.build import restated
from tools.results.claims import shipped_studies
from tools.results.data import PageData, PageRun
from tools.results.folklore import NOT_TESTED, _side, folklore, reached, verdict_on

BY_ID = {claim.id: claim for claim in claims()}
STUDIES = {study.name: study for study in shipped_studies()}
FREE = BY_ID["mthp-64k-is-free"]


def page(results: Results, study: str = "lpc-2024-mthp") -> dict[str, PageData]:
    return {study: PageData(runs=(PageRun(results=replace(results, study=study)),))}


def test_folklore_follows_the_comparisons_and_not_the_hand() -> None:
    assert len(BY_ID) >= 10
    found = page(restated.lpc())
    verdict = verdict_on(BY_ID["mthp-64k-is-faster"], found)
    assert verdict.word == "mixed here"  # the build gains, redis loses
    assert "kernel-build" in verdict.told and "redis" in verdict.told
    assert verdict.where == ("lpc-2024-mthp",)
    assert ", n 24, Example 9000" in verdict.told, "how many pairs, and where"
    assert verdict_on(BY_ID["1g-beats-thp"], found).word == NOT_TESTED
    assert verdict_on(BY_ID["memcached-large-pages"], found).word == "confirmed here"


def test_a_page_of_another_scale_counts_by_its_study() -> None:
    (data,) = page(restated.lpc()).values()
    assert verdict_on(BY_ID["memcached-large-pages"], {"lpc-sure": data}).where == ("lpc-sure",)
    assert verdict_on(BY_ID["memcached-large-pages"], page(restated.lpc(), "other")).word == NOT_TESTED


@pytest.mark.parametrize(
    ("verdict", "word"),
    [("equivalent", "confirmed here"), ("worse", "contradicted here"), ("undecided", "not decidable here")],
)
def test_a_metric_that_is_declared_beside_the_judged_one_is_looked_up(verdict: Verdict, word: str) -> None:
    results = restated.lpc()
    first = results.cells[0]
    judged = next(one for one in first.comparisons if one.arm == "mthp-64k")
    assert verdict_on(FREE, page(results)).word == NOT_TESTED
    memory = replace(judged, metric="footprint_bytes", verdict=verdict)
    found = page(replace(results, cells=(replace(first, declared=(memory,)),)))
    assert verdict_on(FREE, found).word == word
    assert "footprint_bytes" in verdict_on(FREE, found).told


@pytest.mark.parametrize(
    ("metric", "word"),
    [("footprint_bytes", NOT_TESTED), ("page_faults", NOT_TESTED), ("server_cpu_us", "contradicted here")],
)
def test_memory_speaks_of_no_claim_that_does_not_name_it_and_other_metrics_do(metric: str, word: str) -> None:
    results = restated.lpc()
    first = results.cells[0]
    worse = replace(next(one for one in first.comparisons if one.arm == "thp"), metric=metric, verdict="worse")
    found = page(replace(results, cells=(replace(first, comparisons=(), declared=(worse,)),)))
    assert verdict_on(BY_ID["memcached-large-pages"], found).word == word


def test_less_cpu_time_is_not_told_by_transactions_a_second() -> None:
    claim, results = BY_ID["postgresql-huge-pages"], restated.percona_2018()
    study = STUDIES["percona-2018-hugepages"]
    found = verdict_on(claim, page(results, study.name), (study,))
    assert found.word == NOT_TESTED
    assert found.told.endswith(": judged by tps, not by server_cpu_us"), "it was run, and says nothing of that"
    assert found.where == (study.name,)
    assert verdict_on(claim, {}, (study,)).told == "–"
    assert "hugewise run percona-2018-hugepages --only select-only" in found.takes
    first = next(cell for cell in results.cells if any(one.arm == "hugetlb-2m" for one in cell.comparisons))
    judged = next(one for one in first.comparisons if one.arm == "hugetlb-2m")
    less = replace(first, declared=(replace(judged, metric="server_cpu_us", verdict="better"),))
    assert verdict_on(claim, page(replace(results, cells=(less,)), study.name)).word == "confirmed here"


def test_addresses_of_those_who_say_it_are_links_that_work() -> None:
    text = markdown.markdown(folklore({}, tuple(STUDIES.values())))
    for address in {source for claim in claims() for source in claim.sources if source.startswith("https://")}:
        assert f"<{address}>" in text
    assert "https://redis.io/docs/latest/operate/oss\\_" not in text
    hostile = "https://a.b/x|y https://a.b/[x](y) (https://a.b) javascript:x <https://a.b>"
    assert markdown._linked(hostile) == markdown.escape(hostile)


def test_guests_of_one_policy_are_held_against_each_other_by_what_backs_them() -> None:
    claim = BY_ID["1g-beats-thp"]
    side = _side
    assert side(claim, ("thp", "hugetlb-1g"), ("thp", "thp")) == 1
    assert side(claim, ("thp", "thp"), ("thp", "hugetlb-1g")) == -1
    assert side(claim, ("hugetlb-1g", ""), ("thp", "")) == 1
    assert side(claim, ("thp", ""), ("thp", "")) == 0


def test_every_claim_is_tested_by_comparisons_that_there_are() -> None:
    """Each study that is named has a workload with both sides of the claim, which judges what is claimed."""
    for claim in claims():
        assert claim.tested or claim.takes, claim.id
        for test in claim.tested:
            alone = replace(claim, tested=(test,))
            assert test.study in STUDIES, claim.id
            assert list(reached(alone, STUDIES[test.study])), (claim.id, test)


def test_a_claim_that_nothing_can_reach_is_seen() -> None:
    large = BY_ID["memcached-large-pages"]
    study = STUDIES["lpc-2024-mthp"]
    assert [way.label for way in reached(large, study)] == ["memcached", "memcached-sla"]
    for wrong in (
        replace(large, tested=(By(study=study.name, cells="memcache"),)),
        replace(large, worse=("mthp-64k",)),
        replace(large, metrics=("no_such_metric",)),
    ):
        assert list(reached(wrong, study)) == []
    vm = list(reached(BY_ID["1g-beats-thp"], STUDIES["redhat-2021-vm"]))
    assert [(way.label, way.policy, way.guests) for way in vm] == [
        (label, "shp1g", "emulated") for label in ("sysbench-memory", "build", "iperf3")
    ]


def test_a_claim_says_what_tests_it_or_what_a_test_would_take() -> None:
    for wrong in ({}, {"takes": "much", "tested": (By(study="demo", cells="*"),)}):
        with pytest.raises(ValueError, match="x: a claim is tested by a study, or says what a test would take"):
            CommonClaim(id="x", says="", better=("thp",), worse=("base",), sources=(), **wrong)  # type: ignore[arg-type]


def test_what_a_verdict_takes_is_named() -> None:
    found = page(restated.lpc())
    takes = {claim.id: verdict_on(claim, found, tuple(STUDIES.values())).takes for claim in claims()}
    assert takes["mongodb-8-thp"].startswith("a workload that runs MongoDB")
    assert takes["redis-no-thp"].startswith("hugewise run redis-bgsave --only redis")
    assert "hugewise run redhat-2021-vm --only sysbench-memory under KVM" in takes["1g-beats-thp"]
    assert takes["mthp-64k-is-faster"] == "–"  # decided
    first = restated.lpc().cells[0]
    undecided = tuple(replace(one, verdict="undecided") for one in first.comparisons)
    few = page(replace(restated.lpc(), cells=(replace(first, comparisons=undecided),)))
    assert verdict_on(BY_ID["memcached-large-pages"], few, tuple(STUDIES.values())).takes.startswith(
        "more pairs: hugewise run lpc-2024-mthp --only memcached; or "
    )
    told = folklore(found).lead[1]
    assert {row[5] for row in told.rows} == set(takes.values())  # type: ignore[union-attr]


def test_counts_of_emulated_guests_say_nothing_of_speed() -> None:
    results = restated.redhat()
    claim = BY_ID["1g-beats-thp"]
    assert verdict_on(claim, page(results, "redhat-2021-vm")).word == "mixed here"
    guests = Guests(arch="x86-64", accelerator="tcg", why="", counting=False, baseline="thp", arms=())
    assert verdict_on(claim, page(replace(results, guests=guests), "redhat-2021-vm")).word == NOT_TESTED
