"""Go's benchmark text (`go test -bench . -count 20`), the input of benchstat: one value for each -count.

Format: golang.org/design/14313-benchmark-format. benchstat's own output holds medians, not the values.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from hugewise.external.reader import Ask, DataError, Series, text_of
from hugewise.model.metric import Direction, Metric

__all__ = ["DESCRIPTION", "NAME", "read", "recognises"]

NAME = "go-benchmark"
DESCRIPTION = "Go benchmark text (go test -bench), as benchstat reads it"

_LINE = re.compile(r"(Benchmark\S*)\s+(\d+)((?:\s+\S+\s+\S+)+)\s*")
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
    return any(_LINE.fullmatch(line) for line in text.splitlines()[:200]) or _BENCHSTAT.search(text) is not None


def read(path: Path, ask: Ask) -> list[Series]:
    """A series for each benchmark and unit."""
    del ask  # the file says it all
    values: dict[tuple[str, str], list[float]] = {}
    lines: dict[tuple[str, str], list[int]] = {}
    text = text_of(path)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("Benchmark"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            if len(line.split()) == 1:  # the name alone: printed before a benchmark that logs
                continue
            raise DataError(f"no result in {line[:60]!r}", file=path, where=f"line {number}", hint=_CURE)
        words = match[3].split()
        for value, unit in zip(words[::2], words[1::2], strict=True):
            try:
                found = float(value)
            except ValueError:
                raise DataError(f"{value!r} is no number", file=path, where=f"line {number}", hint=_CURE) from None
            name = match[1].removeprefix("Benchmark")
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


def _better(unit: str) -> Direction:
    return "higher" if _HIGHER.fullmatch(unit) else "lower"
