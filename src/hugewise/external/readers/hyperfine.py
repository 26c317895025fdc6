"""hyperfine's JSON (`hyperfine --export-json FILE`): every run's wall time, arm by arm.

Format: github.com/sharkdp/hyperfine, src/benchmark/benchmark_result.rs. hyperfine ends one command's runs before it
starts the next one's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hugewise import reading
from hugewise.external.reader import Ask, DataError, Rows, Series, json_of, readable
from hugewise.model.metric import Metric
from hugewise.stats.method import Numbers

NAME = "hyperfine"

_METRIC = Metric("wall_s", "s", "lower", "wall time of each run (hyperfine)")
_CURE = "export it again: hyperfine --export-json FILE COMMAND..."


def recognises(head: bytes) -> bool:
    """Return whether the file begins as a JSON object whose first key is `results`, with commands and times."""
    start = head.lstrip()[:200]
    return start.startswith(b"{") and b'"results"' in start and b'"command"' in start


def read(path: Path, ask: Ask) -> list[Series]:
    """Return one series for each command, in the order in which hyperfine ran them."""
    del ask  # the file says it all
    document = json_of(path, _CURE)
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list):
        raise DataError("no list of results", file=path, hint=_CURE)
    gathered = Rows(path)
    place = 0
    for number, (result, name) in enumerate(zip(results, _names(results, path), strict=True)):
        where = f"results[{number}]"
        values = _numbers(result, path, where)
        codes = result.get("exit_codes") or [0] * len(values)
        if not isinstance(codes, list):
            raise DataError(f"{reading.shown(codes)} is no list", file=path, where=f"{where}.exit_codes", hint=_CURE)
        if len(codes) != len(values):
            raise DataError(f"{len(codes)} exit codes of {len(values)} runs", file=path, where=where, hint=_CURE)
        for run, (value, code) in enumerate(zip(values.tolist(), codes, strict=True)):
            gathered.add(_METRIC, value, line=place, run=run, arm=name, failed=code != 0, where=where)
            place += 1
    if len(results) > 1:
        gathered.note("hyperfine ends all runs of one command before it starts the next one's.")
    return gathered.series(cure=_CURE)


def _names(results: list[Any], path: Path) -> list[str]:
    names = []
    for number, result in enumerate(results):
        if not isinstance(result, dict) or not isinstance(result.get("command"), str):
            raise DataError("no command", file=path, where=f"results[{number}]", hint=_CURE)
        names.append(result["command"])
    if len(set(names)) < len(names):
        given = [result.get("parameters") for result in results]
        parameters = [parameter.items() if isinstance(parameter, dict) else () for parameter in given]
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
    numbers = np.empty(len(times))
    for index, value in enumerate(times):
        with readable(path, _CURE, f"{where}.times[{index}]"):
            numbers[index] = reading.number(value, "the time", low=0)
    return numbers
