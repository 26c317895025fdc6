"""Welch's comparison of two independent samples, on the scale of ratios.

The estimand is the ratio of arithmetic means. Its interval is that of the difference of logarithms of the means, with
standard errors by the delta method and Welch's degrees of freedom (Welch 1947, Biometrika 34:28; Satterthwaite 1946).
It holds at one fixed n that was chosen before looking, for independent values within and between the samples: nothing
in it defends against drift, against correlation, or against looking repeatedly.
"""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["Ratio", "SampleMean", "welch"]


class SampleMean(NamedTuple):
    """Mean, standard deviation, and how many independent values the mean is worth (> 1)."""

    mean: float
    sd: float
    n: float


class Ratio(NamedTuple):
    """first/second: estimate, interval at `confidence`, two-sided p of "the ratio is 1", degrees of freedom."""

    ratio: float
    low: float
    high: float
    p: float
    freedom: float
    confidence: float


def welch(first: SampleMean, second: SampleMean, confidence: float) -> Ratio | None:
    """The ratio of means; None where a mean is not positive, or a sample too small or without spread on both sides."""
    if min(first.mean, second.mean) <= 0 or min(first.n, second.n) <= 1:
        return None
    parts = [(one.sd / one.mean) ** 2 / one.n for one in (first, second)]
    variance = sum(parts)
    if not variance > 0:
        return None
    from scipy.special import stdtr, stdtrit  # noqa: PLC0415  (slow to load)

    freedom = variance**2 / sum(part**2 / (one.n - 1) for part, one in zip(parts, (first, second), strict=True))
    error = math.sqrt(variance)
    centre = math.log(first.mean / second.mean)
    half = -float(stdtrit(freedom, (1 - confidence) / 2)) * error
    p = min(1.0, 2 * float(stdtr(freedom, -abs(centre) / error)))
    return Ratio(math.exp(centre), math.exp(centre - half), math.exp(centre + half), p, freedom, confidence)
