"""What the families of processors count of their TLBs and page walks: events as data, each with its source.

    family = of(fingerprint["cpu"])        # None where the processor is none of them
    family.config("load_walk_cycles")      # (0x1001008,): what perf_event_open(2) takes as the config of a raw event

A role is what is counted, by one name for all families; a family that has no event for it leaves it out. The TOML files
beside this one hold nothing that was not read in the source that they name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Literal

import msgspec

__all__ = ["ROLES", "Described", "PmuEvent", "ProcessorFamily", "Vendor", "every", "of", "processor", "vendors"]

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
"""What is counted, by the name that all families share."""


class PmuEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event by the name that its source gives it, with that source's code, unit mask and counter mask."""

    event: str
    code: int
    umask: int = 0
    cmask: int = 0


class Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a vendor's processors know that is not counted here, and where that is described."""

    event: str
    what: str
    source: str


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
        """What perf_event_open(2) takes as `config` of a raw event, for each event of a role: their counts are summed.

        Intel: event, unit mask << 8, counter mask << 24 (Intel SDM volume 3B, IA32_PERFEVTSELx); AMD likewise, bits
        8 to 11 of the event at 32 to 35 (AMD64 APM volume 2, PERF_CTL); Arm: the number itself (PMEVTYPER).
        """
        return tuple(_config(self.vendor, one) for one in self.events.get(role, ()))

    @property
    def fixed(self) -> frozenset[str]:
        """Perf's events that have a counter of their own beside the general ones."""
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
    """All families, in the order in which their patterns are tried."""
    return tuple(family for vendor in vendors() for family in _read(vendor)[0])


@cache
def vendors() -> Mapping[str, tuple[Described, ...]]:
    """The vendors, by the names of their files, with what is described there and not counted."""
    files = resources.files(__package__).iterdir()
    names = sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))
    return {name: _read(name)[1] for name in names}


def of(cpu: Mapping[str, Any]) -> ProcessorFamily | None:
    """The family of a processor as `machine.fingerprint` describes it, or None where it is none of them."""
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


@cache
def _read(vendor: str) -> tuple[tuple[ProcessorFamily, ...], tuple[Described, ...]]:
    data = msgspec.toml.decode(resources.files(__package__).joinpath(f"{vendor}.toml").read_bytes())
    found = []
    for entry in data["family"]:
        events = {role: tuple(what if isinstance(what, list) else [what]) for role, what in entry["events"].items()}
        common = {"vendor": data["vendor"], "no_bound": data.get("no_bound", "")}
        found.append(msgspec.convert({**common, **entry, "events": events}, ProcessorFamily))
    return tuple(found), msgspec.convert(data.get("described", []), tuple[Described, ...])
