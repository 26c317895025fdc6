"""Estimates, tests and spread of paired log-ratios; Welch's comparison of two samples; dependence in time.

All estimates have a `centre` (the estimated log-ratio, None where only directions are known), `p_difference()`
(two-sided p of "the centre is 0"), `p_equivalence(bound)` (p of "the centre lies outside (-bound, bound)": the larger
of two one-sided tests) and `interval(level)` (two-sided, at confidence 1 - level; None where there is no bounded one).
They are Student's t, and the exact sign test where t has no meaning. scipy is loaded at the first use (it is slow to
load), and only its special functions are.

Welch. The estimand is the ratio of arithmetic means. Its interval is that of the difference of logarithms of the means,
with standard errors by the delta method and Welch's degrees of freedom (Welch 1947, Biometrika 34:28; Satterthwaite
1946). It holds at one fixed n that was chosen before looking, for independent values within and between the samples:
nothing in it defends against drift, against correlation, or against looking repeatedly.

Dependence. Autocorrelation by Wiener-Khinchin, piece by piece, so that memory does not grow with the number of lags.
The statistical inefficiency (integrated autocorrelation time) is 1 + 2 * sum of the autocorrelations, summed while
Geyer's initial monotone positive sequence holds (Geyer 1992, Statist. Sci. 7:473-483); n divided by it is the effective
n of the mean. It needs the order in time, and a series without drift: under drift it grows with n, and so it should.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, correlation, fmean, stdev
from typing import NamedTuple

import msgspec
import numpy as np

from hugewise.stats.method import Numbers

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
        """Return the value, or None."""
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
        # without magnitudes nothing is equivalent
        return 1.0

    def interval(self, level: float) -> tuple[float, float] | None:
        # without magnitudes there is no interval
        return None


Tests = Student | Constant | Signs


def sign_test(positive: int, negative: int) -> float:
    """Two-sided p of the exact sign test (Arbuthnot 1710; Conover, Practical Nonparametric Statistics, 3.4)."""
    return min(1.0, 2 * chance_of_heads(max(positive, negative), positive + negative))


def chance_of_heads(least: int, coins: int) -> float:
    """Return the chance of at least so many heads of fair coins."""
    return sum(math.comb(coins, k) for k in range(least, coins + 1)) / (1 << coins)


def paired(log_ratios: Sequence[float]) -> Student | Constant | None:
    """Return the tests for these log-ratios; None when there are none."""
    n = len(log_ratios)
    if n == 0:
        return None
    centre = fmean(log_ratios)
    if max(log_ratios) - min(log_ratios) <= _SAME * max(1.0, abs(centre)):
        return Constant(n, centre)
    return Student(n, centre, stdev(log_ratios) / math.sqrt(n))


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


_Z = 1.0
_WIDE = 0.4  # by what part of 1/n the width is too wide on average, in simulations
_KEPT = 0.68  # of the degrees of freedom: see `freedom`


def deviation_interval(differences: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Interval of the standard deviation that allows for tails other than normal ones. None below 6 values.

    Bonett 2006, Comput. Stat. Data Anal. 50:775: ln s^2 + ln c -+ z c sqrt((k - (n-3)/n)/(n-1)), c = n/(n - z), with
    k the kurtosis about a mean trimmed by 1/(2 sqrt(n-4)). Where outliers are rarer than one in n, no interval from n
    values knows of them.
    """
    n = len(differences)
    if n < 6:
        return None
    s = stdev(differences)
    if s == 0:
        return 0.0, 0.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    c = n / (n - z)
    half = z * c * math.sqrt(_log_variance(differences))
    return s * math.sqrt(c) * math.exp(-half / 2), s * math.sqrt(c) * math.exp(half / 2)


def scale(differences: Sequence[float]) -> float | None:
    """Return the standard deviation that normal differences would have for which the normal-scores test is as sharp.

    sqrt(n) times half the width of the interval that inverts the signed normal-scores test at 1 standard error (Lehmann
    1963, Ann. Math. Statist. 34:1507; Sen 1966, ibid. 37:1759: the width estimates what the test can resolve). Equal to
    the standard deviation for normal differences, smaller with outliers, which rank scores hardly see. A difference may
    be infinite (a failure). The width is by 0.4/n too wide on average over samples of 7 to 30 normal values, which is
    taken out. None below 6 values, or where most of them are infinite.
    """
    n = len(differences)
    if n < 6:
        return None
    values = np.asarray(differences, dtype=np.float64)
    finite = values[np.isfinite(values)]
    if len(finite) <= n / 2:
        return None
    upper, lower = (_crossing(values, finite, level) for level in (-_Z, _Z))
    return math.sqrt(n) * (upper - lower) / (2 * _Z) / (1 + _WIDE / n)


def freedom(pairs: int) -> float:
    """Degrees of freedom of `scale` from so many normal differences: scale^2 is about sigma^2 chi^2/freedom.

    The standard deviation has pairs - 1. A width read off ranks is noisier: with 0.68 of them the quantiles of log
    scale from 5% to 95% were within 0.03 of those simulated, from 12 to 200 pairs. With outliers it is noisier still.
    """
    return _KEPT * (pairs - 1)


