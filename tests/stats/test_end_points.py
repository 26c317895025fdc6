"""End points and tails: their e-values over all coins, and verdicts that hold with all pairs kept in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from ville import QuantileCS

from hugewise.model.results import Comparison
from hugewise.model.trial import Block
from hugewise.report.reasons import in_words
from hugewise.stats import end_points
from hugewise.stats.end_points import END_POINTS, EndPoint, SlowRuns, differences, evidence, quantile, slow_rate
from hugewise.stats.evidence import SumEProcess
from hugewise.stats.method import Contrast
from hugewise.stats.pairs import Pair, log_ratio
from hugewise.stats.signflip import SignFlip
from tests.build import known, trials
from tests.build.trials import attempt, block, delivery, ends

LOWER = Contrast("chase", "thp", "base", trials.LOWER)
HIGHER = Contrast("chase", "thp", "base", trials.HIGHER)
FAILED = None

Sides = tuple[float | None, float | None]


def pair(arm: float | None, baseline: float | None) -> Pair:
    """A pair of these values; None: that side failed."""
    both = log_ratio(arm, baseline) if arm is not None and baseline is not None else None
    return Pair(1, 1, both, arm, baseline, arm is None, baseline is None)


def coins(runs: Sequence[Sides], fixed: int = 0) -> Iterator[list[Pair]]:
    """The pairs under all labels that coins may give these runs; the first `fixed` keep theirs."""
    for swaps in product((False, True), repeat=len(runs) - fixed):
        kept = (*(False,) * fixed, *swaps)
        yield [pair(*(each[::-1] if swap else each)) for each, swap in zip(runs, kept, strict=True)]


WARM = [(10.0 + k / 50, 10.0 - k / 70) for k in range(10)]
DISCORDANT: list[Sides] = [(10.0, 13.0), (10.2, 9.0), (FAILED, 10.0), (20.0, 10.5), (40.0, 50.0), (9.0, 90.0)]
MIXED: list[Sides] = [
    (10.0, 11.5),
    (300.0, 9.0),
    (FAILED, 10.0),
    (10.0, 10.0),
    (FAILED, FAILED),
    (9.5, 9.0),
    (7.0, 8.0),
]
FEW: list[Sides] = [(0.0101, 0.0100), (FAILED, 3.0), (2.0, 900.0), (0.5, 0.25), (0.3, FAILED), (1e-9, 1e9)]


def test_a_mean_is_equivalent_when_its_tail_is_bounded() -> None:
    """Of 150 pairs 3% of all runs may stall and not one of these: too many for a margin of 2%; of 400 1.1%."""
    draws = np.random.default_rng(3).normal(10, 0.02, (400, 2))
    judged = EndPoint("mean", LOWER, planned=400, alpha=0.01, margin=0.02)
    said = []
    for number, (arm, base) in enumerate(draws.tolist(), 1):
        judged.observe(block(number, attempt("thp", arm), attempt("base", base)))
        if number in (150, 400):
            said.append(judged.comparison())
    few, many = said
    assert known(few.high) < 1.002
    assert (few.verdict, in_words(few.reason)) == (
        "undecided",
        "the interval of the mean lies within the margin, but not if these took twice as long: up to 3% of runs may"
        " stall, though none of these pairs shows a stall",
    )
    assert (many.verdict, in_words(many.reason)) == (
        "equivalent",
        "the interval of the mean lies within the margin, even if these took twice as long: up to 1.1% of runs may"
        " stall, though none of these pairs shows a stall",
    )


LONG = [(10.0 + (k % 7) / 50, 10.0 - (k % 5) / 70) for k in range(50)]
CASES: dict[str, tuple[str, list[Sides], int]] = {
    "slow": ("slow", [*WARM, *DISCORDANT], 10),
    "slow, while the threshold is made": ("slow", [*DISCORDANT, *WARM[:5], *DISCORDANT[:3]], 8),
    "p99": ("p99", [*LONG, *DISCORDANT], 50),
    "mean": ("mean", MIXED, 0),
    "mean, wild": ("mean", FEW, 0),
    "mean, all failures": ("mean", [(FAILED, 1.0)] * 6, 0),
}


@pytest.mark.parametrize("contrast", [LOWER, HIGHER], ids=["lower", "higher"])
@pytest.mark.parametrize("case", CASES)
def test_the_mean_e_value_over_all_coins_is_one(case: str, contrast: Contrast) -> None:
    kind, runs, fixed = CASES[case]
    if contrast is HIGHER:
        runs = [(arm and 100 / arm, base and 100 / base) for arm, base in runs]
    every = [evidence(kind, pairs, contrast) for pairs in coins(runs, fixed)]
    for side in ("value", "up", "down"):
        found = [getattr(process, side) for process in every]
        assert np.mean(found) == pytest.approx(1, rel=1e-12)
        assert side == "value" or max(found) > 1.05  # it does bet


@pytest.mark.parametrize("kind", ["slow", "mean"])
def test_the_mean_is_one_where_the_typical_ratio_stopped(kind: str) -> None:
    """The stop is chosen by another test of the same coins, as in a run; over them the mean stays what it was."""
    level = [pair if number % 2 else pair[::-1] for number, pair in enumerate(WARM)]
    runs: list[Sides] = [*level, *[(10.0, 13.0 + k) for k in range(8)]]
    found, stops = [], set()
    for pairs in coins(runs, 10):
        test, stop = SignFlip(0.5, len(runs)), len(runs)
        for number, each in enumerate(pairs, 1):
            test.add(each.difference(higher_is_better=False))
            if test.sign and number > 10:
                stop = number
                break
        stops.add(stop)
        found.append(evidence(kind, pairs[:stop], LOWER).up)
    before = evidence(kind, pairs[:10], LOWER).up
    assert len(stops) > 2
    assert np.mean(found) == pytest.approx(before, rel=1e-12)
    assert kind == "mean" or before == 1


VALUES = st.lists(st.tuples(*[st.sampled_from([1.0, 1.1, 1.3, 2.0, 50.0, None])] * 2), min_size=1, max_size=70)


@settings(deadline=None, max_examples=40)
@given(VALUES, st.sampled_from(list(END_POINTS)), st.sampled_from([LOWER, HIGHER]))
def test_swapped_labels_flip_the_differences_and_swap_larger_and_smaller(
    runs: list[Sides], kind: str, contrast: Contrast
) -> None:
    swaps = np.random.default_rng(len(runs)).random(len(runs)) < 0.5
    plain = [pair(*run) for run in runs]
    swapped = [pair(*(each[::-1] if swap else each)) for each, swap in zip(runs, swaps, strict=True)]
    expected = [-d if swap else d for d, swap in zip(differences(kind, plain, contrast), swaps, strict=True)]
    assert differences(kind, swapped, contrast) == expected
    one = evidence(kind, plain, contrast)
    other = evidence(kind, [pair(*each[::-1]) for each in runs], contrast)
    assert (one.log_up, one.log_down) == pytest.approx((other.log_down, other.log_up), abs=1e-9)


def test_larger_is_of_the_metric_whichever_way_is_better() -> None:
    """Slow, for a time, is a larger metric, and for a throughput a smaller one."""
    times: list[Sides] = [*WARM, *[(20.0, 10.0)] * 8]
    speeds: list[Sides] = [(1 / arm, 1 / base) for arm, base in times if arm and base]
    for kind in ("slow", "mean"):
        longer, slower = (
            evidence(kind, [pair(*run) for run in runs], contrast)
            for runs, contrast in ((times, LOWER), (speeds, HIGHER))
        )
        assert longer.up > 3 and longer.down < 1
        assert slower.down > 3 and slower.up < 1


def test_slow_and_p99_are_the_tests_differences_and_the_mean_is_the_plain_ones() -> None:
    runs = [*LONG, (10.0, 40.0), (90.0, 10.0), (11.0, 10.0)]
    arm, baseline = [run[0] for run in runs], [each[1] for each in runs]
    made = [pair(*each) for each in runs]
    assert differences("slow", made, LOWER) == end_points.SlowRuns().differences(arm, baseline)
    assert differences("p99", made, LOWER) == end_points.BeyondQuantile(0.99).differences(arm, baseline)
    down = [-d for d in end_points.BeyondQuantile(0.01, better="higher").differences(arm, baseline)]
    assert differences("p99", made, HIGHER) == down
    assert differences("mean", made, LOWER) == [a - b for a, b in runs]
    failed = [pair(None, 1.0), pair(1.0, None), pair(None, None)]
    assert differences("mean", failed, LOWER) == [math.inf, -math.inf, 0]
    assert differences("mean", failed, HIGHER) == [-math.inf, math.inf, 0]


def test_a_side_without_a_value_because_the_other_failed_is_no_failure() -> None:
    alone = Pair(1, 1, None, None, None, arm_failed=True, baseline_failed=False)
    warm = [pair(*each) for each in WARM]
    assert differences("slow", [*warm, alone], LOWER)[-1] == 1
    assert differences("slow", [*warm, alone], HIGHER)[-1] == -1
    assert differences("mean", [alone], LOWER) == [math.inf]


def test_the_sum_process_by_definition() -> None:
    process = SumEProcess([0.5, 2.0])
    for difference in (3.0, -6.0, math.inf, 0.0, 2.0):
        process.add(difference)
    amounts = np.array([1, -1, 1, 0, 1 / 3])
    rates = np.array([[0.5], [2.0]])
    up = np.mean(np.prod(np.exp(rates * amounts) / np.cosh(rates * amounts), axis=1))
    down = np.mean(np.prod(np.exp(-rates * amounts) / np.cosh(rates * amounts), axis=1))
    assert (process.up, process.down) == pytest.approx((up, down))
    assert process.pairs == 5
    with pytest.raises(ValueError, match="number or infinite"):
        process.add(math.nan)


@given(st.lists(st.integers(-1000, 1000).map(float), max_size=40), st.integers(-30, 30))
def test_the_sum_process_needs_no_unit_and_never_speaks_against_its_sum(values: list[float], power: int) -> None:
    process, scaled = SumEProcess(), SumEProcess()
    total = largest = 0.0
    for value in values:
        process.add(value)
        scaled.add(math.ldexp(value, power))
        largest = max(largest, abs(value))
        total += value / largest if largest else 0.0
    assert scaled.log_up == process.log_up
    assert process.log_up <= 1e-12 or total > 0
    assert process.log_down <= 1e-12 or total < 0


def blocks(runs: Iterable[Sides], spoilt: Callable[[int, Sides], bool]) -> list[Block]:
    """Blocks of these values in which the arm's pages were not delivered where `spoilt` says so."""
    bad = delivery(False, reason="pool too short")
    made = []
    for number, (arm, baseline) in enumerate(runs, 1):
        proof = bad if spoilt(number, (arm, baseline)) else delivery()
        attempts = attempt("base", baseline, block=number), attempt("thp", arm, block=number, delivery=proof)
        made.append(msgspec.structs.replace(block(number, {}), attempts=attempts))
    return made


