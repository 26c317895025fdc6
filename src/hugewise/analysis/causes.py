"""Evidence behind each comparison of a cell, from its stored attempts. Pure.

The difference is split into page faults against page walks by the strongest evidence that there is:

memory touched before   both sides have (next to) no faults in what was timed: what differs is walks and caches
counters                the processor's cycles of page walks, beside the time in the kernel
CPU time                the kernel's part of what was saved (`cpu_split`), with its interval
cost of a fault         page faults x what one costs here: an estimate, with its interval

What none of them shows is not told. Nothing here takes part in a verdict.

How much other pages could still win of a program's time: an upper end, by what its processor counts. Pure.

Of each mode the cycles lost to the TLB are at most

    walk cycles of loads, stores and fetches + c x completed walks + C x hits of the second level + waits of fetching

with C and c as the processor family has them (`machine.pmu`: the constants of Intel's own DTLB_Load, of which
the `min` is left out: it clips at cycles in which nothing but memory was waited for, so that DTLB_Load is an estimate
and no bound). A walk costs at most the cycles in which it is under way: other misses and other work go on meanwhile.
In a guest the walks through the hypervisor's tables are to be in it, or there is no upper end.

To the kernel's part comes the time in page faults and zeroing, by the most that a fault was seen to cost here; where
that is not known, the memory has aged, or the kernel could not be counted, all of the time in the kernel stands for it.
"""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from hugewise.analysis.over_time import EVENTS
from hugewise.machine import pmu
from hugewise.machine.pmu import ProcessorFamily
from hugewise.model.cause import Bound, Cause, CauseTold, FaultPrice, FaultTime, TlbCost, Unseen
from hugewise.model.metric import NO_CGROUP, Metric
from hugewise.model.over_time import ArmStall
from hugewise.model.pages import MemoryAge
from hugewise.model.results import ArmSummary, Comparison
from hugewise.model.trial import Attempt, Block, pairs_of
from hugewise.stats import inversion


@dataclass(frozen=True, kw_only=True)
class ModeCounts:
    """Counts of one mode, each the median of the attempts that counted it; None where none did."""

    cycles: float | None = None
    instructions: float | None = None
    walk_cycles: float | None = None
    walks: float | None = None
    fetch_walks: float | None = None
    stlb_hits: float | None = None
    fetch_stlb_hits: float | None = None
    fetch_stalls: float | None = None
    nested_walk_cycles: float | None = None
    walkers_busy: float | None = None
    walk_share: float | None = None
    walks_pki: float | None = None


def tlb_cost(family: ProcessorFamily | None, counts: ModeCounts) -> TlbCost:
    """Return the TLB's cost in a mode."""
    under_way = _under_way(family, counts)
    walkers = None if family is None else family.walkers
    return TlbCost(
        walk_share=counts.walk_share,
        walks_pki=counts.walks_pki,
        walks=counts.walks,
        stlb_hits=counts.stlb_hits,
        under_way=under_way,
        busy=None if under_way is None or walkers is None else under_way / walkers,
    )


def _under_way(family: ProcessorFamily | None, counts: ModeCounts) -> float | None:
    if family is None or not counts.cycles:
        return None
    if family.walkers == 1:  # the walker is busy while a walk is under way
        return None if counts.walk_cycles is None else counts.walk_cycles / counts.cycles
    parts = [counts.walkers_busy]
    parts += [counts.nested_walk_cycles] if "nested_walk_cycles" in family.events else []
    parts += [family.cycles_beside_walk * counts.walks if counts.walks is not None else None] * bool(
        family.cycles_beside_walk
    )
    known = [part for part in parts if part is not None]
    return sum(known) / counts.cycles if len(known) == len(parts) else None


