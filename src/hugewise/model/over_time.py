"""What `report.json` tells of the attempts of a cell over time, and of the tail of their latencies."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hugewise.model.sampled import Stall

__all__ = ["ArmFootprint", "ArmOverTime", "ArmStall", "IdleMemory", "SamplerCost", "TailQuantile"]


class TailQuantile(msgspec.Struct, frozen=True, kw_only=True):
    """A quantile of the latency under an arm against that under the baseline: one value of each attempt, paired within
    blocks, never over pooled requests. It claims nothing: each interval holds by itself at `confidence`.

    median_us, baseline_us   the medians of the attempts' quantiles
    n            pairs
    ratio, low, high   arm/baseline: the typical ratio and its interval; an end is null where the pairs do not bound it
    """

    arm: str
    baseline: str
    metric: str
    probability: float
    median_us: float | None
    baseline_us: float | None
    n: int
    ratio: float | None
    low: float | None
    high: float | None
    confidence: float
    reason: str


class ArmStall(msgspec.Struct, frozen=True, kw_only=True):
    """One of the worst stalls of an arm, of the attempt `number` in `block`.

    unusual   those of its events that were more than twice what is usual in that attempt: what fell into the same
              seconds, and need not be the cause
    """

    arm: str
    block: int
    number: int
    stall: Stall
    unusual: tuple[str, ...] = ()


class IdleMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of an arm's servers in bytes, medians of the attempts that have it: at its most, at the end of the
    measured part, and idle when khugepaged has looked at all of it twice; null where none has.

    n            attempts with an idle footprint; why: the reason of those without
    ratio, low, high   idle against that of the baseline, in pairs, with its interval by itself; null for the baseline
    """

    arm: str
    n: int
    peak: float | None
    footprint: float | None
    idle: float | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    why: str = ""


class ArmFootprint(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of an arm at the proof (`footprint_bytes`: pages of pools that are in use with it) against the baseline's,
    in pairs, with its interval by itself at `confidence`; it claims nothing.

    value, value_baseline   medians of the accepted attempts, in bytes
    n            pairs, of the first 200 blocks
    ratio, low, high   arm/baseline: the typical ratio and its interval; an end is null where the pairs do not bound it
    """

    arm: str
    baseline: str
    value: float
    value_baseline: float
    n: int
    ratio: float | None
    low: float | None
    high: float | None
    confidence: float
    constant: bool = False
    reason: str = ""


class SamplerCost(msgspec.Struct, frozen=True, kw_only=True):
    """CPU time of the sampler over that of the workload, in the measured parts of `n` accepted attempts.

    marked   attempts in which it was above 0.5%: they count, and are named among the disturbances
    unknown  attempts beside them whose own CPU time is not known, and the share with it
    """

    n: int
    median: float
    largest: float
    marked: int
    unknown: int = 0


class ArmOverTime(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of an arm over time: the middle one of `of`, by the cell's metric. The counters are the whole
    machine's. Times are seconds of the measured part, which ends at `length_s`; readings before it are negative.

    t_s         of each reading; of a long attempt every so many
    memory      bytes by `anon:SIZE` and `hugetlb:SIZE` at each of them; empty where the kernel does not count by size
    events      what was counted from each reading to the next (`analysis.line_up`), but for what never happened
    absent      what this machine does not have, and why
    interval_s  of `operations`, which were answered in each interval from 0 s on, and `p99_us`; null where the workload
                does not tell them
    latency_us  of its operations, from the whole histogram, and `as_slow`, the share of them that took as long or
                longer, from 1 to that of the longest; thinned evenly over the logarithm of the share, and empty where
                the workload keeps no histogram
    """

    arm: str
    block: int
    number: int
    of: int
    length_s: float
    t_s: tuple[float, ...]
    memory: Mapping[str, tuple[int | None, ...]]
    events: Mapping[str, tuple[float | None, ...]]
    absent: Mapping[str, str]
    interval_s: float | None
    operations: tuple[int, ...] = ()
    p99_us: tuple[float | None, ...] = ()
    latency_us: tuple[float, ...] = ()
    as_slow: tuple[float, ...] = ()
