"""Result of `hugewise inspect`: the types of its JSON. Sizes are bytes; unknown values are null, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from hugewise.inspection.reasons import ReasonId

FORMAT = 2
"""Rises when a meaning changes; new keys may come without that."""

MappingKind = Literal["heap", "anonymous", "stack", "file", "shmem", "hugetlb"]
PageKind = Literal["anon", "shmem", "file", "hugetlb", "unproven"]


class SizeBacked(msgspec.Struct, frozen=True, kw_only=True):
    """Memory in folios of one size.

    pages      what they are: anonymous, shared memory, of files, of a pool; unproven: the size is not known (smaps)
    size       of the folio; null where it is not known
    pmd        mapped by one entry of the page middle directory, or above it
    aligned    whole, by base entries, virtual and physical address agreeing modulo the size: a TLB may join the entries
    unaligned  whole, by base entries, off that alignment
    partial    by base entries, of folios of which this process does not map all in one piece
    """

    pages: PageKind
    size: int | None
    bytes: int
    pmd: int | None = None
    aligned: int | None = None
    unaligned: int | None = None
    partial: int | None = None


class KindBacked(msgspec.Struct, frozen=True, kw_only=True):
    """All mappings of one kind. `large` is in pages above the base size, by whatever entries; `zero` reads as zero and
    has no memory. `missing` is eligible for larger pages, or could be, and has none.
    """

    kind: MappingKind
    mappings: int
    bytes: int
    large: int | None
    swapped: int
    zero: int | None = None
    missing: int | None = None
    sizes: tuple[SizeBacked, ...]


class LostBacking(msgspec.Struct, frozen=True, kw_only=True):
    """Memory in base pages that could be in pages of `size`: `bytes` of it, the reason, and the cure.

    bytes    null: not known, for smaps does not tell the sizes between
    evidence what the kernel counts of that, over the whole host since it was booted
    """

    id: ReasonId
    size: int | None
    bytes: int | None
    text: str
    cure: str | None
    evidence: str | None = None


class MappingInspected(msgspec.Struct, frozen=True, kw_only=True):
    """Mapping, and what backs it. `eligible` and `advised` are what smaps says (THPeligible, VmFlags); advised `huge`
    (MADV_HUGEPAGE), `base` (MADV_NOHUGEPAGE), or null. `whole` is in blocks of the PMD size that are touched throughout
    and not mapped as one. `nodes` is by NUMA node; null where the kernel does not say.
    """

    pid: int
    start: str
    end: str
    permissions: str
    kind: MappingKind
    name: str
    bytes: int
    large: int | None
    swapped: int
    sizes: tuple[SizeBacked, ...]
    whole: int | None
    nodes: Mapping[int, int] | None
    eligible: bool | None
    advised: Literal["huge", "base"] | None
    lost: LostBacking | None


class ProcessInspected(msgspec.Struct, frozen=True, kw_only=True):
    """A process that was looked at. `started` is in ticks since the boot (field 22 of /proc/PID/stat): with `pid` it
    names the process for ever. `thp_disabled`: prctl(PR_SET_THP_DISABLE); null where the kernel does not say. `tunable`
    is glibc.malloc.hugetlb as it was begun with.
    """

    pid: int
    started: int
    command: str
    uid: int
    bytes: int
    large: int | None
    thp_disabled: bool | None
    allocator: str | None
    tunable: int | None


class SizeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Kernel's counts for one size, over the whole host since it was booted: the files of hugepages-SIZEkB/stats by
    name. `reason`: why there are none.
    """

    size: int
    enabled: str | None
    shmem_enabled: str | None
    counts: Mapping[str, int]
    reason: str | None = None


class KernelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Kernel's counts over the whole host since it was booted: by size, events of /proc/vmstat (null: this kernel has
    none of that name), and khugepaged's own counts and settings.
    """

    sizes: tuple[SizeStatistics, ...]
    events: Mapping[str, int | None]
    khugepaged: Mapping[str, int | None]


class ChargedToGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Memory from memory.stat of the group: PMD-mapped pages alone, including memory that nobody maps now."""

    path: str
    anonymous: int | None
    anonymous_huge: int | None
    file_huge: int | None
    shmem_huge: int | None


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """The answer.

    taken         seconds since 1970
    source        kpageflags: exact, from physical page flags; smaps: what an ordinary user can know; capture: a file
                  (--smaps), of which `processes` and `rules` are empty and the `pid` of each mapping is 0
    once          pages that several of the processes map count once in `sizes` and `kinds`
    sizes, kinds  of all processes together; mappings: of each, the largest first
    lost          why memory is in base pages, over all mappings
    look_s        what the look took; `scan_s` of it the scan of page tables, null without one
    """

    format: int = FORMAT
    subject: str
    taken: float
    source: Literal["kpageflags", "smaps", "capture"]
    once: bool
    base: int
    bytes: int
    large: int | None
    swapped: int
    sizes: tuple[SizeBacked, ...]
    kinds: tuple[KindBacked, ...]
    nodes: Mapping[int, int] | None
    lost: tuple[LostBacking, ...]
    processes: tuple[ProcessInspected, ...]
    mappings: tuple[MappingInspected, ...]
    statistics: KernelStatistics
    group: ChargedToGroup | None
    rules: tuple[str, ...]
    notes: tuple[str, ...]
    look_s: float
    scan_s: float | None
