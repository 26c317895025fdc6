from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hugewise.model.metric import Metric
from hugewise.model.pages import PageTarget
from hugewise.model.reason import CoinOpen
from hugewise.model.results import Comparison
from hugewise.model.trial import Block
from hugewise.report.reasons import in_words
from hugewise.stats.fixed import FixedN
from hugewise.stats.method import Contrast
from tests.build import known
from tests.build.trials import HIGHER, LOWER, NEUTRAL, attempt, block, delivery, ends, fed, method, pair


def judged(blocks: Iterable[Block], metric: Metric = LOWER, **more: Any) -> Comparison:
    """What is said after these blocks, at 99% with a margin of 5%."""
    return fed(blocks, metric, **more).comparison(0.01, 0.05)


def noisy(centre: float, n: int = 12, sd: float = 0.01, seed: int = 1) -> list[Block]:
    ratios = np.exp(np.random.default_rng(seed).normal(math.log(centre), sd, n))
    return [pair(k, float(ratio)) for k, ratio in enumerate(ratios)]


def test_it_goes_on_to_the_planned_number_of_pairs_and_no_further() -> None:
    one = method()
    blocks = noisy(0.5, 14)
    decisions = [one.observe(b) for b in blocks]
    assert [d.status for d in decisions] == ["continue"] * 11 + ["stop"] * 3
    assert [d.verdict for d in decisions[:11]] == ["undecided"] * 11
    assert (
        in_words(decisions[0].reason)
        == "1 of 12 planned pairs, and one shows no spread: an interval takes two at least"
    )
    assert in_words(decisions[10].reason) == "11 of 12 planned pairs"
    assert decisions[11] == decisions[12] == decisions[13] == one.decision()
    assert decisions[11].verdict == "better"
    assert known(decisions[11].effect).n == 12
    assert not judged(blocks[:11]).final


def test_the_effect_is_the_paired_t_interval_of_log_ratios() -> None:
    generator = np.random.default_rng(5)
    arm, base = generator.lognormal(0, 0.1, 12), generator.lognormal(0, 0.1, 12)
    found = judged(
        block(k, attempt("thp", float(a)), attempt("base", float(b)))
        for k, (a, b) in enumerate(zip(arm, base, strict=True))
    )
    theirs = stats.ttest_rel(np.log(arm), np.log(base))
    interval = theirs.confidence_interval(0.99)
    assert found.p == pytest.approx(theirs.pvalue)
    assert found.ratio == pytest.approx(stats.gmean(arm) / stats.gmean(base))
    assert (found.low, found.high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))
    assert (found.n, found.n_all, found.planned, found.final, found.confidence) == (12, 12, 12, True, 0.99)


@pytest.mark.parametrize(
    ("centre", "metric", "verdict"),
    [
        (0.5, LOWER, "better"),
        (2.0, LOWER, "worse"),
        (0.5, HIGHER, "worse"),
        (2.0, HIGHER, "better"),
        (1.001, LOWER, "equivalent"),
        (1.001, HIGHER, "equivalent"),
        (1.049, LOWER, "worse"),
        (0.5, NEUTRAL, "none"),
    ],
)
def test_verdicts(centre: float, metric: Metric, verdict: str) -> None:
    found = judged(noisy(centre), metric)
    assert found.verdict == verdict
    assert found.change is None
    assert found.ratio == pytest.approx(centre, rel=0.02)


def test_undecided_says_what_is_still_possible() -> None:
    found = judged(noisy(1.03, sd=0.1))
    assert found.verdict == "undecided"
    low, high = ends(found)
    assert found.change == max(1 - low, high - 1)


def test_the_margin_is_symmetric_in_the_ratio() -> None:
    for ratio in (1.0, 1.05, 1 / 1.05):
        blocks = [pair(k, ratio * (1 + (0.001 if k % 2 else -0.001))) for k in range(12)]
        expected = "equivalent" if ratio == 1.0 else "better" if ratio < 1 else "worse"
        assert judged(blocks).verdict == expected


