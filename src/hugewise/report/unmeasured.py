"""Cells of a study that a run of a part of it (`--only`) left unmeasured, with what a verdict of them may take. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hugewise import workloads
from hugewise.analysis.forecast import TYPICAL, Forecast, Row
from hugewise.plan.cells import Resolved, resolve
from hugewise.study.study import Study

__all__ = ["Unmeasured", "unmeasured"]


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


def unmeasured(whole: Study, measured: Study, planned: Forecast | None) -> tuple[Unmeasured, ...]:
    """The cells of the `whole` study that `measured`, a part of it at the same scale, does not have, in its order.

    The neighbour is a cell of the same table of the study where one was measured, else one of the same workload.
    """
    known = workloads.discover()
    there = {cell.id: cell for cell in resolve(measured, known)}
    rows = () if planned is None else planned.rows
    return tuple(_by_neighbour(cell, there, rows) for cell in resolve(whole, known) if cell.id not in there)


def _by_neighbour(cell: Resolved, there: dict[str, Resolved], rows: tuple[Row, ...]) -> Unmeasured:
    for near in _neighbours(cell, there):
        told = [
            (row.needed * row.seconds, row)
            for row in rows
            if row.cell == near.id and row.end_point == TYPICAL and row.needed is not None and row.seconds is not None
        ]
        if told:
            seconds, row = max(told, key=lambda one: one[0])
            return Unmeasured(cell=cell.id, neighbour=near.id, arm=row.arm, pairs=row.needed, seconds=seconds)
    return Unmeasured(cell=cell.id)


def _neighbours(cell: Resolved, there: dict[str, Resolved]) -> Iterator[Resolved]:
    yield from (one for one in there.values() if one.used.called == cell.used.called)
    yield from (
        one
        for one in there.values()
        if one.workload.name == cell.workload.name and one.used.called != cell.used.called
    )
