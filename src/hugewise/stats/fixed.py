"""Fixed n: a paired comparison of log-ratios within blocks, with its verdict at the planned number of pairs.

The estimand is the ratio of geometric means, arm/baseline, over the planned pairs. An attempt of the arm and one of the
baseline in the same complete block make a pair; each pair gives one log-ratio, and Student's t is taken over these (a
randomised complete block design with its blocks eliminated; Montgomery, Design and Analysis of Experiments, ch. 4).

Workload failures (and time-outs) score worst: the pair gets the largest |log-ratio| among the pairs without failure,
with the sign that is bad for the side that failed; where both failed, 0. It is recomputed with each block. Where no
magnitude is known, the exact sign test stands in. A comparison with failures can be better or worse, but is never
called equivalent: its scores are no measurements. What else makes or takes out a pair: see `hugewise.stats.pairs`.

Undelivered pairs. Whether pages were delivered is known only after the coin, and may depend on the label: the usable
pairs alone are a selection that can lean to one side where the arm makes no difference at all. Estimate and interval
are those of the usable pairs; a verdict must also hold with every pair kept in, as it was randomised (analysis by
intention to treat; Hollis and Campbell 1999, BMJ 319:670). Both analyses have to reject, so p is the larger of their
two p values (an intersection-union test; Berger 1982, Technometrics 24:295), and 1 for a difference where they point
different ways: where the analysis of all pairs is valid, so is the verdict. Where nothing was taken out they are one.

The coins. Student's t takes differences for near normal: of three blocks in which the second place is 1% slower it
claims a difference with a chance of a quarter, which is that of three equal coins. So a verdict also needs the
sign-flip test of the blocks' coins at this fixed n (`signflip.chance`), which holds whatever the noise: p is the larger
of the two, for a difference as for each end of the margin. No verdict is possible before ceil(log2(2/alpha)) blocks.
Equivalence is a claim on the typical ratio, and says which share of stalling runs it cannot exclude.

More than the planned number of blocks are asked for only to replace pairs that were taken out, and twice the planned
at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hugewise.model.reason import (
    CoinOpen,
    Failures,
    FailuresAlone,
    FewForInterval,
    Known,
    NotKeptIn,
    Reason,
    WithinMargin,
)
from hugewise.model.results import DECIDED, Comparison, Verdict
from hugewise.model.trial import Block
from hugewise.stats import campaign, signflip
from hugewise.stats.method import Contrast, Decision, Effect
from hugewise.stats.paired import Constant, Signs, Student, Tests, paired
from hugewise.stats.pairs import Inference, PairLog, Pairs, ratio_of


@dataclass(frozen=True)
class _WithCoins(Student):
    """Student's t and the sign-flip test of the coins together: both have to reject."""

    values: tuple[float, ...]

    def p_difference(self) -> float:
        sign = math.copysign(1.0, self.centre)
        return max(super().p_difference(), min(1.0, 2 * signflip.chance(sign * one for one in self.values)))

    def p_equivalence(self, bound: float) -> float:
        ends = (bound - one for one in self.values), (bound + one for one in self.values)
        return max(super().p_equivalence(bound), *map(signflip.chance, ends))


