"""Named quantities with unit and direction."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["COMMON", "Direction", "Metric"]

Direction = Literal["lower", "higher", "neutral"]


class Metric(msgspec.Struct, frozen=True):
    """One number per attempt. `better` says which direction is good; `neutral` is never judged."""

    name: str
    unit: str
    better: Direction
    description: str


# Every attempt has these, whatever the workload; a value that the machine cannot give is null, never 0.
COMMON = (
    Metric("wall_s", "s", "lower", "elapsed time of the timed region (whole command: launch to exit)"),
    Metric("cpu_s", "s", "lower", "user and system CPU time of the attempt's processes"),
    Metric("peak_bytes", "bytes", "lower", "peak resident memory of the largest process"),
    Metric("page_faults", "faults", "lower", "page faults of the timed region (whole command: of the tree)"),
    Metric("cycles", "cycles", "lower", "CPU cycles, from the hardware counter"),
    Metric("instructions", "instructions", "lower", "instructions retired, from the hardware counter"),
    Metric("dtlb_load_misses", "misses", "lower", "data TLB load misses, from the hardware counter"),
)
