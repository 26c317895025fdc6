"""Speed against memory: what each arm gains by the judged metric, and what it takes for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hugewise.model.over_time import ArmFootprint
from hugewise.model.results import CellResult, Comparison
from hugewise.report import numbers
from hugewise.report.figures.theme import (
    INK,
    WIDTH,
    Spec,
    arm_marks,
    arrows,
    chart,
    cut,
    layer,
    mark_label,
    quantitative,
    span,
)
from hugewise.visible import printable

_HEIGHT = 260
_GIB = 1 << 30


class Range(NamedTuple):
    """An estimate and its interval; an end that is not known is infinite."""

    value: float
    low: float
    high: float


class Trade(NamedTuple):
    """Gain of an arm (percent of the baseline's metric, above 0 is better) and its memory (bytes more)."""

    arm: str
    gain: Range
    memory: Range
    comparison: Comparison
    footprint: ArmFootprint

    @property
    def price(self) -> float | None:
        """GiB for each percent that is gained; None where nothing is gained, or nothing paid."""
        paid = self.memory.value / _GIB
        return paid / self.gain.value if self.gain.value > 0 and paid > 0 else None


def trades(cell: CellResult) -> list[Trade]:
    """Return the trades of each compared arm of a cell that is judged by something else than memory, where both are
    known; empty where no arm differs from the baseline in memory.
    """
    if cell.metric.better == "neutral" or cell.metric.unit == "bytes":
        return []
    taken = {one.arm: one for one in cell.footprints}
    found = []
    for one in cell.comparisons:
        other = taken.get(one.arm)
        if other is None or other.ratio is None or one.ratio is None or not 0 < one.ratio < math.inf:
            continue
        sign = -1.0 if cell.metric.better == "lower" else 1.0
        gain = _range(one.ratio, one.low, one.high, one.constant, 100 * sign)
        memory = _range(other.ratio, other.low, other.high, other.constant, other.value_baseline)
        found.append(Trade(one.arm, gain, memory, one, other))
    return found if any(one.memory.value for one in found) else []


def _range(ratio: float, low: float | None, high: float | None, constant: bool, times: float) -> Range:
    """`times` the change and its ends; of a change that does not vary they are the change itself."""
    first, last = (ratio, ratio) if constant else (low, high)
    if times < 0:
        first, last = last, first
    below = -math.inf if first is None else times * (first - 1)
    above = math.inf if last is None else times * (last - 1)
    return Range(times * (ratio - 1), below, above)


def first_pairs(found: Sequence[Trade]) -> str:
    """Return the caption's note where the intervals of memory are not of all pairs; else empty."""
    fewer = [one.footprint.n for one in found if one.footprint.n < one.comparison.n]
    return f"; the interval of memory is of the first {max(fewer):,} pairs" if fewer else ""


def front(found: Iterable[Trade]) -> list[tuple[float, float]]:
    """(memory, gain) of what nothing else beats in both, by memory; the baseline, at no gain and no memory, is one of
    those that can be.
    """
    points = sorted(
        {(0.0, 0.0), *((one.memory.value, one.gain.value) for one in found)}, key=lambda at: (at[0], -at[1])
    )
    kept: list[tuple[float, float]] = []
    for memory, gain in points:
        if not kept or gain > kept[-1][1]:
            kept.append((memory, gain))
    return kept


def pareto(cell: CellResult, found: Sequence[Trade], palette: Mapping[str, str]) -> Spec | None:
    """A mark for each arm with its intervals both ways, the baseline where both are 0, and a line along the front."""
    if not found:
        return None
    unit = numbers.scale("bytes", [one.memory.value for one in found])
    rows = [_row(one, unit) for one in found]
    across = [_whisker(one, one.memory, unit.factor, one.gain.value) for one in found]
    upward = [_whisker(one, one.gain, 1.0, one.memory.value * unit.factor) for one in found]
    x = _axis(across, "memory", f"memory against {printable(cell.baseline)}, {unit.unit} (less is better)")
    y = _axis(upward, "gain", f"gain in {printable(cell.metric.name)}, % (more is better)")
    colour, shape = arm_marks([one.arm for one in found], palette)
    grey: Spec = {"color": INK, "opacity": 0.45}
    line = [{"memory": memory * unit.factor, "gain": gain} for memory, gain in front(found)]
    layers: list[Spec] = [
        layer("rule", {"x": {"datum": 0, **x}}, **grey, strokeDash=[3, 3]),
        layer("rule", {"y": {"datum": 0, **y}}, **grey, strokeDash=[3, 3]),
        *([_with(line, layer("line", {"x": x, "y": y}, strokeWidth=1.5, **grey))] if len(line) > 1 else []),
        _with(
            across,
            layer(
                "rule",
                {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": {**y, "field": "at"}, "color": colour},
                whose=True,
                strokeWidth=2,
            ),
        ),
        _with(
            upward,
            layer(
                "rule",
                {"y": {**y, "field": "low"}, "y2": {"field": "high"}, "x": {**x, "field": "at"}, "color": colour},
                whose=True,
                strokeWidth=2,
            ),
        ),
        *(_with(across, one) for one in arrows(across, "x", x, {"y": {**y, "field": "at"}, "color": colour})),
        *(_with(upward, one) for one in arrows(upward, "y", y, {"x": {**x, "field": "at"}, "color": colour})),
        _with(
            rows,
            layer(
                "point", {"x": x, "y": y, "color": colour, "shape": shape}, tells=True, filled=True, size=90, opacity=1
            ),
        ),
    ]
    return chart({"width": WIDTH, "height": _HEIGHT, "layer": layers})


def _with(rows: Sequence[Mapping[str, Any]], one: Spec) -> Spec:
    return {"data": {"values": list(rows)}, **one}


def _whisker(trade: Trade, shown: Range, factor: float, at: float) -> dict[str, Any]:
    ends = {"mean": shown.value * factor, "low": shown.low * factor, "high": shown.high * factor, "at": at}
    return {"arm": printable(trade.arm), **ends, **mark_label(trade.arm, "")}


def _axis(rows: Sequence[dict[str, Any]], field: str, title: str) -> Spec:
    """Return the axis on which the rows' ends are, to which they are cut; it has the place of the baseline, 0."""
    means = [0.0, *(row["mean"] for row in rows)]
    low, high = span(means, (row[end] for row in rows for end in ("low", "high")), 0.25 * max(map(abs, means)) or 1.0)
    for row in rows:
        cut(row, low, high)
    pad = 0.08 * (high - low)
    return quantitative(
        field,
        title=title,
        scale={"domain": [low - pad, high + pad], "nice": False, "zero": False},
        axis={"grid": True, "tickCount": 6},
    )


def _row(trade: Trade, unit: numbers.Scale) -> dict[str, Any]:
    price = f", {numbers.size(trade.price * _GIB)} for each percent" if trade.price is not None else ""
    memory = numbers.effect(trade.footprint.ratio, trade.footprint.low, trade.footprint.high)
    effect = numbers.effect(trade.comparison.ratio, trade.comparison.low, trade.comparison.high)
    text = f"{trade.arm}: {trade.comparison.metric} {effect}; memory {memory}{price}"
    return {
        "arm": printable(trade.arm),
        "memory": trade.memory.value * unit.factor,
        "gain": trade.gain.value,
        **mark_label(trade.arm, text),
    }