def deviation_freedom(values: Sequence[float]) -> float:
    """Degrees of freedom of the standard deviation of values with other tails than normal ones, from their kurtosis.

    2/var(ln s^2) by Bonett 2006, at most those of normal values. Of six values or more, not all alike.
    """
    most = len(values) - 1
    variance = _log_variance(values)
    return min(most, 2 / variance) if variance > 0 else most


def correlated(
    first: Sequence[float], second: Sequence[float], confidence: float = 0.95
) -> tuple[float, float, float] | None:
    """Pearson's correlation with Fisher's interval (Fisher 1921, Metron 1:3): estimate, low, high.

    None below 6 pairs, or without spread.
    """
    n = len(first)
    if n < 6 or len(set(first)) < 2 or len(set(second)) < 2:
        return None
    r = correlation(first, second)
    half = NormalDist().inv_cdf((1 + confidence) / 2) / math.sqrt(n - 3)
    near = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, r)))
    return r, math.tanh(near - half), math.tanh(near + half)


def _log_variance(values: Sequence[float]) -> float:
    n, mean = len(values), fmean(values)
    about = _trimmed(values, 1 / (2 * math.sqrt(n - 4)))
    squares = math.fsum((x - mean) ** 2 for x in values)
    kurtosis = n * math.fsum((x - about) ** 4 for x in values) / squares**2
    return max(0.0, kurtosis - (n - 3) / n) / (n - 1)


def _trimmed(values: Sequence[float], share: float) -> float:
    cut = math.floor(share * len(values))
    return fmean(sorted(values)[cut : len(values) - cut])


def _crossing(values: Numbers, finite: Numbers, level: float) -> float:
    from scipy.special import ndtri  # noqa: PLC0415  (slow to load)

    n = len(values)
    scores = ndtri((1 + (np.arange(1, n + 1) - 0.5) / n) / 2)
    size = math.sqrt(float(np.sum(scores**2)))
    low, high = float(finite.min()), float(finite.max())
    for _ in range(50):
        middle = (low + high) / 2
        rest = values - middle
        order = np.argsort(np.abs(rest), kind="stable")
        statistic = float(np.sum(scores * np.sign(rest[order]))) / size
        low, high = (middle, high) if statistic > level else (low, middle)
    return (low + high) / 2


_FIRST_LAGS = 1 << 11
_PIECES = 1 << 16


class Dependence(msgspec.Struct, frozen=True):
    """Dependence within a series in its order in time.

    lags          autocorrelation at lag 1, 2, ... (at most 1,000 of them), without unit
    limit         two-sided 95% limit of each under independence, 1.96/sqrt(n)
    inefficiency  at least 1: the variance of the mean, over that of as many independent values
    effective     n / inefficiency
    complete      False where correlation still held at the longest lag that was looked at: n is then too large still
    """

    lags: Numbers
    limit: float
    inefficiency: float
    effective: float
    complete: bool


def autocorrelation(values: Numbers, lags: int) -> Numbers:
    """Autocorrelation at lags 0 to `lags` (fewer where n is small), biased estimate; shape (lags+1,).

    A constant series has none: NaN at all lags but 0.
    """
    n = len(values)
    lags = min(lags, n - 1)
    centred = values - values.mean()
    variance = float(np.dot(centred, centred))
    if not variance > 0 or float(np.ptp(values)) == 0:
        return np.concatenate([[1.0], np.full(lags, np.nan)])
    if n * lags <= 1 << 22:
        products = [np.dot(centred[: n - lag], centred[lag:]) for lag in range(lags + 1)]
        return np.array(products, dtype=np.float64) / variance
    from scipy import fft  # noqa: PLC0415  (slow to load)

    piece = max(_PIECES, 2 * lags)
    size = fft.next_fast_len(piece + lags, real=True)
    total = np.zeros(lags + 1)
    for start in range(0, n, piece):
        left = fft.rfft(centred[start : start + piece], size)
        right = fft.rfft(centred[start : start + piece + lags], size)
        total += fft.irfft(np.conj(left) * right, size)[: lags + 1]
    return total / variance


def dependence(values: Numbers) -> Dependence | None:
    """Return the dependence in finite `values`, shape (n,); None below 10 of them, or where all are the same.

    The longest lag looked at is a tenth of n, at least 2,048 or all there are.
    """
    n = len(values)
    if n < 10:
        return None
    lags = min(n - 2, _FIRST_LAGS)
    while True:
        found = autocorrelation(values, lags)
        if np.isnan(found[-1]):
            return None
        inefficiency, ended = _summed(found)
        if ended or lags >= min(n - 2, max(_FIRST_LAGS, n // 10)):
            break
        lags = min(n - 2, max(_FIRST_LAGS, n // 10), lags * 8)
    inefficiency = max(1.0, inefficiency)
    return Dependence(found[1:1001], 1.96 / np.sqrt(n), inefficiency, n / inefficiency, ended)


def _summed(found: Numbers) -> tuple[float, bool]:
    even = len(found) // 2 * 2
    pairs = found[:even].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0)
    ended = len(negative) > 0
    kept = pairs[: negative[0]] if ended else pairs
    return float(2 * np.minimum.accumulate(kept).sum() - 1) if len(kept) else 0.0, ended
