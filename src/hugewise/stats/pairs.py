"""Pairs from closed blocks: which attempts of an arm and its baseline make a pair, and when no verdict is possible.

The same for every method. Of each block whose coin drew both the arm and the baseline:

- An attempt of the arm and one of the baseline in the same complete block make a pair; it gives one log-ratio. Of two
  copies, those of one number make a pair: the numbers are drawn with the labels.
- A side that failed or timed out has no value: the pair says which side, and the method scores it as the worst.
- Pages not delivered, or not proven, in the arm or the baseline take the pair out of what is *usable*: by the proof
  alone, never by the time. A failed attempt that left no proof stays in, as a failure.
- A metric that is absent on a side takes the pair out too. One that is 0, negative or not finite has no log-ratio;
  since leaving it out would select by the outcome, the comparison gets no verdict.
- A side that no try could start (a pool that is short, a guest that does not boot) leaves no attempt, as one does of
  which nobody can tell whether its clock ran (`Block.lost`); one that started at a later try may have waited for a
  better moment; and a block may break off, or be disturbed.

All of that is known after the coin, and may hang on it ("Which pairs reach the test" in docs/concepts/sequential.md).
So `kept` has a pair for each of these blocks, in their order; undelivered ones have their times, and a pair is `lost`
where it has none. `against` scores lost pairs as the largest difference *against* the claim that is made. (A lost pair
scored 0 would be a dropped pair, and one scored against the side that lost it makes verdicts by itself.) And above 1%
of the attempts that were made of either side there is no verdict but the reason; `spared` attempts are always allowed.

`PairLog` keeps columns of numbers, and makes a `Pair` for whoever looks: 60 bytes a pair instead of 180.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, overload

import msgspec

from hugewise.model.reason import Absent, FewPairs, Lack, Lacking, LeftOut, NotJudged, NotPositive, Reason, Unknown
from hugewise.model.results import Comparison, Verdict
from hugewise.model.trial import Attempt, Block, label
from hugewise.stats import signflip
from hugewise.stats.method import Contrast


class Pair(msgspec.Struct, frozen=True, gc=False):
    """`log_ratio` is log(arm) - log(baseline), None when a side failed; so is that side's value.

    lost  what it would have been is not known: see `against`
    """

    block: int
    session: int
    log_ratio: float | None
    arm: float | None
    baseline: float | None
    arm_failed: bool
    baseline_failed: bool
    lost: bool = False

    def difference(self, *, higher_is_better: bool) -> float:
        """Return the log-ratio, with a failure as the worst: infinitely far on the bad side; 0 where both failed."""
        if self.log_ratio is not None:
            return self.log_ratio
        bad = -1 if higher_is_better else 1
        sign = bad * (self.arm_failed - self.baseline_failed)
        return math.inf * sign if sign else 0.0


def blocks_of(pairs: Sequence[Pair], *, higher_is_better: bool) -> list[signflip.Drawn]:
    """Return what the pairs of a block show, in logarithms, with a failure as the worst: all placings of two copies.

    Pairs of two sessions, and more than one failure, are shown pair by pair: the numbers of the copies, which make the
    pairs, then decide which pairs are known, and so not all placings are as likely.
    """

    def logarithm(value: float | None) -> float:
        return (-math.inf if higher_is_better else math.inf) if value is None else math.log(value)

    failed = sum(pair.arm_failed + pair.baseline_failed for pair in pairs)
    known = sum((pair.arm is not None) + (pair.baseline is not None) for pair in pairs)
    if len(pairs) > 1 and failed <= 1 and failed + known == 2 * len(pairs) and len({one.session for one in pairs}) == 1:
        return [
            signflip.placings([logarithm(pair.arm) for pair in pairs], [logarithm(pair.baseline) for pair in pairs])
        ]
    return [pair.difference(higher_is_better=higher_is_better) for pair in pairs]


class _Columns:
    """All pairs of a comparison; an absent number is NaN, which no pair has."""

    def __init__(self) -> None:
        self._blocks, self._sessions = array("q"), array("i")
        self._numbers = tuple(array("d") for _ in range(3))
        self._flags = bytearray()
        self._last: Pair | None = None

    def add(self, pair: Pair) -> int:
        """Add the pair, and return its place. The pair that was added last has a place already."""
        if pair is not self._last:
            self._blocks.append(pair.block)
            self._sessions.append(pair.session)
            ratios, arms, baselines = self._numbers
            ratios.append(math.nan if pair.log_ratio is None else pair.log_ratio)
            arms.append(math.nan if pair.arm is None else pair.arm)
            baselines.append(math.nan if pair.baseline is None else pair.baseline)
            self._flags.append(pair.arm_failed | pair.baseline_failed << 1 | pair.lost << 2)
            self._last = pair
        return len(self._flags) - 1

    def log_ratio(self, place: int) -> float | None:
        number = self._numbers[0][place]
        return None if math.isnan(number) else number

    def flags(self, place: int) -> int:
        return self._flags[place]

    def at(self, place: int) -> Pair:
        log_ratio, arm, baseline = (None if math.isnan(column[place]) else column[place] for column in self._numbers)
        flags = self._flags[place]
        return Pair(
            self._blocks[place],
            self._sessions[place],
            log_ratio,
            arm,
            baseline,
            bool(flags & 1),
            bool(flags & 2),
            bool(flags & 4),
        )


class PairLog(Sequence[Pair]):
    """Pairs in the order in which they came. `beside`: another log of the same comparison, whose pairs it shares."""

    def __init__(self, beside: PairLog | None = None) -> None:
        self._columns: _Columns = _Columns() if beside is None else beside._columns
        self._places = array("I")

    def append(self, pair: Pair) -> None:
        """Take a pair in; one that the log beside it has just taken in costs four bytes."""
        self._places.append(self._columns.add(pair))

    def log_ratios(self) -> list[float | None]:
        """Return the log-ratios of all pairs, at a tenth of the time that the pairs themselves take."""
        return list(map(self._columns.log_ratio, self._places))

    def failures(self) -> tuple[int, int]:
        """Return in how many pairs the arm failed, and the baseline."""
        flags = list(map(self._columns.flags, self._places))
        return sum(flag & 1 for flag in flags), sum(each >> 1 & 1 for each in flags)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Pair]:
        return map(self._columns.at, self._places)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> list[Pair]: ...
    def __getitem__(self, index: int | slice) -> Pair | list[Pair]:
        if isinstance(index, slice):
            return [self._columns.at(place) for place in self._places[index]]
        return self._columns.at(self._places[index])


_TOLERATED = 0.01  # share of a side's turns that may lack pages, proof, a value or a start
_SHOWN = 30  # blocks after which a comparison that can have no verdict any more ends: enough to see what there was


def log_ratio(arm: float, baseline: float) -> float:
    """log(arm) - log(baseline), of positive numbers, to a billionth.

    Without rounding, pairs that tie (a coarse clock) would tie or not by the last bit of a logarithm, and so the ranks
    and the verdict would depend on the unit.
    """
    return round(math.log(arm) - math.log(baseline), 9)


class Inference(msgspec.Struct, frozen=True):
    """Result of a method for the pairs so far; ratios are arm/baseline."""

    verdict: Verdict
    reason: Reason
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


_Lack = Literal["not delivered", "unproven", "absent", "not started", "late", "lost"]


class _Turn(NamedTuple):
    """Turn of a side in a block: a value, a workload failure, nothing (`missing`), or no turn (neither). `out`: it
    takes its pair out of the usable ones.
    """

    value: float | None = None
    failed: bool = False
    missing: bool = False
    out: bool = False


@dataclass
class _SideTurns:
    """One side's turns: how many there were, in how many something was lacking, what, and why."""

    name: str
    metric: str
    seen: int = 0
    bad: int = 0
    lacking: Counter[_Lack] = field(default_factory=Counter)
    reasons: dict[_Lack, Counter[str]] = field(default_factory=dict)

    def take(self, lacks: Mapping[_Lack, str]) -> None:
        """Count a turn, and what it lacks with the reasons."""
        self.seen += 1
        self.bad += bool(lacks)
        for what, why in lacks.items():
            self.lacking[what] += 1
            self.reasons.setdefault(what, Counter())[why] += 1

    def refusal(self, future: int, spared: int) -> Lacking | None:
        """Return why there is no verdict, even if `future` more turns lack nothing."""
        return None if self.bad <= max(spared, _TOLERATED * (self.seen + future)) else Lacking(self.lacks())

    def lacks(self) -> tuple[Lack, ...]:
        """Return what the turns lack; empty where nothing is lacking."""
        return tuple(
            Lack(what, self.name, self.metric, count, self.seen, self.reasons[what].most_common(1)[0][0])
            for what, count in self.lacking.items()
            if count
        )


