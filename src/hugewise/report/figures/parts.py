"""What figures are put together from: scales of numbers, layers, and strips that stand below each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hugewise.model.metric import Metric
from hugewise.model.results import ArmSummary
from hugewise.report.figures.theme import WIDTH, Spec, chart, row_axis
from hugewise.report.numbers import Scale, percent
from hugewise.report.sentences import better_direction
from hugewise.visible import printable

__all__ = ["BY", "COUNTS", "VALUES", "beside", "layer", "mean_of", "mean_title", "quantitative", "said", "strips"]

BY = "\N{INVISIBLE SEPARATOR}"
"""Between the arm of a mark, its words and its metric, in what `said` makes: no printable text has it."""

COUNTS: Spec = {"tickCount": 3, "grid": True}  # the vertical axis of a strip
VALUES: Spec = {"zero": False, "nice": False, "padding": 8}  # a horizontal axis that begins where the data do


_LONGEST = 600  # characters of what a mark says


def quantitative(field: str, **more: Any) -> Spec:
    """A channel of numbers."""
    return {"field": field, "type": "quantitative", **more}


def said(arm: str, text: str, metric: str = "") -> dict[str, str]:
    """What the marks of a row say to who points at them (`images` makes titles of it), and whose they are: for layers
    with `tells` and with `whose`. `metric`: what they are of, where a figure has several.
    """
    of = f"{BY}{printable(metric)}" if metric else ""
    return {"said": f"{printable(arm)}{BY}{printable(text)[:_LONGEST]}{of}", "of": f"{printable(arm)}{BY}{of}"}


def layer(
    mark: str, encoding: Spec | None = None, where: str = "", *, tells: bool = False, whose: bool = False, **looks: Any
) -> Spec:
    """A mark with its looks and channels; `where`: a Vega expression that chooses the rows.

    `tells`, `whose`: see `said`.
    """
    if tells or whose:
        description = {"field": "said" if tells else "of", "type": "nominal"}
        encoding, looks = {**(encoding or {}), "description": description}, {**looks, "aria": True}
    transform = {"transform": [{"filter": where}]} if where else {}
    return {**transform, "mark": {"type": mark, **looks}, **({"encoding": encoding} if encoding else {})}


def beside(names: Iterable[str], rows: Sequence[Any], layers: list[Spec], step: int, **y: Any) -> Spec:
    """Layers with a row for each arm, `step` high; `y`: more of the axis of the rows."""
    encoding = {"y": {**row_axis(names), **y}}
    looks = {"width": WIDTH, "height": {"step": step}, "encoding": encoding}
    return chart({**looks, "data": {"values": list(rows)}, "layer": layers})


def strips(  # noqa: PLR0917
    rows: Sequence[Any], names: Iterable[str], title: str | None, encoding: Spec, layers: list[Spec], height: int = 80
) -> Spec:
    """Layers in a strip of its own for each arm, on common axes."""
    header = {"labelOrient": "top", "labelAnchor": "start", "labelPadding": 1}
    row = {"field": "arm", "type": "nominal", "sort": list(names), "title": title, "header": header}
    body = {"width": WIDTH, "height": height, **({"encoding": encoding} if encoding else {}), "layer": layers}
    return chart({"data": {"values": list(rows)}, "facet": {"row": row}, "spacing": 6, "spec": body})


def mean_of(arm: ArmSummary, unit: Scale) -> dict[str, Any]:
    """The arm's name, its mean and the ends of the mean's interval, in `unit`."""
    mean, margin = arm.mean or 0.0, arm.margin or 0
    ends = {"low": (mean - margin) * unit.factor, "high": (mean + margin) * unit.factor}
    text = f"{arm.arm}: mean {unit.text(mean, arm.margin)}, n {arm.n}"
    return {"arm": printable(arm.arm), "mean": mean * unit.factor, **ends, **said(arm.arm, text)}


def mean_title(metric: Metric, unit: Scale, confidence: float) -> list[str]:
    """What an axis of means shows, in two lines."""
    interval = f"{better_direction(metric)}; mean with {percent(confidence)} interval"
    return [printable(f"{metric.name}, {unit.unit}"), interval]
