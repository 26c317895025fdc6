"""The method `sequential`: an exact test after every block, at an error rate that holds however often one looks.

One object watches one comparison of one end point with its own fixed share of the study's error rate. After each block:

1. better or worse: the sequential sign-flip test has crossed (`signflip`: exact, by the coin alone) on the kept-in
   pairs and, the same way, on the usable ones (`pairs`); the estimate lies in its own interval; and the confidence
   sequence of the campaign average, where there are pairs enough for one, does not contradict it;
2. equivalent: on both sets of pairs the same test has rejected both "the ratio is at least 1 + margin" and "at most
   1/(1 + margin)", which is the interval by inversion lying within the margin; the estimate lies in that interval; and
   the campaign average is known to lie within the margin too. Never where an attempt failed or could not be started;
3. otherwise the comparison goes on, to the declared budget of pairs; then it is undecided.

Error. Every verdict needs the kept-in test, so that the chance of a better or worse under the sharp null is at most
alpha, whatever was undelivered in either arm, and for every number of pairs: all other conditions can only take
verdicts away. That is why the share of undelivered attempts may be held against those made so far, which a look at the
data could have chosen. Pairs of which nothing is known are scored against whatever is claimed: so there are two walks
of kept-in pairs, one for "larger" and one for "smaller", which part at the first such pair.

How far a verdict reaches is named with it (`hugewise.model.results.Tier`): this campaign (the sign test), the campaign
average (`campaign`; from 100 pairs), beyond these sessions (`sessions`). A tier that the data cannot carry says so. The
intervals of the last two have an error of alpha each of their own, outside the study's split.

The estimand is the typical ratio of the usable pairs: where the test's own walk is zero (`inversion`). Its interval is
the set of ratios that the test has not rejected (`inversion`), so that it excludes 1 exactly when the test on the
usable pairs has crossed. It only ever narrows, while the estimate moves with all pairs: where differences are not
symmetric, or drift, the estimate can leave it. The pairs then share no one effect, and nothing is claimed.

A study may name a covariate (`covariate`). Tests, interval and estimate are then all made on the same differences with
it taken out. What is kept by inversion need not be an interval then, so every verdict also asks that the interval
shown bears it out: all of it above 1, below 1, or within the margin. The arm may have moved the covariate without that
being noticed, and a moved covariate makes an effect where there is none; so the interval has to bear the verdict out by
more than the largest bias that has not been excluded (`bias`). Until it does, the comparison goes on. A covariate that
differs by arm is refused by a check of its own, and the comparison ends without a verdict. Campaign average, session
means and evidence stay those of the plain differences.

Beside it an e-process (`evidence`) sees the kept-in pairs, and stops with the comparison. An e-value counts at any
stopping time, so at this one too: what it is when the sign test ends the comparison is what multiplies over runs
(`evidence`). It has no part in the verdict here.

The tiers of a claim: how far it reaches (`model.results.Tier`), and what the usable pairs say at that reach.

The verdict is made within the comparison's share of alpha. The intervals of the campaign average and of what lies
beyond these sessions are made with an error of the same size each, of their own: outside the study's split.

One set of pairs under the eyes of `sequential`: its tests as pairs come, its estimate, and its interval.

An arm that is measured beside those that are judged: it has an interval, no verdict, and no say in when it ends.

Its error. Whoever shows the second best beside the best has not asked whether it is better: so it has no share of the
study's error rate, and the judged comparisons have theirs whole, whatever the unjudged arm does. Its blocks end when
the last judged comparison of its cell ends, which the data of the judged arms decide. Its interval is by inversion of
the same exact test at the study's confidence: it holds whenever one looks, so also at an end that others choose, and
misses its own ratio with a chance of at most 1 - confidence. That it and the interval of a judged arm hold *together*
is not promised: whoever claims both has twice that chance of being wrong.

The sequential method for whoever asks whether an arm is no worse: it ends when that is known, either way.

An arm is *not worse* when the test has rejected, on the usable pairs and on the kept-in ones, that it is worse by the
margin or more; it is *worse by more* when "worse by the margin at most" is rejected on both. A smaller effect in either
direction ends nothing: that an arm is 1% slower says nothing against it where 2% are allowed for.

Error. Both claims are tests of an end of the margin by the same exact test (`sequential`), of which each side has half
of alpha: under "worse by the margin or more" the chance of ever having ended with "not worse" is at most alpha/2, for
an effect that is the same in every pair or symmetric around it. Better, worse and equivalent stay what `sequential`
makes of the same pairs: to look on for the other claim costs them nothing, as their tests hold whenever one looks.

What is said of it is read off the interval: "not worse" holds exactly when the interval ends before the margin.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from hugewise.model.results import Comparison, Reach, Spread, Tier, Verdict
from hugewise.model.trial import Block
from hugewise.stats import campaign, inversion, sessions, stopping
from hugewise.stats.campaign import Campaign
from hugewise.stats.covariate import FALSIFICATION_ALPHA, Controlled, falsification, variance_ratio
from hugewise.stats.dispersion import Dispersion
from hugewise.stats.evidence import EProcess, e_values
from hugewise.stats.method import Contrast, Decision, Effect, Method
from hugewise.stats.paired import Student, paired, scale
from hugewise.stats.pairs import Inference, Pair, Pairs, ratio_of
from hugewise.stats.power import least_pairs
from hugewise.stats.signflip import SignFlip


def campaign_ratio(campaign: Campaign, *, failures: int) -> Tier:
    """The campaign average of the log-ratio: as a ratio, one of geometric means."""
    found = None if failures else campaign.interval()
    if found is None:
        return _unsupported("campaign average", _FAILED if failures else campaign.reason())
    reason = f"geometric mean; asymptotic, by the design's coins; {_own_error(campaign.alpha)}"
    return _tier("campaign average", campaign.mean, found, reason)


def beyond_sessions(pairs: Sequence[Pair], alpha: float) -> Tier:
    """The mean over sessions like these, from the mean log-ratio of each."""
    by_session: dict[int, list[float]] = {}
    for pair in pairs:
        if pair.log_ratio is not None:
            by_session.setdefault(pair.session, []).append(pair.log_ratio)
    means = [math.fsum(values) / len(values) for values in by_session.values()]
    found = sessions.interval(means, alpha)
    if found is None:
        return _unsupported("beyond these sessions", sessions.reason(means, alpha))
    reason = f"over {len(means)} session means; {_own_error(alpha)}"
    return _tier("beyond these sessions", math.fsum(means) / len(means), found, reason)


_FAILED = "attempts failed, and a failure has no ratio"


def _own_error(alpha: float) -> str:
    return f"with an error of {alpha:.3g} of its own, outside the study's"


def _tier(name: Reach, centre: float, found: tuple[float, float], reason: str) -> Tier:
    low, high = found
    return Tier(
        name=name, supported=True, ratio=ratio_of(centre), low=ratio_of(low), high=ratio_of(high), reason=reason
    )


def _unsupported(name: Reach, reason: str | None) -> Tier:
    return Tier(name=name, supported=False, ratio=None, low=None, high=None, reason=reason or "no interval is known")


class Watched:
    """The tests of no difference and of both ends of the margin (log-ratio), each at `alpha` over `planned` pairs."""

    def __init__(self, alpha: float, planned: int, margin: float) -> None:
        self._alpha, self._planned, self._margin = alpha, planned, margin
        self.pairs = Controlled()
        self.test = SignFlip(alpha, planned)
        self._below_upper = SignFlip(alpha, planned)
        self._above_lower = SignFlip(alpha, planned)

    def add(self, difference: float, covariate: float | None) -> None:
        """Take a pair's difference, and that of its covariate."""
        value, weight = self.pairs.add(difference, covariate)
        self.test.add(value)
        self._below_upper.add(value - self._margin * weight)
        self._above_lower.add(value + self._margin * weight)

    @property
    def below(self) -> bool:
        """Whether "arm/baseline is 1 + margin or more" is rejected."""
        return self._below_upper.sign < 0

    @property
    def above(self) -> bool:
        """Whether "1/(1 + margin) or less" is rejected."""
        return self._above_lower.sign > 0

    @property
    def beyond(self) -> int:
        """1: "at most 1 + margin" is rejected; -1: "at least 1/(1 + margin)" is; 0: neither."""
        return 1 if self._below_upper.sign > 0 else -1 if self._above_lower.sign < 0 else 0

    def sign(self, theta: float) -> int:
        """Which way the test of this log-ratio has crossed, 0 where it has not."""
        return self.pairs.sign(theta, self._alpha, self._planned)

    def fits(self, low: float, high: float) -> bool:
        """Whether the estimate lies between these, and its own test has not rejected it."""
        centre = self.pairs.centre()
        if math.isinf(centre):
            return low <= centre <= high
        return low < centre < high and self.sign(centre) == 0

    def interval(self) -> tuple[float, float]:
        """The interval (`closely`)."""
        return closely(self.pairs, self._alpha, self._planned, self._margin)


