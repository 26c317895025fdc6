"""End points beside the typical ratio, declared in the study before the first run: mean, slow, p99.

They are judged on the same pairs, each with a share of alpha of its own, and never ask for more blocks: a study that
wants them sharp declares its budget accordingly (`hugewise plan`).

mean   ratio of arithmetic means, the cost per job (`campaign.ratio_of_means`): asymptotic, from 100 pairs
slow   difference of the rates of runs slower than 1.25 times the usual (`slow_rate`): exact test
p99    ratio of the 99th percentiles over all runs (`quantile`): exact test

Estimate and interval are those of the usable pairs (`pairs`). A verdict is given only where the same end point on
`kept` gives the same one, which holds the error rate of `slow` and `p99` exactly. Each end point carries e-values of
its own (`evidence.EProcess`), made of `kept` too: `slow` and `p99` by the scores of the +-1 differences of their test,
`mean` by the differences of the metric themselves. A pair of which nothing is known is scored against "larger" in the
value for larger, and against "smaller" in the other. docs/concepts/sequential.md ("Which pairs reach the test") says
why two sets of pairs have to agree; a threshold or a scale that is made without telling the sides apart stays as it is
when the labels of a pair are swapped, so that test and e-values are exact under the sharp null.

The two in the tail make differences of D_t = 1{arm beyond c_t} - 1{baseline beyond c_t}, where the threshold c_t is
made of both sides' values in *earlier* pairs alone, sides not told apart. Swapping the labels of a pair flips D_t and
changes nothing else: D_t is +1 or -1 by the coin when the pair is discordant, and 0 (no evidence) when it is not. The
sequential sign-flip test on these is exact, whatever the noise and however often one looks. (The sign test for
correlated proportions: McNemar 1947, Psychometrika 12:153; here sequential.) A failed attempt counts as slow: give it
as the worst value (inf where lower is better, 0 where higher is).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from hugewise.model.reason import (
    Known,
    MeanNeeds,
    MeanWithin,
    NotKeptIn,
    OfUsable,
    Reason,
    SlowShare,
    WorstHundredth,
)
from hugewise.model.results import Comparison, Verdict
from hugewise.model.trial import Block
from hugewise.stats import campaign
from hugewise.stats.evidence import EProcess, SumEProcess, e_values, finite
from hugewise.stats.method import Contrast, Decision
from hugewise.stats.pairs import Inference, Pair, Pairs, against
from hugewise.stats.signflip import verdict

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
    """Return share of runs slower than `factor` times the usual: arm minus baseline, between -1 and 1.

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
        """Return the difference D of a new pair: +1, 0 or -1; 0 during the start. Raises ValueError on a NaN."""
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
    ordered, (small, large) = sorted(values), counts
    low = ordered[small] if small >= 0 else None
    high = ordered[large - 1] if large <= len(ordered) else None
    return ordered[_rank(len(ordered), probability) - 1], low, high


def _rank(n: int, probability: float) -> int:
    return min(n, max(1, math.ceil(probability * n - 1e-9)))


def _ratio(over: float | None, under: float | None) -> float | None:
    if over is None or under is None or under == 0 or not (math.isfinite(over) and math.isfinite(under)):
        return None
    return over / under


