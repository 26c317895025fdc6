"""Drift: each attempt against its start, as a deviation from its arm's median."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from hugewise.model.results import CellResult
from hugewise.report.figures.theme import (
    COUNTS,
    INK,
    VALUES,
    Point,
    Spec,
    change_label,
    layer,
    mark_label,
    nominal,
    quantitative,
    state_shape,
    strips,
    thinned,
)
from hugewise.report.numbers import change
from hugewise.visible import printable

_COUNTED = {"counted", "flagged as disturbed"}


def time_order(found: Sequence[Point], cell: CellResult, palette: Mapping[str, str]) -> Spec | None:
    """Return a strip for each arm on common axes of what counts; attempts of the first block carry a ring."""
    found = [point for point in found if point.value is not None]
    medians = {arm.arm: _median([p for p in found if p.arm == arm.arm]) for arm in cell.arms}
    low, high = _span(found, medians)
    rows = [
        {
            "arm": printable(point.arm),
            "minutes": round(point.minutes, 3),
            "deviation": min(max(point.value / median - 1, low), high),
            "zero": 0,
            "state": point.state,
            "counted": point.state == "counted",
            "first": point.first,
            **mark_label(
                point.arm, f"{change(point.value / median)} from the median, block {point.block}, {point.state}"
            ),
        }
        for point in thinned(found)
        if point.value is not None and (median := medians.get(point.arm))
    ]
    if not rows:
        return None
    names = {printable(arm.arm): palette[arm.arm] for arm in cell.arms if medians[arm.arm]}
    x = quantitative("minutes", title="minutes since the run began (ring: first block)", scale=VALUES)
    axis = {**COUNTS, "labelExpr": change_label("datum.value")}
    y = quantitative("deviation", title=None, axis=axis, scale={"domain": [low, high], "padding": 6, "nice": False})
    color, shape = nominal(names, names), state_shape({str(row["state"]): None for row in rows})
    layers = [
        # Aggregated: one line for each strip, not one for each point.
        layer("rule", {"x": None, "y": {**y, "field": "zero", "aggregate": "min"}}, opacity=0.4),
        layer("line", {"color": color}, "datum.counted", whose=True, strokeWidth=1, opacity=0.5),
        layer("point", {"color": color, "shape": shape}, tells=True, filled=True, size=26, opacity=0.85),
        layer("point", None, "datum.first", whose=True, filled=False, size=110, color=INK, opacity=0.8),
    ]
    return strips(rows, names, "deviation from the arm's own median", {"x": x, "y": y}, layers, 62)


def _span(points: list[Point], medians: Mapping[str, float | None]) -> tuple[float, float]:
    counted = [
        p.value / median - 1
        for p in points
        if p.value is not None and p.state in _COUNTED and (median := medians.get(p.arm))
    ]
    low, high = min(counted, default=-0.01), max(counted, default=0.01)
    return (low, high) if low < high else (low - 0.01, high + 0.01)  # counts that do not vary


def _median(points: list[Point]) -> float | None:
    values = [p.value for p in points if p.value is not None and p.state in _COUNTED]
    return statistics.median(values) if values else None