def closely(pairs: Controlled, alpha: float, planned: int, margin: float) -> tuple[float, float]:
    """The interval of these pairs' log-ratio, by inversion of the test at `alpha` over `planned` pairs; an end that
    rounding put on "no change" or the margin (a log-ratio), or beyond it, is looked at closely.
    """
    tests = inversion.Inversion(pairs.values, alpha, planned, pairs.weights)
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
    interval holds whenever one looks, so that waiting for it costs no error. `covariate` is a name of
    `hugewise.model.metric.COVARIATES`, taken out of the differences.
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
        covariate: str | None = None,
    ) -> None:
        self.contrast = contrast
        self.planned = planned
        self.alpha = alpha
        self._margin = margin
        self.width = width
        self._covariate = covariate
        self.pairs = Pairs(contrast, covariate, spared=1)
        # By how much is the covariate different under the arm?
        self._moved = inversion.Interval(FALSIFICATION_ALPHA, planned)
        self._edge = round(math.log1p(margin), 9)  # as log-ratios are rounded: an effect of the margin itself ties
        # On the usable pairs, and on the kept-in ones with what is lost scored against "the arm is larger", or against
        # "smaller"; one and the same until they differ.
        self.usable = self._larger = self._smaller = Watched(alpha, planned, self._edge)
        self._average = campaign.Campaign(alpha)
        self._for_larger = self._for_smaller = EProcess()
        self._spread = Dispersion(alpha, planned)
        self._narrow_at: int | None = None
        self._known: tuple[Verdict, str, Reach | None] | None = None
        self._asked: dict[tuple[float, float], tuple[int, str]] = {}  # claims withheld: after which pair, and why

    def observe(self, block: Block) -> Decision:
        """Take in a closed block; after the stop nothing is taken in any more."""
        if not self._stopped():
            before = len(self.pairs.kept)
            pair = self.pairs.take(block)
            self._known = None
            for kept in self.pairs.kept[before:]:
                self._add(kept, pair)
        return self.decision()

    def decision(self) -> Decision:
        """What is known; cheap, so the interval is left to `comparison`."""
        verdict, reason, _ = self._verdict()
        return Decision("stop" if self._stopped() else "continue", None, verdict, reason)

    def comparison(self) -> Comparison:
        """The result with interval, tiers and the alpha spent. Some seconds at thousands of pairs."""
        verdict, reason, reach = self._verdict()
        effect, bias = self.effect(), self._bias()
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
            warnings=self._warnings(),
            **e_values(verdict, self._for_larger.up, self._for_smaller.down),
            corrected=self._corrected() if verdict in ("better", "worse") and self.width is None else None,
            spread=self._spread_found(),
            bias=None if bias is None or not math.isfinite(bias) else math.expm1(min(bias, 99)),
            provisional=self._provisional() if verdict == "undecided" and found.low is found.high is None else None,
        )

    def effect(self) -> Effect | None:
        """Estimate and interval of the usable pairs; None without any. The interval holds whenever one looks, however
        often. Milliseconds at a hundred pairs, a second at thousands.
        """
        if not self.pairs.usable:
            return None
        # A covariate that the arm moves is not used, and what it made of the interval not shown.
        moved = bool(self._moved.test.sign)
        low, high = (-math.inf, math.inf) if moved else self.usable.interval()
        centre = self._centre(self.pairs.usable) if moved else self.usable.pairs.centre()
        return Effect(
            ratio=ratio_of(centre),
            low=ratio_of(low) if math.isfinite(low) else None,
            high=ratio_of(high) if math.isfinite(high) else None,
            confidence=1 - self.alpha,
            p=math.nan,
            n=len(self.pairs.usable),
        )

    def _provisional(self) -> tuple[float, float] | None:
        """Ends of the t interval of the usable pairs, as ratios; None for fewer than three pairs, and where a pair has
        no log-ratio.
        """
        values = self.usable.pairs.values
        tests = paired(values) if all(map(math.isfinite, values)) else None
        ends = tests.interval(self.alpha) if isinstance(tests, Student) and tests.n >= _PROVISIONAL else None
        if ends is None or not math.isfinite(high := ratio_of(ends[1])):
            return None
        return ratio_of(ends[0]), high

    def _difference(self, pair: Pair) -> float:
        return pair.difference(higher_is_better=self.contrast.metric.better == "higher")

    def _add(self, kept: Pair, usable: Pair | None) -> None:
        """Take a block's kept-in pair, and the same pair where it is usable as it is."""
        if kept != usable and self.usable is self._larger:
            self.usable = copy.deepcopy(self._larger)
        if kept.lost and self._smaller is self._larger:
            self._smaller, self._for_smaller = copy.deepcopy((self._larger, self._for_larger))
        difference = self._difference(kept)
        up, down = (-math.inf, math.inf) if kept.lost else (difference, difference)
        self._larger.add(up, kept.covariate)
        self._for_larger.add(up)
        if self._smaller is not self._larger:
            self._smaller.add(down, kept.covariate)
            self._for_smaller.add(down)
        if kept.covariate is not None:
            self._moved.add(kept.covariate)
        self._spread.add(kept.arm, kept.baseline)
        if usable is None:
            return
        if self.usable is not self._larger:
            self.usable.add(self._difference(usable), usable.covariate)
        if usable.log_ratio is not None:
            self._average.add(usable.log_ratio)

    def _stopped(self) -> bool:
        if self.pairs.exhausted(self.planned) or self._moved.test.sign:
            return True
        verdict = self._verdict()[0]
        return verdict == "equivalent" or (verdict in ("better", "worse") and self._narrow())

    def _narrow(self) -> bool:
        """Whether the interval is as narrow as was asked for. Remembered for each pair: it is asked again and again."""
        if self.width is None or self._narrow_at == len(self.pairs.usable):
            return True
        effect = self.effect()
        ends = None if effect is None or effect.low is None or effect.high is None else (effect.low, effect.high)
        if ends is None or ends[1] - ends[0] > self.width:
            return False
        self._narrow_at = len(self.pairs.usable)
        return True

    def _verdict(self) -> tuple[Verdict, str, Reach | None]:
        """What is known after the last block; remembered until the next, as it is asked again and again."""
        if self._known is None:
            self._known = self._judged()
        return self._known

    def _judged(self) -> tuple[Verdict, str, Reach | None]:
        refusal = self.pairs.refusal(self.planned)
        if refusal is not None:
            return "none", refusal, None
        if self._moved.test.sign:
            return "none", f"{self._covariate}: {self._falsification()}", None
        usable, withheld = self.usable, ""
        within = usable.below and usable.above and self._smaller.below and self._larger.above
        if within and not self.pairs.failed:
            # What costs least is asked first: while a verdict is withheld, all of it is asked after every block.
            if not self._average.within(self._edge):
                withheld = "the campaign average is not known to lie within the margin, as the interval does"
            elif not (withheld := self._withheld(-self._edge, self._edge)):
                reason = f"the whole interval lies within the margin of {self._margin:.3g}, the campaign average too"
                return "equivalent", reason + self._also_kept(), "this campaign"
        if usable.test.sign:
            kept = self._larger if usable.test.sign > 0 else self._smaller
            if kept.test.sign != usable.test.sign:
                withheld = f"the test has crossed, but with all pairs kept in it has not{self._taken_out()}"
            else:
                sides = (0.0, math.inf) if usable.test.sign > 0 else (-math.inf, 0.0)
                if not (withheld := self._withheld(*sides)):
                    return self._crossed()
                withheld = f"the test has crossed, but {withheld}"
        return "undecided", withheld or self._open(), None

    def _open(self) -> str:
        """Why nothing is decided, though nothing stands against it."""
        least, pairs = least_pairs(self.alpha, self.planned), len(self.pairs.usable)
        if least is None:
            return f"{pairs} pairs; {self.planned} declared ones can decide nothing at this error rate: declare more"
        if pairs < self.planned:
            early = f"; no verdict is possible before pair {least}" if pairs < least else ""
            return self.pairs.shortfall(self.planned) + early
        return "the declared budget of pairs is used up and the test has not crossed"

    def _withheld(self, low: float, high: float) -> str:
        """Why a claim that the log-ratio lies between these is not made, though the tests make it; empty if it is.

        All pairs are gone through for it. So what was withheld is looked at again after a fiftieth more pairs, and at
        the last one.
        """
        pairs, (at, reason) = len(self.pairs.usable), self._asked.get((low, high), (0, ""))
        if not reason or pairs >= min(self.planned, at * 1.02 + 1):
            reason = self._objection(low, high)
            self._asked[low, high] = pairs, reason
        return reason

    def _objection(self, low: float, high: float) -> str:
        bias = self._bias()
        if bias is not None and not self._borne_out(low, high, bias):
            return (
                f"its interval without {self._covariate} is not beyond the bias of {math.expm1(min(bias, 99)):.2%} "
                "that the arm could have put there unnoticed by moving it"
            )
        return "" if self._fits(low, high) else "the estimate lies outside its interval: pairs share no one effect"

    def _fits(self, low: float, high: float) -> bool:
        return self.usable.fits(low, high)

    def _borne_out(self, low: float, high: float, bias: float) -> bool:
        """Whether the interval lies between these log-ratios by more than `bias`, with all pairs kept in too.

        Ends that their own tests have not rejected need no interval: most looks end there.
        """
        for end, side, kept in ((low + bias, 1, self._larger), (high - bias, -1, self._smaller)):
            for watched in {id(one): one for one in (self.usable, kept)}.values():
                if math.isfinite(end) and watched.sign(end) != side:
                    return False
        ends = self.usable.interval()
        return low + bias < ends[0] <= ends[1] < high - bias

    def _bias(self) -> float | None:
        """The largest bias of the log-ratio that a covariate moved by the arm could make without having been noticed.

        |b| times the largest shift of the covariate within its anytime interval, which holds with the error of its
        check. Infinite until that interval is bounded; None without a covariate, or where it has taken out nothing.
        """
        coefficient = self.usable.pairs.coefficient
        if self._covariate is None or coefficient == 0.0:
            return None
        return abs(coefficient) * max(abs(self._moved.low), abs(self._moved.high))

    def _falsification(self) -> str:
        moved = [pair.covariate for pair in self.pairs.kept if pair.covariate is not None]
        return falsification(moved, FALSIFICATION_ALPHA, budget=self.planned)[1]

    def _warnings(self) -> tuple[str, ...]:
        """What the reader should know beside the verdict."""
        broken = self.pairs.kept_in()
        said = (f"{broken}: they count against every claim in the test of all pairs",) if broken else ()
        if self._covariate is None or self._moved.test.sign:
            return said
        return *said, *self._of_covariate()

    def _of_covariate(self) -> tuple[str, ...]:
        pairs = self.pairs.usable
        missing = sum(pair.covariate is None for pair in pairs)
        if missing == len(pairs):
            return (f"the covariate {self._covariate} was measured in no pair: nothing was taken out",)
        if not any(pair.covariate for pair in pairs):
            return (f"the covariate {self._covariate} was the same on both sides of every pair: nothing was taken out",)
        bought = variance_ratio([self._difference(pair) for pair in pairs], self.usable.pairs.values)
        said = f"the covariate {self._covariate} was taken out of the differences"
        if bought is not None:
            said += f": their variance is {bought:.3g} times that of the plain ones"
        if missing:
            said += f"; it was missing in {missing} of {len(pairs)} pairs, which stay as they are"
        return said, self._falsification()

    def _also_kept(self) -> str:
        return f"; also with all pairs kept in{self._taken_out()}" if self.pairs.apart else ""

    def _taken_out(self) -> str:
        said = "; ".join(part for part in (self.pairs.taken_out(), self.pairs.kept_in()) if part)
        return f" ({said})" if said else ""

    def _crossed(self) -> tuple[Verdict, str, Reach | None]:
        sign = self.usable.test.sign
        average = self._campaign_interval()
        verdict: Verdict = "better" if (sign > 0) == (self.contrast.metric.better == "higher") else "worse"
        crossed = f"the exact test crossed at pair {self.usable.test.crossed_at}{self._also_kept()}"
        if average is None:
            return verdict, f"{crossed}: in this campaign", "this campaign"
        low, high = average
        if (high < 0) if sign > 0 else (low > 0):
            return "undecided", f"{crossed}, but the campaign average contradicts it", None
        if (low > 0) if sign > 0 else (high < 0):
            return verdict, f"{crossed}, and the campaign average agrees", "campaign average"
        return verdict, f"{crossed}; the campaign average does not contradict it", "this campaign"

    def _campaign_interval(self) -> tuple[float, float] | None:
        """Interval of the campaign average of the log-ratio; None where there is none (too few pairs, failures)."""
        return None if self.pairs.failures else self._average.interval()

    def _spread_found(self) -> Spread:
        """The finding on spread; none where pairs were lost, as what is lost may be what lies far out on one side."""
        found = self._spread.finding()
        return msgspec.structs.replace(found, shown=None, pairs=None) if self.pairs.lost else found

    def _corrected(self) -> float | None:
        """The ratio corrected for having stopped when it looked decided."""
        pairs, values = len(self.pairs.usable), self.usable.pairs
        if pairs > self.planned:
            return None
        found = stopping.corrected(
            values.centre(), scale(values.values), self.usable.test.crossed_at, self.alpha, self.planned, pairs=pairs
        )
        return None if found is None else ratio_of(found)

    def _ratio_all(self) -> float | None:
        """The estimate with the pairs of undelivered pages, which have their times."""
        if not self.pairs.everything:
            return None
        if len(self.pairs.everything) == len(self.pairs.usable) and not self._moved.test.sign:
            return ratio_of(self.usable.pairs.centre())  # they are the same
        return ratio_of(self._centre(self.pairs.everything))

    def _centre(self, pairs: Sequence[Pair]) -> float:
        """The typical log-ratio of these pairs, with the covariate taken out unless the arm moves it."""
        controlled = Controlled()
        for pair in pairs:
            controlled.add(self._difference(pair), None if self._moved.test.sign else pair.covariate)
        return controlled.centre()

    def _tiers(self, effect: Effect | None) -> tuple[Tier, ...]:
        if effect is None or self._moved.test.sign:
            return ()
        here = Tier(
            name="this campaign",
            supported=True,
            ratio=effect.ratio,
            low=effect.low,
            high=effect.high,
            reason="exact: by the coin of each block alone, for an effect that is the same in every pair"
            + (f"; without {self._covariate}" if self._covariate else "")
            + ("; of the usable pairs, and exact with the others kept in" if self.pairs.apart else ""),
        )
        return (
            here,
            campaign_ratio(self._average, failures=self.pairs.failures),
            beyond_sessions(self.pairs.usable, self.alpha),
        )


