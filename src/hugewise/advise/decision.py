"""Decision between settings by effect, footprint and reach, for each objective. Pure.

Objectives (`Priority`)
speed    the best judged metric; a setting that takes far more memory is not taken without asking
tail     the same of an upper quantile
memory   the smallest footprint of those that are not worse in the metric by more than the margin

A setting is dominated by another that is at least as good in effect, footprint and reach, and better in one. Effects
are compared in whole margins and footprints in whole percents (`_STEP`), on one grid for all settings: so noise does
not order equal settings, and dominance has no circles. A setting with an unknown value takes no part.

The causes of a gain are page faults, or page walks and caches, split by `stats.cpu_split`. They explain a gain, and are
no part of any verdict. Page walks are reported separately where the processor's counters were read. Stalls are events
of the whole machine.

A footprint is all memory that other programs cannot have meanwhile. Unknown values are None, never 0. A total sums the
known values; without resident memory there is no total.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Literal

import msgspec

from hugewise.advise.candidates import Reach
from hugewise.model.results import CellResult, Comparison, Results
from hugewise.model.trial import Attempt
from hugewise.report import numbers
from hugewise.stats import inversion, power
from hugewise.stats.cpu_split import cpu_split
from hugewise.stats.paired import sign_test

CauseTold = Literal["faults", "walks", "both", "not told apart"]

_WALKS = ("dtlb_walk_steps", "walk_cycles_user", "walks_user", "dtlb_load_misses")


class GainCauses(msgspec.Struct, frozen=True, kw_only=True):
    """Differences of an arm from the baseline, by pairs of the same blocks. Medians of attempts, None where not known.

    told         what the difference is of; `why` it cannot be told, and what `would` tell
    share        of the difference in CPU time that which is the kernel's, 0 to 1 (beyond, the two parts differ in
                 sign), with its interval; `saved`: whether CPU time was saved, in seconds a run
    faults       page faults of a run: of the baseline, of the arm
    walks        page walks, by the first counter that was read (`walk_metric`)
    stalls       waits for compaction, and faults that fell back to small pages, of the whole machine meanwhile
    """

    told: CauseTold
    why: str = ""
    would: str = ""
    share: float | None = None
    low: float | None = None
    high: float | None = None
    saved: float | None = None
    faults: tuple[float | None, float | None] = (None, None)
    walks: tuple[float | None, float | None] = (None, None)
    walk_metric: str = ""
    stalls: tuple[float | None, float | None] = (None, None)
    fallbacks: tuple[float | None, float | None] = (None, None)


def causes(pairs: Sequence[tuple[Attempt, Attempt]], planned: int) -> GainCauses:
    """Return the causes that the pairs (arm, baseline) show, of `planned` that were declared."""
    walks = next((name for name in _WALKS if None not in _medians(pairs, name)), "")
    seen = GainCauses(
        told="not told apart",
        faults=_medians(pairs, "page_faults"),
        walks=_medians(pairs, walks) if walks else (None, None),
        walk_metric=walks,
        stalls=_medians(pairs, "compact_stalls"),
        fallbacks=_medians(pairs, "thp_fallbacks"),
    )
    known = [
        (system, system + user)
        for one, other in pairs
        if (system := _less(one, other, "system_s")) is not None and (user := _less(one, other, "user_s")) is not None
    ]
    split = cpu_split(known, planned)
    found = msgspec.structs.replace(seen, saved=split.saved, share=split.share, low=split.low, high=split.high)
    if not split.told:
        return _untold(found, split.why, split.would)
    return msgspec.structs.replace(found, told=split.told)


def _untold(found: GainCauses, why: str, would: str) -> GainCauses:
    # counted page walks tell by themselves
    counted = "" if found.walk_metric else ", or a processor whose counters of page walks can be read"
    return msgspec.structs.replace(found, why=why, would=f"{would}{counted}")


def _less(one: Attempt, other: Attempt, name: str) -> float | None:
    """Return how much less the arm took than the baseline."""
    mine, theirs = one.metrics.get(name), other.metrics.get(name)
    return None if mine is None or theirs is None else theirs - mine


def _medians(pairs: Sequence[tuple[Attempt, Attempt]], name: str) -> tuple[float | None, float | None]:
    """Return the medians of the baseline and of the arm."""
    mine = [value for one, _ in pairs if (value := one.metrics.get(name)) is not None]
    theirs = [value for _, other in pairs if (value := other.metrics.get(name)) is not None]
    return (median(theirs) if theirs else None, median(mine) if mine else None)


def explained(found: GainCauses) -> Iterator[str]:
    """Yield the causes in sentences, as far as they are known."""
    before, after = found.faults
    faults = "" if before is None or after is None else f" Page faults a run: {before:,.0f} before, {after:,.0f} after."
    if found.saved is None or found.told == "not told apart":
        tells = f". To tell them apart it would take {found.would}" if found.would else ""
        yield f"Cause: faults and page walks are not told apart: {found.why}{tells}.{faults}"
    else:
        what = "saved" if found.saved > 0 else "lost"
        span = f"{_percents(found.low, found.high)} of the CPU time that is {what}" if found.low is not None else ""
        mostly = {
            "faults": "mostly page faults",
            "walks": "mostly page walks and caches, in the program itself",
            "both": "page faults, and page walks and caches",
        }[found.told]
        yield f"Cause: {mostly}; the kernel's time is {span} (at 95%, by itself).{faults}"
    before, after = found.walks
    if before and after is not None:
        yield f"Page walks ({found.walk_metric}): {numbers.change(after / before)}, by medians, without an interval."
    stalls = [
        f"{after:,.0f} {what} a run (before: {before:,.0f})"
        for what, (before, after) in (
            ("waits for compaction", found.stalls),
            ("faults that fell back to small pages", found.fallbacks),
        )
        if before is not None and after is not None and (before or after)
    ]
    if stalls:
        yield f"Stalls, of the whole machine meanwhile: {'; '.join(stalls)}."


def _percents(low: float | None, high: float | None) -> str:
    # an interval beyond all or nothing means that the two parts differ in sign
    if low is None or high is None:
        return "not bounded"
    return (
        f"{100 * abs(max(low, 0.0)):.0f}% to {100 * min(high, 1.0):.0f}%"  # also turns -0.0 into 0
        if low < 1 and high > 0
        else ("more than all" if low >= 1 else "none")
    )


_POOL = "hugetlb:"
_WHILE_HELD = ("ranges", "live")  # proofs that look at memory while it is in use


class SettingFootprint(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of an arm's attempts, at their most.

    resident    what was charged to its cgroup, page cache and page tables with it; where there was none, the resident
                memory of the largest process
    charged     which of the two: page tables are counted in the first, and not known in the second
    pool        huge pages that were reserved for it; 0: none were
    pool_used   of them those that it had; None where its pages were not seen while it had them all: a command is
                looked at when it ends, and has given back by then what it has
    """

    resident: int | None
    charged: bool
    pool: int
    pool_used: int | None

    @property
    def total(self) -> int | None:
        """Resident memory and the pool, used or not: resident memory has no page of a pool."""
        return None if self.resident is None else self.resident + self.pool

    @property
    def unused(self) -> int | None:
        """Bytes of the pool that were never used."""
        return None if self.pool_used is None else max(0, self.pool - self.pool_used)