def test_only_complete_blocks_of_its_cell_with_both_arms_count() -> None:
    good = pair(0, 0.5)
    ignored = [
        block(1, *good.attempts, state="incomplete"),
        block(2, *good.attempts, state="disturbed"),
        block(3, *good.attempts, cell="another"),
        block(4, attempt("base", 1.0), attempt("hugetlb-2m", 1.0)),
        block(5, attempt("base", 1.0), attempt("thp", 1.0, state="abandoned")),
    ]
    assert judged(ignored).n == 0
    assert judged([*ignored, good]).n == 1


def test_the_accepted_attempt_counts_not_the_rejected_one_before_it() -> None:
    rejected = attempt("thp", 1e9, state="rejected", number=1)
    found = judged([block(0, rejected, attempt("thp", 50.0, number=2), attempt("base", 100.0))])
    assert found.ratio == pytest.approx(0.5)


def failing(arm: bool, baseline: bool, number: int = 99) -> Block:
    """A block in which one side or both failed, and an arm that failed left no proof."""
    under = attempt("base", None, state="failed") if baseline else attempt("base", 100.0)
    over = attempt("thp", None, state="failed", delivered=None) if arm else attempt("thp", 50.0)
    return block(number, over, under)


def test_a_failure_scores_as_the_worst_seen() -> None:
    ratios = [0.5, 0.6, 0.8] * 3 + [0.7, 0.9]
    for metric, bad in ((LOWER, 1), (HIGHER, -1)):
        for arm, baseline, sign in ((True, False, bad), (False, True, -bad), (True, True, 0)):
            found = fed([*[pair(k, r) for k, r in enumerate(ratios)], failing(arm, baseline)], metric, coins=False)
            scores = [*(math.log(r) for r in ratios), sign * abs(math.log(0.5))]
            result = found.comparison(0.01, 0.05)
            assert result.p == pytest.approx(stats.ttest_1samp(scores, 0).pvalue)
            assert (result.failures_arm, result.failures_baseline, result.n) == (arm, baseline, 12)


def test_the_score_of_a_failure_follows_the_worst_seen_later() -> None:
    first = judged([failing(True, False), pair(0, 0.9), pair(1, 0.2)])
    assert first.ratio == pytest.approx(math.exp((-math.log(0.2) + math.log(0.9) + math.log(0.2)) / 3))


def test_an_arm_that_always_fails_is_worse_by_its_signs() -> None:
    found = fed([failing(True, False, k) for k in range(12)])
    result = found.comparison(0.01, 0.05)
    assert (result.verdict, result.ratio, result.low, result.p) == ("worse", None, None, 2.0**-11)
    assert found.decision().status == "stop"
    assert judged([failing(False, True, k) for k in range(12)]).verdict == "better"
    assert judged([failing(False, True, k) for k in range(12)], HIGHER).verdict == "better"
    assert fed([failing(True, False, k) for k in range(12)]).comparison(1e-4, 0.05).verdict == "undecided"
    both = judged([failing(True, True, k) for k in range(12)])
    assert (both.verdict, both.p) == ("undecided", 1.0)


def test_failures_are_never_equivalent() -> None:
    """Eleven failures score 0.0001 after the one pair that was seen: that is no evidence of sameness."""
    one_sided = judged([*[failing(True, False, k) for k in range(11)], pair(11, 1.0001)])
    assert one_sided.verdict == "worse"
    both = fed([*[failing(True, True, k) for k in range(6)], *noisy(1.0, 6, sd=0.0005)])
    assert both.comparison(0.01, 0.05).verdict == "undecided"
    assert "attempts failed in 6 pairs" in in_words(both.comparison(0.01, 0.05).reason)
    assert both.p_equivalence(0.05) == 1.0
    perfect = judged([*[pair(k, 1.0) for k in range(11)], failing(True, False)])
    assert perfect.verdict == "undecided"


def undelivered(number: int, *, arm: bool = True, delivered: bool | None = False, ratio: float = 9.0) -> Block:
    """A block in which the pages of one side were not delivered, or not proven."""
    reason = "the pool is short"
    over = attempt("thp", 100.0 * ratio, delivery=delivery(delivered if arm else True, reason=reason))
    under = attempt("base", 100.0, delivery=delivery(True if arm else delivered, reason=reason))
    return block(number, over, under)


