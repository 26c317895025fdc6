"""What the machine counted over time while an attempt ran, and the tail of its latencies: what is stored of each.

The counters are the whole machine's: what other processes did is in them. A value that the machine does not have is
absent with its reason, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

__all__ = ["MOST_SHARE", "Buckets", "LatencySeconds", "SampleSeries", "SamplerUse", "Stall"]

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
    events      what the whole machine counted between them, other processes' doings included: `analysis.line_up`
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
        """Whether it took more of the CPU than it may."""
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
    latency: Buckets | None = None
    seconds: LatencySeconds | None = None
    stalls: tuple[Stall, ...] = ()

    def column(self, name: str) -> tuple[int | None, ...] | None:
        """The values of a counter, one for each reading; None where the machine does not have it."""
        if name in self.constant:
            return (self.constant[name],) * len(self.t_s)
        return self.changed.get(name)
