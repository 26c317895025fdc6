"""The timed commands of attempts, each below a probe of its own: what the probes are told, and what they said."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from hugewise.attempt.underway import Group, Work
from hugewise.errors import ProbeError
from hugewise.files import storing
from hugewise.host.account import account
from hugewise.machine import probe, serving
from hugewise.model.metric import COUNTERS

__all__ = ["probes"]

def probes(
    group: Group, works: Sequence[Work], spec_name: str, events_name: str, *, twin: bool
) -> list[list[probe.Event]]:
    """Run a probe for each of `works`, all released at the same moment; the events of each."""
    suffix = ".twin" if twin else ""
    play = None if twin else works[0].play
    with ExitStack() as stack:
        # Only probes of this host can meet; those of a guest begin when they are started.
        gated = play is not None and play.scene.gate
        local = all(work.guest is None for work in works)
        meeting = stack.enter_context(serving.Meeting()) if local and (len(works) > 1 or gated) else None
        jobs = []
        for work in works:
            streams = (work.draft / f"stdout{suffix}", work.draft / f"stderr{suffix}")
            spec = _spec(group, work, *streams, meeting, twin=twin)
            stderr = work.draft / f"probe-stderr{suffix}"
            job = probe.Job(spec, told=work.draft / spec_name, events=work.draft / events_name, stderr=stderr)
            jobs.append((group.site(work).machine, job))
        with storing(str(works[0].draft)):
            if play is None:
                statuses = serving.run(jobs, meeting)
            else:
                timing = play.timing(held=gated and meeting is not None)
                statuses = serving.run(jobs, meeting, before=play.mark, alongside=timing)
    found = []
    for (_, job), status in zip(jobs, statuses, strict=True):
        said = serving.events(job)
        if status != 0 and not any(isinstance(event, probe.Error) for event in said):
            text = job.stderr.read_text(errors="replace").strip()
            raise ProbeError(f"the probe failed (exit {status}): {text or 'it said nothing'}", hint=f"see {job.told}")
        found.append(said)
    return found


def _spec(
    group: Group, work: Work, stdout: Path, stderr: Path, meeting: serving.Meeting | None, *, twin: bool
) -> probe.Spec:
    treatment, cell, start, bench = work.arm.treatment, group.cell, work.command, group.bench
    play, pad = work.play, {"HUGEWISE_PAD": "x" * work.trial.environment_pad}
    site = group.site(work)
    if play is not None:
        who = play.account
        environment = play.stage.environment({**start.environment, **pad})
    else:
        who = account(cell.user, unprivileged=start.micro, privileged=site.host.privileged(), root=start.root)
        own = start.micro or work.guest is not None  # nothing of the caller's
        inherited = site.machine.environment if own else os.environ
        environment = dict(inherited) | dict(start.environment) | pad
        if who is not None:
            environment |= {"HOME": who.pw_dir, "USER": who.pw_name, "LOGNAME": who.pw_name}
    counters = () if twin or work.is_client else tuple(counter.event for counter in COUNTERS)  # a client's are not those of the system under test
    leaf, cpus = work.leaf, cell.cpus
    if play is not None:
        leaf = work.client if work.is_client else work.leaf
        cpus = play.stage.places.client if work.is_client else play.stage.places.sut
    slots = bench.study.design.places if work.guest is None else ()  # a guest as a whole has its slot
    # A micro-workload counts its timed region itself; the launcher counts the whole command.
    words = (
        *(("--counters", ",".join(counters)) if counters else ()),
        *(("--gate",) if meeting is not None else ()),
    )
    return probe.Spec(
        argv=(*start.argv, *words) if start.micro else start.argv,
        micro=start.micro,
        env=environment,
        cwd=None if start.micro else start.cwd or _folder(group, work),
        stdout=str(stdout),
        stderr=str(stderr),
        uid=None if who is None else who.pw_uid,
        gid=None if who is None else who.pw_gid,
        thp_disable="none" if work.is_client else treatment.thp_disable,
        cgroup_procs=tuple(str(path) for path in leaf.procs_files) if leaf is not None else (),
        cpus=slots[work.trial.slot] if slots else cpus,
        timeout_s=cell.timeout,
        counters=counters,
        scan="every-exit" if twin else "exit" if start.micro or start.proof == "exit" else "none",
        source=site.source,
        barrier=None if meeting is None else meeting.barrier,
    )


def _folder(group: Group, work: Work) -> str:
    """Where a command runs that does not say it."""
    if work.play is not None:
        return work.play.stage.places.run
    return group.bench.cwd if work.guest is None else "/"
