"""What a guest's memory is made of on the host, proven from the smaps of its QEMU while it runs.

Source: proc(5); Documentation/filesystems/proc.rst of the Linux kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from hugewise.model.guest import PAGE_OF, BackingCell, Guest, Pages
from hugewise.quantity import format_size

__all__ = [
    "SHARE",
    "Area",
    "Proof",
    "areas",
    "guest_memory",
    "judge",
    "kinds",
    "large",
    "node_memory",
    "nodes",
    "numa_maps",
    "smaps",
]

# Default share of the guest's memory that must be made of the promised pages.
SHARE = 0.95

_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+ *(.*)")
_FIELD = re.compile(r"(\w+): +(\d+) kB")
_ON_NODE = re.compile(r"N(\d+)=(\d+)")
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
    kvm       bytes that KVM maps, by the size of the page that maps them; None where that is not known, or the guest is
              emulated (`hugewise.guests.kvm`). kvm_share: of these by pages as promised
    """

    promised: Pages
    memory: int
    resident: int
    bytes: Mapping[str, int]
    share: float
    accepted: bool
    why: str
    kvm: Mapping[int, int] | None = None
    kvm_share: float | None = None


def smaps(pid: int) -> str:
    """The smaps of a process. Raises OSError."""
    return Path(f"/proc/{pid}/smaps").read_text()


