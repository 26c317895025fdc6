"""What several workloads read alike from what an attempt left behind. Pure but for the reading itself."""

from __future__ import annotations

import re

from hugewise.model.scene import Outputs, Part
from hugewise.reading import whole

__all__ = ["cpu_us", "in_turns", "only", "processors", "saturated", "thawed"]

_SATURATED = 0.95  # of the CPU time that the client can use


def only(outputs: Outputs, name: str) -> bytes:
    """The content of the one file of that name in the run folder. Raises ValueError when it is not there."""
    found = list(outputs.files(re.compile(re.escape(name))))
    if len(found) != 1:
        raise ValueError(f"{name} is missing")
    return found[0]


def in_turns(outputs: Outputs) -> bool:
    """Whether the attempt took turns with others: something else counts than all of the measured part."""
    return outputs.parts != (Part(outputs.begin, outputs.end),)


def cpu_us(outputs: Outputs, work: int) -> float | None:
    """Microseconds of the system's CPU time for each of `work` units; None where not counted, or none was done."""
    cpu = outputs.sut.cpu_s
    return None if cpu is None or not work else cpu * 1e6 / work


def processors(outputs: Outputs) -> int:
    """What the step `cpus` (nproc) said. Raises UnreadableError."""
    return whole(outputs.stdout("cpus"), "the number of processors that nproc says", low=1)


def saturated(outputs: Outputs, cpus: int) -> bool:
    """Whether the client used all the time of `cpus` CPUs in the measured part: it was what limited the rate."""
    cpu = outputs.client.cpu_s
    return cpu is not None and cpu > _SATURATED * cpus * thawed(outputs)


def thawed(outputs: Outputs) -> float:
    """Seconds of the measured part in which the attempt's programs went on, wash-outs included."""
    return sum(part.end - max(part.thawed, outputs.begin) for part in outputs.parts)
