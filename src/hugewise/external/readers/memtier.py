"""memtier_benchmark's JSON (`--json-out-file FILE`): the totals of a run, and its seconds.

Format: github.com/RedisLabs/memtier_benchmark, run_stats.cpp. With `--run-count N` alone the file keeps the totals of
the best, the worst and the mean run only; `--print-all-runs` adds each one's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hugewise.external.reader import Ask, DataError, Series, json_of, readable
from hugewise.external.readers._text import RunFigures
from hugewise.model.metric import Metric
from hugewise.reading import UnreadableError, figure, number

NAME = "memtier"
DESCRIPTION = "memtier_benchmark --json-out-file"

_CURE = "write it again: memtier_benchmark --json-out-file FILE, once for each run"
_TOTALS = {
    "Ops/sec": Metric("ops_per_s", "operations/s", "higher", "operations a second of each run (memtier)"),
    "Average Latency": Metric("latency_average_ms", "ms", "lower", "mean latency of each run (memtier)"),
    "KB/sec": Metric("kb_per_s", "KB/s", "higher", "kilobytes a second of each run (memtier)"),
}
_SECONDS = Metric("interval_ops_per_s", "operations/s", "higher", "operations of each second of the run (memtier)")
_SECOND = "The seconds are cut from one run: they are not runs of their own."


def recognises(head: bytes) -> bool:
    """A JSON object with memtier's configuration."""
    start = head.lstrip()[:4000]
    return start.startswith(b"{") and b'"configuration"' in start and b'"data_size' in head


def read(path: Path, ask: Ask) -> list[Series]:
    """Rate, latency and percentiles of the run; the operations of each of its seconds."""
    del ask  # the file says it all
    told = json_of(path, _CURE)
    if not isinstance(told, dict):
        raise DataError("no object", file=path, hint=_CURE)
    names = [key for key in told if key == "ALL STATS" or re.fullmatch(r"RUN #[0-9]{1,9} RESULTS", key)]
    if not names and (mean := _averaged(told)):
        raise DataError(
            f"of several runs it holds only the best, the worst and the mean ({mean})",
            file=path,
            hint="add --print-all-runs, or run memtier_benchmark once for each value, with a file each",
        )
    if not names:
        raise DataError("no totals of a run", file=path, where="ALL STATS", hint=_CURE)
    gathered: dict[str, RunFigures] = {}
    for run, name in enumerate(names):
        _take(gathered, told[name], run, path, name)
    return [
        known.series(
            path, primary=known.metric.name == "ops_per_s", notes=(_SECOND,) if known.metric is _SECONDS else ()
        )
        for known in gathered.values()
    ]


def _take(gathered: dict[str, RunFigures], told: object, run: int, path: Path, name: str) -> None:
    """The figures of one run."""
    totals = told.get("Totals") if isinstance(told, dict) else None
    if not isinstance(told, dict) or not isinstance(totals, dict):
        raise DataError("no totals of a run", file=path, where=f"{name}.Totals", hint=_CURE)
    began, lasted = (_optional(_table(told, "Runtime"), key) for key in ("Start time", "Total duration"))
    start = float(run) if began is None else began / 1e3

    def add(metric: Metric, value: object, where: str, at: float = start) -> None:
        with readable(path, _CURE, f"{name}.Totals.{where}"):
            gathered.setdefault(metric.name, RunFigures(metric)).add(number(value, "the figure", low=0), at, run)

    for key, metric in _TOTALS.items():
        if key in totals:
            value = totals[key]
            if key == "Average Latency" and value == 0:  # memtier 2.2 leaves it out of totals
                count, spent = (_optional(totals, each) for each in ("Count", "Accumulated Latency"))
                value = (spent or 0.0) / count if count else value
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
            continue  # what is left of the last second
        add(_SECONDS, row.get("Count") if isinstance(row, dict) else row, f"{where}.Count", start + at)


def _table(of: dict[str, Any], key: str) -> dict[str, Any]:
    """What is below a key; empty where there is nothing, or no table."""
    found = of.get(key)
    return found if isinstance(found, dict) else {}


def _optional(of: dict[str, Any], key: str) -> float | None:
    """A number that need not be there."""
    try:
        return number(of.get(key))
    except UnreadableError:
        return None


def _averaged(told: dict[str, Any]) -> str:
    return next((key for key in told if key.startswith("AGGREGATED AVERAGE")), "")
