"""Autocorrelation and effective n on series whose dependence is known."""

from __future__ import annotations

import numpy as np
import pytest

from hugewise.stats.paired import autocorrelation, dependence
from tests.build import known

RNG = np.random.default_rng(5)


def ar(phi: float, n: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], [1.0, -phi], RNG.standard_normal(n + 500))[500:], dtype=np.float64)


@pytest.mark.parametrize("phi", [0.0, 0.3, 0.8, 0.95])
def test_an_autoregression_is_worth_what_it_must(phi: float) -> None:
    told = known(dependence(ar(phi, 40_000)))
    assert told.complete
    assert told.inefficiency == pytest.approx((1 + phi) / (1 - phi), rel=0.25)
    assert told.lags[0] == pytest.approx(phi, abs=0.03)
    assert told.effective == pytest.approx(40_000 / told.inefficiency)


def test_the_variance_of_means_agrees_with_the_effective_n() -> None:
    means = [float(ar(0.8, 2000).mean()) for _ in range(300)]
    values = ar(0.8, 2000)
    told = known(dependence(values))
    assert values.var() / told.effective == pytest.approx(np.var(means), rel=0.6)


def test_the_fast_way_is_the_plain_one() -> None:
    values = ar(0.5, 150_000)
    fast = autocorrelation(values, 60)  # large enough to go piece by piece
    centred = values - values.mean()
    plain = [float(np.dot(centred[: len(values) - lag], centred[lag:])) for lag in range(61)]
    assert fast == pytest.approx(np.array(plain) / plain[0], abs=1e-10)


def test_negative_correlation_is_never_counted_as_gain() -> None:
    told = known(dependence(np.tile([1.0, -1.0], 500) + RNG.normal(0, 0.1, 1000)))
    assert told.inefficiency == 1.0


def test_a_slope_leaves_hardly_anything() -> None:
    told = known(dependence(np.linspace(0, 1, 5000) + RNG.normal(0, 0.01, 5000)))
    assert told.effective < 20


def test_few_or_equal_values_say_nothing() -> None:
    assert dependence(np.arange(9.0)) is None
    assert dependence(np.ones(100)) is None
