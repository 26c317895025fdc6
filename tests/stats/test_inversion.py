from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hugewise.stats import inversion, signflip
from hugewise.stats.inversion import Inversion, interval, point
from hugewise.stats.method import Integers, Numbers
from hugewise.stats.signflip import Boundary

STEP = 1e-4
# Multiples of 1/256 keep differences of differences exact.
GRID = st.integers(-256, 512).map(lambda k: k / 256)
ROWS = st.lists(GRID | st.sampled_from([0.0, math.inf, -math.inf]), min_size=1, max_size=40)


def noisy(seed: int, pairs: int, effect: float = 0.02) -> list[float]:
    return [float(x) for x in np.random.default_rng(seed).standard_t(4, pairs) * 0.04 + effect]


def shifted(differences: list[float], theta: float) -> list[float]:
    return [d - theta for d in differences]


@pytest.mark.parametrize("seed", range(6))
def test_the_ends_are_where_the_test_turns(seed: int) -> None:
    differences, alpha = noisy(seed, 70), 0.01
    low, high = interval(differences, alpha, 100, STEP)
    assert -math.inf < low < high < math.inf
    assert signflip.verdict(shifted(differences, low), alpha, 100) == 1
    assert signflip.verdict(shifted(differences, low + 1.001 * STEP), alpha, 100) == 0
    assert signflip.verdict(shifted(differences, high), alpha, 100) == -1
    assert signflip.verdict(shifted(differences, high - 1.001 * STEP), alpha, 100) == 0
    assert low < point(differences) < high


@settings(deadline=None, max_examples=40)
@given(ROWS)
def test_zero_is_outside_exactly_when_the_test_has_crossed(differences: list[float]) -> None:
    low, high = interval(differences, 0.2, 40, STEP)
    assert low <= high
    sign = signflip.verdict(differences, 0.2, 40)
    assert {1: low >= 0, 0: low < 0 < high, -1: high <= 0}[sign]


@settings(deadline=None, max_examples=40)
@given(ROWS)
def test_swapped_labels_mirror_it(differences: list[float]) -> None:
    low, high = interval(differences, 0.2, 40, STEP)
    assert interval([-d for d in differences], 0.2, 40, STEP) == (-high, -low)


def test_failures_and_few_pairs_leave_it_open() -> None:
    assert interval([], 0.01, 50) == (-math.inf, math.inf)
    assert interval([0.1] * 10, 0.01, 50) == (-math.inf, math.inf)
    assert interval([math.inf] * 10, 0.01, 50) == (-math.inf, math.inf)
    assert interval([math.inf] * 30, 0.01, 50) == (math.inf, math.inf)
    assert interval([-math.inf] * 30, 0.01, 50) == (-math.inf, -math.inf)
    low, high = interval([0.1, math.inf, 0.12, 0.09, math.inf] * 8, 0.01, 50)
    assert 0 < low < 0.12
    assert high == math.inf


class Plain(Inversion):
    """Every test made by itself from its first pair on, each with boundaries of its own."""

    def sign(self, theta: float) -> int:
        return signflip.stopped(self._table.less(theta)[:, 0].tolist(), 0.01, 200).sign


def remembered(kind: str) -> tuple[Numbers, list[float] | None, np.random.Generator]:
    """Differences of that kind, their weights, and the generator for what else is drawn."""
    generator = np.random.default_rng(5)
    values = generator.normal(0.002, 0.03, 170)
    weights = None
    if kind == "weights":
        weights = generator.normal(1, 0.2, 170).tolist()
    elif kind == "ties":
        values = np.round(values, 2)
    elif kind == "failures":
        values[generator.integers(0, 170, 6)] = math.inf
    elif kind == "drift":
        values += np.linspace(-0.03, 0.03, 170)
    elif kind == "effect":
        values += 0.5
    return values, weights, generator


@cache
def plain_ends(kind: str, resolution: float) -> tuple[float, float]:
    values, weights, _ = remembered(kind)
    return Plain(values, 0.01, 200, weights).ends(resolution)


@cache
def plain_sign(kind: str, theta: float) -> int:
    values, weights, _ = remembered(kind)
    return Plain(values, 0.01, 200, weights).sign(theta)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        *((kind, 256) for kind in ("noise", "weights", "ties", "failures", "drift", "effect")),
        *(pytest.param(kind, 2, marks=pytest.mark.soak) for kind in ("noise", "ties", "failures", "drift", "effect")),
        ("weights", 2),
    ],
)
def test_what_is_remembered_changes_no_end(kind: str, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last digit, also where little may be kept."""
    monkeypatch.setattr(signflip, "_after", lru_cache(parts)(signflip._after.__wrapped__))
    values, weights, generator = remembered(kind)
    tests = Inversion(values, 0.01, 200, weights)
    for resolution in (1e-4, 1e-7):
        assert (
            tests.ends(resolution) == interval(values, 0.01, 200, resolution, weights) == plain_ends(kind, resolution)
        )
    for theta in generator.normal(0, 0.02, 10).tolist():
        assert tests.sign(theta) == plain_sign(kind, theta)


def test_what_thetas_share_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closely, more than half of all pairs."""
    steps = 0

    class Counted(Boundary):
        def step(self, *magnitudes: int) -> int | None:
            nonlocal steps
            steps += 1
            return super().step(*magnitudes)

    monkeypatch.setattr(signflip, "Boundary", Counted)
    signflip._after.cache_clear()
    differences = noisy(3, 400, 0.0)
    judged: list[Integers] = []

    def judge(scores: Integers, terms: signflip.Terms) -> int:
        judged.append(scores)
        return signflip.judged(scores, terms)

    monkeypatch.setattr(inversion, "judged", judge)
    Inversion(differences, 0.01, 400).ends(1e-7)
    assert len(judged) > 20
    assert steps < len(judged) * 400 / 2


def test_an_effect_that_turns_leaves_nothing() -> None:
    """First +1, then -1: every theta between was rejected from above before, the rest from below later."""
    differences = [1 + d for d in noisy(1, 40, 0)] + [d - 1 for d in noisy(2, 160, 0)]
    low, high = interval(differences, 0.01, 200, STEP)
    assert high - low <= 2 * STEP


@pytest.mark.parametrize(("alpha", "budget", "resolution"), [(0.0, 10, 1e-4), (0.05, 0, 1e-4), (0.05, 10, 0.0)])
def test_bad_arguments_are_refused(alpha: float, budget: int, resolution: float) -> None:
    with pytest.raises(ValueError, match=r"alpha|budget|resolution"):
        interval([0.1], alpha, budget, resolution)


def test_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="numbers"):
        interval([0.1, math.nan], 0.05, 10)
