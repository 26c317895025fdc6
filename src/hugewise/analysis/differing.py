"""In what two runs differ before anything was measured: studies, hosts, kernels, versions, settings. Pure.

Both sides are flattened to `key.key` -> text, and only keys whose texts differ are told. Entries of a list that have a
name (policies, workloads, cells, arms) go by it, so that one more of them is one difference and not many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from hugewise.model.two_runs import Aspect, RunDifference
from hugewise.store.records import Run

__all__ = ["differences"]

_NAMES = ("name", "called", "id", "arm")
_MOST = 400  # characters of a value
# The study's place is no part of what was asked, and a fingerprint's caches and TLBs follow from the CPU's model.
_PASSED_OVER = {"study": ("file", "whole"), "host": ("tlbs", "caches")}


def differences(first: Run, second: Run) -> tuple[RunDifference, ...]:
    """Every key in which the runs differ, by aspect and in the order in which the keys stand."""
    here, there = _aspects(first), _aspects(second)
    found: list[RunDifference] = []
    for aspect, values in here.items():
        others = there[aspect]
        found += (
            RunDifference(aspect=aspect, key=key, first=values.get(key), second=others.get(key))
            for key in dict.fromkeys((*values, *others))
            if values.get(key) != others.get(key)
        )
    return tuple(found)


def _aspects(run: Run) -> dict[Aspect, dict[str, str]]:
    opened = run.opened
    client = None if opened.client is None else msgspec.to_builtins(opened.client)
    told: dict[Aspect, Any] = {
        "study": msgspec.to_builtins(run.study),
        "host": opened.host,
        "page settings": opened.settings,
        "versions": opened.versions,
        "run": {"mechanism": opened.mechanism, "client": client},
    }
    return {aspect: _told(value, _PASSED_OVER.get(aspect, ())) for aspect, value in told.items()}


def _told(value: Mapping[str, Any], passed: tuple[str, ...]) -> dict[str, str]:
    kept = {key: each for key, each in value.items() if key not in passed}
    return {key: text[:_MOST] for key, text in _flat(kept, "")}


def _flat(value: Any, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(each, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list | tuple) and value and all(isinstance(each, Mapping) for each in value):
        for number, each in enumerate(value, 1):
            name = next((each[key] for key in _NAMES if isinstance(each.get(key), str)), str(number))
            yield from _flat(each, f"{at}[{name}]")
    elif value is not None:
        yield at, value if isinstance(value, str) else msgspec.json.encode(value, order="deterministic").decode()
