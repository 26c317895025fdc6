"""What is weighed against what: each setting's effect, footprint and reach, and which of them is chosen for what. Pure.

Objectives (`Priority`)
speed    the best judged metric; a setting that takes far more memory is not taken without asking
tail     the same of an upper quantile
memory   the smallest footprint of those that are not worse in the metric by more than the margin

Dominated. A setting is dominated by another that is at least as good in effect, footprint and reach, and better in one.
Effects are held against each other in whole margins, footprints in whole percents (`_STEP`), on a grid that is common
to all: so that noise does not order what is alike, and nothing is dominated by something that it dominates. What is not
known of a setting is neither better nor worse: it takes no part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from hugewise.advise.candidates import Reach
from hugewise.advise.causes import GainCauses, causes
from hugewise.advise.footprint import FootprintChange, SettingFootprint, blocks_of, footprint, footprint_change
from hugewise.model.results import CellResult, Comparison, Results

__all__ = [
    "KnownFrom",
    "MeasuredSetting",
    "Priority",
    "TradeOff",
    "fails",
    "failures",
    "finite",
    "measured",
    "no_worse",
    "runner_up",
    "smallest",
    "trade_offs",
]

Priority = Literal["speed", "memory", "tail"]
KnownFrom = Literal["confirmed", "beside", "screening"]
"""At which rate: the user's, by an interval of its own beside that, or the screening's, which claims nothing."""

_STEP = 0.01  # of a footprint: less is no difference
_REACHES: Sequence[Reach] = ("process", "pool", "host")


class MeasuredSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What a run showed of one of its arms against `as-is`. Ratios are arm/as-is.

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
    """Every arm of a run's cell, the baseline first. `chosen`: whom the run confirms; a screening confirms nobody."""
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
    """The ratio; None where there is none, as where failures outweigh."""
    return None if ratio is None or not math.isfinite(ratio) or ratio <= 0 else ratio


def failures(cell: CellResult) -> dict[str, str]:
    """The arms of which runs failed, or could not be started, each with how many."""
    found = {arm.arm: f"{arm.failed} of its {arm.failed + arm.n} runs failed" for arm in cell.arms if arm.failed}
    unstarted = [one for one in cell.comparisons if one.unstarted_arm]
    return found | {one.arm: f"it could not be started in {one.unstarted_arm} blocks" for one in unstarted}


def fails(one: Comparison, cell: CellResult) -> bool:
    """Whether more of the arm's runs failed, or could not be started, than of the baseline's."""
    failed = {arm.arm: arm.failed for arm in cell.arms}
    mine = failed.get(one.arm, 0) + one.unstarted_arm
    return mine > failed.get(one.baseline, 0) + one.unstarted_baseline


def no_worse(low: float | None, high: float | None, better: str, margin: float) -> bool | None:
    """Whether an interval says that an arm is not worse by more than the margin; False: it is; None: neither."""
    low, high = (low, high) if better != "higher" else _inverse(low, high)
    if high is not None and high <= 1 + margin:
        return True
    return False if low is not None and low > 1 + margin else None


def _inverse(low: float | None, high: float | None) -> tuple[float | None, float | None]:
    """The ends of baseline/arm."""
    return (1 / high if high else None, 1 / low if low else None)


def _cost(ratio: float | None, better: str) -> float | None:
    """How much worse it is, as a log-ratio."""
    return None if ratio is None else math.log(ratio) * (-1 if better == "higher" else 1)


def runner_up(estimates: Mapping[str, float | None], better: str, chosen: str, out: Iterable[str] = ()) -> str:
    """The best of the others by its estimate, of those that are not `out`; empty where there is none. Who has no finite
    ratio has failed, and is nobody's second.
    """
    gone = {chosen, *out}
    known = {name: cost for name, ratio in estimates.items() if (cost := _cost(finite(ratio), better)) is not None}
    return min((name for name in known if name not in gone), key=known.__getitem__, default="")


def smallest(seen: Sequence[MeasuredSetting], better: str, margin: float) -> tuple[str, str]:
    """For memory: who goes on, and who is measured beside it, by estimates; empty where nothing takes less.

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
    """The ratio in whole steps."""
    return round(math.log(ratio) / math.log1p(step))


def trade_offs(rows: Iterable[TradeOff], better: str, margin: float) -> tuple[TradeOff, ...]:
    """The rows, each with who dominates it: of several the one with the best effect."""
    found = list(rows)
    places = {row.name: place for row in found if (place := _place(row, better, margin)) is not None}
    made = []
    for row in found:
        mine = places.get(row.name)
        over = [name for name, its in places.items() if mine is not None and _dominates(its, mine)]
        made.append(msgspec.structs.replace(row, dominated_by=min(over, key=places.__getitem__, default="")))
    return tuple(made)


def _place(row: TradeOff, better: str, margin: float) -> tuple[int, int, int] | None:
    """Effect, footprint and reach on the common grid, the less the better; None where something is not known."""
    seen = row.seen
    if seen is None or seen.ratio is None or seen.growth is None:
        return None
    cost = _cost(seen.ratio, better)
    assert cost is not None
    reach = -1 if row.reach is None else _REACHES.index(row.reach)
    return _grid(math.exp(cost), margin), _grid(seen.growth.ratio, _STEP), reach


def _dominates(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return one != other and all(mine <= its for mine, its in zip(one, other, strict=True))