def lost(family: ProcessorFamily | None, counts: ModeCounts, *, guest: bool) -> Mapping[str, float] | str:
    """Return, by name, the shares of a mode's cycles that the TLB can have cost, or why they are not known."""
    if family is None:
        return "the events of its processor are not in the table of families"
    if family.no_bound:
        return family.no_bound
    if family.stlb_cycles is None:
        return f"no cost of a hit in the second level of the TLB is published for {family.name}"
    if guest and family.nested == "unknown":
        return (
            f"in a guest on {family.name} walks go through the hypervisor's page tables too: it has no event of their "
            "cycles, and whether its walk cycles hold them is not documented"
        )
    addends = (counts.walks, counts.fetch_walks) if family.cycles_beside_walk else ()
    nested = (counts.nested_walk_cycles,) if guest and family.nested == "separate" else ()
    waits = (
        *((counts.fetch_stalls,) if "fetch_stall_cycles" in family.events else ()),
        *((counts.fetch_stlb_hits,) if "fetch_stlb_hits" in family.events else ()),
    )
    needed = (counts.cycles, counts.walk_cycles, counts.stlb_hits, *waits, *addends, *nested)
    if any(value is None for value in needed) or not counts.cycles:
        lacking = "nested walks" if guest and nested == (None,) else "cycles, walks, hits and waits of fetching"
        return f"not all of its {lacking} were counted"
    fetching = (counts.fetch_stalls or 0.0) + (family.fetch_stlb_cycles or 0.0) * (counts.fetch_stlb_hits or 0.0)
    walks = (counts.walk_cycles or 0.0) + family.cycles_beside_walk * sum(value or 0.0 for value in addends)
    hits = family.stlb_cycles * (counts.stlb_hits or 0.0) + fetching
    shares = {"walks": walks / counts.cycles, "hits": hits / counts.cycles}
    if nested:
        shares["nested walks"] = sum(value or 0.0 for value in nested) / counts.cycles
    return shares


def bound(
    family: ProcessorFamily | None,
    user: ModeCounts,
    kernel: ModeCounts,
    *,
    times: tuple[float | None, float | None],
    faults: FaultTime,
    guest: bool,
    won: float | None,
    uncounted: str = "",
) -> Bound:
    """Return the bound on an arm's time, by its own counts.

    times      seconds in user mode and in the kernel, of an attempt
    faults     of it, with their time
    won        what another arm won of it, by the pairs
    uncounted  why the processor counts nothing; empty where it does
    """
    constants = Bound(
        won=won,
        family="" if family is None else family.name,
        errata="" if family is None else family.errata,
        stlb_cycles=None if family is None else family.stlb_cycles,
        walkers=None if family is None else family.walkers,
    )
    whole = _shares(times, user, kernel)
    at_most = {} if whole is None else {"kernel": whole[1]}
    of_user = lost(family, user, guest=guest)
    if uncounted or isinstance(of_user, str):
        return _without(constants, uncounted or str(of_user), at_most)
    if whole is None:
        return _without(constants, "how its time divides between the program and the kernel was not counted", {})
    in_user, in_kernel = whole
    parts = {f"{name} in user mode": in_user * share for name, share in _capped(of_user).items()}
    of_kernel = lost(family, kernel, guest=guest)
    total = None if times[0] is None or times[1] is None else times[0] + times[1]
    if isinstance(of_kernel, str) or faults.high is None or not total:
        parts["all of the kernel's time"] = in_kernel
    else:
        walks = {name: in_kernel * share for name, share in _capped(of_kernel).items()}
        in_faults = min(in_kernel, faults.high / total)
        room = in_kernel / (sum(walks.values()) + in_faults) if sum(walks.values()) + in_faults > in_kernel else 1.0
        parts |= {f"{name} in the kernel": room * share for name, share in walks.items()}
        parts["faults by the most that one cost here"] = room * in_faults
    nested = sum(share for name, share in parts.items() if name.startswith("nested"))
    return msgspec.structs.replace(
        constants,
        upper=min(1.0, sum(parts.values())),
        parts=parts,
        nested=nested if guest and family is not None and family.nested == "separate" else None,
    )


def _without(constants: Bound, why: str, parts: Mapping[str, float]) -> Bound:
    return msgspec.structs.replace(constants, why=why, parts=parts)


def _capped(shares: Mapping[str, float]) -> Mapping[str, float]:
    total = sum(shares.values())
    return shares if total <= 1 else {name: share / total for name, share in shares.items()}


def _shares(
    times: tuple[float | None, float | None], user: ModeCounts, kernel: ModeCounts
) -> tuple[float, float] | None:
    for one, other in (times, (user.cycles, kernel.cycles)):
        if one is not None and other is not None and one + other > 0:
            return one / (one + other), other / (one + other)
    return None


