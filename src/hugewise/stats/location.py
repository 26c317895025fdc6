"""The typical log-ratio: the value at which the test's own walk is zero.

Hodges and Lehmann (1963, Ann. Math. Statist. 34:598) derive an estimate of place from a test: the theta at which the
statistic of D - theta stands where it stands on average under the null. Here the statistic is the walk of signed normal
scores with sequential ranks (`scores`), and it stands at 0. So the estimate, the test and its interval (`inversion`)
speak of one thing, whatever the shape of the differences:

    theta with E[sign(D - theta) J(F(|D - theta|))] = 0,    J the normal score, F the distribution of |D - theta|

Where D is symmetric about a point, that is the point. Where it is not, it is neither the mean nor the median: for mixed
or skewed differences it lies between them, mostly nearer the mean, as normal scores weigh large differences more than
ranks do. An outlier counts for its rank alone. Where the walk is 0 over a stretch, its middle is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from hugewise.stats.scores import signed

__all__ = ["point"]

_FINEST = 1e-10  # log-ratios are given in whole multiples of 1e-9


def point(differences: Iterable[float], weights: Iterable[float] | None = None) -> float:
    """The theta at which the sum of the signed scores of D - theta * weight is 0; weights are 1 unless given.

    To 1e-7 of the range of the differences. +-inf where infinite ones (failures) outweigh all finite ones. With weights
    other than 1 the walk need not fall everywhere as theta rises; one of its zeros is found. Some 30 times the cost of
    `scores.signed`: 0.1 s for 1,000, 2 s for 24,000. Raises ValueError on no differences, or a NaN.
    """
    values = np.array(list(differences), dtype=np.float64)
    if not len(values) or np.isnan(values).any():
        raise ValueError("the typical log-ratio needs at least one difference, and all of them numbers or infinite")
    scale = np.ones_like(values) if weights is None else np.array(list(weights), dtype=np.float64)
    finite = np.isfinite(values)
    if not finite.any():
        total = int(np.sign(values).sum())
        return math.copysign(math.inf, total) if total else 0.0

    def walk(theta: float) -> int:
        return int(signed(values - theta * scale).sum())

    places = values[finite] / np.where(scale[finite] > 0, scale[finite], 1.0)
    low, high = float(places.min()), float(places.max())
    step = max(_FINEST, (high - low) * 1e-7)
    if walk(low - step) <= 0:
        return -math.inf if walk(low - step) < 0 else low
    if walk(high + step) >= 0:
        return math.inf if walk(high + step) > 0 else high
    falls = _last(lambda theta: walk(theta) > 0, low - step, high + step, step)
    ends = falls if walk(falls + 2 * step) < 0 else _last(lambda theta: walk(theta) >= 0, falls, high + step, step)
    return round((falls + ends) / 2, 9)


def _last(holds: Callable[[float], bool], low: float, high: float, step: float) -> float:
    """The last theta at which it holds, which it does at `low` and not at `high`, to `step`."""
    while high - low > step:
        middle = low + (high - low) / 2
        if middle in {low, high}:
            break
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
