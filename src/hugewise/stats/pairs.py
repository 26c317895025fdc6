"""From closed blocks to pairs: which attempts of an arm and its baseline make one, and when there can be no verdict.

The same for every method:
- An attempt of the arm and one of the baseline in the same complete block make a pair; it gives one log-ratio.
- A side that failed or timed out has no value: the pair says which side, and the method scores it as the worst.
- Pages not delivered, or not proven, in the arm or the baseline take the pair out: by the proof alone, never by the
  time. `everything` keeps those pairs. Above 1% of the attempts of either side there is no verdict but the reason. A
  failed attempt that left no proof stays in, as a failure.
- A metric that is absent makes no pair. One that is 0, negative or not finite has no log-ratio; since leaving it out
  would select by the outcome, the comparison gets no verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from hugewise import covariates
from hugewise.results import Comparison, Verdict
from hugewise.stats.method import Contrast
from hugewise.trial import Attempt, Block

__all__ = ["Finding", "Pair", "Pairs", "log_ratio", "ratio_of"]

_TOLERATED = 0.01  # share of a side's attempts that may be undelivered or unproven


def log_ratio(arm: float, baseline: float) -> float:
    """log(arm) - log(baseline), of positive numbers, to a billionth.

    Without rounding, pairs that tie (a coarse clock) would tie or not by the last bit of a logarithm, and so the ranks
    and the verdict would depend on the unit.
    """
    return round(math.log(arm) - math.log(baseline), 9)


class Finding(msgspec.Struct, frozen=True):
    """What a method says of the pairs so far; ratios are arm/baseline."""

    verdict: Verdict
    reason: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Pair:
    """`log_ratio` is log(arm) - log(baseline), None when a side failed; so is that side's value.

    covariate  the difference of the named covariate, arm minus baseline (`covariates.difference`); None without one
    """

    block: int
    session: int
    log_ratio: float | None
    arm: float | None
    baseline: float | None
    arm_failed: bool
    baseline_failed: bool
    covariate: float | None = None

    def difference(self, *, higher_is_better: bool) -> float:
        """The log-ratio, with a failure as the worst: infinitely far on the bad side; 0 where both failed."""
        if self.log_ratio is not None:
            return self.log_ratio
        bad = -1 if higher_is_better else 1
        sign = bad * (self.arm_failed - self.baseline_failed)
        return math.inf * sign if sign else 0.0


@dataclass
class _Side:
    """One side's attempts in the complete blocks: how many had not the promised pages, and why."""

    name: str
    seen: int = 0
    undelivered: int = 0
    unproven: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def bad(self) -> int:
        return self.undelivered + self.unproven

    def take(self, attempt: Attempt) -> bool:
        """Count an attempt; whether its pages let it stay in its pair."""
        self.seen += 1
        delivery = attempt.delivery
        if delivery.target.kind == "any" or delivery.delivered is True:
            return True
        if delivery.delivered is None and attempt.state == "failed":
            return True
        if delivery.delivered is None:
            self.unproven += 1
        else:
            self.undelivered += 1
        self.reasons[delivery.reason or "no reason is known"] += 1
        return False

    def refusal(self, future: int) -> str | None:
        """Why there is no verdict, even if `future` more attempts all have their pages."""
        if self.bad <= _TOLERATED * (self.seen + future):
            return None
        what = "unproven" if self.unproven > self.undelivered else "not delivered"
        reason = self.reasons.most_common(1)[0][0]
        return f"pages of {self.name} {what} in {self.bad} of {self.seen} attempts: {reason}"


