"""Fixed n: a paired comparison of log-ratios within blocks, with its verdict at the planned number of pairs.

The estimand is the ratio of geometric means, arm/baseline, over the planned pairs. An attempt of the arm and one of the
baseline in the same complete block make a pair; each pair gives one log-ratio, and Student's t is taken over these (a
randomised complete block design with its blocks eliminated; Montgomery, Design and Analysis of Experiments, ch. 4).

What is no plain number:
- Workload failures (and time-outs) score worst: the pair gets the largest |log-ratio| among the pairs without
  failure, with the sign that is bad for the side that failed; where both failed, 0. It is recomputed with each
  block. Where no magnitude is known, the exact sign test stands in. A comparison with failures can be better or
  worse, but is never called equivalent: its scores are no measurements.
- Pages not delivered, or not proven, in the arm or the baseline take the pair out: by the proof alone, never by the
  time. `ratio_all` keeps those pairs in. Above 1% of the attempts of either side there is no verdict but the reason.
  A failed attempt that left no proof stays in, as a failure.
- A metric that is absent makes no pair. One that is 0, negative or not finite has no log-ratio; since leaving it out
  would select by the outcome, the comparison gets no verdict.

More than the planned number of blocks are asked for only to replace pairs that were taken out, and twice the planned
at most.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from hugewise.results import Comparison, Verdict
from hugewise.stats.method import Contrast, Decision, Effect
from hugewise.stats.paired import Signs, Tests, paired
from hugewise.trial import Attempt, Block

__all__ = ["FixedN"]

_TOLERATED = 0.01  # share of a side's attempts that may be undelivered or unproven


@dataclass(frozen=True)
class _Pair:
    """`log_ratio` is None when a side failed."""

    log_ratio: float | None
    arm_failed: bool
    baseline_failed: bool


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


class FixedN:
    """The method `fixed-n` for one comparison.

    `confidence` and `margin` are the study's; `family` is the number of its comparisons, so that a verdict of
    `decision()` (at the Bonferroni level) holds in the conclusion over the family too.
    """

    name = "fixed-n"

    def __init__(self, contrast: Contrast, *, planned: int, confidence: float, margin: float, family: int = 1) -> None:
        if planned < 2 or family < 1 or not 0 < confidence < 1 or not 0 < margin < 1:
            raise ValueError("fixed-n needs planned >= 2, family >= 1, confidence and margin within 0 and 1")
        self.contrast = contrast
        self.planned = planned
        self._level = (1 - confidence) / family
        self._margin = margin
        self._pairs: list[_Pair] = []
        self._all: list[_Pair] = []
        self._arm = _Side(contrast.arm)
        self._baseline = _Side(contrast.baseline)
        self._absent: Counter[str] = Counter()
        self._not_positive: str | None = None

    def observe(self, block: Block) -> Decision:
        """Take in a closed block; after the stop nothing is taken in any more."""
        if block.state == "complete" and block.cell == self.contrast.cell and not self._stopped():
            arm, baseline = _last(block, self.contrast.arm), _last(block, self.contrast.baseline)
            if arm is not None and baseline is not None:
                self._take(arm, baseline)
        return self.decision()

    def decision(self) -> Decision:
        """What is known, with the interval at the Bonferroni level of the family."""
        known = self.comparison(self._level, self._margin)
        effect = None
        if known.ratio is not None and known.p is not None:
            effect = Effect(known.ratio, known.low, known.high, known.confidence, known.p, known.n)
        return Decision("stop" if self._stopped() else "continue", effect, known.verdict, known.reason)

    def p_difference(self) -> float:
        """Two-sided p; 1 before the planned number of pairs, and where there is no verdict."""
        tests = self._tests(self._pairs)
        return 1.0 if tests is None or not self._final() or self._refusal() else tests.p_difference()

    def p_equivalence(self, margin: float) -> float:
        """p of the two one-sided tests; 1 also where an attempt failed."""
        tests = self._tests(self._pairs)
        if tests is None or not self._final() or self._refusal() or self._failures() > 0:
            return 1.0
        return tests.p_equivalence(math.log1p(margin))

    def comparison(self, level: float, margin: float) -> Comparison:
        """The result with its interval at confidence 1 - `level`."""
        tests, everything = self._tests(self._pairs), self._tests(self._all)
        interval = None if tests is None else tests.interval(level)
        low, high = (None, None) if interval is None else (_exp(interval[0]), _exp(interval[1]))
        verdict, reason = self._verdict(tests, low, high, level, margin)
        bounded = verdict == "undecided" and low is not None and high is not None
        return Comparison(
            arm=self.contrast.arm,
            baseline=self.contrast.baseline,
            metric=self.contrast.metric.name,
            method=self.name,
            n=len(self._pairs),
            planned=self.planned,
            ratio=_ratio(tests),
            low=low,
            high=high,
            confidence=1 - level,
            p=None if tests is None else tests.p_difference(),
            verdict=verdict,
            reason=reason,
            final=self._final(),
            change=max(abs(low - 1), abs(high - 1)) if bounded and low is not None and high is not None else None,
            n_all=len(self._all),
            ratio_all=_ratio(everything),
            failures_arm=sum(pair.arm_failed for pair in self._pairs),
            failures_baseline=sum(pair.baseline_failed for pair in self._pairs),
        )

    def _take(self, arm: Attempt, baseline: Attempt) -> None:
        stays = [self._arm.take(arm), self._baseline.take(baseline)]
        failed = arm.state == "failed", baseline.state == "failed"
        log_ratio = None
        if not any(failed):
            over, under = self._value(arm), self._value(baseline)
            if over is None or under is None:
                return
            log_ratio = math.log(over) - math.log(under)
        pair = _Pair(log_ratio, *failed)
        self._all.append(pair)
        if all(stays) or not self.contrast.proof_demanded:
            self._pairs.append(pair)

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

    def _tests(self, pairs: list[_Pair]) -> Tests | None:
        """The tests for these pairs, failures scored."""
        known = [pair.log_ratio for pair in pairs if pair.log_ratio is not None]
        worst = max((abs(value) for value in known), default=0.0)
        bad = -1 if self.contrast.metric.better == "higher" else 1
        signs = [bad * (pair.arm_failed - pair.baseline_failed) for pair in pairs if pair.log_ratio is None]
        if signs and worst == 0:
            return Signs(signs.count(1), signs.count(-1))
        return paired([*known, *(worst * sign for sign in signs)])

    def _failures(self) -> int:
        return sum(pair.arm_failed or pair.baseline_failed for pair in self._pairs)

    def _final(self) -> bool:
        return len(self._pairs) >= self.planned

    def _stopped(self) -> bool:
        if self._final() or self._arm.seen >= 2 * self.planned:
            return True
        return self._arm.seen >= self.planned and self._refusal() is not None

    def _refusal(self) -> str | None:
        """Why there is no verdict and will be none, whatever the blocks to come."""
        if self.contrast.metric.better == "neutral":
            return f"{self.contrast.metric.name} is neither better high nor low: it is shown, never judged"
        if self._not_positive is not None:
            return self._not_positive
        if self.contrast.proof_demanded:
            future = max(0, self.planned - len(self._pairs))
            for side in (self._arm, self._baseline):
                refusal = side.refusal(future)
                if refusal is not None:
                    return refusal
        if not self._all and self._arm.seen >= self.planned:
            reason = self._absent.most_common(1)[0][0]
            return f"{self.contrast.metric.name} was absent from every pair: {reason}"
        return None

    def _verdict(
        self, tests: Tests | None, low: float | None, high: float | None, level: float, margin: float
    ) -> tuple[Verdict, str]:
        refusal = self._refusal()
        if refusal is not None:
            return "none", refusal
        if not self._final():
            return "undecided", self._shortfall()
        if isinstance(tests, Signs):
            return self._by_signs(tests, level)
        if low is None or high is None:
            return "undecided", f"{len(self._pairs)} pairs are too few for an interval at this confidence"
        failures = self._failures()
        inside = 1 / (1 + margin) <= low and high <= 1 + margin
        if inside and not failures:
            return "equivalent", f"the whole interval lies within the margin of {margin:.3g}"
        if low > 1 or high < 1:
            return self._direction(above=low > 1), "the interval excludes 1"
        if inside:
            return "undecided", f"attempts failed in {failures} pairs: that is not equivalent"
        return "undecided", "the interval includes 1 and reaches beyond the margin"

    def _by_signs(self, tests: Signs, level: float) -> tuple[Verdict, str]:
        count = f"failed attempts alone decide it ({tests.positive + tests.negative} pairs with one failure)"
        if tests.p_difference() > level:
            return "undecided", f"{count}, and they are too few"
        return self._direction(above=tests.positive > tests.negative), count

    def _direction(self, *, above: bool) -> Verdict:
        return "better" if above == (self.contrast.metric.better == "higher") else "worse"

    def _shortfall(self) -> str:
        reason = f"{len(self._pairs)} of {self.planned} planned pairs"
        if self._absent:
            reason += f"; no value in {self._absent.total()} attempts: {self._absent.most_common(1)[0][0]}"
        return reason


def _last(block: Block, arm: str) -> Attempt | None:
    """The attempt of `arm` that counts in this block."""
    counted = [a for a in block.attempts if a.arm == arm and a.state in ("accepted", "failed")]
    return max(counted, key=lambda attempt: attempt.number, default=None)


def _ratio(tests: Tests | None) -> float | None:
    return None if tests is None or tests.centre is None else _exp(tests.centre)


def _exp(logarithm: float) -> float:
    try:
        return math.exp(logarithm)
    except OverflowError:
        return math.inf