_REASON = "measured beside what is judged: it claims nothing, and its interval holds by itself"


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
        covariate: str | None = None,
    ) -> None:
        self.contrast = contrast
        self.planned = planned
        self.alpha = alpha
        self._judged = judged
        self._pairs = Pairs(contrast, covariate, spared=1)
        self._controlled = Controlled()
        self._margin = round(math.log1p(margin), 9)

    def observe(self, block: Block) -> Decision:
        """Take in a closed block, whatever those before it have shown."""
        if not self._pairs.exhausted(self.planned) and (pair := self._pairs.take(block)) is not None:
            difference = pair.difference(higher_is_better=self.contrast.metric.better == "higher")
            self._controlled.add(difference, pair.covariate)
        return self.decision()

    def decision(self) -> Decision:
        """Whether it is measured any more: as long as something judged is, and something can come of it."""
        going = any(one.decision().status == "continue" for one in self._judged)
        wanted = going and not self._pairs.exhausted(self.planned)
        return Decision("continue" if wanted else "stop", None, "none", _REASON)

    def comparison(self) -> Comparison:
        """Estimate and interval, and nothing that could be taken for a claim."""
        finding = Inference("none", self._pairs.refusal(self.planned) or _REASON)
        if self._pairs.usable:
            low, high = closely(self._controlled, self.alpha, self.planned, self._margin)
            finding = Inference(
                "none",
                finding.reason,
                ratio_of(self._controlled.centre()),
                ratio_of(low) if math.isfinite(low) else None,
                ratio_of(high) if math.isfinite(high) else None,
            )
        return self._pairs.comparison(self.name, self.planned, finding, ratio_all=None, confidence=1 - self.alpha)


