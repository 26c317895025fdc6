"""Spread as a finding: does the arm's noise differ from the baseline's, wherever the two are?

Two sequential sign-flip tests (`signflip`) are made on the same pairs, and both have to cross, to the same side. With x
and y the logarithms of the values of arm and baseline in a pair, and all medians over the latest 25 pairs before it:

    exact    E = d(x) - d(y),           d(v) the distance from v to the nearer of two medians, that of the larger values
                                        of each pair and that of the smaller ones
    aligned  E = |x - m_A| - |y - m_B|, m_A, m_B the medians of arm and baseline

The first is exact under Fisher's sharp null: its medians know nothing of labels, so that a swap flips E in its own pair
and changes no |E|. As both have to cross, the chance of a finding under the sharp null is at most alpha, however often
one looks (intersection-union: Berger 1982, Technometrics 24:295). The second is for arms that are merely shifted: with
skewed noise the first alone takes 9 of 10 of these for wider. It is approximate, and made at alpha / 2: at an alpha of
5%, 0 to 7% of shifted streams have a finding (`tools.verification.dispersion`). A shift is the same *ratio* in every
run.

The window forgets a changed level after 13 pairs. E is 0 in the first 5 pairs, and where a side failed. Logarithms and
E are rounded to a billionth, so that ties do not hang on the unit. What the two sides of a pair have in common hides
their spread.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from statistics import quantiles

from hugewise.model.results import Spread
from hugewise.stats.signflip import SignFlip

WINDOW = 25
"""Pairs that medians are made of."""
FEWEST = 5
"""Pairs before the first that is scored."""
_SHOWN = 10  # values a side below which no ratio is given


class Dispersion:
    """The tests for one comparison, at `alpha` over a declared `budget` of pairs.

    Raises ValueError on an alpha or a budget out of range.
    """

    def __init__(self, alpha: float, budget: int | None) -> None:
        self.exact = SignFlip(alpha, budget)
        """On distances that know no labels."""
        self.aligned = SignFlip(alpha / 2, budget)
        """On distances from each arm's own median; at half of alpha."""
        # Of the smaller and the larger values of the pairs, of the arm's and the baseline's.
        self._windows = _Window(), _Window(), _Window(), _Window()
        self._values: tuple[list[float], list[float]] = [], []

    def add(self, arm: float | None, baseline: float | None) -> None:
        """Take a pair's values, in the metric's unit; None for a side that failed.

        Raises ValueError on a value that has no logarithm.
        """
        x, y = _logarithm(arm), _logarithm(baseline)
        for value, side in zip((x, y), self._values, strict=True):
            if value is not None:
                side.append(value)
        if x is None or y is None:
            self.exact.add(0.0)
            self.aligned.add(0.0)
            return
        exact, aligned = _differences(x, y, self._windows)
        self.exact.add(exact)
        self.aligned.add(aligned)
        for window, value in zip(self._windows, (min(x, y), max(x, y), x, y), strict=True):
            window.add(value)

    def finding(self) -> Spread:
        """Return the finding of the pairs so far; a finding, once shown, stays."""
        crossings = self.exact.crossed_at, self.aligned.crossed_at
        crossed = None not in crossings and self.exact.sign == self.aligned.sign
        return Spread(
            shown=None if not crossed else "wider" if self.exact.sign > 0 else "narrower",
            ratio=_ratio(*self._values),
            pairs=max(pair or 0 for pair in crossings) if crossed else None,
            alpha=self.exact.alpha,
        )


def _logarithm(value: float | None) -> float | None:
    if value is None:
        return None
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"a spread of logarithms needs values above 0, not {value:g}")
    return round(math.log(value), 9)


class _Window:
    """The latest values, kept in order as they come and go: their median is asked for at every pair."""

    def __init__(self) -> None:
        self._values: deque[float] = deque()
        self._ordered: list[float] = []

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        if len(self._values) == WINDOW:
            del self._ordered[bisect_left(self._ordered, self._values.popleft())]
        self._values.append(value)
        insort(self._ordered, value)

    @property
    def median(self) -> float:
        # as `statistics.median`
        middle = len(self._ordered) // 2
        if len(self._ordered) % 2:
            return self._ordered[middle]
        return (self._ordered[middle - 1] + self._ordered[middle]) / 2


def _differences(x: float, y: float, windows: Sequence[_Window]) -> tuple[float, float]:
    if len(windows[0]) < FEWEST:
        return 0.0, 0.0
    low, high, of_arm, of_baseline = (window.median for window in windows)

    def nearer(value: float) -> float:
        return min(abs(value - low), abs(value - high))

    return round(nearer(x) - nearer(y), 9), round(abs(x - of_arm) - abs(y - of_baseline), 9)


def _ratio(arm: Sequence[float], baseline: Sequence[float]) -> float | None:
    if min(len(arm), len(baseline)) < _SHOWN:
        return None
    (low, _, high), (below, _, above) = (quantiles(side, n=4, method="inclusive") for side in (arm, baseline))
    return (high - low) / (above - below) if above > below else None
