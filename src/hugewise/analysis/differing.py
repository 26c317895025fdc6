"""In what two runs differ before anything was measured: studies, hosts, kernels, versions, settings. Pure.

Both sides are flattened to `key.key` -> text, and only keys whose texts differ are told. Entries of a list that have a
name (policies, workloads, cells, arms) go by it, so that one more of them is one difference and not many.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from hugewise.model.two_runs import Aspect, RunDifference
from hugewise.store.records import Run

__all__ = ["differences"]

_NAMES = ("name", "called", "id", "arm")
_MOST = 400  # characters of a value
# The study's place and what else there was to choose are no part of what was asked, and a fingerprint's caches and TLBs
# follow from the CPU's model.
_PASSED_OVER = {"study": ("file", "whole"), "host": ("tlbs", "caches")}
# What a node had begun to use, in older runs, grew from run to run on some kernels; a node's whole memory is compared
# where both runs kept it.
_USED = re.compile(r"memory\.nodes\.node\d+\.bytes")
_WHOLE = re.compile(r"memory\.nodes\.node\d+\.present_bytes")


def differences(first: Run, second: Run) -> tuple[RunDifference, ...]:
    """Every key in which the runs differ, by aspect and in the order in which the keys stand."""
    here, there = _aspects(first), _aspects(second)
    found: list[RunDifference] = []
    for aspect, values in here.items():
        others = there[aspect]
        found += (
            RunDifference(aspect=aspect, key=key, first=values.get(key), second=others.get(key))
            for key in dict.fromkeys((*values, *others))
            if values.get(key) != others.get(key) and not (aspect == "host" and _unlike_kept(key, values, others))
        )
    return tuple(found)


def _unlike_kept(key: str, values: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Whether versions of hugewise kept the fact otherwise, so that nothing follows from its being another."""
    if _WHOLE.fullmatch(key):  # a node that only one host has differs in its CPUs, too
        return key not in values or key not in others
    return _USED.fullmatch(key) is not None


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
