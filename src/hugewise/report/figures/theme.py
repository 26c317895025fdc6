"""Common looks of the figures: colours that stay with a policy, shapes, scales, layers, strips, and whiskers.

Figures are Vega-Lite specifications with their data inside. Texts and lines use `currentColor`; fills have a luminance
between 0.12 and 0.30, a contrast of at least 3:1 to white and to near-black. No fact is told by a colour alone. The
estimates set the scale: a whisker that leaves it (the t interval of two blocks is tens of times as wide) ends in an
arrow.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Literal, NamedTuple

from hugewise.analysis.changes import value_of
from hugewise.model.metric import Metric
from hugewise.model.results import ArmSummary, CellResult, Results
from hugewise.model.trial import Attempt
from hugewise.report.numbers import Scale, percent
from hugewise.report.sentences import better_direction
from hugewise.visible import printable

MOST = 300  # points of an arm that are drawn: a strip of more is one smear, and each costs the page 500 bytes
_EXTREMES = 15

# state of a point -> shape of its mark
SHAPES = {
    "counted": "circle",
    "flagged as disturbed": "triangle-up",
    "not delivered": "diamond",
    "block not counted": "square",
    "failed": "cross",
}


class Point(NamedTuple):
    """Attempt. `value` in the metric's unit; `minutes` since the run began; `first`: of the cell's first block."""

    arm: str
    block: int
    value: float | None
    minutes: float
    state: str
    first: bool


def points(results: Results, cell: CellResult) -> list[Point]:
    """Return the cell's attempts in time order, without those that were rejected before their timed region."""
    mine = sorted(
        (a for a in results.attempts if a.cell == cell.cell and a.state != "rejected"), key=lambda a: a.started
    )
    counted = [a.block for a in mine if a.state in {"accepted", "failed"}]
    first = min(counted, default=None)
    return [
        Point(
            arm=attempt.arm,
            block=attempt.block,
            value=value_of(attempt, cell.metric.name),
            minutes=(attempt.started - results.started) / 60,
            state=_state(attempt),
            first=attempt.block == first,
        )
        for attempt in mine
    ]


def _state(attempt: Attempt) -> str:
    if attempt.state == "failed":
        return "failed"
    if attempt.state == "abandoned":
        return "block not counted"
    if attempt.delivery.delivered is False:
        return "not delivered"
    return "flagged as disturbed" if attempt.disturbances else "counted"


