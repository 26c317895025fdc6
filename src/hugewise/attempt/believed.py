"""What the programs of an attempt said, read: a value that can be kept, or the reason why the attempt failed.

A program that is measured may print anything, so that nothing that a workload's reader does with it may end the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.model.scene import Outputs, Reading, Staged
from hugewise.model.workload import Hearing, ParameterValue
from hugewise.reading import AbsentError, UnreadableError

__all__ = ["heard", "last_lines", "read", "said"]

_MOST = 64 << 20  # bytes of what a program printed
_TAIL = 1 << 16  # bytes of it in which its last lines are looked for
_LONGEST = 2000  # characters of a fact, a mark or a reason


def said(path: Path) -> str:
    """What a program printed into that file; empty where there is none. Raises UnreadableError."""
    try:
        return reading.content(path, _MOST).decode("utf-8", "replace")
    except AbsentError:
        return ""
    except UnreadableError as error:
        raise UnreadableError(f"its {path.name}: {error.reason}") from error


def last_lines(path: Path, lines: int) -> list[str]:
    """The last lines that a program printed, without those that are empty; none of a file that cannot be read."""
    try:
        told = reading.content(path, _TAIL, part="tail").decode("utf-8", "replace")
    except UnreadableError:
        return []
    return [line.strip() for line in told.splitlines() if line.strip()][-lines:]


def read(workload: Staged, outputs: Outputs, values: Mapping[str, ParameterValue]) -> Reading:
    """What the outputs of a staged workload mean. Raises UnreadableError."""
    with reading.believing("its output"):
        found = workload.read(outputs, values)
        for name, value in found.metrics.items():
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise UnreadableError(f"{name} is {value}, which is no measurement")
        if not all(map(math.isfinite, found.series)):
            raise UnreadableError("its rate in some second is no number")
        msgspec.json.encode(found)  # as it will be kept
    facts = {name: fact[:_LONGEST] if isinstance(fact, str) else fact for name, fact in found.facts.items()}
    problem = None if found.problem is None else found.problem[:_LONGEST]
    return msgspec.structs.replace(
        found, facts=facts, problem=problem, marks=tuple(mark[:_LONGEST] for mark in found.marks)
    )


def heard(workload: Hearing, draft: Path, values: Mapping[str, ParameterValue]) -> Mapping[str, float]:
    """The metrics in what a command printed into the attempt's folder. Raises UnreadableError."""
    with reading.believing("its output"):
        return workload.hear(said(draft / "stdout"), said(draft / "stderr"), values)
