"""How much other pages could still win of a program's time: an upper end, by what its processor counts. Pure.

Of each mode the cycles lost to the TLB are at most

    walk cycles of loads, stores and fetches + c x completed walks + C x hits of the second level + waits of fetching

with C and c as the processor family has them (`machine.pmu.families`: the constants of Intel's own DTLB_Load, of which
the `min` is left out: it clips at cycles in which nothing but memory was waited for, so that DTLB_Load is an estimate
and no bound). A walk costs at most the cycles in which it is under way: other misses and other work go on meanwhile.
In a guest the walks through the hypervisor's tables are to be in it, or there is no upper end.

To the kernel's part comes the time in page faults and zeroing, by the most that a fault was seen to cost here; where
that is not known, the memory has aged, or the kernel could not be counted, all of the time in the kernel stands for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from hugewise.machine.pmu.families import ProcessorFamily
from hugewise.model.cause import Bound, FaultTime, TlbCost

__all__ = ["ModeCounts", "bound", "lost", "tlb_cost"]


@dataclass(frozen=True, kw_only=True)
class ModeCounts:
    """What was counted in one mode, each the median of the attempts that counted it; None where none did."""

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
    """What is told of a mode."""
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
    """Page walks under way in a cycle, the mean; None where a part of it was not counted."""
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
    """By name the shares of a mode's cycles that the TLB can have cost, or why that is not known."""
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
    """The bound on an arm's time, by its own counts.

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
    """The same, in proportion, where they are more than all."""
    total = sum(shares.values())
    return shares if total <= 1 else {name: share / total for name, share in shares.items()}


def _shares(
    times: tuple[float | None, float | None], user: ModeCounts, kernel: ModeCounts
) -> tuple[float, float] | None:
    """Of the CPU time the program's share and the kernel's: by the clock, else by the cycles of each mode."""
    for one, other in (times, (user.cycles, kernel.cycles)):
        if one is not None and other is not None and one + other > 0:
            return one / (one + other), other / (one + other)
    return None