def judged(kind: str, of: Iterable[Block], *, planned: int = 1000, alpha: float = 0.2) -> Comparison:
    end_point = EndPoint(kind, LOWER, planned=planned, alpha=alpha, margin=0.01)
    for each in of:
        end_point.observe(each)
    return end_point.comparison()


def test_delivery_that_depends_on_the_label_makes_no_verdict() -> None:
    """Under the sharp null, over all coins of nine pairs: whatever is slow *under the arm* is called undelivered.

    On the usable pairs alone the arm is then called better in more than alpha of them; with all kept in it is not.
    """
    wrong = bare = 0
    reasons = set()
    for swaps in product((False, True), repeat=9):
        runs = [*WARM, *((10.0, 30.0) if swap else (30.0, 10.0) for swap in swaps)]
        found = judged("slow", blocks(runs, lambda _, sides: sides[0] == 30.0))
        usable = [run for run in runs if run[0] != 30.0]
        alone = end_points.slow_rate([arm for arm, _ in usable], [base for _, base in usable], 0.2, budget=1000)
        wrong += found.verdict in ("better", "worse")
        bare += alone.sign != 0
        if alone.sign and found.verdict == "undecided":
            reasons.add(in_words(found.reason).partition("; but ")[2].partition("; ")[0])
    assert bare > 0.2 * 2**9
    assert wrong <= 0.2 * 2**9
    assert reasons == {"with all pairs kept in, no difference is shown"}


