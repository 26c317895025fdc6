"""End points beside the typical ratio, declared in the study before the first run: mean, slow, p99.

They are judged on the same pairs, each with a share of alpha of its own, and never ask for more blocks: a study that
wants them sharp declares its budget accordingly (`hugewise plan`).

mean   ratio of arithmetic means, the cost per job (`campaign.ratio_of_means`): asymptotic, from 100 pairs
slow   difference of the rates of runs slower than 1.25 times the usual (`tail.slow_rate`): exact test
p99    ratio of the 99th percentiles over all runs (`tail.quantile`): exact test

Kept-in pairs. Estimate and interval are those of the usable pairs (`pairs`). Whether pages were delivered may depend
on the label, and then the signs of the usable pairs alone are no fair coins even where the arm makes no
difference to the metric. With every pair kept in they are. So a verdict is given only where the same end point on
`kept` gives the same verdict, which holds the error rate of `slow` and `p99` exactly; else it is undecided.

E-values. Each end point carries e-values of its own (`eprocess`), made of `kept` too: `slow` and `p99` by the
scores of the +-1 differences of their test, `mean` by the differences of the metric themselves. Under Fisher's sharp
null a swap of a pair's labels flips its difference and nothing else, so that given the magnitudes and the past every
factor has mean 1 over the coin, whatever the noise. They stop with the blocks of their comparison: when the typical
ratio is decided, the budget or the time is used up, or somebody ends the run. Between blocks that rests on closed ones
alone, hence it is a stopping time of the same coins, and an e-value counts at any stopping time. A pair of which
nothing is known (`pairs`) is scored against "larger" in the value for larger, and against "smaller" in the other. What
they speak of is the coin: for `mean` a sum that leans to one side more than coins make it lean, which is exact for "no
difference at all", and not for "equal means of unequal distributions".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from hugewise.model.results import Comparison, Verdict
from hugewise.model.trial import Block
from hugewise.stats import campaign, tail
from hugewise.stats.eprocess import EProcess, SumEProcess, e_values, finite
from hugewise.stats.method import Contrast, Decision
from hugewise.stats.pairs import Inference, Pair, Pairs, against

__all__ = ["END_POINTS", "EndPoint", "differences", "evidence"]

_KEPT_IN = "with all pairs kept in"


class EndPoint:
    """One end point of one comparison, with its share `alpha` of the study's error rate."""

    name = "sequential"

    def __init__(self, kind: str, contrast: Contrast, *, planned: int, alpha: float, margin: float) -> None:
        self.contrast = contrast
        self.planned = planned
        self.alpha = alpha
        self.kind = kind
        self._margin = margin
        self._pairs = Pairs(contrast, spared=1)

    def observe(self, block: Block) -> Decision:
        """Take in a closed block."""
        self._pairs.take(block)
        return self.decision()

    def decision(self) -> Decision:
        """Never asks for more blocks."""
        return Decision("stop", None, "undecided", "it is judged on the pairs that the typical ratio asks for")

    def comparison(self) -> Comparison:
        """The result on the pairs so far."""
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
            alpha=self.alpha,
            constant=False,
            **e_values(finding.verdict, finite(up), finite(down)),
        )

    def _kept(self, claim: int) -> list[Pair]:
        """The kept-in pairs, with what is lost scored against "the arm's metric is larger" (1) or "smaller" (-1)."""
        return against(self._pairs.kept, claim, higher_is_better=self.contrast.metric.better == "higher")

    def _held(self, usable: Inference) -> Inference:
        """The finding on the usable pairs, with its verdict only where all pairs together give the same one."""
        if usable.verdict == "none":
            return usable
        of = f"estimate and interval are of the {len(self._pairs.usable)} usable pairs of {len(self._pairs.kept)}"
        reason, verdict = usable.reason, usable.verdict
        larger = (verdict == "better") == (self.contrast.metric.better == "higher")
        for claim in () if verdict == "undecided" else (1, -1) if verdict == "equivalent" else (1 if larger else -1,):
            # A ratio of means has no place for a failure: lost pairs are left out there, and stay in its e-values.
            kept = self._kept(claim) if END_POINTS[self.kind].threshold else [p for p in self._pairs.kept if not p.lost]
            whole = self._finding(kept)
            if whole.verdict != verdict:
                verdict, reason = "undecided", f"{reason}; but {_KEPT_IN}, {self._said(whole)}"
                break
        return msgspec.structs.replace(usable, verdict=verdict, reason=f"{reason}; {of}")

    def _said(self, whole: Inference) -> str:
        if whole.verdict != "undecided":
            return f"it is {whole.verdict}"
        return "the test has not crossed" if END_POINTS[self.kind].threshold else whole.reason

    def _finding(self, pairs: Sequence[Pair]) -> Inference:
        refusal = self._pairs.refusal(self.planned)
        if refusal is not None:
            return Inference("none", refusal)
        if not pairs:
            return Inference("undecided", "there are no pairs yet")
        arm, baseline = _sides(pairs, self.contrast)
        better: tail.Better = "higher" if self.contrast.metric.better == "higher" else "lower"
        return END_POINTS[self.kind].find(arm, baseline, _Terms(self.alpha, self.planned, self._margin, better))


