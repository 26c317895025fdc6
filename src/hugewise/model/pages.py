"""Page sizes of a machine, found by what is present in sysfs, and the state of its memory before an attempt.

The state is a factor of a cell, the same for all its arms:

    fresh                as it is found, or as compaction leaves it
    fragmented           no huge page can be made of what is free: each block has a page that cannot be moved
    pressure             the programs have less memory than they want, and swap
    fragmented+pressure  both

What is judged there is the setting: a condition on the pages would choose the attempts that were lucky.

Sources: Documentation/admin-guide/mm/transhuge.rst and hugetlbpage.rst of the Linux kernel.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

import msgspec

from hugewise.model.host import Host, number_in, text_of
from hugewise.quantity import format_size
from hugewise.reading import whole

THP = "/sys/kernel/mm/transparent_hugepage"
HUGETLB = "/sys/kernel/mm/hugepages"
REPORTING = "/sys/module/page_reporting/parameters/page_reporting_order"
"""The file whose text `reported_order` takes."""

PageKind = Literal["base", "thp", "mthp", "hugetlb", "any"]

_DEFAULT = re.compile(r"^Hugepagesize:\s{1,20}(\d{1,12}) kB$", re.MULTILINE)
_MOST_ORDER = 30  # the parameter is (unsigned) -1 until a driver takes reports
_FOLDER = re.compile(r"hugepages-([0-9]{1,12})kB")


class PageTarget(msgspec.Struct, frozen=True):
    """The pages that a policy promises: `size` in bytes; kind `any` promises nothing."""

    kind: PageKind
    size: int

    def __str__(self) -> str:
        return "any page size" if self.kind == "any" else f"{format_size(self.size)} {self.kind} pages"


class PageSizes(msgspec.Struct, frozen=True):
    """Page sizes in bytes: the kernel's base page, the PMD (THP) size or None, mTHP sizes, hugetlb pool sizes.

    `shmem` are those of the mTHP sizes that have a knob for shared memory too, `default` is the size of the pool that
    vm.nr_hugepages counts (None: not known).
    """

    base: int
    pmd: int | None
    mthp: tuple[int, ...]
    hugetlb: tuple[int, ...]
    shmem: tuple[int, ...] = ()
    default: int | None = None

    @classmethod
    def discover(cls, host: Host, base: int | None = None) -> PageSizes:
        """Read them from `host`, whose base page is `base` bytes (None: this host's).

        An absent folder means that the kernel lacks the feature. Raises UnreadableError for a size that is none.
        """
        try:
            pmd = whole(host.read(f"{THP}/hpage_pmd_size"), f"{THP}/hpage_pmd_size", low=1)
        except OSError:
            pmd = None
        anonymous = tuple(size for size in sizes_in(host, THP) if size != pmd and _has(host, size, "enabled"))
        shared = tuple(size for size in anonymous if _has(host, size, "shmem_enabled"))
        counted = _DEFAULT.search(text_of(host, "/proc/meminfo") or "")
        return cls(
            base or os.sysconf("SC_PAGE_SIZE"),
            pmd,
            anonymous,
            tuple(sizes_in(host, HUGETLB)),
            shared,
            int(counted[1]) << 10 if counted else None,
        )


def _has(host: Host, size: int, knob: str) -> bool:
    return text_of(host, f"{THP}/hugepages-{size >> 10}kB/{knob}") is not None


def sizes_in(host: Host, folder: str) -> list[int]:
    """Return the page sizes in bytes that a folder of sysfs has subfolders for, in order."""
    return sorted(int(m[1]) << 10 for name in host.names(folder) if (m := _FOLDER.fullmatch(name)))


def reported_order(text: str | None) -> int | None:
    """Return the smallest order of free blocks that the host of this virtual machine takes back; None: it takes none.

    Source: mm/page_reporting.c, Linux 6.18.
    """
    order = number_in(text)
    return order if order is not None and order <= _MOST_ORDER else None


def page_flags_readable() -> bool:
    """Return whether this process sees physical page numbers and flags, tried on a page of its own.

    Without CAP_SYS_ADMIN the kernel gives page number 0 (Documentation/admin-guide/mm/pagemap.rst), also to a root
    that lacks the capability, as in a container.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    held = bytearray(b"touched")
    try:
        with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap, Path("/proc/kpageflags").open("rb"):
            pagemap.seek(id(held) // page * 8)
            entry = int.from_bytes(pagemap.read(8), "little")
    except OSError:
        return False
    return entry & ((1 << 55) - 1) != 0


MemoryAge = Literal["fresh", "fragmented", "pressure", "fragmented+pressure"]

# In an order in which each differs in one thing from the next, so that a round over all of them fragments once.
AGES: tuple[MemoryAge, ...] = ("fresh", "pressure", "fragmented+pressure", "fragmented")

MOST_OF_FREE = 0.05
MOST_OF_NEED = 0.1


class FreeMemory(msgspec.Struct, frozen=True):
    """Free memory in bytes, and the part of it in blocks that a huge page (of PMD size) fits into."""

    all: int
    huge: int


def fragmented(age: MemoryAge) -> bool:
    """Return whether the free memory is to be fragmented."""
    return age in ("fragmented", "fragmented+pressure")


def pressed(age: MemoryAge) -> bool:
    """Return whether the limit of the cell is to make its programs swap."""
    return age in ("pressure", "fragmented+pressure")


def allowed(free: int, need: int) -> int:
    """Return the most bytes in blocks that a huge page fits into, where `free` bytes are free in all, of memory that
    counts as fragmented for a cell that uses `need` bytes (0: nobody knows).
    """
    most = int(MOST_OF_FREE * free)
    return min(most, int(MOST_OF_NEED * need)) if need else most
