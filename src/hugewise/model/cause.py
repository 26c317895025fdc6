"""What stands behind a verdict: page faults, page walks, pages, and how much any page size could still win.

Plain values, made by `analysis.causes` and told by `report.answer_text`. What is not known is None, with the reason in
`unseen`; nothing here takes part in a verdict.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

CauseTold = Literal["faults", "walks", "both", "neither", "not told apart"]
SplitBy = Literal["counters", "CPU time", "cost of a fault", "memory touched before", ""]

_ABOUT = 0.1  # how far the bytes of a fault may be from a page size: some faults are of stacks and tables


class FaultPrice(msgspec.Struct, frozen=True):
    """CPU time of a page fault of anonymous memory, its zeroing included, by the size that it was served with.

    size    bytes
    low, typical, high   nanoseconds: least, median and most of the rounds
    """

    size: int
    low: float
    typical: float
    high: float

    @classmethod
    def of(cls, rounds: Iterable[tuple[int, int, int]]) -> list[FaultPrice]:
        """Of rounds of (bytes touched, faults, CPU ns), by size; those of mixed sizes are left out."""
        found: dict[int, list[float]] = {}
        for size, faults, spent in rounds:
            if faults <= 0:
                continue
            each = size / faults
            power = 1 << max(0, round(each).bit_length() - 1)
            nearest = min((power, power * 2), key=lambda one: abs(one - each))
            if abs(each - nearest) <= _ABOUT * nearest:
                found.setdefault(nearest, []).append(spent / faults)
        return [cls(size, min(times), statistics.median(times), max(times)) for size, times in sorted(found.items())]


class FaultTime(msgspec.Struct, frozen=True, kw_only=True):
    """Page faults of one attempt, and the CPU time that they took by `FaultPrice`: an estimate, in seconds.

    low, typical, high   None where the cost of a fault is not known here
    """

    faults: float | None = None
    low: float | None = None
    typical: float | None = None
    high: float | None = None


class TlbCost(msgspec.Struct, frozen=True, kw_only=True):
    """What the processor counted of the TLB in one mode: medians over an arm's attempts, each of those that counted it.

    walk_share   cycles with a walk under way, of all cycles of the mode: at most, as those of loads, stores and fetches
                 are summed
    walks_pki    page walks per 1,000 instructions
    stlb_hits    hits of the second level
    under_way    page walks under way in a cycle, the mean
    busy         share of the page walkers that was busy, by the family's number of them
    """

    walk_share: float | None = None
    walks_pki: float | None = None
    walks: float | None = None
    stlb_hits: float | None = None
    under_way: float | None = None
    busy: float | None = None


class Unseen(msgspec.Struct, frozen=True):
    """What could not be seen, and why."""

    what: str
    why: str


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the baseline's time other pages can win, as shares of its CPU time.

    won     what the arm won at least, by the interval of its pairs: the lower end. None where the verdict is not
            better, on something else than a time or a rate of work, or where CPU time and elapsed time differ by more
            than a fifth: shares of the one are none of the other then
    upper   cycles of the baseline with page walks of loads, stores and fetches under way + `stlb_cycles` x hits of the
            second level + time in faults and zeroing. No arm can win more of the TLB and of faults than that; demand
            misses overlap with walks, so that less is left to win. None: none can be had, and `why`
    parts   what `upper` is the sum of, by name: walks and hits in user mode, the same in kernel mode, faults
    stlb_cycles, walkers   the constants of the family (`machine.pmu.families`); `family` is empty where none is known,
            `errata` are those of its events
    nested  what of it are walks through a hypervisor's tables, where an event of its own counts them
    """

    won: float | None = None
    upper: float | None = None
    why: str = ""
    parts: Mapping[str, float] = {}
    family: str = ""
    errata: str = ""
    stlb_cycles: float | None = None
    walkers: int | None = None
    nested: float | None = None


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """What stands behind the verdict on `arm` against `baseline`. Pairs of two are (baseline, arm).

    told        what the difference is of, as far as that is shown; `by` what shows it; `why` it is not told
    would       what would tell it
    saved       CPU time that the arm saved, seconds a run (median of the pairs; negative where it took more); None: not
                counted
    share, low, high   of the saved CPU time that of the faults or of the kernel, with its interval at 95%
    faults      of a run, with their time
    user, kernel   what the processor counted, by mode
    delivered   share of memory in pages above the base size, of each side; `sizes` those of the arm, by size in bytes
    stalls      waits for compaction of the whole machine meanwhile; `fallbacks` faults that fell back to small pages
    slowest     how many of the arm's slowest operations were lined up with what the machine did in the same seconds,
                and `slow_with` by event how many fell into seconds with unusually much of it
    memory_age  what the memory of the cell had been through before each attempt; empty: it was left as it was found
    unseen      what cannot be seen here, and why
    """

    arm: str
    baseline: str
    told: CauseTold
    by: SplitBy = ""
    why: str = ""
    would: str = ""
    saved: float | None = None
    share: float | None = None
    low: float | None = None
    high: float | None = None
    faults: tuple[FaultTime, ...] = (FaultTime(), FaultTime())
    cpu: tuple[float | None, ...] = (None, None)
    user: tuple[TlbCost, ...] = (TlbCost(), TlbCost())
    kernel: tuple[TlbCost, ...] = (TlbCost(), TlbCost())
    delivered: tuple[float | None, ...] = (None, None)
    sizes: Mapping[str, float] = {}
    bound: Bound = Bound()
    stalls: tuple[float | None, ...] = (None, None)
    fallbacks: tuple[float | None, ...] = (None, None)
    slowest: int = 0
    slow_with: Mapping[str, int] = {}
    memory_age: str = ""
    unseen: tuple[Unseen, ...] = ()
