from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from hugewise.report.reasons import in_words
from hugewise.stats.sessions import components, interval, needed, reason
from tests.build import known


@pytest.mark.parametrize(("n", "alpha"), [(8, 0.05), (20, 0.05), (20, 1e-4), (60, 1e-4)])
def test_the_ends_are_where_the_bayes_factor_reaches_one_over_alpha(n: int, alpha: float) -> None:
    """The factor recomputed from its definition: noncentral against central t, averaged over the prior."""
    means = np.random.default_rng(n).normal(0.03, 0.2, n)
    bounds = known(interval(means.tolist(), alpha))
    t = (means.mean() - bounds[0]) / (means.std(ddof=1) / math.sqrt(n))

    def weighted(size: float) -> float:
        prior = stats.norm.pdf(size, scale=math.sqrt(1 / 0.5))
        return float(stats.nct.pdf(t, n - 1, size * math.sqrt(n)) * prior)

    near = t / math.sqrt(n)
    factor = integrate.quad(weighted, near - 4, near + 4, points=[near], limit=200)[0] / stats.t.pdf(t, n - 1)
    assert factor == pytest.approx(1 / alpha, rel=1e-4)


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.floats(1e-6, 1e6), st.floats(-10, 10))
def test_scale_and_shift(seed: int, scale: float, shift: float) -> None:
    means = np.random.default_rng(seed).normal(size=12)
    plain = interval(means.tolist(), 0.05)
    moved = interval((scale * means + shift).tolist(), 0.05)
    assert plain is not None
    assert moved == pytest.approx((scale * plain[0] + shift, scale * plain[1] + shift), rel=1e-6, abs=1e-6)


def test_how_many_sessions_a_claim_needs() -> None:
    assert [needed(alpha) for alpha in (0.05, 0.01, 1e-4)] == [8, 11, 20]
    assert interval([0.1, 0.2] * 3, 0.05) is None
    assert in_words(reason([0.1] * 7, 0.05) or "") == "not enough sessions: 7 of the 8 that 0.95 confidence needs"
    assert reason([0.1] * 8, 0.05) is None
    assert interval([0.1] * 8, 0.05) == pytest.approx((0.1, 0.1))
    assert interval([math.inf, *[0.1] * 8], 0.05) is None
    assert "failed" in in_words(reason([math.inf, *[0.1] * 8], 0.05) or "")
    with pytest.raises(ValueError, match="NaN"):
        reason([math.nan], 0.05)
    with pytest.raises(ValueError, match="alpha"):
        needed(0)


def test_components_are_the_analysis_of_variance() -> None:
    groups = np.random.default_rng(5).normal(size=(6, 10)) + np.arange(6)[:, None]
    between, within = components(groups.tolist())
    f = stats.f_oneway(*groups).statistic
    assert within == pytest.approx(groups.var(axis=1, ddof=1).mean())
    assert between == pytest.approx(within * (f - 1) / 10)


def test_components_are_unbiased_with_unequal_sessions() -> None:
    generator = np.random.default_rng(6)
    found = [
        components([(0.5 * generator.normal() + generator.normal(size=n)).tolist() for n in (3, 8, 20, 5, 12, 9)])
        for _ in range(1500)
    ]
    between, within = np.mean(found, axis=0)
    assert within == pytest.approx(1, abs=0.02)
    assert between == pytest.approx(0.25, abs=0.03)  # the floor at 0 lifts it a little


def test_components_at_the_ends() -> None:
    assert components([[1.0, 3.0], [1.0, 3.0]]) == (0, 2)
    for groups in ([[1.0, 2.0]], [[1.0], [2.0]], [[1.0, 2.0], []]):
        with pytest.raises(ValueError, match="two sessions"):
            components(groups)