@pytest.mark.parametrize("delivered", [False, None])
@pytest.mark.parametrize("arm", [True, False])
def test_undelivered_or_unproven_pages_take_the_pair_out(arm: bool, delivered: bool | None) -> None:
    found = fed([undelivered(0, arm=arm, delivered=delivered), *noisy(0.5, 12)])
    result = found.comparison(0.01, 0.05)
    assert (result.n, result.n_all) == (11, 12)
    assert result.ratio == pytest.approx(0.5, rel=0.02)
    assert known(result.ratio_all) > 0.6
    assert result.verdict == "none"
    word = "unproven" if delivered is None else "not delivered"
    who = "thp" if arm else "base"
    assert in_words(result.reason) == f"pages of {who} {word} in 1 of 12 attempts: the pool is short"
    assert found.decision().status == "stop"
    assert found.p_difference() == found.p_equivalence(0.05) == 1.0


def test_the_proof_alone_decides_not_the_time() -> None:
    for ratio in (0.01, 1.0, 100.0):
        assert judged([undelivered(0, ratio=ratio), *noisy(0.5, 11)]).n == 11


def test_up_to_one_in_a_hundred_is_replaced() -> None:
    found = method(planned=100)
    blocks = [undelivered(0), *noisy(0.5, 100)]
    decisions = [found.observe(b) for b in blocks]
    assert [d.status for d in decisions] == ["continue"] * 100 + ["stop"]
    result = found.comparison(0.01, 0.05)
    assert (result.verdict, result.n, result.n_all) == ("better", 100, 101)


def with_lost(lost: list[Block], centre: float, **more: Any) -> FixedN:
    """200 usable pairs of this ratio, and these at the end of the first half."""
    usable = noisy(centre, 200)
    return fed([*usable[:100], *lost, *usable[100:]], planned=200, **more)


def test_a_verdict_must_hold_with_the_undelivered_pairs_kept_in() -> None:
    """Two pairs of 202 were lost, both with the arm far slower: all pairs together show nothing."""
    clean = fed(noisy(0.997, 200), planned=200).comparison(0.01, 0.001)
    made = with_lost([undelivered(k, ratio=1.5) for k in (500, 501)], 0.997, margin=0.001)
    found = made.comparison(0.01, 0.001)
    assert (clean.verdict, in_words(clean.reason)) == ("better", "the interval lies on one side of no change")
    assert found.verdict == "undecided"
    assert (
        in_words(found.reason)
        == f"{in_words(clean.reason)}; but with all pairs kept in, the interval includes no change"
    )
    assert (found.ratio, found.low, found.high) == (clean.ratio, clean.low, clean.high)
    assert (found.n, found.n_all) == (200, 202)
    assert made.decision().verdict == "undecided"
    assert clean.p is not None and clean.p < 0.01
    assert made.p_difference() == found.p == 1.0  # with all pairs the estimate is above 1
    kept = with_lost([undelivered(500, ratio=1.2)], 0.997)
    logs = [pair.log_ratio for pair in kept.pairs.everything if pair.log_ratio is not None]
    assert len(logs) == 201
    assert clean.p < kept.p_difference() == pytest.approx(stats.ttest_1samp(logs, 0).pvalue)


def test_the_other_sign_with_all_pairs_is_no_verdict() -> None:
    steady = [pair(k, 0.999 + 0.0001 * (k % 2)) for k in range(200)]
    assert fed(steady, planned=200).comparison(0.3, 0.0001).verdict == "better"
    lost = [undelivered(500 + k, ratio=1.5 + 0.01 * k) for k in range(2)]
    found = fed([*lost, *steady], planned=200, coins=False).comparison(0.3, 0.0001)
    assert found.verdict == "undecided"
    assert in_words(found.reason).endswith("; but with all pairs kept in, the effect has the other sign")
    assert found.p == 1.0


