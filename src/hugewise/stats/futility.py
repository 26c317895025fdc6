"""Stopping for futility: what an interval of n pairs can become with m more pairs.

The half-width falls a little faster than the square root of the pairs, as the boundary of a sequential test does. The
centre moves by a normal quantile (80%) of how far the mean of all pairs may be from the mean of the first n. For that
the half-width counts as 2.5 standard errors; a sequential interval is wider, so that the forecast errs towards going
on. An end without a verdict costs no error, as the interval of the sequential test holds at any end (Jennison and
Turnbull 2000, Group Sequential Methods, chapter 10).
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

_MOVE = NormalDist().inv_cdf(0.9)
_ERRORS = 2.5  # standard errors that a half-width holds
_NARROWS = 0.55  # power of the pairs with which the half-width falls, by simulation (tools/verification/futility.py)


class Forecast(NamedTuple):
    """Interval after more pairs, of log-ratios: the highest `low` and the lowest `high` that it may have, and its
    half-width.
    """

    low: float
    high: float
    half: float


def forecast(low: float, high: float, pairs: int, more: int) -> Forecast:
    """Return what the bounded interval (log-ratios) of `pairs` can be after `more` pairs."""
    centre, half = (low + high) / 2, (high - low) / 2
    share = pairs / (pairs + more)
    move, ahead = _MOVE * half / _ERRORS * math.sqrt(1 - share), half * share**_NARROWS
    return Forecast(centre + move - ahead, centre - move + ahead, ahead)


def decides(after: Forecast, margin: float) -> bool:
    """Return whether the forecast interval may exclude no change, or may lie within the margin (a log-ratio)."""
    within = after.half <= margin and after.low >= -margin and after.high <= margin
    return after.low > 0 or after.high < 0 or within
