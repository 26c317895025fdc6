"""Figure of a source's published changes beside the measured ones: both changes of a quantity on one axis, a row
each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hugewise.model.results import Beside, Measured, PublishedPoint
from hugewise.report import numbers
from hugewise.report.figures.effects import ratio_axis
from hugewise.report.figures.theme import INK, WIDTH, Spec, arrows, chart, layer, mark_label, nominal
from hugewise.report.sentences import effect_of
from hugewise.visible import printable

_NAMES = 230  # CSS pixels of a row's name
_PUBLISHED = "as published"
_JUDGED, _UNJUDGED = "measured, with its interval", "measured, of medians: not judged"
_SHAPES = {_PUBLISHED: "diamond", _JUDGED: "circle", _UNJUDGED: "cross"}


def held(beside: Beside) -> list[PublishedPoint]:
    """Return the published quantities with a printed change beside which a change was measured."""
    return [
        point
        for point in beside.points
        if point.percent is not None
        and point.percent > -100
        and point.measured is not None
        and point.measured.ratio is not None
        and 0 < point.measured.ratio < math.inf
    ]


def published(beside: Beside, palette: Mapping[str, str]) -> Spec | None:
    """Return for each entry in its cell a row for every such quantity: the published change as a diamond, the measured
    one in the policy's colour with its interval. None where there is none.
    """
    points = held(beside)
    if not points:
        return None
    rows = [row for point in points for row in _rows(point)]
    arms = dict.fromkeys(point.measured.arm for point in points if point.measured is not None)
    colour = {printable(arm): palette.get(arm, INK) for arm in arms}
    axis = ratio_axis(rows, "change of the quantity: published, and measured here")
    places = list(dict.fromkeys(row["place"] for row in rows))
    names = list(dict.fromkeys(row["name"] for row in rows))
    y: Mapping[str, Any] = {
        "field": "name",
        "type": "nominal",
        "sort": names,
        "title": None,
        "axis": {"labelLimit": _NAMES},
    }
    header = {"labelOrient": "top", "labelAnchor": "start", "labelPadding": 2}
    return chart(
        {
            "data": {"values": rows},
            "facet": {"row": {"field": "place", "type": "nominal", "sort": places, "title": None, "header": header}},
            "spacing": 12,
            "resolve": {"scale": {"y": "independent"}},
            "spec": {
                "width": WIDTH,
                "height": {"step": 30},
                "encoding": {"y": y},
                "layer": _layers(rows, axis, nominal(colour, colour)),
            },
        }
    )


def _rows(point: PublishedPoint) -> list[dict[str, Any]]:
    """Return the published one and the measured one, which share a row of the figure."""
    measured = point.measured
    assert measured is not None and point.percent is not None
    place = f"{printable(point.entry)}, beside {printable(point.cell)}"
    common = {
        "place": place,
        "name": f"{printable(point.quantity)}: {printable(point.policy)}",
        "arm": printable(measured.arm),
        "bandlow": None,
        "bandhigh": None,
    }
    below, above = numbers.ends(measured.low, measured.high)
    if below is None and above is None:
        below = above = measured.ratio
    here = f"{measured.metric} {effect_of(measured)}, n {measured.n}"
    theirs = f"{point.quantity} {numbers.exact(1 + point.percent / 100)} as published ({point.arm})"
    return [
        {
            **common,
            "kind": _PUBLISHED,
            "published": True,
            "ratio": 1 + point.percent / 100,
            "low": 1 + point.percent / 100,
            "high": 1 + point.percent / 100,
            "text": "",
            **mark_label("", theirs),
        },
        {
            **common,
            "kind": _kind(measured),
            "published": False,
            "ratio": measured.ratio,
            "low": below,
            "high": above,
            "text": printable(point.agreement),
            **mark_label(measured.arm, f"{measured.arm}: {here}; {point.agreement}"),
        },
    ]


def _kind(measured: Measured) -> str:
    return _UNJUDGED if measured.verdict == "not judged" else _JUDGED


def _layers(rows: Sequence[dict[str, Any]], axis: Spec, colour: Spec) -> list[Spec]:
    def x(field: str) -> Spec:
        return {"field": field, **axis}

    kinds = [kind for kind in _SHAPES if any(row["kind"] == kind for row in rows)]
    shape = {
        "field": "kind",
        "type": "nominal",
        "title": None,
        "scale": {"domain": kinds, "range": [_SHAPES[kind] for kind in kinds]},
        "legend": {"symbolFillColor": "transparent", "symbolStrokeColor": INK, "columns": 1},
    }
    rule = {"x": x("low"), "x2": {"field": "high"}, "color": colour}
    looks: Spec = {"tells": True, "opacity": 1}
    measured = [row for row in rows if not row["published"]]
    return [
        layer("rule", {"x": {"datum": 1, **axis}, "y": None}, opacity=0.5, strokeDash=[3, 3]),
        layer("rule", rule, "!datum.published", whose=True, strokeWidth=3),
        layer(
            "point",
            {"x": x("ratio"), "color": colour, "shape": shape},
            "!datum.published",
            filled=True,
            size=70,
            **looks,
        ),
        # Larger and hollow: what lies beneath is seen where both are the same.
        layer(
            "point", {"x": x("ratio"), "shape": shape}, "datum.published", color=INK, filled=False, size=150, **looks
        ),
        *arrows(measured, "x", axis, {"color": colour}),
        layer(
            "text",
            {"x": {"value": WIDTH}, "text": {"field": "text"}},
            "!datum.published",
            whose=True,
            align="left",
            dx=8,
        ),
    ]
