"""Did the host change during the campaign, and had the throughput settled? Neither ever changes a verdict.

Change points are those of log(arm) + log(baseline), which is blind to the labels, so that a warning cannot be for or
against an arm. It says that "typical" mixes two hosts, and where to look. On the sums x_1..x_n in the order of the
pairs:

1. A change of level against correlated noise: the noise is taken as first-order autoregressive. Its coefficient r is
   the variance of x_(t+2) - x_t over that of x_(t+1) - x_t, less 1 (differences, so that a few jumps hardly count;
   Chakar, Lebarbier, Levy-Leduc and Robin 2017, Bernoulli 23:1408, who take medians), each after clipping at 3 of its
   robust standard deviations. It is raised by two of its standard errors sqrt(2 (1 + r)/n), because too high an r costs
   power and too low a one gives false alarms, and kept within [0, 0.98]. The series is whitened, y_t = x_t - r x_(t-1).
2. y is centred at its median, scaled by 1.4826 times the median absolute successive difference over sqrt 2, and clipped
   at 3 (a single stall is not a change).
3. Optimal partitioning (Jackson et al. 2005, IEEE Signal Process. Lett. 12:105; PELT, Killick, Fearnhead and Eckley
   2012, JASA 107:1590, finds the same) with squared error, segments of at least 10 pairs, and the penalty z^2 where z
   is the normal quantile at 1 - error/(2n): the gain of one wrong change of level is chi-squared with one degree of
   freedom, so that by Bonferroni's inequality over its n places the chance of any warning on a steady host is about
   `error`.

Slow drift below white noise is no autoregression of this kind and is reported, as a change every now and then: the
host does change. The false-alarm rate on white and on autoregressive noise is measured in the tests.

Whether throughput had settled: of each attempt the median of the last third of its seconds is divided by the median of
the first third; an arm's change is the median of that over its attempts. Medians, so that a stall of a second is no
drift. Seconds beyond a multiple of three fall to the middle third. This is a rule of thumb for the reader and no test:
it has no error rate, the limit of 10% is a convention, and a swing that ends where it began escapes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist, median
from typing import NamedTuple

import numpy as np

from hugewise.model.reason import FewSeconds, Known
from hugewise.model.results import Steadiness
from hugewise.stats.method import Numbers

FEWEST = 40  # pairs below which a change is not looked for
_SEGMENT = 10
_CLIP = 3.0
_MAD = 1.4826  # standard deviations per median absolute deviation, for normal noise


class HostChange(NamedTuple):
    """`pair` is the number (from 1) of the first pair after the change, `ratio` how much slower one run got."""

    pair: int
    ratio: float
    sentence: str


def host_changes(log_sums: Sequence[float | None], *, error: float = 0.01) -> list[HostChange]:
    """Return where the level of both sides together changed, in the order of the pairs; empty for a steady host.

    `log_sums` has log(arm) + log(baseline) of each pair (None, or infinite, where a side failed: left out, and counted
    in the pair numbers). `error`: chance of any warning on a steady host. Empty below 40 pairs. Raises ValueError on a
    NaN or an error rate outside (0, 1). Under 1 s for 24,000 pairs, four times as long for twice as many.
    """
    if not 0 < error < 1:
        raise ValueError(f"the error rate must be between 0 and 1, not {error}")
    if any(value is not None and math.isnan(value) for value in log_sums):
        raise ValueError("a sum is NaN: a pair without a measurement is no pair")
    numbers = [number for number, x in enumerate(log_sums, 1) if x is not None and math.isfinite(x)]
    values = np.array([x for x in log_sums if x is not None and math.isfinite(x)])
    if len(values) < FEWEST:
        return []
    white = _standardised(_whitened(values))
    if white is None:
        return []
    penalty = NormalDist().inv_cdf(1 - error / (2 * len(white))) ** 2
    starts = [end + 1 for end in _changes(white, penalty)]  # y_t is about x_(t+1)
    edges = [0, *starts, len(values)]
    levels = [median(values[a:b].tolist()) for a, b in pairwise(edges)]
    return [
        _change(numbers[start], math.exp((after - before) / 2))
        for start, before, after in zip(starts, levels[:-1], levels[1:], strict=True)
    ]


def _changes(values: Numbers, penalty: float) -> list[int]:
    """Return where segments of one mean begin, except the first, so that squared error and `penalty` a change are
    least.

    best[t], of the first t values, is the least over the start s of their last segment of best[s] + penalty + (its sum
    of squares) - (its sum)^2 / (t - s). The sums of squares add up to the same whatever the segments are: left out.
    """
    count = len(values)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    best, last = np.full(count + 1, np.inf), np.zeros(count + 1, dtype=np.int64)
    best[0] = -penalty
    sizes = np.arange(count, 0, -1.0)  # of the segments from each start to the end
    for end in range(_SEGMENT, count + 1):
        starts = end - _SEGMENT + 1
        between = sums[end] - sums[:starts]
        costs = best[:starts] - between * between / sizes[count - end : count - end + starts]
        last[end] = start = int(np.argmin(costs))
        best[end] = costs[start] + penalty
    found, end = [], int(last[count])
    while end > 0:
        found.append(end)
        end = int(last[end])
    return found[::-1]


def _change(pair: int, ratio: float) -> HostChange:
    percent = 100 * abs(ratio - 1)
    direction = "higher" if ratio > 1 else "lower"
    return HostChange(
        pair,
        ratio,
        f"from pair {pair} on, both sides together are {percent:.2g}% {direction} than before: the host changed; "
        "verdicts are not affected, but typical values mix what was before and after",
    )


def _whitened(values: Numbers) -> Numbers:
    near, far = _clipped_variance(values[1:] - values[:-1]), _clipped_variance(values[2:] - values[:-2])
    coefficient = max(0.0, far / near - 1) if near > 0 else 0.0
    coefficient = min(0.98, coefficient + 2 * math.sqrt(2 * (1 + coefficient) / len(values)))
    return values[1:] - coefficient * values[:-1]


def _standardised(values: Numbers) -> Numbers | None:
    scale = _MAD * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)
    if scale <= 0:
        return None
    return np.clip((values - np.median(values)) / scale, -_CLIP, _CLIP)


def _clipped_variance(values: Numbers) -> float:
    limit = _CLIP * _MAD * float(np.median(np.abs(values)))
    return float(np.mean(np.clip(values, -limit, limit) ** 2))


FEWEST_SECONDS = 6  # seconds, two in each third: below that a single one would decide
LIMIT = 0.10


def change_within(series: Sequence[float]) -> float | None:
    """Last third over first third of one attempt, less 1: 0.14 for a rise by 14%; infinite where it began with nothing.

    `series`: throughput in each whole second, shape (seconds,), at least 3, finite and not negative. None where both
    thirds are 0. Raises ValueError on anything else.
    """
    if len(series) < 3 or not all(0 <= value < math.inf for value in series):
        raise ValueError(f"a series has at least 3 finite values that are not negative, not {list(series)[:5]}")
    third = len(series) // 3
    first, last = median(series[:third]), median(series[-third:])
    if first == 0:
        return None if last == 0 else math.inf
    return last / first - 1


def steadiness(arm: str, several: Sequence[Sequence[float]]) -> Steadiness:
    """Return how far the throughput of `arm` moved within the measured part of its attempts, each a series of
    seconds.
    """
    long = [series for series in several if len(series) >= FEWEST_SECONDS]
    if not long:
        most = max(map(len, several), default=0)
        return Steadiness(arm=arm, n=0, change=None, reason=FewSeconds(most, FEWEST_SECONDS))
    changes = [change for series in long if (change := change_within(series)) is not None]
    if not changes:
        return Steadiness(arm=arm, n=len(long), change=None, reason=Known("no work"))
    middle = median(changes)
    if math.isinf(middle):
        return Steadiness(arm=arm, n=len(changes), change=None, settled=False, reason=Known("no work at first"))
    return Steadiness(arm=arm, n=len(changes), change=middle, settled=settled(middle))


def settled(change: float) -> bool:
    """Return whether a change within the measured part is small enough to ignore: at most 10%."""
    return round(abs(change), 9) <= LIMIT
