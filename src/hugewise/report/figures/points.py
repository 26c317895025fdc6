"""The attempts of a cell as the points that figures draw."""

from __future__ import annotations

from typing import NamedTuple

from hugewise.analysis.changes import value_of
from hugewise.model.results import CellResult, Results
from hugewise.model.trial import Attempt

__all__ = ["SHAPES", "Point", "points", "value_of"]

# state of a point -> shape of its mark
SHAPES = {
    "counted": "circle",
    "flagged as disturbed": "triangle-up",
    "not delivered": "diamond",
    "block not counted": "square",
    "failed": "cross",
}


class Point(NamedTuple):
    """One attempt. `value` in the metric's unit; `minutes` since the run began; `first`: of the cell's first block."""

    arm: str
    block: int
    value: float | None
    minutes: float
    state: str
    first: bool


def points(results: Results, cell: CellResult) -> list[Point]:
    """The cell's attempts in time order, without those that were rejected before their timed region."""
    mine = sorted(
        (a for a in results.attempts if a.cell == cell.cell and a.state != "rejected"), key=lambda a: a.started
    )
    counted = [a.block for a in mine if a.state in {"accepted", "failed"}]
    first = min(counted, default=None)
    return [
        Point(
            arm=attempt.arm,
            block=attempt.block,
            value=value_of(attempt, cell.metric.name),
            minutes=(attempt.started - results.started) / 60,
            state=_state(attempt),
            first=attempt.block == first,
        )
        for attempt in mine
    ]


def _state(attempt: Attempt) -> str:
    if attempt.state == "failed":
        return "failed"
    if attempt.state == "abandoned":
        return "block not counted"
    if attempt.delivery.delivered is False:
        return "not delivered"
    return "flagged as disturbed" if attempt.disturbances else "counted"
