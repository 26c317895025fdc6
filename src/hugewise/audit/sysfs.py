"""What the kernel says of itself: THP at every size, hugetlb pools, limits of cgroups, its command line.

Sources: transhuge.rst, hugetlbpage.rst, cgroup-v2.rst, cgroup-v1/hugetlb.rst, kernel-parameters.txt of Linux.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping

from hugewise.audit.facts import HugePool, HugetlbGroup, MemoryGroup
from hugewise.audit.root import Root
from hugewise.machine.proc import Mount, mounts
from hugewise.model.pages import HUGETLB, THP, sizes_in

__all__ = ["boot_words", "collapses", "groups", "kernel_config", "pools", "reported", "thp"]

_MOST_GROUPS = 4096
_MOST_ORDER = 20
_DEEPEST = 12
_CHOSEN = re.compile(r"\[([\w+]{1,32})\]")
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_ABOUT_PAGES = re.compile(
    r"(?:transparent_hugepage\w{0,12}|thp_anon|thp_shmem|(?:default_)?hugepagesz|hugepages|hugetlb_\w{1,20})=[\w.,:;+-]{0,200}"
)
_LIMIT_1 = re.compile(r"hugetlb\.(\d{1,6})([KMG])B\.limit_in_bytes")
_LIMIT_2 = re.compile(r"hugetlb\.(\d{1,6})([KMG])B\.max")
_SHIFT = {"K": 10, "M": 20, "G": 30}
_UNLIMITED = 1 << 62  # version 1 says so by its largest counter, a little below 2 to the 63rd
_MOST_CONFIG = 4 << 20
_CONFIG = re.compile(rb"^CONFIG_TRANSPARENT_HUGEPAGE_(ALWAYS|MADVISE|NEVER)=y$", re.MULTILINE)


def thp(root: Root) -> dict[str, str]:
    """Path below `transparent_hugepage` -> its value; of `always [madvise] never` the chosen word."""
    found = {}
    for name in root.names(THP):
        inner = root.listed(f"{THP}/{name}") if name == "khugepaged" or name.startswith("hugepages-") else None
        for key in [name] if inner is None else [f"{name}/{each}" for each in inner if each != "stats"]:
            said = root.text(f"{THP}/{key}", 4096)
            if said is not None:
                chosen = _CHOSEN.search(said)
                found[key] = chosen[1] if chosen else said.strip()[:64]
    return found


def reported(root: Root) -> int | None:
    """The smallest order of free pages that are reported to the hypervisor; None where nobody is told of any."""
    said = (root.text("/sys/module/page_reporting/parameters/page_reporting_order", 64) or "").strip()
    return int(said) if said.isdecimal() and int(said) <= _MOST_ORDER else None  # -1, as unsigned, until there is one


def collapses(root: Root) -> bool:
    """Whether khugepaged can collapse to sizes below the PMD's: their statistics tell."""
    sizes = sizes_in(root, THP)
    return any(
        root.status(f"{THP}/hugepages-{size >> 10}kB/stats/collapse_exceed_none_pte") is not None for size in sizes[:-1]
    )


def pools(root: Root, own: Mapping[int, int]) -> tuple[HugePool, ...]:
    """The pools of hugetlb pages of each size that the kernel has; `own`: pages of a run of hugewise, by size."""
    found = []
    for size in filter(None, sizes_in(root, HUGETLB)):
        folder = f"{HUGETLB}/hugepages-{size >> 10}kB"
        names = ("nr_hugepages", "free_hugepages", "resv_hugepages", "surplus_hugepages", "nr_overcommit_hugepages")
        total, free, reserved, surplus, overcommit = (_number(root.text(f"{folder}/{name}", 64)) for name in names)
        if total is not None and free is not None:
            found.append(
                HugePool(
                    size=size,
                    total=total,
                    free=free,
                    reserved=reserved or 0,
                    surplus=surplus or 0,
                    overcommit=overcommit or 0,
                    own=min(total, own.get(size, 0)),
                )
            )
    return tuple(found)


def _number(text: str | None) -> int | None:
    found = None if text is None else _NUMBER.fullmatch(text.strip())
    return None if found is None else int(found[0])


