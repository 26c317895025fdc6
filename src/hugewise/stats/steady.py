"""Had the throughput settled? The last third of the seconds of the measured part against the first third.

Of each attempt the median of the last third of its seconds is divided by the median of the first third; an arm's
change is the median of that over its attempts. Medians, so that a stall of a second is no drift. The middle third is
not looked at, and seconds beyond a multiple of three fall to it.

This is a rule of thumb for the reader and no test: it has no error rate, the limit of 10% is a convention, and a swing
that ends where it began escapes it. It says where to look (the figure of the seconds); verdicts do not depend on it,
since what is compared is the measured part as it was declared, settled or not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from hugewise.model.results import Steadiness

__all__ = ["FEWEST", "LIMIT", "change_within", "settled", "steadiness"]

FEWEST = 6  # seconds, two in each third: below that a single one would decide
LIMIT = 0.10


def change_within(series: Sequence[float]) -> float | None:
    """Last third over first third of one attempt, less 1: 0.14 for a rise by 14%; infinite where it began with nothing.

    `series`: throughput in each whole second, shape (seconds,), at least 3, finite and not negative. None where both
    thirds are 0. Raises ValueError on anything else.
    """
    if len(series) < 3 or not all(0 <= each < math.inf for each in series):
        raise ValueError(f"a series has at least 3 finite values that are not negative, not {list(series)[:5]}")
    third = len(series) // 3
    first, last = median(series[:third]), median(series[-third:])
    if first == 0:
        return None if last == 0 else math.inf
    return last / first - 1


def steadiness(arm: str, several: Sequence[Sequence[float]]) -> Steadiness:
    """How far the throughput of `arm` moved within the measured part of its attempts, a series of seconds each."""
    long = [series for series in several if len(series) >= FEWEST]
    if not long:
        most = max(map(len, several), default=0)
        return Steadiness(arm=arm, n=0, change=None, reason=f"{most} whole seconds at most: {FEWEST} are needed")
    changes = [change for series in long if (change := change_within(series)) is not None]
    if not changes:
        return Steadiness(arm=arm, n=len(long), change=None, reason="no work was done in its first and last third")
    middle = median(changes)
    if math.isinf(middle):
        return Steadiness(
            arm=arm, n=len(changes), change=None, settled=False, reason="no work was done in its first third"
        )
    return Steadiness(arm=arm, n=len(changes), change=middle, settled=settled(middle))


def settled(change: float) -> bool:
    """Whether a change within the measured part is one that the reader need not know of: at most 10%."""
    return round(abs(change), 9) <= LIMIT
