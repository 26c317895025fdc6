"""hyperfine's JSON (`hyperfine --export-json FILE`): every run's wall time, arm by arm.

Format: github.com/sharkdp/hyperfine, src/benchmark/benchmark_result.rs. hyperfine ends one command's runs before it
starts the next one's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hugewise import reading
from hugewise.external.reader import Ask, DataError, Series, json_of, readable
from hugewise.model.metric import Metric
from hugewise.stats.method import Numbers

NAME = "hyperfine"
DESCRIPTION = "hyperfine --export-json"

_METRIC = Metric("wall_s", "s", "lower", "wall time of each run (hyperfine)")
_CURE = "export it again: hyperfine --export-json FILE COMMAND..."


def recognises(head: bytes) -> bool:
    """A JSON object whose first key is `results`, with commands and times."""
    start = head.lstrip()[:200]
    return start.startswith(b"{") and b'"results"' in start and b'"command"' in start


def read(path: Path, ask: Ask) -> list[Series]:
    """One series for each command, in the order in which hyperfine ran them."""
    del ask  # the file says it all
    told = json_of(path, _CURE)
    results = told.get("results") if isinstance(told, dict) else None
    if not isinstance(results, list):
        raise DataError("no list of results", file=path, hint=_CURE)
    found, first = [], 0
    names = _names(results, path)
    for number, (result, name) in enumerate(zip(results, names, strict=True)):
        where = f"results[{number}]"
        values = _numbers(result, path, where)
        codes = result.get("exit_codes") or []
        if not isinstance(codes, list):
            raise DataError(f"{reading.shown(codes)} is no list", file=path, where=f"{where}.exit_codes", hint=_CURE)
        if codes and len(codes) != len(values):
            raise DataError(f"{len(codes)} exit codes of {len(values)} runs", file=path, where=where, hint=_CURE)
        failed = np.array([code != 0 for code in codes], dtype=np.bool_) if codes else None
        order = np.arange(first, first + len(values), dtype=np.float64)
        first += len(values)
        notes = ("hyperfine ends all runs of one command before it starts the next one's.",) if len(results) > 1 else ()
        found.append(
            Series(
                arm=name,
                metric=_METRIC,
                values=values,
                source=str(path),
                order=order,
                failed=failed if failed is not None and failed.any() else None,
                notes=notes,
            )
        )
    return found


def _names(results: list[Any], path: Path) -> list[str]:
    """Commands, with their parameters where the command alone does not tell them apart."""
    names = []
    for number, result in enumerate(results):
        if not isinstance(result, dict) or not isinstance(result.get("command"), str):
            raise DataError("no command", file=path, where=f"results[{number}]", hint=_CURE)
        names.append(result["command"])
    if len(set(names)) < len(names):
        given = [result.get("parameters") for result in results]
        parameters = [each.items() if isinstance(each, dict) else () for each in given]
        names = [
            " ".join([name, *(f"{key}={value}" for key, value in mine)])
            for name, mine in zip(names, parameters, strict=True)
        ]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
    return names


def _numbers(result: dict[str, Any], path: Path, where: str) -> Numbers:
    times = result.get("times")
    if not isinstance(times, list) or not times:
        raise DataError("no times of single runs", file=path, where=where, hint=_CURE)
    found = np.empty(len(times))
    for index, value in enumerate(times):
        with readable(path, _CURE, f"{where}.times[{index}]"):
            found[index] = reading.number(value, "the time", low=0)
    return found