class FootprintChange(msgspec.Struct, frozen=True, kw_only=True):
    """Total footprint over that of the baseline, of attempts of the same blocks: the typical ratio, and its interval by
    itself at `confidence` (by inversion, as for times); an end is None where the pairs do not bound it.
    """

    ratio: float
    low: float | None
    high: float | None
    confidence: float
    pairs: int


def footprint(attempts: Iterable[Attempt]) -> SettingFootprint:
    """Return the footprint of these attempts of one arm."""
    seen = list(attempts)
    resident = [one.peak_bytes for one in seen if one.peak_bytes is not None]
    used = [size for one in seen if (size := _used(one)) is not None]
    return SettingFootprint(
        resident=max(resident, default=None),
        charged=bool(seen) and all(one.metrics.get("charged_peak_bytes") is not None for one in seen),
        pool=max((one.pool_bytes for one in seen), default=0),
        pool_used=max(used, default=None),
    )


def _used(one: Attempt) -> int | None:
    """Return the peak bytes of pools in use; None where that was not seen."""
    if not one.pool_bytes:
        return 0
    if not one.delivery.coverage or one.delivery.proof not in _WHILE_HELD:
        return None
    return sum(size for name, size in one.delivery.coverage.items() if name.startswith(_POOL))


def blocks_of(attempts: Iterable[Attempt], arm: str, baseline: str) -> list[tuple[Attempt, Attempt]]:
    """Return the accepted attempts of the arm with those of the baseline in the same blocks, in their order."""
    found: defaultdict[int, dict[str, Attempt]] = defaultdict(dict)
    for one in attempts:
        if one.state == "accepted" and one.arm in (arm, baseline):
            found[one.block][one.arm] = one
    return [(two[arm], two[baseline]) for _, two in sorted(found.items()) if len(two) == 2]