class Pairs:
    """The pairs of one comparison, in the order of their blocks.

    usable      what the estimate and the verdict are made of
    everything  the same with the pairs of undelivered or unproven pages kept in
    """

    def __init__(self, contrast: Contrast, covariate: str | None = None) -> None:
        self.contrast = contrast
        self.covariate = covariate
        self.usable: list[Pair] = []
        self.everything: list[Pair] = []
        self._arm = _Side(contrast.arm)
        self._baseline = _Side(contrast.baseline)
        self._absent: Counter[str] = Counter()
        self._not_positive: str | None = None

    @property
    def seen(self) -> int:
        """Complete blocks in which both sides ran, whatever came of them."""
        return self._arm.seen

    def take(self, block: Block) -> Pair | None:
        """The usable pair of a closed block, or None; blocks of other cells and incomplete ones change nothing."""
        if block.state != "complete" or block.cell != self.contrast.cell:
            return None
        arm, baseline = _last(block, self.contrast.arm), _last(block, self.contrast.baseline)
        if arm is None or baseline is None:
            return None
        stays = [self._arm.take(arm), self._baseline.take(baseline)]
        failed = arm.state == "failed", baseline.state == "failed"
        over = None if failed[0] else self._value(arm)
        under = None if failed[1] else self._value(baseline)
        if (over is None and not failed[0]) or (under is None and not failed[1]):
            return None
        ratio = log_ratio(over, under) if over is not None and under is not None else None
        moved = covariates.difference(self.covariate, arm.covariates, baseline.covariates) if self.covariate else None
        pair = Pair(block.number, arm.session, ratio, over, under, *failed, moved)
        self.everything.append(pair)
        if not all(stays) and self.contrast.proof_demanded:
            return None
        self.usable.append(pair)
        return pair

    def failures(self) -> int:
        """Usable pairs in which a side failed."""
        return sum(pair.arm_failed or pair.baseline_failed for pair in self.usable)

    def comparison(
        self,
        method: str,
        planned: int,
        finding: Finding,
        *,
        ratio_all: float | None,
        confidence: float,
        p: float | None = None,
        final: bool = True,
    ) -> Comparison:
        """What a method found on these pairs, as the report has it; `ratio_all` is the estimate on `everything`."""
        low, high = finding.low, finding.high
        bounded = finding.verdict == "undecided" and low is not None and high is not None
        return Comparison(
            arm=self.contrast.arm,
            baseline=self.contrast.baseline,
            metric=self.contrast.metric.name,
            method=method,
            n=len(self.usable),
            planned=planned,
            ratio=finding.ratio,
            low=low,
            high=high,
            confidence=confidence,
            p=p,
            verdict=finding.verdict,
            reason=finding.reason,
            final=final,
            change=max(abs((low or 0) - 1), abs((high or 0) - 1)) if bounded else None,
            n_all=len(self.everything),
            ratio_all=ratio_all,
            failures_arm=sum(pair.arm_failed for pair in self.usable),
            failures_baseline=sum(pair.baseline_failed for pair in self.usable),
            constant=self._constant(),
        )

    def _constant(self) -> bool:
        """Whether all usable pairs, two at least, have the same ratio (`log_ratio` rounds, so that equal ones tie)."""
        ratios = {pair.log_ratio for pair in self.usable}
        return len(self.usable) > 1 and len(ratios) == 1 and None not in ratios

    def refusal(self, planned: int) -> str | None:
        """Why there is no verdict and will be none within `planned` pairs, whatever the blocks to come."""
        if self.contrast.metric.better == "neutral":
            return f"{self.contrast.metric.name} is neither better high nor low: it is shown, never judged"
        if self._not_positive is not None:
            return self._not_positive
        if self.contrast.proof_demanded:
            future = max(0, planned - len(self.usable))
            for side in (self._arm, self._baseline):
                refusal = side.refusal(future)
                if refusal is not None:
                    return refusal
        if not self.everything and self.seen >= planned:
            reason = self._absent.most_common(1)[0][0]
            return f"{self.contrast.metric.name} was absent from every pair: {reason}"
        return None

    def exhausted(self, planned: int) -> bool:
        """Whether no more blocks are asked for: enough pairs, too many taken out, or no verdict possible."""
        if len(self.usable) >= planned or self.seen >= 2 * planned:
            return True
        return self.seen >= planned and self.refusal(planned) is not None

    def shortfall(self, planned: int) -> str:
        """How far the pairs are from the plan, and what is missing."""
        reason = f"{len(self.usable)} of {planned} planned pairs"
        if self._absent:
            reason += f"; no value in {self._absent.total()} attempts: {self._absent.most_common(1)[0][0]}"
        return reason

    def _value(self, attempt: Attempt) -> float | None:
        """The metric, if a logarithm can be taken of it."""
        name = self.contrast.metric.name
        value = attempt.metrics.get(name)
        if value is None:
            self._absent[attempt.absent.get(name, "it was not reported")] += 1
            return None
        if not (value > 0 and math.isfinite(value)):
            self._not_positive = f"{name} was {value:g} under {attempt.arm}: such a value has no ratio"
            return None
        return value


def _last(block: Block, arm: str) -> Attempt | None:
    """The attempt of `arm` that counts in this block."""
    counted = [a for a in block.attempts if a.arm == arm and a.state in ("accepted", "failed")]
    return max(counted, key=lambda attempt: attempt.number, default=None)


def ratio_of(logarithm: float) -> float:
    """exp, where a ratio beyond all numbers is infinite."""
    try:
        return math.exp(logarithm)
    except OverflowError:
        return math.inf
