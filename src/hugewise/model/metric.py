"""Named quantities with unit and direction, and which of them are counters of perf. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

NOT_IN_EMULATION = "the guest is emulated (TCG): its clock, TLB and caches are not a processor's"
"""Reason for a null metric that emulation does not yield exactly."""

NO_CGROUP = "servers are counted by their cgroup, and there is none"
"""Reason for a null metric of servers that only a cgroup of their own counts."""

Direction = Literal["lower", "higher", "neutral"]


class Metric(msgspec.Struct, frozen=True):
    """Number per attempt. `better` says which direction is good; `neutral` is never judged.

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


Mode = Literal["all", "user", "kernel"]

MODES: tuple[Literal["user", "kernel"], ...] = ("user", "kernel")


class Counter(msgspec.Struct, frozen=True):
    """An event of perf that is counted of each command, by its name there (see `hugewise-probe counters`).

    metric     what it is called in attempts and reports; None: it is kept in the events of an attempt alone
    hardware   the processor's: it takes one of its counters, of which there are few (`machine.pmu`). Of
               servers, whose measured part begins when they run already, these alone are counted
    """

    event: str
    metric: Metric | None = None
    hardware: bool = False


class Sum(msgspec.Struct, frozen=True):
    """A metric that is a sum over events of the processor's own in one mode, by their roles (`machine.pmu`).

    A family counts some of `roles` and not others: those that were asked for are summed. `less` is taken away from
    `l1_misses`, where the family counts hits of the second level in that way.
    """

    metric: Metric
    mode: Mode
    roles: tuple[str, ...]
    less: tuple[str, ...] = ()


class Rate(msgspec.Struct, frozen=True):
    """A metric that is `times` one counter over another, both by their metrics' names."""

    metric: Metric
    part: str
    whole: str
    times: float = 1.0


class CounterBundle(msgspec.Struct, frozen=True):
    """Events that are of use together alone, since one is divided by another: perf's names, or roles of a family.

    needs     without one of these the rest is not worth a counter; empty: without any
    metrics   what is made of it
    """

    events: tuple[str, ...]
    metrics: tuple[str, ...]
    mode: Mode = "all"
    needs: tuple[str, ...] = ()


def label(event: str, mode: Mode, index: int = 0) -> str:
    """Return the probe's name of an event's count; `index` where a role has more than one event."""
    suffix = {"all": "", "user": ":u", "kernel": ":k"}[mode]
    return f"{event}{f'/{index}' if index else ''}{suffix}"


def _counter(event: str, unit: str, what: str, *, hardware: bool = True, emulated: bool = False) -> Counter:
    return Counter(event, Metric(event.lower().replace("-", "_"), unit, "lower", what, emulated), hardware)


# A new counter is a row here. Any open counter costs a server most of a microsecond at each context switch, in every
# arm alike: so of servers only those that nothing else gives are counted, and on a machine without a PMU none.
_TREE = "of the timed region (whole command: of the tree)"
COUNTERS = (
    Counter("task-clock"),
    _counter("page-faults", "faults", f"page faults {_TREE}", hardware=False, emulated=True),
    Counter("minor-faults"),
    Counter("major-faults"),
    _counter("context-switches", "switches", f"context switches {_TREE}", hardware=False),
    _counter("cpu-migrations", "migrations", "moves from one CPU to another, likewise", hardware=False),
    _counter("cycles", "cycles", "CPU cycles, from the hardware counter"),
    _counter("instructions", "instructions", "instructions retired, from the hardware counter"),
    _counter(
        *("cache-references", "accesses"),
        "accesses of the cache that perf's generic event means, the last level on most processors",
    ),
    _counter("cache-misses", "misses", "those of them that missed it"),
    _counter("branches", "branches", "branches retired"),
    _counter("branch-misses", "branches", "those of them that were foreseen wrongly"),
    _counter(
        *("dTLB-load-misses", "misses"),
        "data TLB load misses as perf's generic event counts them, which differs by vendor: page walks on AMD and"
        " Intel, misses of the first level on Arm",
    ),
)

GENERIC = tuple(counter.event for counter in COUNTERS if counter.hardware)
"""Perf's own names of the processor's events."""


def _of_mode(mode: Literal["user", "kernel"]) -> tuple[Sum, ...]:
    # Half of all page walks can be the kernel's, and no page size of a program moves those.

    def one(name: str, unit: str, what: str, *roles: str, less: tuple[str, ...] = ()) -> Sum:
        return Sum(Metric(f"{name}_{mode}", unit, "lower", f"{what}, in {mode} mode"), mode, roles, less)

    walks = ("load_walk_cycles", "store_walk_cycles", "fetch_walk_cycles")
    return (
        one("cycles", "cycles", "CPU cycles", "cycles"),
        one("instructions", "instructions", "instructions retired", "instructions"),
        one(
            "walk_cycles",
            "cycles",
            "cycles with a page walk under way, the sum of those of loads, stores and fetches",
            *walks,
        ),
        one("walks", "walks", "page walks for data", "load_walks", "store_walks"),
        one("fetch_walks", "walks", "page walks for instruction fetches", "fetch_walks"),
        one(
            *("stlb_hits", "accesses", "accesses of data that the second level of the TLB answered"),
            *("load_stlb_hits", "store_stlb_hits", "l1_misses"),
            less=("load_walks",),
        ),
        one("fetch_stlb_hits", "fetches", "fetches that the second level of the TLB answered", "fetch_stlb_hits"),
        one("fetch_stalls", "cycles", "cycles in which fetching waited for the TLB", "fetch_stall_cycles"),
        one(
            *("tlb_stalls", "cycles", "cycles in which retirement waited for the TLB"),
            *("load_stall_cycles", "load_walk_stall_cycles"),
        ),
        one("nested_walk_cycles", "cycles", "cycles of walks through a hypervisor's page tables", "nested_walk_cycles"),
        one(
            *("walkers_busy", "cycles", "page walks under way, summed over cycles"),
            *("load_walkers_busy", "store_walkers_busy", "fetch_walkers_busy"),
        ),
    )


