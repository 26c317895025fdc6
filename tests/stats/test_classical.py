"""Figures of a sample against scipy and against what is known of the sample."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hugewise.stats.classical import chance_of_medians, figures, margin_of_error

RNG = np.random.default_rng(20210427)


def test_figures_are_scipys_and_numpys() -> None:
    values = RNG.lognormal(0, 0.5, 3000)
    found = figures(values, 0.99)
    told = stats.describe(values)
    assert found.n == told.nobs
    assert found.mean == pytest.approx(told.mean, rel=1e-12)
    assert found.sd == pytest.approx(math.sqrt(told.variance), rel=1e-12)
    assert (found.min, found.max) == told.minmax
    assert found.skewness == pytest.approx(told.skewness, rel=1e-9)
    assert found.kurtosis == pytest.approx(told.kurtosis, rel=1e-9)
    assert found.median == pytest.approx(float(np.median(values)), rel=1e-12)
    assert found.robust_sd == pytest.approx(stats.median_abs_deviation(values, scale=1 / 1.4826), rel=1e-9)
    assert found.quantiles["0.999"] == pytest.approx(float(np.quantile(values, 0.999)), rel=1e-12)
    low, high = stats.t.interval(0.99, 2999, told.mean, math.sqrt(told.variance / 3000))
    assert found.margin == pytest.approx((high - low) / 2, rel=1e-9)
    assert found.spread == pytest.approx(values.max() / values.min())


def test_the_published_margins_of_error_come_out() -> None:
    """147.08 with sd 14.53 from 24,000 builds: 0.36 s at 99.99% (the article), and its two other benchmarks."""
    assert margin_of_error(14.53, 24_000, 0.9999) == pytest.approx(0.365, abs=0.005)
    assert margin_of_error(4.38, 5_000, 0.9999) == pytest.approx(0.24, abs=0.005)
    assert margin_of_error(1.58, 37_000, 0.9999) == pytest.approx(0.03, abs=0.005)


def test_outliers_with_and_without() -> None:
    values = np.concatenate([RNG.normal(100, 10, 5000), [400.0, 500.0]])
    three, six = figures(values, 0.99).beyond
    kept = values[np.abs(values - values.mean()) <= 3 * values.std(ddof=1)]
    assert three.count == len(values) - len(kept)
    assert (six.below, six.above) == (0, 2)
    assert three.mean == pytest.approx(kept.mean()) and three.sd == pytest.approx(kept.std(ddof=1))
    squares = (values - values.mean()) ** 2
    assert six.variance_share == pytest.approx(squares[-2:].sum() / squares.sum())
    assert six.largest_share == pytest.approx(squares[-1] / squares.sum())
    assert three.expected == pytest.approx(5002 * 2 * stats.norm.sf(3))


def test_the_histogram_holds_every_value_once() -> None:
    for values in (RNG.normal(size=10), RNG.standard_cauchy(5000), np.repeat([1.0, 2.0], 50), np.array([3.0])):
        found = figures(values)
        assert found.counts.sum() == len(values)
        assert len(found.edges) == len(found.counts) + 1
        assert found.edges[0] <= values.min() and found.edges[-1] >= values.max()


def test_medians_of_k_are_what_drawing_them_gives() -> None:
    values = RNG.gamma(2.0, size=1500)
    drawn = np.median(RNG.choice(values, (40_000, 5)), axis=1)
    five = figures(values).medians[1]
    assert five.k == 5
    assert five.mean == pytest.approx(drawn.mean(), rel=0.01)
    assert five.sd == pytest.approx(drawn.std(), rel=0.02)
    assert five.low == pytest.approx(np.quantile(drawn, 0.025), rel=0.03)


def test_chance_of_medians() -> None:
    """For equal sd and a shift of 0.114 sd, as the article's builds, a median of three names the faster arm in 55%."""
    slow = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    fast = slow - 0.114
    assert chance_of_medians(fast, slow, 3) == pytest.approx(0.547, abs=0.003)
    assert chance_of_medians(slow, slow, 3) == pytest.approx(0.5, abs=1e-9)
    assert chance_of_medians(np.array([1.0]), np.array([2.0]), 5) == 1.0


def test_drift_and_modes_are_seen() -> None:
    noise = RNG.normal(0, 1, 5000)
    still, drifting = figures(noise), figures(noise + np.linspace(0, 6, 5000))
    assert still.slow_share is not None and still.slow_share < 0.02
    assert drifting.slow_share == pytest.approx(0.75, abs=0.05)  # 3 of 4 parts: variance of the slope is 36/12
    assert figures(noise, ordered_in_time=False).slow_share is None
    assert still.modes == 1
    assert figures(np.concatenate([noise, noise + 8])).modes == 2


@pytest.mark.parametrize("values", [[5.0], [5.0, 5.0, 5.0], [0.0] * 40, [1.0, 2.0], [1e60, 1e60, 2e60], [-1.0, 3.0]])
def test_small_and_constant_samples(values: list[float]) -> None:
    found = figures(np.array(values))
    assert found.n == len(values) and found.min <= found.median <= found.max
    if len(set(values)) == 1:
        assert found.beyond == () and found.normality is None and found.skewness is None


def test_an_empty_or_infinite_sample_is_refused() -> None:
    for values in ([], [1.0, math.inf], [math.nan]):
        with pytest.raises(ValueError, match="at least one value"):
            figures(np.array(values, dtype=np.float64))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0.1, 1e6), min_size=3, max_size=60), st.floats(1e-3, 1e3))
def test_units_change_nothing_but_the_unit(values: list[float], factor: float) -> None:
    one, other = figures(np.array(values)), figures(np.array(values) * factor)
    assert other.mean == pytest.approx(one.mean * factor, rel=1e-9)
    assert other.robust_sd == pytest.approx(one.robust_sd * factor, rel=1e-6, abs=1e-9 * factor)
    assert other.medians[0].mean == pytest.approx(one.medians[0].mean * factor, rel=1e-9)
