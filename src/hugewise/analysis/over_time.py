"""Series over time, tails and stalls of a cell's attempts, for the report and `report.json`. Nothing here is judged.

A figure over time is of the middle attempt of an arm by the cell's metric: a mean of several would show an attempt that
never was. That two things fell into one second proves no cause: so beside the counters of a stall stands what is usual,
the median over the readings of the measured part.

Sources of the counters: Documentation/admin-guide/mm/transhuge.rst, accounting/psi.rst; mm/vmstat.c of the kernel.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from hugewise.errors import RunError
from hugewise.model.metric import Metric
from hugewise.model.over_time import (
    MOST_SHARE,
    ArmFootprint,
    ArmOverTime,
    ArmStall,
    SamplerCost,
    SampleSeries,
    Stall,
    TailQuantile,
)
from hugewise.model.results import Comparison
from hugewise.model.trial import Attempt, Block
from hugewise.stats.method import Contrast
from hugewise.stats.sequential import Unjudged
from hugewise.store.dataset import samples

_FAULT = "anon_fault_alloc"
_MICROSECOND = 1e-6
_MOST = 10  # stalls of an attempt that are kept


def _of(*names: str, factor: float = 1.0) -> Callable[[SampleSeries, int, int], float | None]:
    def rise(series: SampleSeries, first: int, last: int) -> float | None:
        rises = [_rise(series, name, first, last) for name in names]
        known = [each for each in rises if each is not None]
        return factor * sum(known) if known and len(known) == len(rises) else None

    return rise


def _beginning(start: str) -> Callable[[SampleSeries, int, int], float | None]:
    def rise(series: SampleSeries, first: int, last: int) -> float | None:
        names = [name for each in (series.constant, series.changed) for name in each if name.startswith(start)]
        return _of(*names)(series, first, last)

    return rise


def _cleared(series: SampleSeries, first: int, last: int) -> float | None:
    sizes = [name.split(".")[1] for each in (series.constant, series.changed) for name in each if _is_fault(name)]
    rises = [(int(size), _rise(series, f"thp.{size}.{_FAULT}", first, last)) for size in sizes]
    known = [size * rise for size, rise in rises if rise is not None]
    return float(sum(known)) if known and len(known) == len(rises) else None


def _is_fault(name: str) -> bool:
    return name.startswith("thp.") and name.endswith(f".{_FAULT}")


def _rise(series: SampleSeries, name: str, first: int, last: int) -> int | None:
    values = series.column(name)
    if values is None:
        return None
    before, after = values[first], values[last]
    return None if before is None or after is None or after < before else after - before


EVENTS: Mapping[str, tuple[Callable[[SampleSeries, int, int], float | None], str]] = {
    "compaction_stalls": (_of("vmstat.compact_stall"), "allocations that waited for compaction"),
    "compaction_pages": (
        _of("vmstat.compact_migrate_scanned"),
        "base pages that compaction scanned in order to move them",
    ),
    "huge_faults": (
        _of("vmstat.thp_fault_alloc"),
        "page faults that were given a transparent huge page of the PMD size",
    ),
    "huge_bytes_cleared": (_cleared, "bytes in huge pages of any size that faults were given"),
    "huge_fallbacks": (_of("vmstat.thp_fault_fallback"), "faults that were to have one and got base pages"),
    "collapsed_pages": (_of("khugepaged.pages_collapsed"), "huge pages that khugepaged has made"),
    "khugepaged_scans": (_of("khugepaged.full_scans"), "passes of khugepaged over all memory that ended"),
    "split_pages": (
        _of("vmstat.thp_split_page", "vmstat.thp_split_pmd"),
        "huge pages and mappings of huge pages that were split",
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
"""Counters between two readings, by name, with their meaning. Values are of the whole machine."""


def between(series: SampleSeries, first: int, last: int) -> dict[str, float]:
    """Return the counts between the readings `first` and `last`, without counters that the machine lacks."""
    found = {name: rise(series, first, last) for name, (rise, _) in EVENTS.items()}
    return {name: value for name, value in found.items() if value is not None}


def lined_up(series: SampleSeries, stalls: Sequence[Stall]) -> tuple[Stall, ...]:
    """Return the worst stalls with what was counted between the last reading before each and the first one after it."""
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
    spans = [(between(series, first, last), series.t_s[last] - series.t_s[first]) for first, last in pairwise(inside)]
    rates = [{name: value / length for name, value in one.items()} for one, length in spans if length > 0]
    found: dict[str, list[float]] = {}
    for one in rates:
        for name, rate in one.items():
            found.setdefault(name, []).append(rate)
    return {name: statistics.median(several) for name, several in found.items()}


QUANTILES: Mapping[str, tuple[float, int]] = {
    "p50_us": (0.5, 1),
    "p90_us": (0.9, 100),
    "p99_us": (0.99, 1_000),
    "p999_us": (0.999, 10_000),
    "p9999_us": (0.9999, 100_000),
}
"""Metrics that are quantiles of a latency, and how many operations an attempt must have for each: ten beyond it."""

_FOOTPRINT = "footprint_bytes"
_MOST_BLOCKS = 200
_STALLS = 5  # of each arm
_MOST_POINTS = 600  # of a series in report.json


class BesideJudged(NamedTuple):
    """Comparison of quantities beside the judged one: over these blocks, each by itself."""

    blocks: Sequence[Block]
    planned: int
    confidence: float
    margin: float

    def comparison(self, contrast: Contrast, metric: Metric) -> Comparison:
        """Compare by inversion of the exact test of the coins, which holds whenever one looks; it claims nothing."""
        method = Unjudged(
            msgspec.structs.replace(contrast, metric=metric),
            (),
            planned=max(self.planned, contrast.copies * len(self.blocks)),
            alpha=1 - self.confidence,
            margin=self.margin,
        )
        for block in self.blocks:
            method.observe(block)
        return method.comparison()


def tail(contrasts: Sequence[Contrast], attempts: Sequence[Attempt], paired: BesideJudged) -> Iterator[TailQuantile]:
    """Yield each quantile of each arm: one value an attempt, compared within blocks, never over pooled requests."""
    for name, (probability, least) in QUANTILES.items():
        for contrast in contrasts:
            mine, base = (
                [_value(one, name, least) for one in attempts if one.arm == arm]
                for arm in (contrast.arm, contrast.baseline)
            )
            if not mine or not base or None in mine or None in base:
                continue
            found = paired.comparison(contrast, Metric(name, "us", "lower", f"quantile {probability:g} of the latency"))
            yield TailQuantile(
                arm=contrast.arm,
                baseline=contrast.baseline,
                metric=name,
                probability=probability,
                median_us=_median(mine),
                baseline_us=_median(base),
                n=found.n,
                ratio=found.ratio,
                low=found.low,
                high=found.high,
                confidence=paired.confidence,
                reason=found.reason,
            )


def footprints(
    contrasts: Sequence[Contrast], attempts: Sequence[Attempt], paired: BesideJudged
) -> Iterator[ArmFootprint]:
    """Yield memory of each arm against its baseline's. The interval is of the first 200 blocks: memory varies little,
    and inverting the test over thousands of pairs takes long.
    """
    paired = paired._replace(blocks=paired.blocks[:_MOST_BLOCKS])
    for contrast in contrasts:
        mine, base = (
            _median([one.metrics.get(_FOOTPRINT) for one in attempts if one.arm == arm])
            for arm in (contrast.arm, contrast.baseline)
        )
        if mine is None or base is None:
            continue
        said = paired.comparison(contrast, Metric(_FOOTPRINT, "bytes", "lower", "memory at the proof"))
        yield ArmFootprint(
            arm=contrast.arm,
            baseline=contrast.baseline,
            value=mine,
            value_baseline=base,
            n=said.n,
            ratio=said.ratio,
            low=said.low,
            high=said.high,
            confidence=paired.confidence,
            constant=said.constant,
            reason=said.reason,
        )


def _median(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return statistics.median(known) if known else None


def _value(attempt: Attempt, name: str, least: int) -> float | None:
    operations = attempt.facts.get("operations")
    if least > 1 and not (isinstance(operations, int) and operations >= least):
        return None
    return attempt.metrics.get(name)


def worst_stalls(arms: Sequence[str], attempts: Sequence[Attempt]) -> Iterator[ArmStall]:
    """Yield the slowest operations of each arm, at most one of each accepted attempt, the worst first."""
    for arm in arms:
        own = [
            (max(one.stalls, key=lambda each: each.latency_s), one) for one in attempts if one.arm == arm and one.stalls
        ]
        for stall, one in sorted(own, key=lambda each: -each[0].latency_s)[:_STALLS]:
            yield ArmStall(arm=arm, block=one.block, number=one.number, stall=stall, unusual=_unusual(stall))


def _unusual(stall: Stall) -> tuple[str, ...]:
    if stall.from_s is None or stall.to_s is None:
        return ()
    length = stall.to_s - stall.from_s
    return tuple(
        name
        for name in EVENTS
        if (seen := stall.events.get(name)) and name in stall.usual and seen > 2 * length * stall.usual[name]
    )


def sampler_cost(attempts: Sequence[Attempt]) -> SamplerCost | None:
    """Return the share of CPU time that reading the counters took; None where they were not read."""
    shares = [one.sampled.share for one in attempts if one.sampled is not None and one.sampled.share is not None]
    if not shares:
        return None
    return SamplerCost(
        n=len(shares),
        median=statistics.median(shares),
        largest=max(shares),
        marked=sum(share > MOST_SHARE for share in shares),
        unknown=sum(
            one.sampled is not None and one.sampled.period_s is not None and one.sampled.share is None
            for one in attempts
        ),
    )


def series_of_arms(
    run: Path, arms: Sequence[str], metric: str, attempts: Sequence[Attempt], problems: list[str]
) -> Iterator[ArmOverTime]:
    """Yield the middle attempt of each arm over time. What cannot be read is told in `problems`, and left out."""
    by_arm: defaultdict[str, list[Attempt]] = defaultdict(list)
    for one in attempts:
        if one.sampled is not None and one.metrics.get(metric) is not None:
            by_arm[one.arm].append(one)
    for arm in arms:
        ordered = sorted(by_arm[arm], key=lambda one: (one.metrics[metric] or 0.0, one.block))
        if not ordered:
            continue
        middle = ordered[(len(ordered) - 1) // 2]
        try:
            series = samples(run, middle)
        except RunError as error:
            problems.append(f"what {arm} did over time is not shown: {error.message.replace(f'{run}/', '')}")
            continue
        if series is not None:
            yield thinned(arm, middle, series, len(ordered))


def thinned(arm: str, attempt: Attempt, series: SampleSeries, of: int) -> ArmOverTime:
    """Return a series as shown: memory by page size, events between readings, latencies by second."""
    every = max(1, math.ceil(len(series.t_s) / _MOST_POINTS))
    places = sorted({*range(0, len(series.t_s), every), *([len(series.t_s) - 1] if series.t_s else [])})
    several = [between(series, first, last) for first, last in pairwise(places)]
    names = [name for name in EVENTS if any(one.get(name) for one in several)]
    seconds = series.seconds
    # The last interval is a part of one: its operations are not those of a second.
    whole = 0 if seconds is None else int(series.length_s / (seconds.interval_ns / 1e9) + 1e-9)
    return ArmOverTime(
        arm=arm,
        block=attempt.block,
        number=attempt.number,
        of=of,
        length_s=series.length_s,
        t_s=tuple(series.t_s[place] for place in places),
        memory={name: tuple(values[place] for place in places) for name, values in memory(series).items()},
        events={name: tuple(one.get(name) for one in several) for name in names},
        absent=series.absent,
        interval_s=None if seconds is None else seconds.interval_ns / 1e9,
        operations=() if seconds is None else seconds.operations[:whole],
        p99_us=() if seconds is None else tuple(None if one is None else one / 1e3 for one in seconds.p99_ns[:whole]),
    )


def memory(series: SampleSeries) -> dict[str, tuple[int | None, ...]]:
    """Return the machine's bytes of anonymous memory and pools, `anon:SIZE` and `hugetlb:SIZE`, at each reading; empty
    where the kernel does not count by size. Huge pages mapped in part count whole.
    """
    counts = _by_size(series, "thp", "nr_anon")
    anon = series.column("vmstat.nr_anon_pages")
    found: dict[str, tuple[int | None, ...]] = {}
    if anon is not None and counts:
        huge = {size: tuple(None if one is None else one * size for one in values) for size, values in counts.items()}
        rest = []
        for place, pages in enumerate(anon):
            parts = [values[place] for values in huge.values()]
            known = [part for part in parts if part is not None]
            whole = pages is not None and len(known) == len(parts)
            rest.append(max(0, pages * series.base_size - sum(known)) if whole and pages is not None else None)
        found[f"anon:{series.base_size}"] = tuple(rest)
        found |= {f"anon:{size}": values for size, values in huge.items() if any(values)}
    pools, free = _by_size(series, "hugetlb", "nr_hugepages"), _by_size(series, "hugetlb", "free_hugepages")
    for size in pools.keys() & free.keys():
        used = tuple(
            None if pages is None or left is None else max(0, pages - left) * size
            for pages, left in zip(pools[size], free[size], strict=True)
        )
        if any(used):
            found[f"hugetlb:{size}"] = used
    return found


def _by_size(series: SampleSeries, kind: str, name: str) -> dict[int, tuple[int | None, ...]]:
    found = {}
    for column in (*series.constant, *series.changed):
        first, _, rest = column.partition(".")
        size, _, last = rest.partition(".")
        if first == kind and last == name and size.isdecimal():
            found[int(size)] = series.column(column) or ()
    return dict(sorted(found.items()))