def thinned(found: Sequence[Point]) -> list[Point]:
    """Return up to MOST of each arm's points, in the same order: the extremes, and an even selection of the others.

    Where an arm has more, what did not count is thinned by itself, to a third of them at most.
    """
    arms: dict[str, list[int]] = defaultdict(list)
    for index, point in enumerate(found):
        arms[point.arm].append(index)
    kept: set[int] = set()
    for indices in arms.values():
        if len(indices) <= MOST:
            kept.update(indices)
            continue
        odd = [index for index in indices if found[index].state != "counted"]
        kept.update(_evenly(odd, MOST // 3))
        plain = [index for index in indices if found[index].state == "counted"]
        ranked = sorted(plain, key=lambda index: found[index].value or 0.0)
        ends = {*ranked[:_EXTREMES], *ranked[-_EXTREMES:]} if len(plain) > 2 * _EXTREMES else set(plain)
        kept |= ends
        kept.update(_evenly([index for index in plain if index not in ends], MOST - MOST // 3 - 2 * _EXTREMES))
    return [found[index] for index in sorted(kept)]


def _evenly(indices: Sequence[int], most: int) -> Sequence[int]:
    if len(indices) <= most:
        return indices
    return [indices[number * len(indices) // most] for number in range(most)]


def thinning(found: Sequence[Point]) -> str:
    """Return the caption's note where not every point is drawn; else empty."""
    drawn = len(thinned(found))
    if drawn == len(found):
        return ""
    return f" {drawn:,} of {len(found):,} points are drawn: the extremes, and every so many of the others."


Spec = dict[str, Any]

INK = "currentColor"
WIDTH = 400
# The page brings the first (`report.images`); the renderer measures with the second. Their widths are the same.
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
    """Return a colour for each arm: fixed for well-known policies, by name for others (the same in every run)."""
    arms = {arm.arm for cell in results.cells for arm in cell.arms}
    arms |= {comparison.arm for cell in results.cells for comparison in cell.comparisons}
    found, order = palette(arms), (arm.arm for cell in results.cells for arm in cell.arms)
    return {arm: found[arm] for arm in dict.fromkeys([*order, *sorted(arms)])}


def palette(arms: Set[str]) -> dict[str, str]:
    """Return a colour for each of these arms."""
    found = {name: _KNOWN[name] for name in arms & _KNOWN.keys()}
    free = list(_OTHERS)
    for name in sorted(arms - _KNOWN.keys()):
        if not free:
            free = list(_OTHERS)
        wanted = _OTHERS[zlib.crc32(name.encode("utf-8", "replace")) % len(_OTHERS)]
        found[name] = free.pop(free.index(wanted) if wanted in free else 0)
    return found


def nominal(names: Iterable[str], colour: Mapping[str, str]) -> Spec:
    """Return the colour scale of arms in their order, without a legend: rows carry the names."""
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
    """Return the Vega expression that labels an axis of changes: `−20%`, `0%`, `+2.5%`."""
    return f"abs({value}) < 1e-9 ? '0%' : format({value}, '+.3~%')"


def panels(bodies: Mapping[str, Spec], columns: int) -> Spec:
    """Charts side by side, each below its name; every one has axes of its own, the legend is common."""
    shown = [
        {**body, "title": {"text": name, "color": INK, "fontSize": SIZE, "fontWeight": "normal", "font": FONT}}
        for name, body in bodies.items()
    ]
    return chart({"concat": shown, "columns": columns, "spacing": 18})


def row_axis(names: Iterable[str]) -> Spec:
    """Return one row for each arm, in this order."""
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

BY = "\N{INVISIBLE SEPARATOR}"
"""Between the arm of a mark and its words, in what `mark_label` makes: no printable text has it."""

COUNTS: Spec = {"tickCount": 3, "grid": True}  # the vertical axis of a strip
VALUES: Spec = {"zero": False, "nice": False, "padding": 8}  # a horizontal axis that begins where the data do


_LONGEST = 600  # characters of what a mark says


def quantitative(field: str, **more: Any) -> Spec:
    """Return a channel of numbers."""
    return {"field": field, "type": "quantitative", **more}


def mark_label(arm: str, text: str) -> dict[str, str]:
    """Return the labels of a row's marks for the pointer, and their arm (for `tells` and `whose`)."""
    return {"said": f"{printable(arm)}{BY}{printable(text)[:_LONGEST]}", "of": f"{printable(arm)}{BY}"}


def layer(
    mark: str, encoding: Spec | None = None, where: str = "", *, tells: bool = False, whose: bool = False, **looks: Any
) -> Spec:
    """Return a mark with its looks; `where`: a Vega expression for rows; `tells`, `whose`: see `mark_label`."""
    if tells or whose:
        description = {"field": "said" if tells else "of", "type": "nominal"}
        encoding, looks = {**(encoding or {}), "description": description}, {**looks, "aria": True}
    transform = {"transform": [{"filter": where}]} if where else {}
    return {**transform, "mark": {"type": mark, **looks}, **({"encoding": encoding} if encoding else {})}


def rows_with_axis(names: Iterable[str], rows: Sequence[Any], layers: list[Spec], step: int, **y: Any) -> Spec:
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
    """Return the arm's name, its mean and the ends of the mean's interval, in `unit`."""
    mean, margin = arm.mean or 0.0, arm.margin or 0
    ends = {"low": (mean - margin) * unit.factor, "high": (mean + margin) * unit.factor}
    text = f"{arm.arm}: mean {unit.text(mean, arm.margin)}, n {arm.n}"
    return {"arm": printable(arm.arm), "mean": mean * unit.factor, **ends, **mark_label(arm.arm, text)}


def mean_title(metric: Metric, unit: Scale, confidence: float) -> list[str]:
    """Return the title of an axis of means, in two lines."""
    interval = f"{better_direction(metric)}; mean with {percent(confidence)} interval"
    return [printable(f"{metric.name}, {unit.unit}"), interval]


Row = dict[str, Any]

_LEAST = 0.25  # of the largest estimate: as far beyond the estimates a whisker is shown in any case


def span(estimates: Iterable[float], ends: Iterable[float], least: float) -> tuple[float, float]:
    """Return the shown range of a linear scale: every estimate, and each end of a whisker that lies beyond them by no
    more than their own spread, or by `least` where that is more. All in one unit; `estimates` has one at least.
    """
    known, reached = list(estimates), list(ends)
    low, high = min(known), max(known)
    reach = max(high - low, least)
    return max(min([low, *reached]), low - reach), min(max([high, *reached]), high + reach)


def cut(row: Row, low: float, high: float) -> None:
    """Keep the row's `low` and `high` to the scale; `under` and `over` tell on which sides the whisker leaves it."""
    row["under"] = row.get("under", False) or row["low"] < low
    row["over"] = row.get("over", False) or row["high"] > high
    row["low"], row["high"] = max(row["low"], low), min(row["high"], high)


def fit(rows: Sequence[Row]) -> list[float]:
    """Return the domain of rows, whose whiskers are cut to it; of no negative means it begins at 0 or above."""
    means = [row["mean"] for row in rows]
    least = _LEAST * max(map(abs, means)) or 1.0  # that of means of 0
    low, high = span(means, (row[end] for row in rows for end in ("low", "high")), least)
    if min(means) >= 0:
        low = max(low, 0.0)
    if low == high:
        low, high = low - least / 10, high + least / 10  # one value: a scale needs two
    for row in rows:
        cut(row, low, high)
    return [low, high]


def arrows(rows: Iterable[Row], axis: Literal["x", "y"], position: Spec, encoding: Spec) -> list[Spec]:
    """Return arrows for each side on which a row leaves the scale. `position` encodes an end on the `axis`."""
    marked: list[Row] = list(rows)
    outward = {"x": ("left", "right"), "y": ("down", "up")}[axis]
    inward = {"x": (4, -4), "y": (-4, 4)}[axis]  # the head lies within the plot
    looks: Spec = {"filled": True, "size": 60, "opacity": 1}
    return [
        layer(
            "point",
            {axis: {**position, "field": end}, **encoding},
            f"datum.{side}",
            whose=all("of" in row for row in marked),
            **looks | {"shape": f"triangle-{shape}", f"{axis}Offset": offset},
        )
        for side, end, shape, offset in zip(("under", "over"), ("low", "high"), outward, inward, strict=True)
        if any(row[side] for row in marked)
    ]