class NotWorse(Sequential):
    """The sequential method, ended by whether the arm is worse by more than the margin: no `width` is waited for."""

    @property
    def settled(self) -> Literal["not worse", "worse by more"] | None:
        """What is known of that; never where an attempt failed or could not be started."""
        usable, smaller, larger = self.usable, self._smaller, self._larger
        if self.pairs.failed or self.pairs.refusal(self.planned) is not None:
            return None
        if self.contrast.metric.better == "higher":
            if usable.above and larger.above:
                return "not worse"
            return "worse by more" if usable.beyond < 0 and smaller.beyond < 0 else None
        if usable.below and smaller.below:
            return "not worse"
        return "worse by more" if usable.beyond > 0 and larger.beyond > 0 else None

    def comparison(self) -> Comparison:
        """The result, as `sequential` gives it; what that corrects for is another stop than this one."""
        return msgspec.structs.replace(super().comparison(), corrected=None)

    def _stopped(self) -> bool:
        return self.pairs.exhausted(self.planned) or bool(self._moved.test.sign) or self.settled is not None

    def _judged(self) -> tuple[Verdict, str, Reach | None]:
        verdict, reason, reach = super()._judged()
        if verdict in ("better", "equivalent", "none") or self.settled is None:
            return verdict, reason, reach
        by = f"the margin of {self._margin:.3g}"
        known = f"not worse by {by} or more" if self.settled == "not worse" else f"worse by more than {by}"
        return verdict, f"{known}; {reason}", reach
