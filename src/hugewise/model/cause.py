"""Answer of a cell, and evidence behind its verdicts: faults, page walks, how much any page size could still win.

Made by `analysis.causes` and told by `report.sections.answer`. What is not known is None, with the reason in `unseen`;
nothing of the evidence takes part in a verdict.
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
        """Return the prices by size from rounds of (bytes touched, faults, CPU ns), without rounds of mixed sizes."""
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
    """Counts of the TLB in one mode: medians over an arm's attempts, each of those that counted it.

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
    """Evidence that could not be had, and why."""

    what: str
    why: str


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """Bound on the share of the baseline's CPU time that other pages can win.

    won     what the arm won at least, by the interval of its pairs: the lower end. None where the verdict is not
            better, on something else than a time or a rate of work, or where CPU time and elapsed time differ by more
            than a fifth: shares of the one are none of the other then
    upper   cycles of the baseline with page walks of loads, stores and fetches under way + `stlb_cycles` x hits of the
            second level + time in faults and zeroing. No arm can win more of the TLB and of faults than that; demand
            misses overlap with walks, so that less is left to win. None: none can be had, and `why`
    parts   what `upper` is the sum of, by name: walks and hits in user mode, the same in kernel mode, faults
    stlb_cycles, walkers   the constants of the family (`machine.pmu`); `family` is empty where none is known,
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
    """Evidence behind the verdict on `arm` against `baseline`. Pairs of two are (baseline, arm).

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


GROWTH = 0.1
"""Growth in memory from which a faster setting is not recommended without asking."""
POOL_GROWTH = 0.25
"""The same of one whose memory is in a pool, which is filled for somewhat more than was seen."""

AnswerState = Literal["set", "weigh", "leave", "undecided", "none"]
Trade = Literal["", "failures", "worse beside", "earlier runs", "memory", "better beside"]
"""The gravest thing that an answer leaves to the reader to weigh."""


class CellAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer for a cell, by the verdicts of one run. Ratios are arm/baseline, sizes are bytes.

    state     set: `setting` beat the baseline, and of those that did it has the largest effect
              weigh: so it did, for so much more memory, with so many runs that failed, worse in what was declared
              beside the metric, or not together with the earlier runs; or it makes no difference in the metric, and
              is better in what was declared beside it: that is the reader's to weigh (`trade` says which of these is
              the gravest)
              leave: nothing was better, and nothing is open in the cell's metric: `setting` is the baseline
              undecided: nothing was better so far, and `open` may be
              none: no verdict is possible, or nothing was compared
    text      the same in one sentence, without the cell's name: `what` to do, and what was `found`, or why nothing was
    ratio, low, high, n, confidence   of the comparison that the answer rests on; null, and n 0, without one
    ranked    every arm beside the baseline, the best first: better ones by their effect, then equivalent, undecided,
              worse ones, and those without a verdict
    beside    arms that beat the baseline too. They were not compared with `setting`; `overlapping` are those whose
              interval overlaps with its own, so that which of them is the better is open
    open      arms whose comparison is undecided
    failed    runs of `setting` that failed or could not be started, where they are more than the baseline's; else 0
    memory, memory_before   of `setting` and of the baseline at their most, with the pool that is reserved for it, used
              or not; null where it is not known. pool: its pool alone
    """

    cell: str
    state: AnswerState
    setting: str | None
    text: str
    what: str
    found: str
    metric: str
    baseline: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    confidence: float | None = None
    ranked: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    overlapping: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    trade: Trade = ""
    failed: int = 0
    memory: int | None = None
    memory_before: int | None = None
    pool: int = 0
