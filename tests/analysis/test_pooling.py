"""Hosts' summaries, pooled by comparison and class."""

import math
from pathlib import Path

import msgspec
import pytest

from hugewise.analysis.pooling import HostSummary, MeasuredHost, _with_lost, compared, summarised
from hugewise.errors import UserError
from hugewise.model.fleet import FleetComparison
from hugewise.report.reasons import in_words
from hugewise.stats.pooling import Held, HostEstimate
from hugewise.store.records import CellRecord
from tests.analysis.test_combining import a_run
from tests.analysis.test_forecast import cell
from tests.build import known
from tests.build.trials import NEUTRAL

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
ONE = (cell("chase", "thp"),)


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> list[HostSummary]:
    folder = tmp_path_factory.mktemp("runs")
    return [summarised(a_run(folder, seed, mean=-0.1, cells=ONE)) for seed in range(1, 10)]


def pooled(summaries: list[HostSummary], strata: str, **shares: float) -> FleetComparison:
    """Hosts h1, h2, ... of classes named by a letter each."""
    measured = [
        MeasuredHost(f"h{number}", name, one)
        for number, (name, one) in enumerate(zip(strata, summaries, strict=False), 1)
    ]
    (found,) = compared(measured, shares or {name: strata.count(name) for name in strata}, 0.99, 0.01)
    return found


def without_estimate(summary: HostSummary, **changes: object) -> HostSummary:
    (one,) = summary.comparisons
    found = msgspec.structs.replace(one.found, **changes)
    return msgspec.structs.replace(
        summary, comparisons=(msgspec.structs.replace(one, found=found, estimate=None, absent="attempts failed"),)
    )


def test_a_summary_is_small_and_comes_back_as_it_was(summaries: list[HostSummary]) -> None:
    text = msgspec.json.encode(summaries[0])
    assert len(text) < 10_000
    assert msgspec.json.decode(text, type=HostSummary) == summaries[0]
    (one,) = summaries[0].comparisons
    assert isinstance(one.estimate, HostEstimate)
    assert math.exp(one.estimate.centre) == pytest.approx(known(one.found.ratio))
    assert summaries[0].evidence is not None


@pytest.mark.parametrize("name", ["ended", "deployed", "guests", "interrupted"])
def test_every_run_that_was_ever_written_can_be_summarised(name: str) -> None:
    found = summarised(GOLDEN / name)
    assert found.comparisons and found.cells[0].levels
    for one in found.comparisons:
        assert (one.estimate is None) == bool(one.absent)


def test_one_class(summaries: list[HostSummary]) -> None:
    found = pooled(summaries, "aaaaaaaaa")
    assert found.fleet is None
    (only,) = found.strata
    assert (only.asked, only.hosts, only.verdict) == (9, 9, "better")
    assert known(only.low) < known(only.ratio) < known(only.high) < 1
    assert known(only.next_low) < known(only.low) and known(only.next_good) > 0.99
    assert known(only.spread_low) <= known(only.spread) <= known(only.spread_high)
    assert [one.host for one in only.without] == [f"h{number}" for number in range(1, 10)]
    (evidence,) = only.evidence
    assert evidence.hosts == 9 and evidence.verdict == "better"
    assert [host.host for host in found.hosts] == [f"h{number}" for number in range(1, 10)]
    assert all(known(host.error) > 0 and host.pooled_ratio is not None for host in found.hosts)


def test_classes_are_weighed_by_the_fleet_and_judged_together(summaries: list[HostSummary]) -> None:
    found = pooled(summaries, "aaaaabb")
    fleet, (first, second) = known(found.fleet), found.strata
    expected = (5 * math.log(known(first.ratio)) + 2 * math.log(known(second.ratio))) / 7
    assert math.log(known(fleet.ratio)) == pytest.approx(expected)
    turned = known(pooled(summaries, "aaaaabb", a=1, b=99).fleet)
    assert math.log(known(turned.ratio)) == pytest.approx(
        (math.log(known(first.ratio)) + 99 * math.log(known(second.ratio))) / 100
    )
    assert first.next_low is not None and second.next_low is None
    assert {one.verdict for one in fleet.evidence} == {"better"}