def differences(kind: str, pairs: Sequence[Pair], contrast: Contrast) -> list[float]:
    """What the e-values of an end point are made of: one number per pair, above 0 where the arm's metric is larger.

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
    """The e-process of an end point after these pairs, in their order; `up`: the arm's metric is larger."""
    process = EProcess() if END_POINTS[kind].threshold else SumEProcess()
    for difference in differences(kind, pairs, contrast):
        process.add(difference)
    return process


def _plain(pair: Pair, *, higher_is_better: bool) -> float:
    if pair.log_ratio is None or pair.arm is None or pair.baseline is None:
        return pair.difference(higher_is_better=higher_is_better)
    return pair.arm - pair.baseline


def _sides(pairs: Sequence[Pair], contrast: Contrast) -> tuple[list[float], list[float]]:
    """The values of the arm and of the baseline, a failure as the worst there is.

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
    better: tail.Better


def _mean(arm: Sequence[float], baseline: Sequence[float], terms: _Terms) -> Inference:
    found = campaign.ratio_of_means(arm, baseline, terms.alpha)
    if found is None:
        return Inference("undecided", f"a ratio of means needs 100 pairs without failure, there are {len(arm)}")
    ratio, low, high = found
    edge = round(math.log1p(terms.margin), 9)  # an effect of the margin itself is not within it
    if low > 0 and -edge < round(math.log(low), 9) and round(math.log(high), 9) < edge:
        return Inference("equivalent", "the whole interval lies within the margin", ratio, low, high)
    if low > 1 or high < 1:
        verdict: Verdict = "better" if (low > 1) == (terms.better == "higher") else "worse"
        return Inference(verdict, "the interval of the campaign excludes no change", ratio, low, high)
    return Inference("undecided", "the interval includes no change and reaches beyond the margin", ratio, low, high)


def _slow(arm: Sequence[float], baseline: Sequence[float], terms: _Terms) -> Inference:
    found = tail.slow_rate(arm, baseline, terms.alpha, better=terms.better, budget=terms.planned)
    rates = "slow runs cannot be told yet"
    if found.estimate is not None and found.low is not None and found.high is not None:
        rates = (
            f"share of slow runs {100 * found.estimate:+.1f} points "
            f"({100 * found.low:+.1f} to {100 * found.high:+.1f}) against the baseline"
        )
    if found.sign:
        return Inference("worse" if found.sign > 0 else "better", f"{rates}; the exact test crossed")
    return Inference("undecided", f"{rates}; the exact test has not crossed")


def _worst_hundredth(better: tail.Better) -> float:
    """The quantile beyond which the worst hundredth of the runs lies."""
    return 0.01 if better == "higher" else 0.99


def _p99(arm: Sequence[float], baseline: Sequence[float], terms: _Terms) -> Inference:
    found = tail.quantile(
        arm, baseline, _worst_hundredth(terms.better), terms.alpha, better=terms.better, budget=terms.planned
    )
    verdict: Verdict = "undecided" if found.sign == 0 else "worse" if found.sign > 0 else "better"
    reason = "the exact test has crossed" if found.sign else "the exact test has not crossed"
    return Inference(verdict, f"on the worst hundredth of runs {reason}", found.estimate, found.low, found.high)


class _Kind(NamedTuple):
    """`threshold`: what makes the +-1 differences of an exact test, None where there is none."""

    estimand: str
    find: Callable[[Sequence[float], Sequence[float], _Terms], Inference]
    threshold: Callable[[tail.Better], tail.SlowRuns | tail.BeyondQuantile] | None


END_POINTS: Mapping[str, _Kind] = {
    "mean": _Kind("ratio of arithmetic means (cost per job)", _mean, None),
    "slow": _Kind(tail.SLOW_RATE, _slow, lambda better: tail.SlowRuns(better=better)),
    "p99": _Kind(
        "ratio of the 99th percentiles over all runs",
        _p99,
        lambda better: tail.BeyondQuantile(_worst_hundredth(better), better),
    ),
}
