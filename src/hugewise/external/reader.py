"""A reader of measurements made elsewhere, and what it yields.

A reader is one file under `readers/`, found by being there: it has

    NAME
    recognises(head: bytes) -> bool            from the first 64 KiB of the file
    read(path: Path, ask: Ask) -> list[Series]  raises DataError

Readers recognise content, never file names, and no content is recognised by two of them. Each takes its rows through
`Rows`, which holds what a row is before it is counted (tables of columns, of up to 50 million rows, go to `Series`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hugewise import reading
from hugewise.errors import UserError
from hugewise.model.metric import Direction, Metric
from hugewise.reading import UnreadableError, figure, shown
from hugewise.stats.method import Numbers

Labels = NDArray[np.int64]

_HEAD = 1 << 16

PARTS = "The intervals are cut from one run: they are not runs of their own."
NOT_A_NUMBER = re.compile(r"[+-]?nan(\([0-9a-z-]*\))?", re.IGNORECASE)
"""C's `printf` of what has no value: a mean of nothing."""

_BARE = re.compile(
    rb'"(?:[^"\\]|\\.)*+"|[+-]?\b(?:nan(?:\([0-9a-z-]*\))?|inf(?:inity)?)(?![\w(])', re.IGNORECASE | re.DOTALL
)


class DataError(UserError):
    """A file of measurements that cannot be used: `file: line N: message`, and the cure."""

    def __init__(self, message: str, *, file: Path | str, where: str | None = None, hint: str | None = None) -> None:
        place = f"{file}: {where}" if where else str(file)
        super().__init__(f"{place}: {message}", hint=hint)


@dataclass(frozen=True)
class Ask:
    """User's statements about the files; names are those of columns in CSV and Parquet files."""

    value: str | None = None
    arm_column: str | None = None
    block: str | None = None
    order: str | None = None
    session: str | None = None
    slot: str | None = None
    run: str | None = None
    unit: str | None = None
    better: Direction | None = None


@dataclass(frozen=True, eq=False)
class Series:
    """The values of one metric under one arm, in the order of the file.

    arm       the file's own label, or None where it has none
    values    shape (n,), in the metric's unit; NaN where the file has no value
    order     shape (n,), time or rank of each value, comparable between arms of one file; None: not known
    block, session, slot, run   shape (n,), numbers of labels that mean the same in all series read together;
              None: not known. `run` is the program run that a value came from; None: each value is a run of its own
    failed    shape (n,), True where the measured program failed; None: nothing is known to have failed
    epoch     whether `order` is seconds since the epoch: rows of several files whose times overlap are of one run
    primary   what a reader of this file most likely asks about
    settings  how its runs were made, as the tool prints it: values of different settings are no one sample
    notes     what the way of measuring implies, in whole sentences
    """

    arm: str | None
    metric: Metric
    values: Numbers
    source: str
    order: Numbers | None = None
    block: Labels | None = None
    session: Labels | None = None
    slot: Labels | None = None
    run: Labels | None = None
    failed: NDArray[np.bool_] | None = None
    epoch: bool = False
    primary: bool = True
    own_arm: bool = False  # the label tells arms of one file apart
    notes: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


class Reader(Protocol):
    """A module under `readers/`."""

    NAME: str

    def recognises(self, head: bytes) -> bool:
        """Return whether a file that begins with `head` is of this format."""
        ...

    def read(self, path: Path, ask: Ask) -> list[Series]:
        """Read the series of the file. Raises DataError."""
        ...


def head_of(path: Path) -> bytes:
    """Return the first 64 KiB. Raises DataError."""
    return _content(path, _HEAD, part="head")


def text_of(path: Path) -> str:
    """Read the whole file as text. Raises DataError."""
    with readable(path, "convert it to UTF-8 with iconv, or name another file"):
        return reading.text(_content(path, reading.MOST))


def json_of(path: Path, cure: str) -> Any:
    """Return the whole file as JSON; what C prints for a mean of nothing (`-nan`) is null. Raises DataError."""
    with readable(path, cure):
        return reading.json(finite(_content(path, reading.MOST_JSON)))


