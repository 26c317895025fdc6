"""How much every metric changed under every arm, as a table of colours: blue is lower, orange higher.

The colour says how large the change is and in which direction, never whether that is good; both stand in the field as a
number too, and what was judged has the symbol of its verdict. Fills are half transparent, so that the ink of the page
(dark or light) keeps its contrast on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from hugewise.analysis.changes import Change, Values, changes
from hugewise.model.results import CellResult
from hugewise.report import numbers
from hugewise.report.figures.theme import Spec, chart, layer, mark_label
from hugewise.report.sentences import SYMBOLS
from hugewise.visible import printable

_MOST = 24  # metrics in the figure: all are in the table below it
_FULL = math.log(2)  # a change from which on the colour is full: twice, or half
_OPACITY = 0.5
_COLOURS = {"lower": "#2a78d6", "higher": "#d2700a"}
_STEP, _WIDEST, _LETTER, _ROW, _NAMES = 104, 158, 7, 24, 230

Row = Mapping[str, Change]


class HeatRows(NamedTuple):
    """The metrics of the figure, each with its arms, and how many there are in all."""

    shown: Mapping[str, Row]
    of: int


def heat_rows(cell: CellResult, values: Values) -> HeatRows:
    """Judged metrics first, then the others, those that changed most before those that changed less."""
    found: dict[tuple[str, str], dict[str, Change]] = {}
    for one in changes(cell, values):
        if one.ratio is not None and 0 < one.ratio < math.inf:
            found.setdefault((one.metric, one.estimand), {})[one.arm] = one
    judged = [key for key, several in found.items() if any(one.verdict is not None for one in several.values())]
    others = sorted((key for key in found if key not in judged), key=lambda key: -_largest(found[key]))
    several = {key[0] for key in judged if sum(other[0] == key[0] for other in judged) > 1}
    names = {key: f"{key[0]}: {key[1]}" if key[0] in several else key[0] for key in [*judged, *others]}
    return HeatRows({names[key]: found[key] for key in [*judged, *others][:_MOST]}, len(found))


def _largest(row: Row) -> float:
    return max(_size(one) for one in row.values())


def _size(one: Change) -> float:
    assert one.ratio is not None
    return abs(math.log(one.ratio))


def heat(cell: CellResult, found: HeatRows) -> Spec | None:
    """A row for each metric, a column for each arm beside the baseline. None where fewer than two metrics changed."""
    if len(found.shown) < 2:
        return None
    arms = [arm.arm for arm in cell.arms if any(arm.arm in row for row in found.shown.values())]
    rows = [_field(name, arm, row[arm]) for name, row in found.shown.items() for arm in arms if arm in row]
    step = min(max(_STEP, *(_LETTER * len(printable(arm)) + 8 for arm in arms)), _WIDEST)
    x: Spec = {
        "field": "arm",
        "type": "nominal",
        "sort": [printable(arm) for arm in arms],
        "title": None,
        "axis": _axis("top", step - 8),
    }
    y: Spec = {
        "field": "metric",
        "type": "nominal",
        "sort": [printable(name) for name in found.shown],
        "title": None,
        "axis": _axis("left", _NAMES),
    }
    colour: Spec = {
        "field": "way",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(_COLOURS), "range": list(_COLOURS.values())},
        "legend": {"symbolType": "square", "symbolOpacity": _OPACITY},
    }
    weight: Spec = {"field": "weight", "type": "quantitative", "scale": None, "legend": None}
    layers = [
        layer("rect", {"color": colour, "opacity": weight}, tells=True),
        layer("text", {"text": {"field": "text"}}, whose=True),
    ]
    looks = {"width": {"step": step}, "height": {"step": _ROW}, "encoding": {"x": x, "y": y}}
    return chart({**looks, "data": {"values": rows}, "layer": layers})


def _axis(orient: str, limit: int) -> dict[str, Any]:
    bare = {"domain": False, "ticks": False, "grid": False, "labelAngle": 0, "labelOverlap": False}
    return {**bare, "orient": orient, "labelLimit": limit}


def _field(name: str, arm: str, one: Change) -> dict[str, Any]:
    assert one.ratio is not None
    symbol = "" if one.verdict is None else f"{SYMBOLS[one.verdict]} "
    change = numbers.exact(one.ratio) if one.constant else numbers.point(one.ratio, one.low, one.high)
    return {
        "metric": printable(name),
        "arm": printable(arm),
        "ratio": one.ratio,
        "way": "lower" if one.ratio < 1 else "higher",
        "weight": round(_OPACITY * min(_size(one) / _FULL, 1.0), 4),
        "text": f"{symbol}{change}",
        **mark_label(arm, f"{arm}, {name}: {_told(one, change)}", one.metric),
    }


def _told(one: Change, change: str) -> str:
    if one.verdict is None:
        return f"{change}, not judged, medians of {one.n} and {one.n_baseline} attempts"
    span = "" if one.constant else numbers.interval(one.ratio, one.low, one.high)
    level = numbers.percent(one.confidence)
    interval = f"{level} interval {span}" if span else "the same in all" if one.constant else "no interval"
    return f"{change}, {interval}, {one.n} pairs, {one.verdict}"


def caption(found: HeatRows, baseline: str) -> str:
    """What stands below it."""
    few = len(found.shown)
    most = f" The {few} that were judged or changed most, of {found.of}: the table has all." if few < found.of else ""
    return (
        f"Change of every metric against {printable(baseline)}: blue is lower, orange higher, full colour from half or "
        f"twice on. ▲▼=? are verdicts; what has none was not judged.{most}"
    )
