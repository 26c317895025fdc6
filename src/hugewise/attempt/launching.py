"""Timed commands of attempts, each below a probe of its own: the probes' specs, and their events.

Series over time are put on the time of the measured part, CLOCK_MONOTONIC of one host; clients on a host of their own
have another clock, so that the sampler is off there.
"""

from __future__ import annotations

import hashlib
import pwd
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from hugewise.analysis.over_time import lined_up
from hugewise.attempt.context import AttemptState, Group
from hugewise.attempt.driver import AttemptDriver, Surroundings
from hugewise.errors import AttemptLostError, ProbeError, StorageError
from hugewise.files import RESUME, storing
from hugewise.host.local_machine import groups_of, removes_ipc
from hugewise.machine import probe
from hugewise.machine.machine import Machine, Meeting, read_events, run_launchers
from hugewise.machine.noise import Snapshot
from hugewise.machine.probe import Load, Timed
from hugewise.model.metric import COUNTERS
from hugewise.model.over_time import MOST_SHARE, SamplerUse, SampleSeries, Stall

_NS = 1e-9


class OverTime(NamedTuple):
    """The stored bytes (None: nothing was told over time), their summary, and the stalls."""

    stored: bytes | None = None
    sampled: SamplerUse | None = None
    stalls: tuple[Stall, ...] = ()


def why_not(*, period: float, emulated: bool, together: bool, far: bool) -> str | None:
    """Return why the counters of an attempt are not read over time, or None where they are."""
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
    """Return the launcher's events as series over time; `around`: ends of a measured part that the runner marked."""
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
        record = msgspec.structs.replace(record, seconds=timed.seconds)
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
    """Return what the reader has to know of the sampler's cost. The attempt counts all the same."""
    if sampled is None or not sampled.marked or sampled.share is None:
        return ()
    share = f"{sampled.share:.2%} of its CPU time (rule: at most {MOST_SHARE:.1%})"
    return (f"reading the machine's counters over time took {share}",)


def _ends(
    events: Sequence[probe.Event], timed: Timed | None, around: tuple[Snapshot, Snapshot] | None
) -> tuple[int, int] | None:
    """Return begin and end of the measured part by CLOCK_MONOTONIC in nanoseconds; None where it has not ended."""
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
    """Return the CPU time of the readings that began within the measured part, in seconds."""
    first, last = bisect_left(series.t_ns, begin), bisect_left(series.t_ns, end)
    last = min(last, len(series.cpu_ns) - 1)
    return (series.cpu_ns[last] - series.cpu_ns[first]) * _NS if last > first else 0.0


def _worked(events: Sequence[probe.Event]) -> float | None:
    result = next((one for one in events if isinstance(one, probe.Result)), None)
    times = [] if result is None else [result.facts.get(name) for name in ("user_s", "system_s")]
    known = [float(each) for each in times if isinstance(each, int | float)]
    return sum(known) if len(known) == 2 else None


def untimed_spec(
    argv: Sequence[str],
    around: Surroundings,
    outputs: Path,
    name: str,
    *,
    machine: Machine,
    account: pwd.struct_passwd | None,
    timeout: float,
) -> probe.Spec:
    """Return the spec of a command beside the timed ones; what it says is in files of `name` in `outputs`."""
    environment, cwd, cpus = around
    return probe.Spec(
        argv=tuple(argv),
        env=environment,
        cwd=cwd,
        stdout=str(outputs / f"{name}.stdout"),
        stderr=str(outputs / f"{name}.stderr"),
        uid=None if account is None else account.pw_uid,
        gid=None if account is None else account.pw_gid,
        cpus=cpus,
        timeout_s=timeout,
        limits=probe.Limits(rooms=(cwd,)),
        own_ipc=removes_ipc(machine, account),
        groups=groups_of(machine, account),
    )


_NO_ROOM = 74  # the status of a probe that could not write its lines (EX_IOERR)
_COMPLAINT = 1 << 16  # bytes of a probe's complaint that are reported


