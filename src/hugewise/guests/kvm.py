"""What KVM itself maps of a guest's memory, and with pages of which size: the proof below the guest.

That the host backs a guest with huge pages does not say that the guest is mapped with them: KVM maps a huge page by
small ones where a memory slot is not aligned to it, where it must not be executable (`nx_huge_pages`), or while what
is written is logged (migration). KVM counts its present leaf entries by size: `pages_4k`, `pages_2m` and `pages_1g` of
a VM. They are asked of QEMU's monitor (`query-stats`, QEMU 7.1, which needs no privileges), else read in debugfs
(`/sys/kernel/debug/kvm/PID-FD`, root). Both are of that one VM.

The entries are those of memory that the guest has touched, so they are read when the workload has ended and the guest
has not. They are of the tables that hardware walks where it has nested paging (EPT, NPT); under shadow paging a guest's
own page sizes would limit them. Only x86 counts them.

Sources: arch/x86/kvm/mmu/mmu.c and spte.c (kvm_update_page_stats, hugepage_adjust, lpage_info of kvm_alloc_memslot_
metadata) and virt/kvm/kvm_main.c (kvm_create_vm_debugfs) of Linux 6.12; qapi/stats.json of QEMU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from hugewise.errors import MachineError
from hugewise.guests.backing import SHARE, Proof
from hugewise.model.guest import PAGE_OF, Pages
from hugewise.quantity import format_size, readable_size

__all__ = [
    "DEBUGFS",
    "PROC",
    "UNKNOWN",
    "KvmJudged",
    "KvmMapping",
    "Monitor",
    "judged",
    "look",
    "of_debugfs",
    "proven",
    "runs",
    "words",
]

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
    """Leaf entries of one VM by the size of what each maps, in bytes. `split`: huge pages that `nx_huge_pages` has
    split; `source`: who said so.
    """

    entries: Mapping[int, int]
    split: int
    source: str

    @property
    def bytes(self) -> Mapping[int, int]:
        """What is mapped, by the size of the page that maps it."""
        return {size: size * count for size, count in self.entries.items() if count}

    @property
    def mapped(self) -> int:
        """Bytes that are mapped at all."""
        return sum(self.bytes.values())


class KvmJudged(msgspec.Struct, frozen=True):
    """Whether KVM maps a guest as promised (None: that cannot be known), `share` of what it maps so, and in words."""

    good: bool | None
    share: float | None
    said: str


def look(monitor: Monitor, pid: int, debugfs: Path = DEBUGFS, proc: Path = PROC) -> KvmMapping | str:
    """What KVM maps of the guest of the QEMU `pid` now, or why that cannot be known. Raises nothing."""
    asked = _of_monitor(monitor)
    if not isinstance(asked, str):
        return asked
    found = of_debugfs(pid, debugfs, proc)
    return f"{asked}; {found}" if isinstance(found, str) else found


def runs(pid: int, proc: Path = PROC) -> bool | None:
    """Whether the process has a virtual machine of KVM's; None where its descriptors may not be looked at, or it is
    gone. A QEMU without one emulates its guest, whose memory no hardware maps.
    """
    try:
        return any(_is_vm(each) for each in (proc / str(pid) / "fd").iterdir())
    except OSError:
        return None


def _of_monitor(monitor: Monitor) -> KvmMapping | str:
    wanted = {"provider": "kvm", "names": [*_SIZES, _SPLIT]}
    try:
        said = monitor.execute("query-stats", target="vm", providers=[wanted])
    except MachineError as error:
        return f"query-stats (QEMU 7.1 and newer) was refused ({error.message})"
    counts: dict[str, int] = {}
    for result in said if isinstance(said, list) else ():
        with suppress(KeyError, TypeError, ValueError):
            if result["provider"] == "kvm":
                counts |= {str(each["name"]): int(each["value"]) for each in result["stats"]}
    return _mapping(counts, "query-stats") or "query-stats names no sizes of KVM's pages"


def of_debugfs(pid: int, debugfs: Path = DEBUGFS, proc: Path = PROC) -> KvmMapping | str:
    """What KVM maps, of the folder PID-FD that is this QEMU's: its descriptor FD is a VM; or why that cannot be known.
    A number that another PID namespace means is another process's. Raises nothing.
    """
    try:
        names = sorted(each.name for each in debugfs.iterdir())
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


def words(found: KvmMapping | str) -> str:
    """What KVM maps, or why that is not known, for a person."""
    if isinstance(found, str):
        return found
    by_size = ", ".join(f"{readable_size(size)} by {format_size(each)}" for each, size in sorted(found.bytes.items()))
    return f"KVM ({found.source}) maps {by_size or 'nothing'}"


def judged(found: KvmMapping | str, pages: Collection[int], share: float = SHARE) -> KvmJudged:
    """Whether KVM maps the guest by pages of the promised sizes `pages` (bytes; 4096: base pages). Pure.

    Of what is mapped, `share` must be by pages of the promised size or larger. The first page of that size is not
    counted: below 1 MiB lies what is no memory (the hole of VGA and of ROMs), so that smaller ones always map it.
    Beside base pages nothing may be mapped by larger ones. KVM counts all memory of a guest together: of several sizes
    the smallest is what is asked of all, and base pages beside larger ones cannot be told from these.
    """
    if isinstance(found, str):
        return KvmJudged(None, None, found)
    if _SMALL in pages and len(set(pages)) > 1:
        why = "some nodes are promised base pages and others larger ones, which KVM counts together"
        return KvmJudged(None, None, why)
    page = min(pages)
    told = words(found)
    if page == _SMALL:
        reached = found.bytes.get(_SMALL, 0) / found.mapped if found.mapped else None
        good = found.mapped > 0 and reached == 1.0
    else:
        large = sum(size for each, size in found.bytes.items() if each >= page)
        whole = found.mapped - page
        reached = min(1.0, large / whole) if whole > 0 else None
        good = reached is not None and reached >= share
    if reached is None:
        return KvmJudged(None, None, f"{told}, which is not more than one page of {format_size(page)}")
    if good and page > _SMALL and any(each < page for each, size in found.bytes.items() if size):
        told += f"; smaller ones always map the first {format_size(page)}, with the hole of VGA: it is not judged"
    if not good:
        split = f"; {found.split} pages are split for nx_huge_pages" if found.split else ""
        need = "all" if page == _SMALL else f"{share:.0%}"
        told += f": {reached:.0%} by pages as promised, {need} is needed{split}"
    return KvmJudged(good, reached, told)


def proven(host: Proof, found: KvmMapping | str, share: float = SHARE, kinds: Iterable[Pages] = ()) -> Proof:
    """The proof of the host's pages with what KVM maps: accepted where both are as promised, and where nobody knows
    what KVM maps, which is said. `kinds`: what nodes of the guest are promised, where these differ.
    """
    one = judged(found, {_size(kind) for kind in set(kinds) or {host.promised}}, share)
    seen = None if isinstance(found, str) else found.bytes
    if one.good is None:
        why = f"{host.why}; {UNKNOWN if host.accepted else UNASKED} ({one.said})"
        return msgspec.structs.replace(host, kvm=seen, why=why)
    return msgspec.structs.replace(
        host, kvm=seen, kvm_share=one.share, accepted=host.accepted and one.good, why=f"{host.why}; {one.said}"
    )


def _size(kind: Pages) -> int:
    return {"base": _SMALL, "thp": 2 << 20}.get(kind) or PAGE_OF[kind]
