"""What the probe's events of one attempt mean: its state, its metrics, its delivery. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

import msgspec

from hugewise.attempt import delivery
from hugewise.machine import probe
from hugewise.machine.noise import Difference
from hugewise.model.pages import PageTarget
from hugewise.model.scene import Reading, RoleUse
from hugewise.model.trial import AttemptState, Delivery
from hugewise.model.workload import Proof

__all__ = [
    "Outcome",
    "Problem",
    "coverage_proof",
    "heard",
    "layout",
    "outcome",
    "staged",
    "with_footprint",
    "with_kernel_work",
]

# Metric name -> performance counter, in perf's spelling.
_METRIC_COUNTERS = {
    "page_faults": "page-faults",
    "context_switches": "context-switches",
    "cpu_migrations": "cpu-migrations",
    "cycles": "cycles",
    "instructions": "instructions",
    "dtlb_load_misses": "dTLB-load-misses",
    "dtlb_walk_steps": "dtlb-walk-steps",
}

# Metric name -> (counted, by what, times).
_RATES = (
    ("ipc", "instructions", "cycles", 1.0),
    ("dtlb_mpki", "dtlb_load_misses", "instructions", 1000.0),
    ("walk_steps_pki", "dtlb_walk_steps", "instructions", 1000.0),
)

# How far the page faults of a twin may be from those of the attempt that it stands for. Seen in 16 attempts of builds
# and transcodes: at most 1.2%, and 78% where the attempt alone had found the pool empty. Beside it, some that any start
# may take more or fewer of (addresses are drawn anew).
_TWIN_FAULTS, _TWIN_FAULTS_OF_START = 0.03, 500

# Below this peak, what is missing from a scan may be the file mappings of any program.
_WORTH_PROVING = 32 << 20

_Kind = TypeVar("_Kind", bound=probe.Event)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """State, and numbers where there are any. `absent` says why a metric is None."""

    state: AttemptState
    reason: str | None
    wall_s: float | None
    cpu_s: float | None
    metrics: Mapping[str, float | None]
    absent: Mapping[str, str]
    peak_bytes: int | None
    exit_code: int | None
    signal: int | None


class Problem(msgspec.Struct, frozen=True):
    """Why a staged attempt is `rejected` (before its measured part) or `failed` (in it, or by its result)."""

    state: Literal["rejected", "failed"]
    reason: str


def last(events: Sequence[probe.Event], kind: type[_Kind]) -> _Kind | None:
    """The last event of a kind, or None."""
    return next((event for event in reversed(events) if isinstance(event, kind)), None)


def layout(events: Sequence[probe.Event], index: int, layouts: int) -> list[probe.Event]:
    """The events that speak of layout `index` where one process held `layouts` of them, and of the process as a whole.

    What was counted over all layouts belongs to none of them: it becomes absent, with that reason.
    """
    shared = probe.Count(None, "the layouts of a crossover share one process", 0, 0)
    seen: Counter[type[probe.Event]] = Counter()
    scanned = sum(isinstance(event, probe.Coverage) for event in events)
    found: list[probe.Event] = []
    for event in events:
        if isinstance(event, probe.Usage) or (isinstance(event, probe.Coverage) and scanned != layouts):
            continue
        if isinstance(event, probe.Counters):
            found.append(msgspec.structs.replace(event, values=dict.fromkeys(event.values, shared)))
        elif not isinstance(event, probe.Result | probe.Coverage | probe.Hold) or seen[type(event)] == index:
            found.append(event)
        seen[type(event)] += 1
    return found


def outcome(events: Sequence[probe.Event], *, micro: bool, timeout_s: float, success: Sequence[int] = (0,)) -> Outcome:
    """Read an attempt's events.

    rejected: hugewise or the host failed before the timed region started (to be tried again). failed: the workload
    exited with an error, was killed, timed out or gave no result; it counts, as the worst. Otherwise accepted, with
    metrics of the timed region: a micro-workload's own, or the whole command's.
    """
    exited, result, usage = last(events, probe.Exit), last(events, probe.Result), last(events, probe.Usage)
    error = last(events, probe.Error)
    state, reason = _state(exited, result, error, micro=micro, timeout_s=timeout_s, success=success)
    metrics: dict[str, float | None] = {}
    absent: dict[str, str] = {}
    cpu = usage.user_s + usage.system_s if usage is not None else None
    wall = None
    if state == "accepted" and exited is not None:
        wall = (result.wall_ns if result is not None else exited.wall_ns) / 1e9
        metrics |= {"wall_s": wall, "cpu_s": cpu, "peak_bytes": usage.peak_bytes if usage is not None else None}
        counted, why = _counted(events, "timed" if micro else "command")
        metrics |= counted
        absent |= why
        if result is not None:
            metrics |= result.metrics
        elif metrics["page_faults"] is None and usage is not None:
            metrics["page_faults"] = usage.minor_faults + usage.major_faults
            absent.pop("page_faults", None)
    return Outcome(
        state=state,
        reason=reason,
        wall_s=wall,
        cpu_s=cpu,
        metrics=metrics,
        absent=absent,
        peak_bytes=usage.peak_bytes if usage is not None else None,
        exit_code=exited.code if exited is not None else None,
        signal=exited.signal if exited is not None else None,
    )


def _state(
    exited: probe.Exit | None,
    result: probe.Result | None,
    error: probe.Error | None,
    *,
    micro: bool,
    timeout_s: float,
    success: Sequence[int],
) -> tuple[AttemptState, str | None]:
    if error is not None and error.fault == "host" and error.before_timed:
        return "rejected", error.message
    if exited is None:
        return "failed", error.message if error is not None else "it did not start"
    if exited.timed_out:
        return "failed", f"timed out after {timeout_s:g} s"
    if exited.signal is not None:
        return "failed", f"killed by signal {exited.signal}"
    if exited.code not in success:
        return "failed", (error.message if error is not None else f"exit status {exited.code}")
    if micro and result is None:
        return "failed", "it gave no result"
    return "accepted", None


def with_kernel_work(found: Outcome, host: Difference, base_size: int) -> Outcome:
    """`found` with what the kernel did meanwhile (machine-wide), and with rates of its hardware counters."""
    if found.state != "accepted":
        return found
    metrics, absent = dict(found.metrics), dict(found.absent)
    for thread in ("khugepaged", "kcompactd", "kswapd"):
        times = [spent for name, spent in host.kernel_thread_cpu.items() if name.startswith(thread)]
        metrics[f"{thread}_cpu_s"] = sum(times) if times else None
        if not times:
            absent[f"{thread}_cpu_s"] = f"no kernel thread {thread} is seen here"
    metrics["swap_bytes"] = None if host.swap_pages is None else host.swap_pages * base_size
    if host.swap_pages is None:
        absent["swap_bytes"] = "/proc/vmstat does not say"
    _add_rates(metrics, absent)
    return msgspec.structs.replace(found, metrics=metrics, absent=absent)


def _add_rates(metrics: dict[str, float | None], absent: dict[str, str]) -> None:
    """Rates of the counters, or why there are none."""
    for name, part, whole, scale in _RATES:
        above, below = metrics.get(part), metrics.get(whole)
        metrics[name] = None if above is None or not below else scale * above / below
        absent.pop(name, None)
        if metrics[name] is None:
            absent[name] = absent.get(part) or absent.get(whole) or f"{part} was not counted"


def staged(
    found: Outcome,
    problem: Problem | None,
    reading: Reading,
    *,
    servers: RoleUse | None,
    counted: probe.Counters | str,
    measured: tuple[float, float] | None,
    footprint: int | None,
) -> Outcome:
    """The outcome of a staged workload: what its stage says goes before what the timed command said.

    `servers`: what the system under test used where that is not the timed command (whose counters are then of a client,
    and belong to nobody). `counted`: the servers' own counters in the measured part, or why there are none. `measured`:
    begin and end of the measured part where that is not the whole command.
    """
    if problem is not None:
        return msgspec.structs.replace(
            found, state=problem.state, reason=problem.reason, metrics={}, absent={}, wall_s=None, cpu_s=None
        )
    if found.state != "accepted":
        return found
    metrics, absent = dict(found.metrics), dict(found.absent)
    wall = found.wall_s
    if measured is not None:
        wall = metrics["wall_s"] = measured[1] - measured[0]
    if servers is not None:
        values, why = _values({} if isinstance(counted, str) else counted.values)
        metrics |= values
        absent = {name: reason for name, reason in absent.items() if name not in values}
        absent |= dict.fromkeys(values, counted) if isinstance(counted, str) else why
        _add_rates(metrics, absent)
        faults = values["page_faults"] if servers.faults is None else servers.faults
        for name, value in (("cpu_s", servers.cpu_s), ("page_faults", faults), ("footprint_bytes", footprint)):
            metrics[name] = value
            absent.pop(name, None)
            if value is None:
                absent[name] = "servers are counted by their cgroup, and there is none"
    for name, value in reading.metrics.items():
        metrics[name] = value
        absent.pop(name, None)
        if value is None:
            absent[name] = reading.absent.get(name, "the workload did not say")
    return msgspec.structs.replace(
        found, wall_s=wall, cpu_s=metrics.get("cpu_s"), metrics=metrics, absent={**absent, **_only(reading, metrics)}
    )


def heard(found: Outcome, said: Mapping[str, float] | str) -> Outcome:
    """`found` with the metrics that a command's output holds; failed, with the reason, where it does not hold them."""
    if found.state != "accepted":
        return found
    if isinstance(said, str):
        return msgspec.structs.replace(
            found, state="failed", reason=said, metrics={}, absent={}, wall_s=None, cpu_s=None
        )
    return msgspec.structs.replace(found, metrics={**found.metrics, **said})


