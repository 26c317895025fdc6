"""The timed commands of attempts, each below a probe of its own: what the probes are told, and what they said."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from hugewise import probe
from hugewise.account import account
from hugewise.errors import ProbeError
from hugewise.runlog import storing
from hugewise.underway import Group, Work

__all__ = ["probes"]

COUNTERS = (
    "task-clock",
    "page-faults",
    "minor-faults",
    "major-faults",
    "context-switches",
    "cpu-migrations",
    "cycles",
    "instructions",
    "dTLB-loads",
    "dTLB-load-misses",
    "dtlb-walk-steps",
)
_MINIMAL = ("PATH", "LANG", "TZ")


def probes(
    group: Group, works: Sequence[Work], spec_name: str, events_name: str, *, twin: bool
) -> list[list[probe.Event]]:
    """Run a probe for each of `works`, all released at the same moment; the events of each."""
    suffix = ".twin" if twin else ""
    play = None if twin else works[0].play
    with ExitStack() as stack:
        gated = play is not None and play.scene.gate
        meeting = stack.enter_context(probe.Meeting()) if len(works) > 1 or gated else None
        jobs = []
        for work in works:
            spec_path = work.draft / spec_name
            spec = _spec(
                group, work, work.draft / f"stdout{suffix}", work.draft / f"stderr{suffix}", meeting, twin=twin
            )
            with storing(str(work.draft)):
                spec_path.touch(mode=0o600)  # the environment of a command can hold secrets
                spec_path.write_bytes(msgspec.json.format(msgspec.json.encode(spec), indent=1))
                events = stack.enter_context((work.draft / events_name).open("xb"))
                stderr = stack.enter_context((work.draft / f"probe-stderr{suffix}").open("xb"))
            jobs.append(probe.Job(spec_path, events, stderr))
        with storing(str(works[0].draft)):
            if play is None:
                statuses = probe.run(jobs, meeting)
            else:
                statuses = probe.run(jobs, meeting, before=play.mark, alongside=play.timing())
    found = []
    for work, status in zip(works, statuses, strict=True):
        said = list(probe.decode((work.draft / events_name).read_bytes().splitlines(keepends=True)))
        if status != 0 and not any(isinstance(event, probe.Error) for event in said):
            text = (work.draft / f"probe-stderr{suffix}").read_text(errors="replace").strip()
            where = work.draft / spec_name
            raise ProbeError(f"the probe failed (exit {status}): {text or 'it said nothing'}", hint=f"see {where}")
        found.append(said)
    return found


def _spec(
    group: Group, work: Work, stdout: Path, stderr: Path, meeting: probe.Meeting | None, *, twin: bool
) -> probe.Spec:
    treatment, cell, start, bench = work.arm.treatment, group.cell, work.command, group.bench
    play, pad = work.play, {"HUGEWISE_PAD": "x" * work.trial.environment_pad}
    if play is not None:
        who = play.account
        environment = play.stage.environment({**start.environment, **pad})
    else:
        who = account(cell.user, unprivileged=start.micro, privileged=bench.host.privileged(), root=start.root)
        inherited = {k: v for k, v in os.environ.items() if not start.micro or k in _MINIMAL}
        environment = inherited | dict(start.environment) | pad
        if who is not None:
            environment |= {"HOME": who.pw_dir, "USER": who.pw_name, "LOGNAME": who.pw_name}
    counters = () if twin or work.is_client else COUNTERS  # a client's are not those of the system under test
    leaf, cpus = work.leaf, cell.cpus
    if play is not None:
        leaf = work.client if work.is_client else work.leaf
        cpus = play.stage.places.client if work.is_client else play.stage.places.sut
    slots = bench.study.design.slots
    # A micro-workload counts its timed region itself; the launcher counts the whole command.
    own = (
        *(("--counters", ",".join(counters)) if counters else ()),
        *(("--gate",) if meeting is not None else ()),
    )
    return probe.Spec(
        argv=(*start.argv, *own) if start.micro else start.argv,
        micro=start.micro,
        env=environment,
        cwd=None if start.micro else start.cwd or (bench.cwd if play is None else play.stage.places.run),
        stdout=str(stdout),
        stderr=str(stderr),
        uid=None if who is None else who.pw_uid,
        gid=None if who is None else who.pw_gid,
        thp_disable="none" if work.is_client else treatment.thp_disable,
        cgroup_procs=tuple(str(path) for path in leaf.procs_files) if leaf is not None else (),
        cpus=(slots[work.trial.slot],) if slots else cpus,
        timeout_s=cell.timeout,
        counters=counters,
        scan="every-exit" if twin else "exit" if start.micro or start.proof == "exit" else "none",
        source="kpageflags" if bench.source == "kpageflags" else "smaps",
        barrier=None if meeting is None else meeting.barrier,
    )
