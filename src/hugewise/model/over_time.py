"""Series over time of a cell's attempts, and the tail of their latencies, in `report.json`.

The counters are the whole machine's: what other processes did is in them. A value that the machine does not have is
absent with its reason, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from hugewise.model.reason import Reason

MOST_SHARE = 0.005
"""Above this share of the workload's CPU time the sampler has marked its attempt."""

_Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Text = Annotated[str, msgspec.Meta(max_length=1 << 12)]


class Buckets(msgspec.Struct, frozen=True):
    """A whole latency histogram: `counts` operations took up to `up_to_ns`, and more than the bucket before.

    Buckets are log-linear, those of an HDR histogram with so many significant `digits`: with three, a bucket is at most
    0.1% of its value wide. Only those with a count are there.
    """

    digits: _Natural
    up_to_ns: tuple[_Natural, ...]
    counts: tuple[_Natural, ...]


class LatencySeconds(msgspec.Struct, frozen=True):
    """Operations answered in each interval of the measured part, and quantiles of their latency in nanoseconds.

    Of two significant digits (1%), but for the longest, which is exact; null where nothing was answered. Intervals are
    seconds, and longer where there would be more than 2,048.
    """

    interval_ns: Annotated[int, msgspec.Meta(gt=0, le=(1 << 63) - 1)]
    operations: tuple[_Natural, ...]
    p50_ns: tuple[_Natural | None, ...]
    p90_ns: tuple[_Natural | None, ...]
    p99_ns: tuple[_Natural | None, ...]
    p999_ns: tuple[_Natural | None, ...]
    max_ns: tuple[_Natural | None, ...]


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """One of the slowest operations of an attempt, and what the kernel did in the same seconds.

    at_s        when it was sent (in an open loop: was to be sent), in seconds of the measured part
    latency_s   how long it took
    operations  that took at least half as long and were answered in the same seconds
    from_s, to_s   the two readings of the machine's counters around it, in seconds of the measured part; null where
                there are none
    events      what the whole machine counted between them, other processes' doings included: `analysis.over_time`
                has the names; a counter that the machine does not have is not there
    usual       the same a second, from one reading of the measured part to the next: the median; empty below two
    """

    at_s: float
    latency_s: float
    server: str
    operations: int
    from_s: float | None = None
    to_s: float | None = None
    events: Mapping[str, float] = {}
    usual: Mapping[str, float] = {}


class SamplerUse(msgspec.Struct, frozen=True, kw_only=True):
    """The sampler of an attempt: how often it read, and what that cost. Of one that was off only the tail was stored.

    period_s  as it was in the end: readings that would be too many are thinned; null where the sampler was off
    cpu_s     CPU time of the sampler's thread in the measured part (RUSAGE_THREAD); null likewise
    share     of the workload's CPU time; null where that is not known. Above 0.5% the attempt is marked: it counts, and
              the report names it
    digest    SHA-256 of the series as it was stored, uncompressed
    """

    period_s: float | None
    readings: int
    cpu_s: float | None
    share: float | None
    digest: str

    @property
    def marked(self) -> bool:
        """True if the sampler took more of the CPU than it may."""
        return self.share is not None and self.share > MOST_SHARE


class SampleSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Everything over time, of one attempt: the content of `samples.json.gz` in its folder.

    Times are seconds of the measured part: readings before it are negative, `length_s` is its end. `constant` has what
    never changed, `changed` a value for each of `t_s` (null: not read then), `absent` the reasons of what is not there.
    Names: `vmstat.NAME`, `khugepaged.NAME`, `thp.BYTES.NAME`, `hugetlb.BYTES.NAME`, `pressure.RESOURCE.some` or `.full`
    (microseconds stalled since boot), `free.orderN` (free blocks of 2^N base pages), `processes.last_pid`.
    `base_size`: bytes of a base page, in which `vmstat.nr_*` are counted.
    """

    format: int = 1
    period_s: float = 0.0
    length_s: float = 0.0
    base_size: _Natural = 4096
    t_s: tuple[float, ...] = ()
    constant: Mapping[_Text, _Natural] = {}
    changed: Mapping[_Text, tuple[_Natural | None, ...]] = {}
    absent: Mapping[_Text, _Text] = {}
    seconds: LatencySeconds | None = None
    stalls: tuple[Stall, ...] = ()

    def column(self, name: str) -> tuple[int | None, ...] | None:
        """Return the values of a counter, one for each reading; None where the machine does not have it."""
        if name in self.constant:
            return (self.constant[name],) * len(self.t_s)
        return self.changed.get(name)


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
    reason: Reason


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
    reason: Reason = ""


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
    """Attempt of an arm over time: the middle one of `of`, by the cell's metric. The counters are the whole machine's.
    Times are seconds of the measured part, which ends at `length_s`; readings before it are negative.

    t_s         of each reading; of a long attempt every so many
    memory      bytes by `anon:SIZE` and `hugetlb:SIZE` at each of them; empty where the kernel does not count by size
    events      what was counted from each reading to the next (`analysis.over_time`), but for what never happened
    absent      what this machine does not have, and why
    interval_s  of `operations`, which were answered in each interval from 0 s on, and `p99_us`; null where the workload
                does not tell them
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