def probes(
    group: Group,
    works: Sequence[AttemptState],
    spec_name: str,
    events_name: str,
    *,
    twin: bool,
    beside: AttemptDriver | None = None,
) -> list[list[probe.Event]]:
    """Run a probe for each of `works`, released at one moment, with `beside` beside them; return their events."""
    suffix = ".twin" if twin else ""
    if beside is None:
        beside = AttemptDriver() if twin else works[0].driver
    with ExitStack() as stack:
        meets = (len(works) > 1 or beside.gate) and all(work.boarded.meets for work in works)
        meeting = stack.enter_context(Meeting()) if meets else None
        jobs = []
        for work in works:
            streams = (work.draft / f"stdout{suffix}", work.draft / f"stderr{suffix}")
            spec, machine = _spec(group, work, *streams, meeting, twin=twin)
            stderr = work.draft / f"probe-stderr{suffix}"
            job = probe.Job(spec, told=work.draft / spec_name, events=work.draft / events_name, stderr=stderr)
            jobs.append((machine, job))
        with storing(str(works[0].draft)):
            alongside = beside.timing(held=beside.gate and meeting is not None)
            statuses = run_launchers(jobs, meeting, before=beside.mark, alongside=alongside)
    return [_said(work, job, status) for work, (_, job), status in zip(works, jobs, statuses, strict=True)]


def _said(work: AttemptState, job: probe.Job, status: int) -> list[probe.Event]:
    """Return the probe's events of an attempt. Raises AttemptLostError where the probe ended without saying why, and
    StorageError where it had no room to write.
    """
    if status == _NO_ROOM:
        raise StorageError(f"cannot write {job.events}: no room is left for what the probe says", hint=RESUME)
    try:
        said = read_events(job)
    except ProbeError as error:
        lost = AttemptLostError(f"{error.message}; whether the clock ran is not known", hint=f"see {job.events}")
    else:
        if status == 0 or any(isinstance(event, probe.Error) for event in said):
            return said
        with job.stderr.open("rb") as file:
            text = file.read(_COMPLAINT).decode(errors="replace").strip()
        how = f"was killed by signal {-status}" if status < 0 else f"failed (exit {status})"
        why = f"the probe {how}: {text or 'it said nothing'}"
        if "unknown field" in text:  # nothing was started
            raise ProbeError(why, hint="it is of another version: make setup, and one of guests: make guest-probes")
        lost = AttemptLostError(f"{why}; whether the clock ran is not known", hint=f"see {job.told}")
    lost.arm = None if work.driver.visited else work.trial.label  # the client of all arms
    raise lost


def _spec(
    group: Group, work: AttemptState, stdout: Path, stderr: Path, meeting: Meeting | None, *, twin: bool
) -> tuple[probe.Spec, Machine]:
    cell, start, driver = group.cell, work.command, work.driver
    pad = {"HUGEWISE_PAD": "x" * work.trial.environment_pad}
    added = {**start.environment, **pad}
    environment, cwd, cpus = driver.surroundings(added)
    places = work.boarded.places
    # A client's counters, and its pages, are not those of the system under test.
    software = tuple(counter.event for counter in COUNTERS if not counter.hardware)
    hardware = group.bench.events(work.trial.block, guest=work.arm.kernel is not None)
    counters = () if twin or driver.served else (*software, *hardware)
    leaf = work.client if driver.served else work.leaf
    # A micro-workload counts its timed region itself; the launcher counts the whole command.
    words = (
        *(("--counters", ",".join(counters)) if counters else ()),
        *(("--gate",) if meeting is not None else ()),
    )
    spec = probe.Spec(
        argv=(*start.argv, *words) if start.micro else start.argv,
        micro=start.micro,
        env=environment,
        cwd=None if start.micro else start.cwd or cwd,
        stdout=str(stdout),
        stderr=str(stderr),
        uid=None if cell.account is None else cell.account.pw_uid,
        gid=None if cell.account is None else cell.account.pw_gid,
        thp_disable="none" if driver.served else work.arm.treatment.thp_disable,
        cgroup_procs=tuple(str(path) for path in leaf.procs_files),
        cpus=places[work.trial.slot] if places else cpus,
        timeout_s=group.timeout,
        counters=counters,
        scan="every-exit" if twin else "exit" if start.micro or start.proof == "exit" else "none",
        source=work.site.source,
        barrier=None if meeting is None else meeting.barrier,
        limits=probe.Limits(rooms=(cwd,)),
        own_ipc=removes_ipc(work.site.machine, cell.account),
        groups=groups_of(work.site.machine, cell.account),
    )
    if start.stdin:
        spec = msgspec.structs.replace(spec, stdin=start.stdin)
    told, where = driver.afar(spec, work.site.machine, added)
    if not twin and unsampled(group, work) is None:
        told = msgspec.structs.replace(told, sample=group.bench.study.sampling.period)
    return told, where


def unsampled(group: Group, work: AttemptState) -> str | None:
    """Return why the machine's counters are not read over time, or None where they are."""
    return why_not(
        period=group.bench.study.sampling.period,
        emulated=work.site.machine.emulated,
        together=not group.alone(work),
        far=work.driver.elsewhere,
    )