@pytest.mark.parametrize(("product", "verdict"), [(199.0, "undecided"), (201.0, "better")])
def test_the_product_of_e_values_is_held_against_the_error_rate(
    product: float, verdict: str, summaries: list[HostSummary]
) -> None:
    """Two nulls at 1%, one of them with the value 0: the adjusted value is half of the product."""
    hosts = []
    for one in summaries[:2]:
        evidence = known(one.evidence)
        comparisons = [
            msgspec.structs.replace(each, larger=0.0, smaller=math.sqrt(product)) for each in evidence.comparisons
        ]
        evidence = msgspec.structs.replace(evidence, comparisons=tuple(comparisons))
        hosts.append(msgspec.structs.replace(one, evidence=evidence))
    assert pooled(hosts, "aa").strata[0].evidence[0].verdict == verdict


def test_one_host_of_a_class_speaks_for_itself(summaries: list[HostSummary]) -> None:
    found = pooled(summaries, "aab")
    first, alone = found.strata
    assert first.ratio is not None and alone.ratio is None
    assert alone.verdict == "none" and "one host speaks for itself" in in_words(alone.reason)
    assert known(found.fleet).ratio is None and "no typical effect is known of b" in in_words(known(found.fleet).reason)


def test_where_attempts_fail_no_typical_effect_is_claimed(summaries: list[HostSummary]) -> None:
    failing = [*summaries[:8], without_estimate(summaries[8], failures_arm=12, verdict="undecided")]
    (only,) = pooled(failing, "aaaaaaaaa").strata
    assert (only.hosts, only.asked, only.verdict) == (8, 9, "undecided")
    assert "failed" in in_words(only.reason) and "h9" in in_words(only.reason)
    # One that lacks pages is left out by the proof alone.
    lacking = [*summaries[:8], without_estimate(summaries[8], verdict="none")]
    assert pooled(lacking, "aaaaaaaaa").strata[0].verdict == "better"


def test_the_signs_of_few_hosts_show_nothing_and_an_outlying_host_is_named(summaries: list[HostSummary]) -> None:
    (few,) = pooled(summaries[:7], "aaaaaaa").strata
    assert few.verdict == "undecided" and known(few.high) < 1 and known(few.p_signs) == pytest.approx(2**-6)
    assert "a difference takes at least 8 hosts" in in_words(few.reason)
    assert few.outlying == ()
    (one,) = summaries[8].comparisons
    estimate = known(one.estimate)._replace(centre=0.2)
    odd = msgspec.structs.replace(summaries[8], comparisons=(msgspec.structs.replace(one, estimate=estimate),))
    (only,) = pooled([*summaries[:8], odd], "aaaaaaaaa").strata
    assert only.outlying == ("h9",) and only.verdict == "undecided"


def test_the_same_run_twice_is_refused(summaries: list[HostSummary]) -> None:
    with pytest.raises(UserError, match="given twice"):
        pooled([summaries[0], summaries[0]], "aa")


def test_what_is_neither_good_high_nor_low_is_shown_and_never_judged(tmp_path: Path) -> None:
    cells: tuple[CellRecord, ...] = (cell("chase", "thp", metric=NEUTRAL),)
    summaries = [summarised(a_run(tmp_path, seed, cells=cells)) for seed in range(1, 6)]
    (only,) = pooled(summaries, "aaaaa").strata
    assert only.verdict == "none" and only.next_good is None and only.confidence is None
    assert "never judged" in in_words(only.reason)


@pytest.mark.parametrize(("lost", "verdict"), [(0, "equivalent"), (1, "undecided")])
def test_hosts_without_a_run_are_no_evidence_of_equivalence(lost: int, verdict: str) -> None:
    """They count as hosts without any effect, which would speak for it."""
    held = Held("equivalent", -0.001, 0.001, 0.99, 0.5, 0.5, 8)
    assert known(_with_lost(held, lost)).verdict == verdict
