"""Hardware events of TLBs and page walks by processor family, and the sets in which attempts count them.

A role is what is counted, by one name for all families. The TOML files beside this one hold nothing that was not read
in the source that they name.

An event that shares a counter runs for a part of the time, and its value is a guess: so a set is no larger than what
the processor counts at once, and is one group of perf's, which runs whole or not at all. Sets take turns from block to
block; all attempts of a block count the same set, so that pairs stay pairs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal

import msgspec

from hugewise.model.metric import BUNDLES, GENERIC, Mode, label

Vendor = Literal["intel", "amd", "arm"]

ROLES: Mapping[str, str] = {
    "load_walk_cycles": "cycles in which a page walk for a load is under way",
    "store_walk_cycles": "the same for stores",
    "fetch_walk_cycles": "the same for instruction fetches",
    "load_stlb_hits": "loads that miss the first level of the TLB and hit the second",
    "store_stlb_hits": "the same for stores",
    "fetch_stlb_hits": "the same for instruction fetches",
    "fetch_stall_cycles": "cycles in which fetching waits for the instruction TLB, walks included",
    "load_stall_cycles": "cycles in which retirement waits for a load that missed the first level",
    "load_walk_stall_cycles": "cycles in which retirement waits for a page walk of a load",
    "l1_misses": "data accesses that miss the first level",
    "l2_misses": "accesses that miss the second level",
    "load_walks": "page walks for loads (AMD and Arm: for data)",
    "store_walks": "page walks for stores",
    "fetch_walks": "page walks for instruction fetches",
    "walk_steps": "reads of page-table entries by walks for data",
    "nested_walk_cycles": "cycles of walks through a hypervisor's page tables",
    "load_walkers_busy": "page walks for loads (Arm: for data) under way, summed over cycles",
    "store_walkers_busy": "the same for stores",
    "fetch_walkers_busy": "the same for instruction fetches",
}
"""Quantity that each role counts; all families use the same names."""


class PmuEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event by the name that its source gives it, with that source's code, unit mask and counter mask."""

    event: str
    code: int
    umask: int = 0
    cmask: int = 0


