from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from hugewise.stats.paired import Constant, Signs, Student, paired, sign_test


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
