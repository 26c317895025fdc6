"""Change of a metric over how much of a heap is on huge pages, with the knee of the curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hugewise.report.figures.theme import INK, VALUES, WIDTH, Spec, chart, layer, mark_label, quantitative
from hugewise.report.numbers import effect
from hugewise.visible import printable

_HEIGHT = 220
_COLOUR = "#159a6c"


def backed(
    points: Sequence[Mapping[str, float | None]],
    smooth: Sequence[tuple[float, float]],
    knee: tuple[float, float, float] | None,
    *,
    metric: str,
    confidence: float,
) -> Spec:
    """A point with its interval for each share, the monotone curve through their means, and the knee's interval.

    `points`: `share` in percent, and `change`, `low`, `high` of the metric in percent (an end that is not known: None);
    `smooth`: percent backed, change in percent; `knee`: its percent with both ends.
    """
    rows = [{**point, **mark_label("", _told(point, metric))} for point in points if point["change"] is not None]
    x = quantitative("share", title="of the heap on huge pages, %", scale={"domain": [0, 100], "padding": 8})
    y = quantitative(
        "change",
        title=[printable(f"change of {metric}, %"), f"with intervals, {100 * confidence:.4g}% for all together"],
        axis={"grid": True, "tickCount": 5},
        scale=VALUES,
    )
    layers = []
    if knee is not None:
        at, low, high = knee
        band = {"values": [{"share": at, "low": low, "high": high}]}
        layers += [
            {
                "data": band,
                **layer("rect", {"x": {**x, "field": "low"}, "x2": {"field": "high"}}, color=INK, opacity=0.1),
            },
            {"data": band, **layer("rule", {"x": x}, color=INK, strokeDash=[4, 3])},
        ]
    layers += [
        {
            "data": {"values": [{"share": share, "change": change} for share, change in smooth]},
            **layer("line", {"x": x, "y": y}, color=_COLOUR, strokeWidth=1.5, opacity=0.8),
        },
        layer(
            "rule",
            {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
            "isValid(datum.low) && isValid(datum.high)",
            color=_COLOUR,
            strokeWidth=2,
        ),
        layer("point", {"x": x, "y": y}, tells=True, color=_COLOUR, filled=True, size=55, opacity=1),
    ]
    return chart({"width": WIDTH, "height": _HEIGHT, "data": {"values": rows}, "layer": layers})


def _told(point: Mapping[str, float | None], metric: str) -> str:
    """`40% on huge pages: tps +3.1% (+2.0% to +4.2%)`."""
    ratio, low, high = (
        None if (percent := point[name]) is None else 1 + percent / 100 for name in ("change", "low", "high")
    )
    return f"{point['share']:.4g}% on huge pages: {metric} {effect(ratio, low, high)}"