def slower(n: int, seed: int = 1) -> list[Sides]:
    """Runs of which the arm's are 10% longer and stall more often."""
    random = np.random.default_rng(seed)
    stalls = random.random(n) < 0.3
    return [
        (float(a), float(b))
        for a, b in zip(
            11 * np.exp(random.normal(0, 0.02, n)) * np.where(stalls, 2, 1),
            10 * np.exp(random.normal(0, 0.02, n)),
            strict=True,
        )
    ]


@pytest.mark.parametrize("kind", list(END_POINTS))
def test_a_verdict_that_holds_with_all_pairs_stays_and_says_of_which_pairs_its_numbers_are(kind: str) -> None:
    runs = slower(300)
    clean = judged(kind, blocks(runs[2:], lambda *_: False))
    found = judged(kind, blocks(runs, lambda number, _: number <= 2))
    assert (clean.verdict, found.verdict) == ("worse", "worse")
    assert (
        in_words(found.reason) == f"{in_words(clean.reason)}; estimate and interval are of the 298 usable pairs of 300"
    )
    assert (found.ratio, found.low, found.high) == (clean.ratio, clean.low, clean.high)
    assert found.ratio_all != found.ratio or kind == "slow"
    assert found.evidence_larger is not None and found.evidence_larger > 100
    assert found.evidence_smaller is not None and found.evidence_smaller < 1
    whole = evidence(kind, [pair(*run) for run in runs], LOWER)
    assert found.evidence_larger == pytest.approx(whole.up)
    assert found.evidence == pytest.approx(whole.value)
    assert found.estimand == clean.estimand


