"""The shape of samples: histogram with outliers, normal Q-Q plot, values in time order, autocorrelation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hugewise.external.compare import ArmFigures
from hugewise.report.figures.theme import COUNTS, INK, VALUES, Spec, layer, mark_label, nominal, quantitative, strips
from hugewise.report.numbers import Scale
from hugewise.visible import printable

_MOST_BINS = 150
_SHOWN_LAGS = 100


def histogram(arms: Sequence[ArmFigures], colour: Mapping[str, str], unit: Scale, title: str) -> Spec | None:
    """A strip for each arm on one axis; bins beyond 3 standard deviations are drawn as points, which stay visible.

    Counts are on a square-root scale, so that a bin of one value can still be seen beside one of thousands.
    """
    rows = [row for arm in arms for row in _bins(arm, unit)]
    if not rows:
        return None
    x = quantitative("from", title=_title(title, unit), scale=VALUES)
    y = quantitative("count", title=None, scale={"type": "sqrt"}, axis=COUNTS)
    bins, middle = {"x": x, "x2": {"field": "to"}, "y": y, "y2": {"datum": 0}}, {"x": {**x, "field": "middle"}, "y": y}
    layers = [
        layer("bar", bins, "!datum.outlying", tells=True, opacity=0.75),
        layer("point", middle, "datum.outlying", tells=True, filled=True, size=30, opacity=0.9),
    ]
    encoding = {"x": x, "y": y, "color": _color(arms, colour)}
    return strips(rows, _names(arms), "count, square-root scale", encoding, layers)


def qq_plot(arms: Sequence[ArmFigures], colour: Mapping[str, str], unit: Scale, title: str) -> Spec | None:
    """Values against normal quantiles, a panel for each arm; the line is the normal with the arm's median and bulk."""
    rows, lines = [], []
    for arm in arms:
        found, name = arm.figures.qq, printable(arm.arm)
        if found is None:
            continue
        for expected, value in zip(found.theoretical.tolist(), found.observed.tolist(), strict=True):
            told = mark_label(
                arm.arm, f"{arm.arm}: {unit.text(value)}, where a normal sample has quantile {expected:.2f}"
            )
            rows.append({"arm": name, "expected": round(expected, 4), "value": value * unit.factor, **told})
        for expected in (found.theoretical[0], found.theoretical[-1]):
            line = arm.figures.median + arm.figures.robust_sd * float(expected)
            lines.append({"arm": name, "expected": round(float(expected), 4), "line": line * unit.factor})
    if not rows:
        return None
    x = quantitative("expected", title="standard normal quantile", scale={"nice": False})
    axis = {"grid": True, "tickCount": 5}
    y = quantitative("value", title=_title(title, unit), axis=axis, scale={"zero": False})
    bulk, values = {"y": {**y, "field": "line"}}, {"y": y, "color": _color(arms, colour)}
    layers = [
        layer("line", bulk, "isValid(datum.line)", color=INK, opacity=0.5, strokeDash=[4, 3]),
        layer("point", values, "isValid(datum.value)", tells=True, filled=True, size=16, opacity=0.8),
    ]
    return strips([*rows, *lines], _names(arms), None, {"x": x}, layers, 140)


def in_time_order(arms: Sequence[ArmFigures], colour: Mapping[str, str], unit: Scale, title: str) -> Spec | None:
    """Values by their place in time, a strip for each arm whose order is known; at most 1,500 of each."""
    known = [arm for arm in arms if arm.order_known and arm.figures.n > 1]
    rows = [
        {
            "arm": printable(arm.arm),
            "place": place + 1,
            "value": value * unit.factor,
            **mark_label(arm.arm, f"{arm.arm}: {unit.text(value)}, number {place + 1:,}"),
        }
        for arm in known
        for place, value in arm.sampled
    ]
    if not rows:
        return None
    encoding = {
        "x": quantitative("place", title="place in the arm's own order in time", scale=VALUES),
        "y": quantitative("value", title=None, scale={"zero": False}, axis=COUNTS),
        "color": _color(known, colour),
    }
    layers = [layer("point", None, tells=True, filled=True, size=10, opacity=0.6)]
    return strips(rows, _names(known), _title(title, unit), encoding, layers)


def autocorrelations(arms: Sequence[ArmFigures], colour: Mapping[str, str]) -> Spec | None:
    """Autocorrelation by lag; the band is what independent values would keep to, 95 of 100 times at each lag."""
    rows: list[dict[str, Any]] = []
    bands: list[dict[str, Any]] = []
    known = [arm for arm in arms if arm.figures.dependence is not None]
    for arm in known:
        told = arm.figures.dependence
        if told is None:
            continue
        name, lags = printable(arm.arm), told.lags[:_SHOWN_LAGS].tolist()
        rows += [
            {"arm": name, "lag": lag, "value": value, **mark_label(arm.arm, f"{arm.arm}: {value:+.3f} at lag {lag}")}
            for lag, value in enumerate(lags, 1)
        ]
        bands.append({"arm": name, "first": 0, "last": len(lags) + 1, "low": -told.limit, "high": told.limit})
    if not rows:
        return None
    x = quantitative("lag", title="lag, in values", scale={"nice": False, "padding": 8})
    y = quantitative("value", title=None, axis=COUNTS)
    band = {"x": {**x, "field": "first"}, "x2": {"field": "last"}, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    layers = [
        layer("rect", band, "isValid(datum.low)", color=INK, opacity=0.12),
        layer("bar", {"x": x, "y": y, "color": _color(known, colour)}, "isValid(datum.value)", tells=True, width=2),
    ]
    return strips([*rows, *bands], _names(known), "autocorrelation (band: independent values)", {}, layers)


def _bins(arm: ArmFigures, unit: Scale) -> Iterator[dict[str, object]]:
    shown = arm.figures
    group = max(1, math.ceil(len(shown.counts) / _MOST_BINS)) if shown.spread is None or shown.spread < 2 else 1
    low, high = (shown.mean - 3 * (shown.sd or 0.0), shown.mean + 3 * (shown.sd or 0.0))
    edges, counts = shown.edges.tolist(), shown.counts.tolist()
    for start in range(0, len(counts), group):
        end = min(start + group, len(counts))
        count = sum(counts[start:end])
        if count:
            middle = (edges[start] + edges[end]) / 2
            yield {
                "arm": printable(arm.arm),
                "from": edges[start] * unit.factor,
                "to": edges[end] * unit.factor,
                "middle": middle * unit.factor,
                "count": count,
                "outlying": bool(shown.sd) and not low <= middle <= high,
                **mark_label(arm.arm, f"{arm.arm}: {_held(count, edges[start], edges[end], unit)}"),
            }


def _held(count: int, low: float, high: float, unit: Scale) -> str:
    width = high - low
    return f"{count:,} value{'' if count == 1 else 's'} from {unit.number(low, width)} to {unit.text(high, width)}"


def _names(arms: Sequence[ArmFigures]) -> list[str]:
    return [printable(arm.arm) for arm in arms]


def _color(arms: Sequence[ArmFigures], colour: Mapping[str, str]) -> Spec:
    return nominal(_names(arms), {printable(arm.arm): colour[arm.arm] for arm in arms})


def _title(title: str, unit: Scale) -> str:
    return f"{title}, {unit.unit}" if unit.unit else title
