"""Figures of the pages that backed the memory: by policy in a run, and of one program."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hugewise.model.results import CellResult
from hugewise.quantity import format_size
from hugewise.report.figures.theme import (
    Spec,
    layer,
    mark_label,
    quantitative,
    rows_with_axis,
)
from hugewise.report.numbers import share
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
    kind, size = _kind(key), _size(key)
    if not size:
        return printable(key)
    return f"{format_size(size)} { {'anon': 'anonymous', 'shmem': 'shared'}.get(kind, kind) }"


def kind_colours(keys: Iterable[str]) -> list[str]:
    """Return the colour of each key."""
    return [_colour(key) for key in keys]


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
