"""Named quantities with unit and direction, and which of them are counters of perf."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "COMMON",
    "COUNTERS",
    "NOT_IN_EMULATION",
    "OPERATIONS",
    "RATES",
    "WALL_US",
    "Counter",
    "Direction",
    "Metric",
    "Rate",
]

NOT_IN_EMULATION = "the guest is emulated (TCG): its clock, TLB and caches are not a processor's"
"""Why a metric is null that emulation does not yield exactly."""

Direction = Literal["lower", "higher", "neutral"]


class Metric(msgspec.Struct, frozen=True):
    """One number per attempt. `better` says which direction is good; `neutral` is never judged.

    `emulated`: a guest that is emulated yields it exactly, being a count or a size that no clock enters. Every other is
    null there.
    """

    name: str
    unit: str
    better: Direction
    description: str
    emulated: bool = False


OPERATIONS = "operations"
"""The value that says how much work a command, or a load, has done."""

WALL_US = Metric("wall_us", "us", "lower", "elapsed time for each operation, where a value is named `operations`")


class Counter(msgspec.Struct, frozen=True):
    """An event of perf that is counted of each command, by its name there (see `hugewise-probe counters`).

    metric   what it is called in attempts and reports; None: it is kept in the events of an attempt alone
    servers  counted of servers too, whose measured part begins when they run already
    """

    event: str
    metric: Metric | None = None
    servers: bool = False


class Rate(msgspec.Struct, frozen=True):
    """A metric that is `times` one counter over another, both by their metrics' names."""

    metric: Metric
    part: str
    whole: str
    times: float = 1.0


# A new counter is a row here. Any open counter costs a server most of a microsecond at each context switch, in every
# arm alike: so of servers only those that nothing else gives are counted, and on a machine without a PMU none.
COUNTERS = (
    Counter("task-clock"),
    Counter(
        "page-faults",
        Metric(
            "page_faults",
            "faults",
            "lower",
            "page faults of the timed region (whole command: of the tree)",
            emulated=True,
        ),
    ),
    Counter("minor-faults"),
    Counter("major-faults"),
    Counter(
        "context-switches",
        Metric(
            "context_switches", "switches", "lower", "context switches of the timed region (whole command: of the tree)"
        ),
    ),
    Counter(
        "cpu-migrations", Metric("cpu_migrations", "migrations", "lower", "moves from one CPU to another, likewise")
    ),
    Counter("cycles", Metric("cycles", "cycles", "lower", "CPU cycles, from the hardware counter"), servers=True),
    Counter(
        "instructions",
        Metric("instructions", "instructions", "lower", "instructions retired, from the hardware counter"),
        servers=True,
    ),
    Counter("dTLB-loads"),
    Counter(
        "dTLB-load-misses",
        Metric(
            "dtlb_load_misses",
            "misses",
            "lower",
            "data TLB load misses as perf's generic event counts them, which differs by vendor: page walks on AMD and"
            " Intel, misses of the first level on Arm",
        ),
        servers=True,
    ),
    Counter(
        "dtlb-walk-steps",
        Metric("dtlb_walk_steps", "steps", "lower", "page-walk steps for data, where the processor has such an event"),
        servers=True,
    ),
)

RATES = (
    Rate(Metric("ipc", "1", "higher", "instructions a cycle, from the hardware counters"), "instructions", "cycles"),
    Rate(
        Metric(
            "dtlb_mpki",
            "misses/1000",
            "lower",
            "`dtlb_load_misses` per 1,000 instructions: arms can be compared, vendors cannot",
        ),
        "dtlb_load_misses",
        "instructions",
        1000.0,
    ),
    Rate(
        Metric("walk_steps_pki", "steps/1000", "lower", "`dtlb_walk_steps` per 1,000 instructions"),
        "dtlb_walk_steps",
        "instructions",
        1000.0,
    ),
)

# Every attempt has these, whatever the workload; a value that the machine cannot give is null, never 0.
COMMON = (
    Metric("wall_s", "s", "lower", "elapsed time of the timed region (whole command: launch to exit)"),
    Metric("cpu_s", "s", "lower", "user and system CPU time of the attempt's processes"),
    Metric("user_s", "s", "lower", "of it the time in programs, page walks and cache misses included"),
    Metric("system_s", "s", "lower", "of it the time in the kernel, page faults included"),
    Metric("peak_bytes", "bytes", "lower", "peak resident memory of the largest process", emulated=True),
    *(counter.metric for counter in COUNTERS if counter.metric is not None),
    *(rate.metric for rate in RATES),
    Metric(
        "footprint_bytes",
        "bytes",
        "lower",
        "resident memory at the proof: RSS (servers: PSS) and hugetlb pages",
        emulated=True,
    ),
    Metric("khugepaged_cpu_s", "s", "lower", "CPU time of khugepaged meanwhile (the whole machine's)"),
    Metric("kcompactd_cpu_s", "s", "lower", "CPU time of kcompactd meanwhile (the whole machine's)"),
    Metric("kswapd_cpu_s", "s", "lower", "CPU time of kswapd meanwhile (the whole machine's)"),
    Metric(
        "compact_stalls", "stalls", "lower", "allocations that waited for compaction meanwhile (the whole machine's)"
    ),
    Metric(
        "thp_fallbacks",
        "faults",
        "lower",
        "faults that were to have a page of the PMD size and got small ones meanwhile (the whole machine's)",
    ),
    Metric(
        "lifetime_faults",
        "faults",
        "lower",
        "page faults of the cgroup of the system under test from its first process to the end of the measured part,"
        " set-up and warming included",
        emulated=True,
    ),
    Metric(
        "charged_peak_bytes",
        "bytes",
        "lower",
        "the most memory charged at once to its cgroup: page cache included, hugetlb pages not",
        emulated=True,
    ),
    Metric("swap_bytes", "bytes", "lower", "memory swapped in and out meanwhile (the whole machine's)", emulated=True),
)
