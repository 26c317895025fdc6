"""Cells of a study that a run of a part of it (`--only`) left unmeasured, and what a verdict may take there. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from hugewise import workloads
from hugewise.analysis import budget
from hugewise.analysis.forecast import FEWEST, TYPICAL, Row
from hugewise.model.scene import Staged
from hugewise.model.workload import Workload
from hugewise.plan.cells import Resolved, resolve
from hugewise.quantity import format_duration
from hugewise.report import remarks
from hugewise.report.document import Block, table
from hugewise.study.study import Study


class Unmeasured(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that was not run.

    neighbour  a measured cell by whose forecast the others are; null where none has one, and `reason` says why
    other      it is one of another workload: nothing nearer has a forecast
    arm        that arm of the neighbour of which a verdict takes longest
    pairs      that its verdict takes for a change as large as the study's margin
    seconds    that these take, the baseline's part included
    floor      they are the leads and measured parts of the cell itself, which is the least that pairs take
    spread     the neighbour's, where so few pairs tell it that its interval belongs to every figure; else empty
    """

    cell: str
    neighbour: str | None = None
    arm: str | None = None
    pairs: int | None = None
    seconds: float | None = None
    other: bool = False
    floor: bool = False
    spread: str = ""
    reason: str = ""


def unmeasured(whole: Study, measured: Mapping[str, Sequence[Row]]) -> tuple[Unmeasured, ...]:
    """The cells of the `whole` study that are not among those `measured`, by their forecasts; in its order.

    The neighbour is a cell of the same table of the study where one has a forecast, else one of the same workload, else
    one of another: first of those that judge the same metric, then of servers for servers and commands for commands.
    """
    cells = resolve(whole, workloads.discover())
    there = [cell for cell in cells if cell.id in measured]
    return tuple(_by_neighbour(cell, there, measured) for cell in cells if cell.id not in measured)


def _by_neighbour(cell: Resolved, there: Sequence[Resolved], measured: Mapping[str, Sequence[Row]]) -> Unmeasured:
    reasons: list[str] = []
    for one in sorted(there, key=lambda one: _distance(cell, one)):
        rows = [row for row in measured[one.id] if row.end_point == TYPICAL]
        told = [(row.needed * row.seconds, row) for row in rows if row.needed is not None and row.seconds is not None]
        if told:
            _, row = max(told, key=lambda pair: pair[0])
            return _like(cell, one, row)
        reasons += [f"{one.id}, {row.arm}: {remarks.pairs(row)}" for row in rows]
    why = reasons[0] if reasons else "none was measured in pairs"
    return Unmeasured(cell=cell.id, reason=f"no cell of the study has a forecast ({why})")


def _distance(cell: Resolved, one: Resolved) -> tuple[bool, ...]:
    return (
        one.workload.name != cell.workload.name,
        one.used.called != cell.used.called,
        one.metric.name != cell.metric.name,
        _serves(one.workload) != _serves(cell.workload),
    )


def _serves(workload: Workload) -> bool:
    return isinstance(workload, Staged) and (workload.clients or workload.ports > 0)


def _like(cell: Resolved, one: Resolved, row: Row) -> Unmeasured:
    """The cell by the forecast of another. Of another workload the time is not its own, where that can be told."""
    assert row.needed is not None and row.seconds is not None
    other = one.workload.name != cell.workload.name
    own = 2 * budget.timed(cell.values) if other else 0.0
    return Unmeasured(
        cell=cell.id,
        neighbour=one.id,
        arm=row.arm,
        pairs=row.needed,
        seconds=row.needed * (own or row.seconds),
        other=other,
        floor=own > 0,
        spread=remarks.spread(row) if row.pairs < FEWEST else "",
    )


def missed(cells: Sequence[Unmeasured]) -> Iterator[Block]:
    """The table of them."""
    if cells:
        head = ("cell", "if it is as noisy as", "pairs for a change as large as the margin", "time")
        rows = [(one.cell, like(one), pairs(one), hours(one)) for one in cells]
        yield table("cells of the study that no run was asked for", head, rows, 2)


def like(one: Unmeasured) -> str:
    """Whose forecast it is, or why there is none."""
    if one.neighbour is None:
        return one.reason or "no cell of its workload has a forecast"
    told = f"{one.neighbour}, {one.arm}{', of another workload' if one.other else ''}"
    return f"{told}; few pairs tell its spread, {one.spread}" if one.spread else told


def pairs(one: Unmeasured) -> str:
    """How many it takes."""
    return remarks.UNKNOWN if one.pairs is None else f"{one.pairs:,}"


def hours(one: Unmeasured) -> str:
    """How long they take."""
    if one.seconds is None:
        return remarks.UNKNOWN
    return f"{'at least ' if one.floor else ''}{format_duration(one.seconds)}"
