"""Proof of a guest's memory on the host, from the smaps of its running QEMU, and of KVM's mappings of it.

Huge pages of the host do not imply that the guest is mapped with them: KVM maps a huge page by small ones where a
memory slot is not aligned to it, where the guest executes it (`nx_huge_pages`), or while writes are logged (migration).
KVM counts its present leaf entries by size: `pages_4k`, `pages_2m` and `pages_1g` of a VM. They come from QEMU's
monitor (`query-stats`, QEMU 7.1, which needs no privileges), else from debugfs (`/sys/kernel/debug/kvm/PID-FD`, root).
Both are of that one VM.

The entries cover memory that the guest has touched, so they are read when the workload has ended and the guest has not.
They are those of the tables that hardware walks where it has nested paging (EPT, NPT); under shadow paging a guest's
own page sizes would limit them. Only x86 counts them.

Sources: proc(5); Documentation/filesystems/proc.rst of the Linux kernel; arch/x86/kvm/mmu/mmu.c and spte.c
(kvm_update_page_stats, hugepage_adjust, lpage_info of kvm_alloc_memslot_metadata) and virt/kvm/kvm_main.c
(kvm_create_vm_debugfs) of Linux 6.12; qapi/stats.json of QEMU.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from hugewise.errors import MachineError
from hugewise.machine.smaps import BackedMapping, backed_mappings
from hugewise.model.guest import PAGE_OF, BackingCell, Guest, Pages
from hugewise.quantity import format_size, readable_size

# Default share of the guest's memory that must be made of the promised pages.
SHARE = 0.95

_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S{4} \S+ \S+ \d+ ")
_ON_NODE = re.compile(r"N(\d+)=(\d+)")
_LARGE = 1 << 20
_WORDS: Mapping[Pages, str] = {
    "base": "base pages",
    "thp": "transparent huge pages",
    "hugetlb-2m": "hugetlb pages of 2 MiB",
    "hugetlb-1g": "hugetlb pages of 1 GiB",
}


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Pages that a guest's memory is made of, against the promise.

    promised  the kind of pages
    memory    bytes that the guest has
    resident  bytes of it that are there
    bytes     of these, by kind: `base`, `thp`, `hugetlb:SIZE`
    share     of the promised kind: of `memory` when it is preallocated, else of `resident` (0.0 when nothing is there)
    accepted  `share` is at least what was asked for
    why       in words
    kvm       bytes that KVM maps, by the size of the page that maps them; None where that is not known, or the guest is
              emulated (`hugewise.guests.backing`). kvm_share: of these by pages as promised
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
    """Return the smaps of a process. Raises OSError."""
    return Path(f"/proc/{pid}/smaps").read_text()


def numa_maps(pid: int) -> str | None:
    """Return the numa_maps of a process; None where the kernel has none. Raises OSError."""
    try:
        return Path(f"/proc/{pid}/numa_maps").read_text()
    except FileNotFoundError:
        return None


def areas(text: str) -> Iterator[BackedMapping]:
    """Return the mappings in the text of /proc/PID/smaps."""
    return backed_mappings(text.encode().split(b"\n"))


def large_mappings(text: str) -> str:
    """Return the mappings of at least 1 MiB, as they were written: the others cannot be memory of a guest."""
    kept, keeps = [], False
    for line in text.splitlines(keepends=True):
        if match := _HEAD.match(line):
            keeps = int(match[2], 16) - int(match[1], 16) >= _LARGE
        if keeps:
            kept.append(line)
    return "".join(kept)


def guest_memory(text: str, size: int) -> list[BackedMapping]:
    """Return the mappings that are the guest's memory of `size` bytes; empty when none can be.

    The smallest that is large enough, writable and never executable (QEMU's buffer of translated code can be as large).
    Else neighbours of one name together, since the kernel splits a mapping where its flags or NUMA policy change.
    """
    writable = [area for area in areas(text) if area.permissions[:3] == "rw-" and not area.name.startswith("[")]
    enough = [area for area in writable if area.size >= size]
    if enough:
        return [min(enough, key=lambda area: area.size)]
    runs: list[list[BackedMapping]] = []
    for area in writable:
        if runs and runs[-1][-1].end == area.start and runs[-1][-1].name == area.name:
            runs[-1].append(area)
        else:
            runs.append([area])
    return min((run for run in runs if _size(run) >= size), key=_size, default=[])


def node_memory(text: str, sizes: Sequence[int]) -> list[list[BackedMapping]]:
    """Return the mappings of each of the guest's NUMA nodes, of `sizes` bytes; no mapping for a node without one."""
    if len(sizes) == 1:
        return [guest_memory(text, sizes[0])]
    taken = set[int]()
    mappings: dict[int, list[BackedMapping]] = {}
    # The smallest first: so a small node never takes a mapping that only a large one fits into.
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
        mappings[place] = [] if chosen is None else [chosen]
        taken.update(area.start for area in mappings[place])
    return [mappings[place] for place in range(len(sizes))]


def _size(run: list[BackedMapping]) -> int:
    return sum(area.size for area in run)


def nodes(numa: str, mappings: list[BackedMapping]) -> dict[int, int]:
    """Return bytes of the mappings `found` by NUMA node, from the text of /proc/PID/numa_maps."""
    starts, placed = {area.start for area in mappings}, dict[int, int]()
    for line in numa.splitlines():
        words = line.split()
        unit = next((int(word[18:]) * 1024 for word in words if word.startswith("kernelpagesize_kB=")), 0)
        if not words or int(words[0], 16) not in starts:
            continue
        for word in words:
            if counted := _ON_NODE.fullmatch(word):
                placed[int(counted[1])] = placed.get(int(counted[1]), 0) + int(counted[2]) * unit
    return placed


def judge_backing(text: str, guest: Guest, share: float = SHARE, numa: str | None = None) -> Proof:
    """Judge by smaps (and numa_maps) whether `share` of the guest's memory has the promised backing and nodes."""
    backing = guest.backing
    parts = backing.parts(guest.memory)
    proofs = [
        _judged(part, mappings, share, numa, preallocated=backing.preallocate)
        for part, mappings in zip(parts, node_memory(text, [part.memory for part in parts]), strict=True)
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


def _judged(
    part: BackingCell, mappings: list[BackedMapping], share: float, numa: str | None, *, preallocated: bool
) -> Proof:
    seen = kinds(mappings)
    resident = sum(seen.values())
    page = PAGE_OF.get(part.pages)
    key = part.pages if page is None else f"hugetlb:{page}"
    least = share if page is None else 1.0
    whole = part.memory if preallocated else resident
    # The kernel may have joined a neighbour to the mapping.
    reached = min(1.0, seen.get(key, 0) / whole) if whole else 0.0
    others = ", ".join(f"{format_size(size)} {kind}" for kind, size in sorted(seen.items()) if kind != key)
    accepted = bool(mappings) and reached >= least and not (others and part.pages == "base")
    words = f"{format_size(seen.get(key, 0))} of {format_size(whole)} are {_WORDS[part.pages]}"
    if not mappings:
        words = f"no mapping of QEMU holds the guest's {format_size(part.memory)}"
    elif not resident:
        words = "nothing of the guest's memory is there yet"
    elif not accepted:
        words += f", {least:.0%} are needed" + (f"; the rest is {others}" if others else "")
    if accepted and part.nodes is not None:
        elsewhere = _misplaced(mappings, part.nodes, numa)
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


def _misplaced(mappings: list[BackedMapping], bound: tuple[int, ...], numa: str | None) -> str | None:
    placed = nodes(numa or "", mappings)
    if not placed:
        return f"nothing says on which NUMA nodes the guest's memory lies (bound to {', '.join(map(str, bound))})"
    others = {node: size for node, size in placed.items() if node not in bound}
    if not others:
        return None
    return "; ".join(f"{format_size(size)} lie on NUMA node {node}" for node, size in sorted(others.items()))


def kinds(mappings: list[BackedMapping]) -> dict[str, int]:
    """Return bytes of the mappings that are there, by kind: `base`, `thp`, `hugetlb:SIZE`."""
    seen: dict[str, int] = {}
    for area in mappings:
        # smaps does not tell smaller transparent huge pages from base pages; Rss has no page of a pool
        transparent = area.huge + area.shared_huge + area.file_huge
        added = {"thp": transparent, "base": area.resident - transparent}
        if area.pool:
            added[f"hugetlb:{area.page}"] = area.pool
        for kind, size in added.items():
            if size:
                seen[kind] = seen.get(kind, 0) + size
    return seen


DEBUGFS = Path("/sys/kernel/debug/kvm")
PROC = Path("/proc")
UNKNOWN = "host pages proven, KVM's mapping unknown"
UNASKED = "KVM's mapping unknown"

_SMALL = 4096
_SIZES: Mapping[str, int] = MappingProxyType({"pages_4k": _SMALL, "pages_2m": 2 << 20, "pages_1g": 1 << 30})
_SPLIT = "nx_lpage_splits"
_VM = "anon_inode:kvm-vm"


class Monitor(Protocol):
    """QEMU's monitor: `qmp.Qmp`."""

    def execute(self, command: str, patience: float = ..., **arguments: object) -> Any:
        """Give a command and return what it returns. Raises MachineError."""
        ...


class KvmMapping(msgspec.Struct, frozen=True):
    """Leaf entries of one VM by page size in bytes; `split`: huge pages that `nx_huge_pages` has split."""

    entries: Mapping[int, int]
    split: int
    source: str

    @property
    def bytes(self) -> Mapping[int, int]:
        return {size: size * count for size, count in self.entries.items() if count}

    @property
    def mapped(self) -> int:
        return sum(self.bytes.values())


class KvmVerdict(msgspec.Struct, frozen=True):
    """Verdict on KVM's mappings of a guest: as promised or not (None: unknown), the `share` mapped so, and in words."""

    good: bool | None
    share: float | None
    description: str


def kvm_mapping(monitor: Monitor, pid: int, debugfs: Path = DEBUGFS, proc: Path = PROC) -> KvmMapping | str:
    """Return KVM's current mappings of the guest of the QEMU `pid`, or why they cannot be known. Raises nothing."""
    asked = _from_monitor(monitor)
    if not isinstance(asked, str):
        return asked
    mapping = kvm_mapping_of_debugfs(pid, debugfs, proc)
    return f"{asked}; {mapping}" if isinstance(mapping, str) else mapping


def has_kvm_vm(pid: int, proc: Path = PROC) -> bool | None:
    """Return whether the process has a KVM virtual machine, or emulates; None where its descriptors cannot be read."""
    try:
        return any(_is_vm(descriptor) for descriptor in (proc / str(pid) / "fd").iterdir())
    except OSError:
        return None


def _from_monitor(monitor: Monitor) -> KvmMapping | str:
    wanted = {"provider": "kvm", "names": [*_SIZES, _SPLIT]}
    try:
        stats = monitor.execute("query-stats", target="vm", providers=[wanted])
    except MachineError as error:
        return f"query-stats (QEMU 7.1 and newer) was refused ({error.message})"
    counts: dict[str, int] = {}
    for result in stats if isinstance(stats, list) else ():
        with suppress(KeyError, TypeError, ValueError):
            if result["provider"] == "kvm":
                counts |= {str(counter["name"]): int(counter["value"]) for counter in result["stats"]}
    return _mapping(counts, "query-stats") or "query-stats names no sizes of KVM's pages"


def kvm_mapping_of_debugfs(pid: int, debugfs: Path = DEBUGFS, proc: Path = PROC) -> KvmMapping | str:
    """Return KVM's mappings from debugfs, or why they are unknown. The PID of another namespace is not this QEMU."""
    try:
        names = sorted(entry.name for entry in debugfs.iterdir())
    except FileNotFoundError:
        return f"{debugfs}: there is none (is debugfs mounted?)"
    except OSError as error:
        return f"{debugfs}: {error.strerror}"
    for name in names:
        number, _, descriptor = name.partition("-")
        if number != str(pid) or not descriptor.isdecimal() or not _is_vm(proc / number / "fd" / descriptor):
            continue
        counts = {}
        for file in (*_SIZES, _SPLIT):
            with suppress(OSError, ValueError):
                counts[file] = int((debugfs / name / file).read_text())
        return _mapping(counts, "debugfs") or f"{debugfs / name} names no sizes of pages"
    return f"{debugfs} has no folder of QEMU's ({pid})"


def _is_vm(descriptor: Path) -> bool:
    try:
        return str(descriptor.readlink()) == _VM
    except OSError:
        return False


def _mapping(counts: Mapping[str, int], source: str) -> KvmMapping | None:
    if not counts.keys() >= _SIZES.keys():
        return None
    entries = {size: counts[name] for name, size in _SIZES.items()}
    return KvmMapping(entries, counts.get(_SPLIT, 0), source)


def describe_mapping(mapping: KvmMapping | str) -> str:
    """Describe KVM's mappings for a person, or why they are not known."""
    if isinstance(mapping, str):
        return mapping
    by_size = ", ".join(f"{readable_size(size)} by {format_size(page)}" for page, size in sorted(mapping.bytes.items()))
    return f"KVM ({mapping.source}) maps {by_size or 'nothing'}"


def judge_mappings(mapping: KvmMapping | str, pages: Collection[int], share: float = SHARE) -> KvmVerdict:
    """Judge whether KVM maps the guest by pages of the promised sizes `pages` (bytes; 4096: base pages). Pure.

    `share` of the mapped memory must be mapped by pages of the promised size or larger. The first page of that size is
    not counted: below 1 MiB lie holes (of VGA and of ROMs), so that smaller pages always map it. Beside base pages
    nothing may be mapped by larger ones. KVM counts all memory of a guest together: of several promised sizes the
    smallest is demanded of all memory, and base pages beside larger ones cannot be told from these.
    """
    if isinstance(mapping, str):
        return KvmVerdict(None, None, mapping)
    if _SMALL in pages and len(set(pages)) > 1:
        why = "some nodes are promised base pages and others larger ones, which KVM counts together"
        return KvmVerdict(None, None, why)
    page = min(pages)
    description = describe_mapping(mapping)
    if page == _SMALL:
        reached = mapping.bytes.get(_SMALL, 0) / mapping.mapped if mapping.mapped else None
        good = mapping.mapped > 0 and reached == 1.0
    else:
        large = sum(size for mapped_by, size in mapping.bytes.items() if mapped_by >= page)
        whole = mapping.mapped - page
        reached = min(1.0, large / whole) if whole > 0 else None
        good = reached is not None and reached >= share
    if reached is None:
        return KvmVerdict(None, None, f"{description}, which is not more than one page of {format_size(page)}")
    if good and page > _SMALL and any(mapped_by < page for mapped_by, size in mapping.bytes.items() if size):
        description += (
            f"; smaller ones always map the first {format_size(page)}, with the hole of VGA: it is not judged"
        )
    if not good:
        split = f"; {mapping.split} pages are split for nx_huge_pages" if mapping.split else ""
        need = "all" if page == _SMALL else f"{share:.0%}"
        description += f": {reached:.0%} by pages as promised, {need} is needed{split}"
    return KvmVerdict(good, reached, description)


def with_kvm_mapping(host: Proof, mapping: KvmMapping | str, kinds: Iterable[Pages] = ()) -> Proof:
    """Return the proof with what KVM maps: accepted where both are as promised (`kinds`), or KVM's is unknown."""
    verdict = judge_mappings(mapping, {_mapping_size(kind) for kind in set(kinds) or {host.promised}})
    seen = None if isinstance(mapping, str) else mapping.bytes
    if verdict.good is None:
        why = f"{host.why}; {UNKNOWN if host.accepted else UNASKED} ({verdict.description})"
        return msgspec.structs.replace(host, kvm=seen, why=why)
    return msgspec.structs.replace(
        host,
        kvm=seen,
        kvm_share=verdict.share,
        accepted=host.accepted and verdict.good,
        why=f"{host.why}; {verdict.description}",
    )


def _mapping_size(kind: Pages) -> int:
    return {"base": _SMALL, "thp": 2 << 20}.get(kind) or PAGE_OF[kind]
