"""A metric over the levels of a numeric parameter: a line for each policy, as in studies of databases."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hugewise.report.figures.factors import FactorGroup, level, levels, numeric, setting
from hugewise.report.figures.parts import VALUES, layer, mean_of, mean_title, quantitative
from hugewise.report.figures.theme import Spec, arm_marks, chart, panels
from hugewise.report.figures.whiskers import arrows, fit
from hugewise.report.numbers import scale
from hugewise.visible import printable

__all__ = ["lines"]

_WIDTH, _HEIGHT = 270, 200
_LOG_FROM = 8.0  # largest level against the smallest from which the axis is logarithmic
_MOST_IN_A_ROW, _IN_A_ROW = 3, 2
_APART = 3.0  # panels whose values differ by more than this have axes of their own


def lines(group: FactorGroup, name: str, palette: Mapping[str, str], confidence: float) -> Spec | None:
    """Means with their t intervals over parameter `name`, a panel for each setting of the other varied parameters.

    Points of one level stand side by side, so that intervals do not hide each other.
    """
    steps = [float(value) for value in levels(group, name)] if numeric(group, name) else []
    known = [arm.mean for cell in group.cells for arm in cell.arms if arm.mean is not None]
    if len(steps) < 2 or not known:
        return None
    metric, unit = group.cells[0].metric, scale(group.cells[0].metric.unit, known)
    others = [other for other in group.varied if other != name]
    arms = list(dict.fromkeys(arm.arm for cell in group.cells for arm in cell.arms if arm.mean is not None))
    logarithmic = steps[0] > 0 and steps[-1] / steps[0] >= _LOG_FROM
    rows = []
    for cell in group.cells:
        here = float(cell.parameters[name])
        for arm in cell.arms:
            if arm.mean is None:
                continue
            aside = (arms.index(arm.arm) - (len(arms) - 1) / 2) * 0.012
            place = here * (steps[-1] / steps[0]) ** aside if logarithmic else here + (steps[-1] - steps[0]) * aside
            rows.append(
                {
                    "panel": setting(group.workload, cell, others),
                    "level": place,
                    **mean_of(arm, unit),
                }
            )
    colour, shape = arm_marks(arms, palette)
    names = [level(group.workload, name, _whole(step)) for step in steps]
    x = quantitative(
        "level",
        title=printable(name),
        axis={"values": steps, "labelExpr": _labels(steps, names)},
        scale={"type": "log" if logarithmic else "linear", "zero": False, "nice": False, "padding": 14},
    )
    y = quantitative("mean", title=mean_title(metric, unit, confidence), axis={"grid": True, "tickCount": 5})
    shown = list(dict.fromkeys(str(row["panel"]) for row in rows))
    values = {panel: [row for row in rows if row["panel"] == panel] for panel in shown}
    domain = None if _far_apart(values) else fit(rows)

    def body(mine: list[dict[str, Any]]) -> Spec:
        scaled = {**y, "scale": {**VALUES, "domain": domain or fit(mine)}}
        layers = [
            layer("line", {"x": x, "y": scaled}, whose=True, strokeWidth=1.5, opacity=0.8),
            layer(
                "rule", {"x": x, "y": {**scaled, "field": "low"}, "y2": {"field": "high"}}, whose=True, strokeWidth=2
            ),
            *arrows(mine, "y", scaled, {"x": x}),
            layer("point", {"x": x, "y": scaled, "shape": shape}, tells=True, filled=True, size=55, opacity=1),
        ]
        encoding = {"color": colour}
        return {"width": _WIDTH, "height": _HEIGHT, "data": {"values": mine}, "encoding": encoding, "layer": layers}

    if not others:
        return chart(body(rows))
    columns = len(values) if len(values) <= _MOST_IN_A_ROW else _IN_A_ROW
    return panels({panel: body(mine) for panel, mine in values.items()}, columns)


def _far_apart(values: Mapping[str, Sequence[Mapping[str, Any]]]) -> bool:
    """Whether one axis would press some panel flat."""
    highest = [max(float(row["mean"]) for row in rows) for rows in values.values()]
    return min(highest) <= 0 or max(highest) / min(highest) > _APART


def _whole(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _labels(steps: list[float], names: list[str]) -> str:
    """The Vega expression that names each level of the axis."""
    text = "datum.label"
    for step, name in zip(steps, names, strict=True):
        text = f"abs(datum.value - {step!r}) <= {abs(step) * 1e-9!r} ? {json.dumps(name)} : {text}"
    return text
