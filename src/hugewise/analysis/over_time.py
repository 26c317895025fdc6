"""What the attempts of a cell have over time and in their tail: for the report and `report.json`.

Nothing here is judged. A figure over time is of one attempt, the middle one of its arm by the cell's metric: a mean of
several would show an attempt that never was.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from hugewise.analysis.line_up import EVENTS, between
from hugewise.errors import RunError
from hugewise.model.metric import Metric
from hugewise.model.over_time import ArmFootprint, ArmOverTime, ArmStall, IdleMemory, SamplerCost, TailQuantile
from hugewise.model.results import Comparison
from hugewise.model.sampled import MOST_SHARE, SampleSeries, Stall
from hugewise.model.trial import Attempt, Block
from hugewise.stats.method import Contrast
from hugewise.stats.survival import survival
from hugewise.stats.unjudged import Unjudged
from hugewise.store.samples import samples

__all__ = [
    "QUANTILES",
    "BesideJudged",
    "footprints",
    "idle_memory",
    "sampler_cost",
    "series_of_arms",
    "tail",
    "worst_stalls",
]

QUANTILES: Mapping[str, tuple[float, int]] = {
    "p50_us": (0.5, 1),
    "p90_us": (0.9, 100),
    "p99_us": (0.99, 1_000),
    "p999_us": (0.999, 10_000),
    "p9999_us": (0.9999, 100_000),
}
"""Metrics that are quantiles of a latency, and how many operations an attempt must have for each: ten beyond it."""

_IDLE = "idle_footprint_bytes"
_FOOTPRINT = "footprint_bytes"
_MOST_BLOCKS = 200
_STALLS = 5  # of each arm
_MOST_POINTS = 600  # of a series in report.json


class BesideJudged(NamedTuple):
    """How quantities beside the judged one are compared: over these blocks, each by itself."""

    blocks: Sequence[Block]
    planned: int
    confidence: float
    margin: float

    def comparison(self, contrast: Contrast, metric: Metric) -> Comparison:
        """By inversion of the exact test of the coins, which holds whenever one looks; it claims nothing."""
        method = Unjudged(
            msgspec.structs.replace(contrast, metric=metric),
            (),
            planned=max(self.planned, len(self.blocks)),
            alpha=1 - self.confidence,
            margin=self.margin,
        )
        for block in self.blocks:
            method.observe(block)
        return method.comparison()


def tail(contrasts: Sequence[Contrast], attempts: Sequence[Attempt], paired: BesideJudged) -> Iterator[TailQuantile]:
    """Each quantile of each arm: one value of each attempt, compared within blocks, never over pooled requests.

    A quantile that an attempt has too few operations for is left out.
    """
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


def idle_memory(
    arms: Sequence[str], contrasts: Sequence[Contrast], attempts: Sequence[Attempt], paired: BesideJudged
) -> Iterator[IdleMemory]:
    """What the servers of each arm have when they are idle; nothing where the study did not ask."""
    if not any(one.metrics.get(_IDLE) is not None for one in attempts):
        return
    by_arm = {contrast.arm: contrast for contrast in contrasts}
    for arm in arms:
        own = [one for one in attempts if one.arm == arm]
        known = [one for one in own if one.metrics.get(_IDLE) is not None]
        found = IdleMemory(
            arm=arm,
            n=len(known),
            peak=_median([one.peak_bytes for one in own]),
            footprint=_median([one.metrics.get("footprint_bytes") for one in own]),
            idle=_median([one.metrics.get(_IDLE) for one in known]),
            why=next((one.absent[_IDLE] for one in own if _IDLE in one.absent), ""),
        )
        if arm in by_arm and known:
            said = paired.comparison(by_arm[arm], Metric(_IDLE, "bytes", "lower", "memory of idle servers"))
            found = msgspec.structs.replace(
                found, ratio=said.ratio, low=said.low, high=said.high, confidence=paired.confidence
            )
        yield found


def footprints(
    contrasts: Sequence[Contrast], attempts: Sequence[Attempt], paired: BesideJudged
) -> Iterator[ArmFootprint]:
    """Memory of each arm against its baseline's; nothing of an arm without it on either side.

    The interval is of the first 200 blocks: memory varies little, and to invert the test over thousands of pairs takes
    longer than all else that is told of a run.
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
    """The slowest operations of each arm over its accepted attempts, one of each attempt at most, the worst first."""
    for arm in arms:
        own = [
            (max(one.stalls, key=lambda each: each.latency_s), one) for one in attempts if one.arm == arm and one.stalls
        ]
        for stall, one in sorted(own, key=lambda each: -each[0].latency_s)[:_STALLS]:
            yield ArmStall(arm=arm, block=one.block, number=one.number, stall=stall, unusual=_unusual(stall))


def _unusual(stall: Stall) -> tuple[str, ...]:
    """Names of what was counted in its seconds and is not usual: more than twice the median, and not none. Where nobody
    knows what is usual, nothing is unusual.
    """
    if stall.from_s is None or stall.to_s is None:
        return ()
    length = stall.to_s - stall.from_s
    return tuple(
        name
        for name in EVENTS
        if (seen := stall.events.get(name)) and name in stall.usual and seen > 2 * length * stall.usual[name]
    )


def sampler_cost(attempts: Sequence[Attempt]) -> SamplerCost | None:
    """What reading the counters took of the workload's CPU time; None where they were not read."""
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
    """The middle attempt of each arm over time. What cannot be read is told in `problems`, and left out."""
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
            yield shown(arm, middle, series, len(ordered))


def shown(arm: str, attempt: Attempt, series: SampleSeries, of: int) -> ArmOverTime:
    """A series as it is shown: memory by page size at each reading, events between readings, latencies by second."""
    every = max(1, math.ceil(len(series.t_s) / _MOST_POINTS))
    places = sorted({*range(0, len(series.t_s), every), *([len(series.t_s) - 1] if series.t_s else [])})
    several = [between(series, first, last) for first, last in pairwise(places)]
    names = [name for name in EVENTS if any(one.get(name) for one in several)]
    seconds, buckets = series.seconds, series.latency
    slow = [] if buckets is None else survival(zip(buckets.up_to_ns, buckets.counts, strict=True))
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
        latency_us=tuple(value / 1e3 for value, _ in slow),
        as_slow=tuple(share for _, share in slow),
    )


def memory(series: SampleSeries) -> dict[str, tuple[int | None, ...]]:
    """Bytes of anonymous memory and of pools by page size, `anon:SIZE` and `hugetlb:SIZE`, at each reading.

    Of the whole machine. Huge pages that are mapped in part count whole, so that what is left for base pages can be
    less than there is. Empty where the kernel does not count anonymous memory by size.
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
    """The columns `kind.SIZE.name` by size."""
    found = {}
    for column in (*series.constant, *series.changed):
        first, _, rest = column.partition(".")
        size, _, last = rest.partition(".")
        if first == kind and last == name and size.isdecimal():
            found[int(size)] = series.column(column) or ()
    return dict(sorted(found.items()))
