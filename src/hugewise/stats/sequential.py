"""The method `sequential`: an exact test after every block, at an error rate that holds however often one looks.

One object watches one comparison of one end point with its own fixed share of the study's error rate. After each block:

1. better or worse: the sequential sign-flip test has crossed (`signflip`: exact, by the coin alone) on the kept-in
   pairs and, the same way, on the usable ones (`pairs`); the estimate lies in its own interval; and the confidence
   sequence of the campaign average, where there are pairs enough for one, does not contradict it;
2. equivalent: on both sets of pairs the same test has rejected both "the ratio is at least 1 + margin" and "at most
   1/(1 + margin)", which is the interval by inversion lying within the margin; the estimate lies in that interval; and
   the campaign average is known to lie within the margin, too (`Campaign.within`). Never where an attempt failed or
   could not be started. It is a claim on the typical ratio, and says which share of stalling runs it cannot exclude
   (`campaign.unseen`); its reach is the campaign average where the mean stays within the margin even with these
   (`Campaign.bounded`);
3. otherwise the comparison goes on, to the declared budget of pairs; then it is undecided.

Error. Every verdict needs the kept-in test, so that the chance of a better or worse under the sharp null is at most
alpha, whatever was undelivered in either arm, and for every number of pairs: all other conditions can only take
verdicts away. That is why the share of undelivered attempts may be held against those made so far, which a look at the
data could have chosen. Pairs of which nothing is known are scored against whatever is claimed: so there are two walks
of kept-in pairs, one for "larger" and one for "smaller", which part at the first such pair.

The estimand is the typical ratio of the usable pairs, with its interval (`inversion`). How far a verdict reaches is
named with it (`model.results.Tier`): this campaign (the sign test), the campaign average (`campaign`), beyond these
sessions (`sessions`). The intervals of the last two have an error of alpha each of their own, outside the study's
split. Beside all this an e-process (`evidence`) sees the kept-in pairs and stops with the comparison.

`Unjudged` is an arm beside the judged ones: it has an interval, no verdict, no share of the error rate, and no say in
when its blocks end. Its interval is by inversion of the same test at the study's confidence: it holds whenever one
looks, so also at an end that others choose. That it and the interval of a judged arm hold *together* is not promised.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import groupby
from typing import Generic, TypeVar

import msgspec

from hugewise.model.reason import (
    AverageOf,
    BudgetTooSmall,
    Crossed,
    Exactly,
    Failures,
    Known,
    LeftOut,
    NoOneEffect,
    NotShown,
    NotWithAll,
    OverSessions,
    Reason,
    WithinMargin,
)
from hugewise.model.results import DIRECTIONS, Comparison, Reach, Spread, Tier, Verdict
from hugewise.model.trial import Block
from hugewise.stats import campaign, futility, inversion, sessions, stopping
from hugewise.stats.campaign import Campaign
from hugewise.stats.dispersion import Dispersion
from hugewise.stats.evidence import EProcess, e_values
from hugewise.stats.method import Contrast, Decision, Effect, Method
from hugewise.stats.paired import Student, paired, scale
from hugewise.stats.pairs import Inference, Pair, Pairs, blocks_of, ratio_of
from hugewise.stats.power import least_pairs
from hugewise.stats.signflip import Drawn, SignFlip, less, rows, verdict


def campaign_ratio(campaign: Campaign, *, failures: int) -> Tier:
    """Return the campaign average of the log-ratio: as a ratio, one of geometric means."""
    bounds = None if failures else campaign.interval()
    if bounds is None:
        return _unsupported("campaign average", Failures(failures, "average") if failures else campaign.reason())
    return _tier("campaign average", campaign.mean, bounds, AverageOf(campaign.alpha))


def beyond_sessions(pairs: Sequence[Pair], alpha: float) -> Tier:
    """Return the mean over sessions like these, from the mean log-ratio of each."""
    by_session: dict[int, list[float]] = {}
    for pair in pairs:
        if pair.log_ratio is not None:
            by_session.setdefault(pair.session, []).append(pair.log_ratio)
    means = [math.fsum(values) / len(values) for values in by_session.values()]
    bounds = sessions.interval(means, alpha)
    if bounds is None:
        return _unsupported("beyond these sessions", sessions.reason(means, alpha))
    return _tier("beyond these sessions", math.fsum(means) / len(means), bounds, OverSessions(len(means), alpha))


def _tier(name: Reach, centre: float, found: tuple[float, float], reason: Reason) -> Tier:
    low, high = found
    return Tier(
        name=name, supported=True, ratio=ratio_of(centre), low=ratio_of(low), high=ratio_of(high), reason=reason
    )


def _unsupported(name: Reach, reason: Reason | None) -> Tier:
    assert reason is not None
    return Tier(name=name, supported=False, ratio=None, low=None, high=None, reason=reason)


class Differences:
    """Differences of blocks (log-ratios), a failure infinitely far on the bad side; `centre` is remembered."""

    def __init__(self) -> None:
        self.values: list[Drawn] = []
        self._centre: tuple[int, float] | None = None  # of so many blocks

    def centre(self) -> float:
        """Return the typical log-ratio (`inversion.point`). Raises ValueError without pairs."""
        if self._centre is None or self._centre[0] != len(self.values):
            self._centre = len(self.values), inversion.point(self.values)
        return self._centre[1]


_Test = TypeVar("_Test", SignFlip, EProcess)


class _Lagging(Generic[_Test]):
    """A test of these values, less `theta`, which takes in those that are new when it is asked: most never are."""

    def __init__(self, test: _Test, values: Sequence[Drawn], theta: float = 0.0) -> None:
        self._test: _Test = test
        self._values, self._theta, self._taken = values, theta, 0

    def now(self) -> _Test:
        """Return the test after all of the values."""
        for drawn in self._values[self._taken :]:
            self._test.add(less(drawn, self._theta))
            self._taken += 1
        return self._test


class PairTests:
    """The tests of no difference and of both ends of the margin (log-ratio), each at `alpha` over `budget` pairs, in
    blocks of `copies`.
    """

    def __init__(self, alpha: float, budget: int | None, margin: float, copies: int = 1) -> None:
        self._alpha, self._budget, self._margin, self._copies = alpha, budget, margin, copies
        self.pairs = Differences()
        self.test = SignFlip(alpha, budget, copies=copies)
        values = self.pairs.values
        self._below_upper = _Lagging(SignFlip(alpha, budget, copies=copies), values, margin)
        self._above_lower = _Lagging(SignFlip(alpha, budget, copies=copies), values, -margin)
        self._evidence = _Lagging(EProcess(), values)

    def add(self, drawn: Drawn) -> None:
        """Take what a block shows."""
        self.pairs.values.append(drawn)
        self.test.add(drawn)

    @property
    def evidence(self) -> EProcess:
        """The e-process of no difference."""
        return self._evidence.now()

    @property
    def below(self) -> bool:
        """True if "arm/baseline is 1 + margin or more" is rejected."""
        return self._below_upper.now().sign < 0

    @property
    def above(self) -> bool:
        """True if "1/(1 + margin) or less" is rejected."""
        return self._above_lower.now().sign > 0

    @property
    def far_below(self) -> bool:
        """True if "1/(1 + margin) or more" is rejected."""
        return self._above_lower.now().sign < 0

    def sign(self, theta: float) -> int:
        """Return which way the test of this log-ratio has crossed, 0 where it has not."""
        return verdict(rows(self.pairs.values).less(theta), self._alpha, self._budget, copies=self._copies)

    def fits(self, low: float, high: float) -> bool:
        """Return whether the estimate lies between these, and its own test has not rejected it."""
        centre = self.pairs.centre()
        if math.isinf(centre):
            return low <= centre <= high
        return low < centre < high and self.sign(centre) == 0

    def interval(self) -> tuple[float, float]:
        """Return the interval (`closely`)."""
        return closely(self.pairs.values, self._alpha, self._budget, self._margin, self._copies)


def closely(
    values: Sequence[Drawn], alpha: float, budget: int | None, margin: float, copies: int
) -> tuple[float, float]:
    """Return the interval of these blocks' log-ratio, by inversion of the test at `alpha` over `budget` pairs; an end
    that rounding put on "no change" or the margin (a log-ratio), or beyond it, is looked at closely.
    """
    tests = inversion.Inversion(values, alpha, budget, copies=copies)
    low, high = (
        tests.end(side, 1e-7, end) if any(abs(end - known) <= 2e-4 for known in (0.0, margin, -margin)) else end
        for side, end in zip((1, -1), tests.ends(), strict=True)
    )
    return low, high


_TYPICAL = "typical ratio"
_PROVISIONAL = 3  # pairs from which a t interval is shown


class Sequential:
    """The sequential method for one comparison.

    `alpha` is its share of the study's error rate, `planned` the declared budget of pairs: both fixed before the first
    block. With `width` a better or worse does not end it until the interval of the ratio is at most as wide; the
    interval holds whenever one looks, so that waiting for it costs no error. `open_ended`: no budget was declared;
    `planned` is the number of blocks that there are.
    """

    name = "sequential"

    def __init__(
        self,
        contrast: Contrast,
        *,
        planned: int,
        alpha: float,
        margin: float,
        width: float | None = None,
        open_ended: bool = False,
    ) -> None:
        self.contrast = contrast
        self.planned = planned
        self.alpha = alpha
        self._margin = margin
        self._budget = budget = None if open_ended else planned
        self.width = width
        self.pairs = Pairs(contrast, spared=contrast.copies)
        self._edge = round(math.log1p(margin), 9)  # as log-ratios are rounded: an effect of the margin itself ties
        # On the usable pairs, and on the kept-in ones with what is lost scored against "the arm is larger", or against
        # "smaller"; one and the same until they differ.
        self.usable = self._larger = self._smaller = PairTests(alpha, budget, self._edge, contrast.copies)
        self._average = campaign.Campaign(alpha)
        self._spread = Dispersion(alpha, budget)
        self._narrow_at: int | None = None
        self._known: tuple[Verdict, Reason, Reach | None] | None = None
        self._asked: dict[
            tuple[float, float], tuple[int, Reason | None]
        ] = {}  # claims withheld: after which pair, and why

    def observe(self, block: Block) -> Decision:
        """Take in a closed block; after the stop nothing is taken in any more."""
        if not self._stopped():
            self.take(block)
        return self.decision()

    def take(self, block: Block) -> None:
        """Take in a closed block, whatever has been decided: of measurements whose end nobody asked this method for."""
        before = len(self.pairs.kept)
        usable = self.pairs.take(block)
        self._known = None
        if kept := self.pairs.kept[before:]:
            self._add(kept, usable)

    def decision(self) -> Decision:
        """Return the decision so far; cheap, as the interval is left to `comparison`."""
        verdict, reason, _ = self._verdict()
        return Decision("stop" if self._stopped() else "continue", None, verdict, reason)

    def comparison(self) -> Comparison:
        """Return the result with interval, tiers and the alpha spent. Some seconds at thousands of pairs."""
        verdict, reason, reach = self._verdict()
        effect, unknown = self.effect(), self.pairs.unknown()
        finding = Inference(verdict, reason)
        if effect is not None:
            finding = Inference(verdict, reason, effect.ratio, effect.low, effect.high)
        found = self.pairs.comparison(
            self.name, self.planned, finding, ratio_all=self._ratio_all(), confidence=1 - self.alpha
        )
        return msgspec.structs.replace(
            found,
            estimand=_TYPICAL,
            alpha=self.alpha,
            alpha_spent=max(self._larger.test.spent, self._smaller.test.spent),
            reach=reach,
            tiers=self._tiers(effect),
            warnings=() if unknown is None else (unknown,),
            **e_values(verdict, self._larger.evidence.up, self._smaller.evidence.down),
            corrected=self._corrected() if verdict in DIRECTIONS and self.width is None else None,
            spread=self._spread_found(),
            provisional=self._provisional() if verdict == "undecided" and found.low is found.high is None else None,
        )

    def effect(self) -> Effect | None:
        """Estimate and interval of the usable pairs; None without any. The interval holds whenever one looks, however
        often. Milliseconds at a hundred pairs, a second at thousands.
        """
        if not self.pairs.usable:
            return None
        low, high = self.usable.interval()
        return Effect(
            ratio=ratio_of(self.usable.pairs.centre()),
            low=ratio_of(low) if math.isfinite(low) else None,
            high=ratio_of(high) if math.isfinite(high) else None,
            confidence=1 - self.alpha,
            p=math.nan,
            n=len(self.pairs.usable),
        )

    def futile(self, more: int, worth: float) -> bool:
        """Return whether `more` pairs will hardly decide, nor newly rule out a gain of `worth` (a share).

        False before the interval is bounded, and where the estimate has left it.
        """
        low, high = self.usable.interval() if self.pairs.usable else (-math.inf, math.inf)
        if math.isinf(low) or math.isinf(high) or not low < self.usable.pairs.centre() < high:
            return False
        after = futility.forecast(low, high, len(self.pairs.usable), more)
        if futility.decides(after, self._edge):
            return False
        if self.contrast.metric.better == "higher":
            gain, least, wanted = high, after.high, math.log1p(worth)
        else:
            gain, least, wanted = -low, -after.low, -math.log1p(-worth)
        return gain < wanted or least >= wanted

    def _provisional(self) -> tuple[float, float] | None:
        """Ends of the t interval of the usable pairs, as ratios; None for fewer than three pairs, and where a pair has
        no log-ratio.
        """
        values = [ratio for ratio in self.pairs.usable.log_ratios() if ratio is not None]
        tests = paired(values) if len(values) == len(self.pairs.usable) else None
        ends = tests.interval(self.alpha) if isinstance(tests, Student) and tests.n >= _PROVISIONAL else None
        if ends is None or not math.isfinite(high := ratio_of(ends[1])):
            return None
        return ratio_of(ends[0]), high

    def difference(self, pair: Pair) -> float:
        """Return the log-ratio of a pair, with a failure as the worst."""
        return pair.difference(higher_is_better=self.contrast.metric.better == "higher")

    def _drawn(self, pairs: Sequence[Pair]) -> list[Drawn]:
        return blocks_of(pairs, higher_is_better=self.contrast.metric.better == "higher")

    def _add(self, kept: Sequence[Pair], usable: Sequence[Pair]) -> None:
        lost = sum(pair.lost for pair in kept)
        if kept != usable and self.usable is self._larger:
            self.usable = copy.deepcopy(self._larger)
        if lost and self._smaller is self._larger:
            self._smaller = copy.deepcopy(self._larger)
        known = self._drawn([pair for pair in kept if not pair.lost])
        for drawn in (*known, *([-math.inf] * lost)):
            self._larger.add(drawn)
        if self._smaller is not self._larger:
            for drawn in (*known, *([math.inf] * lost)):
                self._smaller.add(drawn)
        if self.usable is not self._larger:
            for drawn in self._drawn(usable):
                self.usable.add(drawn)
        for pair in usable:
            if pair.log_ratio is not None:
                self._average.add(pair.log_ratio)

    def _stopped(self) -> bool:
        if self.pairs.exhausted(self.planned):
            return True
        verdict = self._verdict()[0]
        return verdict == "equivalent" or (verdict in DIRECTIONS and self._narrow())

    def _narrow(self) -> bool:
        # remembered for each pair: it is asked again and again
        if self.width is None or self._narrow_at == len(self.pairs.usable):
            return True
        effect = self.effect()
        ends = None if effect is None or effect.low is None or effect.high is None else (effect.low, effect.high)
        if ends is None or ends[1] - ends[0] > self.width:
            return False
        self._narrow_at = len(self.pairs.usable)
        return True

    def _verdict(self) -> tuple[Verdict, Reason, Reach | None]:
        # remembered until the next block, as it is asked again and again
        if self._known is None:
            self._known = self._judged()
        return self._known

    def _judged(self) -> tuple[Verdict, Reason, Reach | None]:
        refusal = self.pairs.refusal(self.planned)
        if refusal is not None:
            return "none", refusal, None
        usable = self.usable
        withheld: Reason | None = None
        within = usable.below and usable.above and self._smaller.below and self._larger.above
        if within and not self.pairs.failed:
            # What costs least is asked first: while a verdict is withheld, all of it is asked after every block.
            if not self._average.within(self._edge):
                withheld = Known("average open")
            elif (withheld := self._withheld(-self._edge, self._edge)) is None:
                return self._equivalent()
        if usable.test.sign:
            kept = self._larger if usable.test.sign > 0 else self._smaller
            if kept.test.sign != usable.test.sign:
                withheld = NotWithAll(self.pairs.left_out())
            else:
                sides = (0.0, math.inf) if usable.test.sign > 0 else (-math.inf, 0.0)
                if (withheld := self._withheld(*sides, crossed=True)) is None:
                    return self._crossed()
        return "undecided", withheld or self._open(), None

    def _equivalent(self) -> tuple[Verdict, Reason, Reach | None]:
        mean = self._average.bounded(self._edge)
        unseen = campaign.unseen(len(self.pairs.usable), self.alpha)
        reason = WithinMargin(self._margin, mean, self._left_out(), unseen)
        return "equivalent", reason, "campaign average" if mean else "this campaign"

    def _open(self) -> Reason:
        if self._budget is None:
            return NotShown(len(self.pairs.usable))
        least, pairs = least_pairs(self.alpha, self.planned, self.contrast.copies), len(self.pairs.usable)
        if least is None:
            return BudgetTooSmall(pairs, self.planned)
        if pairs < self.planned:
            return self.pairs.shortfall(self.planned, least if pairs < least else None)
        return Known("budget used")

    def _withheld(self, low: float, high: float, *, crossed: bool = False) -> Reason | None:
        """Return why a claim that the log-ratio lies between these is not made, though the tests make it, or None.

        All pairs are gone through for it. So what was withheld is looked at again after a fiftieth more pairs, and at
        the last one.
        """
        pairs, (at, reason) = len(self.pairs.usable), self._asked.get((low, high), (0, None))
        if reason is None or pairs >= min(self.planned, at * 1.02 + 1):
            reason = None if self._fits(low, high) else NoOneEffect(crossed)
            self._asked[low, high] = pairs, reason
        return reason

    def _fits(self, low: float, high: float) -> bool:
        return self.usable.fits(low, high)

    def _left_out(self) -> LeftOut | None:
        return self.pairs.left_out() if self.pairs.apart else None

    def _crossed(self) -> tuple[Verdict, Reason, Reach | None]:
        sign = self.usable.test.sign
        average = self._campaign_interval()
        verdict: Verdict = "better" if (sign > 0) == (self.contrast.metric.better == "higher") else "worse"
        at, apart = self.usable.test.crossed_at, self._left_out()
        if average is None:
            return verdict, Crossed(at, None, apart), "this campaign"
        low, high = average
        if (high < 0) if sign > 0 else (low > 0):
            return "undecided", Crossed(at, "contradicts", apart), None
        if (low > 0) if sign > 0 else (high < 0):
            return verdict, Crossed(at, "agrees", apart), "campaign average"
        return verdict, Crossed(at, "open", apart), "this campaign"

    def _campaign_interval(self) -> tuple[float, float] | None:
        return None if self.pairs.failures else self._average.interval()

    def _spread_found(self) -> Spread:
        for pair in self.pairs.kept[self._spread.exact.pairs :]:
            self._spread.add(pair.arm, pair.baseline)
        spread = self._spread.finding()
        return msgspec.structs.replace(spread, shown=None, pairs=None) if self.pairs.lost else spread

    def _corrected(self) -> float | None:
        pairs, values = len(self.pairs.usable), self.pairs.usable
        if pairs > self.planned or self._budget is None:
            return None
        estimate = stopping.corrected(
            self.usable.pairs.centre(),
            scale([*map(self.difference, values)]),
            self.usable.test.crossed_at,
            self.alpha,
            self.planned,
            pairs=pairs,
            copies=self.contrast.copies,
        )
        return None if estimate is None else ratio_of(estimate)

    def _ratio_all(self) -> float | None:
        if not self.pairs.everything:
            return None
        if len(self.pairs.everything) == len(self.pairs.usable):
            return ratio_of(self.usable.pairs.centre())  # they are the same
        of_blocks = groupby(self.pairs.everything, key=lambda pair: pair.block)
        return ratio_of(inversion.point(drawn for _, pairs in of_blocks for drawn in self._drawn([*pairs])))

    def _tiers(self, effect: Effect | None) -> tuple[Tier, ...]:
        if effect is None:
            return ()
        here = Tier(
            name="this campaign",
            supported=True,
            ratio=effect.ratio,
            low=effect.low,
            high=effect.high,
            reason=Exactly(self.pairs.apart),
        )
        return (
            here,
            campaign_ratio(self._average, failures=self.pairs.failures),
            beyond_sessions(self.pairs.usable, self.alpha),
        )


_BESIDE = Known("beside")


class Unjudged:
    """A comparison without a verdict, over the blocks of the `judged` ones of its cell, to which more may still come.

    `alpha`: one less the confidence of its interval; `planned`: the declared budget of pairs.
    """

    name = "unjudged"

    def __init__(
        self,
        contrast: Contrast,
        judged: Sequence[Method],
        *,
        planned: int,
        alpha: float,
        margin: float,
    ) -> None:
        self.contrast = contrast
        self.planned = planned
        self.alpha = alpha
        self._judged = judged
        self._pairs = Pairs(contrast, spared=contrast.copies)
        self._differences = Differences()
        self._margin = round(math.log1p(margin), 9)

    def observe(self, block: Block) -> Decision:
        """Take in a closed block, whatever those before it have shown."""
        if not self._pairs.exhausted(self.planned):
            higher = self.contrast.metric.better == "higher"
            self._differences.values += blocks_of(self._pairs.take(block), higher_is_better=higher)
        return self.decision()

    def decision(self) -> Decision:
        """Return whether the arm is measured any more: as long as a judged one is, and more blocks can help."""
        going = any(one.decision().status == "continue" for one in self._judged)
        wanted = going and not self._pairs.exhausted(self.planned)
        return Decision("continue" if wanted else "stop", None, "none", _BESIDE)

    def comparison(self) -> Comparison:
        """Estimate and interval, and nothing that could be taken for a claim."""
        finding = Inference("none", self._pairs.refusal(self.planned) or _BESIDE)
        if self._pairs.usable:
            low, high = closely(self._differences.values, self.alpha, self.planned, self._margin, self.contrast.copies)
            finding = Inference(
                "none",
                finding.reason,
                ratio_of(self._differences.centre()),
                ratio_of(low) if math.isfinite(low) else None,
                ratio_of(high) if math.isfinite(high) else None,
            )
        return self._pairs.comparison(self.name, self.planned, finding, ratio_all=None, confidence=1 - self.alpha)
