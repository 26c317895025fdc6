"""The timed commands of attempts, each below a probe of its own: what the probes are told, and what they said."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from hugewise.attempt.over_time import why_not
from hugewise.attempt.play import Play
from hugewise.attempt.underway import Group, Work
from hugewise.errors import AttemptLostError, ProbeError, StorageError
from hugewise.files import RESUME, storing
from hugewise.host.local_machine import apart, groups_of
from hugewise.machine import probe, serving
from hugewise.machine.machine import Machine
from hugewise.model.metric import COUNTERS

__all__ = ["probes", "unsampled"]

_NO_ROOM = 74  # the status of a probe that could not write its lines (EX_IOERR)
_COMPLAINT = 1 << 16  # bytes of what a probe says to people that are told


def probes(
    group: Group, works: Sequence[Work], spec_name: str, events_name: str, *, twin: bool, beside: Play | None = None
) -> list[list[probe.Event]]:
    """Run a probe for each of `works`, all released at the same moment; the events of each.

    `beside` is what goes on beside them, unless it is the first one's play.
    """
    suffix = ".twin" if twin else ""
    if beside is None:
        beside = Play() if twin else works[0].play
    with ExitStack() as stack:
        meets = (len(works) > 1 or beside.gate) and all(work.boarded.meets for work in works)
        meeting = stack.enter_context(serving.Meeting()) if meets else None
        jobs = []
        for work in works:
            streams = (work.draft / f"stdout{suffix}", work.draft / f"stderr{suffix}")
            spec, machine = _spec(group, work, *streams, meeting, twin=twin)
            stderr = work.draft / f"probe-stderr{suffix}"
            job = probe.Job(spec, told=work.draft / spec_name, events=work.draft / events_name, stderr=stderr)
            jobs.append((machine, job))
        with storing(str(works[0].draft)):
            alongside = beside.timing(held=beside.gate and meeting is not None)
            statuses = serving.run(jobs, meeting, before=beside.mark, alongside=alongside)
    return [_said(work, job, status) for work, (_, job), status in zip(works, jobs, statuses, strict=True)]


def _said(work: Work, job: probe.Job, status: int) -> list[probe.Event]:
    """What the probe said of an attempt. Raises AttemptLostError where it ended, or broke off, without saying why, and
    StorageError where it had no room to say it.
    """
    if status == _NO_ROOM:
        raise StorageError(f"cannot write {job.events}: no room is left for what the probe says", hint=RESUME)
    try:
        said = serving.events(job)
    except ProbeError as error:
        lost = AttemptLostError(f"{error.message}; whether the clock ran is not known", hint=f"see {job.events}")
    else:
        if status == 0 or any(isinstance(event, probe.Error) for event in said):
            return said
        with job.stderr.open("rb") as file:
            text = file.read(_COMPLAINT).decode(errors="replace").strip()
        how = f"was killed by signal {-status}" if status < 0 else f"failed (exit {status})"
        why = f"the probe {how}: {text or 'it said nothing'}"
        if "unknown field" in text:  # it has started nothing
            raise ProbeError(why, hint="it is of another version: make setup, and one of guests: make guest-probes")
        lost = AttemptLostError(f"{why}; whether the clock ran is not known", hint=f"see {job.told}")
    lost.arm = None if work.play.visited else work.arm.name  # the client of all arms
    raise lost


def _spec(
    group: Group, work: Work, stdout: Path, stderr: Path, meeting: serving.Meeting | None, *, twin: bool
) -> tuple[probe.Spec, Machine]:
    """What the probe is told, and where."""
    treatment, cell, start, play = work.arm.treatment, group.cell, work.command, work.play
    pad = {"HUGEWISE_PAD": "x" * work.trial.environment_pad}
    added = {**start.environment, **pad}
    environment, cwd, cpus = play.surroundings(added)
    places = work.boarded.places
    # A client's counters, and its pages, are not those of the system under test.
    software = tuple(counter.event for counter in COUNTERS if not counter.hardware)
    hardware = group.bench.events(work.trial.block, guest=work.arm.kernel is not None)
    counters = () if twin or play.served else (*software, *hardware)
    leaf = work.client if play.served else work.leaf
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
        thp_disable="none" if play.served else treatment.thp_disable,
        cgroup_procs=tuple(str(path) for path in leaf.procs_files),
        cpus=places[work.trial.slot] if places else cpus,
        timeout_s=group.timeout,
        counters=counters,
        scan="every-exit" if twin else "exit" if start.micro or start.proof == "exit" else "none",
        source=work.site.source,
        barrier=None if meeting is None else meeting.barrier,
        limits=probe.Limits(rooms=(cwd,)),
        own_ipc=apart(work.site.machine, cell.account),
        groups=groups_of(work.site.machine, cell.account),
    )
    told, where = play.afar(spec, work.site.machine, added)
    if not twin and unsampled(group, work) is None:
        told = msgspec.structs.replace(told, sample=group.bench.study.sampling.period)
    return told, where


def unsampled(group: Group, work: Work) -> str | None:
    """Why the machine's counters are not read over time; None where they are."""
    return why_not(
        period=group.bench.study.sampling.period,
        emulated=work.site.machine.emulated,
        together=not group.alone(work),
        far=work.play.elsewhere,
    )
