"""What the probe answers to short questions: an event each, as `hugewise.machine.probe` reads it."""

from __future__ import annotations

import msgspec

from hugewise.machine.load_generator import Natural

__all__ = ["Available", "Cpu", "FaultCost", "FaultRound", "Fragmented", "Launches", "ProbeEvent", "Tlb", "Touched"]


def _snake(name: str) -> str:
    return name[0].lower() + "".join(f"_{c.lower()}" if c.isupper() else c for c in name[1:])


class ProbeEvent(msgspec.Struct, frozen=True, tag_field="ev", tag=_snake):
    """A line that the probe says, tagged by its kind."""


class Tlb(msgspec.Struct, frozen=True):
    """A TLB as CPUID states it: `entries` for each of `page_sizes` (bytes); `ways` 0 means fully associative."""

    level: Natural
    kind: str
    page_sizes: list[Natural]
    entries: Natural
    ways: Natural


class Cpu(ProbeEvent, frozen=True):
    """The TLBs of this processor."""

    vendor: str
    model: str
    tlbs: list[Tlb]
    reason: str | None


class Touched(ProbeEvent, frozen=True):
    """Memory was touched once."""

    bytes: Natural
    wall_ns: Natural


class Fragmented(ProbeEvent, frozen=True):
    """So much memory is free, so much of it in blocks that a huge page fits into; so many blocks have a pinned page."""

    free_bytes: Natural
    huge_bytes: Natural
    pinned: Natural
    rounds: Natural
    wall_ns: Natural


class Available(ProbeEvent, frozen=True):
    """Counters by name; the value is the reason why one is not available, or None when it is.

    slots   how many events are counted at once on general counters; None without a PMU
    """

    counters: dict[str, str | None]
    slots: Natural | None = None


class FaultRound(msgspec.Struct, frozen=True):
    """Memory that was touched for the first time: its page faults, and the CPU time that they took."""

    bytes: Natural
    faults: Natural
    cpu_ns: Natural


class FaultCost(ProbeEvent, frozen=True):
    """What page faults cost: rounds with base pages, then with the largest that there are for who asks."""

    rounds: list[FaultRound]


class Launches(ProbeEvent, frozen=True):
    """Nanoseconds from launch to reaped exit, one a run."""

    wall_ns: list[Natural]
    counters: bool
    cgroup: bool