_NONE = 0.01  # of the CPU time: faults that took less are no part of what was timed
_LITTLE = 0.2  # of what was saved: what explains less of it does not explain it
_CLEAR = 0.5
_TIMES = ("s", "ms", "us", "ns")
_QUANTILE = re.compile(r"(^|_)(p\d|latency)")


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a run about its processor."""

    family: ProcessorFamily | None = None
    guest: bool = False
    uncounted: str = ""
    costs: tuple[FaultPrice, ...] = ()
    base: int = 4096

    @classmethod
    def of(cls, host: Mapping[str, Any], *, guests: bool = False) -> Processor:
        """`host` as the run has it; `guests`: its arms ran in guests, of which it says nothing."""
        if guests:
            return cls(uncounted="the processor of its guests was not asked what it counts", guest=True)
        counters, pages = _part(host, "pmu"), _part(host, "pages")
        why = (
            "" if counters.get("slots") is not None else str(counters.get("why") or "its run did not ask the processor")
        )
        try:
            costs = msgspec.convert(host.get("fault_costs") or [], tuple[FaultPrice, ...])
        except msgspec.ValidationError:  # of another version
            costs = ()
        base = pages.get("base")
        return cls(
            family=pmu.of(_part(host, "cpu")),
            guest=bool(_part(host, "virtualisation").get("hypervisor")),
            uncounted=why,
            costs=costs,
            base=base if isinstance(base, int) else 4096,
        )


def _part(host: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = host.get(name)
    return found if isinstance(found, Mapping) else {}


def causes(
    metric: Metric,
    comparisons: Sequence[Comparison],
    blocks: Sequence[Block],
    arms: Mapping[str, ArmSummary],
    machine: Processor,
    *,
    memory_age: MemoryAge = "fresh",
    stalls: Sequence[ArmStall] = (),
) -> tuple[Cause, ...]:
    """Return a cause for each of a cell's comparisons, from the cell's own `blocks`."""
    aged = "" if memory_age == "fresh" else memory_age
    if aged:  # a fault waits for compaction, reclaim or swap: what one cost in memory that was fresh says nothing
        machine = msgspec.structs.replace(machine, costs=())
    found = (_cause(metric, one, _pairs(blocks, one), arms, machine) for one in comparisons)
    return tuple(msgspec.structs.replace(one, memory_age=aged, **_slowest(stalls, one.arm)) for one in found)


def _slowest(stalls: Sequence[ArmStall], arm: str) -> dict[str, Any]:
    lined_up = [one for one in stalls if one.arm == arm and one.stall.events]
    beside = Counter(EVENTS[name][1] for one in lined_up for name in one.unusual if name in EVENTS)
    return {"slowest": len(lined_up), "slow_with": dict(beside)}


def _cause(
    metric: Metric,
    one: Comparison,
    pairs: Sequence[tuple[Attempt, Attempt]],
    arms: Mapping[str, ArmSummary],
    machine: Processor,
) -> Cause:
    sides = [pair[1] for pair in pairs], [pair[0] for pair in pairs]  # baseline, arm
    faults = tuple(_faults(side, machine.costs) for side in sides)
    cpu = tuple(_median(side, "user_s", "system_s") for side in sides)
    counted = [{mode: _counts(side, mode) for mode in ("user", "kernel")} for side in sides]
    saved = [
        (system, system + user)
        for arm, base in pairs
        if (system := _less(arm, base, "system_s")) is not None and (user := _less(arm, base, "user_s")) is not None
    ]
    found = Cause(
        arm=one.arm,
        baseline=one.baseline,
        told="not told apart",
        faults=(faults[0], faults[1]),
        cpu=(cpu[0], cpu[1]),
        user=(tlb_cost(machine.family, counted[0]["user"]), tlb_cost(machine.family, counted[1]["user"])),
        kernel=(tlb_cost(machine.family, counted[0]["kernel"]), tlb_cost(machine.family, counted[1]["kernel"])),
        delivered=(_large(arms.get(one.baseline), machine.base), _large(arms.get(one.arm), machine.base)),
        sizes=_sizes(arms.get(one.arm)),
        bound=bound(
            machine.family,
            counted[0]["user"],
            counted[0]["kernel"],
            times=(_median(sides[0], "user_s"), _median(sides[0], "system_s")),
            faults=faults[0],
            guest=machine.guest,
            won=_won(metric, one) if _runs_all_the_time(sides[0]) else None,
            uncounted=machine.uncounted,
        ),
        stalls=(_median(sides[0], "compact_stalls"), _median(sides[1], "compact_stalls")),
        fallbacks=(_median(sides[0], "thp_fallbacks"), _median(sides[1], "thp_fallbacks")),
        unseen=tuple(_unseen(machine, sides[0], counted[0]["user"])),
    )
    whole = statistics.median(all_ for _, all_ in saved) if saved else 0.0
    in_kernel = statistics.median(system for system, _ in saved) / whole if whole else 0.0
    by_time = cpu_split(saved, one.planned)
    if not saved and (why := _uncounted_time(sides[0])):
        would = by_time.would if why == NO_CGROUP else ""
        by_time = msgspec.structs.replace(by_time, why=f"{by_time.why} ({why})", would=would)
    return split(found, one.verdict, by_time, in_kernel=in_kernel, counted=counted)


def split(
    found: Cause,
    verdict: str,
    by_time: CpuSplit,
    *,
    in_kernel: float = 0.0,
    counted: Sequence[Mapping[str, ModeCounts]] = (),
) -> Cause:
    """Return `found` with its split by the strongest evidence; `in_kernel`: the kernel's part of a typical pair's
    saving.
    """
    known = msgspec.structs.replace(found, saved=by_time.saved)
    shares = [_of_cpu(faults, cpu) for faults, cpu in zip(found.faults, found.cpu, strict=True)]
    untouched = all(share is not None and share < _NONE for share in shares)
    if verdict in ("equivalent", "none"):
        return _told(known, "neither" if verdict == "equivalent" else "not told apart", why="there is no difference")
    if not by_time.told and by_time.share is None and verdict not in ("better", "worse"):
        return _told(known, "not told apart", why=by_time.why, would=by_time.would)
    if untouched and in_kernel < _CLEAR:
        return msgspec.structs.replace(known, told="walks", by="memory touched before", share=0.0)
    if (walks := _walks_saved(found, counted)) is not None and by_time.saved:
        kernels = _kernel_saved(found, counted)
        if kernels is not None and abs(walks) + abs(kernels) > 0:
            explained = walks + kernels
            if abs(explained) < _LITTLE * abs(by_time.saved):
                return _told(known, "neither", why="page walks and the kernel's time moved by less than a fifth of it")
            share = kernels / explained if explained else 0.5
            told: CauseTold = "faults" if share > 1 - _LITTLE else "walks" if share < _LITTLE else "both"
            return msgspec.structs.replace(
                known, told=told, by="counters", share=share, low=by_time.low, high=by_time.high
            )
    if by_time.told:
        return msgspec.structs.replace(
            known, told=by_time.told, by="CPU time", share=by_time.share, low=by_time.low, high=by_time.high
        )
    return _by_cost(known, by_time, verdict)


def _by_cost(known: Cause, by_time: CpuSplit, verdict: str) -> Cause:
    before, after = known.faults
    ends = (before.low, before.high, after.low, after.high)
    shown = by_time.share is not None or (verdict == "better") == ((by_time.saved or 0.0) > 0)
    if not by_time.saved or any(end is None for end in ends) or not shown:
        return _told(known, "not told apart", why=by_time.why, would=by_time.would)
    low = ((before.low or 0.0) - (after.high or 0.0)) / by_time.saved
    high = ((before.high or 0.0) - (after.low or 0.0)) / by_time.saved
    low, high = sorted((low, high))
    if low > _CLEAR:
        return msgspec.structs.replace(
            known, told="faults", by="cost of a fault", share=(low + high) / 2, low=low, high=high
        )
    why = (
        by_time.why if high > _CLEAR else f"by their cost, page faults are at most {max(high, 0.0):.0%} of what differs"
    )
    return _told(known, "not told apart", why=why, would=by_time.would)


def _told(known: Cause, told: CauseTold, *, why: str, would: str = "") -> Cause:
    return msgspec.structs.replace(known, told=told, why=why, would=would)


def fault_time(faults: float | None, coverage: Mapping[str, float], costs: Sequence[FaultPrice]) -> FaultTime:
    """Return the time of faults: by size for those that brought `coverage`, at a base page's cost (a minimum) for
    others. A size between two timed ones is interpolated by bytes.
    """
    if faults is None or not costs:
        return FaultTime(faults=faults)
    left, ends = faults, [0.0, 0.0, 0.0]
    for key, size in coverage.items():
        kind, _, page = key.partition(":")
        if kind == "hugetlb" or not page.isdigit() or int(page) <= costs[0].size:
            continue
        many = min(left, size / int(page))
        left -= many
        ends = [end + many * cost for end, cost in zip(ends, _cost(int(page), costs), strict=True)]
    ends = [end + left * cost for end, cost in zip(ends, _cost(costs[0].size, costs), strict=True)]
    low, typical, high = (end / 1e9 for end in ends)
    return FaultTime(faults=faults, low=low, typical=typical, high=high)


def _cost(size: int, costs: Sequence[FaultPrice]) -> tuple[float, float, float]:
    below = max((cost for cost in costs if cost.size <= size), key=lambda cost: cost.size, default=costs[0])
    above = min((cost for cost in costs if cost.size >= size), key=lambda cost: cost.size, default=costs[-1])
    if below.size == above.size:  # beyond the largest one: by its bytes
        scale = max(1.0, size / below.size)
        return below.low * scale, below.typical * scale, below.high * scale
    part = (size - below.size) / (above.size - below.size)
    ends = zip((below.low, below.typical, below.high), (above.low, above.typical, above.high), strict=True)
    low, typical, high = (one + part * (other - one) for one, other in ends)
    return low, typical, high


def _faults(side: Sequence[Attempt], costs: Sequence[FaultPrice]) -> FaultTime:
    coverage: dict[str, list[float]] = {}
    for one in side:
        for key, size in one.delivery.coverage.items():
            coverage.setdefault(key, []).append(size)
    means = {key: sum(sizes) / len(side) for key, sizes in coverage.items()}
    return fault_time(_median(side, "page_faults"), means, costs)


def _of_cpu(faults: FaultTime, cpu: float | None) -> float | None:
    if faults.faults == 0:
        return 0.0
    return None if faults.high is None or not cpu else faults.high / cpu


def _walks_saved(found: Cause, counted: Sequence[Mapping[str, ModeCounts]]) -> float | None:
    if len(counted) != len(found.cpu):
        return None
    seconds = []
    for side, cpu in zip(counted, found.cpu, strict=True):
        user, kernel = side["user"], side["kernel"]
        whole = None if user.cycles is None or kernel.cycles is None else user.cycles + kernel.cycles
        if cpu is None or not whole or user.walk_cycles is None:
            return None
        seconds.append(cpu * user.walk_cycles / whole)
    return seconds[0] - seconds[1]


def _kernel_saved(found: Cause, counted: Sequence[Mapping[str, ModeCounts]]) -> float | None:
    seconds = []
    for side, cpu in zip(counted, found.cpu, strict=True):
        user, kernel = side["user"].cycles, side["kernel"].cycles
        if cpu is None or user is None or kernel is None or user + kernel == 0:
            return None
        seconds.append(cpu * kernel / (user + kernel))
    return seconds[0] - seconds[1]


def _unseen(machine: Processor, side: Sequence[Attempt], user: ModeCounts) -> Iterator[Unseen]:
    if machine.uncounted:
        yield Unseen("page walks and their cycles", machine.uncounted)
    elif user.walk_cycles is None:
        reason = next(
            (one.absent[name] for one in side for name in ("walk_cycles_user", "cycles") if name in one.absent), ""
        )
        why = machine.family.no_bound if machine.family is not None and machine.family.no_bound else reason
        yield Unseen("cycles of page walks", why or "this processor's family has no event of them")
    if not machine.costs:
        yield Unseen("the time of a page fault", "its cost was not measured on this machine in memory like that")
    if side and all(one.metrics.get("system_s") is None for one in side):
        yield Unseen("the kernel's part of the CPU time", _uncounted_time(side) or "it was not counted")


def _uncounted_time(side: Sequence[Attempt]) -> str:
    return next((one.absent["system_s"] for one in side if "system_s" in one.absent), "")


def _pairs(blocks: Sequence[Block], one: Comparison) -> list[tuple[Attempt, Attempt]]:
    complete = (block for block in blocks if block.state == "complete")
    return [pair for block in complete for pair in pairs_of(block.attempts, one.arm, one.baseline)]


def _counts(side: Sequence[Attempt], mode: str) -> ModeCounts:
    return ModeCounts(**{one.name: _median(side, f"{one.name}_{mode}") for one in dataclasses.fields(ModeCounts)})


def _median(side: Sequence[Attempt], *names: str) -> float | None:
    if len(names) == 1:
        (name,) = names
        found = [value for one in side if (value := one.metrics.get(name)) is not None]
        return statistics.median(found) if found else None
    sums = []
    for one in side:
        values = [value for name in names if (value := one.metrics.get(name)) is not None]
        if len(values) == len(names):
            sums.append(sum(values))
    return statistics.median(sums) if sums else None


def _less(arm: Attempt, base: Attempt, name: str) -> float | None:
    mine, theirs = arm.metrics.get(name), base.metrics.get(name)
    return None if mine is None or theirs is None else theirs - mine


def _won(metric: Metric, one: Comparison) -> float | None:
    if one.verdict != "better" or _QUANTILE.search(metric.name):
        return None
    if metric.better == "lower" and metric.unit in _TIMES and one.high is not None:
        return 1 - one.high
    if metric.better == "higher" and metric.unit.endswith("/s") and one.low:
        return 1 - 1 / one.low
    return None


def _runs_all_the_time(side: Sequence[Attempt]) -> bool:
    cpu, wall = _median(side, "user_s", "system_s"), _median(side, "wall_s")
    return cpu is not None and wall is not None and wall > 0 and abs(cpu / wall - 1) <= _LITTLE


def _large(arm: ArmSummary | None, base: int) -> float | None:
    sizes = _sizes(arm)
    return sum(share for size, share in sizes.items() if int(size) > base) if sizes else None


def _sizes(arm: ArmSummary | None) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for key, share in ({} if arm is None else arm.coverage).items():
        page = key.partition(":")[2]
        if page.isdigit():
            found[page] = found.get(page, 0.0) + share
    return found


_SPLIT_ALPHA = 0.05


class CpuSplit(msgspec.Struct, frozen=True, kw_only=True):
    """Attribution of the difference in CPU time: the kernel's, the program's, both; empty where the pairs do not show
    it.

    saved             seconds a run (negative: lost), None where nothing was counted
    share, low, high  of it the kernel's, beyond 0 and 1 where the two parts differ in sign; an end that the pairs do
                      not bound is None
    why, would        why it is not told, and what would tell it
    """

    told: Literal["faults", "walks", "both", ""] = ""
    saved: float | None = None
    share: float | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""
    would: str = ""


def cpu_split(saved: Sequence[tuple[float, float]], planned: int) -> CpuSplit:
    """Return the kernel's share of the CPU time saved, from pairs (in the kernel, in all) in seconds, of `planned`
    declared: by inversion of the exact test on system - share * all (Fieller).
    """
    if not saved:
        why = "the kernel's part of its CPU time was not counted"
        return CpuSplit(why=why, would="a control group of its own (as root), which counts it")
    budget = max(planned, len(saved))
    whole = [all_ for _, all_ in saved]
    typical, ends = (
        inversion.point(whole),
        inversion.interval(whole, _SPLIT_ALPHA, budget, resolution=_resolution(whole)),
    )
    if not (ends[0] > 0 or ends[1] < 0):
        return CpuSplit(saved=typical, why="its CPU time is not seen to differ", would=f"more than {len(saved)} pairs")
    if not ends[0] <= typical <= ends[1]:
        why = "what it saves drifts: the runs share no one difference"
        return CpuSplit(saved=typical, why=why, would="runs without other work beside them")
    weights = [all_ / typical for all_ in whole]
    of_kernel = [value for value, _ in saved]
    low, high = (
        end / typical
        for end in inversion.interval(of_kernel, _SPLIT_ALPHA, budget, _resolution(whole), weights=weights)
    )
    low, high = sorted((low, high))
    share = inversion.point(of_kernel, weights) / typical
    split = CpuSplit(saved=typical, share=share, low=_bounded(low), high=_bounded(high))
    if not (math.isfinite(low) and math.isfinite(high)):
        why = f"{len(saved)} pairs do not bound the kernel's share of it"
        return msgspec.structs.replace(split, why=why, would=f"more than {len(saved)} pairs")
    if low > _CLEAR:
        return msgspec.structs.replace(split, told="faults")
    if high < _CLEAR:
        return msgspec.structs.replace(split, told="walks")
    if high - low <= _CLEAR:
        return msgspec.structs.replace(split, told="both")
    wanted = math.ceil(len(saved) * ((high - low) / _CLEAR) ** 2)  # an interval shrinks as their root
    why = f"the kernel's share of it is {100 * max(low, 0.0):.0f}% to {100 * min(high, 1.0):.0f}%"
    return msgspec.structs.replace(split, why=why, would=f"some {wanted} pairs")


def _resolution(values: Sequence[float]) -> float:
    return max(1e-9, 1e-3 * max(map(abs, values)))


def _bounded(value: float) -> float | None:
    return value if math.isfinite(value) else None