def footprint_change(
    pairs: Sequence[tuple[Attempt, Attempt]], planned: int, confidence: float
) -> FootprintChange | None:
    """Return how much more an arm took than the baseline, over their pairs of `planned` declared ones, or None."""
    totals = [(footprint([one]).total, footprint([other]).total) for one, other in pairs]
    logs = [round(math.log(mine / theirs), 9) for mine, theirs in totals if mine and theirs]
    if not logs:
        return None
    typical, (low, high) = inversion.point(logs), inversion.interval(logs, 1 - confidence, max(planned, len(logs)))
    if not low <= typical <= high:  # the values drift: the pairs share no single change
        low, high = -math.inf, math.inf
    return FootprintChange(
        ratio=math.exp(typical),
        low=math.exp(low) if math.isfinite(low) else None,
        high=math.exp(high) if math.isfinite(high) else None,
        confidence=confidence,
        pairs=len(logs),
    )


Priority = Literal["speed", "memory", "tail"]
KnownFrom = Literal["confirmed", "beside", "screening"]
"""Source of a result: the confirmation at the user's error rate, an interval of its own beside that, or the screening,
which claims nothing.
"""

_STEP = 0.01  # share of a footprint below which there is no difference
_REACHES: Sequence[Reach] = ("process", "pool", "host")


class MeasuredSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run for one of its arms against `as-is`. Ratios are arm/as-is.

    ratio, low, high   of the judged metric at `confidence`, from n pairs; None where the pairs do not bound it
    growth             of the footprint; None where it is not known
    causes             of the confirmed one alone
    """

    name: str
    known: KnownFrom
    n: int
    ratio: float | None
    low: float | None
    high: float | None
    confidence: float
    footprint: SettingFootprint
    growth: FootprintChange | None
    causes: GainCauses | None = None


class TradeOff(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table: a setting that could be set. `dominated_by` names one that is at least as good in all, and
    better in something; empty where there is none, or too little is known. `why`: why nothing is known of it.
    """

    name: str
    reach: Reach | None
    seen: MeasuredSetting | None = None
    dominated_by: str = ""
    why: str = ""