def _limit(text: str | None) -> int | None:
    """Bytes; None for no limit (`max`, or the largest counter)."""
    number = _number(text)
    return None if number is None or number >= _UNLIMITED else number


def groups(root: Root) -> tuple[tuple[HugetlbGroup, ...], tuple[MemoryGroup, ...]]:
    """The cgroups that limit hugetlb pages, and those of version 2 that limit memory."""
    hugetlb: list[HugetlbGroup] = []
    memory: list[MemoryGroup] = []
    for mount in _mounts(root):
        first = mount.kind == "cgroup" and "hugetlb" in mount.options.split(",")
        if not first and mount.kind != "cgroup2":
            continue
        for group, names in _below(root, mount.point):
            folder = f"{mount.point}{group}"
            hugetlb += _hugetlb(root, folder, group or "/", names, 1 if first else 2)
            if not first and "memory.max" in names:
                memory += _memory(root, folder, group or "/")
    return tuple(hugetlb), tuple(memory)


def _mounts(root: Root) -> list[Mount]:
    try:
        return list(mounts(root.text("/proc/self/mountinfo") or ""))
    except ValueError:  # of a host that is a folder, and was written by hand
        root.tell("/proc/self/mountinfo", "it is not as proc(5) says")
        return []


def _below(root: Root, point: str) -> Iterator[tuple[str, list[str]]]:
    """Each cgroup of a hierarchy below its mount, with the names of its files."""
    left, seen = [""], 0
    while left and seen < _MOST_GROUPS:
        group = left.pop()
        seen += 1
        entries = root.entries(f"{point}{group}") or {}
        yield group, sorted(entries)
        below = sorted((name for name, is_folder in entries.items() if is_folder), reverse=True)
        if group.count("/") < _DEEPEST:
            left += [f"{group}/{name}" for name in below]
        elif below:
            root.tell(point, f"groups that lie more than {_DEEPEST} deep were not looked at")
    if left:
        root.tell(point, f"more than {_MOST_GROUPS:,} groups: the others were not looked at")


def _hugetlb(root: Root, folder: str, group: str, names: list[str], version: int) -> Iterator[HugetlbGroup]:
    for name in names:
        match = (_LIMIT_1 if version == 1 else _LIMIT_2).fullmatch(name)
        if match is None:
            continue
        limit = _limit(root.text(f"{folder}/{name}", 64))
        reserving = name.replace(".max", ".rsvd.max").replace(".limit_in", ".rsvd.limit_in")
        reserved = _limit(root.text(f"{folder}/{reserving}", 64))
        if limit is not None or reserved is not None:
            size = int(match[1]) << _SHIFT[match[2]]
            yield HugetlbGroup(group=group, size=size, version=version, limit=limit, reserved_limit=reserved)


def _memory(root: Root, folder: str, group: str) -> Iterator[MemoryGroup]:
    limit = _limit(root.text(f"{folder}/memory.max", 64))
    if limit is None:
        return
    huge = re.search(r"^anon_thp (\d{1,18})$", root.text(f"{folder}/memory.stat") or "", re.MULTILINE)
    swap = _limit(root.text(f"{folder}/memory.swap.max", 64))
    yield MemoryGroup(group=group, limit=limit, swap_limit=swap, anon_thp=int(huge[1]) if huge else 0)


def boot_words(root: Root) -> tuple[str, ...]:
    """What of the kernel's command line is about pages, in its order."""
    return tuple(word for word in (root.text("/proc/cmdline", 1 << 16) or "").split() if _ABOUT_PAGES.fullmatch(word))


def kernel_config(root: Root, release: str) -> str | None:
    """The THP mode that the kernel was built with: always, madvise or never; None where that is not kept."""
    packed = root.data("/proc/config.gz")
    plain = b"" if packed is None else _unpacked(packed)
    if not plain and "/" not in release:
        plain = root.data(f"/boot/config-{release}") or b""
    found = _CONFIG.search(plain)
    return found[1].decode().lower() if found else None


def _unpacked(packed: bytes) -> bytes:
    try:
        return zlib.decompressobj(31).decompress(packed, _MOST_CONFIG)
    except zlib.error:
        return b""
