"""Whiskers on a scale that the estimates set: what leaves it is cut off there, and ends in an arrow.

The t interval of two blocks is tens of times as wide as anything that was measured. A scale that held it would show
nothing else, and would reach below zero, where no time and no rate is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from hugewise.report.figures.parts import layer
from hugewise.report.figures.theme import Spec

__all__ = ["arrows", "cut", "fit", "span"]

Row = dict[str, Any]

_LEAST = 0.25  # of the largest estimate: as far beyond the estimates a whisker is shown in any case


def span(estimates: Iterable[float], ends: Iterable[float], least: float) -> tuple[float, float]:
    """What of a linear scale is shown: every estimate, and each end of a whisker that lies beyond them by no more than
    their own spread, or by `least` where that is more. All in one unit; `estimates` has one at least.
    """
    known, reached = list(estimates), list(ends)
    low, high = min(known), max(known)
    reach = max(high - low, least)
    return max(min([low, *reached]), low - reach), min(max([high, *reached]), high + reach)


def cut(row: Row, low: float, high: float) -> None:
    """Keep the row's `low` and `high` to the scale; `under` and `over` tell on which sides the whisker leaves it."""
    row["under"] = row.get("under", False) or row["low"] < low
    row["over"] = row.get("over", False) or row["high"] > high
    row["low"], row["high"] = max(row["low"], low), min(row["high"], high)


def fit(rows: Sequence[Row], *, zero: bool = False) -> list[float]:
    """The domain for rows with a `mean` and its whisker from `low` to `high`, which are cut to it.

    `zero`: it begins at 0, as bars do. Of means that are not negative, no whisker goes below 0.
    """
    means = [row["mean"] for row in rows]
    least = _LEAST * max(map(abs, means)) or 1.0  # that of means of 0
    low, high = span(means, (row[end] for row in rows for end in ("low", "high")), least)
    if min(means) >= 0:
        low = max(low, 0.0)
    if zero:
        low, high = min(low, 0.0) if min(means) < 0 else 0.0, max(high, 0.0)
    if low == high:
        low, high = low - least / 10, high + least / 10  # one value: a scale needs two
    for row in rows:
        cut(row, low, high)
    return [low, high]


def arrows(rows: Iterable[Row], axis: Literal["x", "y"], position: Spec, encoding: Spec) -> list[Spec]:
    """A layer of arrows for each side on which a row leaves the scale. `position` encodes an end on the `axis`."""
    marked: list[Row] = list(rows)
    outward = {"x": ("left", "right"), "y": ("down", "up")}[axis]
    inward = {"x": (4, -4), "y": (-4, 4)}[axis]  # the head lies within the plot
    looks: Spec = {"filled": True, "size": 60, "opacity": 1}
    return [
        layer(
            "point",
            {axis: {**position, "field": end}, **encoding},
            f"datum.{side}",
            whose=all("of" in row for row in marked),
            **looks | {"shape": f"triangle-{shape}", f"{axis}Offset": offset},
        )
        for side, end, shape, offset in zip(("under", "over"), ("low", "high"), outward, inward, strict=True)
        if any(row[side] for row in marked)
    ]
