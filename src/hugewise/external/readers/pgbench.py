"""pgbench: the per-transaction log (`-l`), its aggregated form, and the summary text.

Format: PostgreSQL documentation, pgbench, "Per-Transaction Logging" and "Aggregated Logging".
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hugewise.external.reader import Ask, DataError, Series, head_of, readable, text_of
from hugewise.external.readers._text import Gathered
from hugewise.model.metric import Metric
from hugewise.reading import UnreadableError, figure, shown

NAME = "pgbench"
DESCRIPTION = "pgbench's summary, its log (-l), or its aggregated log (--aggregate-interval)"

_CURE = "give pgbench's own output: pgbench -l ..., or its summary on stdout"
_EPOCH = 10**9  # seconds: a column above it is a time, not a count
_LATENCY = Metric("latency_us", "us", "lower", "elapsed time of each transaction (pgbench -l)")
_TPS = Metric("tps", "transactions/s", "higher", "transactions a second of each run, without connection time")
_AVERAGE = Metric("latency_average_ms", "ms", "lower", "mean latency of each run (pgbench)")
_INTERVAL_TPS = Metric("interval_tps", "transactions/s", "higher", "transactions a second of each interval")
_INTERVAL_LATENCY = Metric("interval_latency_us", "us", "lower", "mean latency of each interval (pgbench)")

_PROGRESS = re.compile(r"progress: ([\d.]+) s, ([\d.]+) tps, lat ([\d.]+) ms")
_ONE_RUN = "All transactions are of one run of pgbench: they are not replicates."


def recognises(head: bytes) -> bool:
    """The summary's words, or rows of at least six integers."""
    if head.startswith(b"pgbench (") or b"\ntransaction type: " in head or head.startswith(b"transaction type: "):
        return True
    return _is_log(head)


def _is_log(head: bytes) -> bool:
    return re.match(rb"\d+( (\d+|skipped|failed)){5,16}\r?(\n|$)", head) is not None


def _is_time(written: bytes) -> bool:
    """Whether a column of whole numbers holds seconds since the epoch, not counts."""
    return len(written) <= 19 and written.isdigit() and int(written) > _EPOCH


def read(path: Path, ask: Ask) -> list[Series]:
    """The latencies of a log, or the figures of each summary in the file."""
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
    """client_id transaction_no time script_no time_epoch time_us [schedule_lag] [retries]."""
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
            notes=(_ONE_RUN,),
        )
    ]


def _line_by_line(text: str, path: Path) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    """Seconds, microseconds and latencies, with `skipped` and `failed` in place of some latencies; failures."""
    rows: list[tuple[float, float, float]] = []
    failed = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        with readable(path, _CURE, f"line {number}"):
            if len(parts) < 6:
                raise UnreadableError(f"no transaction in {shown(line)}")
            seconds, more = (figure(part, "the time", low=0) for part in parts[4:6])
            failed.append(parts[2] in {"skipped", "failed"})
            rows.append((seconds, more, np.nan if failed[-1] else figure(parts[2], "the latency", low=0)))
    return np.array(rows).T, np.array(failed, dtype=np.bool_) if any(failed) else None


def _aggregated(path: Path) -> list[Series]:
    """interval_start num_transactions sum_latency sum_latency_2 min_latency max_latency ..."""
    rows: list[list[float]] = []
    for number, line in enumerate(text_of(path).splitlines(), 1):
        parts = line.split()
        with readable(path, _CURE, f"line {number}"):
            if len(parts) < 6:
                raise UnreadableError(f"no interval in {shown(line)}")
            rows.append([figure(part, "the figure", low=0) for part in parts])
    start, count, total = (np.array([row[column] for row in rows]) for column in range(3))
    steps = np.diff(start)
    length = float(steps.min()) if len(steps) and steps.min() > 0 else 1.0
    run = np.zeros(len(rows), dtype=np.int64)
    note = "The intervals are of one run of pgbench: they are not replicates; the first and the last may be cut short."
    with np.errstate(invalid="ignore", divide="ignore"):
        latency = np.where(count > 0, total / count, np.nan)
    return [
        Series(
            arm=None,
            metric=metric,
            values=values,
            source=str(path),
            order=start,
            run=run,
            primary=metric is _INTERVAL_TPS,
            notes=(note,),
        )
        for metric, values in ((_INTERVAL_TPS, count / length), (_INTERVAL_LATENCY, latency))
    ]


def _summaries(path: Path) -> list[Series]:
    """Every summary in the file is a run; `progress:` lines (-P) are intervals within it."""
    gathered = Gathered(path)
    run, previous = 0, -1.0
    for number, line in enumerate(text_of(path).splitlines(), 1):
        if (match := _PROGRESS.match(line)) is not None:
            at = gathered.number(match[1], number)
            run += at < previous and not gathered.has(_TPS, run)
            previous = at
            gathered.add(_INTERVAL_TPS, match[2], run, number, within=True)
            gathered.add(_INTERVAL_LATENCY, match[3], run, number, times=1e3, within=True)
        elif (match := re.match(r"latency average = ([\d.]+) ms", line)) is not None:
            gathered.add(_AVERAGE, match[1], run, number)
        elif (match := re.match(r"tps = ([\d.]+) \((without initial|excluding|including)", line)) is not None:
            if match[2] == "including":  # before PostgreSQL 14 both were printed
                continue
            gathered.add(_TPS, match[1], run, number)
            run, previous = run + 1, -1.0
    return gathered.series(primary=_TPS, cure=_CURE)
