"""End points beside the typical ratio, declared in the study before the first run: mean, slow, p99.

They are judged on the same pairs, each with a share of alpha of its own, and never ask for more blocks: a study that
wants them sharp declares its budget accordingly (`hugewise plan`).

mean   ratio of arithmetic means, the cost per job (`campaign.ratio_of_means`): asymptotic, from 100 pairs
slow   difference of the rates of runs slower than 1.25 times the usual (`tail.slow_rate`): exact test
p99    ratio of the 99th percentiles over all runs (`tail.quantile`): exact test
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from hugewise.results import Comparison, Verdict
from hugewise.stats import campaign, tail
from hugewise.stats.method import Contrast, Decision
from hugewise.stats.pairs import Finding, Pair, Pairs
from hugewise.trial import Block

__all__ = ["END_POINTS", "EndPoint"]


class EndPoint:
    """One end point of one comparison, with its share `alpha` of the study's error rate."""

    name = "sequential"

    def __init__(self, kind: str, contrast: Contrast, *, planned: int, alpha: float, margin: float) -> None:
        self.contrast = contrast
        self.planned = planned
        self.alpha = alpha
        self._estimand, self._find = END_POINTS[kind]
        self._margin = margin
        self._pairs = Pairs(contrast)

    def observe(self, block: Block) -> Decision:
        """Take in a closed block."""
        self._pairs.take(block)
        return self.decision()

    def decision(self) -> Decision:
        """Never asks for more blocks."""
        return Decision("stop", None, "undecided", "it is judged on the pairs that the typical ratio asks for")

    def comparison(self) -> Comparison:
        """The result on the pairs so far."""
        finding = self._finding(self._pairs.usable)
        found = self._pairs.comparison(
            self.name,
            self.planned,
            finding,
            ratio_all=self._finding(self._pairs.everything).ratio,
            confidence=1 - self.alpha,
        )
        return msgspec.structs.replace(found, estimand=self._estimand, alpha=self.alpha, constant=False)

    def _finding(self, pairs: Sequence[Pair]) -> Finding:
        refusal = self._pairs.refusal(self.planned)
        if refusal is not None:
            return Finding("none", refusal)
        if not pairs:
            return Finding("undecided", "there are no pairs yet")
        worst = 0.0 if self.contrast.metric.better == "higher" else math.inf
        return self._find(
            [worst if pair.arm is None else pair.arm for pair in pairs],
            [worst if pair.baseline is None else pair.baseline for pair in pairs],
            _Terms(self.alpha, self.planned, self._margin, self.contrast.metric.better == "higher"),
        )


class _Terms(msgspec.Struct, frozen=True):
    alpha: float
    planned: int
    margin: float
    higher_is_better: bool

    @property
    def better(self) -> tail.Better:
        return "higher" if self.higher_is_better else "lower"

    def verdict(self, *, larger: bool) -> Verdict:
        """`larger`: the arm's metric is the larger one."""
        return "better" if larger == self.higher_is_better else "worse"


def _mean(arm: Sequence[float], baseline: Sequence[float], terms: _Terms) -> Finding:
    found = campaign.ratio_of_means(arm, baseline, terms.alpha)
    if found is None:
        return Finding("undecided", f"a ratio of means needs 100 pairs without failure, there are {len(arm)}")
    ratio, low, high = found
    if 1 / (1 + terms.margin) <= low and high <= 1 + terms.margin:
        return Finding("equivalent", "the whole interval lies within the margin", ratio, low, high)
    if low > 1 or high < 1:
        verdict = terms.verdict(larger=low > 1)
        return Finding(verdict, "the interval of the campaign excludes no change", ratio, low, high)
    return Finding("undecided", "the interval includes no change and reaches beyond the margin", ratio, low, high)


def _slow(arm: Sequence[float], baseline: Sequence[float], terms: _Terms) -> Finding:
    found = tail.slow_rate(arm, baseline, terms.alpha, better=terms.better, budget=terms.planned)
    rates = "slow runs cannot be told yet"
    if found.estimate is not None and found.low is not None and found.high is not None:
        rates = (
            f"share of slow runs {100 * found.estimate:+.1f} points "
            f"({100 * found.low:+.1f} to {100 * found.high:+.1f}) against the baseline"
        )
    if found.sign:
        return Finding("worse" if found.sign > 0 else "better", f"{rates}; the exact test crossed")
    return Finding("undecided", f"{rates}; the exact test has not crossed")


def _p99(arm: Sequence[float], baseline: Sequence[float], terms: _Terms) -> Finding:
    found = tail.quantile(
        arm, baseline, 0.01 if terms.higher_is_better else 0.99, terms.alpha, better=terms.better, budget=terms.planned
    )
    verdict: Verdict = "undecided" if found.sign == 0 else "worse" if found.sign > 0 else "better"
    reason = "the exact test has crossed" if found.sign else "the exact test has not crossed"
    return Finding(verdict, f"on the worst hundredth of runs {reason}", found.estimate, found.low, found.high)


_Finder = Callable[[Sequence[float], Sequence[float], _Terms], Finding]

END_POINTS: Mapping[str, tuple[str, _Finder]] = {
    "mean": ("ratio of arithmetic means (cost per job)", _mean),
    "slow": (tail.SLOW_RATE, _slow),
    "p99": ("ratio of the 99th percentiles over all runs", _p99),
}
