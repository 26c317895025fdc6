"""memtier_benchmark's JSON (`--json-out-file FILE`): the totals of a run, and its seconds.

Format: github.com/RedisLabs/memtier_benchmark, run_stats.cpp. With `--run-count N` alone the file keeps the totals of
the best, the worst and the mean run only; `--print-all-runs` adds each one's.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from hugewise.external.reader import Ask, DataError, Kind, Rows, Series, json_of, readable
from hugewise.model.metric import Metric
from hugewise.reading import UnreadableError, figure, number

NAME = "memtier"

_CURE = "write it again: memtier_benchmark --json-out-file FILE, once for each run"
_RATE = Metric("ops_per_s", "operations/s", "higher", "operations a second of each run (memtier)")
_AVERAGE = Metric("latency_average_ms", "ms", "lower", "mean latency of each run (memtier)")
_TOTALS = {
    "Ops/sec": _RATE,
    "Average Latency": _AVERAGE,
    "KB/sec": Metric("kb_per_s", "KB/s", "higher", "kilobytes a second of each run (memtier)"),
}
_SETTINGS = ("clients", "threads", "pipeline", "ratio", "data_size", "key_pattern", "rate_limit", "protocol")
_SECONDS = Metric("interval_ops_per_s", "operations/s", "higher", "operations of each second of the run (memtier)")


def recognises(head: bytes) -> bool:
    """Return whether the file is a JSON object with memtier's configuration."""
    start = head.lstrip()[:4000]
    return start.startswith(b"{") and b'"configuration"' in start and b'"data_size' in head


def read(path: Path, ask: Ask) -> list[Series]:
    """Rate, latency and percentiles of the run; the operations of each of its seconds."""
    del ask  # the file says it all
    document = json_of(path, _CURE)
    if not isinstance(document, dict):
        raise DataError("no object", file=path, hint=_CURE)
    runs = [key for key in document if re.fullmatch(r"RUN #[0-9]{1,9} RESULTS", key)]
    names = runs or [key for key in document if key == "ALL STATS"]
    others = [
        key for key in document if key not in names and isinstance(document[key], dict) and "Totals" in document[key]
    ]
    if not names and (mean := _averaged(document)):
        raise DataError(
            f"of several runs it holds only the best, the worst and the mean ({mean})",
            file=path,
            hint="add --print-all-runs, or run memtier_benchmark once for each value, with a file each",
        )
    if not names:
        raise DataError("no totals of a run", file=path, where="ALL STATS", hint=_CURE)
    gathered = Rows(path)
    for other in others:
        gathered.leave(f"{other}: an aggregate of the runs, or one of them again")
    for key, value in _table(document, "configuration").items():
        if key in _SETTINGS and isinstance(value, str | int):
            gathered.setting(key, str(value), 0)
    for run, name in enumerate(names):
        _take(gathered, document[name], run, path, name)
    return gathered.series(primary=lambda name: name == "ops_per_s", cure=_CURE)


def _take(gathered: Rows, totals_of_run: object, run: int, path: Path, name: str) -> None:
    totals = totals_of_run.get("Totals") if isinstance(totals_of_run, dict) else None
    if not isinstance(totals_of_run, dict) or not isinstance(totals, dict):
        raise DataError("no totals of a run", file=path, where=f"{name}.Totals", hint=_CURE)
    runtime = _table(totals_of_run, "Runtime")
    began, lasted = (_optional(runtime, key) for key in ("Start time", "Total duration"))
    if runtime.get("Time unit", "MILLISECONDS") != "MILLISECONDS":
        lasted = None
    start = float(run) if began is None else began / 1e3
    count, spent = (_optional(totals, key) for key in ("Count", "Accumulated Latency"))

    def add(metric: Metric, value: object, where: str, *, at: float = start, kind: Kind = "run") -> float:
        where = f"{name}.Totals.{where}"
        with readable(path, _CURE, where):
            known = math.nan if value is None else number(value, "the figure", low=0)
        gathered.add(metric, known, line=0, run=run, at=at, kind=kind, where=where)
        return known

    if str(runtime.get("Interrupted", "false")).lower() != "false":
        cure = "run it again, or leave the file out"
        raise DataError("a run that was interrupted", file=path, where=f"{name}.Runtime.Interrupted", hint=cure)
    if lost := _optional(totals, "Connection Errors"):
        gathered.leave("connection errors", int(lost))
    for key, metric in _TOTALS.items():
        value = totals.get(key, totals.get("Latency") if metric is _AVERAGE else None)  # memtier 1: Latency
        if metric is _AVERAGE and value == 0:  # memtier 2.2 leaves it out of totals
            value = spent / count if count and spent else totals.get("Latency", value)
        if key in totals or value is not None:
            add(metric, value, key)
    for key, value in _table(totals, "Percentile Latencies").items():
        if key.startswith("p"):
            metric = Metric(f"latency_{key}_ms", "ms", "lower", f"latency at {key} of each run (memtier)")
            add(metric, value, f"Percentile Latencies.{key}")
    for second, row in _table(totals, "Time-Serie").items():
        where = f"Time-Serie.{second}"
        with readable(path, _CURE, f"{name}.Totals.{where}"):
            at = figure(second, "the second", low=0)
        if lasted is not None and (at + 1) * 1e3 > lasted:
            gathered.leave("what is left of a run's last second")
            continue
        found_there = row.get("Count") if isinstance(row, dict) else row
        add(_SECONDS, found_there, f"{where}.Count", at=start + at, kind="part")


def _table(of: dict[str, Any], key: str) -> dict[str, Any]:
    table = of.get(key)
    return table if isinstance(table, dict) else {}


def _optional(of: dict[str, Any], key: str) -> float | None:
    try:
        return number(of.get(key))
    except UnreadableError:
        return None


def _averaged(totals: dict[str, Any]) -> str:
    return next((key for key in totals if key.startswith("AGGREGATED AVERAGE")), "")
