"""`perf stat -x,` and `perf stat -j`: counters of one run, of repeated runs, or of intervals within a run (`-I`).

Format: tools/perf/Documentation/perf-stat.txt, "CSV FORMAT" and "JSON FORMAT". A file written with `--append` holds
several records, each begun by `# started on`: those are the runs. `perf stat -r N` keeps only the mean of its runs.
Counts of single CPUs (`-A`) are summed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hugewise import reading
from hugewise.external.reader import Ask, DataError, Series, readable, text_of
from hugewise.external.readers._text import RunFigures
from hugewise.model.metric import Metric
from hugewise.reading import UnreadableError

NAME = "perf-stat"
DESCRIPTION = "perf stat -x, or perf stat -j (also with -I or --append)"

_STARTED = b"# started on"
_CURE = "write it again: perf stat -x, -o FILE --append COMMAND"
_UNITS = {"": "count", "msec": "ms", "usec": "us"}
_MISSING = {"<not counted>", "<not supported>"}
_LONGEST = 40  # characters of a counter
_EVENT = re.compile(r"[a-zA-Z][\w:.,/=-]*")
_CPU = re.compile(r"(S\d+-)?(D\d+-)?(C\d+|CPU\d+|N\d+|S\d+)")


def recognises(head: bytes) -> bool:
    """Lines of counters: JSON with `counter-value`, or comma-separated with an event in its place."""
    lines = [line for line in head.decode("utf-8", "replace").splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        return head.startswith(_STARTED)
    if lines[0].lstrip().startswith("{"):
        return '"counter-value"' in lines[0]
    return _fields(lines[0]) is not None


@dataclass
class _Row:
    event: str
    unit: str
    value: float
    at: float | None
    averaged: bool


def read(path: Path, ask: Ask) -> list[Series]:
    """One series for each event."""
    del ask  # the file says it all
    events: dict[str, RunFigures] = {}
    averaged = intervals = False
    run, rows_of_run = -1, 0
    for number, line in enumerate(text_of(path).splitlines(), 1):
        if line.startswith("#"):
            run += line.encode().startswith(_STARTED)
            rows_of_run = 0
            continue
        if not line.strip():
            continue
        run, rows_of_run = max(run, 0), rows_of_run + 1
        row = _row(line, path, number)
        if row is None:
            continue
        averaged |= row.averaged
        intervals |= row.at is not None
        known = events.setdefault(
            row.event, RunFigures(Metric(row.event, row.unit, "lower", f"{row.event} (perf stat)"))
        )
        # The same event again in one record, or at one time of it: the count of another CPU.
        if known.runs and known.runs[-1] == run and (row.at is None or known.times[-1] == row.at):
            known.values[-1] += row.value
            continue
        known.add(row.value, row.at if row.at is not None else float(run), run)
    notes = []
    if averaged:
        notes.append(
            "perf stat -r keeps only the mean of its runs: each record counts as one value, and the spread of the "
            "single runs is lost (to keep them: -o FILE --append, once for each run)."
        )
    if intervals:
        notes.append("perf stat -I cuts one run into intervals: they are not runs of their own.")
    chosen = _primary(events)
    return [known.series(path, primary=event == chosen, notes=tuple(notes)) for event, known in events.items()]


def _primary(events: dict[str, RunFigures]) -> str:
    """The time, where it was counted."""
    counted = [event for event, known in events.items() if np.isfinite(known.values).any()]
    wanted = ("duration_time", "task-clock", "cpu-clock", "user_time", "cycles")
    return next((event for event in wanted if event in counted), next(iter(counted), next(iter(events), "")))


def _row(line: str, path: Path, number: int) -> _Row | None:
    """A line's counter; None for lines that hold only a metric."""
    where = f"line {number}"
    if line.lstrip().startswith("{"):
        return _json_row(line, path, where)
    found = _fields(line)
    if found is None:
        raise DataError(f"no counter in {line[:60]!r}", file=path, where=where, hint=_CURE)
    at, value, unit, event, rest = found
    if not event:
        return None
    averaged = bool(rest) and rest[0].endswith("%")
    return _Row(event, _UNITS.get(unit, unit), _number(value, path, where), at, averaged)


def _json_row(line: str, path: Path, where: str) -> _Row | None:
    with readable(path, "this perf cannot do that with -j: use -x,", where):
        try:
            told = reading.json(line.encode())
        except UnreadableError as error:  # its line is that of one line
            raise UnreadableError(error.reason) from None
    if not isinstance(told, dict):
        raise DataError("no object", file=path, where=where, hint=_CURE)
    if "counter-value" not in told or not told.get("event"):
        return None
    with readable(path, _CURE, where):
        at = None if told.get("interval") is None else reading.number(told["interval"], "the interval", low=0)
    unit = str(told.get("unit") or "")
    value = _number(str(told["counter-value"]), path, where)
    return _Row(str(told["event"]), _UNITS.get(unit, unit), value, at, "variance" in told)


def _number(text: str, path: Path, where: str) -> float:
    if text in _MISSING:
        return np.nan
    with readable(path, "with a decimal comma, run perf under LC_ALL=C", where):
        return reading.figure(text, "the counter's value", low=0)


def _fields(line: str) -> tuple[float | None, str, str, str, list[str]] | None:
    """(time, value, unit, event, the rest) of a comma-separated line, or None where it is none."""
    parts = [part.strip() for part in line.split(",")]
    for lead in _leads(parts):
        at, rest = lead
        if len(rest) >= 3 and (rest[0] in _MISSING or _is_number(rest[0])) and _is_unit(rest[1]):
            event = rest[2]
            if _EVENT.fullmatch(event) or (event == "" and rest[0] == ""):
                return at, rest[0], rest[1], event, rest[3:]
    return None


def _leads(parts: list[str]) -> Iterator[tuple[float | None, list[str]]]:
    """Ways to take the optional time of -I, CPU of -A and count of aggregated CPUs from the front."""
    yield None, parts
    if parts and _CPU.fullmatch(parts[0]):
        yield None, parts[1:]
        yield None, parts[2:]
    if len(parts) > 1 and _is_number(parts[0]):
        at = float(parts[0])
        yield at, parts[1:]
        if _CPU.fullmatch(parts[1]):
            yield at, parts[2:]
            yield at, parts[3:]


def _is_number(text: str) -> bool:
    return len(text) <= _LONGEST and re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) is not None


def _is_unit(text: str) -> bool:
    return text == "" or re.fullmatch(r"[A-Za-z%/]+", text) is not None
