"""Welch's ratio against scipy, and its coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hugewise.stats.paired import SampleMean, welch
from tests.build import known

RNG = np.random.default_rng(3)


def sample(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> SampleMean:
    return SampleMean(float(values.mean()), float(values.std(ddof=1)), float(len(values)))


def test_for_small_differences_it_is_scipys_test_of_means() -> None:
    first, second = RNG.normal(100, 1.0, 30), RNG.normal(100.4, 2.0, 50)
    found = known(welch(sample(first), sample(second), 0.95))
    assert found.ratio == pytest.approx(first.mean() / second.mean())
    assert found.p == pytest.approx(stats.ttest_ind(first, second, equal_var=False).pvalue, rel=0.05)
    assert found.low < found.ratio < found.high


def test_the_interval_covers_as_often_as_it_says() -> None:
    covered = 0
    for _ in range(600):
        found = known(welch(sample(RNG.gamma(25, 1.1, 20)), sample(RNG.gamma(25, 1.0, 40)), 0.9))
        covered += found.low <= 1.1 <= found.high
    assert 0.86 <= covered / 600 <= 0.94


def test_what_has_no_ratio_has_none() -> None:
    one = SampleMean(1.0, 0.1, 10.0)
    assert welch(SampleMean(-1.0, 0.1, 10.0), one, 0.95) is None
    assert welch(SampleMean(1.0, 0.1, 1.0), one, 0.95) is None
    assert welch(SampleMean(1.0, 0.0, 5.0), SampleMean(2.0, 0.0, 5.0), 0.95) is None
