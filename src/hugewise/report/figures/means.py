"""The mean of each arm with its confidence interval."""

from __future__ import annotations

from collections.abc import Mapping

from hugewise.model.results import CellResult
from hugewise.report.figures.parts import beside, layer, mean_of, quantitative
from hugewise.report.figures.theme import Spec, nominal
from hugewise.report.figures.whiskers import arrows, fit
from hugewise.report.numbers import percent, scale
from hugewise.report.sentences import better_direction
from hugewise.visible import printable

__all__ = ["means"]


def means(cell: CellResult, palette: Mapping[str, str], confidence: float) -> Spec | None:
    """A dot at each mean, a whisker for its t interval at `confidence`, the number above it."""
    arms = [arm for arm in cell.arms if arm.mean is not None]
    if not arms:
        return None
    unit = scale(cell.metric.unit, [arm.mean for arm in arms])
    rows = [{**mean_of(arm, unit), "text": unit.number(arm.mean, arm.margin)} for arm in arms]
    names = {printable(arm.arm): palette[arm.arm] for arm in arms}
    interval = f"with {percent(confidence)} interval"
    title = f"mean {cell.metric.name} {interval}, {unit.unit} ({better_direction(cell.metric)})"
    color = nominal(names, names)
    scaled = {"zero": False, "nice": False, "domain": fit(rows), "padding": 36}
    x = quantitative("mean", title=printable(title), scale=scaled)
    whisker = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": color}
    layers = [
        layer("rule", whisker, whose=True, strokeWidth=3, strokeCap="butt"),
        *arrows(rows, "x", x, {"color": color}),
        layer("point", {"x": x, "color": color}, tells=True, filled=True, size=70, opacity=1),
        layer("text", {"x": x, "text": {"field": "text"}}, whose=True, dy=-11),
    ]
    return beside(names, rows, layers, 32)
