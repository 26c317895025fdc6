"""Go's benchmark text (`go test -bench . -count 20`), the input of benchstat: one value for each -count.

Format: golang.org/design/14313-benchmark-format. benchstat's own output holds medians, not the values.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from hugewise.external.reader import Ask, DataError, Series, readable, text_of
from hugewise.model.metric import Direction, Metric
from hugewise.reading import figure, shown

NAME = "go-benchmark"
DESCRIPTION = "Go benchmark text (go test -bench), as benchstat reads it"

_BENCHSTAT = re.compile(r"sec/op\s+(vs base|CI|,)|,sec/op,CI|old time/op\s+new time/op|│\s+sec/op", re.MULTILINE)
_CURE = "give the output of: go test -run=- -bench=. -count=20"
_NOTE = (
    "The values of one go test are taken one after the other by one process, each a mean over its iterations: they "
    "share its memory layout, and the spread within them is averaged away."
)
_HIGHER = re.compile(r".*/s")


def recognises(head: bytes) -> bool:
    """Benchmark lines, or a table of benchstat (which is refused with the cure)."""
    text = head.decode("utf-8", "replace")
    return any(map(_words, text.splitlines()[:200])) or _BENCHSTAT.search(text) is not None


def read(path: Path, ask: Ask) -> list[Series]:
    """A series for each benchmark and unit."""
    del ask  # the file says it all
    values: dict[tuple[str, str], list[float]] = {}
    lines: dict[tuple[str, str], list[int]] = {}
    text = text_of(path)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("Benchmark"):
            continue
        words = _words(line)
        if not words:
            if len(line.split()) == 1:  # the name alone: printed before a benchmark that logs
                continue
            raise DataError(f"no result in {line[:60]!r}", file=path, where=f"line {number}", hint=_CURE)
        for value, unit in zip(words[2::2], words[3::2], strict=True):
            with readable(path, _CURE, f"line {number}"):
                found = figure(value, f"the figure before {shown(unit)}")
            name = words[0].removeprefix("Benchmark")
            values.setdefault((name, unit), []).append(found)
            lines.setdefault((name, unit), []).append(number)
    if not values:
        hint = "benchstat's tables hold medians; " + _CURE if _BENCHSTAT.search(text) else _CURE
        raise DataError("no values of single runs", file=path, hint=hint)
    first = next((unit for _, unit in values if unit == "ns/op"), next(iter(values))[1])
    return [
        Series(
            arm=None,
            metric=Metric(f"{name} {unit}", unit, _better(unit), f"{unit} of Benchmark{name}, each a mean"),
            values=np.array(found),
            source=str(path),
            order=np.array(lines[name, unit], dtype=np.float64),
            primary=unit == first,
            notes=(_NOTE,),
        )
        for (name, unit), found in values.items()
    ]


def _words(line: str) -> list[str]:
    """The words of a benchmark's line (name, iterations, and pairs of value and unit); none of another line."""
    words = line.split()
    paired = len(words) >= 4 and len(words) % 2 == 0
    return words if paired and line.startswith("Benchmark") and words[1].isdecimal() else []


def _better(unit: str) -> Direction:
    return "higher" if _HIGHER.fullmatch(unit) else "lower"
