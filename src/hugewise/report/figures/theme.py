"""The common looks of the figures: colours that stay with a policy, shapes, axes and fonts.

Figures are Vega-Lite specifications with their data inside. Texts and lines use `currentColor`, so that a page can
give them its own colour; fills have a luminance between 0.12 and 0.30, which keeps a contrast of at least 3:1 to white
and to near-black. No fact is told by a colour alone: arms have their own rows, states their own shapes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Set
from typing import Any

from hugewise.model.results import Results
from hugewise.report.figures.points import SHAPES
from hugewise.visible import printable

__all__ = [
    "INK",
    "WIDTH",
    "Spec",
    "arm_marks",
    "change_label",
    "chart",
    "colours",
    "nominal",
    "palette",
    "panels",
    "row_axis",
    "state_shape",
]

Spec = dict[str, Any]

INK = "currentColor"
WIDTH = 400
# The page brings the first (`report.fonts`); the renderer measures with the second. Their widths are the same.
FONT = "Arimo, 'Liberation Sans', Arial, Helvetica, sans-serif"
SIZE = 12  # of every text in every figure, in CSS pixels: figures are never scaled

_KNOWN = {
    "base": "#7d848d",
    "thp": "#2a78d6",
    "mthp-64k": "#d2700a",
    "hugetlb-2m": "#159a6c",
    "hugetlb-1g": "#c2468f",
}
_ARM_SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "triangle-down",
    "cross",
    "triangle-right",
    "triangle-left",
)
_OTHERS = ("#7a62e0", "#a06c28", "#0b8fa6", "#d64545", "#7f8426", "#5b6fa8", "#b5548a", "#4f8f4a")


def colours(results: Results) -> dict[str, str]:
    """A colour for each arm of the run: fixed for well-known policies, by name for others (the same in every run)."""
    arms = {arm.arm for cell in results.cells for arm in cell.arms}
    arms |= {comparison.arm for cell in results.cells for comparison in cell.comparisons}
    found, order = palette(arms), (arm.arm for cell in results.cells for arm in cell.arms)
    return {arm: found[arm] for arm in dict.fromkeys([*order, *sorted(arms)])}


def palette(arms: Set[str]) -> dict[str, str]:
    """A colour for each of these arms."""
    found = {name: _KNOWN[name] for name in arms & _KNOWN.keys()}
    free = list(_OTHERS)
    for name in sorted(arms - _KNOWN.keys()):
        if not free:
            free = list(_OTHERS)
        wanted = _OTHERS[zlib.crc32(name.encode("utf-8", "replace")) % len(_OTHERS)]
        found[name] = free.pop(free.index(wanted) if wanted in free else 0)
    return found


def nominal(names: Iterable[str], colour: Mapping[str, str]) -> Spec:
    """The colour scale of arms in their order, without a legend: rows carry the names."""
    listed = list(names)
    return {
        "field": "arm",
        "type": "nominal",
        "scale": {"domain": listed, "range": [colour[name] for name in listed]},
        "legend": None,
    }


def arm_marks(names: Iterable[str], colour: Mapping[str, str]) -> tuple[Spec, Spec]:
    """Colour and shape of arms with one legend for both: for figures whose arms have no rows of their own."""
    listed = list(names)
    shown = [printable(name) for name in listed]
    legend = {"title": None, "symbolSize": 80}
    shapes = [_ARM_SHAPES[number % len(_ARM_SHAPES)] for number in range(len(listed))]
    field: Spec = {"field": "arm", "type": "nominal", "legend": legend}
    return (
        {**field, "scale": {"domain": shown, "range": [colour[name] for name in listed]}},
        {**field, "scale": {"domain": shown, "range": shapes}},
    )


def change_label(value: str) -> str:
    """The Vega expression that labels an axis of changes: `−20%`, `0%`, `+2.5%`."""
    return f"abs({value}) < 1e-9 ? '0%' : format({value}, '+.3~%')"


def panels(bodies: Mapping[str, Spec], columns: int) -> Spec:
    """Charts side by side, each below its name; every one has axes of its own, the legend is common."""
    shown = [
        {**body, "title": {"text": name, "color": INK, "fontSize": SIZE, "fontWeight": "normal", "font": FONT}}
        for name, body in bodies.items()
    ]
    return chart({"concat": shown, "columns": columns, "spacing": 18})


def row_axis(names: Iterable[str]) -> Spec:
    """One row for each arm, in this order."""
    return {"field": "arm", "type": "nominal", "sort": list(names), "title": None}


def state_shape(states: Iterable[str]) -> Spec:
    """Shapes by state of an attempt, with a legend when there is more than one state."""
    shown = [state for state in SHAPES if state in set(states)]
    return {
        "field": "state",
        "type": "nominal",
        "title": None,
        "scale": {"domain": shown, "range": [SHAPES[state] for state in shown]},
        "legend": {"symbolFillColor": INK, "symbolStrokeColor": INK} if len(shown) > 1 else None,
    }


def chart(spec: Spec) -> Spec:
    """`spec` with the schema and the common looks."""
    return {"$schema": "https://vega.github.io/schema/vega-lite/v6.json", "background": None, **spec, "config": _CONFIG}


_TEXT = {
    "labelColor": INK,
    "titleColor": INK,
    "labelFontSize": SIZE,
    "titleFontSize": SIZE,
    "titleFontWeight": "normal",
}
_CONFIG: Spec = {
    "aria": False,
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        **_TEXT,
        "grid": False,
        "gridColor": INK,
        "gridOpacity": 0.13,
        "domainColor": INK,
        "domainOpacity": 0.4,
        "tickColor": INK,
        "tickOpacity": 0.4,
        "labelLimit": 150,
        "labelOverlap": True,
        "titlePadding": 8,
    },
    "axisX": {"grid": True, "tickCount": 6},
    "axisY": {"ticks": False, "domain": False, "labelPadding": 8},
    "legend": {**_TEXT, "orient": "bottom", "direction": "horizontal", "labelLimit": 220, "columns": 4},
    "header": {**_TEXT, "labelLimit": 420},
    "text": {"color": INK, "fontSize": SIZE},
    "rule": {"color": INK},
}
