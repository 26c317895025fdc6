"""Cells of a study that a run of a part of it (`--only`) left unmeasured, and what a verdict may take there. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from hugewise import workloads
from hugewise.analysis.forecast import TYPICAL, Row
from hugewise.plan.cells import Resolved, resolve
from hugewise.quantity import format_duration
from hugewise.report.document import Block, table
from hugewise.report.numbers import NOTHING
from hugewise.study.study import Study

__all__ = ["Unmeasured", "missed", "unmeasured"]


class Unmeasured(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that was not run.

    neighbour  a measured cell of the same workload, by whose forecast the others are; null where there is none
    arm        that arm of the neighbour of which a verdict takes longest
    pairs      that its verdict takes for a change as large as the study's margin
    seconds    that these take, the baseline's part included
    """

    cell: str
    neighbour: str | None = None
    arm: str | None = None
    pairs: int | None = None
    seconds: float | None = None


def unmeasured(whole: Study, measured: Mapping[str, Sequence[Row]]) -> tuple[Unmeasured, ...]:
    """The cells of the `whole` study that are not among those `measured`, by their forecasts; in its order.

    The neighbour is a cell of the same table of the study where one has a forecast, else one of the same workload.
    """
    cells = resolve(whole, workloads.discover())
    there = [cell for cell in cells if cell.id in measured]
    return tuple(_by_neighbour(cell, there, measured) for cell in cells if cell.id not in measured)


def _by_neighbour(cell: Resolved, there: Sequence[Resolved], measured: Mapping[str, Sequence[Row]]) -> Unmeasured:
    near = [one for one in there if one.workload.name == cell.workload.name]
    for one in sorted(near, key=lambda one: one.used.called != cell.used.called):
        told = [
            (row.needed * row.seconds, row)
            for row in measured[one.id]
            if row.end_point == TYPICAL and row.needed is not None and row.seconds is not None
        ]
        if told:
            seconds, row = max(told, key=lambda pair: pair[0])
            return Unmeasured(cell=cell.id, neighbour=one.id, arm=row.arm, pairs=row.needed, seconds=seconds)
    return Unmeasured(cell=cell.id)


def missed(cells: Sequence[Unmeasured]) -> Iterator[Block]:
    """The table of them."""
    if cells:
        head = ("cell", "if it is as noisy as", "pairs for a change as large as the margin", "time")
        rows = [(one.cell, *_like(one)) for one in cells]
        yield table("cells of the study that no run was asked for", head, rows, 2)


def _like(one: Unmeasured) -> tuple[str, str, str]:
    if one.pairs is None or one.seconds is None:
        return "no cell of its workload has a forecast", NOTHING, NOTHING
    return f"{one.neighbour}, {one.arm}", f"{one.pairs:,}", format_duration(one.seconds)
