"""The distribution of values, by arm: points with quartiles, histograms, means with their confidence intervals.

Of measurements made elsewhere: histograms with outliers, normal Q-Q plots, values in time order, autocorrelation.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hugewise.external.compare import ArmFigures
from hugewise.model.results import CellResult
from hugewise.report.figures.theme import (
    COUNTS,
    INK,
    VALUES,
    WIDTH,
    Point,
    Spec,
    arrows,
    chart,
    fit,
    layer,
    mark_label,
    mean_of,
    nominal,
    quantitative,
    row_axis,
    rows_with_axis,
    state_shape,
    strips,
    thinned,
)
from hugewise.report.numbers import Scale, percent, scale
from hugewise.report.sentences import better_direction
from hugewise.visible import printable

_GOLDEN = 0.6180339887498949


def distribution(points: Sequence[Point], cell: CellResult, palette: Mapping[str, str]) -> Spec | None:
    """A strip of points for each arm; attempts that do not count have other shapes, failures stand at the bad edge."""
    values = [point.value for point in points if point.value is not None]
    if not values:
        return None
    unit = scale(cell.metric.unit, values)
    worst = max(values) if cell.metric.better == "lower" else min(values)
    names = {printable(arm.arm): palette[arm.arm] for arm in cell.arms}
    rows = list(_rows(thinned(points), unit, worst))
    boxes = [
        {
            "arm": printable(arm.arm),
            "q1": arm.quantiles["0.25"] * unit.factor,
            "q3": arm.quantiles["0.75"] * unit.factor,
            "median": arm.median * unit.factor,
            **mark_label(arm.arm, ""),
        }
        for arm in cell.arms
        if arm.median is not None and {"0.25", "0.75"} <= set(arm.quantiles)
    ]
    title = f"{printable(cell.metric.name)} of every attempt, {unit.unit} ({better_direction(cell.metric)})"
    scaled = {"title": printable(title), "scale": {"zero": False, "padding": 8}}
    q1, median, value = (quantitative(field, **scaled) for field in ("q1", "median", "value"))
    states = {str(row["state"]): None for row in rows}
    points_of = {
        "x": value,
        "yOffset": quantitative("offset", scale={"domain": [-1, 1]}),
        "color": nominal(names, names),
        "shape": state_shape(states),
    }
    box = layer("bar", {"x": q1, "x2": {"field": "q3"}}, whose=True, height=30, color=INK, opacity=0.1)
    middle = layer("tick", {"x": median}, whose=True, size=30, thickness=2, color=INK, opacity=0.7)
    strip = layer("point", points_of, tells=True, filled=True, size=26, opacity=0.75)
    layers = [{"data": {"values": boxes}, **box}, {"data": {"values": boxes}, **middle}]
    layers.append({"data": {"values": rows}, **strip})
    return chart({"width": WIDTH, "height": {"step": 44}, "encoding": {"y": row_axis(names)}, "layer": layers})


def _rows(points: list[Point], unit: Scale, worst: float) -> Iterator[dict[str, object]]:
    for index, point in enumerate(points):
        if point.value is None and point.state != "failed":
            continue
        value = worst if point.value is None else point.value
        # A low-discrepancy sequence spreads neighbours apart, the same way each time.
        offset = (index * _GOLDEN % 1 - 0.5) * 0.9
        told = mark_label(point.arm, f"{unit.text(point.value)}, block {point.block}, {point.state}")
        yield {
            "arm": printable(point.arm),
            "value": value * unit.factor,
            "offset": round(offset, 4),
            "state": point.state,
        } | told


_FEWEST = 20  # attempts of an arm below which points tell more than bins
_MOST_BINS = 60


def histogram(found: Sequence[Point], cell: CellResult, palette: Mapping[str, str]) -> Spec | None:
    """Counts by value in common bins, a strip for each arm, with a line at the mean of its counted attempts."""
    counted = {"counted", "flagged as disturbed"}
    found = [point for point in found if point.value is not None and point.state in counted]
    values = {arm.arm: [p.value for p in found if p.arm == arm.arm and p.value is not None] for arm in cell.arms}
    values = {arm: several for arm, several in values.items() if several}
    if max(map(len, values.values()), default=0) < _FEWEST:
        return None
    everything = [value for several in values.values() for value in several]
    unit = scale(cell.metric.unit, everything)
    low, width, count = _bins(list(values.values()))
    rows, lines = [], []
    for arm, several in values.items():
        counts = [0] * count
        for value in several:
            counts[min(int((value - low) / width), count - 1)] += 1
        rows += [
            {
                "arm": printable(arm),
                "from": (low + number * width) * unit.factor,
                "to": (low + (number + 1) * width) * unit.factor,
                "count": held,
                **mark_label(arm, _bin(held, low + number * width, low + (number + 1) * width, unit)),
            }
            for number, held in enumerate(counts)
            if held
        ]
        mean = statistics.fmean(several)
        text = f"mean {unit.text(mean, _half_width(several))}, n {len(several)}"
        lines.append({"arm": printable(arm), "mean": mean * unit.factor, "text": text, **mark_label(arm, text)})
    names = {printable(arm): palette[arm] for arm in values}
    title = f"{printable(cell.metric.name)} of every counted attempt, {unit.unit} ({better_direction(cell.metric)})"
    x = quantitative("from", title=printable(title), scale=VALUES)
    y = quantitative("count", title=None, axis={**COUNTS, "format": "d"})
    of_bins = {"x": x, "x2": {"field": "to"}, "y": y, "y2": {"datum": 0}, "color": nominal(names, names)}
    at = {"x": {"value": WIDTH}, "y": {"value": 0}, "text": {"field": "text"}}
    middle = {"x": {**x, "field": "mean"}}
    layers = [
        layer("bar", of_bins, "isValid(datum.count)", tells=True, opacity=0.75, binSpacing=0),
        layer("rule", middle, "isValid(datum.mean)", tells=True, strokeWidth=1.5, strokeDash=[4, 3], color=INK),
        layer("text", at, "isValid(datum.mean)", align="right", baseline="bottom", dy=-2),
    ]
    return strips([*rows, *lines], names, "attempts", {}, layers, 70)


def _bins(samples: Sequence[Sequence[float]]) -> tuple[float, float, int]:
    """Start, width and number of common bins: the narrowest width that an arm asks for (Freedman and Diaconis 1981,
    Z. Wahrscheinlichkeitstheorie 57:453), but no more than `_MOST_BINS`.
    """
    everything = [value for several in samples for value in several]
    low, high = min(everything), max(everything)
    if high <= low:
        half = abs(low) * 0.01 or 0.5
        return low - half, 2 * half, 1
    wanted = []
    for several in samples:
        if len(several) >= _FEWEST:
            first, _, third = statistics.quantiles(several, n=4)
            if third > first:
                wanted.append(2 * (third - first) / len(several) ** (1 / 3))
    width = max(min(wanted, default=0.0), (high - low) / _MOST_BINS)
    count = max(1, math.ceil((high - low) / width))
    return low, (high - low) / count, count


def _bin(held: int, low: float, high: float, unit: Scale) -> str:
    width = high - low
    return f"{held} attempt{'' if held == 1 else 's'} from {unit.number(low, width)} to {unit.text(high, width)}"


def _half_width(values: Sequence[float]) -> float | None:
    """About the half-width of the mean's interval: only for the number of digits."""
    return 2 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def means(cell: CellResult, palette: Mapping[str, str], confidence: float) -> Spec | None:
    """Return a dot at each mean, a whisker for its t interval at `confidence`, the number above it."""
    arms = [arm for arm in cell.arms if arm.mean is not None]
    if not arms:
        return None
    unit = scale(cell.metric.unit, [arm.mean for arm in arms])
    rows = [{**mean_of(arm, unit), "text": unit.number(arm.mean, arm.margin)} for arm in arms]
    names = {printable(arm.arm): palette[arm.arm] for arm in arms}
    interval = f"with {percent(confidence)} interval"
    title = f"mean {cell.metric.name} {interval}, {unit.unit} ({better_direction(cell.metric)})"
    color = nominal(names, names)
    scaled = {"zero": False, "nice": False, "domain": fit(rows), "padding": 36}
    x = quantitative("mean", title=printable(title), scale=scaled)
    whisker = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": color}
    layers = [
        layer("rule", whisker, whose=True, strokeWidth=3, strokeCap="butt"),
        *arrows(rows, "x", x, {"color": color}),
        layer("point", {"x": x, "color": color}, tells=True, filled=True, size=70, opacity=1),
        layer("text", {"x": x, "text": {"field": "text"}}, whose=True, dy=-11),
    ]
    return rows_with_axis(names, rows, layers, 32)


_MOST_SAMPLE_BINS = 150
_SHOWN_LAGS = 100


def sample_histogram(arms: Sequence[ArmFigures], colour: Mapping[str, str], unit: Scale, title: str) -> Spec | None:
    """Return a strip for each arm on one axis; bins beyond 3 standard deviations are drawn as points, which stay
    visible.

    Counts are on a square-root scale, so that a bin of one value can still be seen beside one of thousands.
    """
    rows = [row for arm in arms for row in _sample_bins(arm, unit)]
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
    """Return values by their place in time, a strip for each arm whose order is known; at most 1,500 of each."""
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


def _sample_bins(arm: ArmFigures, unit: Scale) -> Iterator[dict[str, object]]:
    shown = arm.figures
    group = max(1, math.ceil(len(shown.counts) / _MOST_SAMPLE_BINS)) if shown.spread is None or shown.spread < 2 else 1
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
