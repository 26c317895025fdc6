"""The pseudo-median: the median of all means of two differences (Hodges and Lehmann 1963, Ann. Math. Statist. 34:598).

It estimates the typical log-ratio of a pair: the value at which Wilcoxon's signed ranks balance, which is the median
where differences are symmetric about it. An outlier moves it little. It is neither the mean nor the median of skewed
differences, and so is named wherever it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

__all__ = ["point"]

_ENUMERATED = 1 << 20  # so many pairwise means are sorted at once


def point(differences: Iterable[float]) -> float:
    """The pseudo-median of Hodges and Lehmann 1963: the median of all pairwise means (D_i + D_j)/2, i <= j.

    Exact, in O(n log n) time and O(n) memory. Means of +inf and -inf are left out. +-inf where failures outweigh.
    Raises ValueError on no differences, or a NaN.
    """
    values = np.sort(np.array(list(differences), dtype=np.float64))
    if not len(values) or np.isnan(values).any():
        raise ValueError("the pseudo-median needs at least one difference, and all of them numbers or infinite")
    low, high = int(np.sum(values == -np.inf)), int(np.sum(values == np.inf))
    finite = values[low : len(values) - high]
    count = len(finite)
    below, inside, above = low * count + low * (low + 1) // 2, count * (count + 1) // 2, 0
    above = high * count + high * (high + 1) // 2
    total = below + inside + above
    middle = [(total - 1) // 2, total // 2]  # the same where the number is odd

    def mean(rank: int) -> float:
        if rank < below:
            return -math.inf
        return _smallest(finite, rank - below) if rank < below + inside else math.inf

    first, second = (mean(rank) for rank in middle)
    return first if first == second else (first + second) / 2


def _smallest(values: npt.NDArray[np.float64], rank: int) -> float:
    """The pairwise mean with `rank` others before it; `values` finite, sorted. Bisects sums until few are left."""
    low, high = 2 * float(values[0]), 2 * float(values[-1])
    places = np.arange(len(values))

    def upto(limit: float) -> npt.NDArray[np.int64]:
        """For each i the end of the j >= i with x_i + x_j <= limit."""
        return np.maximum(np.searchsorted(values, limit - values, "right"), places)

    ends_low, ends_high = places.copy(), np.full(len(values), len(values))
    while int((ends_high - ends_low).sum()) > _ENUMERATED:
        middle = low + (high - low) / 2
        if middle in {low, high}:
            return high / 2
        ends = upto(middle)
        if int((ends - places).sum()) > rank:
            high, ends_high = middle, ends
        else:
            low, ends_low = middle, ends
    before = int((ends_low - places).sum())
    widths = ends_high - ends_low
    rows = np.repeat(places, widths)
    starts = np.repeat(ends_low - np.concatenate(([0], widths.cumsum()[:-1])), widths)
    sums = values[rows] + values[np.arange(len(rows)) + starts]
    return float(np.partition(sums, rank - before)[rank - before]) / 2
