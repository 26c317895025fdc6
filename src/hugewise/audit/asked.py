"""Which surfaces of a host ask for what: a knob's value, and the pages of each pool. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

import msgspec

from hugewise.audit.facts import HostFacts, boot_size
from hugewise.model.pages import HUGETLB, THP

__all__ = ["Wish", "boot_pools", "knob_wishes", "pool_wishes", "turned"]

_SYSCTL = "vm.nr_hugepages"
_NODES = "/sys/devices/system/node/"


class Wish(msgspec.Struct, frozen=True):
    """Somebody asks for a value: `by` is the surface (boot, tmpfiles.d, tuned, sysctl.d), `where` the place in it."""

    by: str
    value: str
    where: str


def knob_wishes(facts: HostFacts, key: str) -> list[Wish]:
    """Who asks for the knob `key` below transparent_hugepage, the earliest first."""
    path = f"{THP}/{key}"
    found = []
    if key == "enabled":
        said = [word.partition("=")[2] for word in facts.boot if word.startswith("transparent_hugepage=")]
        found += [Wish("boot", value, "the kernel's command line") for value in said[-1:]]
    for by, held in (("tmpfiles.d", facts.tmpfiles), ("tuned", facts.tuned)):
        if path in held:
            found.append(Wish(by, held[path].value, held[path].where))
    return found


def turned(facts: HostFacts, path: str) -> bool:
    """Whether a service or a script at boot writes the file, or what does the same: with what value is not known."""
    patterns = [each for unit in facts.units if not unit.masked for each in unit.turned]
    patterns += [*facts.scripts, *(each for each in (*facts.tmpfiles, *facts.tuned) if each.startswith(_NODES))]
    default = path == f"{HUGETLB}/hugepages-{facts.default_huge_size >> 10}kB/nr_hugepages"
    if default and _SYSCTL in patterns:
        return True
    # The pool of a node is a part of the pool.
    whole = (f"{HUGETLB}/{each.partition('/hugepages/')[2]}" for each in patterns if each.startswith(_NODES))
    return any(fnmatch.fnmatchcase(path, each) for each in (*patterns, *whole))


def boot_pools(facts: HostFacts) -> Iterator[tuple[int | None, int | None]]:
    """Page size and pages of each pool on the kernel's command line: `hugepagesz=` and the `hugepages=` behind it.

    None for a size that is none, and for a `hugepagesz=` without pages.
    """
    size: int | None = facts.default_huge_size
    open_ = False
    for word in facts.boot:
        key, _, value = word.partition("=")
        if key == "hugepagesz":
            if open_:
                yield size, None
            size, open_ = boot_size(value), True
        elif key == "hugepages":
            yield size, _pages(value)
            open_ = False
    if open_:
        yield size, None


def _pages(value: str) -> int | None:
    """A number, or the sum over nodes: `0:2,1:2`."""
    parts = [part.rpartition(":")[2] for part in value.split(",")]
    return sum(map(int, parts)) if all(part.isdecimal() and len(part) < 12 for part in parts) else None


def pool_wishes(facts: HostFacts, size: int) -> list[Wish]:
    """Who asks for how many pages of the pool of that size, the earliest first."""
    found = [Wish("boot", str(n), "the kernel's command line") for at, n in boot_pools(facts) if at == size and n]
    path = f"{HUGETLB}/hugepages-{size >> 10}kB/nr_hugepages"
    default = size == facts.default_huge_size
    for by, held in (("sysctl.d", facts.sysctl), ("tmpfiles.d", facts.tmpfiles), ("tuned", facts.tuned)):
        for key in (path, *((_SYSCTL, f"/proc/sys/{_SYSCTL.replace('.', '/')}") if default else ())):
            found += [Wish(by, held[key].value, held[key].where)] if key in held else []
    return found
