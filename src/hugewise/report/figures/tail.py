"""The tail of latencies on a logarithmic scale of shares; drift: each attempt against its start, as a deviation from
its arm's median.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hugewise.model.results import CellResult
from hugewise.report.figures.theme import (
    COUNTS,
    INK,
    VALUES,
    WIDTH,
    Point,
    Spec,
    arm_marks,
    change_label,
    chart,
    layer,
    mark_label,
    nominal,
    quantitative,
    state_shape,
    strips,
    thinned,
)
from hugewise.report.numbers import Scale, change, scale
from hugewise.visible import printable

_LOG_FROM = 8.0  # largest value against the smallest from which the axis of values is logarithmic
_HEIGHT = 220
_EDGE = 1.2  # room for marks at the ends of the scale of shares

Curve = Sequence[tuple[float, float]]


def of_operations(cell: CellResult, palette: Mapping[str, str]) -> Spec | None:
    """Return, for a cell whose load generator keeps its whole histogram, a curve for each arm over the operations of
    its middle attempt.
    """
    curves = {
        series.arm: list(zip(series.latency_us, series.as_slow, strict=True))
        for series in cell.over_time
        if series.latency_us
    }
    if not curves:
        return None
    every = [value for curve in curves.values() for value, _ in curve]
    shown = scale("us", every)
    rows = [row for arm, curve in curves.items() for row in _rows(arm, curve, shown)]
    logarithmic = min(every) > 0 and max(every) / min(every) >= _LOG_FROM
    x = quantitative(
        "value",
        title=f"latency of an operation, {shown.unit}{', log scale' if logarithmic else ''}",
        scale={**VALUES, "type": "log" if logarithmic else "linear"},
        axis={"tickCount": 6, "offset": 8},
    )
    decades = math.ceil(-math.log10(min(share for curve in curves.values() for _, share in curve)) - 1e-9) or 1
    y = quantitative(
        "share",
        title="operations that took as long or longer",
        scale={"type": "log", "domain": [10.0**-decades / _EDGE, _EDGE], "nice": False},
        axis={
            "grid": True,
            "values": [10.0**-place for place in range(decades + 1)],
            "labelExpr": "format(datum.value, '.12~%')",
        },
    )
    colour, shape = arm_marks(curves, palette)
    layers = [
        layer("line", {"x": x, "y": y}, whose=True, interpolate="step-before", strokeWidth=1.8),
        layer("point", {"x": x, "y": y, "shape": shape}, tells=True, filled=True, size=16, opacity=0.9),
    ]
    looks = {"width": WIDTH, "height": _HEIGHT, "encoding": {"color": colour}}
    return chart({**looks, "data": {"values": rows}, "layer": layers})


def _rows(arm: str, curve: Curve, unit: Scale) -> list[dict[str, Any]]:
    return [
        {
            "arm": printable(arm),
            "value": value * unit.factor,
            "share": share,
            **mark_label(arm, f"{arm}: {_share(share)} of the operations took {unit.text(value)} or longer"),
        }
        for value, share in curve
    ]


def _share(share: float) -> str:
    places = max(0, 2 - math.floor(math.log10(share * 100)))
    text = f"{share * 100:.{places}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}%"


_COUNTED = {"counted", "flagged as disturbed"}


def time_order(found: Sequence[Point], cell: CellResult, palette: Mapping[str, str]) -> Spec | None:
    """Return a strip for each arm on common axes; attempts of the first block carry a ring.

    The axis spans the attempts that count; others that lie beyond it are drawn at its edge.
    """
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
