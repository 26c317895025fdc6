"""The pairs that end points are planned with, held against the end points themselves."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from hugewise.stats import campaign, end_points, power
from hugewise.stats.signflip import stopped
from tests.build import known

Floats = np.typing.NDArray[np.float64]
BUDGET = 6_000


def delivered(
    kind: str, draw: Callable[[tuple[int, ...]], Floats], effect: float, alpha: float, pilot: int
) -> tuple[float, float]:
    """How often campaigns end by the pairs asked for, and by those of half, on average over 30 pilots."""
    asked, half = [], []
    for arm, baseline in np.exp(draw((30, 2, pilot))).tolist():
        end = power.of_values(kind, arm, baseline, alpha)
        asked.append(power.pairs_needed(end, effect, BUDGET) or math.inf)
        half.append(power.pairs_needed(end, effect, BUDGET, chance=0.5) or math.inf)
    ends = []
    for _ in range(100):
        values = np.exp(draw((2, BUDGET)))
        differ = end_points.SlowRuns() if kind == "slow" else end_points.BeyondQuantile(0.99)
        pairs = zip((values[0] * (1 + effect)).tolist(), values[1].tolist(), strict=True)
        test = stopped((differ.add(arm, baseline) for arm, baseline in pairs), alpha, BUDGET)
        ends.append(test.pairs if test.sign > 0 else math.inf)
    share = np.searchsorted(np.sort(ends), [asked, half], "right").mean(axis=1) / len(ends)
    return float(share[0]), float(share[1])


@pytest.mark.parametrize(
    ("kind", "effect", "pilot"), [("slow", 0.1, 60), pytest.param("p99", 0.2, 100, marks=pytest.mark.soak)]
)
def test_the_pairs_asked_for_deliver(kind: str, effect: float, pilot: int) -> None:
    random = np.random.default_rng(1974)
    asked, half = delivered(kind, lambda shape: random.laplace(0, 0.1, shape), effect, 0.01, pilot)
    assert 0.83 <= asked <= 0.97  # 90%, and 3 standard errors of 30 pilots and 100 campaigns
    assert 0.35 <= half <= 0.65


def test_the_pairs_of_a_mean_deliver() -> None:
    random = np.random.default_rng(1954)
    effect, alpha, share = 0.03, 0.01, []
    for _ in range(60):
        pilot = np.exp(random.normal(0, 0.1, (2, 30)))
        needed = known(power.pairs_needed(power.of_values("mean", pilot[0], pilot[1], alpha), effect, 2_000))
        for _ in range(5):
            arm, baseline = np.exp(random.normal(0, 0.1, (2, needed)))
            found = known(campaign.ratio_of_means((arm * (1 + effect)).tolist(), baseline.tolist(), alpha))
            share.append(found[1] > 1)
    assert 0.83 <= np.mean(share) <= 0.97


def test_unit_and_direction_do_not_matter() -> None:
    random = np.random.default_rng(3)
    arm, baseline = np.exp(random.laplace(0, 0.1, (2, 80)))
    for kind in ("mean", "slow", "p99"):
        plain = power.of_values(kind, arm, baseline, 0.01)
        for other in (
            power.of_values(kind, 1e6 * arm, 1e6 * baseline, 0.01),
            power.of_values(kind, 1.5 * arm, baseline, 0.01),
            *([] if kind == "mean" else [power.of_values(kind, 1 / arm, 1 / baseline, 0.01, better="higher")]),
        ):
            assert other.power(0.1, 800, 2_000) == pytest.approx(plain.power(0.1, 800, 2_000), rel=1e-6)


def test_what_is_shown_takes_the_budgets_pairs() -> None:
    arm, baseline = np.exp(np.random.default_rng(4).laplace(0, 0.05, (2, 100)))
    for kind in ("mean", "slow", "p99"):
        end = power.of_values(kind, arm, baseline, 0.01)
        shown, hidden = (power.effect_shown(end, 1_500, chance=chance) for chance in (0.9, 0.1))
        assert shown is not None and hidden is not None and hidden < shown
        assert power.pairs_needed(end, shown, 1_500) == pytest.approx(1_500, rel=0.05)
        assert power.effect_shown(end, end.least - 1) is None


def test_what_cannot_be_planned_has_a_reason() -> None:
    values = np.exp(np.random.default_rng(5).normal(0, 0.1, 100))
    with pytest.raises(power.UnplannableError, match="98 runs are too few to tell a tail from: 100"):
        power.of_values("p99", values[:49], values[50:99], 0.01)
    capped = np.minimum(values, np.median(values))
    with pytest.raises(power.UnplannableError, match="there is no tail"):
        power.of_values("slow", capped, capped, 0.01)
    with pytest.raises(power.UnplannableError, match="the same ratio"):
        power.of_values("mean", values, values, 0.01)
    with pytest.raises(ValueError, match="no end point is called max"):
        power.of_values("max", values, values, 0.01)
