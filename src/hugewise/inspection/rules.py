"""The rules of pages that are in force on a machine now: by size, khugepaged's pace, and the pools.

Source: Documentation/admin-guide/mm/transhuge.rst and hugetlbpage.rst of the Linux kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hugewise.model.host import Host, number_of
from hugewise.model.pages import HUGETLB, THP, PageSizes
from hugewise.policies import _thp
from hugewise.quantity import format_size


class Khugepaged(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the daemon that makes huge pages later; None where this kernel does not tell.

    pages_to_scan  base pages at a time; sleep_ms: milliseconds between two times
    max_ptes_none  base pages of a block that may be missing
    """

    pages_to_scan: int | None = None
    sleep_ms: int | None = None
    max_ptes_none: int | None = None

    def pace(self, base: int) -> float | None:
        """Return the most bytes a second that it looks at; None where that is not known."""
        if self.pages_to_scan is None or self.sleep_ms is None:
            return None
        return self.pages_to_scan * base / max(self.sleep_ms / 1000, 1e-3)


class PoolState(msgspec.Struct, frozen=True, kw_only=True):
    """Pages of a hugetlb pool: all, free, promised to mappings (`reserved`), and how many more may be made."""

    pages: int
    free: int
    reserved: int
    overcommit: int

    @property
    def available(self) -> int:
        """Pages that a program could still have."""
        return max(0, self.free - self.reserved) + self.overcommit


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Page settings in force.

    sizes, shared  mode by page size in bytes, `inherit` resolved: for anonymous memory, and for the kernel's shared one
    top            the top-level `enabled`, which glibc looks at
    pools          by page size in bytes
    """

    base: int
    pmd: int | None
    top: str
    defrag: str
    sizes: Mapping[int, str]
    shared: Mapping[int, str]
    khugepaged: Khugepaged
    pools: Mapping[int, PoolState]

    def on(self) -> list[int]:
        """Return the sizes that anonymous memory can have in some way, the largest first."""
        return sorted((size for size, mode in self.sizes.items() if mode != "never"), reverse=True)

    def same(self, other: Rules) -> bool:
        """Return whether the settings are unchanged; free pages of pools change by themselves."""
        mine, others = (msgspec.structs.replace(each, pools={}) for each in (self, other))
        return mine == others

    def lines(self) -> list[str]:
        """Return the settings for the reader."""
        modes = ", ".join(f"{format_size(size)} {mode}" for size, mode in self.sizes.items() if mode != "never")
        shared = ", ".join(f"{format_size(size)} {mode}" for size, mode in self.shared.items() if mode != "never")
        rule_lines = [
            f"transparent huge pages of anonymous memory: {modes or 'never, at any size'}",
            f"of shared memory: {shared or 'never, at any size'}; defrag: {self.defrag}",
        ]
        for size, pool in self.pools.items():
            if pool.pages or pool.overcommit:
                rule_lines.append(
                    f"pool of {format_size(size)} pages: {pool.pages}, {pool.free} free, {pool.reserved} reserved,"
                    f" {pool.overcommit} more when asked for"
                )
        if not any(pool.pages or pool.overcommit for pool in self.pools.values()):
            rule_lines.append("pools of huge pages: all empty")
        return rule_lines


def rules_of(host: Host, base: int | None = None) -> Rules:
    """Return the settings of `host`, whose base page is `base` bytes (None: this host's)."""
    sizes = PageSizes.discover(host, base)
    anonymous = sorted({*sizes.mthp, *([sizes.pmd] if sizes.pmd else [])})
    shared = sorted({*sizes.shmem, *([sizes.pmd] if sizes.pmd else [])})
    return Rules(
        base=sizes.base,
        pmd=sizes.pmd,
        top=_thp.top_mode(host),
        defrag=_thp.chosen(host, f"{THP}/defrag"),
        sizes={size: _thp.mode(host, sizes, size) for size in anonymous},
        shared={size: _thp.mode(host, sizes, size, shared=True) for size in shared},
        khugepaged=Khugepaged(
            pages_to_scan=number_of(host, f"{THP}/khugepaged/pages_to_scan"),
            sleep_ms=number_of(host, f"{THP}/khugepaged/scan_sleep_millisecs"),
            max_ptes_none=number_of(host, f"{THP}/khugepaged/max_ptes_none"),
        ),
        pools={size: _pool(host, f"{HUGETLB}/hugepages-{size >> 10}kB") for size in sizes.hugetlb},
    )


def _pool(host: Host, folder: str) -> PoolState:
    numbers = {name: number_of(host, f"{folder}/{name}") or 0 for name in _POOL}
    return PoolState(
        pages=numbers["nr_hugepages"],
        free=numbers["free_hugepages"],
        reserved=numbers["resv_hugepages"],
        overcommit=max(0, numbers["nr_overcommit_hugepages"] - numbers["surplus_hugepages"]),
    )


_POOL = ("nr_hugepages", "free_hugepages", "resv_hugepages", "nr_overcommit_hugepages", "surplus_hugepages")
