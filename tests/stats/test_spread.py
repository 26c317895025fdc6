from __future__ import annotations

import math
from statistics import stdev

import numpy as np
import pytest

from hugewise.stats.paired import correlated, deviation_interval, scale
from tests.build import known


def test_the_interval_of_the_deviation_covers_it() -> None:
    random = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        found = known(deviation_interval(list(random.normal(0, 2, 20))))
        held += found[0] <= 2 <= found[1]
    assert held >= 368  # 92%; nominal 95%


def test_the_interval_is_that_of_bonetts_formula() -> None:
    values = np.array([15.83, 16.01, 16.24, 16.42, 15.33, 15.44, 16.88, 16.31])
    n, z = len(values), 1.959964
    s2 = np.var(values, ddof=1)
    trimmed = np.mean(np.sort(values)[2:-2])  # 1/(2 sqrt(n-4)) of 8 from each end
    kurtosis = n * np.sum((values - trimmed) ** 4) / np.sum((values - np.mean(values)) ** 2) ** 2
    c = n / (n - z)
    se = c * np.sqrt((kurtosis - (n - 3) / n) / (n - 1))
    expected = np.sqrt(np.exp(np.log(c * s2) - z * se)), np.sqrt(np.exp(np.log(c * s2) + z * se))
    assert deviation_interval(list(values)) == pytest.approx(expected, rel=1e-5)


def test_the_scale_is_the_deviation_of_normal_differences() -> None:
    random = np.random.default_rng(2)
    for n, room in ((12, 0.06), (200, 0.03)):
        assert np.mean([scale(list(random.normal(1, 3, n))) or 0.0 for _ in range(200)]) == pytest.approx(3, rel=room)


def test_outliers_and_failures_hardly_change_the_scale() -> None:
    values = list(np.random.default_rng(3).normal(0, 1, 60))
    plain = known(scale(values))
    for outlier in (50.0, math.inf):
        spoiled = scale([*values, outlier])
        assert spoiled == pytest.approx(plain, rel=0.15)
    assert stdev([*values, 50.0]) > 5 * plain
    assert scale([math.inf] * 4 + [0.1, 0.2, 0.3]) is None


def test_the_scale_follows_unit_and_sign() -> None:
    values = list(np.random.default_rng(4).standard_t(3, 31))
    one = known(scale(values))
    assert scale([-x for x in values]) == pytest.approx(one, rel=1e-9)
    assert scale([10 * x + 3 for x in values]) == pytest.approx(10 * one, rel=1e-9)


def test_correlation() -> None:
    random = np.random.default_rng(5)
    held = 0
    for _ in range(300):
        first = random.normal(0, 1, 30)
        found = known(correlated(list(first), list(0.8 * first + 0.6 * random.normal(0, 1, 30))))
        held += found[1] <= 0.8 <= found[2]
    assert held >= 276
    assert correlated([1.0] * 8, [1.0, 2.0] * 4) is None


def test_too_few_say_nothing() -> None:
    five = [0.1, 0.2, 0.3, 0.4, 0.5]
    assert deviation_interval(five) is None and scale(five) is None and correlated(five, five) is None
    assert deviation_interval([0.2] * 6) == (0.0, 0.0)
    assert scale([0.2] * 6) == pytest.approx(0.0, abs=1e-12)
