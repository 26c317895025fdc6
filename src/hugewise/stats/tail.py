"""End points in the tail, on pairs: the rate of slow runs, and a quantile such as p99.

A workload that reports a quantile of its own (p99 of the latencies of one attempt) needs neither of these: that
quantile is one number per attempt, hence a metric like any other, whose typical ratio the tests compare.

Sign. Both end points make differences of D_t = 1{arm beyond c_t} - 1{baseline beyond c_t}, where the threshold c_t is
made of both sides' values in *earlier* pairs alone, sides not told apart. Swapping the labels of a pair flips D_t and
changes nothing else: D_t is +1 or -1 by the coin when the pair is discordant, and 0 (no evidence) when it is not. The
sequential sign-flip test on these is exact, whatever the noise and however often one looks. (The sign test for
correlated proportions: McNemar 1947, Psychometrika 12:153; here sequential.) `SlowRuns`
and `BeyondQuantile` give D pair by pair.

Estimates and intervals, see the two functions; they hold for all numbers of pairs together.

A failed attempt counts as slow: give it as the worst value (inf where lower is better, 0 where higher is).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Literal, NamedTuple

from hugewise.stats.signflip import verdict

__all__ = ["FACTOR", "SLOW_RATE", "Better", "BeyondQuantile", "SlowRuns", "TailEffect", "quantile", "slow_rate"]

Better = Literal["lower", "higher"]

SLOW_RATE = "difference of the rates of slow runs (arm minus baseline)"

FACTOR = 1.25
"""A run is slow if it takes more than this many times the usual."""

_WARM_UP = 10  # pairs before the first threshold
_RATES = 32  # of the mixture in the bound of a rate
_NARROWEST = 500  # pairs at which the bound of a quantile is tightest


class TailEffect(NamedTuple):
    """Estimate, bounds (None: unbounded, or not estimable), and the sign that the exact test has shown.

    sign  +1: the arm is worse in the tail (more slow runs); -1: better; 0: not shown
    """

    estimate: float | None
    low: float | None
    high: float | None
    sign: int


def slow_rate(
    arm_values: Sequence[float],
    baseline_values: Sequence[float],
    alpha: float,
    *,
    factor: float = FACTOR,
    better: Better = "lower",
    budget: int | None = None,
) -> TailEffect:
    """Share of runs slower than `factor` times the usual: arm minus baseline, between -1 and 1.

    Values in the metric's unit, one of each side per pair, in the order of the pairs. "The usual" is the median of all
    runs of earlier pairs, both sides together; the first 10 pairs only make that median and are not judged. Where
    higher is better, slow is below median/factor. `budget` is the declared number of pairs, for the exact test.

    The estimand is the coin's average of D over the judged pairs: the difference of the two sides' rates in these
    pairs, had each side run in both slots. Its bounds: D - m has conditional mean 0 and D lies in [-1, 1], so for
    predictions d_t from earlier pairs exp(x sum(D - m) - (-log(1 - 2x) - 2x)/4 sum((D - d)^2)) is a supermartingale for
    0 < x < 1/2 (Howard, Ramdas, McAuliffe and Sekhon 2021, Ann. Statist. 49:1055, theorem 4, which needs no constant
    mean); mixed over 32 values of x, each side at alpha/2. Not asymptotic.

    Limits: the test and the bounds are two procedures at `alpha` each (both hold with 2 alpha), and the test is the
    stronger one. On a host whose speed drifts, "the usual" lags behind and both sides get slow together: such pairs
    are mostly concordant and cost nothing but a different meaning of slow. A rate that is rare needs many pairs: with
    no discordant pair in n the bounds are about +-2 log(64/alpha)/n.

    Raises ValueError for lengths that differ, a NaN, a factor of 1 or less, or an alpha outside (0, 1).
    """
    differences = SlowRuns(factor, better).differences(arm_values, baseline_values)
    judged = differences[_WARM_UP:]
    sign = verdict(differences, alpha, budget)
    if not judged:
        return TailEffect(None, None, None, sign)
    estimate = math.fsum(judged) / len(judged)
    half = _rate_bound(judged, alpha) / len(judged)
    return TailEffect(estimate, max(-1.0, estimate - half), min(1.0, estimate + half), sign)


def quantile(
    arm_values: Sequence[float],
    baseline_values: Sequence[float],
    probability: float,
    alpha: float,
    *,
    better: Better = "lower",
    budget: int | None = None,
) -> TailEffect:
    """Ratio of the `probability` quantile (0.99: p99) over all runs of the arm to that of the baseline.

    Values in the metric's unit, one of each side per pair, in the order of the pairs. Estimates are the smallest value
    with at least this share of its side's runs at or below it. Bounds: a value x is ruled out as the arm's quantile
    when the number of runs at or below it (below it) is too small (large) for a share of at least (at most)
    `probability`, by a Beta mixture over such shares and Ville's inequality (Robbins 1970, Ann. Math. Stat. 41:1397;
    Howard and Ramdas 2022, Bernoulli 28:1704); ties are allowed. The ratio lies between the extreme ratios of the two
    sides' bounds, by alpha/2 for each side.

    The sign is that of another, exact test: do runs of the arm exceed the quantile of all earlier runs (both sides)
    more often (less, where higher is better) than those of the baseline? It has a start of max(10, 1/(2 (1 - p)))
    pairs, p being the probability or its complement, whichever is nearer 1.

    Limits: the bounds take each side's runs as having one quantile throughout (a host that drifts makes them too
    narrow; the test is not affected), and use no pairing, so that they are wide. They are unbounded until there are
    enough runs beyond the quantile: for p99, 580 of each side at 95%, 1,500 at 99.99%.
    The test and the bounds are two procedures at `alpha` each.

    Raises ValueError for lengths that differ, a NaN or negative value, or a probability or alpha outside (0, 1).
    """
    differences = BeyondQuantile(probability, better).differences(arm_values, baseline_values)
    if any(value < 0 for values in (arm_values, baseline_values) for value in values):
        raise ValueError("a value is negative: a ratio of quantiles is for values of 0 or more")
    sign = verdict(differences, alpha, budget)
    if not arm_values:
        return TailEffect(None, None, None, sign)
    counts = _ruled_out(len(arm_values), probability, alpha / 4)
    arm, baseline = (_bounds(values, probability, counts) for values in (arm_values, baseline_values))
    return TailEffect(_ratio(arm[0], baseline[0]), _ratio(arm[1], baseline[2]), _ratio(arm[2], baseline[1]), sign)


class _Threshold:
    """Compares each pair with a threshold from the values of earlier pairs, which it keeps sorted."""

    def __init__(self, better: Better, start: int) -> None:
        self._better = better
        self._worst = math.inf if better == "lower" else 0.0  # a failure, which is bad whatever the threshold
        self.start = start
        """Pairs before the first threshold; their differences are 0."""
        self._pairs = 0
        self._earlier: list[float] = []

    def add(self, arm: float, baseline: float) -> float:
        """The difference D of a new pair: +1, 0 or -1; 0 during the start. Raises ValueError on a NaN."""
        if math.isnan(arm) or math.isnan(baseline):
            raise ValueError("a value is NaN: a pair without a measurement is no pair")
        difference = 0.0
        if self._pairs >= self.start:
            limit = self._limit(self._earlier)
            difference = float(self._bad(arm, limit) - self._bad(baseline, limit))
        self._pairs += 1
        insort(self._earlier, arm)
        insort(self._earlier, baseline)
        return difference

    def differences(self, arm_values: Sequence[float], baseline_values: Sequence[float]) -> list[float]:
        """Per pair +1 where only the arm was beyond, -1 where only the baseline was, else 0.

        Raises ValueError for lengths that differ, or a NaN.
        """
        if len(arm_values) != len(baseline_values):
            raise ValueError(f"{len(arm_values)} values of the arm, but {len(baseline_values)} of the baseline")
        return [self.add(arm, baseline) for arm, baseline in zip(arm_values, baseline_values, strict=True)]

    def _limit(self, earlier: Sequence[float]) -> float:
        raise NotImplementedError

    def _bad(self, value: float, limit: float) -> int:
        return int(value == self._worst or (value > limit if self._better == "lower" else value < limit))


class SlowRuns(_Threshold):
    """The differences of `slow_rate`, pair by pair. Raises ValueError for a factor of 1 or less."""

    def __init__(self, factor: float = FACTOR, better: Better = "lower") -> None:
        if not factor > 1:
            raise ValueError(f"a slow run is more than 1 times the usual: factor cannot be {factor}")
        super().__init__(better, _WARM_UP)
        self._factor = factor if better == "lower" else 1 / factor

    def _limit(self, earlier: Sequence[float]) -> float:
        return self._factor * (earlier[(len(earlier) - 1) // 2] + earlier[len(earlier) // 2]) / 2


class BeyondQuantile(_Threshold):
    """The differences of `quantile`, pair by pair. Raises ValueError for a probability outside (0, 1)."""

    def __init__(self, probability: float, better: Better = "lower") -> None:
        if not 0 < probability < 1:
            raise ValueError(f"a quantile's probability must be between 0 and 1, not {probability}")
        super().__init__(better, max(_WARM_UP, math.ceil(0.5 / min(probability, 1 - probability))))
        self._probability = probability

    def _limit(self, earlier: Sequence[float]) -> float:
        return earlier[_rank(len(earlier), self._probability) - 1]


def _rate_bound(differences: Sequence[float], alpha: float) -> float:
    """How far sum(D) can be from the sum of its conditional means: the root of the mixture at 2/alpha, by bisection."""
    variance, total = 0.0, 0.0
    for count, difference in enumerate(differences):
        variance += (difference - (total / count if count else 0.0)) ** 2
        total += difference
    rates = [0.49 * math.exp(math.log(0.005) * j / (_RATES - 1)) for j in range(_RATES)]
    costs = [(-math.log1p(-2 * x) - 2 * x) / 4 * variance for x in rates]
    target = math.log(2 * _RATES / alpha)
    high = min((target + cost) / x for x, cost in zip(rates, costs, strict=True))
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        terms = [x * middle - cost for x, cost in zip(rates, costs, strict=True)]
        most = max(terms)
        if most + math.log(math.fsum(math.exp(term - most) for term in terms)) < target:
            low = middle
        else:
            high = middle
    return high


def _ruled_out(n: int, probability: float, alpha: float) -> tuple[int, int]:
    """The largest count at or below a value that is too small for it to be the quantile, and the smallest too large.

    -1 and n + 1 where there is none. Both counts go with an error of `alpha`, over all n.
    """
    from scipy.special import betainc, betaincc, betaln  # noqa: PLC0415  (slow to load)

    log = -2 * math.log(alpha)
    weight = _NARROWEST / (log + math.log1p(log))
    a, b = probability * weight, (1 - probability) * weight

    def evidence(count: int, *, below: bool) -> float:
        """Log of the Beta mixture over the shares on one side of `probability`, against `probability` itself."""
        side = betainc if below else betaincc
        posterior, prior = float(side(a + count, b + n - count, probability)), float(side(a, b, probability))
        if posterior == 0:
            return -math.inf
        mixture: float = float(betaln(a + count, b + n - count)) - float(betaln(a, b)) + math.log(posterior / prior)
        return mixture - count * math.log(probability) - (n - count) * math.log1p(-probability)

    # Evidence falls with the count on the small side, and rises on the large side.
    enough = -math.log(alpha)
    small, large = range(math.ceil(probability * n)), range(math.floor(probability * n) + 1, n + 1)
    least = bisect_left(small, 1, key=lambda count: evidence(count, below=True) < enough)
    return least - 1, large.start + bisect_left(large, 1, key=lambda count: evidence(count, below=False) >= enough)


def _bounds(
    values: Sequence[float], probability: float, counts: tuple[int, int]
) -> tuple[float, float | None, float | None]:
    """A side's quantile with its bounds."""
    ordered, (small, large) = sorted(values), counts
    low = ordered[small] if small >= 0 else None
    high = ordered[large - 1] if large <= len(ordered) else None
    return ordered[_rank(len(ordered), probability) - 1], low, high


def _rank(n: int, probability: float) -> int:
    """Rank (from 1) of the smallest value with at least this share at or below it."""
    return min(n, max(1, math.ceil(probability * n - 1e-9)))


def _ratio(over: float | None, under: float | None) -> float | None:
    if over is None or under is None or under == 0 or not (math.isfinite(over) and math.isfinite(under)):
        return None
    return over / under
