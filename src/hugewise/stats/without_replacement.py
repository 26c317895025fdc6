"""The total of a finite population of bounded values, from a simple random sample without replacement.

By betting: whoever holds that the mean is m, and is told the values in the order in which they were drawn, offers fair
odds on each next one, as what is left must make the mean m. A better whose wealth grew by 2/alpha was offered odds that
were not fair, but for a chance of alpha/2 (Ville's inequality). What is refused so, from either side, is left out.
Nothing is taken from a normal law, so that it holds at any size, and where all values that were seen are alike.

Source: I. Waudby-Smith and A. Ramdas, Estimating means of bounded random variables by betting, Journal of the Royal
Statistical Society B 86 (2024), 1-27: sections 4.2 (predictable plug-in bets) and 5 (without replacement).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

_BOUND = 0.75  # of what can be lost in one bet: the paper's recommendation lies in [1/2, 3/4]
_STEPS = 50


class FiniteMean(msgspec.Struct, frozen=True):
    """The mean of the sample, and the interval that has the population's with the asked confidence."""

    estimate: float
    low: float
    high: float


def finite_mean(values: Sequence[float], population: int, confidence: float) -> FiniteMean:
    """Return the mean of `population` values in [0, 1] from those that were drawn, in the order of the draw.

    Raises ValueError for no value, more values than there are, or one outside of [0, 1].
    """
    drawn = np.asarray(values, dtype=float)
    if not 0 < len(drawn) <= population:
        raise ValueError(f"{len(drawn)} values of {population}")
    if drawn.min() < 0 or drawn.max() > 1:
        raise ValueError("a value lies outside of [0, 1]")
    alpha = 1 - confidence
    seen, unseen = float(drawn.sum()) / population, (population - len(drawn)) / population
    low = max(seen, _lower(drawn, population, alpha))
    high = min(seen + unseen, 1 - _lower(1 - drawn, population, alpha))
    estimate = float(drawn.mean())
    return FiniteMean(estimate, min(low, estimate), max(high, estimate))


def _lower(drawn: npt.NDArray[np.float64], population: int, alpha: float) -> float:
    """Return the lower end: the largest mean that is refused for being too small."""
    count = len(drawn)
    before = np.concatenate([[0.0], np.cumsum(drawn)[:-1]])  # the sum of those drawn earlier
    left = population - np.arange(count)
    # What is bet on the next value is chosen from those before it alone.
    times = np.arange(1, count + 1)
    means = (0.5 + np.cumsum(drawn)) / (times + 1)
    spread = (0.25 + np.cumsum((drawn - means) ** 2)) / (times + 1)
    spread = np.concatenate([[0.25], spread[:-1]])
    bets = np.sqrt(2 * math.log(2 / alpha) / (count * spread))
    needed = math.log(2 / alpha)

    def refused(mean: float) -> bool:
        next_mean = (population * mean - before) / left
        if next_mean.min() < 0:  # more was seen already than there would be
            return True
        bet = np.minimum(bets, _BOUND / np.maximum(next_mean, 1e-12))
        wealth = np.cumsum(np.log1p(bet * (drawn - next_mean)))
        return bool(wealth.max() >= needed)

    least, most = 0.0, float(drawn.mean())
    if not refused(least):
        return 0.0
    for _ in range(_STEPS):
        middle = (least + most) / 2
        least, most = (middle, most) if refused(middle) else (least, middle)
    return least