class FixedN:
    """The method `fixed-n` for one comparison.

    `confidence` and `margin` are the study's; `family` is the number of its comparisons, so that a verdict of
    `decision()` (at the Bonferroni level) holds in the conclusion over the family too. Without `coins` it is Student's
    t alone, as runs of before were judged.
    """

    name = "fixed-n"

    def __init__(
        self,
        contrast: Contrast,
        *,
        planned: int,
        confidence: float,
        margin: float,
        family: int = 1,
        coins: bool = True,
    ) -> None:
        if planned < 2 or family < 1 or not 0 < confidence < 1 or not 0 < margin < 1:
            raise ValueError("fixed-n needs planned >= 2, family >= 1, confidence and margin within 0 and 1")
        self.contrast = contrast
        self.planned = planned
        self._level = (1 - confidence) / family
        self._margin = margin
        self._coins = coins
        self.pairs = Pairs(contrast)

    def observe(self, block: Block) -> Decision:
        """Take in a closed block; after the stop nothing is taken in any more."""
        if not self.pairs.exhausted(self.planned):
            self.pairs.take(block)
        return self.decision()

    def decision(self) -> Decision:
        """Return the decision so far, with the interval at the Bonferroni level of the family."""
        known = self.comparison(self._level, self._margin)
        effect = None
        if known.ratio is not None and known.p is not None:
            effect = Effect(known.ratio, known.low, known.high, known.confidence, known.p, known.n)
        return Decision(
            "stop" if self.pairs.exhausted(self.planned) else "continue", effect, known.verdict, known.reason
        )

    def p_difference(self) -> float:
        """Two-sided p; 1 before the planned number of pairs, and where there is no verdict."""
        if not self._final() or self.pairs.refusal(self.planned):
            return 1.0
        p = _p_difference(self._analyses())
        return 1.0 if p is None else p

    def p_equivalence(self, margin: float) -> float:
        """p of the two one-sided tests; 1 also where an attempt failed."""
        if not self._final() or self.pairs.refusal(self.planned) or self.pairs.failed:
            return 1.0
        bound = math.log1p(margin)
        return max(1.0 if tests is None else tests.p_equivalence(bound) for tests in self._analyses())

    def comparison(self, level: float, margin: float) -> Comparison:
        """Return the result with its interval at confidence 1 - `level`."""
        analyses = self._analyses()
        tests, kept = analyses[0], analyses[-1]
        interval = None if tests is None else tests.interval(level)
        low, high = (None, None) if interval is None else (ratio_of(interval[0]), ratio_of(interval[1]))
        verdict, reason = self._verdict(tests, low, high, level, margin)
        if len(analyses) > 1 and (lost := self._lost(verdict, kept, level, margin)):
            verdict, reason = "undecided", NotKeptIn(reason, lost)
        return self.pairs.comparison(
            self.name,
            self.planned,
            Inference(verdict, reason, _ratio(tests), low, high),
            ratio_all=_ratio(self._tests(self.pairs.everything)),
            confidence=1 - level,
            p=_p_difference(analyses),
            final=self._final(),
        )

    def _analyses(self) -> list[Tests | None]:
        usable, everything = self.pairs.usable, self.pairs.everything
        return [self._tests(each) for each in ([usable] if len(usable) == len(everything) else [usable, everything])]

    def _lost(self, verdict: Verdict, kept: Tests | None, level: float, margin: float) -> Reason | None:
        if verdict not in DECIDED:
            return None
        if kept is None:
            return Known("no test")
        if verdict == "equivalent":
            if failures := self.pairs.failed:
                return Failures(failures)
            inside = kept.p_equivalence(math.log1p(margin)) <= level / 2
            return None if inside else Known("beyond margin")
        if not kept.p_difference() <= level:
            return Known("not excluded")
        same = self._direction(above=_side(kept) > 0) == verdict
        return None if same else Known("other sign")

    def _tests(self, pairs: PairLog) -> Tests | None:
        known = [ratio for ratio in pairs.log_ratios() if ratio is not None]
        worst = max((abs(value) for value in known), default=0.0)
        bad = -1 if self.contrast.metric.better == "higher" else 1
        failed = pairs if len(known) < len(pairs) else ()
        signs = [bad * (pair.arm_failed - pair.baseline_failed) for pair in failed if pair.log_ratio is None]
        if signs and worst == 0:
            return Signs(signs.count(1), signs.count(-1))
        values = (*known, *(worst * sign for sign in signs))
        tests = paired(values)
        if not (isinstance(tests, Student) and self._coins and self._final()):
            return tests
        return _WithCoins(tests.n, tests.centre, tests.standard_error, values)

    def _final(self) -> bool:
        return len(self.pairs.usable) >= self.planned

    def _verdict(
        self, tests: Tests | None, low: float | None, high: float | None, level: float, margin: float
    ) -> tuple[Verdict, Reason]:
        refusal = self.pairs.refusal(self.planned)
        if refusal is not None:
            return "none", refusal
        if not self._final():
            return "undecided", self.pairs.shortfall(self.planned)
        if isinstance(tests, Signs):
            return self._by_signs(tests, level)
        if low is None or high is None:
            # Where nothing varies Student's t has nothing to go by, and the sign test sees directions alone.
            return "undecided", FewForInterval(len(self.pairs.usable), isinstance(tests, Constant))
        failures = self.pairs.failures
        inside = 1 / (1 + margin) <= low and high <= 1 + margin
        assert tests is not None
        open_ = CoinOpen(tests.n, signflip.first_crossing(level))
        if inside and not failures:
            if tests.p_equivalence(math.log1p(margin)) > level / 2:
                return "undecided", open_
            unseen = campaign.unseen(tests.n, level)
            return "equivalent", WithinMargin(margin, unseen=unseen)
        if low > 1 or high < 1:
            if tests.p_difference() > level:
                return "undecided", open_
            return self._direction(above=low > 1), Known("one side")
        if inside:
            return "undecided", Failures(failures)
        return "undecided", Known("no change in interval")

    def _by_signs(self, tests: Signs, level: float) -> tuple[Verdict, Reason]:
        few = tests.p_difference() > level
        reason = FailuresAlone(tests.positive + tests.negative, few)
        return "undecided" if few else self._direction(above=tests.positive > tests.negative), reason

    def _direction(self, *, above: bool) -> Verdict:
        return "better" if above == (self.contrast.metric.better == "higher") else "worse"


def _ratio(tests: Tests | None) -> float | None:
    return None if tests is None or tests.centre is None else ratio_of(tests.centre)


def _p_difference(analyses: Sequence[Tests | None]) -> float | None:
    known = [tests for tests in analyses if tests is not None]
    if not known or analyses[0] is None:
        return None
    if len({_side(tests) for tests in known}) > 1:
        return 1.0
    return max(tests.p_difference() for tests in known)


def _side(tests: Tests) -> int:
    centre = tests.positive - tests.negative if isinstance(tests, Signs) else tests.centre
    return (centre > 0) - (centre < 0)
