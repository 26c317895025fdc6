"""Within an attempt: memory by page size, latencies beside the machine's counters, throughput by the second."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hugewise.analysis.analysis import series_by_arm, throughput_unit
from hugewise.model.over_time import ArmOverTime
from hugewise.model.results import CellResult, Results
from hugewise.report.figures.coverage import kind_colours, kind_label, kind_order
from hugewise.report.figures.theme import COUNTS, INK, VALUES, Spec, layer, mark_label, nominal, quantitative, strips
from hugewise.report.numbers import Scale, scale, size
from hugewise.stats.changepoint import LIMIT
from hugewise.visible import printable

MARKED = {
    "compaction_pages": "compaction",
    "huge_bytes_cleared": "huge pages cleared",
    "collapsed_pages": "khugepaged",
    "split_pages": "huge pages split",
    "begun": "processes begun",
    "reclaim_stalls": "reclaim",
    "swapped_pages": "swap",
}
"""Events that are marked beside latencies, with what they are called there."""

_SHAPES = ("triangle-down", "square", "diamond", "cross", "circle", "triangle-up", "triangle-left")
_SECOND = "second of the measured part"


def pages(cell: CellResult) -> Spec | None:
    """A strip for each arm: anonymous memory and pools of the whole machine by page size, stacked, at each reading."""
    several = [series for series in cell.over_time if series.memory and len(series.t_s) > 1]
    keys = kind_order({key for one in several for key in one.memory})
    highest = max(
        (sum(_at(one, key, place) for key in keys) for one in several for place in range(len(one.t_s))), default=0
    )
    if not highest:
        return None
    unit = scale("bytes", [highest])
    rows: list[dict[str, Any]] = []
    for one in several:
        told = {key: mark_label(one.arm, f"{one.arm}: {_memory(one, key)}") for key in keys}
        for place, t in enumerate(one.t_s):
            if any(values[place] is None for values in one.memory.values()):
                continue
            below = 0.0
            for key in keys:
                above = below + _at(one, key, place)
                rows.append(
                    {
                        "arm": printable(one.arm),
                        "t": t,
                        "kind": kind_label(key),
                        "order": keys.index(key),
                        "start": below * unit.factor,
                        "end": above * unit.factor,
                        **told[key],
                    }
                )
                below = above
    ends = [{"arm": printable(one.arm), "t": t, "mark": True} for one in several for t in (0.0, one.length_s)]
    x = quantitative("t", title=[_SECOND, "vertical lines: its begin and end"], scale=VALUES)
    y = quantitative("start", title=None, axis=COUNTS)
    kinds: Spec = {
        "field": "kind",
        "type": "nominal",
        "title": None,
        "sort": [kind_label(key) for key in keys],
        "legend": {"symbolType": "square"},
        "scale": {"domain": [kind_label(key) for key in keys], "range": kind_colours(keys)},
    }
    layers = [
        layer(
            "area",
            {"y": y, "y2": {"field": "end"}, "color": kinds},
            "!datum.mark",
            tells=True,
            interpolate="step-after",
        ),
        layer("rule", where="datum.mark", color=INK, strokeDash=[4, 3], opacity=0.7),
    ]
    names = [printable(one.arm) for one in several]
    return strips([*rows, *ends], names, f"memory of the machine, {unit.unit}", {"x": x}, layers, 90)


def _memory(series: ArmOverTime, key: str) -> str:
    """Return the label of an area, for all of its readings: `2m anonymous memory, 1.00 GiB at most, none at the
    end`.
    """
    known = [value for value in series.memory.get(key, ()) if value is not None] or [0]
    return f"{kind_label(key)} memory, {size(max(known))} at most, {size(known[-1])} at the end"


def _at(series: ArmOverTime, key: str, place: int) -> float:
    values = series.memory.get(key)
    return 0.0 if values is None else float(values[place] or 0)


def latencies(cell: CellResult, palette: Mapping[str, str]) -> Spec | None:
    """Two strips for each arm: operations a second and p99 in each interval, and above p99 what fell into it that is
    not usual in that attempt.
    """
    several = [series for series in cell.over_time if series.interval_s and len(series.operations) > 1]
    known = [value for one in several for value in one.p99_us if value]
    if not known:
        return None
    time = scale("us", [max(known)])
    work = scale("/s", [max(value / (one.interval_s or 1.0) for one in several for value in one.operations)])
    rows: list[dict[str, Any]] = []
    strip_names: list[str] = []
    for one in several:
        interval = one.interval_s or 1.0
        throughput = f"{printable(one.arm)}: operations, {work.unit}"
        slow = f"{printable(one.arm)}: p99, {time.unit}"
        strip_names += [throughput, slow]
        for place, count in enumerate(one.operations):
            base = {"t": (place + 0.5) * interval, "by": printable(one.arm)}
            when = f"second {place * interval:,.4g} to {(place + 1) * interval:,.4g}"
            told = mark_label(one.arm, f"{one.arm}: {work.text(count / interval)}, {when}")
            rows.append({**base, "arm": throughput, "value": count / interval * work.factor, **told})
            value = one.p99_us[place] if place < len(one.p99_us) else None
            if value is not None:
                told = mark_label(one.arm, f"{one.arm}: p99 {time.text(value)}, {when}")
                rows.append({**base, "arm": slow, "value": value * time.factor, **told})
        top = max((value for value in one.p99_us if value), default=0.0) * time.factor
        rows += [
            {
                "arm": slow,
                "t": t,
                "event": MARKED[name],
                "value": top * (1.12 + 0.12 * list(MARKED).index(name)),
                **mark_label(one.arm, f"{one.arm}: {MARKED[name]} at second {t:,.4g}, more than twice the usual"),
            }
            for name, values in one.events.items()
            if name in MARKED
            for t in _unusual(one, values)
        ]
    x = quantitative("t", title=_SECOND, scale=VALUES)
    y = quantitative("value", title=None, axis=COUNTS, scale={"zero": True, "nice": False, "padding": 4})
    arms = [printable(one.arm) for one in several]
    colour: Spec = {
        "field": "by",
        "type": "nominal",
        "legend": None,
        "scale": {"domain": arms, "range": [palette[one.arm] for one in several]},
    }
    seen = [name for name in MARKED.values() if any(row.get("event") == name for row in rows)]
    marks: Spec = {
        "field": "event",
        "type": "nominal",
        "title": None,
        "legend": {"symbolSize": 60, "symbolFillColor": INK, "symbolStrokeColor": INK},
        "scale": {"domain": seen, "range": [_SHAPES[list(MARKED.values()).index(name)] for name in seen]},
    }
    layers = [
        layer("line", {"y": y, "color": colour}, "!datum.event", whose=True, strokeWidth=1.6),
        layer("point", {"y": y, "color": colour}, "!datum.event", tells=True, filled=True, size=5, opacity=1),
    ]
    if seen:
        layers.append(
            layer("point", {"y": y, "shape": marks}, "datum.event", tells=True, filled=True, size=34, color=INK)
        )
    spec = strips(rows, strip_names, None, {"x": x}, layers, 60)
    return {**spec, "resolve": {"scale": {"y": "independent"}}}


def _unusual(series: ArmOverTime, values: tuple[float | None, ...]) -> list[float]:
    """Return the middles of the spans between readings of the measured part with more than twice the median."""
    inside = [
        place for place in range(len(values)) if series.t_s[place + 1] > 0 and series.t_s[place] < series.length_s
    ]
    known = [value for place in inside if (value := values[place]) is not None]
    if not known:
        return []
    limit = 2 * statistics.median(known)
    spans = [(series.t_s[place], series.t_s[place + 1]) for place in inside if (values[place] or 0) > limit]
    return [(max(begin, 0.0) + min(end, series.length_s)) / 2 for begin, end in spans]


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
    """Return a strip for each arm: the median over its attempts of each second, in the band of their quartiles.

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
            **mark_label(arm, f"{arm}: {_told(each, step, unit)}"),
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
    """Return medians and quartiles over attempts, a series each, of every second that at least half of them reached.

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