class Pairs:
    """The pairs of one comparison, in the order of their blocks.

    usable      what the estimate and its interval are made of
    everything  the same with the pairs of undelivered or unproven pages
    kept        what the kept-in test is made of: one for each block whose coin drew both
    """

    def __init__(self, contrast: Contrast, *, spared: int = 0) -> None:
        self.contrast = contrast
        self.kept = PairLog()
        self.everything = PairLog(beside=self.kept)
        self.usable = PairLog(beside=self.kept)
        self._spared = spared
        self._arm = _SideTurns(contrast.arm, contrast.metric.name)
        self._baseline = _SideTurns(contrast.baseline, contrast.metric.name)
        self.lost = 0
        """Kept-in pairs of which nothing is known."""
        self.broken_off = 0
        """Blocks that were not completed, or disturbed, after their coin was tossed."""
        self.failed = 0
        """Blocks in which a side failed, or could not be started."""
        self.failures = 0
        """Usable pairs in which a side failed."""
        self._not_positive: NotPositive | None = None

    @property
    def apart(self) -> bool:
        """True if the kept-in pairs differ from the usable ones."""
        return len(self.kept) > len(self.usable) or self.lost > 0

    @property
    def seen(self) -> int:
        """Blocks in which a side had its turn, whatever came of it."""
        return max(self._arm.seen, self._baseline.seen)

    def take(self, block: Block) -> list[Pair]:
        """Return the usable pairs of a closed block, one for each copy at most; `kept` and `everything` grow by theirs.

        Blocks of other cells, or whose coin drew only one of the two, change nothing.
        """
        if block.cell != self.contrast.cell:
            return []
        drawn = block.arms or {attempt.label for attempt in block.attempts}
        several = map(self._names, range(1, 1 + self.contrast.copies))
        both = [names for names in several if names[0] in drawn and names[1] in drawn]
        self.broken_off += bool(both) and block.state != "complete"
        usable = (self._take(block, names) for names in both)
        return [pair for pair in usable if pair is not None]

    def _names(self, copy: int) -> tuple[str, str]:
        return label(self.contrast.arm, copy), label(self.contrast.baseline, copy)

    def _take(self, block: Block, names: tuple[str, str]) -> Pair | None:
        gone = any(name in block.unstarted or name in block.lost for name in names)
        whole = block.state == "complete"
        arm, baseline = (_last(block, name) if whole and not gone else None for name in names)
        over = self._turn(self._arm, names[0], arm, block)
        under = self._turn(self._baseline, names[1], baseline, block)
        pair = self._pair(block, arm, baseline, over, under)
        # Made in two sessions: whoever ended the first one between them knew whose turn it was.
        apart = arm is not None and baseline is not None and arm.session != baseline.session
        again = apart or any(name in block.late or name in block.redone for name in names)
        both = over.failed and under.failed
        if pair is None or again or both:
            self.lost += 1
            self.kept.append(Pair(block.number, 0, None, None, None, False, False, lost=True))
        else:
            self.kept.append(pair)
        self.failed += gone or over.failed or under.failed
        if pair is None:
            return None
        self.everything.append(pair)
        if over.out or under.out:
            return None
        self.usable.append(pair)
        self.failures += pair.arm_failed or pair.baseline_failed
        return pair

    def _turn(self, side: _SideTurns, labelled: str, attempt: Attempt | None, block: Block) -> _Turn:
        name = self.contrast.metric.name
        if attempt is None:
            if (why := block.unstarted.get(labelled)) is not None:
                side.take({"not started": why})
            elif (why := block.lost.get(labelled)) is not None:
                side.take({"lost": why})
            return _Turn(missing=why is not None, out=True)
        lacks: dict[_Lack, str] = {}
        late: dict[_Lack, str] = {"late": ""} if labelled in block.late else {}  # which keeps its pair
        if self.contrast.proof_demanded and (lack := _undelivered(attempt)) is not None:
            lacks[lack] = attempt.delivery.reason or "no reason is known"
        if attempt.state == "failed":
            side.take({**lacks, **late})
            return _Turn(failed=True, out=bool(lacks))
        value = attempt.metrics.get(name)
        if value is None:
            lacks["absent"] = attempt.absent.get(name, "it was not reported")
        elif not (value > 0 and math.isfinite(value)):
            self._not_positive = NotPositive(name, value, attempt.arm)
            value = None
        side.take({**lacks, **late})
        return _Turn(value=value, missing=value is None, out=bool(lacks))

    def _pair(
        self, block: Block, arm: Attempt | None, baseline: Attempt | None, over: _Turn, under: _Turn
    ) -> Pair | None:
        if arm is None or baseline is None or over.missing or under.missing:
            return None
        known = over.value is not None and under.value is not None
        ratio = log_ratio(over.value, under.value) if known else None  # type: ignore[arg-type]
        return Pair(block.number, arm.session, ratio, over.value, under.value, over.failed, under.failed)

    def comparison(
        self,
        method: str,
        planned: int,
        finding: Inference,
        *,
        ratio_all: float | None,
        confidence: float,
        p: float | None = None,
        final: bool = True,
    ) -> Comparison:
        """Return a method's result on these pairs, as the report has it; `ratio_all` is the estimate on
        `everything`.
        """
        low, high = finding.low, finding.high
        bounded = finding.verdict == "undecided" and low is not None and high is not None
        of_arm, of_baseline = self.usable.failures()
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
            failures_arm=of_arm,
            failures_baseline=of_baseline,
            constant=self._constant(),
            unstarted_arm=self._arm.lacking["not started"],
            unstarted_baseline=self._baseline.lacking["not started"],
        )

    def _constant(self) -> bool:
        """Return whether all usable pairs, two at least, have the same ratio (`log_ratio` rounds, so that equal ones
        tie).
        """
        ratios = set(self.usable.log_ratios())
        return len(self.usable) > 1 and len(ratios) == 1 and None not in ratios

    def refusal(self, planned: int) -> Reason | None:
        """Return why there is no verdict on the attempts that were made. More of them can cure lacks in a few."""
        metric = self.contrast.metric
        if metric.better == "neutral":
            return NotJudged(metric.name)
        if not self.everything and self.seen >= planned and (why := self._absent_throughout()) is not None:
            return Absent(metric.name, why)
        return self._never(0)

    def exhausted(self, planned: int) -> bool:
        """Return whether no more blocks are asked for: enough pairs, too many taken out, or no verdict possible any
        more.
        """
        if len(self.usable) >= planned or self.seen >= 2 * planned:
            return True
        if self._never(max(0, planned - len(self.usable))) is not None:
            return self.seen >= min(planned, _SHOWN)
        return self.seen >= planned and self.contrast.metric.better == "neutral"

    def _never(self, future: int) -> Reason | None:
        if self._not_positive is not None:
            return self._not_positive
        return self._arm.refusal(future, self._spared) or self._baseline.refusal(future, self._spared)

    def of_arm_alone(self, planned: int) -> bool:
        """Return whether the permanent obstacle to a verdict is the arm's alone: without the arm there would be
        none.
        """
        side, future = self._baseline, max(0, planned - len(self.usable)) if self.usable else 0
        of_baseline = self._not_positive is not None and self._not_positive.arm == side.name
        if self.contrast.metric.better == "neutral" or of_baseline:
            return False
        return not side.lacking["absent"] == side.seen > 0 and side.refusal(future, self._spared) is None

    def _absent_throughout(self) -> str | None:
        for side in (self._arm, self._baseline):
            if side.lacking["absent"] == side.seen > 0:
                return side.reasons["absent"].most_common(1)[0][0]
        return None

    def shortfall(self, planned: int, least: int | None = None) -> FewPairs:
        """Return how far the pairs are from the plan, and what is missing."""
        return FewPairs(len(self.usable), planned, self.left_out().lacks, least)

    def left_out(self) -> LeftOut:
        """Return what was taken out of the usable pairs, and what is not known of the kept-in ones."""
        return LeftOut((*self._arm.lacks(), *self._baseline.lacks()), self.unknown())

    def unknown(self) -> Unknown | None:
        """Return what is not known of the kept-in pairs; None where nothing is lacking."""
        return Unknown(self.lost, self.broken_off) if self.lost else None


