"""Chances averaged over what a pilot leaves open about the spread: how many pairs, and which effects.

A pilot of n pairs gives the deviation s of a pair, not sigma. Pairs that show an effect with 90% if s were sigma show
it with less on average: where s came out small, too few pairs are asked for, and that costs more than the converse
gains. So chances are averaged over sigma as the pilot leaves it,

    sigma = s / sqrt(chi^2_f / f),    f the pilot's degrees of freedom (`spread.freedom`).

Such averaged powers are called assurance (O'Hagan, Stevens and Campbell 2005, Pharm. Stat. 4:187). The distribution is
the posterior under the prior 1/sigma, or the fiducial one. As power hangs almost on effect/sigma * sqrt(pairs) alone,
the promise is kept over repeated pilots too, for whatever sigma they are drawn with (Hahn and Meeker 1991,
*Statistical Intervals*: prediction from a pivot): `hugewise.verification.planning` counts it.

The average is Gauss-Hermite quadrature on the normal score of chi^2, with 7 points: the chance is near a normal
distribution function of the logarithm of sigma, for which that is exact to 0.001 from 6 pairs on.

A shift is an effect in units of s. Only the spread is averaged: the effect is the asked one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from hugewise.stats import power
from hugewise.stats.numbers import Numbers

__all__ = ["KNOWN", "averaged", "nodes", "pairs_needed", "shift_shown", "student_needed", "student_shift"]

KNOWN = math.inf
"""Degrees of freedom of a spread that is known: s is sigma."""

_NODES = 7


@lru_cache(maxsize=64)
def nodes(freedom: float) -> tuple[tuple[float, float], ...]:
    """Weights, and the values of s/sigma that have them. Raises ValueError unless freedom > 0."""
    if freedom == KNOWN:
        return ((1.0, 1.0),)
    from scipy.special import chdtri, ndtr  # noqa: PLC0415  (slow to load)

    if not freedom > 0:
        raise ValueError("a spread needs some degrees of freedom")
    points, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    factors = np.sqrt(chdtri(freedom, ndtr(-points)) / freedom)
    return tuple(zip((weights / weights.sum()).tolist(), factors.tolist(), strict=True))


def averaged(chance: Callable[[float], float], freedom: float) -> float:
    """The mean of `chance(s/sigma)` over what a deviation s with so many degrees of freedom leaves open of sigma."""
    return math.fsum(weight * chance(factor) for weight, factor in nodes(freedom))


@lru_cache(maxsize=1024)
def pairs_needed(
    shift: float, freedom: float, alpha: float, *, chance: float = 0.9, budget: int | None = None
) -> int | None:
    """Pairs after which the sequential test has a verdict with this chance, on average over sigma.

    Of the declared `budget`; without one, the smallest budget that gives this chance when it is the one declared. None
    where that is beyond the budget, or `power.MOST`.
    """
    if shift <= 0:
        return None
    if budget is None:
        return _undeclared(shift, freedom, alpha, chance)
    for pairs in power.PIECES:
        curves = [weight * power.curve(shift * factor, alpha, budget, pairs) for weight, factor in nodes(freedom)]
        curve = np.sum(curves, axis=0)
        if curve[-1] >= chance:
            return int(np.searchsorted(curve, chance)) + 1
    if budget <= power.WALKED:
        return None
    return power.first_enough(
        lambda n: averaged(lambda factor: power.power(shift * factor, n, alpha, budget), freedom) >= chance,
        power.WALKED + 1,
        budget,
    )


@lru_cache(maxsize=256)
def shift_shown(pairs: int, freedom: float, alpha: float, *, chance: float = 0.9) -> float | None:
    """The shift that `pairs` declared pairs show with this chance, on average over sigma, to 0.5%.

    None where even differences that all agree would not.
    """
    if power.least_pairs(alpha, pairs) is None:
        return None
    shifts, scores = _response(pairs, alpha)

    def power_of(shift: float) -> float:
        return math.erfc(-float(np.interp(math.log(shift), shifts, scores)) / math.sqrt(2)) / 2

    return _shown(power_of, freedom, chance, 16.0)


@lru_cache(maxsize=256)
def student_needed(shift: float, freedom: float, level: float, *, chance: float = 0.9) -> int | None:
    """The pairs that a paired t test at a fixed number of them needs; None beyond `power.MOST`."""
    if shift <= 0:
        return None
    return power.first_enough(
        lambda n: averaged(lambda factor: power.student_power(shift * factor, n, level), freedom) >= chance,
        2,
        power.MOST,
    )


@lru_cache(maxsize=256)
def student_shift(pairs: int, freedom: float, level: float, *, chance: float = 0.9) -> float | None:
    """The shift that a paired t test shows with this chance, to 0.5%; None where it is beyond 1,000."""
    return _shown(lambda shift: power.student_power(shift, pairs, level), freedom, chance, 1e3)


def _shown(power_of: Callable[[float], float], freedom: float, chance: float, most: float) -> float | None:
    """The least shift up to `most` with this chance."""
    return power.least(
        lambda shift: averaged(lambda factor: power_of(shift * factor), freedom) >= chance, 1e-4, most, to=1.005
    )


def _undeclared(shift: float, freedom: float, alpha: float, chance: float) -> int | None:
    """The smallest budget with this chance."""
    weights, drifts = np.array([(weight, power.drift_of(shift * factor)) for weight, factor in nodes(freedom)]).T
    return power.undeclared(
        lambda n: float(weights @ power.brownian(drifts, n, alpha, n)),
        lambda n: averaged(lambda factor: power.power(shift * factor, n, alpha), freedom),
        alpha,
        chance=chance,
    )


@lru_cache(maxsize=16)
def _response(pairs: int, alpha: float) -> tuple[Numbers, Numbers]:
    """Logarithms of shifts, and the normal score of the chance of a verdict in `pairs` declared pairs at each.

    One table for all spreads; between its shifts the score is taken for straight.
    """
    from scipy.special import ndtri  # noqa: PLC0415  (slow to load)

    shifts, chances = [0.3 / math.sqrt(pairs)], list[float]()
    while True:
        chances.append(power.power(shifts[-1], pairs, alpha))
        if shifts[-1] > 16 or chances[-1] > 1 - 1e-5:
            return np.log(shifts), ndtri(np.clip(chances, 1e-12, 1 - 1e-12))
        shifts.append(1.12 * shifts[-1])
