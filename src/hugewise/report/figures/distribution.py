"""The distribution of values, by arm: points with quartiles.

Of measurements made elsewhere: histograms with outliers, normal Q-Q plots, values in time order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from hugewise.external.compare import ArmFigures
from hugewise.model.results import CellResult
from hugewise.report.figures.theme import (
    COUNTS,
    INK,
    VALUES,
    WIDTH,
    Point,
    Spec,
    chart,
    layer,
    mark_label,
    nominal,
    quantitative,
    row_axis,
    state_shape,
    strips,
    thinned,
)
from hugewise.report.numbers import Scale, scale
from hugewise.report.sentences import better_direction
from hugewise.visible import printable

_GOLDEN = 0.6180339887498949


def distribution(points: Sequence[Point], cell: CellResult, palette: Mapping[str, str]) -> Spec | None:
    """Return a strip of points for each arm; other shapes do not count, failures stand at the bad edge."""
    values = [point.value for point in points if point.value is not None]
    if not values:
        return None
    unit = scale(cell.metric.unit, values)
    worst = max(values) if cell.metric.better == "lower" else min(values)
    names = {printable(arm.arm): palette[arm.arm] for arm in cell.arms}
    rows = list(_rows(thinned(points), unit, worst))
    boxes = [
        {
            "arm": printable(arm.arm),
            "q1": arm.quantiles["0.25"] * unit.factor,
            "q3": arm.quantiles["0.75"] * unit.factor,
            "median": arm.median * unit.factor,
            **mark_label(arm.arm, ""),
        }
        for arm in cell.arms
        if arm.median is not None and {"0.25", "0.75"} <= set(arm.quantiles)
    ]
    title = f"{printable(cell.metric.name)} of every attempt, {unit.unit} ({better_direction(cell.metric)})"
    scaled = {"title": printable(title), "scale": {"zero": False, "padding": 8}}
    q1, median, value = (quantitative(field, **scaled) for field in ("q1", "median", "value"))
    states = {str(row["state"]): None for row in rows}
    points_of = {
        "x": value,
        "yOffset": quantitative("offset", scale={"domain": [-1, 1]}),
        "color": nominal(names, names),
        "shape": state_shape(states),
    }
    box = layer("bar", {"x": q1, "x2": {"field": "q3"}}, whose=True, height=30, color=INK, opacity=0.1)
    middle = layer("tick", {"x": median}, whose=True, size=30, thickness=2, color=INK, opacity=0.7)
    strip = layer("point", points_of, tells=True, filled=True, size=26, opacity=0.75)
    layers = [{"data": {"values": boxes}, **box}, {"data": {"values": boxes}, **middle}]
    layers.append({"data": {"values": rows}, **strip})
    return chart({"width": WIDTH, "height": {"step": 44}, "encoding": {"y": row_axis(names)}, "layer": layers})


def _rows(points: list[Point], unit: Scale, worst: float) -> Iterator[dict[str, object]]:
    for index, point in enumerate(points):
        if point.value is None and point.state != "failed":
            continue
        value = worst if point.value is None else point.value
        # A low-discrepancy sequence spreads neighbours apart, the same way each time.
        offset = (index * _GOLDEN % 1 - 0.5) * 0.9
        told = mark_label(point.arm, f"{point.arm}: {unit.text(point.value)}, block {point.block}, {point.state}")
        yield {
            "arm": printable(point.arm),
            "value": value * unit.factor,
            "offset": round(offset, 4),
            "state": point.state,
        } | told


_MOST_SAMPLE_BINS = 150


def sample_histogram(arms: Sequence[ArmFigures], colour: Mapping[str, str], unit: Scale, title: str) -> Spec | None:
    """Return a strip for each arm on one axis; bins beyond 3 standard deviations are drawn as points, which stay
    visible.

    Counts are on a square-root scale, so that a bin of one value can still be seen beside one of thousands.
    """
    rows = [row for arm in arms for row in _sample_bins(arm, unit)]
    if not rows:
        return None
    x = quantitative("from", title=_title(title, unit), scale=VALUES)
    y = quantitative("count", title=None, scale={"type": "sqrt"}, axis=COUNTS)
    bins, middle = {"x": x, "x2": {"field": "to"}, "y": y, "y2": {"datum": 0}}, {"x": {**x, "field": "middle"}, "y": y}
    layers = [
        layer("bar", bins, "!datum.outlying", tells=True, opacity=0.75),
        layer("point", middle, "datum.outlying", tells=True, filled=True, size=30, opacity=0.9),
    ]
    encoding = {"x": x, "y": y, "color": _color(arms, colour)}
    return strips(rows, _names(arms), "count, square-root scale", encoding, layers)


def qq_plot(arms: Sequence[ArmFigures], colour: Mapping[str, str], unit: Scale, title: str) -> Spec | None:
    """Values against normal quantiles, a panel for each arm; the line is the normal with the arm's median and bulk."""
    rows, lines = [], []
    for arm in arms:
        found, name = arm.figures.qq, printable(arm.arm)
        if found is None:
            continue
        for expected, value in zip(found.theoretical.tolist(), found.observed.tolist(), strict=True):
            told = mark_label(
                arm.arm, f"{arm.arm}: {unit.text(value)}, where a normal sample has quantile {expected:.2f}"
            )
            rows.append({"arm": name, "expected": round(expected, 4), "value": value * unit.factor, **told})
        for expected in (found.theoretical[0], found.theoretical[-1]):
            line = arm.figures.median + arm.figures.robust_sd * float(expected)
            lines.append({"arm": name, "expected": round(float(expected), 4), "line": line * unit.factor})
    if not rows:
        return None
    x = quantitative("expected", title="standard normal quantile", scale={"nice": False})
    axis = {"grid": True, "tickCount": 5}
    y = quantitative("value", title=_title(title, unit), axis=axis, scale={"zero": False})
    bulk, values = {"y": {**y, "field": "line"}}, {"y": y, "color": _color(arms, colour)}
    layers = [
        layer("line", bulk, "isValid(datum.line)", color=INK, opacity=0.5, strokeDash=[4, 3]),
        layer("point", values, "isValid(datum.value)", tells=True, filled=True, size=16, opacity=0.8),
    ]
    return strips([*rows, *lines], _names(arms), None, {"x": x}, layers, 140)