def test_equivalence_must_hold_with_the_undelivered_pairs_kept_in() -> None:
    clean = fed(noisy(1.0, 200), planned=200)
    assert clean.comparison(0.01, 0.01).verdict == "equivalent"
    far = with_lost([undelivered(500, ratio=9.0), undelivered(501, ratio=9.0)], 1.0)
    found = far.comparison(0.01, 0.01)
    assert found.verdict == "undecided"
    assert in_words(found.reason).endswith("; but with all pairs kept in, the interval reaches beyond the margin")
    assert far.p_equivalence(0.01) > 0.1 > clean.p_equivalence(0.01)
    failed = attempt("thp", None, state="failed", delivery=delivery(False, reason="the pool is short"))
    one = with_lost([block(500, failed, attempt("base", 100.0))], 1.0)
    assert in_words(one.comparison(0.01, 0.01).reason).endswith("attempts failed in 1 pairs: that is not equivalent")
    assert one.p_equivalence(0.01) == 1.0
    near = with_lost([undelivered(500, ratio=1.001)], 1.0)
    assert near.comparison(0.01, 0.01).verdict == "equivalent"


def test_the_setting_alone_is_judged_where_the_study_says_so() -> None:
    blocks = [undelivered(k, ratio=0.5 + k / 100) for k in range(12)]
    result = judged(blocks, proof=False)
    assert (result.verdict, result.n) == ("better", 12)


def test_a_policy_that_promises_nothing_needs_no_proof() -> None:
    unproven = delivery(None, target=PageTarget("any", 4096))
    blocks = [block(k, attempt("thp", 50.0 + k, delivery=unproven), attempt("base", 100.0)) for k in range(12)]
    assert judged(blocks).verdict == "better"


def test_a_failure_without_a_proof_is_a_failure_not_an_unproven_attempt() -> None:
    result = judged([failing(True, False, k) for k in range(6)] + noisy(2.0, 6))
    assert (result.n, result.failures_arm, result.verdict) == (12, 6, "worse")


def test_an_absent_metric_makes_no_pair() -> None:
    absent = [block(k, attempt("thp", None), attempt("base", 1.0)) for k in range(24)]
    found = fed(absent)
    result = found.comparison(0.01, 0.05)
    assert (result.verdict, result.n, result.n_all) == ("none", 0, 0)
    assert in_words(result.reason) == "ns_per_load was absent from every pair: no counter here"
    assert found.decision().status == "stop"
    selected = judged([*absent[:2], *noisy(0.5, 12)])
    assert (selected.verdict, selected.n) == ("none", 10)
    assert in_words(selected.reason) == "ns_per_load of thp absent from 2 of 12 attempts: no counter here"


def test_it_gives_up_when_no_verdict_can_come_any_more() -> None:
    absent = block(0, attempt("thp", None), attempt("base", 1.0))
    found = fed([absent if k % 3 else pair(k, 0.5) for k in range(24)])
    assert found.decision().status == "stop"
    result = found.comparison(0.01, 0.05)
    assert (result.verdict, result.final, result.n) == ("none", False, 4)
    assert in_words(result.reason) == "ns_per_load of thp absent from 8 of 12 attempts: no counter here"


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_value_without_a_logarithm_leaves_no_verdict(value: float) -> None:
    found = fed([block(0, attempt("thp", value), attempt("base", 1.0)), *noisy(0.5, 12)])
    result = found.comparison(0.01, 0.05)
    assert result.verdict == "none"
    assert "such a value has no ratio" in in_words(result.reason)
    assert found.p_difference() == 1.0


def test_no_variance() -> None:
    better = judged([pair(k, 0.5) for k in range(12)])
    assert (better.verdict, better.low, better.high) == ("better", better.ratio, better.ratio)
    assert judged([pair(k, 1.0) for k in range(12)]).verdict == "equivalent"
    few = judged([pair(k, 0.5) for k in range(3)], planned=3)
    assert (few.verdict, few.low) == ("undecided", None)
    assert "too few for an interval" in in_words(few.reason)


def test_extreme_values_do_not_overflow() -> None:
    blocks = [pair(k, 1e300 if k % 2 else 1e-300, baseline=1.0) for k in range(12)]
    assert fed(blocks).comparison(1e-9, 0.05).high == math.inf


def test_nothing_observed() -> None:
    decision = method().decision()
    assert (decision.status, decision.effect, decision.verdict) == ("continue", None, "undecided")


