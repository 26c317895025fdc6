"""Decision between settings by effect, footprint (all memory that others cannot have) and reach. Pure.

A setting is dominated by another that is at least as good in all three, and better in one. Effects are compared in
whole margins and footprints in whole percents (`_STEP`), on one grid: so noise does not order equal settings, and
dominance has no circles. A setting with an unknown value (None, never 0) takes no part.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Literal

import msgspec

from hugewise.advise.candidates import Reach
from hugewise.model.results import CellResult, Comparison, Results
from hugewise.model.trial import Attempt, pairs_of
from hugewise.stats import inversion, power
from hugewise.stats.paired import sign_test


class SettingFootprint(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of an arm's attempts, at their most.

    resident    what was charged to its cgroup, page cache and page tables with it; where there was none, the resident
                memory of the largest process
    pool        huge pages that were reserved for it; 0: none were
    """

    resident: int | None
    pool: int

    @property
    def total(self) -> int | None:
        """Resident memory and the pool, used or not: resident memory has no page of a pool."""
        return None if self.resident is None else self.resident + self.pool


class FootprintChange(msgspec.Struct, frozen=True, kw_only=True):
    """Typical ratio of the total footprint to the baseline's within blocks, with its interval by itself."""

    ratio: float
    low: float | None
    high: float | None
    confidence: float
    pairs: int


def footprint(attempts: Iterable[Attempt]) -> SettingFootprint:
    """Return the footprint of these attempts of one arm."""
    seen = list(attempts)
    resident = [one.peak_bytes for one in seen if one.peak_bytes is not None]
    return SettingFootprint(resident=max(resident, default=None), pool=max((one.pool_bytes for one in seen), default=0))


def blocks_of(attempts: Iterable[Attempt], arm: str, baseline: str) -> list[tuple[Attempt, Attempt]]:
    """Return the accepted attempts of the arm with those of the baseline in the same blocks, in their order."""
    found: defaultdict[int, list[Attempt]] = defaultdict(list)
    for one in attempts:
        found[one.block].append(one)
    return [pair for _, several in sorted(found.items()) for pair in pairs_of(several, arm, baseline)]


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


class TradeOff(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table: a setting; `dominated_by` one that is nowhere worse; `why` nothing is known of it."""

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
    """Return the pairs that decide a comparison 4 times in 5 if the effect is as in these; None where none do."""
    logs = _logs(pairs, metric)
    if len(logs) < _PLANNED or not (sd := stdev(logs)):
        return None
    effect = abs(fmean(logs))
    shift = max(effect, math.log1p(margin) - effect) / sd
    return power.pairs_for_assurance(shift, len(logs) - 1, alpha, chance=_CHANCE)


def decisive(pairs: Sequence[tuple[Attempt, Attempt]], metrics: Iterable[str], alpha: float) -> str:
    """Return a sentence on the first metric (all better low) that the sign test rejects at `alpha`; else empty."""
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
    """Return whether the arm's runs fail more often than the baseline's (Fisher's exact test, one-sided, at 5%)."""
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


def _cost(ratio: float | None, better: str) -> float | None:
    return None if ratio is None else math.log(ratio) * (-1 if better == "higher" else 1)


def runner_up(estimates: Mapping[str, float | None], better: str, chosen: str, out: Iterable[str] = ()) -> str:
    """Return the best of the other settings by its finite estimate, without `out`; empty where there is none."""
    gone = {chosen, *out}
    known = {name: cost for name, ratio in estimates.items() if (cost := _cost(finite(ratio), better)) is not None}
    return min((name for name in known if name not in gone), key=known.__getitem__, default="")


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
