"""The mean of each arm with its confidence interval."""

from __future__ import annotations

from collections.abc import Mapping

from hugewise.figures.theme import WIDTH, Spec, chart, nominal, row_axis
from hugewise.figures.whiskers import arrows, fit
from hugewise.report.numbers import percent, scale
from hugewise.report.sentences import better_direction, printable
from hugewise.results import CellResult

__all__ = ["means"]


def means(cell: CellResult, palette: Mapping[str, str], confidence: float) -> Spec | None:
    """A dot at each mean, a whisker for its t interval at `confidence`, the number above it."""
    arms = [arm for arm in cell.arms if arm.mean is not None]
    if not arms:
        return None
    unit = scale(cell.metric.unit, [arm.mean for arm in arms])
    rows = [
        {
            "arm": printable(arm.arm),
            "mean": arm.mean * unit.factor,
            "low": (arm.mean - (arm.margin or 0)) * unit.factor,
            "high": (arm.mean + (arm.margin or 0)) * unit.factor,
            "text": unit.number(arm.mean, arm.margin),
        }
        for arm in arms
        if arm.mean is not None
    ]
    names = {printable(arm.arm): palette[arm.arm] for arm in arms}
    interval = f"with {percent(confidence)} interval"
    title = f"mean {cell.metric.name} {interval}, {unit.unit} ({better_direction(cell.metric)})"
    color = nominal(names, names)
    scaled = {"zero": False, "nice": False, "domain": fit(rows), "padding": 36}
    x: Spec = {"type": "quantitative", "title": printable(title), "scale": scaled}
    return chart(
        {
            "width": WIDTH,
            "height": {"step": 32},
            "data": {"values": rows},
            "encoding": {"y": row_axis(names)},
            "layer": [
                {
                    "mark": {"type": "rule", "strokeWidth": 3, "strokeCap": "butt"},
                    "encoding": {
                        "x": {**x, "field": "low"},
                        "x2": {"field": "high"},
                        "color": color,
                    },
                },
                *arrows(rows, "x", x, {"color": color}),
                {
                    "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
                    "encoding": {"x": {**x, "field": "mean"}, "color": color},
                },
                {
                    "mark": {"type": "text", "dy": -11},
                    "encoding": {"x": {**x, "field": "mean"}, "text": {"field": "text"}},
                },
            ],
        }
    )
