"""One set of pairs under the eyes of `sequential`: its tests as pairs come, its estimate, and its interval."""

from __future__ import annotations

import math

from hugewise.stats import inversion
from hugewise.stats.covariate import Controlled
from hugewise.stats.signflip import SignFlip

__all__ = ["Watched", "closely"]


class Watched:
    """The tests of no difference and of both ends of the margin (log-ratio), each at `alpha` over `planned` pairs."""

    def __init__(self, alpha: float, planned: int, margin: float) -> None:
        self._alpha, self._planned, self._margin = alpha, planned, margin
        self.pairs = Controlled()
        self.test = SignFlip(alpha, planned)
        self._below_upper = SignFlip(alpha, planned)
        self._above_lower = SignFlip(alpha, planned)

    def add(self, difference: float, covariate: float | None) -> None:
        """Take a pair's difference, and that of its covariate."""
        value, weight = self.pairs.add(difference, covariate)
        self.test.add(value)
        self._below_upper.add(value - self._margin * weight)
        self._above_lower.add(value + self._margin * weight)

    @property
    def below(self) -> bool:
        """Whether "arm/baseline is 1 + margin or more" is rejected."""
        return self._below_upper.sign < 0

    @property
    def above(self) -> bool:
        """Whether "1/(1 + margin) or less" is rejected."""
        return self._above_lower.sign > 0

    @property
    def beyond(self) -> int:
        """1: "at most 1 + margin" is rejected; -1: "at least 1/(1 + margin)" is; 0: neither."""
        return 1 if self._below_upper.sign > 0 else -1 if self._above_lower.sign < 0 else 0

    def sign(self, theta: float) -> int:
        """Which way the test of this log-ratio has crossed, 0 where it has not."""
        return self.pairs.sign(theta, self._alpha, self._planned)

    def fits(self, low: float, high: float) -> bool:
        """Whether the estimate lies between these, and its own test has not rejected it."""
        centre = self.pairs.centre()
        if math.isinf(centre):
            return low <= centre <= high
        return low < centre < high and self.sign(centre) == 0

    def interval(self) -> tuple[float, float]:
        """The interval (`closely`)."""
        return closely(self.pairs, self._alpha, self._planned, self._margin)


def closely(pairs: Controlled, alpha: float, planned: int, margin: float) -> tuple[float, float]:
    """The interval of these pairs' log-ratio, by inversion of the test at `alpha` over `planned` pairs; an end that
    rounding put on "no change" or the margin (a log-ratio), or beyond it, is looked at closely.
    """
    tests = inversion.Inversion(pairs.values, alpha, planned, pairs.weights)
    low, high = (
        tests.end(side, 1e-7, end) if any(abs(end - known) <= 2e-4 for known in (0.0, margin, -margin)) else end
        for side, end in zip((1, -1), tests.ends(), strict=True)
    )
    return low, high