def measured(results: Results, cell: CellResult, chosen: str = "") -> tuple[MeasuredSetting, ...]:
    """Return every arm of a run's cell, the baseline first. `chosen`: the confirmed arm; a screening has none."""
    mine = [one for one in results.attempts if one.cell == cell.cell and one.state == "accepted"]
    own = footprint(one for one in mine if one.arm == cell.baseline)
    known: KnownFrom = "confirmed" if chosen else "screening"
    found = [
        MeasuredSetting(
            name=cell.baseline,
            known=known,
            n=max((one.n for one in cell.comparisons), default=0),
            ratio=1.0,
            low=1.0,
            high=1.0,
            confidence=results.confidence,
            footprint=own,
            growth=None if own.total is None else FootprintChange(
                ratio=1.0, low=1.0, high=1.0, confidence=results.confidence, pairs=0
            ),
        )
    ]  # fmt: skip
    for one in cell.comparisons:
        pairs = blocks_of(mine, one.arm, cell.baseline)
        found.append(
            MeasuredSetting(
                name=one.arm,
                known=known if not chosen or one.arm == chosen else "beside",
                n=one.n,
                ratio=finite(one.ratio),
                low=finite(one.low),
                high=finite(one.high),
                confidence=one.confidence,
                footprint=footprint(attempt for attempt in mine if attempt.arm == one.arm),
                growth=footprint_change(pairs, one.planned, one.confidence),
                causes=causes(pairs, one.planned) if one.arm == chosen else None,
            )
        )
    return tuple(found)


def finite(ratio: float | None) -> float | None:
    """Return the ratio; None where there is none, as where failures outweigh."""
    return None if ratio is None or not math.isfinite(ratio) or ratio <= 0 else ratio


_FAILS = 0.05
_PLANNED = 4  # pairs, at least, that a forecast rests on
_CHANCE = 0.8


def pairs_to_decide(
    pairs: Sequence[tuple[Attempt, Attempt]], metric: str, *, margin: float, alpha: float
) -> int | None:
    """Return the pairs that decide a comparison 4 times in 5, if the effect is what these pairs show on average: that
    there is a difference, or none above the margin. None where these pairs are too few, or no number of them decides.
    """
    logs = _logs(pairs, metric)
    if len(logs) < _PLANNED or not (sd := stdev(logs)):
        return None
    effect = abs(fmean(logs))
    shift = max(effect, math.log1p(margin) - effect) / sd
    return power.pairs_for_assurance(shift, len(logs) - 1, alpha, chance=_CHANCE)


def decisive(pairs: Sequence[tuple[Attempt, Attempt]], metrics: Iterable[str], alpha: float) -> str:
    """Return a sentence on the first of the metrics, all better low, that leans to one side in so many pairs that the
    sign test rejects at `alpha`; empty where none does.
    """
    for metric in metrics:
        logs = [log for log in _logs(pairs, metric) if log]
        lower = sum(log < 0 for log in logs)
        higher = len(logs) - lower
        if sign_test(lower, higher) <= alpha:
            side = "lower" if lower > higher else "higher"
            return f"{metric} was {side} in {max(lower, higher)} of {len(logs)} pairs: --metric {metric} judges by it"
    return ""


def _logs(pairs: Sequence[tuple[Attempt, Attempt]], metric: str) -> list[float]:
    values = [(mine.value(metric), theirs.value(metric)) for mine, theirs in pairs]
    return [math.log(mine / theirs) for mine, theirs in values if mine and theirs and mine > 0 and theirs > 0]


def failures(cell: CellResult) -> dict[str, str]:
    """Return the arms of which runs failed, or could not be started, each with how many."""
    found = {arm.arm: f"{arm.failed} of its {arm.failed + arm.n} runs failed" for arm in cell.arms if arm.failed}
    unstarted = [one for one in cell.comparisons if one.unstarted_arm]
    return found | {one.arm: f"it could not be started in {one.unstarted_arm} blocks" for one in unstarted}