# What a family of processors counts by events of its own, where the machine's is known and its PMU accepts them.
SUMS = (
    *_of_mode("user"),
    *_of_mode("kernel"),
    Sum(
        Metric("dtlb_walk_steps", "steps", "lower", "page-walk steps for data, where the processor has such an event"),
        "all",
        ("walk_steps",),
    ),
)


def _bundles(mode: Literal["user", "kernel"]) -> tuple[CounterBundle, ...]:
    def one(events: tuple[str, ...], *metrics: str, needs: tuple[str, ...] = ()) -> CounterBundle:
        return CounterBundle(events, tuple(f"{name}_{mode}" for name in metrics), mode, needs or events[1:])

    return (
        one(
            ("cycles", "load_walk_cycles", "store_walk_cycles", "fetch_walk_cycles"),
            *("cycles", "walk_cycles", "walk_share"),
        ),
        one(
            ("cycles", "load_stlb_hits", "store_stlb_hits", "fetch_stlb_hits", "fetch_stall_cycles"),
            *("stlb_hits", "fetch_stlb_hits", "fetch_stalls"),
        ),
        one(("instructions", "l1_misses", "load_walks"), "stlb_hits", "walks", "walks_pki", needs=("l1_misses",)),
        one(
            ("instructions", "load_walks", "store_walks", "fetch_walks"),
            *("instructions", "walks", "walks_pki", "fetch_walks"),
        ),
        one(("cycles", "load_stall_cycles", "load_walk_stall_cycles"), "tlb_stalls"),
    )


# The order in which events get counters (docs/concepts/counters.md): what does not fit beside those above it has its
# turn in other blocks, and what does not fit by itself is left out.
BUNDLES = (
    CounterBundle(("cycles", "instructions"), ("cycles", "instructions", "ipc")),
    CounterBundle(("instructions", "dTLB-load-misses"), ("dtlb_load_misses", "dtlb_mpki"), needs=("dTLB-load-misses",)),
    *_bundles("user"),
    *_bundles("kernel"),
    CounterBundle(("instructions", "walk_steps"), ("dtlb_walk_steps", "walk_steps_pki"), needs=("walk_steps",)),
    CounterBundle(("cycles", "instructions"), ("cycles_user", "instructions_user", "ipc_user"), "user"),
    CounterBundle(("cache-references", "cache-misses"), ("cache_references", "cache_misses")),
    CounterBundle(("branches", "branch-misses"), ("branches", "branch_misses")),
    *(
        CounterBundle(("cycles", "nested_walk_cycles"), (f"nested_walk_cycles_{mode}",), mode, ("nested_walk_cycles",))
        for mode in MODES
    ),
    *(
        CounterBundle(
            events := ("cycles", "load_walkers_busy", "store_walkers_busy", "fetch_walkers_busy"),
            (f"walkers_busy_{mode}",),
            mode,
            events[1:],
        )
        for mode in MODES
    ),
)

RATES = (
    Rate(Metric("ipc", "1", "higher", "instructions a cycle, from the hardware counters"), "instructions", "cycles"),
    Rate(
        Metric("ipc_user", "1", "higher", "instructions a cycle, both in user mode alone"),
        "instructions_user",
        "cycles_user",
    ),
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
    *(
        rate
        for mode in MODES
        for rate in (
            Rate(
                Metric(f"walk_share_{mode}", "1", "lower", f"`walk_cycles_{mode}` of all cycles in {mode} mode"),
                f"walk_cycles_{mode}",
                f"cycles_{mode}",
            ),
            Rate(
                Metric(f"walks_pki_{mode}", "walks/1000", "lower", f"page walks for data, in {mode} mode"),
                f"walks_{mode}",
                f"instructions_{mode}",
                1000.0,
            ),
        )
    ),
    Rate(
        Metric("walk_steps_pki", "steps/1000", "lower", "`dtlb_walk_steps` per 1,000 instructions"),
        "dtlb_walk_steps",
        "instructions",
        1000.0,
    ),
    Rate(
        Metric("page_faults_per_s", "faults/s", "lower", "`page_faults` a second of `wall_s`"), "page_faults", "wall_s"
    ),
)

# Every attempt has these, whatever the workload; a value that the machine cannot give is null, never 0.
COMMON = (
    Metric("wall_s", "s", "lower", "elapsed time of the timed region (whole command: launch to exit)"),
    Metric("cpu_s", "s", "lower", "user and system CPU time of the attempt's processes"),
    Metric(
        "user_s",
        "s",
        "lower",
        "of it the time in programs, page walks and cache misses included (micro-workloads: of the timed region)",
    ),
    Metric(
        "system_s",
        "s",
        "lower",
        "of it the time in the kernel, page faults included (micro-workloads: of the timed region)",
    ),
    Metric("peak_bytes", "bytes", "lower", "peak resident memory of the largest process", emulated=True),
    *(counter.metric for counter in COUNTERS if counter.metric is not None),
    *(one.metric for one in SUMS),
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