def numa_maps(pid: int) -> str | None:
    """The numa_maps of a process; None where the kernel has none. Raises OSError."""
    try:
        return Path(f"/proc/{pid}/numa_maps").read_text()
    except FileNotFoundError:
        return None


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

    Writable and never executable: QEMU's buffer of translated code can be as large. Of several the smallest is it.
    Only where none is large enough, neighbours of one name are taken together, since the kernel splits a mapping where
    its flags or its NUMA policy change.
    """
    writable = [area for area in areas(text) if area.permissions[:3] == "rw-" and not area.name.startswith("[")]
    enough = [area for area in writable if area.size >= size]
    if enough:
        return [min(enough, key=lambda area: area.size)]
    runs: list[list[Area]] = []
    for area in writable:
        if runs and runs[-1][-1].end == area.start and runs[-1][-1].name == area.name:
            runs[-1].append(area)
        else:
            runs.append([area])
    return min((run for run in runs if _size(run) >= size), key=_size, default=[])


def node_memory(text: str, sizes: Sequence[int]) -> list[list[Area]]:
    """The mappings of each of the guest's NUMA nodes, which have so many bytes: each has mappings of its own. A node
    for which there is none has no mapping.
    """
    if len(sizes) == 1:
        return [guest_memory(text, sizes[0])]
    taken = set[int]()
    found: dict[int, list[Area]] = {}
    # The smallest first: so a small node never takes what only a large one fits into.
    for place in sorted(range(len(sizes)), key=lambda place: sizes[place]):
        candidates = [
            area
            for area in areas(text)
            if area.permissions[:3] == "rw-"
            and not area.name.startswith("[")
            and area.size >= sizes[place]
            and area.start not in taken
        ]
        chosen = min(candidates, key=lambda area: area.size, default=None)
        found[place] = [] if chosen is None else [chosen]
        taken.update(area.start for area in found[place])
    return [found[place] for place in range(len(sizes))]


def _size(run: list[Area]) -> int:
    return sum(area.size for area in run)


def nodes(numa: str, found: list[Area]) -> dict[int, int]:
    """Bytes of the mappings `found` by NUMA node, from the text of /proc/PID/numa_maps."""
    starts, placed = {area.start for area in found}, dict[int, int]()
    for line in numa.splitlines():
        words = line.split()
        unit = next((int(word[18:]) * 1024 for word in words if word.startswith("kernelpagesize_kB=")), 0)
        if not words or int(words[0], 16) not in starts:
            continue
        for word in words:
            if counted := _ON_NODE.fullmatch(word):
                placed[int(counted[1])] = placed.get(int(counted[1]), 0) + int(counted[2]) * unit
    return placed


def judge(text: str, guest: Guest, share: float = SHARE, numa: str | None = None) -> Proof:
    """Whether the text of QEMU's smaps shows that the guest has the backing that it was promised.

    `share`: what of the memory must be of the promised kind. hugetlb pages must be all of it, and beside base pages
    there may be no other. Memory that is bound to NUMA nodes must lie there, as `numa` (its numa_maps) says.
    """
    backing = guest.backing
    parts = backing.parts(guest.memory)
    proofs = [
        _judged(part, found, share, numa, preallocated=backing.preallocate)
        for part, found in zip(parts, node_memory(text, [part.memory for part in parts]), strict=True)
    ]
    if len(proofs) == 1:
        return proofs[0]
    together: dict[str, int] = {}
    for proof in proofs:
        for kind, size in proof.bytes.items():
            together[kind] = together.get(kind, 0) + size
    return Proof(
        promised=backing.pages,
        memory=guest.memory,
        resident=sum(proof.resident for proof in proofs),
        bytes=together,
        share=min(proof.share for proof in proofs),
        accepted=all(proof.accepted for proof in proofs),
        why="; ".join(f"node {number}: {proof.why}" for number, proof in enumerate(proofs)),
    )


def _judged(part: BackingCell, found: list[Area], share: float, numa: str | None, *, preallocated: bool) -> Proof:
    """The proof of one NUMA node of the guest, whose mappings are `found`."""
    seen = kinds(found)
    resident = sum(seen.values())
    page = PAGE_OF.get(part.pages)
    key = part.pages if page is None else f"hugetlb:{page}"
    least = share if page is None else 1.0
    whole = part.memory if preallocated else resident
    # The kernel may have joined a neighbour to the mapping.
    reached = min(1.0, seen.get(key, 0) / whole) if whole else 0.0
    others = ", ".join(f"{format_size(size)} {kind}" for kind, size in sorted(seen.items()) if kind != key)
    accepted = bool(found) and reached >= least and not (others and part.pages == "base")
    words = f"{format_size(seen.get(key, 0))} of {format_size(whole)} are {_WORDS[part.pages]}"
    if not found:
        words = f"no mapping of QEMU holds the guest's {format_size(part.memory)}"
    elif not resident:
        words = "nothing of the guest's memory is there yet"
    elif not accepted:
        words += f", {least:.0%} are needed" + (f"; the rest is {others}" if others else "")
    if accepted and part.nodes is not None:
        elsewhere = _elsewhere(found, part.nodes, numa)
        accepted, words = elsewhere is None, elsewhere or words
    return Proof(
        promised=part.pages,
        memory=part.memory,
        resident=resident,
        bytes=seen,
        share=reached,
        accepted=accepted,
        why=words,
    )


def _elsewhere(found: list[Area], bound: tuple[int, ...], numa: str | None) -> str | None:
    """Why the memory is not proven to lie on the nodes that it is bound to, or None."""
    placed = nodes(numa or "", found)
    if not placed:
        return f"nothing says on which NUMA nodes the guest's memory lies (bound to {', '.join(map(str, bound))})"
    others = {node: size for node, size in placed.items() if node not in bound}
    if not others:
        return None
    return "; ".join(f"{format_size(size)} lie on NUMA node {node}" for node, size in sorted(others.items()))


def kinds(found: list[Area]) -> dict[str, int]:
    """Bytes of the mappings that are there, by kind: `base`, `thp`, `hugetlb:SIZE`."""
    seen: dict[str, int] = {}
    for area in found:
        added = {"thp": area.transparent, "base": area.fields.get("Rss", 0) - area.transparent}
        if area.hugetlb:
            added[f"hugetlb:{area.fields['KernelPageSize']}"] = area.hugetlb
        for kind, size in added.items():
            if size:
                seen[kind] = seen.get(kind, 0) + size
    return seen
