"""The pages that backed the memory, by policy; within an attempt, memory by page size, and latencies beside the
machine's counters.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from hugewise.model.over_time import ArmOverTime
from hugewise.model.results import CellResult
from hugewise.quantity import format_size
from hugewise.report.figures.theme import (
    COUNTS,
    INK,
    VALUES,
    Spec,
    layer,
    mark_label,
    quantitative,
    rows_with_axis,
    strips,
)
from hugewise.report.numbers import scale, share, size
from hugewise.visible import printable

# kind -> lightest and darkest colour, and the page sizes (log2) that they stand for
_RAMPS = {
    "anon": ((0xBC, 0xD3, 0xEE), (0x1B, 0x4F, 0x91), 12, 21),
    "shmem": ((0xB9, 0xE0, 0xC8), (0x1D, 0x6B, 0x43), 12, 21),
    "hugetlb": ((0xF3, 0xC4, 0x8D), (0x9A, 0x4A, 0x06), 16, 30),
}
_UNPROVEN = "#a5a5a5"


def kind_order(keys: Iterable[str]) -> list[str]:
    """`kind:size` keys by kind, then by page size; `unproven` last."""
    return sorted(
        keys, key=lambda key: (list(_RAMPS).index(_kind(key)) if _kind(key) in _RAMPS else 9, _size(key), key)
    )


def kind_label(key: str) -> str:
    """`anon:65536` -> `64k anonymous`."""
    kind, bytes_ = _kind(key), _size(key)
    if not bytes_:
        return printable(key)
    return f"{format_size(bytes_)} { {'anon': 'anonymous', 'shmem': 'shared'}.get(kind, kind) }"


def coverage(cell: CellResult) -> Spec | None:
    """Stacked shares of the named memory by page size, an arm a row."""
    keys = kind_order({key for arm in cell.arms for key in arm.coverage})
    if not keys:
        return None
    rows = [
        {
            "arm": printable(arm.arm),
            "kind": kind_label(key),
            "start": sum(arm.coverage.get(one, 0.0) for one in keys[:position]),
            "end": sum(arm.coverage.get(one, 0.0) for one in keys[: position + 1]),
            "text": f"{kind_label(key)} {share(arm.coverage[key])}" if arm.coverage[key] >= 0.3 else "",
            "ink": _ink(_colour(key)),
            **mark_label(arm.arm, f"{arm.arm}: {share(arm.coverage[key])} {kind_label(key)}"),
        }
        for arm in cell.arms
        for position, key in enumerate(keys)
        if arm.coverage.get(key)
    ]
    if not rows:
        return None
    for row in rows:
        row["middle"] = (float(str(row["start"])) + float(str(row["end"]))) / 2
    kinds: Spec = {
        "field": "kind",
        "type": "nominal",
        "title": None,
        "legend": {"symbolType": "square"},
        "scale": {"domain": [kind_label(key) for key in keys], "range": [_colour(key) for key in keys]},
    }
    x = quantitative("start", title="share of the named memory by page size", scale={"domain": [0, 1]})
    shares = {"x": {**x, "axis": {"format": ".0%"}}, "x2": {"field": "end"}, "color": kinds}
    ink = {"field": "ink", "type": "nominal", "scale": None}
    layers = [
        layer("bar", shares, tells=True, height=20, stroke="currentColor", strokeWidth=0.5),
        layer("text", {"x": {**x, "field": "middle"}, "text": {"field": "text"}, "color": ink}),
    ]
    return rows_with_axis((printable(arm.arm) for arm in cell.arms), rows, layers, 30)


def _kind(key: str) -> str:
    return key.partition(":")[0]


def _size(key: str) -> int:
    size = key.partition(":")[2]
    return int(size) if size.isdecimal() else 0


def _colour(key: str) -> str:
    kind, size = _kind(key), _size(key)
    if kind not in _RAMPS or not size:
        return _UNPROVEN
    light, dark, least, most = _RAMPS[kind]
    position = min(max((math.log2(size) - least) / (most - least), 0.0), 1.0)
    return "#" + "".join(f"{round(a + (b - a) * position):02x}" for a, b in zip(light, dark, strict=True))


def _ink(colour: str) -> str:
    """Black or white, whichever stands out more on `colour` (relative luminance, WCAG 2.2)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "#ffffff" if luminance < 0.18 else "#111111"


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
    """Return a strip for each arm: anonymous memory and pools by page size, stacked, at each reading."""
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
        "scale": {"domain": [kind_label(key) for key in keys], "range": [_colour(key) for key in keys]},
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
    known = [value for value in series.memory.get(key, ()) if value is not None] or [0]
    return f"{kind_label(key)} memory, {size(max(known))} at most, {size(known[-1])} at the end"


def _at(series: ArmOverTime, key: str, place: int) -> float:
    values = series.memory.get(key)
    return 0.0 if values is None else float(values[place] or 0)


def latencies(cell: CellResult, palette: Mapping[str, str]) -> Spec | None:
    """Return two strips for each arm: operations a second and p99, with what was unusual above."""
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
    inside = [
        place for place in range(len(values)) if series.t_s[place + 1] > 0 and series.t_s[place] < series.length_s
    ]
    known = [value for place in inside if (value := values[place]) is not None]
    if not known:
        return []
    limit = 2 * statistics.median(known)
    spans = [(series.t_s[place], series.t_s[place + 1]) for place in inside if (values[place] or 0) > limit]
    return [(max(begin, 0.0) + min(end, series.length_s)) / 2 for begin, end in spans]
