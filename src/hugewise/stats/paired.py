"""Estimates and tests on paired log-ratios: Student's t, and the exact sign test where t has no meaning.

All have a `centre` (the estimated log-ratio, None where only directions are known), `p_difference()` (two-sided p of
"the centre is 0"), `p_equivalence(bound)` (p of "the centre lies outside (-bound, bound)": the larger of two one-sided
tests) and `interval(level)` (two-sided, at confidence 1 - level; None where there is no bounded one).

scipy is loaded at the first use (it is slow to load), and only its special functions are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

__all__ = ["Constant", "Signs", "Student", "Tests", "paired", "sign_test"]

_SAME = 1e-12  # log-ratios closer than this differ by rounding only


@dataclass(frozen=True)
class Student:
    """The t test and interval of the mean of n >= 2 log-ratios (Student 1908): exact for normal ones.

    Equivalence by two one-sided t tests (Schuirmann 1987, J. Pharmacokinet. Biopharm. 15:657).
    """

    n: int
    centre: float
    standard_error: float

    def p_difference(self) -> float:
        """Two-sided t test."""
        return min(1.0, 2 * self._tail(abs(self.centre) / self.standard_error))

    def p_equivalence(self, bound: float) -> float:
        """Two one-sided t tests."""
        return self._tail((bound - abs(self.centre)) / self.standard_error)

    def interval(self, level: float) -> tuple[float, float]:
        """Mean and the t quantile times its standard error."""
        from scipy.special import stdtrit  # noqa: PLC0415  (slow to load)

        half = -float(stdtrit(self.n - 1, level / 2)) * self.standard_error
        return self.centre - half, self.centre + half

    def _tail(self, t: float) -> float:
        from scipy.special import stdtr  # noqa: PLC0415  (slow to load)

        return float(stdtr(self.n - 1, -t))


@dataclass(frozen=True)
class Constant:
    """n log-ratios that are all the same, so that a t statistic would divide by zero: sign tests, which are exact.

    The interval is that of the median from the extreme order statistics (confidence 1 - 2^(1-n)): the value itself
    where n is large enough for the confidence asked for, else unbounded.
    """

    n: int
    centre: float

    def p_difference(self) -> float:
        """Two-sided sign test: all n on one side."""
        return 1.0 if abs(self.centre) <= _SAME else min(1.0, 2.0 ** (1 - self.n))

    def p_equivalence(self, bound: float) -> float:
        """One-sided sign test against the nearer bound."""
        return math.ldexp(1.0, -self.n) if abs(self.centre) < bound else 1.0

    def interval(self, level: float) -> tuple[float, float] | None:
        """The value, or None."""
        return (self.centre, self.centre) if 2.0 ** (1 - self.n) <= level else None


@dataclass(frozen=True)
class Signs:
    """Pairs of which only the direction is known, because one side failed: the exact two-sided sign test."""

    positive: int
    negative: int
    centre: None = None

    def p_difference(self) -> float:
        """Probability of a split as uneven as this, or more, from fair coins."""
        return sign_test(self.positive, self.negative)

    def p_equivalence(self, bound: float) -> float:
        """Without magnitudes nothing is equivalent."""
        return 1.0

    def interval(self, level: float) -> tuple[float, float] | None:
        """Without magnitudes there is none."""
        return None


Tests = Student | Constant | Signs


def sign_test(positive: int, negative: int) -> float:
    """Two-sided p of the exact sign test (Arbuthnot 1710; Conover, Practical Nonparametric Statistics, 3.4)."""
    n, least = positive + negative, min(positive, negative)
    below = sum(math.comb(n, k) for k in range(least + 1))
    return min(1.0, 2 * below / (1 << n))


def paired(log_ratios: Sequence[float]) -> Student | Constant | None:
    """The tests for these log-ratios; None when there are none."""
    n = len(log_ratios)
    if n == 0:
        return None
    centre = fmean(log_ratios)
    if max(log_ratios) - min(log_ratios) <= _SAME * max(1.0, abs(centre)):
        return Constant(n, centre)
    return Student(n, centre, stdev(log_ratios) / math.sqrt(n))
