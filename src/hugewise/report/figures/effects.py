"""Effects with their intervals and the margin band: of one cell, of the whole run, and of the hosts of a fleet.

The heat map has every metric's change under every arm: blue is lower, orange higher, and the fill says how large the
change is. Fills are half transparent, so that the page's ink keeps its contrast on them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hugewise.analysis.changes import Change, Values, changes
from hugewise.model.fleet import FleetComparison, HostEffect, PooledEffect
from hugewise.model.results import VERDICTS, CellResult, Comparison, Results
from hugewise.report import numbers
from hugewise.report.cell_answers import Also, also_judged
from hugewise.report.figures.theme import (
    INK,
    WIDTH,
    Spec,
    arrows,
    change_label,
    chart,
    cut,
    layer,
    mark_label,
    nominal,
    row_axis,
    rows_with_axis,
    span,
)
from hugewise.report.numbers import effect, ends, interval, percent
from hugewise.report.sentences import better_direction, effect_of, marked
from hugewise.visible import printable

# CSS pixels of a narrow figure: in a window of 360 it does not scroll.
_NARROW, _NARROW_NAMES, _NARROW_ROW, _NARROW_LABEL = 200, 100, 42, 36
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100)
_VERDICT_SHAPES = {verdict: words.shape for verdict, words in VERDICTS.items()}


_TOUCHING = {"paddingInner": 0, "paddingOuter": 0}  # so that the band has no gaps
_BEYOND = 0.25  # how far an open end reaches beyond all that is known, as a part of the whole span
_LEAST = math.log(2)  # as far beyond the estimates an interval's end is shown in any case


def effects(cell: CellResult, palette: Mapping[str, str], margin: float) -> Spec | None:
    """Each arm's ratio to the baseline as a change in percent, its interval, and the band of equivalence.

    An interval that has one end reaches to the edge of the figure on the other side, where an arrow stands; so does
    one whose end lies far beyond all estimates.
    """
    rows = [row for comparison in cell.comparisons if (row := _row(comparison, margin))]
    if not rows:
        return None
    names = {
        printable(comparison.arm): palette[comparison.arm]
        for comparison in cell.comparisons
        if comparison.ratio is not None
    }
    good = {"lower": "← better", "higher": "better →", "neutral": "not judged"}[cell.metric.better]
    title = (
        f"{printable(cell.metric.name)}: change against {printable(cell.baseline)}, band ±{percent(margin)} ({good})"
    )
    return rows_with_axis(
        names, rows, _layers(rows, ratio_axis(rows, title), nominal(names, names), WIDTH), 36, scale=_TOUCHING
    )


def narrowed(spec: Spec) -> Spec:
    """Return a figure of effects for a narrow window: no part of it is out of sight, so that an interval that crosses
    zero is seen to. The effect in words stands above its interval.
    """
    made: Spec = copy.deepcopy(spec)
    body = made.get("spec", made)
    body |= {"width": _NARROW, "height": {"step": _NARROW_ROW}}
    body["encoding"]["y"] |= {"axis": {"labelLimit": _NARROW_NAMES}}
    if "facet" in made:
        made["facet"]["row"]["header"] |= {"labelLimit": _NARROW}
    for one in body["layer"]:
        one["encoding"] = dict(one["encoding"])  # layers share them
        x = one["encoding"]["x"]
        if one["mark"]["type"] == "text":
            one["encoding"]["x"] = {"value": 0}
            one["mark"] |= {"dx": 0, "dy": -_NARROW_ROW / 3}
        elif "title" in x:
            axis = {**x["axis"], "tickCount": 3, "titleLimit": _NARROW + _NARROW_NAMES}
            if "values" in axis:
                axis["values"] = _ticks(axis["values"], *x["scale"]["domain"])
            one["encoding"] |= {"x": {**x, "title": x["title"].split(", "), "axis": axis}}
    return made


def _ticks(steps: Sequence[float], low: float, high: float) -> list[float]:
    """Return those ticks of a narrow axis whose labels have room: none, and the outermost that are far enough off."""
    room = _NARROW_LABEL / _NARROW * math.log(high / low)
    far = [step for step in (*steps[:1], *steps[-1:]) if abs(math.log(step)) >= room]
    return sorted({1.0, *far})


def overview(results: Results, palette: Mapping[str, str]) -> Spec | None:
    """All that was judged in the run, cell below cell: by its own metric, then by what was declared beside it."""
    rows: list[dict[str, Any]] = []
    for number, cell in enumerate(results.cells):
        own = [Also(printable(cell.metric.name), cell.metric, comparison) for comparison in cell.comparisons]
        for name, metric, one, _ in (*own, *also_judged(cell)):
            label = f"{number + 1}. {printable(cell.cell)} – {name}, {better_direction(metric)}"
            rows += [{**row, "cell": label} for row in [_row(one, results.margin)] if row]
    if not rows:
        return None
    arms = {comparison.arm: None for cell in results.cells for comparison in cell.judged}
    names = {printable(arm): palette[arm] for arm in arms}
    title = f"change against the baseline, with the margin of ±{percent(results.margin)}"
    width = WIDTH + 180
    encoding = {"y": {**row_axis(names), "scale": _TOUCHING}}
    layers = _layers(rows, ratio_axis(rows, title), nominal(names, names), width)
    header = {"labelOrient": "top", "labelAnchor": "start", "labelPadding": 2}
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    return chart(
        {
            "data": {"values": rows},
            "facet": {"row": {"field": "cell", "type": "nominal", "sort": cells, "title": None, "header": header}},
            "spacing": 12,
            "resolve": {"scale": {"y": "independent"}},
            "spec": {"width": width, "height": {"step": 26}, "encoding": encoding, "layer": layers},
        }
    )


def _row(comparison: Comparison, margin: float) -> dict[str, Any] | None:
    """Return the drawn values of a comparison, None for nothing; `ratio` is None where there is no finite one.

    An end that is not there is None, until `ratio_axis` puts it at the edge.
    """
    low, high = ends(comparison.low, comparison.high)
    ratio = comparison.ratio
    if ratio is None or math.isnan(ratio):
        return None
    finite = ratio if 0 < ratio < math.inf else None
    if finite is None and low is None and high is None:
        return None
    bounded = low is not None or high is not None
    return {
        "arm": printable(comparison.arm),
        "ratio": finite,
        "low": low if bounded else finite,
        "high": high if bounded else finite,
        "bandlow": 1 - margin,
        "bandhigh": 1 + margin,
        "verdict": comparison.verdict,
        "text": f"{effect_of(comparison)}  {marked(comparison.verdict)}",
        **mark_label(
            comparison.arm, f"{comparison.arm}: {effect_of(comparison)}, {comparison.n} pairs, {comparison.verdict}"
        ),
    }


def ratio_axis(rows: Sequence[dict[str, Any]], title: str) -> Spec:
    """Return the axis of ratios, labelled as changes: linear for small spans, else logarithmic (a ratio and its inverse
    then lie at equal distances from none). Ends that are open, or far away, are put at its edges.
    """
    ends = [row[end] for row in rows for end in ("low", "high") if row[end]]
    estimates = [row[key] for row in rows for key in ("ratio", "bandlow", "bandhigh") if row[key]]
    # An interval without an estimate is shown by the end that it has.
    estimates += [row["low"] or row["high"] for row in rows if row["ratio"] is None]
    low, high = map(math.exp, span(map(math.log, estimates), map(math.log, ends), _LEAST))
    reach = (high / low) ** _BEYOND
    low /= reach if any(row["low"] is None for row in rows) else 1
    high *= reach if any(row["high"] is None for row in rows) else 1
    for row in rows:
        row["under"], row["over"] = row["low"] is None, row["high"] is None
        row["low"], row["high"] = row["low"] or low, row["high"] or high
        cut(row, low, high)
    common = {"type": "quantitative", "title": printable(title)}
    if high / low < 1.5:
        pad = (high - low) * 0.06
        return {
            **common,
            "scale": {"domain": [low - pad, high + pad], "nice": False},
            "axis": {"labelExpr": change_label("datum.value - 1")},
        }
    pad = (high / low) ** 0.06
    domain = [low / pad, high * pad]
    return {
        **common,
        "title": f"{printable(title)}, log scale",
        "scale": {"type": "log", "domain": domain, "nice": False},
        "axis": {
            "values": [step for step in _STEPS if domain[0] <= step <= domain[1]],
            "labelExpr": change_label("datum.value - 1"),
        },
    }


def _layers(rows: Sequence[dict[str, Any]], axis: Spec, color: Spec, width: int) -> list[Spec]:
    def x(field: str) -> Spec:
        return {"field": field, **axis}

    shape = {
        "field": "verdict",
        "type": "nominal",
        "scale": {"domain": list(_VERDICT_SHAPES), "range": list(_VERDICT_SHAPES.values())},
        "legend": None,
    }
    text = {"x": {"value": width}, "text": {"field": "text"}}
    point: Spec = {"filled": True, "opacity": 1}
    return [
        layer("bar", {"x": x("bandlow"), "x2": {"field": "bandhigh"}}, color=INK, opacity=0.12, height={"band": 1}),
        layer("rule", {"x": {"datum": 1, **axis}, "y": None}, opacity=0.5, strokeDash=[3, 3]),
        layer("rule", {"x": x("low"), "x2": {"field": "high"}, "color": color}, whose=True, strokeWidth=3),
        layer(
            "point",
            {"x": x("ratio"), "color": color, "shape": shape},
            "isValid(datum.ratio)",
            tells=True,
            size=70,
            **point,
        ),
        *arrows(rows, "x", axis, {"color": color}),
        layer("text", text, whose=True, align="left", dx=8),
    ]


MOST = 30
"""Hosts of a class that are drawn: those that lie furthest from its typical effect."""
TYPICAL, NEXT = "typical effect", "next host"  # a host's name has no space
_ASIDE = 240  # CSS pixels beside the plot, where values stand, which the name of a class may reach into
_SHAPES = {**_VERDICT_SHAPES, TYPICAL: "diamond"}


def forest(comparison: FleetComparison, colour: str, margin: float) -> Spec | None:
    """Return rows by class: the typical effect with its interval, the interval of the next host, and the hosts as they
    are by themselves. None where no host has a ratio.
    """
    rows = [row for stratum in comparison.strata for row in _rows(comparison, stratum, margin)]
    if not any(row["ratio"] is not None for row in rows):
        return None
    good = {"lower": "← better", "higher": "better →", "neutral": "not judged"}[comparison.metric.better]
    metric, base = printable(comparison.metric.name), printable(comparison.baseline)
    title = f"{metric}: change against {base}, band ±{percent(margin)} ({good})"
    axis = ratio_axis(rows, title)
    classes = list(dict.fromkeys(row["stratum"] for row in rows))
    names = list(dict.fromkeys(row["host"] for row in rows))
    y: Mapping[str, Any] = {"field": "host", "type": "nominal", "sort": names, "title": None, "scale": _TOUCHING}
    header = {"labelOrient": "top", "labelAnchor": "start", "labelPadding": 2, "labelLimit": WIDTH + _ASIDE}
    return chart(
        {
            "data": {"values": rows},
            "facet": {"row": {"field": "stratum", "type": "nominal", "sort": classes, "title": None, "header": header}},
            "spacing": 12,
            "resolve": {"scale": {"y": "independent"}},
            "spec": {
                "width": WIDTH,
                "height": {"step": 22},
                "encoding": {"y": y},
                "layer": _forest_layers(rows, axis, colour),
            },
        }
    )


def _rows(comparison: FleetComparison, stratum: PooledEffect, margin: float) -> list[dict[str, Any]]:
    hosts = [host for host in comparison.hosts if host.stratum == stratum.stratum]
    shown, drawn = f"{printable(stratum.stratum)} ({len(hosts)} hosts)", _furthest(hosts, stratum.ratio)
    if len(drawn) < len(hosts):
        shown += f", the {len(drawn)} furthest from its typical effect"
    common = {"stratum": shown, "bandlow": 1 - margin, "bandhigh": 1 + margin}
    rows = []
    if stratum.ratio is not None:
        text = f"{effect(stratum.ratio, stratum.low, stratum.high)}  {marked(stratum.verdict)}"
        rows.append(common | _host_row(TYPICAL, TYPICAL, stratum.ratio, stratum.low, stratum.high, text))
    if stratum.next_low is not None and stratum.next_high is not None:
        text = interval(stratum.ratio, stratum.next_low, stratum.next_high)
        rows.append(common | _host_row(NEXT, NEXT, None, stratum.next_low, stratum.next_high, text))
    for host in drawn:
        text = f"{effect(host.ratio, host.low, host.high)}  {VERDICTS[host.verdict].symbol}"
        rows.append(common | _host_row(printable(host.host), host.verdict, host.ratio, host.low, host.high, text))
    return rows


def _host_row(  # noqa: PLR0917
    host: str, kind: str, ratio: float | None, low: float | None, high: float | None, text: str
) -> dict[str, Any]:
    finite = ratio if ratio is not None and 0 < ratio < math.inf else None
    below, above = ends(low, high)
    if below is None and above is None:
        below = above = finite
    # As flags: names in the data have a mark when they are drawn (`report.images`), and equal none in an expression.
    told = {"typical": kind == TYPICAL, "next": kind == NEXT}
    return {
        "host": host,
        "kind": kind,
        **told,
        "ratio": finite,
        "low": below,
        "high": above,
        "text": text,
        **mark_label("", f"{host}: {text}"),
    }


def _furthest(hosts: Sequence[HostEffect], typical: float | None) -> list[HostEffect]:
    """Return the hosts that are drawn, in the order of their effects."""
    known = [host for host in hosts if host.ratio is not None and 0 < host.ratio < math.inf]
    if typical is not None and len(known) > MOST:
        known = sorted(known, key=lambda host: -abs(math.log((host.ratio or 1.0) / typical)))[:MOST]
    return sorted(known, key=lambda host: host.ratio or 0.0)[:MOST]


def _forest_layers(rows: Sequence[dict[str, Any]], axis: Spec, colour: str) -> list[Spec]:
    def x(field: str) -> Spec:
        return {"field": field, **axis}

    shape = {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": list(_SHAPES), "range": list(_SHAPES.values())},
        "legend": None,
    }
    rule = {"x": x("low"), "x2": {"field": "high"}}
    point: Spec = {"filled": True, "opacity": 1, "color": colour}
    return [
        layer("bar", {"x": x("bandlow"), "x2": {"field": "bandhigh"}}, color=INK, opacity=0.12, height={"band": 1}),
        layer("rule", {"x": {"datum": 1, **axis}, "y": None}, opacity=0.5, strokeDash=[3, 3]),
        layer("rule", rule, "datum.next", tells=True, strokeWidth=10, opacity=0.35, color=colour),
        layer("rule", rule, "datum.typical", strokeWidth=5, color=colour),
        layer("rule", rule, "!datum.typical && !datum.next", strokeWidth=2, color=colour),
        layer("point", {"x": x("ratio"), "shape": shape}, "isValid(datum.ratio)", tells=True, size=70, **point),
        *arrows(rows, "x", axis, {"color": {"value": colour}}),
        layer("text", {"x": {"value": WIDTH}, "text": {"field": "text"}}, align="left", dx=8),
    ]


_MOST = 24  # metrics in the figure: all are in the table below it
_FULL = math.log(2)  # a change from which on the colour is full: twice, or half
_OPACITY = 0.5
_COLOURS = {"lower": "#2a78d6", "higher": "#d2700a"}
_STEP, _WIDEST, _LETTER, _ROW, _NAMES = 104, 158, 7, 24, 230

MetricRow = Mapping[str, Change]


class HeatRows(NamedTuple):
    """The metrics of the figure, each with its arms, and how many there are in all."""

    shown: Mapping[str, MetricRow]
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


def _largest(row: MetricRow) -> float:
    return max(_size(change) for change in row.values())


def _size(change: Change) -> float:
    assert change.ratio is not None
    return abs(math.log(change.ratio))


def heat(cell: CellResult, found: HeatRows) -> Spec | None:
    """A row for each metric, a column for each arm beside the baseline. None where fewer than two metrics changed."""
    if len(found.shown) < 2:
        return None
    arms = [arm.arm for arm in cell.arms if any(arm.arm in row for row in found.shown.values())]
    rows = [_heat_field(name, arm, row[arm]) for name, row in found.shown.items() for arm in arms if arm in row]
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


def _heat_field(name: str, arm: str, one: Change) -> dict[str, Any]:
    assert one.ratio is not None
    symbol = "" if one.verdict is None else f"{VERDICTS[one.verdict].symbol} "
    change = numbers.exact(one.ratio) if one.constant else numbers.point(one.ratio, one.low, one.high)
    return {
        "metric": printable(name),
        "arm": printable(arm),
        "ratio": one.ratio,
        "way": "lower" if one.ratio < 1 else "higher",
        "weight": round(_OPACITY * min(_size(one) / _FULL, 1.0), 4),
        "text": f"{symbol}{change}",
        **mark_label(arm, f"{arm}, {name}: {_heat_words(one, change)}", one.metric),
    }


def _heat_words(one: Change, change: str) -> str:
    if one.verdict is None:
        return f"{change}, not judged, medians of {one.n} and {one.n_baseline} attempts"
    span = "" if one.constant else numbers.interval(one.ratio, one.low, one.high)
    level = numbers.percent(one.confidence)
    interval = f"{level} interval {span}" if span else "the same in all" if one.constant else "no interval"
    return f"{change}, {interval}, {one.n} pairs, {one.verdict}"


def heat_caption(rows: HeatRows, baseline: str) -> str:
    """Return the caption."""
    few = len(rows.shown)
    most = f" The {few} that were judged or changed most, of {rows.of}: the table has all." if few < rows.of else ""
    return (
        f"Change of every metric against {printable(baseline)}: blue is lower, orange higher, full colour from half or "
        f"twice on. ▲▼=? are verdicts; what has none was not judged.{most}"
    )