def test_a_mean_that_does_not_hold_with_all_pairs_is_undecided() -> None:
    random = np.random.default_rng(4)
    runs: list[Sides] = [(float(a), 10.0) for a in 10.5 * np.exp(random.normal(0, 0.05, 300))]
    clean = judged("mean", blocks(runs, lambda *_: False))
    assert clean.verdict == "worse"
    assert "undelivered" not in in_words(clean.reason)
    lost: list[Sides] = [(10.0, 800.0)] * 3
    found = judged("mean", blocks([*runs, *lost], lambda number, _: number > 300))
    assert (found.verdict, found.ratio, found.n, found.n_all) == ("undecided", clean.ratio, 300, 303)
    assert "; but with all pairs kept in, the interval includes no change" in in_words(found.reason)
    failed = judged("mean", blocks([*runs, (10.0, 10.0)], lambda number, _: number > 300))
    assert failed.verdict == "worse"


def test_a_verdict_that_turns_round_with_all_pairs_is_undecided() -> None:
    runs = [*WARM, *[(10.0, 30.0)] * 12]
    assert judged("slow", blocks(runs, lambda *_: False)).verdict == "better"
    # The same, but hugewise had ended under the arm each time, and it was made anew: what it was is not known.
    again = [
        msgspec.structs.replace(one, redone=("thp",)) if one.number > 10 else one
        for one in blocks(runs, lambda *_: False)
    ]
    found = judged("slow", again)
    assert found.verdict == "undecided"
    assert "; but with all pairs kept in, it is worse; " in in_words(found.reason)


def test_without_a_possible_verdict_there_are_no_e_values() -> None:
    runs = slower(40)
    for kind in END_POINTS:
        found = judged(kind, blocks(runs, lambda *_: True), planned=40)
        assert (found.verdict, found.evidence, found.evidence_larger, found.evidence_smaller) == ("none", *[None] * 3)
        assert "pool too short" in in_words(found.reason)
        early = judged(kind, [])
        assert (early.verdict, early.evidence_larger) == ("undecided", 1.0)


TAIL_VALUES = st.lists(st.tuples(*[st.sampled_from([1.0, 1.1, 1.3, 2.0, 5.0, math.inf])] * 2), max_size=60)


def stalling(generator: np.random.Generator, n: int, arm: float, baseline: float) -> tuple[list[float], list[float]]:
    """Run times around 10 s that a side's stalls make 1.8 times as long, at its own rate."""
    shared = generator.normal(0, 0.05, n)
    sides = [
        10 * np.exp(shared + generator.normal(0, 0.03, n)) * np.where(generator.random(n) < rate, 1.8, 1)
        for rate in (arm, baseline)
    ]
    return sides[0].tolist(), sides[1].tolist()


