"""Which address ranges of a process a policy is about, from its /proc/PID/maps. Pure.

Source: proc(5); Documentation/filesystems/proc.rst of the Linux kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from hugewise.model.scene import Named

__all__ = ["Mapping", "mappings", "named"]

_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ (\d+) *([^\n]*)")
_LARGE = 32 << 20
# Memory that no named file stands behind: shared anonymous mappings are shown as files of the kernel's own mount.
_SHARED = re.compile(r"/dev/zero \(deleted\)|/anon_hugepage \(deleted\)|/SYSV[0-9a-f]+ \(deleted\)|\[anon_shmem:.*\]")
_PRIVATE = re.compile(r"|\[heap\]|\[anon:.*\]|/anon_hugepage \(deleted\)")


class Mapping(msgspec.Struct, frozen=True):
    """One line of maps: a half-open range of addresses, whether it is shared, and what it is called."""

    start: int
    end: int
    shared: bool
    name: str

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start


def mappings(maps: str) -> Iterator[Mapping]:
    """The mappings in the text of /proc/PID/maps."""
    for line in maps.split("\n"):
        if found := _LINE.fullmatch(line):
            yield Mapping(int(found[1], 16), int(found[2], 16), found[3][3] == "s", found[5])


def named(maps: str, what: Named) -> list[tuple[int, int]] | None:
    """The ranges that `what` means; None means all anonymous, shared and hugetlb memory of the process.

    `shared`: the largest shared anonymous mapping. `large`: private mappings of at least 32 MiB, adjacent ones taken
    together (the kernel splits a mapping where its flags change). Empty when there is none.
    """
    if what == "all":
        return None
    found = list(mappings(maps))
    if what == "shared":
        shared = [each for each in found if each.shared and _SHARED.fullmatch(each.name)]
        largest = max(shared, key=lambda each: each.size, default=None)
        return [] if largest is None else [(largest.start, largest.end)]
    joined: list[tuple[int, int]] = []
    for each in found:
        if each.shared or not _PRIVATE.fullmatch(each.name):
            continue
        if joined and joined[-1][1] == each.start:
            joined[-1] = (joined[-1][0], each.end)
        else:
            joined.append((each.start, each.end))
    return [each for each in joined if each[1] - each[0] >= _LARGE]
