"""The attempts of a cell as the points that figures draw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from hugewise.analysis.changes import value_of
from hugewise.model.results import CellResult, Results
from hugewise.model.trial import Attempt

__all__ = ["MOST", "SHAPES", "Point", "points", "thinned", "thinning", "value_of"]

MOST = 300  # points of an arm that are drawn: a strip of more is one smear, and each costs the page 500 bytes
_EXTREMES = 15

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


def thinned(found: Sequence[Point]) -> list[Point]:
    """At most MOST of each arm's points, in the same order: the extremes, and evenly what is between in that order.

    Where an arm has more, what did not count is thinned by itself, to a third of them at most.
    """
    arms: dict[str, list[int]] = defaultdict(list)
    for index, point in enumerate(found):
        arms[point.arm].append(index)
    kept: set[int] = set()
    for indices in arms.values():
        if len(indices) <= MOST:
            kept.update(indices)
            continue
        odd = [index for index in indices if found[index].state != "counted"]
        kept.update(_evenly(odd, MOST // 3))
        plain = [index for index in indices if found[index].state == "counted"]
        ranked = sorted(plain, key=lambda index: found[index].value or 0.0)
        ends = {*ranked[:_EXTREMES], *ranked[-_EXTREMES:]} if len(plain) > 2 * _EXTREMES else set(plain)
        kept |= ends
        kept.update(_evenly([index for index in plain if index not in ends], MOST - MOST // 3 - 2 * _EXTREMES))
    return [found[index] for index in sorted(kept)]


def _evenly(indices: Sequence[int], most: int) -> Sequence[int]:
    if len(indices) <= most:
        return indices
    return [indices[number * len(indices) // most] for number in range(most)]


def thinning(found: Sequence[Point]) -> str:
    """What the caption of a figure says where not every point is drawn; else empty."""
    drawn = len(thinned(found))
    if drawn == len(found):
        return ""
    return f" {drawn:,} of {len(found):,} points are drawn: the extremes, and every so many of the others."
