"""Allocators and the loader: tunables of glibc, preloads, other allocators, programs that turn huge pages off."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hugewise.audit.facts import Carrier, HostFacts, tunables
from hugewise.audit.rules import Hit, rule
from hugewise.quantity import format_size

_HUGETLB = "glibc.malloc.hugetlb"
_MANUAL = "https://sourceware.org/glibc/manual/latest/html_node/Memory-Allocation-Tunables.html"
_LOADER = "ld.so(8), secure-execution mode"
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


@rule(
    "tunable-ignored-secure",
    "error",
    "glibc.malloc.hugetlb is set for a program that runs in secure-execution mode",
    why="The loader drops tunables where the program has a setuid or setgid bit or file capabilities: nothing says so.",
    sources=(_LOADER, _MANUAL),
    cure="use MemoryTHP= of the unit, or prctl in a launcher; or start the program without those rights",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each, value in _asked(facts):
        if each.secure:
            yield Hit(f"{each.what}: {_HUGETLB}={value}", each.unit)


@rule(
    "tunable-ignored-static",
    "note",
    "glibc.malloc.hugetlb is set for a static program, which may have no malloc that reads it",
    why="It reads tunables where glibc's malloc is in it; mostly it has another allocator, as Go's programs have.",
    sources=(_MANUAL, "https://github.com/golang/go/issues/61718"),
    cure="see what it has (hugewise inspect PID), or use MemoryTHP= of the unit, prctl in a launcher, or its own switch"
    " (Go: GODEBUG=disablethp=1)",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each, value in _asked(facts):
        if each.static and not each.secure:
            yield Hit(f"{each.what}: {_HUGETLB}={value}", each.unit)


@rule(
    "tunable-other-allocator",
    "error",
    "glibc.malloc.hugetlb is set for a program that has another allocator",
    why="The tunable is that of glibc's malloc. A program with jemalloc, tcmalloc, mimalloc or musl does not read it.",
    sources=(_MANUAL, "http://jemalloc.net/jemalloc.3.html#opt.thp"),
    cure="use that allocator's own switch: MALLOC_CONF=thp:always, MIMALLOC_ALLOW_THP=1",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each, value in _asked(facts):
        if other := _other(each):
            yield Hit(f"{each.what}: {_HUGETLB}={value}, and it has {other}", each.unit)


@rule(
    "tunable-unknown-to-glibc",
    "error",
    "glibc.malloc.hugetlb is set, and this glibc does not know it",
    why="glibc has the tunable since 2.35; an older one passes it over in silence.",
    sources=(_MANUAL,),
    cure="a newer glibc, or a preloaded allocator that advises",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    if facts.glibc is not None and facts.glibc < _FIRST_TUNABLE:
        for each, value in _heeded(facts):
            yield Hit(f"{each.what}: {_HUGETLB}={value} with glibc {facts.glibc[0]}.{facts.glibc[1]}", each.unit)


@rule(
    "tunable-without-effect",
    "warning",
    "glibc.malloc.hugetlb=1 changes nothing under this setting of the host",
    why="glibc advises only while the top-level `enabled` says madvise. Under always it leaves all to the kernel, which"
    " finds no room for huge pages in a heap that grows by 132 KiB; under never there are none.",
    sources=(_MANUAL, "https://sourceware.org/pipermail/libc-alpha/2021-December/134151.html"),
    cure="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; or glibc.malloc.top_pad=67108864 under always",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each, value in _heeded(facts):
        if value == "1" and facts.top in ("always", "never") and not _excepted(facts, each.unit):
            yield Hit(f"{each.what}: {_HUGETLB}=1 while enabled = {facts.top}", each.unit)


def _excepted(facts: HostFacts, name: str | None) -> bool:
    """Return whether the unit lets only advised memory have huge pages."""
    unit = facts.unit(name)
    return unit is not None and unit.memory_thp is not None and unit.memory_thp.value.lower() == "madvise"


@rule(
    "tunable-under-memorythp-madvise",
    "error",
    "MemoryTHP=madvise and glibc.malloc.hugetlb=1 together give no huge page under enabled = always",
    why="glibc reads `always` in sysfs and does not advise; the kernel gives the service only what is advised.",
    sources=(_MANUAL, "Linux: prctl(2), PR_THP_DISABLE_EXCEPT_ADVISED"),
    cure="set the host to madvise, or leave one of the two out",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each, value in _heeded(facts):
        if value == "1" and facts.top == "always" and _excepted(facts, each.unit):
            yield Hit(f"{each.what}: {_HUGETLB}=1 with MemoryTHP=madvise", each.unit)


@rule(
    "tunable-without-pool",
    "error",
    "glibc.malloc.hugetlb asks for hugetlb pages, and there is no pool of them",
    why="malloc falls back to base pages in silence, and no longer has a heap by brk: its layout is another one.",
    sources=(_MANUAL, "Linux: Documentation/admin-guide/mm/hugetlbpage.rst"),
    cure="reserve pages (vm.nr_hugepages) or let the pool grow (vm.nr_overcommit_hugepages), or take the tunable out",
)
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


@rule(
    "tunable-malformed",
    "error",
    "GLIBC_TUNABLES has a word about huge pages that glibc does not take",
    why="Of a name that it does not know, or a value that is no number, glibc says nothing.",
    sources=(_MANUAL,),
    cure="glibc.malloc.hugetlb=0, 1 (advise), 2 (hugetlb pages) or the size of a page in bytes",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for carrier in facts.carriers():
        for name, value in tunables(carrier.environment).items():
            if (name == _HUGETLB and _NUMBER.fullmatch(value) is None) or ("huge" in name and name != _HUGETLB):
                yield Hit(f"{carrier.what}: {name}={value}", carrier.unit)


@rule(
    "glibc-advises-everything",
    "warning",
    "this glibc advises the heap of every program, so madvise means always here",
    why="From 2.43 on glibc.malloc.hugetlb is 1 by default on aarch64: under madvise every program's malloc"
    " asks for huge"
    " pages. An idle machine was seen to grow from 465 to 1,105 MiB.",
    sources=(
        "https://sourceware.org/bugzilla/show_bug.cgi?id=34081",
        "https://github.com/bottlerocket-os/bottlerocket-core-kit/issues/905",
    ),
    cure="GLIBC_TUNABLES=glibc.malloc.hugetlb=0 for what must stay small (systemd: DefaultEnvironment=), or never",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    advising = facts.architecture == "aarch64" and facts.glibc is not None and facts.glibc >= _ADVISING
    if advising and facts.glibc and facts.top == "madvise" and facts.thp_possible:
        yield Hit(f"glibc {facts.glibc[0]}.{facts.glibc[1]} on aarch64 with enabled = madvise")


@rule(
    "preload-ignored",
    "error",
    "LD_PRELOAD is set for a program that ignores it",
    why="A static program (static-pie too) has no loader; in secure-execution mode the loader drops paths.",
    sources=(_LOADER, "https://github.com/yurvon-screamo/origa/pull/568"),
    cure="use prctl in a launcher, or MemoryTHP= of the unit",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for carrier in facts.carriers():
        if "LD_PRELOAD" in carrier.environment and (carrier.static or carrier.secure):
            why = "a static program" if carrier.static else "it runs in secure-execution mode"
            yield Hit(f"{carrier.what}: LD_PRELOAD={carrier.environment['LD_PRELOAD'].value}: {why}", carrier.unit)


@rule(
    "preload-missing",
    "error",
    "a service preloads a library that is not there",
    why="The loader says so once on stderr and goes on without: the program runs, without the allocator it"
    " was to have.",
    sources=("ld.so(8), LD_PRELOAD",),
    cure="install it, or name where it lies",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for unit in facts.units:
        for one in unit.environment:
            lost = [each for each in re.split(r"[ :]+", one.value) if facts.preloads.get(each) is False]
            if one.key == "LD_PRELOAD" and lost:
                yield Hit(f"{unit.name}: {', '.join(lost)} ({one.where})", unit.name)


@rule(
    "libhugetlbfs-morecore",
    "error",
    "libhugetlbfs cannot move the heap of this glibc",
    why="glibc 2.34 took away the hook __morecore. hugectl --heap and --thp, and HUGETLB_MORECORE, do nothing since.",
    sources=(
        "https://sourceware.org/glibc/wiki/Release/2.34",
        "https://github.com/libhugetlbfs/libhugetlbfs/issues/52",
    ),
    cure="GLIBC_TUNABLES=glibc.malloc.hugetlb=1 (THP) or 2 (hugetlb pages) from glibc 2.35 on",
)
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


@rule(
    "tcmalloc-without-always",
    "warning",
    "a program with tcmalloc gets no huge pages under madvise",
    why="tcmalloc lays its heap out for huge pages and leaves it to the kernel to give them: it does not advise.",
    sources=("https://github.com/google/tcmalloc/issues/85", "https://google.github.io/tcmalloc/tuning.html"),
    cure="measure it under always; for one service on a host of madvise there is no switch",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for process in facts.processes:
        if "tcmalloc" in (process.libraries or ()) and facts.top == "madvise" and facts.thp_possible:
            yield Hit(f"process {process.pid} ({process.name}) while enabled = madvise", process.unit)


@rule(
    "program-disables-thp",
    "note",
    "a program has turned huge pages off for itself",
    why="PR_SET_THP_DISABLE holds for the process and all that it starts, over exec too, whatever the host says. redis"
    " does so by default (disable-thp yes), MariaDB too; so does whatever a launcher or an agent starts.",
    sources=("Linux: prctl(2), PR_SET_THP_DISABLE", "https://github.com/389ds/389-ds-base/issues/5955"),
    cure="nothing, where it is meant; else the program's own switch (redis: disable-thp no), and see who started it",
)
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