def against(pairs: Iterable[Pair], claim: int, *, higher_is_better: bool) -> list[Pair]:
    """The pairs with each lost one as a failure of the side that speaks against `claim` (1: the arm is larger; -1)."""
    arm = (claim > 0) == higher_is_better  # a failed arm is smaller where higher is better, else larger
    return [
        msgspec.structs.replace(pair, arm_failed=arm, baseline_failed=not arm, lost=False) if pair.lost else pair
        for pair in pairs
    ]


def _undelivered(attempt: Attempt) -> Literal["not delivered", "unproven"] | None:
    """Return what the attempt's delivery lacks; None where it is as promised, nothing was promised, or a failure left
    no proof.
    """
    delivery = attempt.delivery
    if delivery.target.kind == "any" or delivery.delivered is True:
        return None
    if delivery.delivered is None:
        return None if attempt.state == "failed" else "unproven"
    return "not delivered"


def _last(block: Block, labelled: str) -> Attempt | None:
    counted = [a for a in block.attempts if a.label == labelled and a.state in ("accepted", "failed")]
    return counted[0] if len(counted) == 1 else max(counted, key=lambda attempt: attempt.number, default=None)


def ratio_of(logarithm: float) -> float:
    """exp, where a ratio beyond all numbers is infinite."""
    try:
        return math.exp(logarithm)
    except OverflowError:
        return math.inf