class ProcessorFamily(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Processors that count the same by the same events.

    cpus         patterns for `processor`: `VENDOR-FAMILY-MODEL-STEPPING` as perf's mapfile writes it (x86, model in
                 hexadecimal), `arm-IMPLEMENTER-PART` (hexadecimal)
    source       where the events were read; `formulas` where the constants below were; `errata` the vendor's numbers of
                 what it says is wrong with some of the events: their counts are told with them
    restricted   how many counters can hold these events at once, where the processor has more; 0: all of them
    stlb_cycles  of a hit in the second level, as the vendor's own formula has it (C of DTLB_Load); None: none published
    fetch_stlb_cycles   the same for fetches
    cycles_beside_walk  what the vendor's formula adds for each completed walk
    walkers      page walks that can be under way at once: by so much the busy walkers are divided
    nested       whether the walk cycles hold those of a hypervisor's tables: `separate` (no, by an event of their own),
                 `included`, `unknown`
    no_bound     why the cycles lost to the TLB have no upper end on these processors; empty where they have one
    """

    name: str
    vendor: Vendor
    cpus: tuple[str, ...]
    source: str
    formulas: str = ""
    errata: str = ""
    restricted: int = 0
    stlb_cycles: float | None = None
    fetch_stlb_cycles: float | None = None
    cycles_beside_walk: float = 0
    walkers: int | None = None
    nested: Literal["separate", "included", "unknown"]
    no_bound: str = ""
    events: Mapping[str, tuple[PmuEvent, ...]]

    def config(self, role: str) -> tuple[int, ...]:
        """Return the `config` values of raw events for perf_event_open(2), one per event of the role; their counts are
        summed.

        Intel: event, unit mask << 8, counter mask << 24 (Intel SDM volume 3B, IA32_PERFEVTSELx); AMD likewise, bits
        8 to 11 of the event at 32 to 35 (AMD64 APM volume 2, PERF_CTL); Arm: the number itself (PMEVTYPER).
        """
        return tuple(_config(self.vendor, one) for one in self.events.get(role, ()))

    @property
    def fixed(self) -> frozenset[str]:
        return {
            "intel": frozenset({"cycles", "instructions"}),
            "arm": frozenset({"cycles"}),
            "amd": frozenset[str](),
        }[self.vendor]


def _config(vendor: Vendor, event: PmuEvent) -> int:
    if vendor == "arm":
        return event.code
    high = event.code >> 8 if vendor == "amd" else 0
    return event.code & 0xFF | event.umask << 8 | event.cmask << 24 | high << 32


@cache
def every() -> tuple[ProcessorFamily, ...]:
    """Return all families, in the order in which their patterns are tried."""
    names = sorted(file.name for file in resources.files(__package__).iterdir() if file.name.endswith(".toml"))
    return tuple(family for name in names for family in _read(name))


def of(cpu: Mapping[str, Any]) -> ProcessorFamily | None:
    """Return the family of a processor as `machine.fingerprint` describes it, or None where it is none of them."""
    found = processor(cpu)
    matching = (family for family in every() if any(re.fullmatch(pattern, found) for pattern in family.cpus))
    return next(matching, None)


def processor(cpu: Mapping[str, Any]) -> str:
    """`GenuineIntel-6-55-4`, `arm-41-d0c`; with a `?` for what is not known."""
    vendor, family, model, stepping = (cpu.get(key) for key in ("vendor", "family", "model_number", "stepping"))
    if isinstance(vendor, str) and vendor.startswith("0x"):
        part = str(model or "?").removeprefix("0x").lower()
        return f"arm-{vendor.removeprefix('0x').lower()}-{part}"
    number = f"{int(str(model)):X}" if str(model).isdigit() else "?"
    return f"{vendor or '?'}-{family or '?'}-{number}-{stepping or '?'}"


def _read(name: str) -> Iterator[ProcessorFamily]:
    data = msgspec.toml.decode(resources.files(__package__).joinpath(name).read_bytes())
    common = {"vendor": data["vendor"], "no_bound": data.get("no_bound", "")}
    for entry in data["family"]:
        events = {role: tuple(what if isinstance(what, list) else [what]) for role, what in entry["events"].items()}
        yield msgspec.convert({**common, **entry, "events": events}, ProcessorFamily)


ASSUMED_SLOTS = 4
"""General counters of a processor of which nobody could say: what every one since 2008 has for each thread."""


@dataclass(frozen=True)
class CounterPlan:
    """Sets of `LABEL=EVENT:MODE` that the processor counts at once; `left_out` says why others are in none."""

    sets: tuple[tuple[str, ...], ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    def groups(self, block: int) -> tuple[str, ...]:
        """Return the events counted in the attempts of a block: nothing, or one group."""
        return ("+".join(self.sets[block % len(self.sets)]),) if self.sets else ()

    def elsewhere(self, block: int) -> Mapping[str, str]:
        """Return, by label, why an event has no value in this block: it is counted in another block, or never."""
        if not self.sets:
            return self.left_out
        here = {_label(one) for one in self.sets[block % len(self.sets)]}
        turn = f"counted in 1 of {len(self.sets)} blocks: the processor counts only so many events at once"
        others = {_label(one): turn for each in self.sets for one in each if _label(one) not in here}
        return {**self.left_out, **others}


def requests(family: ProcessorFamily | None) -> Mapping[str, str]:
    """Return every event that may be counted, by its label, as the probe is asked for it."""
    found: dict[str, str] = {}
    for bundle in BUNDLES:
        asked = [one for event in bundle.events for one in _ask(family, event, bundle.mode)]
        if not bundle.needs or any(_ask(family, event, bundle.mode) for event in bundle.needs):
            found |= {_label(one): one for one in asked}
    return found


def schedule(
    family: ProcessorFamily | None,
    slots: int,
    refused: Mapping[str, str] | None = None,
    pinned: Collection[str] = (),
) -> CounterPlan:
    """Return the sets for a processor of that family with so many general `slots`.

    refused  labels that the PMU does not accept, or that stay 0 where they must count, with the reason
    pinned   metrics that are judged: the events that they are made of are in every set
    """
    refused = {} if refused is None else refused
    out: dict[str, str] = {**without_steps(family), **refused}
    sets: list[list[str]] = []
    bundles = []
    for bundle in BUNDLES:
        asked = [one for event in bundle.events for one in _ask(family, event, bundle.mode)]
        accepted = [one for one in asked if _label(one) not in refused]
        needed = {_label(one) for event in bundle.needs for one in _ask(family, event, bundle.mode)}
        # A group without its divisor or its parts would be counted for nothing.
        if not accepted or (bundle.needs and not any(_label(one) in needed for one in accepted)):
            continue
        if not _fits(family, accepted, slots):
            why = f"its group of {len(accepted)} does not fit {slots} counters"
            out |= {_label(one): why for one in accepted}
            continue
        bundles.append((bundle, accepted))
    base: list[str] = []
    for bundle, accepted in bundles:
        if set(bundle.metrics) & set(pinned):
            wider = _joined(base, accepted)
            if _fits(family, wider, slots):
                base = wider
    for _, accepted in bundles:
        for each in sets:
            if _fits(family, wider := _joined(each, accepted), slots):
                each[:] = wider
                break
        else:
            fresh = _joined(base, accepted)
            if _fits(family, fresh, slots):
                sets.append(fresh)
            else:
                why = f"what is judged leaves no counter for it: {slots} are there"
                out |= {_label(one): why for one in accepted if one not in base}
    kept = {_label(one) for each in sets for one in each}
    return CounterPlan(tuple(map(tuple, sets)), {name: why for name, why in out.items() if name not in kept})


def without_steps(family: ProcessorFamily | None) -> Mapping[str, str]:
    """Return why there are no page-walk steps where the processor has no event for them; all callers ask for them."""
    if family is not None and "walk_steps" in family.events:
        return {}
    where = "this processor" if family is None else family.name
    return {"walk_steps": f"no event of page-walk steps is known for {where}"}


def _joined(one: list[str], other: Iterable[str]) -> list[str]:
    return [*one, *(each for each in other if each not in one)]


def _fits(family: ProcessorFamily | None, asked: Iterable[str], slots: int) -> bool:
    # A fixed counter holds its event in one mode.
    general, special = 0, 0
    fixed = set() if family is None else set(family.fixed)
    for one in asked:
        name = _label(one).partition(":")[0]
        if name in fixed:
            fixed.discard(name)
            continue
        general += 1
        special += family is not None and (name.partition("/")[0] in family.events or name == "dTLB-load-misses")
    limit = family.restricted if family is not None and family.restricted else slots
    return general <= slots and special <= min(limit, slots)


def _ask(family: ProcessorFamily | None, event: str, mode: Mode) -> list[str]:
    if event in GENERIC:
        return [label(event, mode)]
    configs = () if family is None else family.config(event)
    return [f"{label(event, mode, index)}={label(f'r{config:x}', mode)}" for index, config in enumerate(configs)]


def _label(asked: str) -> str:
    return asked.partition("=")[0]
