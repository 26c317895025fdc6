"""What a guest's memory is made of on the host, proven from the smaps of its QEMU while it runs.

Source: proc(5); Documentation/filesystems/proc.rst of the Linux kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from hugewise.guests.definition import Guest, Pages
from hugewise.guests.qemu import HUGETLB_BYTES
from hugewise.quantity import format_size

__all__ = ["SHARE", "Area", "Proof", "areas", "guest_memory", "judge", "large", "smaps"]

# Default share of the guest's memory that must be made of the promised pages.
SHARE = 0.95

_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+ *(.*)")
_FIELD = re.compile(r"(\w+): +(\d+) kB")
_LARGE = 1 << 20
_WORDS: Mapping[Pages, str] = {
    "base": "base pages",
    "thp": "transparent huge pages",
    "hugetlb-2m": "hugetlb pages of 2 MiB",
    "hugetlb-1g": "hugetlb pages of 1 GiB",
}


class Area(msgspec.Struct, frozen=True):
    """One mapping: a half-open range of addresses, its permissions as in maps, its name, its fields in bytes."""

    start: int
    end: int
    permissions: str
    name: str
    fields: Mapping[str, int]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start

    @property
    def hugetlb(self) -> int:
        """Bytes of hugetlb pages that are there; they are no part of Rss."""
        return self.fields.get("Private_Hugetlb", 0) + self.fields.get("Shared_Hugetlb", 0)

    @property
    def transparent(self) -> int:
        """Bytes of transparent huge pages (of PMD size: smaps does not tell smaller ones from base pages)."""
        return sum(self.fields.get(name, 0) for name in ("AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"))


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What the guest's memory is made of.

    promised  the kind of pages
    memory    bytes that the guest has
    resident  bytes of it that are there
    bytes     of these, by kind: `base`, `thp`, `hugetlb:SIZE`
    share     of the promised kind: of `memory` when it is preallocated, else of `resident` (0.0 when nothing is there)
    accepted  `share` is at least what was asked for
    why       in words
    """

    promised: Pages
    memory: int
    resident: int
    bytes: Mapping[str, int]
    share: float
    accepted: bool
    why: str


def smaps(pid: int) -> str:
    """The smaps of a process. Raises OSError."""
    return Path(f"/proc/{pid}/smaps").read_text()


def areas(text: str) -> Iterator[Area]:
    """The mappings in the text of /proc/PID/smaps."""
    head: re.Match[str] | None = None
    fields: dict[str, int] = {}
    for line in text.splitlines():
        if found := _HEAD.fullmatch(line):
            if head is not None:
                yield _area(head, fields)
            head, fields = found, {}
        elif field := _FIELD.match(line):
            fields[field[1]] = int(field[2]) * 1024
    if head is not None:
        yield _area(head, fields)


def _area(head: re.Match[str], fields: Mapping[str, int]) -> Area:
    return Area(int(head[1], 16), int(head[2], 16), head[3], head[4], fields)


def large(text: str) -> str:
    """The mappings of at least 1 MiB, as they were written: the others cannot be memory of a guest."""
    kept, keeps = [], False
    for line in text.splitlines(keepends=True):
        if found := _HEAD.match(line):
            keeps = int(found[2], 16) - int(found[1], 16) >= _LARGE
        if keeps:
            kept.append(line)
    return "".join(kept)


def guest_memory(text: str, size: int) -> list[Area]:
    """The mappings that are the guest's memory of `size` bytes; empty when none can be.

    Writable and never executable: QEMU's buffer of translated code can be as large. Neighbours of one name are taken
    together, since the kernel splits a mapping where its flags or its NUMA policy change; of several candidates the
    smallest that holds the memory is it.
    """
    runs: list[list[Area]] = []
    for area in areas(text):
        if area.permissions[:3] != "rw-" or area.name.startswith("["):
            continue
        if runs and runs[-1][-1].end == area.start and runs[-1][-1].name == area.name:
            runs[-1].append(area)
        else:
            runs.append([area])
    enough = [run for run in runs if _size(run) >= size]
    return min(enough, key=_size, default=[])


def _size(run: list[Area]) -> int:
    return sum(area.size for area in run)


def judge(text: str, guest: Guest, share: float = SHARE) -> Proof:
    """Whether the text of QEMU's smaps shows that the guest has the backing that it was promised.

    `share`: what of the memory must be of the promised kind. hugetlb pages must be all of it, and beside base pages
    there may be no other.
    """
    backing = guest.backing
    found = guest_memory(text, guest.memory)
    kinds = _kinds(found)
    resident = sum(kinds.values())
    page = HUGETLB_BYTES.get(backing.pages)
    key = backing.pages if page is None else f"hugetlb:{page}"
    least = share if page is None else 1.0
    whole = guest.memory if backing.preallocate else resident
    # A mapping may be a little larger than the memory in it, by what the kernel joined to it.
    reached = min(1.0, kinds.get(key, 0) / whole) if whole else 0.0
    others = ", ".join(f"{format_size(size)} {kind}" for kind, size in sorted(kinds.items()) if kind != key)
    accepted = bool(found) and reached >= least and not (others and backing.pages == "base")
    words = f"{format_size(kinds.get(key, 0))} of {format_size(whole)} are {_WORDS[backing.pages]}"
    if not found:
        words = f"no mapping of QEMU holds the guest's {format_size(guest.memory)}"
    elif not resident:
        words = "nothing of the guest's memory is there yet"
    elif not accepted:
        others = ", ".join(
            f"{format_size(size)} {kind}" for kind, size in sorted(kinds.items()) if kind != key and size
        )
        words += f", {least:.0%} are needed" + (f"; the rest is {others}" if others else "")
    return Proof(
        promised=backing.pages,
        memory=guest.memory,
        resident=resident,
        bytes=kinds,
        share=reached,
        accepted=accepted,
        why=words,
    )


def _kinds(found: list[Area]) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for area in found:
        added = {"thp": area.transparent, "base": area.fields.get("Rss", 0) - area.transparent}
        if area.hugetlb:
            added[f"hugetlb:{area.fields['KernelPageSize']}"] = area.hugetlb
        for kind, size in added.items():
            if size:
                kinds[kind] = kinds.get(kind, 0) + size
    return kinds
