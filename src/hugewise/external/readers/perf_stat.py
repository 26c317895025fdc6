"""`perf stat -x,` and `perf stat -j`: counters of one run, of repeated runs, or of intervals within a run (`-I`).

Format: tools/perf/Documentation/perf-stat.txt, "CSV FORMAT" and "JSON FORMAT". A file written with `--append` holds
several records, each begun by `# started on`: those are the runs. `perf stat -r N` keeps only the mean of its runs.
Counts of single CPUs, sockets or threads (`-A`, `--per-thread`) are summed, those of control groups (`-G`) are events
of their own; counts of an event that stands in several groups are counts of the same thing, of which the mean is taken.
Of each line the separator and the decimal mark are told by its fields: a share of running time always has two decimals.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from pathlib import Path

from hugewise import reading
from hugewise.external.reader import Ask, DataError, Rows, Series, finite, readable, text_of
from hugewise.model.metric import Direction, Metric
from hugewise.reading import UnreadableError

NAME = "perf-stat"

_STARTED = "# started on"
_CURE = "write it again: LC_ALL=C perf stat -x, -o FILE --append COMMAND"
_UNITS = {"": "count", "msec": "ms", "usec": "us"}
_MISSING = ("<not counted>", "<not supported>")
_SEPARATORS = ",;\t|:"
_MARKS = ".,"
_LONGEST = 4096  # characters of a line
_DERIVED = re.compile(r"\s*(?:[^,;|\t]*[,;|\t]){0,2}?([,;|\t])\1\1.*")
_TIME = re.compile(r"(task-clock|cpu-clock|duration_time|user_time|system_time)(:\w+)?")
# Counts that are a cost of the work: any other event has no direction until the user says which.
_COST = re.compile(
    r"(.*[-_])?(clock|time|cycles|instructions|branches|misses|miss|faults|switches|migrations|references|loads|stores|"
    r"walks|walk_\w+|stalls?|stalled-cycles-\w+)(:[a-zA-Z]+)?"
)


def recognises(head: bytes) -> bool:
    """Lines of counters: JSON with `counter-value`, or separated fields with an event in its place."""
    if head.startswith(_STARTED.encode()):
        return True
    lines = [line for line in head.decode("utf-8", "replace").splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        return False
    if lines[0].lstrip().startswith("{"):
        return '"counter-value"' in lines[0]
    return bool(_readings(lines[0]))


@dataclass
class _Row:
    event: str
    unit: str
    value: float
    line: int
    at: float | None = None
    part: str | None = None  # the CPU, socket or thread that it is of
    averaged: bool = False
    running: float = 100.0
    cgroup: str = ""

    @property
    def name(self) -> str:
        """The event; counts of control groups are of different processes."""
        return f"{self.event} (cgroup {self.cgroup})" if self.cgroup else self.event


def read(path: Path, ask: Ask) -> list[Series]:
    """Return one series for each event."""
    del ask  # the file says it all
    gathered = Rows(path)
    records = _records(path, gathered)
    units = {row.name: row.unit for record in records for row in record if math.isfinite(row.value)}
    groups: dict[str, int] = {}
    shares: dict[str, float] = {}
    for run, record in enumerate(records):
        intervals = any(row.at is not None for row in record)
        counts: dict[tuple[str, float | None], list[_Row]] = {}
        for row in record:
            if intervals and row.at is None:
                gathered.leave("the summary after the intervals of perf stat -I")
            else:
                counts.setdefault((row.name, row.at), []).append(row)
        for (name, _), found in counts.items():
            value, times = _counted(found)
            unit = next((row.unit for row in found if math.isfinite(row.value)), units.get(name, found[0].unit))
            groups[name] = max(times, groups.get(name, 1))
            shares[name] = min([row.running for row in found if math.isfinite(row.value)] + [shares.get(name, 100.0)])
            gathered.add(
                Metric(name, unit, _better(found[0].event), f"{name} (perf stat)"),
                value,
                line=found[0].line,
                run=run,
                kind="part" if intervals else "run",
            )
    _notes(gathered, groups, shares, averaged=any(row.averaged for record in records for row in record))
    counted = [row for record in records for row in record if math.isfinite(row.value)]
    chosen = _primary([row.event for row in counted])
    primary = {row.name for row in counted if row.event == chosen}
    return gathered.series(primary=primary.__contains__, cure=_CURE)


def _notes(gathered: Rows, groups: dict[str, int], shares: dict[str, float], *, averaged: bool) -> None:
    if averaged:
        gathered.note(
            "perf stat -r keeps only the mean of its runs: each record counts as one value, and the spread of the "
            "single runs is lost (to keep them: -o FILE --append, once for each run)."
        )
    for event, times in groups.items():
        if times > 1:
            gathered.note(
                f"{event} stands {times} times in a record, as in several groups: the mean of its counts is taken "
                "(runs are told apart by `# started on`, which perf stat -o FILE --append writes).",
                event,
            )
    for event, share in shares.items():
        if share < 100:
            gathered.note(
                f"{event} was counted during {share:g}% of the time in at least one record; perf scales such counts "
                "up (multiplexing): count fewer events at once.",
                event,
            )


def _counted(rows: list[_Row]) -> tuple[float, int]:
    parts: dict[str | None, list[float]] = {}
    for row in rows:
        parts.setdefault(row.part, []).append(row.value)
    means = []
    for values in parts.values():
        known = [value for value in values if math.isfinite(value)]
        means.append(sum(known) / len(known) if known else math.nan)
    return sum(means), max(map(len, parts.values()))


def _better(event: str) -> Direction:
    name = event.split("/")[1] if "/" in event else event.split(" ", 1)[0]
    return "lower" if _COST.fullmatch(name) else "neutral"


def _primary(counted: list[str]) -> str:
    wanted = ("duration_time", "task-clock", "cpu-clock", "user_time", "cycles")
    return next((event for event in wanted if event in counted), next(iter(counted), ""))


def _records(path: Path, gathered: Rows) -> list[list[_Row]]:
    records: list[list[_Row]] = []
    fresh = True
    lines = text_of(path).splitlines()
    ways = {way for line in lines[:200] for way, match in _readings(line).items() if match["running"]}
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            fresh |= line.startswith(_STARTED)
            continue
        if not line.strip():
            continue
        if fresh:
            records.append([])
            fresh = False
        row = _json_row(line, path, number) if line.lstrip().startswith("{") else _row(line, path, number, ways)
        if row is None:
            gathered.leave("metrics that perf derives from the counts")
        else:
            records[-1].append(row)
    return records


def _json_row(line: str, path: Path, number: int) -> _Row | None:
    where = f"line {number}"
    comma = re.search(r":\s*\"?-?\d+,\d+\"?\s*[,}]", line) is not None
    cure = "with a decimal comma, run perf under LC_ALL=C" if comma else "this perf cannot do that with -j: use -x,"
    with readable(path, cure, where):
        try:
            record = reading.json(finite(line.encode()))
        except UnreadableError as error:  # its line is that of one line
            raise UnreadableError(error.reason) from None
    if not isinstance(record, dict):
        raise DataError("no object", file=path, where=where, hint=_CURE)
    if "counter-value" not in record or not record.get("event"):
        return None
    with readable(path, _CURE, where):
        at = None if record.get("interval") is None else reading.number(record["interval"], "the interval", low=0)
        running = reading.number(100.0 if record.get("pcnt-running") is None else record["pcnt-running"], "the share")
    unit = str(record.get("unit") or "")
    part = next(
        (
            f"{key} {record[key]}"
            for key in ("cpu", "core", "cluster", "cache", "die", "socket", "node", "thread")
            if key in record
        ),
        None,
    )
    value = _number(str(record["counter-value"]), path, where)
    event, cgroup = str(record["event"]), str(record.get("cgroup") or "")
    return _Row(event, _UNITS.get(unit, unit), value, number, at, part, "variance" in record, running, cgroup)


def _number(text: str, path: Path, where: str) -> float:
    if text in _MISSING:
        return math.nan
    with readable(path, "with a decimal comma, run perf under LC_ALL=C", where):
        return reading.figure(text, "the counter's value", low=0)


@functools.cache
def _pattern(separator: str, mark: str) -> re.Pattern[str]:
    s, m = re.escape(separator), re.escape(mark)
    inside = r"[^/]" if separator != "/" else ""
    return re.compile(
        rf"""\ *+(?:(?P<at>\d{{1,12}}[.{m}]\d+){s}|summary{s})?\ *+
        (?:(?P<part>(?:(?:S|D|L|CLS|C|CPU|N|ID)\d+-?)+|[^{s}]+-\d+)\ *+{s}(?:\d+{s})??)?
        \ *+(?:(?P<value>\d{{1,40}}(?:\.\d{{1,40}})?|<not\ counted>|<not\ supported>){s}(?P<unit>[A-Za-z%/]*){s}
        |(?P<divided>\d{{1,40}}{m}\d{{1,40}}){s}(?P<its_unit>[A-Za-z%/]+){s})
        (?P<event>[A-Za-z][^\s{s}/]*(?:/{inside}*/[^\s{s}/]*)?(?:\ \[[\w-]+\])?)
        (?:{s}(?P<cgroup>[^{s}]*+))??
        (?:{s}(?P<variance>\d+{m}\d+)%)?
        (?:{s}(?P<runtime>\d+){s}(?P<running>\d{{1,3}}{m}\d\d)(?:{s}.*)?)?""",
        re.VERBOSE,
    )


def _readings(line: str) -> dict[tuple[str, str], re.Match[str]]:
    found = {
        (separator, mark): match
        for separator in _SEPARATORS
        if separator in line and len(line) < _LONGEST
        for mark in _MARKS
        if (match := _pattern(separator, mark).fullmatch(line)) is not None
        and (match["cgroup"] is None or match["running"])
        and not (match["unit"] == "msec" and match["value"].isdecimal())  # which always has two decimals
    }
    told = {way: match for way, match in found.items() if match["running"]}
    return told or found


def _row(line: str, path: Path, number: int, ways: set[tuple[str, str]]) -> _Row | None:
    where = f"line {number}"
    readings = _readings(line)
    if not readings and len(line) < _LONGEST and _DERIVED.fullmatch(line):
        return None
    if ways and not any(match["running"] for match in readings.values()):  # then as the lines that tell it
        readings = {way: match for way, match in readings.items() if way in ways}
    if len({(match["event"], match["value"], match["divided"]) for match in readings.values()}) != 1:
        raise DataError(f"no counter in {line[:60]!r}", file=path, where=where, hint=_CURE)
    match = next(iter(readings.values()))
    if not (match["unit"] or match["its_unit"]) and _TIME.fullmatch(match["event"]) and match["value"] not in _MISSING:
        raise DataError(f"{match['event']} without the unit of its time", file=path, where=where, hint=_CURE)
    value, unit = (match["divided"], match["its_unit"]) if match["divided"] else (match["value"], match["unit"])
    return _Row(
        event=match["event"],
        unit=_UNITS.get(unit, unit),
        value=_number(value.replace(",", "."), path, where),
        line=number,
        at=float(match["at"].replace(",", ".")) if match["at"] else None,
        part=match["part"],
        averaged=match["variance"] is not None,
        running=float(match["running"].replace(",", ".")) if match["running"] else 100.0,
        cgroup=match["cgroup"] or "",
    )