@settings(max_examples=40)
@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=15), st.sampled_from([LOWER, HIGHER]))
def test_swapping_arm_and_baseline_mirrors_everything(ratios: list[float], metric: Metric) -> None:
    """The labels carry no information: the inverse ratio, the mirrored interval, the opposite verdict."""
    n = len(ratios)
    forth = fed([pair(k, r) for k, r in enumerate(ratios)], metric, planned=n).comparison(0.05, 0.05)
    swapped = FixedN(Contrast("chase", "base", "thp", metric), planned=n, confidence=0.95, margin=0.05)
    for k, r in enumerate(ratios):
        swapped.observe(pair(k, r))
    back = swapped.comparison(0.05, 0.05)
    assert back.ratio == pytest.approx(1 / known(forth.ratio))
    assert back.p == pytest.approx(forth.p, rel=1e-6, abs=1e-12)
    if forth.low is not None and back.high is not None:
        assert back.high == pytest.approx(1 / forth.low, rel=1e-6)
        if min(abs(forth.low - 1), abs((forth.high or 0) - 1)) > 1e-9:
            opposite = {"better": "worse", "worse": "better"}
            assert back.verdict == opposite.get(forth.verdict, forth.verdict)


@settings(max_examples=40)
@given(st.lists(st.floats(0.5, 2), min_size=2, max_size=12), st.floats(1e-6, 1e6))
def test_the_unit_of_the_metric_does_not_matter(ratios: list[float], scale: float) -> None:
    one = fed([pair(k, r) for k, r in enumerate(ratios)]).comparison(0.05, 0.05)
    other = fed([pair(k, r, 100 * scale) for k, r in enumerate(ratios)]).comparison(0.05, 0.05)
    assert other.ratio == pytest.approx(one.ratio, rel=1e-9)
    assert other.verdict == one.verdict


def places(coins: Sequence[bool], slower: float = 1.01) -> list[Block]:
    """Pairs in which the label changes nothing, the second place is slower, and next to nothing else varies."""
    ratios = [(slower * (1 + k * 1e-5)) ** (1 if first else -1) for k, first in enumerate(coins)]
    return [pair(k, ratio) for k, ratio in enumerate(ratios)]


def of_all_coins(n: int, alpha: float, **more: Any) -> float:
    """Share of all rows of n coins after which those pairs have a verdict."""
    rows = list(itertools.product((False, True), repeat=n))
    found = [fed(places(row), planned=n, **more).comparison(alpha, 0.005).verdict for row in rows]
    return 1 - found.count("undecided") / len(found)


def test_the_defect_a_place_in_few_blocks_is_no_difference() -> None:
    """Student's t is wrong as often as three coins are equal; the coins themselves allow no verdict below 8 blocks."""
    assert of_all_coins(3, 0.01, coins=False) == 0.25
    assert [of_all_coins(n, 0.01) for n in (3, 5, 7, 8)] == [0, 0, 0, 2 / 2**8]
    assert 2 / 2**10 <= of_all_coins(10, 0.01) <= 0.01
    found = fed(places([True] * 5), planned=5).comparison(0.01, 0.005)
    assert (found.verdict, found.p) == ("undecided", 2.0**-4)
    assert in_words(found.reason) == (
        "the t interval allows a verdict, the coins of 5 blocks do not: 8 blocks are the fewest"
    )
    assert in_words(CoinOpen(12, 8)) == "the t interval allows a verdict, the coins of 12 blocks do not"


def test_equivalence_too_needs_the_coins_and_names_the_stalls_that_it_cannot_exclude() -> None:
    blocks = [pair(k, 1 + k * 1e-5) for k in range(8)]
    few, enough = (fed(blocks[:n], planned=n).comparison(0.01, 0.005) for n in (7, 8))
    assert (few.verdict, in_words(few.reason)) == (
        "undecided",
        "the t interval allows a verdict, the coins of 7 blocks do not: 8 blocks are the fewest",
    )
    assert (enough.verdict, in_words(enough.reason)) == (
        "equivalent",
        "the whole interval of the typical ratio lies within the margin of 0.005; up to 44% of runs may stall, though"
        " none of these pairs shows a stall, so that nothing is claimed of the mean",
    )


@pytest.mark.parametrize("wrong", [{"planned": 1}, {"confidence": 1.0}, {"margin": 0.0}, {"family": 0}])
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="fixed-n needs"):
        method(**wrong)
