"""Throughput within an attempt, second by second: whether the measured part was steady."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hugewise.analysis.series import series_by_arm, throughput_unit
from hugewise.model.results import CellResult, Results
from hugewise.report.figures.parts import COUNTS, VALUES, layer, quantitative, said, strips
from hugewise.report.figures.theme import Spec, nominal
from hugewise.report.numbers import Scale, scale
from hugewise.stats.steady import LIMIT
from hugewise.visible import printable

__all__ = ["Second", "seconds", "within"]

_MOST = 240  # points of a line; longer series are drawn by means of several seconds
_DOTS = 60  # points up to which each is marked
_TICKS = 10  # at most, all of them whole seconds


class Second(NamedTuple):
    """A second of the measured part, counted from 1 (of several: their middle), over the attempts of an arm."""

    second: float
    median: float
    low: float
    high: float


def within(results: Results, cell: CellResult, palette: Mapping[str, str]) -> Spec | None:
    """A strip for each arm: the median over its attempts of each second, in the band of their quartiles.

    The axis reaches at least as far from the medians as is still called settled: noise does not look like drift.
    """
    several = series_by_arm(cell.cell, [arm.arm for arm in cell.arms], results.attempts)
    longest = max((len(series) for mine in several.values() for series in mine), default=0)
    step = math.ceil(longest / _MOST) or 1
    found = {arm: seconds(mine, step) for arm, mine in several.items()}
    found = {arm: mine for arm, mine in found.items() if len(mine) > 1}
    if not found:
        return None
    middles = [statistics.median(each.median for each in mine) for mine in found.values()]
    unit = scale(throughput_unit(cell.workload), middles)
    rows = [
        {
            "arm": printable(arm),
            "second": each.second,
            "median": each.median * unit.factor,
            "low": each.low * unit.factor,
            "high": each.high * unit.factor,
            **said(arm, f"{arm}: {_told(each, step, unit)}"),
        }
        for arm, mine in found.items()
        for each in mine
    ]
    low = min(*(each.low for mine in found.values() for each in mine), (1 - LIMIT) * min(middles))
    high = max(*(each.high for mine in found.values() for each in mine), (1 + LIMIT) * max(middles))
    names = {printable(arm): palette[arm] for arm in found}
    title = "second of the measured part" + (f" (means of {step} seconds)" if step > 1 else "")
    x = quantitative(
        "second",
        title=[title, "line: median of the attempts; band: their quartiles"],
        axis={"values": _ticks(max(each.second for mine in found.values() for each in mine)), "format": ",d"},
        scale=VALUES,
    )
    scaled = {"domain": [low * unit.factor, high * unit.factor], "zero": False, "nice": False, "padding": 4}
    y = quantitative("median", title=None, axis=COUNTS, scale=scaled)
    size = 26 if len(rows) <= _DOTS * len(found) else 5
    layers = [
        layer("area", {"y": {**y, "field": "low"}, "y2": {"field": "high"}}, whose=True, opacity=0.25),
        layer("line", {"y": y}, whose=True, strokeWidth=1.8),
        layer("point", {"y": y}, tells=True, filled=True, size=size, opacity=1),
    ]
    encoding = {"x": x, "color": nominal(names, names)}
    return strips(rows, names, f"throughput, {unit.unit}", encoding, layers, 70)


def _told(one: Second, step: int, unit: Scale) -> str:
    first = one.second - (step - 1) / 2
    when = f"second {first:,.0f}" if step == 1 else f"seconds {first:,.0f} to {first + step - 1:,.0f}"
    half = (one.high - one.low) / 2
    quartiles = f"quartiles {unit.number(one.low, half)} to {unit.text(one.high, half)}"
    return f"{when}, median {unit.number(one.median, half)}, {quartiles}"


def _ticks(last: float) -> list[int]:
    stride = next(step * 10**power for power in range(9) for step in (1, 2, 5) if last / (step * 10**power) <= _TICKS)
    return [second for second in range(0, int(last) + 1, stride) if second > 0]


def seconds(several: Sequence[Sequence[float]], step: int = 1) -> list[Second]:
    """Medians and quartiles over attempts, a series each, of every second that at least half of them reached.

    `step` seconds are taken together by their mean; seconds that do not fill a last step are left out.
    """
    means = [[statistics.fmean(one[at : at + step]) for at in range(0, len(one) - step + 1, step)] for one in several]
    found = []
    for place in range(max(map(len, means), default=0)):
        values = [one[place] for one in means if len(one) > place]
        if 2 * len(values) < len(means):
            break
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        found.append(Second(place * step + (step + 1) / 2, middle, low, high))
    return found