def finite(written: bytes) -> bytes:
    """JSON whose numbers are all finite: bare `nan` and `inf`, which C prints, become null."""
    return _BARE.sub(lambda match: match[0] if match[0].startswith(b'"') else b"null", written)


@contextmanager
def readable(path: Path, cure: str, where: str | None = None) -> Iterator[None]:
    """Turn a read error into a DataError, at its line where that is known, else at `where`."""
    try:
        yield
    except UnreadableError as error:
        place = where if error.line is None else f"line {error.line}"
        raise DataError(error.reason, file=path, where=place, hint=cure) from error


def _content(path: Path, most: int, *, part: Literal["whole", "head"] = "whole") -> bytes:
    cure = "check the name and its permissions"
    if path.is_dir():
        cure = "name files; a run of hugewise is shown by: hugewise report RUN"
    with readable(path, cure):
        return reading.content(path, most, part=part)


Kind = Literal["run", "part"]


@dataclass
class _Column:
    metric: Metric
    arm: str | None
    values: list[float] = field(default_factory=list)
    places: list[float] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    failed: list[bool] = field(default_factory=list)
    whole: set[int] = field(default_factory=set)
    parts: bool = False
    notes: list[str] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)


class Rows:
    """Rows that a reader makes of a file, and what it leaves out: the one way from a file's rows to series.

    A row has an arm (None: the file's), a run (the unit of randomisation: what an arm could have been drawn for), a
    kind (a whole run, or a part of one), a metric with unit and direction, a value, and the line that it stands on.
    Whatever else stands in the file (aggregates of other rows, rows without a result) is told with `leave`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: dict[tuple[str | None, str], _Column] = {}
        self._left: dict[str, int] = {}
        self._settings: dict[str, str] = {}

    def number(self, written: str, line: int, cure: str = "give the tool's own output, whole and as it is") -> float:
        """Return a number as the tool prints it; C's `nan` is no value. Raises DataError."""
        if NOT_A_NUMBER.fullmatch(written.strip()):
            return math.nan
        with readable(self._path, cure, f"line {line}"):
            return figure(written, "the figure", low=0)

    def add(
        self,
        metric: Metric,
        value: float,
        *,
        line: int,
        run: int,
        kind: Kind = "run",
        arm: str | None = None,
        at: float | None = None,
        failed: bool = False,
        where: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Take in a value; `at` tells its order in time if the line does not. Raises DataError for a repeated run."""
        column = self._columns.setdefault((arm, metric.name), _Column(metric, arm))
        if metric.unit != column.metric.unit:
            raise DataError(
                f"{metric.name} is in {metric.unit}, and before in {column.metric.unit}",
                file=self._path,
                where=where or f"line {line}",
                hint="give the runs of each unit in a file of their own, or write them in one unit",
            )
        if kind == "run" and run in column.whole:
            raise DataError(
                f"a second {metric.name} of the same run",
                file=self._path,
                where=where or f"line {line}",
                hint="give the tool's own output, whole and in its order",
            )
        if kind == "run":
            column.whole.add(run)
        column.parts |= kind == "part"
        column.values.append(value)
        column.places.append(float(line) if at is None else at)
        column.runs.append(run)
        column.failed.append(failed)
        column.settings |= settings or {}

    def setting(self, name: str, value: str, line: int) -> None:
        """Take in a setting of the file's runs, such as their number of threads. Raises DataError at another value."""
        if (before := self._settings.setdefault(name, value)) != value:
            raise DataError(
                f"runs with {name} {shown(before)} and {shown(value)}",
                file=self._path,
                where=f"line {line}",
                hint="give the runs of each in a file of their own",
            )

    def leave(self, why: str, rows: int = 1) -> None:
        """Rows of the file that are no values, and why."""
        self._left[why] = self._left.get(why, 0) + rows

    def note(self, text: str, metric: str | None = None) -> None:
        """Add a note on the way of measuring, for one metric or for all."""
        for column in self._columns.values():
            if column.metric.name == metric or metric is None:
                column.notes.append(text)

    def values(self, metric: Metric, run: int) -> list[float]:
        """Return the values of a run that are known already."""
        column = self._columns.get((None, metric.name))
        return [] if column is None else [v for v, r in zip(column.values, column.runs, strict=True) if r == run]

    def series(self, *, primary: Callable[[str], bool] | None = None, cure: str) -> list[Series]:
        """Return series for each arm and metric; those that a reader asks about first. Raises DataError without any."""
        left = tuple(f"{_rows(rows)} ({why})" for why, rows in self._left.items())
        if not self._columns:
            found = f"of {', '.join(left)} none is a run" if left else "none of its figures was found"
            raise DataError(found, file=self._path, hint=cure)
        names = list(dict.fromkeys(column.metric.name for column in self._columns.values()))
        chosen = [name for name in names if primary is not None and primary(name)] or names[:1]
        file = shown(self._path.name)
        return [
            Series(
                arm=column.arm,
                metric=column.metric,
                values=np.array(column.values),
                source=str(self._path),
                order=np.array(column.places, dtype=np.float64),
                run=np.array(column.runs, dtype=np.int64),
                failed=np.array(column.failed) if any(column.failed) else None,
                primary=column.metric.name in chosen,
                notes=(
                    *dict.fromkeys(column.notes),
                    *([PARTS] if column.parts else []),
                    *(f"Left out of {file}: {rows}." for rows in left),
                ),
                settings=self._settings | column.settings,
            )
            for column in sorted(self._columns.values(), key=lambda column: column.metric.name not in chosen)
        ]


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


_TIMES = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "µs", "μs", "usec", "usecs", "micros", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("ns", "nsec", "nsecs", "nanos", "nanosecond", "nanoseconds"), "ns"),
}
# After "per" and "/" alone: `min` is a minimum elsewhere, `h` nothing.
_PERIODS = {*_TIMES, "min", "mins", "minute", "minutes", "h", "hr", "hour", "hours", "day", "days"}
_SIZE = re.compile(r"bytes?|bits?|[kmgt]i?b(it|ps)?s?|[kmgt]?(bit|byte)s?|[kmgt]?bytes?")
_WORK = re.compile(
    r"(operation|op|request|req|query|querie|txn|transaction|event|item|iter|iteration|msg|message|packet|record|row|"
    r"token|frame|image|call|command|commit|insert|update|read|write|lookup|io|job|sample|key)s"
)
_SHORT = {"op", "req", "tx", "txn", "trans", "io", "msg"}  # of which `req_s` could be a rate or a time
_RATES = re.compile(r"[kmg]?(rps|tps|qps|iops|fps|pps|eps|cps|flops|mips)|[kmgt]i?(bit|b)?ps|bps|tpm|tpmc|nopm")
_BAD = re.compile(
    r"miss|fault|err|fail|oom|kill|crash|interrupt|irq|scan|steal|overhead|gc$|pause|throttl|growth|"
    r"stall|retr|abort|timeout|drop|loss|lost|conflict|deadlock|evict|swap|reconnect|reject|"
    r"switch|migrat|walk|shootdown|wait|cpu|idle|sleep|power|energy|cost|joule|alloc|leak|split|reclaim|compact"
)
_NO_COST = {"uptime", "idle", "mtbf", "ttl", "timestamp", "start", "started", "begin", "began", "end", "ended", "at"}
_NO_COST |= {"interval", "period", "rate", "speed", "throughput", "bandwidth", "goodput", "date", "epoch", "left"}
_NO_COST |= {"stddev", "stdev", "std", "sd", "var", "variance", "cv", "stderr", "age", "lifetime", "budget", "limit"}
_NO_COST |= {
    "saved",
    "saving",
    "savings",
    "gain",
    "gained",
    "headroom",
    "slack",
    "deadline",
    "speedup",
    "timeout",
    "think",
}
_NO_COST |= {"sleep", "remaining", "delta", "diff", "difference", "change", "improvement", "reduction", "offset"}
_WORDS = re.compile(r"[A-Z]?[a-zµμ]+|[A-Z]+i?[A-Z]*(?![a-z])|\d+|%|/")
_KEPT = re.compile(r"(?<=[a-z])[KMGT]i?[Bb](?:it|yte)?s?(?:ps|PerS\w*)?$")