def test_slow_by_hand() -> None:
    arm = [10.0] * 10 + [12.6, 10.0, 12.4, 13.0, math.inf, 30.0]
    baseline = [10.0] * 10 + [10.0, 12.6, 10.0, 13.0, 10.0, math.inf]
    expected = [0] * 10 + [1, -1, 0, 0, 1, 0]
    assert SlowRuns().differences(arm, baseline) == expected
    assert SlowRuns(factor=2).differences(arm, baseline)[10:] == [0, 0, 0, 0, 1, 0]
    speeds = [[1 / x for x in side] for side in (arm, baseline)]
    assert SlowRuns(better="higher").differences(*speeds) == expected
    # Most runs failing makes the usual infinite; a failure is still worse than a run.
    assert SlowRuns().differences([math.inf] * 12, [math.inf] * 11 + [1.0])[-1] == 1


@pytest.mark.parametrize("alpha", [0.2, 0.1])
def test_the_sign_is_exact_over_all_coins(alpha: float) -> None:
    """Ten pairs make the usual; the other seven are discordant, and all their swaps are enumerated."""
    fast, slow = [10.0] * 10, [10.0] * 10
    verdicts = 0
    for swaps in product((False, True), repeat=7):
        arm = fast + [20.0 if swap else 10.0 for swap in swaps]
        baseline = slow + [10.0 if swap else 20.0 for swap in swaps]
        verdicts += slow_rate(arm, baseline, alpha, budget=17).sign != 0
    assert 0 < verdicts <= alpha * 2**7


def test_slow_rate_finds_the_arm_that_stalls() -> None:
    arm, baseline = stalling(np.random.default_rng(1), 1000, 0.1, 0.02)
    found = slow_rate(arm, baseline, 0.01, budget=1000)
    assert found.sign == 1
    assert found.estimate == pytest.approx(0.08, abs=0.035)
    low, high = ends(found)
    assert 0 < low < 0.08 < high < 0.2
    assert slow_rate(baseline, arm, 0.01, budget=1000) == pytest.approx(
        (-found.estimate, -found.high, -found.low, -1)  # type: ignore[operator]
    )


