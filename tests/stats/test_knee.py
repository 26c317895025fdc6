"""The knee of gain against memory: by hand, and how often its interval has the true one over simulated blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise.stats.knee import KEEP, isotonic, knee
from tests.build import known

SHARES = (0.05, 0.1, 0.25, 0.5, 1.0)
Draw = Callable[[np.random.Generator, tuple[int, ...]], "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"]


def test_a_curve_without_noise_has_its_knee_where_it_crosses() -> None:
    gains = (0.02, 0.04, 0.1, 0.2, 0.2)
    found = knee(SHARES, [gains] * 4, 0.05)
    # 90% of 0.2 is 0.18: four fifths of the way from 25% to 50%.
    assert found.share == pytest.approx(0.45)
    assert found.low == pytest.approx(0.45, abs=0.003)
    assert found.high == pytest.approx(0.45, abs=0.003)
    assert found.whole == pytest.approx(0.2)
    assert found.smooth == pytest.approx(gains)


def test_a_gain_in_proportion_has_its_knee_at_its_share() -> None:
    assert knee(SHARES, [[0.3 * share for share in SHARES]] * 3, 0.05).share == pytest.approx(KEEP)


def test_a_gain_that_all_comes_with_the_first_pages() -> None:
    found = knee(SHARES, [(0.2, 0.2, 0.2, 0.2, 0.2)] * 3, 0.05)
    assert found.share == pytest.approx(0.045)


@pytest.mark.parametrize(
    ("values", "fitted"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([1, 3, 2], [1, 2.5, 2.5]),
        ([3, 2, 1], [2, 2, 2]),
        ([-1, 0.5, 0.4, 2], [0, 0.45, 0.45, 2]),
        ([1, 1, 1], [1, 1, 1]),
    ],
)
def test_means_are_made_monotone(values: list[float], fitted: list[float]) -> None:
    assert isotonic(values) == pytest.approx(fitted)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=8))
def test_what_is_monotone_stays_and_all_else_becomes_so(values: list[float]) -> None:
    found = isotonic(values)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(found))
    assert isotonic(found) == pytest.approx(found)
    assert sum(found) == pytest.approx(sum(values))
    assert isotonic(sorted(values)) == pytest.approx(sorted(values))


@pytest.mark.parametrize(
    ("shares", "blocks", "alpha"),
    [
        (SHARES, [[0.1] * 5] * 2, 0.05),
        ((0.5, 0.25, 1.0), [[0.1] * 3] * 3, 0.05),
        ((0.5, 0.9), [[0.1] * 2] * 3, 0.05),
        ((0.0, 1.0), [[0.1] * 2] * 3, 0.05),
        (SHARES, [[0.1] * 4] * 3, 0.05),
        (SHARES, [[0.1] * 4 + [math.inf]] * 3, 0.05),
        (SHARES, [[0.1] * 5] * 3, 0.0),
    ],
)
def test_what_is_no_curve_is_refused(shares: Sequence[float], blocks: list[list[float]], alpha: float) -> None:
    with pytest.raises(ValueError, match="shares|blocks|block"):
        knee(shares, blocks, alpha)


def normal(random: np.random.Generator, size: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return random.normal(0, 0.02, size)


def heavy(random: np.random.Generator, size: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return 0.01 * random.standard_t(3, size)


def blocks_of(random: np.random.Generator, true: Sequence[float], n: int, draw: Draw) -> list[list[float]]:
    """Blocks of logs of times, in which the base arm has noise of its own and the host drifts, as gains."""
    logs = draw(random, (n, len(true) + 1)) - np.array([0.0, *true]) + np.linspace(0, 0.2, n)[:, None]
    return [[float(value) for value in row[0] - row[1:]] for row in logs]


def crossing(true: Sequence[float]) -> float:
    return float(np.interp(KEEP * true[-1], [0, *true], [0, *SHARES]))


@pytest.mark.parametrize("draw", [normal, heavy])
@pytest.mark.parametrize(
    "true",
    [
        (0.05, 0.09, 0.17, 0.19, 0.2),
        (0.15, 0.18, 0.19, 0.195, 0.2),
        (0.01, 0.02, 0.05, 0.1, 0.2),
        (0.02, 0.04, 0.1, 0.2, 0.201),
    ],
)
@pytest.mark.parametrize("runs", [200, pytest.param(400, marks=pytest.mark.soak)])
def test_the_true_knee_lies_in_the_interval_at_the_promised_rate(
    true: tuple[float, ...], draw: Draw, runs: int
) -> None:
    random, alpha, lost = np.random.default_rng(13), 0.1, 0
    for _ in range(runs):
        found = knee(SHARES, blocks_of(random, true, 10, draw), alpha)
        if found.share is None:
            continue
        assert known(found.low) <= found.share <= known(found.high)
        lost += not known(found.low) <= crossing(true) <= known(found.high)
    assert lost / runs <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / runs)


def test_a_share_above_the_interval_keeps_the_gain() -> None:
    """What is recommended is its upper end, which errs on one side alone."""
    random, runs, alpha, lost = np.random.default_rng(7), 600, 0.1, 0
    true = (0.05, 0.09, 0.17, 0.19, 0.2)
    for _ in range(runs):
        found = knee(SHARES, blocks_of(random, true, 12, normal), alpha)
        lost += float(np.interp(known(found.high), [0, *SHARES], [0, *true])) < KEEP * true[-1] - 1e-9
    assert lost / runs <= alpha / 2 + 3 * math.sqrt(alpha / 2 / runs)


@pytest.mark.parametrize("draw", [normal, heavy])
def test_where_there_is_no_gain_it_says_so(draw: Draw) -> None:
    random, runs, alpha, claimed = np.random.default_rng(5), 600, 0.1, 0
    for _ in range(runs):
        claimed += knee(SHARES, blocks_of(random, (0.0,) * 5, 10, draw), alpha).share is not None
    assert claimed / runs <= alpha / 2 + 3 * math.sqrt(alpha / 2 / runs)


def test_the_interval_of_the_whole_gain_is_students() -> None:
    """0.1, 0.2 and 0.3 have the standard error 0.1/sqrt 3; t at 97.5% with two degrees of freedom is 4.302653."""
    found = knee((1.0,), [(0.1,), (0.2,), (0.3,)], 0.05)
    half = 4.302653 * 0.1 / math.sqrt(3)
    assert (found.whole_low, found.whole_high) == pytest.approx((0.2 - half, 0.2 + half), abs=1e-6)


def test_more_blocks_tell_it_more_closely() -> None:
    random, true = np.random.default_rng(3), (0.05, 0.09, 0.17, 0.19, 0.2)
    widths = []
    for n in (8, 60):
        found = knee(SHARES, blocks_of(random, true, n, normal), 0.05)
        widths.append(known(found.high) - known(found.low))
    assert widths[1] < widths[0] / 2
