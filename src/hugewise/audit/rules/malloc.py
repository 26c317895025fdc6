"""Allocators and the loader: tunables of glibc, preloads, other allocators, programs that turn huge pages off."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hugewise.audit.facts import Carrier, HostFacts, tunables
from hugewise.audit.rules import Hit, rule
from hugewise.quantity import format_size

_HUGETLB = "glibc.malloc.hugetlb"
_OTHERS = ("jemalloc", "tcmalloc", "mimalloc")
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,12}|[0-9]{1,15}")
_FIRST_TUNABLE, _LAST_MORECORE, _ADVISING = (2, 35), (2, 34), (2, 43)


def _asked(facts: HostFacts) -> Iterator[tuple[Carrier, str]]:
    for carrier in facts.carriers():
        value = tunables(carrier.environment).get(_HUGETLB, "0")
        if value != "0":
            yield carrier, value


def _heeded(facts: HostFacts) -> Iterator[tuple[Carrier, str]]:
    """Yield the carriers whose malloc reads the tunable, as far as that is known."""
    for each, value in _asked(facts):
        if not each.secure and not each.static and not _other(each):
            yield each, value


def _other(carrier: Carrier) -> str:
    """Return the allocator or C library that is not glibc's; empty where none is known."""
    libraries = carrier.libraries or frozenset()
    if "musl" in libraries and "glibc" not in libraries:
        return "musl"
    return next((name for name in _OTHERS if name in libraries), "")


@rule("tunable-ignored-secure")
def _(facts: HostFacts) -> Iterator[Hit]:
    for each, value in _asked(facts):
        if each.secure:
            yield Hit(f"{each.what}: {_HUGETLB}={value}", each.unit)


@rule("tunable-ignored-static")
def _(facts: HostFacts) -> Iterator[Hit]:
    for each, value in _asked(facts):
        if each.static and not each.secure:
            yield Hit(f"{each.what}: {_HUGETLB}={value}", each.unit)


@rule("tunable-other-allocator")
def _(facts: HostFacts) -> Iterator[Hit]:
    for each, value in _asked(facts):
        if other := _other(each):
            yield Hit(f"{each.what}: {_HUGETLB}={value}, and it has {other}", each.unit)


@rule("tunable-unknown-to-glibc")
def _(facts: HostFacts) -> Iterator[Hit]:
    if facts.glibc is not None and facts.glibc < _FIRST_TUNABLE:
        for each, value in _heeded(facts):
            yield Hit(f"{each.what}: {_HUGETLB}={value} with glibc {facts.glibc[0]}.{facts.glibc[1]}", each.unit)


@rule("tunable-without-effect")
def _(facts: HostFacts) -> Iterator[Hit]:
    for each, value in _heeded(facts):
        if value == "1" and facts.top in ("always", "never") and not _excepted(facts, each.unit):
            yield Hit(f"{each.what}: {_HUGETLB}=1 while enabled = {facts.top}", each.unit)


def _excepted(facts: HostFacts, name: str | None) -> bool:
    """Return whether the unit lets only advised memory have huge pages."""
    unit = facts.unit(name)
    return unit is not None and unit.memory_thp is not None and unit.memory_thp.value.lower() == "madvise"


@rule("tunable-under-memorythp-madvise")
def _(facts: HostFacts) -> Iterator[Hit]:
    for each, value in _heeded(facts):
        if value == "1" and facts.top == "always" and _excepted(facts, each.unit):
            yield Hit(f"{each.what}: {_HUGETLB}=1 with MemoryTHP=madvise", each.unit)


@rule("tunable-without-pool")
def _(facts: HostFacts) -> Iterator[Hit]:
    for each, value in _heeded(facts):
        size = _page_size(facts, value)
        pool = None if size is None else facts.pool(size)
        if size is not None and facts.short(size) and (pool is None or pool.total + pool.overcommit == 0):
            yield Hit(f"{each.what}: {_HUGETLB}={value}, pool of {format_size(size)}: 0 pages", each.unit)


def _page_size(facts: HostFacts, value: str) -> int | None:
    """Return the size of the hugetlb page that the tunable asks for; None where it asks for none."""
    if _NUMBER.fullmatch(value) is None or value == "1":
        return None
    number = int(value, 16 if value[:2].lower() == "0x" else 10)
    return facts.default_huge_size if number == 2 else number


@rule("tunable-malformed")
def _(facts: HostFacts) -> Iterator[Hit]:
    for carrier in facts.carriers():
        for name, value in tunables(carrier.environment).items():
            if (name == _HUGETLB and _NUMBER.fullmatch(value) is None) or ("huge" in name and name != _HUGETLB):
                yield Hit(f"{carrier.what}: {name}={value}", carrier.unit)


@rule("glibc-advises-everything")
def _(facts: HostFacts) -> Iterator[Hit]:
    advising = facts.architecture == "aarch64" and facts.glibc is not None and facts.glibc >= _ADVISING
    if advising and facts.glibc and facts.top == "madvise" and facts.thp_possible:
        yield Hit(f"glibc {facts.glibc[0]}.{facts.glibc[1]} on aarch64 with enabled = madvise")


@rule("preload-ignored")
def _(facts: HostFacts) -> Iterator[Hit]:
    for carrier in facts.carriers():
        if "LD_PRELOAD" in carrier.environment and (carrier.static or carrier.secure):
            why = "a static program" if carrier.static else "it runs in secure-execution mode"
            yield Hit(f"{carrier.what}: LD_PRELOAD={carrier.environment['LD_PRELOAD'].value}: {why}", carrier.unit)


@rule("preload-missing")
def _(facts: HostFacts) -> Iterator[Hit]:
    for unit in facts.units:
        for one in unit.environment:
            lost = [each for each in re.split(r"[ :]+", one.value) if facts.preloads.get(each) is False]
            if one.key == "LD_PRELOAD" and lost:
                yield Hit(f"{unit.name}: {', '.join(lost)} ({one.where})", unit.name)


@rule("libhugetlbfs-morecore")
def _(facts: HostFacts) -> Iterator[Hit]:
    if facts.glibc is None or facts.glibc < _LAST_MORECORE:
        return
    for carrier in facts.carriers():
        if "HUGETLB_MORECORE" in carrier.environment:
            yield Hit(f"{carrier.what}: HUGETLB_MORECORE={carrier.environment['HUGETLB_MORECORE'].value}", carrier.unit)
    for unit in facts.units:
        for command in unit.commands:
            if "hugectl" in command.wrappers:
                yield Hit(f"{unit.name}: {command.program} is started by hugectl ({command.where})", unit.name)


@rule("tcmalloc-without-always")
def _(facts: HostFacts) -> Iterator[Hit]:
    for process in facts.processes:
        if "tcmalloc" in (process.libraries or ()) and facts.top == "madvise" and facts.thp_possible:
            yield Hit(f"process {process.pid} ({process.name}) while enabled = madvise", process.unit)


@rule("program-disables-thp")
def _(facts: HostFacts) -> Iterator[Hit]:
    if not facts.thp_possible:
        return
    found: dict[tuple[str, str | None], list[int]] = {}
    for process in facts.processes:
        unit = facts.unit(process.unit)
        meant = unit is not None and unit.memory_thp is not None and unit.memory_thp.value.lower() == "disable"
        if process.thp_enabled is False and not meant:
            found.setdefault((process.name, process.unit), []).append(process.pid)
    for (name, unit_name), pids in found.items():
        shown = ", ".join(map(str, pids[:5])) + (f" and {len(pids) - 5} more" if len(pids) > 5 else "")
        yield Hit(f"{name} (process {shown}): THP_enabled is 0", unit_name)
