"""What was counted over time in an attempt, put on the time of its measured part: what is stored of it. Pure.

The launcher that starts the timed command has the sampler, and its clock is that of the command: phases of a
micro-workload, the timed part of the load generator, and what the runner marks of a window are all CLOCK_MONOTONIC of
one host. Where the clients are on a host of their own, it is not: the sampler is off there.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from hugewise.analysis.line_up import lined_up
from hugewise.machine import probe
from hugewise.machine.load_generator import Load, Timed
from hugewise.machine.noise import Snapshot
from hugewise.model.sampled import MOST_SHARE, SamplerUse, SampleSeries, Stall

__all__ = ["OverTime", "marks", "over_time", "why_not"]

_NS = 1e-9


class OverTime(NamedTuple):
    """The stored bytes (None: nothing was told over time), their summary, and the stalls."""

    stored: bytes | None = None
    sampled: SamplerUse | None = None
    stalls: tuple[Stall, ...] = ()


def why_not(*, period: float, emulated: bool, together: bool, far: bool) -> str | None:
    """Why the counters of an attempt are not read over time; None where they are."""
    if not period:
        return "the study has it off: period in [sampling]"
    if emulated:
        return "the guest is emulated: reading would be counted, and its clock is not a processor's"
    if together:
        return "the arms were there together: the machine's counters cannot tell them apart"
    if far:
        return "the client is on a host of its own, and its launcher's counters are not the servers'"
    return None


def over_time(
    events: Sequence[probe.Event],
    around: tuple[Snapshot, Snapshot] | None,
    *,
    cpu_s: float | None,
    base_size: int,
) -> OverTime:
    """What the launcher's `events` have over time. `around`: both ends of a measured part that the runner has marked;
    `cpu_s`: the workload's CPU time in it.
    """
    series = next((one for one in events if isinstance(one, probe.MachineSeries)), None)
    timed = next((one.timed for one in events if isinstance(one, Load)), None)
    ends = _ends(events, timed, around)
    if ends is None or (series is None and timed is None):
        return OverTime()
    begin, end = ends

    def since(t_ns: int) -> float:
        return round((t_ns - begin) * _NS, 6)

    stalls = (
        ()
        if timed is None
        else tuple(
            Stall(at_s=since(one.sent_ns), latency_s=one.latency_ns * _NS, server=one.server, operations=one.operations)
            for one in timed.stalls
        )
    )
    record = SampleSeries(length_s=since(end), base_size=base_size, stalls=stalls)
    if timed is not None:
        record = msgspec.structs.replace(record, latency=timed.buckets, seconds=timed.seconds)
    if series is not None:
        record = msgspec.structs.replace(
            record,
            period_s=series.period_ns * _NS,
            t_s=tuple(map(since, series.t_ns)),
            constant=series.constant,
            changed={name: tuple(values) for name, values in series.changed.items()},
            absent=series.absent,
        )
    record = msgspec.structs.replace(record, stalls=lined_up(record, stalls))
    stored = msgspec.json.encode(record)
    used = None if series is None else _used(series, begin, end)
    worked = _worked(events) or cpu_s
    sampled = SamplerUse(
        period_s=None if series is None else record.period_s,
        readings=len(record.t_s),
        cpu_s=used,
        share=used / worked if used is not None and worked else None,
        digest=hashlib.sha256(stored).hexdigest(),
    )
    return OverTime(stored, sampled, record.stalls)


def marks(sampled: SamplerUse | None) -> tuple[str, ...]:
    """What the reader has to know of the sampler's cost: the attempt counts all the same."""
    if sampled is None or not sampled.marked or sampled.share is None:
        return ()
    share = f"{sampled.share:.2%} of its CPU time (rule: at most {MOST_SHARE:.1%})"
    return (f"reading the machine's counters over time took {share}",)


def _ends(
    events: Sequence[probe.Event], timed: Timed | None, around: tuple[Snapshot, Snapshot] | None
) -> tuple[int, int] | None:
    """Begin and end of the measured part by CLOCK_MONOTONIC in nanoseconds; None where it has not ended."""
    if timed is not None and timed.start_ns:
        return timed.start_ns, timed.start_ns + timed.wall_ns
    if around is not None:
        return round(around[0].monotonic_s / _NS), round(around[1].monotonic_s / _NS)
    phases = {one.name: one.t_ns for one in events if isinstance(one, probe.Phase)}
    if "timed" in phases and "held" in phases:
        return phases["timed"], phases["held"]
    started = next((one for one in events if isinstance(one, probe.Start)), None)
    exited = next((one for one in events if isinstance(one, probe.Exit)), None)
    return None if started is None or exited is None else (started.t_ns, exited.t_ns)


def _used(series: probe.MachineSeries, begin: int, end: int) -> float:
    """CPU time of the readings that began within the measured part, in seconds."""
    first, last = bisect_left(series.t_ns, begin), bisect_left(series.t_ns, end)
    last = min(last, len(series.cpu_ns) - 1)
    return (series.cpu_ns[last] - series.cpu_ns[first]) * _NS if last > first else 0.0


def _worked(events: Sequence[probe.Event]) -> float | None:
    """CPU time of a micro-workload's timed region."""
    result = next((one for one in events if isinstance(one, probe.Result)), None)
    times = [] if result is None else [result.facts.get(name) for name in ("user_s", "system_s")]
    known = [float(each) for each in times if isinstance(each, int | float)]
    return sum(known) if len(known) == 2 else None