def fails(one: Comparison, cell: CellResult) -> bool:
    """Return whether the arm's runs fail, or cannot be started, more often than the baseline's: any of them where none
    of the baseline's did; else by Fisher's exact test, one-sided, at 5%.
    """
    runs = {arm.arm: (arm.failed, arm.failed + arm.n) for arm in cell.arms}
    mine, of_mine = runs.get(one.arm, (0, 0))
    theirs, of_theirs = runs.get(one.baseline, (0, 0))
    mine, of_mine = mine + one.unstarted_arm, of_mine + one.unstarted_arm
    theirs, of_theirs = theirs + one.unstarted_baseline, of_theirs + one.unstarted_baseline
    if not theirs:
        return mine > 0
    both = mine + theirs
    tail = sum(math.comb(of_mine, k) * math.comb(of_theirs, both - k) for k in range(mine, min(both, of_mine) + 1))
    return tail <= _FAILS * math.comb(of_mine + of_theirs, both)


def no_worse(low: float | None, high: float | None, better: str, margin: float) -> bool | None:
    """Return True if the interval shows that an arm is not worse by more than the margin, False if it shows that it is,
    else None.
    """
    low, high = (low, high) if better != "higher" else _inverse(low, high)
    if high is not None and high <= 1 + margin:
        return True
    return False if low is not None and low > 1 + margin else None


def _inverse(low: float | None, high: float | None) -> tuple[float | None, float | None]:
    # the ends of baseline/arm
    return (1 / high if high else None, 1 / low if low else None)


def _cost(ratio: float | None, better: str) -> float | None:
    """Return how much worse the arm is, as a log-ratio."""
    return None if ratio is None else math.log(ratio) * (-1 if better == "higher" else 1)


def runner_up(estimates: Mapping[str, float | None], better: str, chosen: str, out: Iterable[str] = ()) -> str:
    """Return the best of the others by its estimate, of those that are not `out`; empty where there is none. Who has no
    finite ratio has failed, and is nobody's second.
    """
    gone = {chosen, *out}
    known = {name: cost for name, ratio in estimates.items() if (cost := _cost(finite(ratio), better)) is not None}
    return min((name for name in known if name not in gone), key=known.__getitem__, default="")


def smallest(seen: Sequence[MeasuredSetting], better: str, margin: float) -> tuple[str, str]:
    """Choose for memory, by estimates: the candidate that goes on, and the one measured beside it; empty where nothing
    takes less.

    The smallest of those that are not worse by more than the margin; of equal ones the first. Where all that take less
    are worse, the one that is so by least: its confirmation shows by how much.
    """
    less = [
        (grid, cost, one.name)
        for one in seen
        if one.growth is not None
        and (grid := _grid(one.growth.ratio, _STEP)) < 0
        and (cost := _cost(one.ratio, better)) is not None
    ]
    fit = sorted((each for each in less if each[1] <= math.log1p(margin)), key=lambda each: each[0])
    order = fit or sorted(less, key=lambda each: each[1])
    names = [*(name for *_, name in order), "", ""]
    return names[0], names[1]


def _grid(ratio: float, step: float) -> int:
    return round(math.log(ratio) / math.log1p(step))


def trade_offs(rows: Iterable[TradeOff], better: str, margin: float) -> tuple[TradeOff, ...]:
    """Return the rows, each with the setting that dominates it: of several the one with the best effect."""
    found = list(rows)
    places = {row.name: place for row in found if (place := _place(row, better, margin)) is not None}
    made = []
    for row in found:
        mine = places.get(row.name)
        over = [name for name, its in places.items() if mine is not None and _dominates(its, mine)]
        made.append(msgspec.structs.replace(row, dominated_by=min(over, key=places.__getitem__, default="")))
    return tuple(made)


def _place(row: TradeOff, better: str, margin: float) -> tuple[int, int, int] | None:
    """Return effect, footprint and reach on the common grid, the less the better; None where something is not known."""
    seen = row.seen
    if seen is None or seen.ratio is None or seen.growth is None:
        return None
    cost = _cost(seen.ratio, better)
    assert cost is not None
    reach = -1 if row.reach is None else _REACHES.index(row.reach)
    return _grid(math.exp(cost), margin), _grid(seen.growth.ratio, _STEP), reach


def _dominates(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return one != other and all(mine <= its for mine, its in zip(one, other, strict=True))