class EndPoint:
    """One end point of one comparison, with its share `alpha` of the study's error rate."""

    name = "sequential"

    def __init__(self, kind: str, contrast: Contrast, *, planned: int, alpha: float, margin: float) -> None:
        self.contrast = contrast
        self.planned = planned
        self.alpha = alpha
        self.kind = kind
        self._margin = margin
        self._pairs = Pairs(contrast, spared=contrast.copies)

    def observe(self, block: Block) -> Decision:
        """Take in a closed block."""
        self._pairs.take(block)
        return self.decision()

    def decision(self) -> Decision:
        """Never asks for more blocks."""
        return Decision("stop", None, "undecided", Known("of its pairs"))

    def comparison(self) -> Comparison:
        """Return the result on the pairs so far."""
        usable = self._finding(self._pairs.usable)
        apart = self._pairs.apart
        finding = self._held(usable) if apart else usable
        everything = self._finding(self._pairs.everything) if apart else usable
        found = self._pairs.comparison(
            self.name, self.planned, finding, ratio_all=everything.ratio, confidence=1 - self.alpha
        )
        up = evidence(self.kind, self._kept(1), self.contrast).up
        down = evidence(self.kind, self._kept(-1), self.contrast).down
        return msgspec.structs.replace(
            found,
            estimand=END_POINTS[self.kind].estimand,
            end_point=self.kind,
            alpha=self.alpha,
            constant=False,
            **e_values(finding.verdict, finite(up), finite(down)),
        )

    def _kept(self, claim: int) -> list[Pair]:
        return against(self._pairs.kept, claim, higher_is_better=self.contrast.metric.better == "higher")

    def _held(self, usable: Inference) -> Inference:
        if usable.verdict == "none":
            return usable
        reason, verdict = usable.reason, usable.verdict
        larger = (verdict == "better") == (self.contrast.metric.better == "higher")
        for claim in () if verdict == "undecided" else (1, -1) if verdict == "equivalent" else (1 if larger else -1,):
            # A ratio of means has no place for a failure: lost pairs are left out there, and stay in its e-values.
            kept = self._kept(claim) if END_POINTS[self.kind].threshold else [p for p in self._pairs.kept if not p.lost]
            whole = self._finding(kept)
            if whole.verdict != verdict:
                verdict, reason = "undecided", NotKeptIn(reason, self._said(whole))
                break
        of = OfUsable(reason, len(self._pairs.usable), len(self._pairs.kept))
        return msgspec.structs.replace(usable, verdict=verdict, reason=of)

    def _said(self, whole: Inference) -> Reason | Verdict:
        if whole.verdict != "undecided":
            return whole.verdict
        return Known("not crossed") if END_POINTS[self.kind].threshold else whole.reason

    def _finding(self, pairs: Sequence[Pair]) -> Inference:
        refusal = self._pairs.refusal(self.planned)
        if refusal is not None:
            return Inference("none", refusal)
        if not pairs:
            return Inference("undecided", Known("no pairs"))
        arm, baseline = _sides(pairs, self.contrast)
        better: Better = "higher" if self.contrast.metric.better == "higher" else "lower"
        return END_POINTS[self.kind].find(arm, baseline, _Terms(self.alpha, self.planned, self._margin, better))


def differences(kind: str, pairs: Sequence[Pair], contrast: Contrast) -> list[float]:
    """Return the numbers that an end point's e-values are made of: one per pair, above 0 where the arm's metric is
    larger.

    Swapping a pair's labels flips its number and changes no other. slow, p99: +1, 0 or -1, by which side alone was
    beyond the threshold; mean: arm - baseline in the metric's unit, infinite where one side failed. Raises KeyError
    for an unknown kind.
    """
    higher = contrast.metric.better == "higher"
    threshold = END_POINTS[kind].threshold
    if threshold is None:
        return [_plain(pair, higher_is_better=higher) for pair in pairs]
    arm, baseline = _sides(pairs, contrast)
    # There +1 is "the arm is worse", which is a larger metric only where lower is better.
    beyond = threshold("higher" if higher else "lower").differences(arm, baseline)
    return [-value if higher else value for value in beyond]


def evidence(kind: str, pairs: Sequence[Pair], contrast: Contrast) -> EProcess | SumEProcess:
    """Return the e-process of an end point after these pairs, in their order; `up`: the arm's metric is larger."""
    process = EProcess() if END_POINTS[kind].threshold else SumEProcess()
    for difference in differences(kind, pairs, contrast):
        process.add(difference)
    return process