def with_footprint(found: Outcome, proof: Delivery) -> Outcome:
    """`found` with the memory that its scan saw, where nothing else has said how much there was."""
    if found.state != "accepted" or "footprint_bytes" in found.metrics:
        return found
    size = sum(proof.coverage.values()) if proof.source != "counters" else 0
    why = {} if size else {"footprint_bytes": "its memory was not scanned"}
    return msgspec.structs.replace(
        found, metrics={**found.metrics, "footprint_bytes": size or None}, absent={**found.absent, **why}
    )


def with_cgroup(found: Outcome, faults: int | None, peak: int | None) -> Outcome:
    """`found` with what the cgroup of the system under test has counted since it was made."""
    if found.state != "accepted":
        return found
    metrics, absent = dict(found.metrics), dict(found.absent)
    for name, value in (("lifetime_faults", faults), ("charged_peak_bytes", peak)):
        metrics[name] = value
        if value is None:
            absent[name] = "no cgroup counted it"
    return msgspec.structs.replace(found, metrics=metrics, absent=absent)


def broken(found: Outcome, reason: str) -> Outcome:
    """The outcome of an attempt whose machine was gone before its end."""
    return msgspec.structs.replace(found, state="failed", reason=reason, metrics={}, absent={}, wall_s=None, cpu_s=None)


