"""pgbench: the per-transaction log (`-l`), its aggregated form, and the summary text.

Format: PostgreSQL documentation, pgbench, "Per-Transaction Logging" and "Aggregated Logging". `-j` threads write a log
each: logs whose times overlap are of one run, which `hugewise.external.analyze` sees when it has all files.
"""

from __future__ import annotations

import io
import math
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hugewise.external.reader import Ask, DataError, Rows, Series, head_of, readable, text_of
from hugewise.model.metric import Metric
from hugewise.reading import UnreadableError, figure, shown

NAME = "pgbench"

_CURE = "give pgbench's own output, in English (LC_ALL=C): pgbench -l ..., or its summary on stdout"
_EPOCH = 10**9  # seconds: a column above it is a time, not a count
_LATENCY = Metric("latency_us", "us", "lower", "elapsed time of each transaction (pgbench -l)")
_TPS = Metric("tps", "transactions/s", "higher", "transactions a second of each run, without connection time")
_AVERAGE = Metric("latency_average_ms", "ms", "lower", "mean latency of each run (pgbench)")
_INTERVAL_TPS = Metric("interval_tps", "transactions/s", "higher", "transactions a second of each interval")
_INTERVAL_LATENCY = Metric("interval_latency_us", "us", "lower", "mean latency of each interval (pgbench)")

_FIGURE = r"([\d.]+|[+-]?nan)"
_PROGRESS = re.compile(rf"progress: ([\d.]+) s, {_FIGURE} tps(?:, lat {_FIGURE} ms)?", re.IGNORECASE)
_MEAN = re.compile(rf"latency average\s*[=:] {_FIGURE} ms", re.IGNORECASE)
_RATE = re.compile(rf"tps = {_FIGURE} \((without|excluding|including re|including)", re.IGNORECASE)
_SETTING = re.compile(r"(transaction type|scaling factor|query mode|number of clients|number of threads): (.+?)\s*$")
_LOST = re.compile(r"number of (?:(failed) transactions|transactions (skipped)): (\d{1,18})")
_BEGINS = ("pgbench (", "starting vacuum", "transaction type: ", "progress: ")
_SUMMARY = re.compile(rb"^(pgbench \(|transaction type: |progress: [\d.]+ s, |tps = [\d.]+ \()", re.MULTILINE)
_FAILED = {"skipped", "failed", "serialization", "deadlock", "other"}
_LOG = re.compile(rb"\d+ \d+ (?:\d+|%b)( \d+){3,14}\r?(\n|$)" % "|".join(sorted(_FAILED)).encode())
_RECONNECTED = "tps includes the time of connecting, anew for each transaction (pgbench -C)."
_CONNECTED = "tps includes the time of connecting: the summary holds no rate without it."
_LIMITED = "pgbench --rate set the tps: it says how far the server kept up, not how many transactions it could do."
_ONE_RUN = "All transactions are of one run of pgbench: they are not replicates."


def recognises(head: bytes) -> bool:
    """Return whether the file has the summary's words, or rows of at least six integers."""
    return _SUMMARY.search(head) is not None or _is_log(head)


def _is_log(head: bytes) -> bool:
    return _LOG.match(head) is not None


def _is_time(written: bytes) -> bool:
    return len(written) <= 19 and written.isdigit() and int(written) > _EPOCH


def read(path: Path, ask: Ask) -> list[Series]:
    """Return the latencies of a log, or the figures of each summary in the file."""
    del ask  # the file says it all
    head = head_of(path)[:4096]
    if not _is_log(head):
        return _summaries(path)
    first = head.split(b"\n", 1)[0].split()
    if len(first) in (6, 7, 8) and _is_time(first[4]):
        return _transactions(path)
    if _is_time(first[0]):
        return _aggregated(path)
    raise DataError("rows of integers, but none is a time", file=path, where="line 1", hint=_CURE)


def _transactions(path: Path) -> list[Series]:
    # client_id transaction_no time script_no time_epoch time_us [schedule_lag] [retries]
    text, failed = text_of(path), None
    try:  # the fast way, for whole logs of numbers
        columns = np.loadtxt(io.StringIO(text), usecols=(4, 5, 2), ndmin=2, dtype=np.float64, comments=None).T
    except (ValueError, OverflowError):
        columns, failed = _line_by_line(text, path)
    if failed is None and not (np.isfinite(columns) & (columns >= 0)).all():
        columns, failed = _line_by_line(text, path)  # which says where
    seconds, parts, values = columns
    return [
        Series(
            arm=None,
            metric=_LATENCY,
            values=np.ascontiguousarray(values),
            source=str(path),
            order=seconds + parts * 1e-6,
            run=np.zeros(len(values), dtype=np.int64),
            failed=failed,
            epoch=True,
            notes=(_ONE_RUN,),
        )
    ]


def _line_by_line(text: str, path: Path) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    rows: list[tuple[float, float, float]] = []
    failed = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        with readable(path, _CURE, f"line {number}"):
            if len(parts) < 6:
                raise UnreadableError(f"no transaction in {shown(line)}")
            seconds, more = (figure(part, "the time", low=0) for part in parts[4:6])
            failed.append(parts[2] in _FAILED)
            rows.append((seconds, more, np.nan if failed[-1] else figure(parts[2], "the latency", low=0)))
    return np.array(rows).T, np.array(failed, dtype=np.bool_) if any(failed) else None


