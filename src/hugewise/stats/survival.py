"""The empirical survival function: what share of a sample is as large as a value, or larger. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["survival"]

_STEP = 0.04  # decades of the share between two points that are kept: a tenth of a percent of a thousand has 75 of them


def survival(sample: Iterable[tuple[float, int]]) -> list[tuple[float, float]]:
    """Points (value, share of the sample that is at least as large), by value; `sample`: values and how often each was
    seen.

    The first point has the share 1 and the last one that of the largest value, so that none is 0: it can be drawn on a
    logarithmic scale. Between them so many are kept that neighbours differ by 0.04 decades, or by one value.
    """
    known = sorted((value, count) for value, count in sample if count > 0)
    whole = left = sum(count for _, count in known)
    every: list[tuple[float, float]] = []
    for value, count in known:
        if not every or value > every[-1][0]:
            every.append((value, left / whole))
        left -= count
    kept: list[tuple[float, float]] = []
    for place, (value, share) in enumerate(every):
        if not kept or place == len(every) - 1 or math.log10(kept[-1][1] / share) >= _STEP:
            kept.append((value, share))
    return kept
