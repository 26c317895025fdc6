from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ville import AsymptoticCS

from hugewise.report.reasons import in_words
from hugewise.stats.campaign import Campaign, bound, interval, ratio_of_means
from tests.build import known

Row = npt.NDArray[np.float64]


def slots(generator: np.random.Generator, n: int, rho: float = 0.8) -> tuple[Row, Row]:
    """Log noise of the two slots of n pairs with the within-pair correlation rho."""
    shared = math.sqrt(rho) * generator.normal(size=n)
    own = math.sqrt(1 - rho) * generator.normal(size=(2, n))
    return 0.0988 * (shared + own[0]), 0.0988 * (shared + own[1])


def ever_missed(differences: Sequence[float], truth: Sequence[float], alpha: float) -> bool:
    """Whether any interval of the campaign, looked at after each pair, leaves out the truth of that moment."""
    campaign = Campaign(alpha)
    for difference, value in zip(differences, truth, strict=True):
        campaign.add(difference)
        bounds = campaign.interval()
        if bounds is not None and not bounds[0] <= value <= bounds[1]:
            return True
    return False


@pytest.mark.parametrize("alpha", [0.05, 1e-4])
@pytest.mark.parametrize("n", [100, 500, 3000])
def test_half_width_is_villes_but_for_the_degrees_of_freedom(alpha: float, n: int) -> None:
    values = np.random.default_rng(n).normal(0.02, 0.1, n)
    theirs = AsymptoticCS(alpha=alpha, t_opt=500, min_samples=100, intersect=False).fit(values)
    low, high = theirs.interval()
    bounds = known(interval(values.tolist(), alpha))
    assert sum(bounds) == pytest.approx(low + high)
    bound = n * (n - 1) * ((high - low) / 2) ** 2 / np.sum((values - values.mean()) ** 2)
    assert bounds[1] - bounds[0] == pytest.approx((high - low) * math.sqrt((n - 1) / (n - bound)), rel=1e-2)


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.floats(1e-6, 1e3), st.floats(-5, 5))
def test_swapped_labels_scale_and_shift(seed: int, scale: float, shift: float) -> None:
    values = np.random.default_rng(seed).standard_t(3, 150)
    plain = known(interval(values.tolist(), 0.01))
    assert interval((-values).tolist(), 0.01) == pytest.approx((-plain[1], -plain[0]))
    moved = interval((values * scale + shift).tolist(), 0.01)
    assert moved == pytest.approx((plain[0] * scale + shift, plain[1] * scale + shift), rel=1e-6, abs=1e-9)


def test_reasons() -> None:
    campaign = Campaign(0.05)
    for _ in range(99):
        campaign.add(0.5)
    assert campaign.interval() is None
    assert in_words(campaign.reason() or "") == "the campaign average needs 100 pairs, and there are 99"
    campaign.add(0.5)
    assert campaign.interval() == (0.5, 0.5)
    assert campaign.reason() is None
    campaign.add(math.inf)
    assert campaign.interval() is None
    assert "failed" in in_words(campaign.reason() or "")
    assert interval([0.1, 0.2] * 10, 0.05, n0=20) is None  # fewer pairs than the bound itself
    with pytest.raises(ValueError, match="NaN"):
        campaign.add(math.nan)
    for alpha in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="alpha"):
            interval([], alpha)


@pytest.mark.parametrize("noise", ["cauchy", "stalls", "bias of a slot"])
def test_covers_a_constant_effect_in_any_noise_of_the_slots(noise: str) -> None:
    """The coin alone is random: the slots' contrast may be as wild as it likes."""
    generator = np.random.default_rng(4)
    missed = 0
    for _ in range(200):
        contrast = 0.03 * generator.normal(size=600)
        if noise == "cauchy":
            contrast = generator.standard_cauchy(600)
        elif noise == "stalls":
            contrast += np.where(generator.random(600) < 0.01, generator.exponential(0.5, 600), 0)
        else:
            contrast += 0.05 + np.cumsum(0.01 * generator.normal(size=600))
        differences = 0.02 + generator.choice([1, -1], 600) * contrast
        missed += ever_missed(differences.tolist(), [0.02] * 600, 0.05)
    assert missed <= 17


def costs(seed: int, n: int = 200, effect: float = 0.02) -> tuple[list[float], list[float]]:
    generator = np.random.default_rng(seed)
    first, second = slots(generator, n)
    return (147 * np.exp(effect + first)).tolist(), (147 * np.exp(second)).tolist()


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.floats(1e-3, 1e6))
def test_ratio_of_means_swapped_and_in_another_unit(seed: int, unit: float) -> None:
    arm, baseline = costs(seed)
    found = known(ratio_of_means(arm, baseline, 0.01))
    ratio, low, high = found
    assert ratio == pytest.approx(sum(arm) / sum(baseline))
    assert low < ratio < high
    assert ratio_of_means(baseline, arm, 0.01) == pytest.approx((1 / ratio, 1 / high, 1 / low))
    assert ratio_of_means([unit * x for x in arm], [unit * x for x in baseline], 0.01) == pytest.approx(found)


def test_ratio_of_means_ends_where_the_linearised_differences_meet_the_bound() -> None:
    arm, baseline = (np.array(values) for values in costs(1, 400))
    found = known(ratio_of_means(arm.tolist(), baseline.tolist(), 0.05))
    for end in found[1:]:
        linear = arm - end * baseline
        assert linear.sum() ** 2 == pytest.approx(bound(400, 0.05) * (linear**2).sum(), rel=1e-9)
        theirs = AsymptoticCS(alpha=0.05, t_opt=500, min_samples=100, intersect=False).fit(linear)
        low, high = theirs.interval()
        sd_free = (high - low) / 2 / np.std(linear, ddof=1)
        assert abs(linear.mean()) / math.sqrt(np.mean(linear**2)) == pytest.approx(sd_free, rel=1e-2)
    # To first order it is the delta method.
    spread = np.std(arm - found[0] * baseline, ddof=1) / baseline.mean()
    assert found[2] - found[1] == pytest.approx(2 * sd_free * spread, rel=0.05)


def test_ratio_of_means_says_nothing_where_it_cannot() -> None:
    arm, baseline = costs(2)
    assert ratio_of_means(arm[:99], baseline[:99], 0.05) is None
    assert ratio_of_means([math.inf, *arm[1:]], baseline, 0.05) is None
    assert ratio_of_means(arm, [0.0] * 200, 0.05) is None
    assert ratio_of_means(arm, [1e9, *[0.0] * 199], 0.05) is None  # one job is all of the baseline's cost
    with pytest.raises(ValueError, match="200 values of the arm, but 199"):
        ratio_of_means(arm, baseline[1:], 0.05)
    for wrong in (-1.0, math.nan):
        with pytest.raises(ValueError, match="negative or NaN"):
            ratio_of_means([wrong, *arm[1:]], baseline, 0.05)