def _plain(pair: Pair, *, higher_is_better: bool) -> float:
    if pair.log_ratio is None or pair.arm is None or pair.baseline is None:
        return pair.difference(higher_is_better=higher_is_better)
    return pair.arm - pair.baseline


def _sides(pairs: Sequence[Pair], contrast: Contrast) -> tuple[list[float], list[float]]:
    """Return the values of the arm and of the baseline, a failure as the worst there is.

    A side that has no value because the other one failed is no failure: as the best there is, it is beyond no limit.
    """
    worst, best = (0.0, math.inf) if contrast.metric.better == "higher" else (math.inf, 0.0)

    def value(measured: float | None, failed: bool) -> float:
        return worst if failed else best if measured is None else measured

    arm = [value(pair.arm, pair.arm_failed) for pair in pairs]
    return arm, [value(pair.baseline, pair.baseline_failed) for pair in pairs]


class _Terms(NamedTuple):
    alpha: float
    planned: int
    margin: float
    better: Better


def _mean(arm: Sequence[float], baseline: Sequence[float], terms: _Terms) -> Inference:
    estimate = campaign.ratio_of_means(arm, baseline, terms.alpha)
    if estimate is None:
        return Inference("undecided", MeanNeeds(len(arm)))
    ratio, low, high = estimate
    edge = round(math.log1p(terms.margin), 9)  # an effect of the margin itself is not within it
    unseen = campaign.unseen(len(arm), terms.alpha)  # may take twice as long, or half
    if low > unseen and -edge < round(math.log(low - unseen), 9) and round(math.log(high + unseen), 9) < edge:
        return Inference("equivalent", MeanWithin(unseen, bounded=True), ratio, low, high)
    if low > 1 or high < 1:
        verdict: Verdict = "better" if (low > 1) == (terms.better == "higher") else "worse"
        return Inference(verdict, Known("mean excludes no change"), ratio, low, high)
    inside = low > 0 and -edge < round(math.log(low), 9) and round(math.log(high), 9) < edge
    return Inference(
        "undecided", MeanWithin(unseen, bounded=False) if inside else Known("no change in interval"), ratio, low, high
    )


def _slow(arm: Sequence[float], baseline: Sequence[float], terms: _Terms) -> Inference:
    estimate = slow_rate(arm, baseline, terms.alpha, better=terms.better, budget=terms.planned)
    share = None
    if estimate.estimate is not None and estimate.low is not None and estimate.high is not None:
        share = estimate.estimate, estimate.low, estimate.high
    verdict: Verdict = "undecided" if estimate.sign == 0 else "worse" if estimate.sign > 0 else "better"
    return Inference(verdict, SlowShare(share, bool(estimate.sign)))


def _worst_hundredth(better: Better) -> float:
    return 0.01 if better == "higher" else 0.99


def _p99(arm: Sequence[float], baseline: Sequence[float], terms: _Terms) -> Inference:
    estimate = quantile(
        arm, baseline, _worst_hundredth(terms.better), terms.alpha, better=terms.better, budget=terms.planned
    )
    verdict: Verdict = "undecided" if estimate.sign == 0 else "worse" if estimate.sign > 0 else "better"
    reason = WorstHundredth(bool(estimate.sign))
    return Inference(verdict, reason, estimate.estimate, estimate.low, estimate.high)


class _Kind(NamedTuple):
    """`threshold`: what makes the +-1 differences of an exact test, None where there is none."""

    estimand: str
    find: Callable[[Sequence[float], Sequence[float], _Terms], Inference]
    threshold: Callable[[Better], SlowRuns | BeyondQuantile] | None


END_POINTS: Mapping[str, _Kind] = {
    "mean": _Kind("ratio of arithmetic means (cost per job)", _mean, None),
    "slow": _Kind(SLOW_RATE, _slow, lambda better: SlowRuns(better=better)),
    "p99": _Kind(
        "ratio of the 99th percentiles over all runs",
        _p99,
        lambda better: BeyondQuantile(_worst_hundredth(better), better),
    ),
}
