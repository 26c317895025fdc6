"""What the kernel counts of huge pages, over the whole host since it was booted: by size, and khugepaged's.

Source: Documentation/admin-guide/mm/transhuge.rst of the Linux kernel, "Monitoring usage".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hugewise.inspection.inspected import KernelStatistics, SizeStatistics
from hugewise.inspection.rules import Rules
from hugewise.model.host import Host, number_of, text_of
from hugewise.model.pages import THP
from hugewise.quantity import format_size

__all__ = ["EVENTS", "KHUGEPAGED", "changed", "evidence", "kernel_statistics"]

EVENTS = (
    *("thp_fault_alloc", "thp_fault_fallback", "thp_fault_fallback_charge", "thp_collapse_alloc"),
    *("thp_collapse_alloc_failed", "thp_file_alloc", "thp_file_fallback", "thp_split_page", "thp_split_pmd"),
    *("thp_deferred_split_page", "thp_underused_split_page", "thp_zero_page_alloc", "thp_swpout"),
    *("thp_swpout_fallback", "compact_stall", "compact_fail", "compact_success"),
)
KHUGEPAGED = (
    *("pages_collapsed", "full_scans", "pages_to_scan", "scan_sleep_millisecs"),
    *("max_ptes_none", "max_ptes_swap", "max_ptes_shared", "defrag"),
)
_FEW = 0.01  # of faults that fell back: not worth a word


def kernel_statistics(host: Host, rules: Rules) -> KernelStatistics:
    """Those of `host` now; what this kernel does not count is None, or says why."""
    counted: dict[str, int] = {}
    for line in (text_of(host, "/proc/vmstat") or "").split("\n"):
        name, _, value = line.partition(" ")
        if name in EVENTS and value.isascii() and value.isdigit():
            counted[name] = int(value)
    return KernelStatistics(
        sizes=tuple(_of_size(host, size, rules) for size in sorted({*rules.sizes, *rules.shared})),
        events={name: counted.get(name) for name in EVENTS},
        khugepaged={name: number_of(host, f"{THP}/khugepaged/{name}") for name in KHUGEPAGED},
    )


def _of_size(host: Host, size: int, rules: Rules) -> SizeStatistics:
    folder = f"{THP}/hugepages-{size >> 10}kB/stats"
    read = {name: number_of(host, f"{folder}/{name}") for name in host.names(folder)}
    counts = {name: value for name, value in read.items() if value is not None}
    return SizeStatistics(
        size=size,
        enabled=rules.sizes.get(size),
        shmem_enabled=rules.shared.get(size),
        counts=counts,
        reason=None if counts else f"this kernel has no {folder} (it came with Linux 6.10)",
    )


def changed(now: KernelStatistics, before: KernelStatistics) -> dict[str, int]:
    """What was counted between two looks, by name, where it was something: `64k anon_fault_alloc`, or an event's."""
    found: dict[str, int] = {}
    then = {one.size: one.counts for one in before.sizes}
    for one in now.sizes:
        found |= {
            f"{format_size(one.size)} {name}": value - then[one.size][name]
            for name, value in one.counts.items()
            if name in then.get(one.size, {}) and value != then[one.size][name]
        }
    for names, others in ((now.events, before.events), (now.khugepaged, before.khugepaged)):
        found |= {name: value - old for name, value, old in _both(names, others) if value != old}
    return found


def _both(now: Mapping[str, int | None], before: Mapping[str, int | None]) -> list[tuple[str, int, int]]:
    both = ((name, value, before.get(name)) for name, value in now.items())
    return [(name, value, old) for name, value, old in both if value is not None and old is not None]


def evidence(statistics: KernelStatistics, sizes: Sequence[int]) -> str | None:
    """What the kernel counts of faults that wanted pages of these sizes and got none; None where that says nothing."""
    told = []
    for one in statistics.sizes:
        if one.size not in sizes or not one.counts:
            continue
        got, fell = one.counts.get("anon_fault_alloc"), one.counts.get("anon_fault_fallback")
        if got is None or fell is None or fell <= _FEW * (got + fell):
            continue
        charged = one.counts.get("anon_fault_fallback_charge", 0)
        limit = f" ({charged:,} for a limit of their cgroup)" if charged else ""
        told.append(f"{fell:,} of {got + fell:,} faults that asked for {format_size(one.size)} got none{limit}")
    if told:
        tried, failed = statistics.events.get("compact_stall"), statistics.events.get("compact_fail")
        if tried and failed is not None:
            told.append(f"{failed:,} of {tried:,} direct compactions failed")
    return f"on this host since it was booted: {'; '.join(told)}" if told else None