@pytest.mark.parametrize(("campaigns", "most"), [(40, 6), pytest.param(100, 11, marks=pytest.mark.soak)])
def test_bounds_of_the_rate_hold_while_it_drifts(campaigns: int, most: int) -> None:
    """Stalls come in spells: the realised difference of rates is covered at every look, and the bounds are not idle.
    At 5%, and 3 standard errors above."""
    generator = np.random.default_rng(2)
    missed, widths = 0, []
    for _ in range(campaigns):
        n = 600
        spell = np.repeat(generator.random(n // 50) < 0.3, 50)
        arm_stalls, baseline_stalls = (
            generator.random((2, n)) < np.where(spell, 0.3, 0.01),
            generator.random((2, n)) < 0.02,
        )
        pick = generator.integers(0, 2, n)
        arm = np.where(arm_stalls[pick, range(n)], 20.0, 10.0)
        baseline = np.where(baseline_stalls[1 - pick, range(n)], 20.0, 10.0)
        effects = (arm_stalls.mean(axis=0) - baseline_stalls.mean(axis=0))[10:]
        for look in range(50, n + 1, 50):
            found = slow_rate(arm[:look].tolist(), baseline[:look].tolist(), 0.05, budget=n)
            low, high = ends(found)
            if not low <= effects[: look - 10].mean() <= high:
                missed += 1
                break
        widths.append(high - low)
    assert missed <= most
    assert np.median(widths) < 0.25


def test_the_bound_of_a_rate_is_the_mixtures_root() -> None:
    """Against the supermartingale written out: it reaches 2/alpha at the bound."""
    differences = [0.0, 1.0, 0.0, 0.0, -1.0, 1.0, 0.0] * 20
    bound = end_points._rate_bound(differences, 0.05)
    means = np.concatenate(([0], np.cumsum(differences)[:-1] / np.arange(1, 140)))
    variance = np.sum((np.array(differences) - means) ** 2)
    x = np.geomspace(0.49, 0.49 * 0.005, 32)
    assert np.mean(np.exp(x * bound + (np.log(1 - 2 * x) + 2 * x) / 4 * variance)) == pytest.approx(2 / 0.05)
    assert end_points._rate_bound([0.0] * 500, 0.05) <= 2 * math.log(64 / 0.05)


def test_quantile_bounds_against_villes() -> None:
    """Both are order statistics around the quantile; ours, with the binomial's own variance, are nearer in the tail."""
    values = np.random.default_rng(3).lognormal(0, 0.3, 3000)
    for probability in (0.5, 0.95, 0.99):
        small, large = end_points._ruled_out(3000, probability, 0.025)
        ordered = np.sort(values)
        theirs = QuantileCS(q=probability, alpha=0.05, intersect=False).fit(values)
        low, high = theirs.interval()
        assert low <= ordered[small] * 1.01
        assert ordered[large - 1] <= high * 1.01
        assert ordered[small] < np.quantile(values, probability) < ordered[large - 1]
        if probability == 0.5:
            assert (ordered[large - 1] - ordered[small]) / (high - low) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("probability", [0.5, 0.9, 0.99])
def test_quantile_counts_are_ruled_out_rightly_at_each_n(probability: float) -> None:
    for n in (50, 400, 2000):
        small, large = end_points._ruled_out(n, probability, 0.025)
        assert stats.binom.cdf(small, n, probability) <= 0.025
        assert stats.binom.sf(large - 1, n, probability) <= 0.025


@pytest.mark.parametrize(("campaigns", "most"), [(30, 7), pytest.param(60, 13, marks=pytest.mark.soak)])
def test_quantile_covers_at_every_look(campaigns: int, most: int) -> None:
    """At 10%, and 3 standard errors above."""
    generator = np.random.default_rng(4)
    missed = 0
    for _ in range(campaigns):
        arm, baseline = generator.lognormal(0.05, 0.2, (1, 800))[0], generator.lognormal(0, 0.2, 800)
        for look in range(100, 801, 100):
            found = quantile(arm[:look].tolist(), baseline[:look].tolist(), 0.9, 0.1)
            low, high = found.low or 0, found.high or math.inf
            if not low <= math.exp(0.05) <= high:
                missed += 1
                break
    assert missed <= most


def test_quantile_finds_a_heavier_tail() -> None:
    generator = np.random.default_rng(5)
    arm, baseline = stalling(generator, 1500, 0.03, 0.002)
    found = quantile(arm, baseline, 0.99, 0.05, budget=1500)
    assert found.sign == 1
    assert found.estimate == pytest.approx(1.6, abs=0.25)
    assert known(found.low) > 1
    faster = quantile([1 / x for x in arm], [1 / x for x in baseline], 0.01, 0.05, better="higher", budget=1500)
    assert faster.sign == 1


@settings(max_examples=25)
@given(TAIL_VALUES)
def test_quantile_never_invents_a_number(pairs: list[tuple[float, float]]) -> None:
    arm, baseline = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found = quantile(arm, baseline, 0.9, 0.05)
    for number in found[:3]:
        assert number is None or (math.isfinite(number) and number > 0)


def test_what_cannot_be_said() -> None:
    assert slow_rate([], [], 0.05) == (None, None, None, 0)
    assert slow_rate([1.0] * 10, [1.0] * 10, 0.05) == (None, None, None, 0)
    assert quantile([], [], 0.99, 0.05) == (None, None, None, 0)
    found = quantile([1.0] * 100, [2.0] * 100, 0.99, 0.05)
    assert (found.estimate, found.low, found.high) == (0.5, None, None)
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: slow_rate([1.0, 2.0], [1.0], 0.05), "2 values of the arm, but 1"),
        (lambda: slow_rate([math.nan], [1.0], 0.05), "NaN"),
        (lambda: slow_rate([1.0], [1.0], 0.05, factor=1), "factor"),
        (lambda: quantile([1.0], [1.0], 1.0, 0.05), "probability"),
        (lambda: quantile([-1.0], [1.0], 0.5, 0.05), "negative"),
        (lambda: slow_rate([1.0], [1.0], 0), "alpha"),
    ]
    for wrong, message in refused:
        with pytest.raises(ValueError, match=message):
            wrong()
