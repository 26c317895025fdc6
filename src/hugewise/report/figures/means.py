"""The mean of each arm with its confidence interval."""

from __future__ import annotations

from collections.abc import Mapping

from hugewise.model.results import CellResult
from hugewise.report.figures.parts import beside, layer, mean_of, quantitative
from hugewise.report.figures.theme import Spec, nominal
from hugewise.report.numbers import percent, scale
from hugewise.report.sentences import better_direction, printable

__all__ = ["means"]


def means(cell: CellResult, palette: Mapping[str, str], confidence: float) -> Spec | None:
    """A dot at each mean, a bar for its t interval at `confidence`, the number beside it."""
    arms = [arm for arm in cell.arms if arm.mean is not None]
    if not arms:
        return None
    unit = scale(cell.metric.unit, [arm.mean for arm in arms])
    rows = [{**mean_of(arm, unit), "text": unit.number(arm.mean, arm.margin)} for arm in arms]
    names = {printable(arm.arm): palette[arm.arm] for arm in arms}
    interval = f"with {percent(confidence)} interval"
    title = f"mean {cell.metric.name} {interval}, {unit.unit} ({better_direction(cell.metric)})"
    color = nominal(names, names)
    x = quantitative("low", title=printable(title), scale={"zero": False, "padding": 24})
    mean = quantitative("mean")
    layers = [
        layer("rule", {"x": x, "x2": {"field": "high"}, "color": color}, strokeWidth=3, strokeCap="butt"),
        layer("point", {"x": mean, "color": color}, filled=True, size=70, opacity=1),
        layer("text", {"x": mean, "text": {"field": "text"}}, dy=-11),
    ]
    return beside(names, rows, layers, 32)
