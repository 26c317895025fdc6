"""Normality against scipy, and what skewness does to a t interval against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from hugewise.stats.classical import missing_chances, normality, qq
from tests.build import known

RNG = np.random.default_rng(11)


def anderson(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    found = known(normality(np.sort(values), float(values.mean()), float(values.std(ddof=1)), 1.0))
    return found.anderson, found.anderson_p


def test_statistics_are_scipys() -> None:
    values = RNG.gamma(9.0, size=400)
    found = known(normality(np.sort(values), float(values.mean()), float(values.std(ddof=1)), 1.0))
    told = stats.shapiro(values)
    assert (found.shapiro, found.shapiro_p) == pytest.approx((told.statistic, told.pvalue), rel=1e-6)
    z = np.sort((values - values.mean()) / values.std(ddof=1))
    rank = np.arange(1, 401)
    plain = -400 - float(np.sum((2 * rank - 1) * (stats.norm.logcdf(z) + stats.norm.logsf(z[::-1])))) / 400
    assert found.anderson == pytest.approx(plain * (1 + 0.75 / 400 + 2.25 / 400**2), rel=1e-9)


def test_normal_samples_are_rejected_as_often_as_the_level_says() -> None:
    p_values = [anderson(RNG.normal(5, 2, 50))[1] for _ in range(400)]
    assert 0.02 <= np.mean(np.array(p_values) < 0.05) <= 0.09
    assert 0.4 <= np.mean(np.array(p_values) < 0.5) <= 0.6


def test_exponential_samples_are_rejected() -> None:
    assert anderson(RNG.exponential(size=200))[1] < 1e-6
    assert anderson(RNG.exponential(size=50_000))[1] == 1e-10


def test_a_qq_plot_keeps_the_ends_and_is_straight_for_normal_values() -> None:
    ordered = np.sort(RNG.normal(100, 5, 50_000))
    found = qq(ordered)
    assert len(found.observed) <= 440
    assert found.observed[:20].tolist() == ordered[:20].tolist()
    assert found.observed[-20:].tolist() == ordered[-20:].tolist()
    assert found.correlation > 0.9995
    assert found.correlation == pytest.approx(stats.probplot(ordered, fit=True)[1][2], abs=1e-6)
    slope = np.polyfit(found.theoretical, found.observed, 1)[0]
    assert slope == pytest.approx(5, rel=0.05)


def test_where_nothing_can_be_said() -> None:
    assert normality(np.arange(7.0), 3.0, 2.0, 1.0) is None
    assert normality(np.ones(50), 1.0, 0.0, 1.0) is None


def test_skewed_samples_miss_as_the_expansion_says() -> None:
    n, level = 400, 0.95
    samples = RNG.exponential(size=(20_000, n))
    t = (samples.mean(axis=1) - 1) / (samples.std(axis=1, ddof=1) / math.sqrt(n))
    limit = stats.t.ppf(0.975, n - 1)
    below, above = missing_chances(2.0, n, level)
    assert below == pytest.approx(float(np.mean(t < -limit)), abs=0.004)
    assert above == pytest.approx(float(np.mean(t > limit)), abs=0.004)
    assert missing_chances(0.0, n, level) == pytest.approx((0.025, 0.025))