def unit_and_direction(name: str) -> tuple[str, Direction]:
    """Return the unit that the name of a column, or a unit, tells (else empty), and which direction is good.

        latency_us     us, lower is better         ops_per_s        ops/s, higher is better
        us/request     us/request, lower           throughput_MB_s  MB/s, higher
        hit%           no unit, not known          faults/s         faults/s, not known

    Direction is never guessed: a time is better lower, a rate higher, a time for each piece of work lower. A rate of
    what is bad (misses, errors), a time that is no cost (uptime), names that could mean two things (`ops`, `req_s`) and
    all others have none until the user says which.
    """
    words = _words(name)
    low = [word.lower() for word in words]
    if not low:
        return "", "neutral"
    if low[-1] in _PERIODS and len(low) > 1 and low[-2] in ("/", "per"):
        return _rate(words[:-2], low[-1])
    if "/" in low or "per" in low:
        at = max(low.index(mark) for mark in ("/", "per") if mark in low)
        return _each(words[:at], words[at + 1 :])
    if low[-1] in _TIMES:
        counted = low[-2] if len(low) > 1 else ""
        if _TIMES[low[-1]] == "s" and (_SIZE.fullmatch(counted) or _WORK.fullmatch(counted)):
            return _rate(words[:-1], low[-1])
        unclear = counted in _SHORT or (counted.endswith("s") and not counted.endswith("ss") and counted not in _TIMES)
        return _TIMES[low[-1]], "neutral" if unclear or _NO_COST & set(low) else "lower"
    if _RATES.fullmatch(low[-1]) and not _bad(low[:-1]):
        return words[-1], "higher"
    return ("bytes" if low[-1] in ("byte", "bytes") else ""), "neutral"