def _aggregated(path: Path) -> list[Series]:
    # interval_start num_transactions sum_latency sum_latency_2 min_latency max_latency ...
    rows: list[list[float]] = []
    for number, line in enumerate(text_of(path).splitlines(), 1):
        parts = line.split()
        with readable(path, _CURE, f"line {number}"):
            if len(parts) < 6:
                raise UnreadableError(f"no interval in {shown(line)}")
            rows.append([figure(part, "the figure", low=0) for part in parts])
    start, count, total = (np.array([row[column] for row in rows]) for column in range(3))
    length = _length(start, path)
    run = np.concatenate([[0], np.cumsum(np.diff(start) != length)])  # another log, put after the first
    note = "The intervals are cut from a run of pgbench: they are not replicates; the first and last may be cut short."
    with np.errstate(invalid="ignore", divide="ignore"):
        latency = np.where(count > 0, total / count, np.nan)
    return [
        Series(
            arm=None,
            metric=metric,
            values=values,
            source=str(path),
            order=start,
            run=run.astype(np.int64),
            epoch=True,
            primary=metric is _INTERVAL_TPS,
            notes=(note,),
        )
        for metric, values in ((_INTERVAL_TPS, count / length), (_INTERVAL_LATENCY, latency))
    ]


def _length(start: NDArray[np.float64], path: Path) -> float:
    steps, counts = np.unique(np.diff(start), return_counts=True)
    known = steps[(steps > 0) & (counts == counts[steps > 0].max(initial=0))]
    if not len(known):
        raise DataError(
            "one interval, whose length nothing tells",
            file=path,
            where="line 1",
            hint="run longer than two intervals (-T), or give pgbench's summary",
        )
    return float(known[0])


def _summaries(path: Path) -> list[Series]:
    summaries = _Summaries(path)
    for number, line in enumerate(text_of(path).splitlines(), 1):
        summaries.take(line, number)
    return summaries.series()


class _Summaries:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = Rows(path)
        self._run = 0
        self._kinds: dict[str, int] = {}
        self._limited = False
        self._begin()

    def _begin(self) -> None:
        self._previous = -1.0
        self._over = False
        self._instead: tuple[float, int] | None = None  # a rate with connection time: for want of another

    def _close(self) -> None:
        if self._instead is not None and not self._rows.values(_TPS, self._run):
            rate, line = self._instead
            self._rows.add(_TPS, rate, line=line, run=self._run)
            self._kinds[_CONNECTED] = line
        self._run += 1
        self._begin()

    def take(self, line: str, number: int) -> None:
        """Return the next line. Raises DataError."""
        mean = _MEAN.match(line)
        if self._over and (mean is not None or line.startswith(_BEGINS)):
            self._close()
        if line.startswith("progress: "):
            self._interval(line, number)
        elif mean is not None:
            self._rows.add(_AVERAGE, self._rows.number(mean[1], number), line=number, run=self._run)
        elif (match := _RATE.match(line)) is not None:
            self._rate(self._rows.number(match[1], number), match[2].lower(), number)
        elif line.startswith(("tps = ", "latency average")):
            raise DataError(f"no figure of a run in {shown(line)}", file=self._path, where=f"line {number}", hint=_CURE)
        else:
            self._around(line, number)

    def _around(self, line: str, number: int) -> None:
        if (match := _LOST.match(line)) is not None:
            if lost := int(self._rows.number(match[3], number)):
                self._rows.leave(
                    f"transactions that {'failed' if match[1] else 'were skipped'}, of its summaries", lost
                )
        elif (match := _SETTING.match(line)) is not None:
            self._rows.setting(match[1], match[2], number)
        elif "Run was aborted; the above results are incomplete" in line:
            cure = "run it again, or delete the lines of this run in a copy of the file"
            raise DataError("a run that was aborted", file=self._path, where=f"line {number}", hint=cure)
        elif line.startswith("rate limit schedule lag: "):
            self._limited = True

    def _interval(self, line: str, number: int) -> None:
        if (match := _PROGRESS.match(line)) is None:
            raise DataError(f"no interval in {shown(line)}", file=self._path, where=f"line {number}", hint=_CURE)
        at, tps = (self._rows.number(written, number) for written in (match[1], match[2]))
        if at < self._previous:
            self._close()
        self._previous = at
        latency = self._rows.number(match[3] or "nan", number) if tps else math.nan  # of no transaction
        self._rows.add(_INTERVAL_TPS, tps, line=number, run=self._run, kind="part")
        self._rows.add(_INTERVAL_LATENCY, latency * 1e3, line=number, run=self._run, kind="part")

    def _rate(self, rate: float, kind: str, number: int) -> None:
        if self._rows.values(_TPS, self._run) or (kind == "including" and self._instead is not None):
            self._close()
        self._over = True
        if kind == "including":  # before PostgreSQL 14 beside the rate without connection time
            self._instead = rate, number
            return
        self._rows.add(_TPS, rate, line=number, run=self._run)
        self._kinds[_RECONNECTED if kind == "including re" else ""] = number

    def series(self) -> list[Series]:
        """Return all of them, the rate of whole runs first. Raises DataError."""
        self._close()
        if len(self._kinds) > 1:
            first, second = sorted(self._kinds.values())[:2]
            raise DataError(
                f"of tps in lines {first} and {second} one includes the time of connecting and the other does not",
                file=self._path,
                where=f"line {second}",
                hint="give runs with -C and runs without in files of their own",
            )
        for kind in filter(None, self._kinds):
            self._rows.note(kind, _TPS.name)
        if self._limited:
            self._rows.note(_LIMITED, _TPS.name)
        names = [metric.name for metric in (_TPS, _INTERVAL_TPS, _AVERAGE)]
        found = {one.metric.name for one in self._rows.series(cure=_CURE)}
        chosen = next((name for name in names if name in found), "")
        return self._rows.series(primary=lambda name: name == chosen, cure=_CURE)