def _only(reading: Reading, metrics: Mapping[str, float | None]) -> dict[str, str]:
    return {name: why for name, why in reading.absent.items() if metrics.get(name) is None}


def _counted(events: Sequence[probe.Event], scope: str) -> tuple[dict[str, float | None], dict[str, str]]:
    counts: dict[str, probe.Count] = {}
    for event in events:
        if isinstance(event, probe.Counters) and event.scope == scope:
            counts |= event.values
    return _values(counts)


def _values(counts: Mapping[str, probe.Count]) -> tuple[dict[str, float | None], dict[str, str]]:
    """The metrics that are counters, and the reasons of those without a value."""
    metrics: dict[str, float | None] = {}
    absent: dict[str, str] = {}
    for metric, counter in _METRIC_COUNTERS.items():
        count = counts.get(counter)
        metrics[metric] = None if count is None else count.value
        if metrics[metric] is None:
            absent[metric] = (count.reason if count is not None else None) or f"{counter} was not counted"
    return metrics, absent


def coverage_proof(
    events: Sequence[probe.Event],
    twin: Sequence[probe.Event] | None,
    by_counters: Mapping[str, int] | None,
    *,
    target: PageTarget,
    proof: Proof,
    source: str,
    share: float,
    base_above: float,
    base_size: int,
    thp_disabled_by_us: bool,
    success: Sequence[int] = (0,),
) -> Delivery:
    """Judge the delivery by the best proof that the attempt has.

    The twin's scan goes before the attempt's own (it saw every process). The counters are used where the workload
    asked for them, and where most of a command's memory was given back before it could be scanned: then the proof is
    named `counters` too. A twin whose page faults are not those of the attempt had other pages, and proves nothing. Of
    a micro-workload only the memory that it named counts. `base_size`: bytes of a base page of the attempt's machine.
    """
    seen = events if twin is None else twin
    scanned = [event for event in seen if isinstance(event, probe.Coverage)]
    found: Mapping[str, int] = delivery.total(event.bytes for event in scanned)
    source = scanned[0].source if scanned else source
    named: Proof = "twin" if twin is not None else proof
    error = last(seen, probe.Error)
    problem = error.message if error is not None and error.fault == "host" else None
    given_back = proof not in ("ranges", "live") and _given_back(events, found)
    if twin is not None and _broken_off(twin, success):
        # What did not run to its end did not use the memory that the attempt used.
        found, problem = {}, problem or "its untimed twin did not run to its end"
    elif twin is not None and (apart := _apart(events, twin, sum(found.values()) / base_size)) is not None:
        found, problem = {}, problem or apart
    elif by_counters is not None and (proof == "counters" or given_back):
        found, source, named = by_counters, "counters", "counters"
    elif given_back:
        # What remained at the exit is no proof of what was used.
        found, problem = {}, problem or "most of its memory was given back before it could be scanned"
    return delivery.judge(
        target,
        found,
        proof=named,
        source=source,
        share=share,
        base_above=base_above,
        thp_disabled=any(event.thp_disabled for event in scanned) and not thp_disabled_by_us,
        problem=problem,
    )


