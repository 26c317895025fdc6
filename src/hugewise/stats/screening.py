"""The method `screening`: which of many arms goes on, found with few blocks and claiming nothing.

All arms of a cell, the baseline among them, are held against each other, pair by pair of the same blocks. Of each two
the sequential sign-flip test (`signflip`) watches "no difference" and both ends of the margin. After each block

1. an arm that some other arm beats (the test of no difference has crossed) drops out: it is not measured any more. An
   arm that comes before the other in the study must be worse by more than the margin for that;
2. an arm is *in front* when the tests have rejected, of each arm still in, that it is better by more than the margin,
   which is a share of what the baseline takes: whoever gains 80% does not ask which of two ways gains 80 or 81%.
   The screening is over when an arm is in front, and each that comes before it in the study is beaten: of arms that are
   alike the first goes on, so that whoever writes the study puts the narrowest and cheapest first;
3. else it goes on, to the declared number of pairs or the end of the time, or until the pairs that are left will hardly
   make it sure and the choice is clear by a standard error (`futile`). Then the best arm is the first one in front, or
   the one with the best estimate. The first arm before the best one that may be as good is chosen instead, and the
   screening is unsure. An arm may be as good where the best one is not clearly ahead of it (by more than the margin,
   after a standard error of the mean of their pairs, as Student's t has it), and where it gains by a standard error
   itself, if the best one does.

Error. The chance that the leader of a screening that was not unsure is worse than the best arm by more than the margin
is at most alpha: for that a test must have crossed on the wrong side, either "the best arm is worse than" another, so
that it dropped out, or "it is not better by more than the margin" than the leader, who is worse by more. There are
k - 1 others, and each side of each test has alpha/(k - 1) (Bonferroni); the two tests of one pair of arms share it, as
the first is about a difference that lies further from the truth in the direction in which it errs. This holds for
differences that are constant or symmetric about their middle. No verdict is made: a screening chooses what is to be
confirmed by other blocks.

Pairs whose pages were not delivered are left out, so that the claim is one about treatments that took effect; an arm of
which too many were not has no part in it, and whom it alone had beaten is in again. Where it is the baseline that has
no part in it, or the metric has no direction, nothing can be chosen: it ends, unsure, with the reason. Arms that never
meet in a block (of a block with a place for the baseline and one other) are not held against each other: there it can
be sure of the baseline alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import NormalDist
from typing import NamedTuple

import msgspec

from hugewise.model.reason import (
    Beaten,
    BestEstimate,
    InFront,
    NotClearlyBeaten,
    NothingChosen,
    NotJudged,
    OfScreening,
    Reason,
)
from hugewise.model.results import Comparison
from hugewise.model.trial import Block
from hugewise.stats import futility
from hugewise.stats.method import Contrast, Decision
from hugewise.stats.paired import Student, paired
from hugewise.stats.pairs import Inference, Pairs, ratio_of
from hugewise.stats.power import least_pairs
from hugewise.stats.sequential import PairTests

_FASTEST = 20.0  # log of how many times faster an arm may be: beyond, a share of the baseline is any share of it
_WIDER = 1.25
_LEVEL = 2 * NormalDist().cdf(-1)  # both tails beyond one standard error
_CLEAR = 4  # pairs whose standard error may end a screening early
_SEEN = 3  # blocks without a usable pair after which an arm is given up


class Chosen(NamedTuple):
    """Choice of a screening, with its reason: `unsure` where the time or the pairs were over before it was clear."""

    arm: str
    unsure: bool
    reason: Reason


class _Duel:
    """Two arms: the pairs of their common blocks, as `arm` over `other`, and the tests."""

    def __init__(self, contrast: Contrast, alpha: float, planned: int, edge: float) -> None:
        self.pairs = Pairs(contrast, spared=1)
        self.tests = PairTests(alpha, planned, edge)
        self.differences: list[float] = []
        self._sign = -1 if contrast.metric.better == "higher" else 1  # a larger value is worse by so much

    def take(self, block: Block) -> None:
        for pair in self.pairs.take(block):
            self.differences.append(self._sign * pair.difference(higher_is_better=self._sign < 0))
            self.tests.add(self.differences[-1])

    @property
    def winner(self) -> int:
        """-1: `arm` is better; 1: `other` is; 0: not known."""
        return self.tests.test.sign


class Screening:
    """One cell's screening, over the arms in the order of the study, the baseline first.

    `alpha` is the chance that is allowed of choosing an arm that another is better than by more than `margin` (a share
    above 0); `planned` the declared number of pairs. Raises ValueError on fewer than two arms.
    """

    def __init__(self, contrasts: Sequence[Contrast], *, planned: int, alpha: float, margin: float) -> None:
        if not contrasts:
            raise ValueError("a screening has two arms or more")
        first = contrasts[0]
        self.arms = [first.baseline, *(contrast.arm for contrast in contrasts)]
        self.planned = planned
        self._alpha = 2 * alpha / (len(self.arms) - 1)  # of both sides of a test
        self._margin, edge = margin, round(math.log1p(margin), 9)
        self._duels = {
            (arm, other): _Duel(msgspec.structs.replace(first, arm=arm, baseline=other), self._alpha, planned, edge)
            for other, arm in combinations(self.arms, 2)
        }
        self.dropped: dict[str, Reason] = {}
        """Arms that are out, and why."""
        self._by: dict[str, str] = {}  # whom the tests have beaten of them, and who beat it
        self._void: Reason | None = None
        if first.metric.better == "neutral":
            self._void = NotJudged(first.metric.name)
        self.ended = self._void is not None
        self._seen = 0

    def observe(self, block: Block) -> None:
        """Take in a closed block, once; after the end nothing is taken in any more."""
        if block.number <= self._seen or self.ended:
            return
        self._seen = block.number
        for duel in self._duels.values():
            duel.take(block)
        self._drop()
        self.ended = self._over()

    def chosen(self) -> Chosen:
        """Return the choice so far: unsure where no arm is in front, or an arm before the best one may be as good."""
        if self._void is not None:
            return Chosen(self.arms[0], True, NothingChosen(self._void))
        left = [arm for arm in self.arms if arm not in self.dropped]
        front = next(self._in_front(), None)
        best = min(left, key=lambda arm: self._level(arm, left[0])) if front is None else front
        for arm in left[1 : left.index(best)]:
            if self._alike(best, arm) and (self._gains(arm) or not self._gains(best)):
                return Chosen(arm, True, NotClearlyBeaten(best))
        return Chosen(best, True, BestEstimate()) if front is None else Chosen(front, False, InFront(self._margin))

    def _alike(self, best: str, arm: str) -> bool:
        ahead = self._ahead(best, arm)
        return all(map(math.isfinite, ahead)) and _mean_within(ahead)[0] <= self._edge(best)

    def _gains(self, arm: str) -> bool:
        """Return whether the arm is better than the baseline by a standard error, where the baseline did not fail."""
        ahead = [one for one in self._ahead(arm, self.arms[0]) if one != math.inf]
        return all(map(math.isfinite, ahead)) and _mean_within(ahead)[0] > 0

    def _ahead(self, arm: str, other: str) -> list[float]:
        """Return by how much `arm` was better than `other`, a log-ratio for each of their pairs."""
        duel, straight = self._duel(arm, other)
        return [-one for one in duel.differences] if straight else duel.differences

    def _duel(self, arm: str, other: str) -> tuple[_Duel, bool]:
        """Return the duel of two arms, and whether its differences are those of `arm` over `other`."""
        straight = (arm, other) in self._duels
        return self._duels[(arm, other) if straight else (other, arm)], straight

    def _ahead_within(self, arm: str, other: str) -> tuple[float, float]:
        """Return the interval of the test for how much better `arm` is than `other`; unbounded without pairs."""
        duel, straight = self._duel(arm, other)
        low, high = duel.tests.interval() if duel.differences else (-math.inf, math.inf)
        return (-high, -low) if straight else (low, high)

    def futile(self, more: int) -> bool:
        """Return whether `more` pairs will hardly bring another arm to the front, and each other arm is by a standard
        error not ahead of the chosen one by more than the margin.
        """
        left = [arm for arm in self.arms if arm not in self.dropped]
        chosen = self.chosen().arm
        if self.ended or not all(self._clear(chosen, other) for other in left if other != chosen):
            return False
        others = set(left) - set(self._in_front())
        return not any(all(self._sure(arm, other, more) for other in left if other != arm) for arm in others)

    def _clear(self, chosen: str, other: str) -> bool:
        ahead = self._ahead(other, chosen)
        if len(ahead) < _CLEAR or not all(map(math.isfinite, ahead)):
            return False
        return _mean_within(ahead)[1] <= self._edge(chosen)

    def _sure(self, front: str, other: str, more: int) -> bool:
        """Return whether it may be rejected that `other` is better than `front` by more than the margin."""
        pairs = len(self._ahead(other, front))
        low, high = self._ahead_within(other, front)
        if math.isinf(low) or math.isinf(high):
            least = least_pairs(self._alpha, self.planned)
            return least is not None and pairs + more >= least
        return futility.forecast(low, high, pairs, more).high < self._edge(front)

    def behind(self, arm: str, other: str) -> bool:
        """Return whether "`arm` is better than `other` by more than the margin" is rejected."""
        duel, straight = self._duel(arm, other)
        watched = duel.tests
        if watched.above if straight else watched.below:
            return True
        if other == self.arms[0] or self._duels[other, self.arms[0]].winner >= 0:  # it gains nothing that is known
            return False
        edge = self._edge(other)
        if edge < _WIDER * self._edge(self.arms[0]):  # the test of the margin itself is at hand
            return False
        return watched.sign(-edge) > 0 if straight else watched.sign(edge) < 0

    def _edge(self, arm: str) -> float:
        """Return the margin beside that arm, as a log-ratio: it is a share of what the baseline takes, and beside an
        arm that takes a fraction of that it is more of it.
        """
        level = self._level(arm, self.arms[0])
        return round(math.log1p(self._margin / math.exp(level) if -_FASTEST < level < 0 else self._margin), 9)

    def _drop(self) -> None:
        for (arm, other), duel in self._duels.items():
            if other == self.arms[0] and arm not in self._refusals() and (why := self._refused(duel)):
                self._refuse(arm, why)
            elif duel.winner and not {arm, other} & set(self.dropped):
                worse, better = (arm, other) if duel.winner > 0 else (other, arm)
                if worse != self.arms[0] and self._by_enough(
                    worse, better
                ):  # the baseline is in every block all the same
                    self.dropped[worse] = Beaten(better, len(duel.pairs.usable))
                    self._by[worse] = better

    def _by_enough(self, worse: str, better: str) -> bool:
        if (better, worse) not in self._duels:
            return True
        tests = self._duels[better, worse].tests
        # The margin beside that arm is no narrower than the baseline's, whose test is at hand.
        return tests.far_below and tests.sign(-self._edge(worse)) < 0

    def _refusals(self) -> set[str]:
        return self.dropped.keys() - self._by.keys()

    def _refuse(self, arm: str, why: Reason) -> None:
        self._by.pop(arm, None)
        self.dropped[arm] = why
        for beaten in [worse for worse, better in self._by.items() if better == arm]:
            del self.dropped[beaten], self._by[beaten]

    def _refused(self, duel: _Duel) -> Reason | None:
        hopeless = duel.pairs.exhausted(self.planned) or (duel.pairs.seen >= _SEEN and not duel.pairs.usable)
        why = duel.pairs.refusal(self.planned) if hopeless else None
        if why is not None and not duel.pairs.of_arm_alone(self.planned):
            self._void = why
            return None
        return why

    def _in_front(self) -> Iterator[str]:
        left = [arm for arm in self.arms if arm not in self.dropped]
        return (arm for arm in left if all(self.behind(other, arm) for other in left if other != arm))

    def _over(self) -> bool:
        front = next(self._in_front(), None)
        if self._void is not None:
            return True
        if front is not None and all(self._beaten(arm) for arm in self.arms[: self.arms.index(front)]):
            return True
        # Every block has the baseline; two others may never meet.
        left = [self._duels[arm, self.arms[0]] for arm in self.arms[1:] if arm not in self.dropped]
        return all(duel.pairs.exhausted(self.planned) for duel in left)

    def _beaten(self, arm: str) -> bool:
        refused = self._refusals()
        return arm in self.dropped or any(
            duel.winner == (1 if arm == mine else -1)
            and (arm == mine or arm == self.arms[0] or self._by_enough(arm, mine))
            for (mine, other), duel in self._duels.items()
            if arm in (mine, other) and not {mine, other} & refused
        )

    def _level(self, arm: str, reference: str) -> float:
        if arm == reference:
            return 0.0
        duel = self._duels[arm, reference]
        return duel.tests.pairs.centre() if duel.pairs.usable else math.inf

    def comparison(self, contrast: Contrast) -> Comparison:
        """Return the arm against the baseline as it is known: an estimate, an interval, no verdict."""
        duel = self._duels[contrast.arm, contrast.baseline]
        pairs = duel.pairs
        chosen = self.chosen()
        said = self.dropped.get(contrast.arm)
        goes_on = said is None and self._void is None and contrast.arm == chosen.arm
        reason = OfScreening(said or (chosen.reason if goes_on or self._void is not None else None), goes_on)
        finding = Inference("none", reason)
        if pairs.usable:
            higher = contrast.metric.better == "higher"
            ends = duel.tests.interval()
            low, centre, high = (ends[0], duel.tests.pairs.centre(), ends[1])
            if higher:
                low, centre, high = -high, -centre, -low
            ratios = [ratio_of(each) for each in (centre, low, high)]
            finding = Inference("none", reason, *ratios)
        return pairs.comparison(
            Screened.name, self.planned, finding, ratio_all=None, confidence=1 - self._alpha, final=self.ended
        )


def _mean_within(differences: Sequence[float]) -> tuple[float, float]:
    """Return Student's interval of their mean, at the level of one normal standard error; unbounded for one pair."""
    found = paired(differences) if len(differences) > 1 else None
    if isinstance(found, Student):
        return found.interval(_LEVEL)
    return (-math.inf, math.inf) if found is None else (found.centre, found.centre)


class Screened:
    """An arm of a screening, as the `Method` that asks for its blocks."""

    name = "screening"

    def __init__(self, contrast: Contrast, screening: Screening) -> None:
        self.contrast = contrast
        self.screening = screening
        self.planned = screening.planned

    def observe(self, block: Block) -> Decision:
        """Take in a closed block; all arms of the cell share it."""
        if block.cell == self.contrast.cell:
            self.screening.observe(block)
        return self.decision()

    def decision(self) -> Decision:
        """Return whether this arm is measured any more."""
        over = self.screening.ended or self.contrast.arm in self.screening.dropped
        return Decision("stop" if over else "continue", None, "none", OfScreening(None))

    def futile(self, more: int, worth: float) -> bool:
        """Return whether `more` pairs will hardly change the choice."""
        return self.screening.futile(more)

    def comparison(self) -> Comparison:
        """Return the comparison so far, without a verdict."""
        return self.screening.comparison(self.contrast)
