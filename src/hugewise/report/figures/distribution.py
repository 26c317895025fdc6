"""The distribution of each arm: every attempt is a point, over the median and the quartiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hugewise.model.results import CellResult
from hugewise.report.figures.parts import layer, quantitative, said
from hugewise.report.figures.points import Point, thinned
from hugewise.report.figures.theme import INK, WIDTH, Spec, chart, nominal, row_axis, state_shape
from hugewise.report.numbers import Scale, scale
from hugewise.report.sentences import better_direction
from hugewise.visible import printable

__all__ = ["distribution"]

_GOLDEN = 0.6180339887498949


def distribution(found: Sequence[Point], cell: CellResult, palette: Mapping[str, str]) -> Spec | None:
    """A strip of points for each arm; attempts that do not count have other shapes, failures stand at the bad edge."""
    values = [point.value for point in found if point.value is not None]
    if not values:
        return None
    unit = scale(cell.metric.unit, values)
    worst = max(values) if cell.metric.better == "lower" else min(values)
    names = {printable(arm.arm): palette[arm.arm] for arm in cell.arms}
    rows = list(_rows(thinned(found), unit, worst))
    boxes = [
        {
            "arm": printable(arm.arm),
            "q1": arm.quantiles["0.25"] * unit.factor,
            "q3": arm.quantiles["0.75"] * unit.factor,
            "median": arm.median * unit.factor,
            **said(arm.arm, ""),
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


def _rows(found: list[Point], unit: Scale, worst: float) -> Iterator[dict[str, object]]:
    for index, point in enumerate(found):
        if point.value is None and point.state != "failed":
            continue
        value = worst if point.value is None else point.value
        # A low-discrepancy sequence spreads neighbours apart, the same way each time.
        offset = (index * _GOLDEN % 1 - 0.5) * 0.9
        told = said(point.arm, f"{unit.text(point.value)}, block {point.block}, {point.state}")
        yield {
            "arm": printable(point.arm),
            "value": value * unit.factor,
            "offset": round(offset, 4),
            "state": point.state,
        } | told
