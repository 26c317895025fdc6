"""Grouped bars: a metric at every level of the study's factors, a bar for each policy."""

from __future__ import annotations

from collections.abc import Mapping

from hugewise.report.figures.factors import FactorGroup, level, levels, setting
from hugewise.report.figures.parts import layer, mean_of, mean_title, quantitative
from hugewise.report.figures.theme import INK, Spec, arm_marks, chart, panels
from hugewise.report.figures.whiskers import arrows, fit
from hugewise.report.numbers import scale
from hugewise.visible import printable

__all__ = ["bars"]

_HEIGHT, _BAR = 200, 17
_WIDEST = 900  # of all panels in a row together


def bars(group: FactorGroup, palette: Mapping[str, str], confidence: float) -> Spec | None:
    """Means from 0 with their t intervals: the last varied parameter along the axis, the others make panels.

    The bars of a group stand in the order of the legend.
    """
    known = [arm.mean for cell in group.cells for arm in cell.arms if arm.mean is not None]
    if len(group.cells) < 2 or not known:
        return None
    metric, unit = group.cells[0].metric, scale(group.cells[0].metric.unit, known)
    *others, last = group.varied
    arms = list(dict.fromkeys(arm.arm for cell in group.cells for arm in cell.arms if arm.mean is not None))
    rows = [
        {
            "panel": setting(group.workload, cell, others),
            "level": level(group.workload, last, cell.parameters.get(last)),
            **mean_of(arm, unit),
        }
        for cell in group.cells
        for arm in cell.arms
        if arm.mean is not None
    ]
    shown = [printable(arm) for arm in arms]
    along = [level(group.workload, last, value) for value in levels(group, last)]
    colour, _ = arm_marks(arms, palette)
    colour["legend"] = {**colour["legend"], "symbolType": "square"}
    x: Spec = {
        "field": "level",
        "type": "nominal",
        "sort": along,
        "title": printable(last),
        "axis": {"labelAngle": 0 if max(map(len, along)) <= 3 * len(arms) + 2 else -30, "grid": False},
        "scale": {"paddingInner": 0.25, "paddingOuter": 0.15},
    }
    y = quantitative(
        "mean",
        title=mean_title(metric, unit, confidence),
        scale={"zero": True, "domain": fit(rows, zero=True)},
        axis={"grid": True, "tickCount": 5},
    )
    aside = {"field": "arm", "type": "nominal", "sort": shown}
    width = max(len(along) * (len(arms) + 1) * _BAR, 90)
    body: Spec = {
        "width": width,
        "height": _HEIGHT,
        "encoding": {"x": x, "xOffset": aside},
        "layer": [
            layer("bar", {"y": y, "color": colour}, tells=True),
            layer(
                "rule", {"y": {**y, "field": "low"}, "y2": {"field": "high"}}, whose=True, strokeWidth=1.5, color=INK
            ),
            *arrows(rows, "y", y, {"color": {"value": INK}}),
        ],
    }
    if not others:
        return chart({"data": {"values": rows}, **body})
    named = list(dict.fromkeys(str(row["panel"]) for row in rows))
    columns = max(1, min(len(named), _WIDEST // (width + 70)))
    bodies = {panel: {"data": {"values": [row for row in rows if row["panel"] == panel]}, **body} for panel in named}
    return panels(bodies, columns)
