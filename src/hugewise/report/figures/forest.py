"""The hosts of a fleet by their classes: each with its own interval, the typical effect, and what the next one sees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hugewise.model.fleet import FleetComparison, HostEffect, PooledEffect
from hugewise.report.figures.effects import ratio_axis
from hugewise.report.figures.parts import layer, said
from hugewise.report.figures.theme import INK, WIDTH, Spec, chart
from hugewise.report.figures.whiskers import arrows
from hugewise.report.numbers import effect, ends, interval, percent
from hugewise.report.sentences import SYMBOLS
from hugewise.visible import printable

__all__ = ["MOST", "forest"]

MOST = 30
"""Hosts of a class that are drawn: those that lie furthest from its typical effect."""
TYPICAL, NEXT = "typical effect", "next host"  # a host's name has no space
_ASIDE = 240  # CSS pixels beside the plot, where values stand, which the name of a class may reach into
_TOUCHING = {"paddingInner": 0, "paddingOuter": 0}
_SHAPES = {
    "better": "triangle-up",
    "worse": "triangle-down",
    "equivalent": "square",
    "undecided": "circle",
    "none": "cross",
    TYPICAL: "diamond",
}


def forest(one: FleetComparison, colour: str, margin: float) -> Spec | None:
    """Rows by class: the typical effect with its interval, the interval of the next host, and the hosts as they are by
    themselves. None where no host has a ratio.
    """
    rows = [row for stratum in one.strata for row in _rows(one, stratum, margin)]
    if not any(row["ratio"] is not None for row in rows):
        return None
    good = {"lower": "← better", "higher": "better →", "neutral": "not judged"}[one.metric.better]
    title = f"{printable(one.metric.name)}: change against {printable(one.baseline)}, band ±{percent(margin)} ({good})"
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
                "layer": _layers(rows, axis, colour),
            },
        }
    )


def _rows(one: FleetComparison, stratum: PooledEffect, margin: float) -> list[dict[str, Any]]:
    hosts = [host for host in one.hosts if host.stratum == stratum.stratum]
    shown, drawn = f"{printable(stratum.stratum)} ({len(hosts)} hosts)", _furthest(hosts, stratum.ratio)
    if len(drawn) < len(hosts):
        shown += f", the {len(drawn)} furthest from its typical effect"
    common = {"stratum": shown, "bandlow": 1 - margin, "bandhigh": 1 + margin}
    rows = []
    if stratum.ratio is not None:
        text = f"{effect(stratum.ratio, stratum.low, stratum.high)}  {SYMBOLS[stratum.verdict]} {stratum.verdict}"
        rows.append(common | _row(TYPICAL, TYPICAL, stratum.ratio, stratum.low, stratum.high, text))
    if stratum.next_low is not None and stratum.next_high is not None:
        text = interval(stratum.ratio, stratum.next_low, stratum.next_high)
        rows.append(common | _row(NEXT, NEXT, None, stratum.next_low, stratum.next_high, text))
    for host in drawn:
        text = f"{effect(host.ratio, host.low, host.high)}  {SYMBOLS[host.verdict]}"
        rows.append(common | _row(printable(host.host), host.verdict, host.ratio, host.low, host.high, text))
    return rows


def _row(  # noqa: PLR0917
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
        **said("", f"{host}: {text}"),
    }


def _furthest(hosts: Sequence[HostEffect], typical: float | None) -> list[HostEffect]:
    """Those that are drawn, in the order of their effects."""
    known = [host for host in hosts if host.ratio is not None and 0 < host.ratio < math.inf]
    if typical is not None and len(known) > MOST:
        known = sorted(known, key=lambda host: -abs(math.log((host.ratio or 1.0) / typical)))[:MOST]
    return sorted(known, key=lambda host: host.ratio or 0.0)[:MOST]


def _layers(rows: Sequence[dict[str, Any]], axis: Spec, colour: str) -> list[Spec]:
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
