"""The knee of a curve of gain against memory backed: the smallest share of the memory that keeps most of it. Pure.

In each block every share is measured once, so that what differs between blocks cancels: the gain at a share is the
difference of logarithms to share 0 in the same block, so that it is 0 there. Between the shares that were measured the
curve is a straight line; its knee is the smallest share s with g(s) = keep * g(1), where g(1) is the gain of all
memory.

*Interval.* g(s) - keep * g(1) is a fixed linear combination of a block's gains, whose mean over blocks is 0 at the
knee. So the knee's confidence set has each s at which Student's t test over blocks does not reject that: Fieller's
theorem, for the crossing of a line that is linear in pieces. At the one true s the test errs with probability alpha, so
that the set holds the knee with probability 1 - alpha whatever the shape of the curve (a bootstrap of blocks has no
such promise where a curve has corners and blocks are few). Told is the smallest interval that has all of the set and
the estimate, rounded outward. Its upper end errs with alpha/2: so likely at most a share above it keeps less.

*Curve.* More huge pages may not do harm, so that the means over blocks are made monotone by least squares (isotonic
regression, pool adjacent violators); the estimate of the knee is where that curve crosses. The interval does not use
it.

Sources: Fieller 1954, Some problems in interval estimation, JRSS B 16:175; Barlow, Bartholomew, Bremner and Brunk 1972,
Statistical Inference under Order Restrictions, ch. 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from hugewise.stats.method import Numbers

KEEP = 0.9
"""Share of the gain that is to be kept."""
_STEPS = 1000  # of the search for the ends of an interval, over shares from 0 to 1


class GainKnee(msgspec.Struct, frozen=True, kw_only=True):
    """Gains as differences of logarithms (0.1: some 10%), shares 0 to 1.

    n            blocks
    gains        of each share, its mean over blocks; `smooth`: made monotone
    whole, whole_low, whole_high   the gain of all memory, and its interval at 1 - alpha
    share        the knee, with its interval; None where no gain is shown, so that there is nothing to keep
    """

    n: int
    gains: tuple[float, ...]
    smooth: tuple[float, ...]
    whole: float
    whole_low: float
    whole_high: float
    share: float | None = None
    low: float | None = None
    high: float | None = None


def knee(shares: Sequence[float], blocks: Sequence[Sequence[float]], alpha: float, keep: float = KEEP) -> GainKnee:
    """Return the knee from the gains of each block at `shares`, which rise from above 0 to 1.

    Raises ValueError where there are fewer than three blocks, or shares are not so.
    """
    if len(blocks) < 3 or not 0 < alpha < 1 or not 0 < keep < 1:
        raise ValueError("a knee needs three blocks or more, and alpha and keep within 0 and 1")
    if not shares or shares[0] <= 0 or shares[-1] != 1 or any(a >= b for a, b in itertools.pairwise(shares)):
        raise ValueError("shares rise from above 0 to 1")
    gains = np.asarray(blocks, dtype=float)
    if gains.shape != (len(blocks), len(shares)) or not np.isfinite(gains).all():
        raise ValueError("each block has a finite gain at each share")
    means = gains.mean(axis=0)
    whole, (low, high) = float(means[-1]), _t_interval(gains[:, -1], alpha)
    smooth = isotonic(means)
    curve = GainKnee(
        n=len(blocks),
        gains=tuple(map(float, means)),
        smooth=tuple(smooth),
        whole=whole,
        whole_low=low,
        whole_high=high,
    )
    if low <= 0:
        return curve
    estimate = _crossing(shares, smooth, keep)
    ends = _kept(shares, gains, alpha, keep)
    share_low, share_high = min(ends[0], estimate), max(ends[1], estimate)
    return msgspec.structs.replace(curve, share=estimate, low=share_low, high=share_high)


def isotonic(values: Sequence[float] | Numbers) -> list[float]:
    """The closest (least squares) values that never fall and are never below 0, for values of equal weight."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = float(value), 1
        while pools and pools[-1][0] >= mean:
            before, others = pools.pop()
            mean, count = (mean * count + before * others) / (count + others), count + others
        pools.append((mean, count))
    return [max(0.0, mean) for mean, count in pools for _ in range(count)]


def _crossing(shares: Sequence[float], smooth: Sequence[float], keep: float) -> float:
    """Return where a monotone curve from (0, 0) first has `keep` of its last value."""
    wanted = keep * smooth[-1]
    before_share = before = 0.0
    for share, gain in zip(shares, smooth, strict=True):
        if gain >= wanted:
            part = (wanted - before) / (gain - before) if gain > before else 1.0
            return before_share + part * (share - before_share)
        before_share, before = share, gain
    return 1.0


def _kept(shares: Sequence[float], gains: Numbers, alpha: float, keep: float) -> tuple[float, float]:
    """The ends of the shares at which the t test over blocks does not reject g(s) = keep * g(1); 1 and 0 where it
    rejects all.
    """
    grid = np.linspace(0.0, 1.0, _STEPS + 1)
    knots = np.concatenate(([0.0], shares))
    levels = np.concatenate((np.zeros((len(gains), 1)), gains), axis=1)
    at = np.clip(np.searchsorted(knots, grid, side="right") - 1, 0, len(shares) - 1)
    part = (grid - knots[at]) / (knots[at + 1] - knots[at])
    apart = levels[:, at] * (1 - part) + levels[:, at + 1] * part - keep * gains[:, -1:]
    mean, error = apart.mean(axis=0), apart.std(axis=0, ddof=1) / math.sqrt(len(gains))
    inside = np.flatnonzero(np.abs(mean) <= _t(alpha, len(gains)) * error)
    turns = np.flatnonzero(np.diff(np.sign(mean)) != 0)  # a spread of nothing leaves only where it crosses
    candidates = np.concatenate((inside, turns, turns + 1))
    if not len(candidates):
        return 1.0, 0.0
    return float(grid[max(0, candidates.min() - 1)]), float(grid[min(_STEPS, candidates.max() + 1)])


def _t_interval(values: Numbers, alpha: float) -> tuple[float, float]:
    half = _t(alpha, len(values)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(values.mean()) - half, float(values.mean()) + half


def _t(alpha: float, n: int) -> float:
    from scipy.special import stdtrit  # noqa: PLC0415  (slow to load)

    return float(stdtrit(n - 1, 1 - alpha / 2))
