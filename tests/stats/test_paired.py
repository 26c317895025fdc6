"""Intervals of paired values, the log of pairs, and tests by flips of signs."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hugewise.stats import signflip
from hugewise.stats.paired import Constant, Signs, Student, paired, sign_test
from hugewise.stats.pairs import Pair, PairLog
from hugewise.stats.signflip import SignFlip


@pytest.mark.parametrize("seed", range(5))
def test_student_is_scipys(seed: int) -> None:
    generator = np.random.default_rng(seed)
    n = int(generator.integers(2, 30))
    arm, base = generator.lognormal(0.1, 0.2, n), generator.lognormal(0, 0.2, n)
    ours = paired([float(x) for x in np.log(arm / base)])
    assert isinstance(ours, Student)
    theirs = stats.ttest_rel(np.log(arm), np.log(base))
    assert ours.p_difference() == pytest.approx(theirs.pvalue, rel=1e-9)
    for confidence in (0.9, 0.99, 0.9999):
        interval = theirs.confidence_interval(confidence)
        assert ours.interval(1 - confidence) == pytest.approx((interval.low, interval.high), rel=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_equivalence_is_two_one_sided_t_tests(seed: int) -> None:
    values = np.random.default_rng(seed).normal(0.01, 0.05, 15)
    ours = paired([float(x) for x in values])
    assert ours is not None
    low = stats.ttest_1samp(values, -0.05, alternative="greater").pvalue
    high = stats.ttest_1samp(values, 0.05, alternative="less").pvalue
    assert ours.p_equivalence(0.05) == pytest.approx(max(low, high), rel=1e-9)


@pytest.mark.parametrize("level", [0.2, 0.01, 0.0007])
def test_interval_and_p_values_say_the_same(level: float) -> None:
    generator = np.random.default_rng(3)
    for _ in range(200):
        sample = paired([float(x) for x in generator.normal(generator.normal(0, 0.1), 0.1, 8)])
        assert isinstance(sample, Student)
        low, high = sample.interval(level)
        assert (low > 0 or high < 0) == (sample.p_difference() <= level)
        assert (max(-low, high) < 0.2) == (sample.p_equivalence(0.2) <= level / 2)


@pytest.mark.parametrize(("positive", "negative"), [(0, 0), (1, 0), (12, 0), (3, 9), (6, 6), (100, 1)])
def test_the_sign_test_is_scipys_binomial_test(positive: int, negative: int) -> None:
    n = positive + negative
    expected = stats.binomtest(positive, n).pvalue if n else 1.0
    assert sign_test(positive, negative) == pytest.approx(expected, rel=1e-9)
    assert Signs(positive, negative).p_difference() == sign_test(positive, negative)


def test_a_constant_sample_is_judged_by_its_signs() -> None:
    twelve = paired([0.1] * 12)
    assert isinstance(twelve, Constant)
    assert twelve.p_difference() == 2.0**-11
    assert twelve.interval(0.01) == pytest.approx((0.1, 0.1))
    assert twelve.interval(2.0**-12) is None
    assert twelve.p_equivalence(0.2) == 2.0**-12
    assert twelve.p_equivalence(0.05) == 1.0
    same = paired([0.0] * 12)
    assert same is not None
    assert same.p_difference() == 1.0


def test_values_that_differ_by_rounding_only_are_the_same() -> None:
    sample = paired([math.log(v * 0.7) - math.log(v) for v in (1e-9, 3.0, 7e5, 1e12)])
    assert isinstance(sample, Constant)


def test_small_samples() -> None:
    assert paired([]) is None
    one = paired([0.3])
    assert isinstance(one, Constant)
    assert one.p_difference() == 1.0
    assert one.interval(0.01) is None
    assert Signs(3, 1).interval(0.01) is None
    assert Signs(3, 1).p_equivalence(0.01) == 1.0


PAIRS = [
    Pair(1, 1, 0.25, 5.0, 4.0, False, False),
    Pair(2, 1, None, None, 4.0, True, False),
    Pair(3, 2, None, None, None, True, True),
    Pair(1 << 40, 70_000, -1e-9, 1e300, 1e-300, False, True),
    Pair(5, 0, None, None, None, False, False, lost=True),
]


def test_what_is_kept_comes_back_as_it_was() -> None:
    log = PairLog()
    for pair in PAIRS:
        log.append(pair)
    assert list(log) == PAIRS
    assert (len(log), log[1], log[-1], log[1:3], log[3:]) == (5, PAIRS[1], PAIRS[4], PAIRS[1:3], PAIRS[3:])
    with pytest.raises(IndexError):
        log[5]


def test_logs_beside_each_other_have_their_own_pairs() -> None:
    kept = PairLog()
    usable = PairLog(beside=kept)
    for number, pair in enumerate(PAIRS):
        kept.append(pair)
        if number % 2:
            usable.append(pair)
    usable.append(PAIRS[0])
    assert list(kept) == PAIRS
    assert list(usable) == [PAIRS[1], PAIRS[3], PAIRS[0]]


def test_a_pair_takes_little_memory() -> None:
    logs = [kept := PairLog(), PairLog(beside=kept), PairLog(beside=kept)]
    tracemalloc.start()
    try:
        for number in range(20_000):
            pair = Pair(number, 1, number / 7, number / 3, number / 5, False, False)
            for log in logs:
                log.append(pair)
        taken = tracemalloc.get_traced_memory()[0] / 20_000
    finally:
        tracemalloc.stop()
    assert taken < 70


LEANING = st.lists(st.floats(-1, 5), min_size=10, max_size=40)


@settings(deadline=None, max_examples=40)
@given(LEANING)
def test_incremental_batch_and_one_shot_agree(differences: list[float]) -> None:
    live = SignFlip(0.05, 40)
    for difference in differences:
        live.add(difference)
    whole = signflip.run(differences, 0.05, 40)
    for told in ("sign", "crossed_at", "walk", "boundary", "ledger"):
        assert getattr(live, told) == getattr(whole, told)
    assert signflip.verdict(differences, 0.05, 40) == whole.sign
    assert live.pairs == len(differences) == len(live.ledger)


def test_the_first_crossing_decides_for_good() -> None:
    test = signflip.run([1.0] * 20, 0.01, 100)
    assert (test.sign, test.crossed_at) == (1, 11)
    for _ in range(80):
        test.add(-1.0)
    assert (test.sign, test.crossed_at) == (1, 11)
    assert test.walk < 0
    assert test.spent <= test.alpha


@pytest.mark.parametrize(("alpha", "budget", "pairs"), [(1e-4, 2000, 19), (1e-4, 200, 18), (0.01, 200, 11)])
def test_the_fewest_pairs_that_decide(alpha: float, budget: int, pairs: int) -> None:
    rising = [1.0 + 0.01 * i for i in range(40)]
    assert signflip.run(rising, alpha, budget).crossed_at == pairs
    assert signflip.run([-x for x in rising], alpha, budget).sign == -1