def in_time_order(arms: Sequence[ArmFigures], colour: Mapping[str, str], unit: Scale, title: str) -> Spec | None:
    """Return values by their place in time, a strip for each arm whose order is known; at most 1,500 of each."""
    known = [arm for arm in arms if arm.order_known and arm.figures.n > 1]
    rows = [
        {
            "arm": printable(arm.arm),
            "place": place + 1,
            "value": value * unit.factor,
            **mark_label(arm.arm, f"{arm.arm}: {unit.text(value)}, number {place + 1:,}"),
        }
        for arm in known
        for place, value in arm.sampled
    ]
    if not rows:
        return None
    encoding = {
        "x": quantitative("place", title="place in the arm's own order in time", scale=VALUES),
        "y": quantitative("value", title=None, scale={"zero": False}, axis=COUNTS),
        "color": _color(known, colour),
    }
    layers = [layer("point", None, tells=True, filled=True, size=10, opacity=0.6)]
    return strips(rows, _names(known), _title(title, unit), encoding, layers)


def _sample_bins(arm: ArmFigures, unit: Scale) -> Iterator[dict[str, object]]:
    shown = arm.figures
    group = max(1, math.ceil(len(shown.counts) / _MOST_SAMPLE_BINS)) if shown.spread is None or shown.spread < 2 else 1
    low, high = (shown.mean - 3 * (shown.sd or 0.0), shown.mean + 3 * (shown.sd or 0.0))
    edges, counts = shown.edges.tolist(), shown.counts.tolist()
    for start in range(0, len(counts), group):
        end = min(start + group, len(counts))
        count = sum(counts[start:end])
        if count:
            middle = (edges[start] + edges[end]) / 2
            yield {
                "arm": printable(arm.arm),
                "from": edges[start] * unit.factor,
                "to": edges[end] * unit.factor,
                "middle": middle * unit.factor,
                "count": count,
                "outlying": bool(shown.sd) and not low <= middle <= high,
                **mark_label(arm.arm, f"{arm.arm}: {_held(count, edges[start], edges[end], unit)}"),
            }


def _held(count: int, low: float, high: float, unit: Scale) -> str:
    width = high - low
    return f"{count:,} value{'' if count == 1 else 's'} from {unit.number(low, width)} to {unit.text(high, width)}"


def _names(arms: Sequence[ArmFigures]) -> list[str]:
    return [printable(arm.arm) for arm in arms]


def _color(arms: Sequence[ArmFigures], colour: Mapping[str, str]) -> Spec:
    return nominal(_names(arms), {printable(arm.arm): colour[arm.arm] for arm in arms})


def _title(title: str, unit: Scale) -> str:
    return f"{title}, {unit.unit}" if unit.unit else title
