"""Figure of the overview: each published change beside the change that was measured here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hugewise.model.results import Measured, PublishedPoint
from hugewise.report import numbers
from hugewise.report.document import Figure
from hugewise.report.figures.effects import ratio_axis
from hugewise.report.figures.theme import INK, WIDTH, Spec, arrows, chart, layer, mark_label
from hugewise.report.sentences import effect_of
from hugewise.visible import printable
from tools.results.answers import ClaimRow
from tools.results.claims import OPEN

STEM = "published"
_NAMES = 330  # CSS pixels of a row's name
_SHAPES = {"as published": "diamond", "measured here": "circle"}
_TEXT = (
    "Each published change (diamond) beside the change that was measured here, with its interval. Where runs or cells"
    " disagree, the one of the highest confidence is shown for each answer."
)


class Row(NamedTuple):
    """A published change, its source, and the measured change that stands beside it.

    `page`: the page of the measured change, where several answers are drawn; else empty.
    """

    source: str
    point: PublishedPoint
    measured: Measured
    page: str = ""


def rows_of(source: str, claims: Iterable[Iterable[ClaimRow]]) -> list[Row]:
    """Return the rows of each claim with a number that was judged: the surest finding of each decided answer, else the
    surest finding.
    """
    found = []
    for findings in claims:
        surest: dict[str, ClaimRow] = {}
        for finding in sorted(findings, key=lambda finding: finding.weight, reverse=True):
            if _measured(finding.claimed.row) is not None:
                surest.setdefault(finding.claimed.standing, finding)
        if len(surest) > 1:
            surest.pop(OPEN, None)
        for finding in surest.values():
            row = finding.claimed.row
            measured = _measured(row)
            assert isinstance(row, PublishedPoint) and measured is not None
            found.append(Row(source, row, measured, finding.page if len(surest) > 1 else ""))
    return found


def _measured(row: object) -> Measured | None:
    """Return the measured side where both sides have a change that an axis of ratios can show."""
    if not isinstance(row, PublishedPoint) or row.percent is None or row.percent <= -100 or row.measured is None:
        return None
    ratio = row.measured.ratio
    judged = row.measured.verdict != "not judged" and ratio is not None and 0 < ratio < math.inf
    return row.measured if judged else None


def published_beside_measured(rows: Iterable[Row]) -> Figure | None:
    """Return the figure, a panel for each source; None without any row."""
    values = [value for row in rows for value in _values(row)]
    if not values:
        return None
    axis = ratio_axis(values, "change: published, and measured here")
    sources = list(dict.fromkeys(value["source"] for value in values))
    names = list(dict.fromkeys(value["name"] for value in values))
    header = {"labelOrient": "top", "labelAnchor": "start", "labelPadding": 2, "labelLimit": WIDTH + _NAMES}
    spec = chart(
        {
            "data": {"values": values},
            "facet": {"row": {"field": "source", "type": "nominal", "sort": sources, "title": None, "header": header}},
            "spacing": 12,
            "resolve": {"scale": {"y": "independent"}},
            "spec": {
                "width": WIDTH,
                "height": {"step": 22},
                "encoding": {
                    "y": {
                        "field": "name",
                        "type": "nominal",
                        "sort": names,
                        "title": None,
                        "axis": {"labelLimit": _NAMES},
                    }
                },
                "layer": _layers(values, axis),
            },
        }
    )
    return Figure(STEM, STEM, _TEXT, spec, _TEXT)


def _values(row: Row) -> list[dict[str, Any]]:
    point, measured = row.point, row.measured
    assert point.percent is not None
    low, high = numbers.ends(measured.low, measured.high)
    if low is None and high is None:
        low, high = measured.provisional or (measured.ratio, measured.ratio)
    common = {
        "source": printable(row.source),
        "name": printable(f"{point.cell}, {measured.metric}: {measured.arm}{f' ({row.page})' if row.page else ''}"),
        "bandlow": None,
        "bandhigh": None,
    }
    theirs = 1 + point.percent / 100
    said = f"{point.quantity} {numbers.exact(theirs)} as published ({point.arm})"
    here = f"{measured.metric} {effect_of(measured)}, n {measured.n}, {point.agreement}"
    return [
        {
            **common,
            **{"kind": "as published", "ours": False, "ratio": theirs, "low": theirs, "high": theirs},
            **mark_label("", said),
        },
        {
            **common,
            **{"kind": "measured here", "ours": True, "ratio": measured.ratio, "low": low, "high": high},
            **mark_label("", f"{measured.arm}: {here}"),
        },
    ]


def _layers(values: list[dict[str, Any]], axis: Spec) -> list[Spec]:
    def x(field: str) -> Spec:
        return {"field": field, **axis}

    shape: Mapping[str, Any] = {
        "field": "kind",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(_SHAPES), "range": list(_SHAPES.values())},
        "legend": {"symbolFillColor": "transparent", "symbolStrokeColor": INK},
    }
    point = {"x": x("ratio"), "shape": shape}
    looks: Spec = {"tells": True, "opacity": 1, "color": INK}
    return [
        layer("rule", {"x": {"datum": 1, **axis}, "y": None}, opacity=0.5, strokeDash=[3, 3]),
        layer("rule", {"x": x("low"), "x2": {"field": "high"}}, "datum.ours", strokeWidth=2),
        layer("point", point, "datum.ours", filled=True, size=50, **looks),
        # Larger and hollow: the mark beneath is seen where both changes are the same.
        layer("point", point, "!datum.ours", filled=False, size=130, **looks),
        *arrows([value for value in values if value["ours"]], "x", axis, {}),
    ]
