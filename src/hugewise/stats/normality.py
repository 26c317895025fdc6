"""Is a sample normal, and does it matter: Q-Q data, Anderson-Darling, Shapiro-Wilk, and what skewness does to a mean.

Large samples reject normality for departures that no mean would feel; small ones accept what would. So the tests come
with the size of the departure (the correlation of the Q-Q plot), and with what it does to the interval of the mean: the
chance that each of its two ends misses, by the Edgeworth expansion of the t statistic (Hall 1987, Ann. Probab.
15:920-931; for skewness g, P(T <= x) = F(x) + g (2x^2 + 1) f(x) / (6 sqrt n)).
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from hugewise.stats.numbers import Numbers

__all__ = ["QQ", "Normality", "correlation", "missing_chances", "normality", "qq"]

_SHAPIRO_MOST = 5000  # Royston's p value is fitted up to here


class QQ(msgspec.Struct, frozen=True):
    """Points of a normal Q-Q plot: standard normal quantiles against values; the ends are all there."""

    theoretical: Numbers
    observed: Numbers
    correlation: float


class Normality(msgspec.Struct, frozen=True):
    """Tests of normality, mean and variance estimated.

    anderson, anderson_p   A*^2 (corrected for n) and its p value (D'Agostino and Stephens 1986, Goodness-of-Fit
                           Techniques, table 4.9), over all n values; p is never below 1e-10
    shapiro, shapiro_p     W and its p value (Royston 1995, AS R94), over `shapiro_n` evenly spaced order statistics
    correlation            of the Q-Q plot, over all n values (1: a straight line)
    """

    n: int
    anderson: float
    anderson_p: float
    shapiro: float
    shapiro_p: float
    shapiro_n: int
    correlation: float


def qq(ordered: Numbers, points: int = 400) -> QQ:
    """The Q-Q plot of sorted values, shape (n,), n >= 3: at most about `points` of them, denser at the ends.

    Plotting positions (i - 3/8) / (n + 1/4) (Blom 1958).
    """
    from scipy.special import ndtri  # noqa: PLC0415  (slow to load)

    n = len(ordered)
    if n <= points:
        chosen = np.arange(n)
    else:
        reach = float(ndtri((n - 0.375) / (n + 0.25)))
        from scipy.special import ndtr  # noqa: PLC0415

        at = np.rint(ndtr(np.linspace(-reach, reach, points - 40)) * (n + 0.25) - 0.625).astype(np.int64)
        chosen = np.unique(np.clip(np.concatenate([np.arange(20), at, np.arange(n - 20, n)]), 0, n - 1))
    theoretical = ndtri((chosen + 0.625) / (n + 0.25))
    return QQ(theoretical, ordered[chosen], correlation(ordered))


def correlation(ordered: Numbers) -> float:
    """Of the normal Q-Q plot of sorted values (Filliben 1975, Technometrics 17:111); NaN where they are constant."""
    from scipy.special import ndtri  # noqa: PLC0415  (slow to load)

    n, step = len(ordered), 1 << 20
    mirrored = ordered[::-1]
    cross = squares = 0.0
    for start in range(0, n // 2, step):  # normal quantiles are antisymmetric
        end = min(start + step, n // 2)
        expected = ndtri((np.arange(start, end) + 0.625) / (n + 0.25))
        cross += float(np.dot(expected, ordered[start:end] - mirrored[start:end]))
        squares += 2 * float(np.dot(expected, expected))
    mean = float(ordered.mean())
    spread = sum(float(np.sum((ordered[start : start + step] - mean) ** 2)) for start in range(0, n, step))
    return cross / math.sqrt(squares * spread) if spread > 0 and squares > 0 else math.nan


def normality(ordered: Numbers, mean: float, sd: float, straight: float) -> Normality | None:
    """The tests for sorted values, shape (n,), `straight` their `correlation`; None below 8 values, or if all equal."""
    n = len(ordered)
    if n < 8 or not sd > 0 or ordered[0] == ordered[-1]:
        return None
    from scipy.stats import shapiro  # noqa: PLC0415  (slow to load)

    statistic = _anderson(ordered, mean, sd) * (1 + 0.75 / n + 2.25 / n**2)
    few = ordered if n <= _SHAPIRO_MOST else ordered[np.linspace(0, n - 1, _SHAPIRO_MOST).round().astype(np.int64)]
    # Shifted and scaled: W does not change, and its sums keep their digits.
    told = shapiro((few - mean) / sd)
    return Normality(
        n,
        statistic,
        _anderson_p(statistic),
        float(told.statistic),
        float(told.pvalue),
        len(few),
        straight,
    )


def _anderson(ordered: Numbers, mean: float, sd: float) -> float:
    from scipy.special import log_ndtr  # noqa: PLC0415  (slow to load)

    n, step = len(ordered), 1 << 20
    total = 0.0
    for start in range(0, n, step):
        z = (ordered[start : start + step] - mean) / sd
        rank = np.arange(start + 1, start + len(z) + 1, dtype=np.float64)
        total += float(np.dot(2 * rank - 1, log_ndtr(z)) + np.dot(2 * (n - rank) + 1, log_ndtr(-z)))
    return -n - total / n


def _anderson_p(a: float) -> float:
    if a >= 0.6:
        exponent = 1.2937 - 5.709 * a + 0.0186 * a * a if a < 13 else -math.inf
        return max(1e-10, math.exp(exponent))
    if a >= 0.34:
        return math.exp(0.9177 - 4.279 * a - 1.38 * a * a)
    if a >= 0.2:
        return 1 - math.exp(-8.318 + 42.796 * a - 59.938 * a * a)
    return 1 - math.exp(-13.436 + 101.14 * a - 223.73 * a * a)


def missing_chances(skewness: float, n: float, confidence: float) -> tuple[float, float]:
    """Chances that a t interval at `confidence` lies (wholly below, wholly above) the true mean, for this skewness.

    Nominal is (1 - confidence)/2 each; a first-order expansion, meant for n * (1 - confidence) not far below 1.
    """
    from scipy.special import ndtr, ndtri  # noqa: PLC0415  (slow to load)

    nominal = (1 - confidence) / 2
    z = -float(ndtri(nominal))
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    shift = skewness * (2 * z * z + 1) * density / (6 * math.sqrt(n))
    nominal = float(ndtr(-z))
    # P(T <= -z) moves up with positive skewness: the interval then lies below the mean more often.
    return min(max(nominal + shift, 0.0), 1.0), min(max(nominal - shift, 0.0), 1.0)
