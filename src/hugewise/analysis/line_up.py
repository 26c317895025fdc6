"""What the kernel did around the slowest operations of an attempt, by the machine's counters of the same seconds. Pure.

That two things fell into one second is no proof that one caused the other: so beside what was counted there stands what
is usual, the median over the readings of the measured part. The counters are the whole machine's.

Sources of the counters: Documentation/admin-guide/mm/transhuge.rst and accounting/psi.rst of the Linux kernel, and
mm/vmstat.c for the names.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import msgspec

from hugewise.model.sampled import SampleSeries, Stall

__all__ = ["EVENTS", "between", "lined_up"]

_FAULT = "anon_fault_alloc"
_MICROSECOND = 1e-6
_MOST = 10  # stalls of an attempt that are kept


def _of(*names: str, factor: float = 1.0) -> Callable[[SampleSeries, int, int], float | None]:
    """The sum of how far counters rose between two readings; None where one of them is not known."""

    def rise(series: SampleSeries, first: int, last: int) -> float | None:
        rises = [_rise(series, name, first, last) for name in names]
        known = [each for each in rises if each is not None]
        return factor * sum(known) if known and len(known) == len(rises) else None

    return rise


def _beginning(start: str) -> Callable[[SampleSeries, int, int], float | None]:
    """The same of all counters whose names begin so."""

    def rise(series: SampleSeries, first: int, last: int) -> float | None:
        names = [name for each in (series.constant, series.changed) for name in each if name.startswith(start)]
        return _of(*names)(series, first, last)

    return rise


def _cleared(series: SampleSeries, first: int, last: int) -> float | None:
    """Bytes in huge pages that faults were given, all of which the kernel cleared meanwhile."""
    sizes = [name.split(".")[1] for each in (series.constant, series.changed) for name in each if _is_fault(name)]
    rises = [(int(size), _rise(series, f"thp.{size}.{_FAULT}", first, last)) for size in sizes]
    known = [size * rise for size, rise in rises if rise is not None]
    return float(sum(known)) if known and len(known) == len(rises) else None


def _is_fault(name: str) -> bool:
    return name.startswith("thp.") and name.endswith(f".{_FAULT}")


def _rise(series: SampleSeries, name: str, first: int, last: int) -> int | None:
    """How far it rose; None where it was not read, or fell (a counter that began anew)."""
    values = series.column(name)
    if values is None:
        return None
    before, after = values[first], values[last]
    return None if before is None or after is None or after < before else after - before


EVENTS: Mapping[str, tuple[Callable[[SampleSeries, int, int], float | None], str]] = {
    "compaction_stalls": (_of("vmstat.compact_stall"), "allocations that waited for compaction"),
    "compaction_pages": (
        _of("vmstat.compact_migrate_scanned"),
        "base pages that compaction scanned in order to move them, in whatever context",
    ),
    "huge_faults": (
        _of("vmstat.thp_fault_alloc"),
        "page faults that were given a transparent huge page of the PMD size",
    ),
    "huge_bytes_cleared": (_cleared, "bytes in huge pages of any size that faults were given, which are cleared first"),
    "huge_fallbacks": (_of("vmstat.thp_fault_fallback"), "faults that were to have one and got base pages"),
    "collapsed_pages": (_of("khugepaged.pages_collapsed"), "huge pages that khugepaged has made"),
    "khugepaged_scans": (_of("khugepaged.full_scans"), "passes of khugepaged over all memory that ended"),
    "split_pages": (
        _of("vmstat.thp_split_page", "vmstat.thp_split_pmd"),
        "huge pages, and mappings of huge pages, that were split",
    ),
    "begun": (
        _of("processes.last_pid"),
        "processes and threads that began (forks; the difference of the numbers that were given last)",
    ),
    "faults": (_of("vmstat.pgfault"), "page faults"),
    "major_faults": (_of("vmstat.pgmajfault"), "page faults that waited for a disk"),
    "swapped_pages": (_of("vmstat.pswpin", "vmstat.pswpout"), "base pages swapped in and out"),
    "reclaim_stalls": (_beginning("vmstat.allocstall"), "allocations that reclaimed memory themselves"),
    "memory_stalled_s": (
        _of("pressure.memory.some", factor=_MICROSECOND),
        "seconds in which a task waited for memory (PSI)",
    ),
    "cpu_stalled_s": (_of("pressure.cpu.some", factor=_MICROSECOND), "seconds in which a task waited for a CPU (PSI)"),
}
"""What is counted between two readings, by name, with what it is. Values are of the whole machine."""


def between(series: SampleSeries, first: int, last: int) -> dict[str, float]:
    """What was counted between the readings `first` and `last`; what the machine does not count is not there."""
    found = {name: rise(series, first, last) for name, (rise, _) in EVENTS.items()}
    return {name: value for name, value in found.items() if value is not None}


def lined_up(series: SampleSeries, stalls: Sequence[Stall]) -> tuple[Stall, ...]:
    """The worst stalls with what was counted between the last reading before each and the first one after it."""
    inside = [place for place, t in enumerate(series.t_s) if 0 <= t <= series.length_s]
    usual = _usual(series, inside)
    found = []
    for stall in sorted(stalls, key=lambda one: -one.latency_s)[:_MOST]:
        around = _around(series.t_s, stall.at_s, stall.at_s + stall.latency_s)
        if around is None:
            found.append(stall)
            continue
        first, last = around
        found.append(
            msgspec.structs.replace(
                stall,
                from_s=series.t_s[first],
                to_s=series.t_s[last],
                events=between(series, first, last),
                usual=usual,
            )
        )
    return tuple(found)


def _around(times: Sequence[float], begin: float, end: float) -> tuple[int, int] | None:
    before = [place for place, t in enumerate(times) if t <= begin]
    after = [place for place, t in enumerate(times) if t >= end]
    return (before[-1], after[0]) if before and after else None


def _usual(series: SampleSeries, inside: Sequence[int]) -> dict[str, float]:
    """What was counted a second from one reading of the measured part to the next: the median of what is known."""
    spans = [(between(series, first, last), series.t_s[last] - series.t_s[first]) for first, last in pairwise(inside)]
    rates = [{name: value / length for name, value in one.items()} for one, length in spans if length > 0]
    found: dict[str, list[float]] = {}
    for one in rates:
        for name, rate in one.items():
            found.setdefault(name, []).append(rate)
    return {name: statistics.median(several) for name, several in found.items()}