def _words(name: str) -> list[str]:
    found: list[str] = []
    for part in re.split(r"[^A-Za-z0-9µμ%/]+", name.replace("/", " / ")):
        if _RATES.fullmatch(part.lower()) or _SIZE.fullmatch(part.lower()):
            found.append(part)
            continue
        size = _KEPT.search(part)  # throughputMBps, opsPerSec
        cut = len(part) if size is None else size.start()
        found += [*_WORDS.findall(part[:cut]), *([part[cut:]] if size else [])]
    return found


def _bad(low: list[str]) -> bool:
    return any(_BAD.search(word) or word in _NO_COST - {"rate", "speed", "throughput", "bandwidth"} for word in low)


def _rate(what: list[str], period: str) -> tuple[str, Direction]:
    low = [word.lower() for word in what]
    counted = what[-1] if what else ""
    unit = f"{counted}/{_TIMES.get(period, period)}"
    known = bool(what) and not _bad(low) and low[-1] not in _TIMES
    return unit, "higher" if known else "neutral"


def _each(what: list[str], of: list[str]) -> tuple[str, Direction]:
    low, each = [word.lower() for word in what], [word.lower() for word in of]
    rate = len(low) > 1 and low[-2] in ("/", "per")  # mb/s_per_core: a rate for each, no time
    if low and low[-1] in _TIMES and not rate and each and not _NO_COST & {*low, *each}:
        return f"{_TIMES[low[-1]]}/{'_'.join(of)}", "lower"
    if each and each[-1] in _TIMES and low and low[-1] in ("time", "latency", "duration", "elapsed", "wall"):
        return _TIMES[each[-1]], "lower"  # time_per_op_ns
    return "/".join(("_".join(what), "_".join(of))) if what and of else "", "neutral"
