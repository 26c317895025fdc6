"""google-benchmark's JSON and CSV (`--benchmark_out=FILE --benchmark_repetitions=20`): one value for each repetition.

Format: github.com/google/benchmark, docs/user_guide.md, src/statistics.cc and src/json_reporter.cc. Rows of aggregates
(`_mean`, `_cv`, `_BigO`, and those of a program's ComputeStatistics) are made of the other rows.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hugewise import reading
from hugewise.external.reader import Ask, DataError, Rows, Series, json_of, readable, text_of
from hugewise.model.metric import Metric
from hugewise.reading import shown

NAME = "google-benchmark"

_CURE = "export it again: --benchmark_out=FILE --benchmark_out_format=json --benchmark_repetitions=20"
_HEADER = "name,iterations,real_time,cpu_time,time_unit"
_AGGREGATE = re.compile(r"(.+)_(mean|median|stddev|cv|min|max)")
_TIMES = ("real_time", "cpu_time")
_NOTE = (
    "The repetitions are taken one after the other by one process, each a mean over its iterations: they share its "
    "memory layout, and the spread within them is averaged away."
)


def recognises(head: bytes) -> bool:
    """JSON with a list of benchmarks after its context, or the CSV's header."""
    start = head.lstrip()
    if start.startswith(b"{"):
        return b'"benchmarks"' in head and b'"context"' in start[:200] and b'"real_time"' in head
    return _HEADER.encode() in head


def read(path: Path, ask: Ask) -> list[Series]:
    """Return a series of each benchmark for both of its times; --value names the one that is asked about."""
    gathered = Rows(path)
    runs: dict[str, int] = {}
    value = ask.value or _TIMES[0]
    if value not in _TIMES:
        raise DataError(f"no time {value!r} (--value)", file=path, hint=f"one of: {', '.join(_TIMES)}")
    rows = list(_rows(path))
    names = Counter(str(row.get("name")) for _, _, row in rows)
    units = {str(row.get("name")): row["time_unit"] for _, _, row in rows if row.get("time_unit")}
    for where, line, row in rows:
        name = row.get("name")
        if not isinstance(name, str) or not name:
            raise DataError("a benchmark without a name", file=path, where=where, hint=_CURE)
        if row.get("run_type") == "aggregate" or (row.get("run_type") is None and _is_aggregate(name, names)):
            gathered.leave("aggregates of the repetitions")
            continue
        failed = any(row.get(key) in (True, "true") for key in ("error_occurred", "skipped"))
        unit = row.get("time_unit") or (units.get(name) if failed else None)
        if failed and unit is None:
            gathered.leave("benchmarks of which every repetition ended with an error")
            continue
        if unit not in ("ns", "us", "ms", "s"):
            raise DataError(f"the time's unit is {shown(unit)}", file=path, where=where, hint=_CURE)
        runs[name] = runs.get(name, -1) + 1
        for key in _TIMES:
            found = math.nan if failed else _figure(row.get(key), key, path, where)
            metric = Metric(f"{name} {key}", unit, "lower", f"{key} of {name}, each a mean over its iterations")
            gathered.add(metric, found, line=line, run=runs[name], where=where, failed=failed)
    gathered.note(_NOTE)
    return gathered.series(primary=lambda name: name.endswith(f" {value}"), cure=_CURE)


def _figure(told: object, key: str, path: Path, where: str) -> float:
    with readable(path, _CURE, where):
        return reading.figure(told, key, low=0) if isinstance(told, str) else reading.number(told, key, low=0)


def _is_aggregate(name: str, names: Counter[str]) -> bool:
    if (match := _AGGREGATE.fullmatch(name)) is not None and names[name] < names[match[1]]:
        return True
    if name.endswith(("_BigO", "_RMS")):
        return {f"{name.rpartition('_')[0]}_{kind}" for kind in ("BigO", "RMS")} <= {*names}
    bases = [name[: at.start()] for at in re.finditer("_", name) if not {"/", ":"} & {*name[at.end() :]}]
    return any(names[f"{base}_stddev"] and names[name] <= names[f"{base}_mean"] for base in bases)


def _rows(path: Path) -> Iterator[tuple[str, int, dict[str, Any]]]:
    text = text_of(path)
    if text.lstrip().startswith("{"):
        document = json_of(path, _CURE)
        rows = document.get("benchmarks") if isinstance(document, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError("no list of benchmarks", file=path, hint=_CURE)
        yield from ((f"benchmarks[{number}]", number, row) for number, row in enumerate(rows))
        return
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith(_HEADER)), len(lines))
    header = _fields(lines[first]) if first < len(lines) else []
    for number, line in enumerate(lines[first + 1 :], first + 2):
        if not line.strip():
            continue
        fields = _fields(line)
        if len(fields) != len(header):
            raise DataError(
                f"{len(fields)} fields under a header of {len(header)}", file=path, where=f"line {number}", hint=_CURE
            )
        yield f"line {number}", number, dict(zip(header, fields, strict=True))


def _fields(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []
