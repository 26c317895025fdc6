"""Effects with their intervals and the margin band: of a run, and of the hosts of a fleet."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hugewise.model.fleet import FleetComparison, HostEffect, PooledEffect
from hugewise.model.results import VERDICTS, Comparison, Results
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


def narrowed(spec: Spec) -> Spec:
    """Return a figure of effects for a narrow window, where the effect in words stands above its interval."""
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
    room = _NARROW_LABEL / _NARROW * math.log(high / low)
    far = [step for step in (*steps[:1], *steps[-1:]) if abs(math.log(step)) >= room]
    return sorted({1.0, *far})


def overview(results: Results, palette: Mapping[str, str]) -> Spec | None:
    """Return all that was judged in the run, cell below cell: by its own metric, then by what was declared beside it.

    An interval that has one end reaches to the edge of the figure on the other side, where an arrow stands; so does
    one whose end lies far beyond all estimates.
    """
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
    """Return the axis of ratios, labelled as changes, linear for small spans; far ends are put at its edges."""
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
    """Return rows by class: typical effect, the next host's interval, and the hosts; None where no host has a ratio."""
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