def _broken_off(events: Sequence[probe.Event], success: Sequence[int]) -> bool:
    """Whether the command ended otherwise than by its own exit with a status of success."""
    exited = last(events, probe.Exit)
    return exited is not None and (exited.timed_out or exited.code not in success)


def _apart(events: Sequence[probe.Event], twin: Sequence[probe.Event], pages: float) -> str | None:
    """Why the twin does not stand for the attempt: the page faults of their trees differ. None where they agree.

    `pages`: base pages of the memory that the twin was seen with.
    """
    timed, other = last(events, probe.Usage), last(twin, probe.Usage)
    if timed is None or other is None:
        return None
    here, there = (usage.minor_faults + usage.major_faults for usage in (timed, other))
    allowed = _TWIN_FAULTS * (max(here, there) + pages) + _TWIN_FAULTS_OF_START
    if abs(here - there) <= allowed:
        return None
    return (
        f"its untimed twin had other pages: {there:,} page faults against {here:,} of the attempt (more than"
        f" {_TWIN_FAULTS:.0%} apart)"
    )


def _given_back(events: Sequence[probe.Event], found: Mapping[str, int]) -> bool:
    """Whether a command's processes had given back most of their memory when they were scanned at exit."""
    usage = last(events, probe.Usage)
    return usage is not None and usage.peak_bytes >= _WORTH_PROVING and sum(found.values()) < usage.peak_bytes / 2
