"""Histograms: how the attempts of each arm are spread, and where their mean lies."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from hugewise.model.results import CellResult
from hugewise.report.figures.parts import COUNTS, VALUES, layer, quantitative, said, strips
from hugewise.report.figures.points import Point
from hugewise.report.figures.theme import INK, WIDTH, Spec, nominal
from hugewise.report.numbers import Scale, scale
from hugewise.report.sentences import better_direction
from hugewise.visible import printable

__all__ = ["histogram"]

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
                **said(arm, _bin(held, low + number * width, low + (number + 1) * width, unit)),
            }
            for number, held in enumerate(counts)
            if held
        ]
        mean = statistics.fmean(several)
        text = f"mean {unit.text(mean, _half_width(several))}, n {len(several)}"
        lines.append({"arm": printable(arm), "mean": mean * unit.factor, "text": text, **said(arm, text)})
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
