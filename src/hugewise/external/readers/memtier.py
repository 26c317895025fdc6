"""memtier_benchmark's JSON (`--json-out-file FILE`): the totals of a run, and its seconds.

Format: github.com/RedisLabs/memtier_benchmark, run_stats.cpp. With `--run-count N` alone the file keeps the totals of
the best, the worst and the mean run only; `--print-all-runs` adds each one's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from hugewise.external.reader import Ask, DataError, Series, json_of
from hugewise.external.readers._text import RunFigures
from hugewise.model.metric import Metric

__all__ = ["DESCRIPTION", "NAME", "read", "recognises"]

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
    names = [key for key in told if key == "ALL STATS" or re.fullmatch(r"RUN #\d+ RESULTS", key)]
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
    began = (told.get("Runtime") or {}).get("Start time")
    start = began / 1e3 if isinstance(began, int | float) else float(run)

    def add(metric: Metric, value: object, where: str, at: float = start) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise DataError(f"{value!r} is no number", file=path, where=f"{name}.Totals.{where}", hint=_CURE)
        gathered.setdefault(metric.name, RunFigures(metric)).add(float(value), at, run)

    for key, metric in _TOTALS.items():
        if key in totals:
            value = totals[key]
            if key == "Average Latency" and value == 0 and totals.get("Count"):  # memtier 2.2 leaves it out of totals
                value = (totals.get("Accumulated Latency") or 0) / totals["Count"]
            add(metric, value, key)
    for key, value in (totals.get("Percentile Latencies") or {}).items():
        if key.startswith("p"):
            metric = Metric(f"latency_{key}_ms", "ms", "lower", f"latency at {key} of each run (memtier)")
            add(metric, value, f"Percentile Latencies.{key}")
    lasted = (told.get("Runtime") or {}).get("Total duration")
    seconds = (totals.get("Time-Serie") or {}).items()
    for at, row in seconds:
        if isinstance(lasted, int | float) and (float(at) + 1) * 1e3 > lasted:
            continue  # what is left of the last second
        add(_SECONDS, row.get("Count"), f"Time-Serie.{at}.Count", start + float(at))


def _averaged(told: dict[str, Any]) -> str:
    return next((key for key in told if key.startswith("AGGREGATED AVERAGE")), "")
