"""One attempt on one host, or several at once: check, apply, launch, prove, re-check, store.

The steps are a list, walked by `attempt`; whoever passes `on_step` is told of each before it happens (the kill test is
made from this list, so that a new step is killed too). Nothing here decides what runs next: the conductor does.
"""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hugewise import cgroup, covariates, noise, outcome, probe
from hugewise.arrangement import Resident
from hugewise.errors import ProbeError, UserError
from hugewise.host import Host
from hugewise.plan import Arm, Cell
from hugewise.runlog import RunFolder, storing
from hugewise.setting import Drift, Settings
from hugewise.study import Study
from hugewise.trial import Attempt, Trial
from hugewise.workload import Direct, Launch

__all__ = ["STEPS", "Bench", "Disturbed", "attempt", "together"]

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
)
_MINIMAL = ("PATH", "LANG", "TZ")


class Disturbed(Exception):  # noqa: N818  (an outcome of a block, not an error)
    """Somebody else turned a knob that this run depends on: the block is closed, nothing is overwritten in silence."""

    def __init__(self, drift: list[Drift]) -> None:
        self.drift = drift
        super().__init__("; ".join(str(each) for each in drift))


@dataclass(frozen=True)
class Bench:
    """What all attempts of a run share."""

    host: Host
    study: Study
    settings: Settings
    folder: RunFolder
    session: int
    boot_id: str
    source: str  # kpageflags or smaps
    base_size: int
    pools: Mapping[int, int]  # pages that this session reserved, by page size in bytes
    cgroups: cgroup.Hierarchy | None
    on_step: Callable[[str], None] = lambda _: None
    cwd: str = field(default_factory=os.getcwd)  # where commands run: the same in all sessions of a run


@dataclass
class _Work:
    """One arm's attempt under way: what the steps hand on to each other."""

    arm: Arm
    trial: Trial
    number: int
    launch: Launch
    draft: Path
    leaf: cgroup.Leaf | None = None
    events: list[probe.Event] = field(default_factory=list)
    twin: list[probe.Event] | None = None
    cgroup_faults: int | None = None
    cgroup_peak: int | None = None


@dataclass
class _Group:
    """The attempts that run at once, in the order of their trials: one, but for designs that lay out several."""

    bench: Bench
    cell: Cell
    works: list[_Work]
    shared: bool  # all in one process, which the first work stands for
    started: float = 0.0
    ended: float = 0.0
    clock: float = 0.0
    covariates: Mapping[str, float] = field(default_factory=dict)
    before: noise.Snapshot | None = None
    after: noise.Snapshot | None = None
    knobs: Mapping[str, str] = field(default_factory=dict)
    drift: list[Drift] = field(default_factory=list)
    stored: list[Attempt] = field(default_factory=list)

    @property
    def launched(self) -> list[_Work]:
        """Those with a process of their own."""
        return self.works[:1] if self.shared else self.works


def attempt(bench: Bench, cell: Cell, arm: Arm, trial: Trial, number: int) -> Attempt:
    """Run one attempt and store it. Raises Disturbed when a knob was turned by somebody else before or during it.

    An attempt whose measurement was disturbed is stored all the same, and belongs to a block that does not count.
    """
    return together(bench, cell, [(arm, trial)], number)[0]


def together(
    bench: Bench, cell: Cell, arms: Sequence[tuple[Arm, Trial]], number: int, *, turns: str | None = None
) -> list[Attempt]:
    """Run the attempts of all `arms` at once and store them: each a process, or with `turns` all in one.

    Their treatments have the same knobs. Either all of them count or none does: when one is to be tried again, so are
    the others. Raises Disturbed like `attempt`.
    """
    works = []
    for arm, trial in sorted(arms, key=lambda each: each[1].order):
        name = f"b{trial.block:05d}-{trial.order}-{arm.name}-{number}"
        assert isinstance(cell.workload, Direct)
        planned = cell.workload.launch(arm.treatment, cell.given(arm))
        works.append(_Work(arm, trial, number, planned, bench.folder.draft(name)))
    if turns is not None:
        assert isinstance(cell.workload, Resident)
        resident = cell.workload.launch_together([work.arm.treatment for work in works], cell.values, turns)
        works[0].launch = resident
    group = _Group(bench, cell, works, shared=turns is not None)
    try:
        for step in STEPS:
            bench.on_step(step.__name__)
            step(group)
    finally:
        for work in works:
            if work.leaf is not None:
                work.leaf.kill()
                work.leaf.remove()
    if group.drift:
        raise Disturbed(group.drift)
    return group.stored


def observe(group: _Group) -> None:
    """Measure the covariates while the treatment is still to come: it cannot have moved them."""
    group.clock = time.monotonic()
    group.covariates = covariates.measure(group.bench.host)


def apply(group: _Group) -> None:
    """Turn the knobs of the treatment; whatever somebody else turned since is a disturbance, seen here first."""
    drift = group.bench.settings.apply(group.works[0].arm.treatment.knobs)
    if drift:
        raise Disturbed(drift)


def settle(group: _Group) -> None:
    """Carry-over control between trials: the same for all arms, chosen in the study."""
    between, host = group.bench.study.between, group.bench.host
    if host.privileged():
        if between.drop_caches:
            os.sync()
            host.write("/proc/sys/vm/drop_caches", "3")
        if between.compact:
            host.write("/proc/sys/vm/compact_memory", "1")
    time.sleep(between.settle)


def check(group: _Group) -> None:
    """Give each process its cgroup and look at the host before it."""
    if group.bench.cgroups is not None:
        for work in group.launched:
            work.leaf = group.bench.cgroups.create(work.draft.name.removeprefix("."))
    group.before = noise.snapshot(group.bench.host)


def launch(group: _Group) -> None:
    """The probe starts the workload, holds its memory, scans it, and kills what is left."""
    group.started = time.time()
    found = _probes(group, group.launched, "spec.json", "events.jsonl", twin=False)
    group.ended = time.time()
    if group.shared:
        for index, work in enumerate(group.works):
            work.events = outcome.layout(found[0], index, len(group.works))
    else:
        for work, events in zip(group.works, found, strict=True):
            work.events = events


def recheck(group: _Group) -> None:
    """Look at the host and at the knobs after it."""
    group.after = noise.snapshot(group.bench.host)
    group.drift = group.bench.settings.drift()
    group.knobs = group.bench.settings.values()
    for work in group.works:
        if work.leaf is not None and not group.shared:
            work.cgroup_faults = work.leaf.faults()
            work.cgroup_peak = work.leaf.peak_bytes()


def prove(group: _Group) -> None:
    """Where processes came and went before the root's exit, an untimed twin of the attempt is scanned instead."""
    for work in group.launched:
        exited = outcome.last(work.events, probe.Exit)
        short_lived = work.launch.proof == "exit" and exited is not None and exited.early_exits > 0
        if group.cell.proof_wanted(work.arm) and (work.launch.proof == "twin" or short_lived):
            work.twin = _probes(group, [work], "twin-spec.json", "twin.jsonl", twin=True)[0]


def store(group: _Group) -> None:
    """Make the attempts part of the run."""
    found = [_attempt(group, work) for work in group.works]
    rejected = next((attempt for attempt in found if attempt.state == "rejected"), None)
    for work, attempt in zip(group.works, found, strict=True):
        if rejected is not None and attempt.state != "rejected":
            why = f"{rejected.arm} beside it was rejected: {rejected.reason}"
            attempt = msgspec.structs.replace(attempt, state="rejected", reason=why)  # noqa: PLW2901
        if group.drift:  # said here, as the run may be killed before its block is closed as disturbed
            attempt = msgspec.structs.replace(attempt, state="abandoned", reason=str(Disturbed(group.drift)))  # noqa: PLW2901
        if group.shared and work is not group.works[0]:
            with storing(str(work.draft)):
                for path in group.works[0].draft.iterdir():
                    shutil.copy2(path, work.draft / path.name)
        group.stored.append(attempt)
    # Together, as late as possible: a run that is killed between two of them begins the block anew.
    for work, attempt in zip(group.works, group.stored, strict=True):
        group.bench.folder.accept(work.draft, attempt)


STEPS: tuple[Callable[[_Group], None], ...] = (observe, apply, settle, check, launch, recheck, prove, store)


def _probes(
    group: _Group, works: Sequence[_Work], spec_name: str, events_name: str, *, twin: bool
) -> list[list[probe.Event]]:
    """Run a probe for each of `works`, all released at the same moment; the events of each."""
    suffix = ".twin" if twin else ""
    with ExitStack() as stack:
        meeting = stack.enter_context(probe.Meeting()) if len(works) > 1 else None
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
            statuses = probe.run(jobs, meeting)
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
    group: _Group, work: _Work, stdout: Path, stderr: Path, meeting: probe.Meeting | None, *, twin: bool
) -> probe.Spec:
    treatment, cell, start, bench = work.arm.treatment, group.cell, work.launch, group.bench
    inherited = {k: v for k, v in os.environ.items() if not start.micro or k in _MINIMAL}
    environment = inherited | dict(start.environment) | {"HUGEWISE_PAD": "x" * work.trial.environment_pad}
    account = _account(cell.user, micro=start.micro, privileged=bench.host.privileged(), root=start.root)
    if account is not None:
        environment |= {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
    counters = () if twin else COUNTERS
    slots = bench.study.design.slots
    # A micro-workload counts its timed region itself; the launcher counts the whole command.
    own = ("--counters", ",".join(counters), *(("--gate",) if meeting is not None else ()))
    return probe.Spec(
        argv=(*start.argv, *own) if start.micro else start.argv,
        micro=start.micro,
        env=environment,
        cwd=None if start.micro else bench.cwd,
        stdout=str(stdout),
        stderr=str(stderr),
        uid=None if account is None else account.pw_uid,
        gid=None if account is None else account.pw_gid,
        thp_disable=treatment.thp_disable,
        cgroup_procs=tuple(str(path) for path in work.leaf.procs_files) if work.leaf is not None else (),
        cpus=(slots[work.trial.slot],) if slots else cell.cpus,
        timeout_s=cell.timeout,
        counters=counters,
        scan="every-exit" if twin else "exit" if start.micro or start.proof == "exit" else "none",
        source="kpageflags" if bench.source == "kpageflags" else "smaps",
        barrier=None if meeting is None else meeting.barrier,
    )


@functools.cache
def _account(user: str | None, *, micro: bool, privileged: bool, root: bool) -> pwd.struct_passwd | None:
    """Whom the workload runs as: the study's user; else, under root, nobody for our own workloads, sudo's caller for
    a command. None: as the caller.
    """
    if user is not None:
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            raise UserError(f"user = {user!r}: no such account on this machine", hint="see: getent passwd") from None
        if not privileged and entry.pw_uid != os.geteuid():
            raise UserError(f"user = {user!r}: only root can run a workload as somebody else", hint="use sudo")
        return entry if privileged else None
    if not privileged or root:
        return None
    if micro:
        try:
            return pwd.getpwnam("nobody")
        except KeyError:
            raise UserError("no account `nobody` to run workloads as", hint='name one: user = "..."') from None
    caller = os.environ.get("SUDO_UID", "")
    try:
        return pwd.getpwuid(int(caller)) if caller.isdigit() and caller != "0" else None
    except KeyError:
        raise UserError(
            f"SUDO_UID = {caller}: no such account to run the command as", hint='name one: user = "..."'
        ) from None


def _attempt(group: _Group, work: _Work) -> Attempt:
    bench, cell, arm, trial = group.bench, group.cell, work.arm, work.trial
    assert group.before is not None and group.after is not None
    result = outcome.outcome(work.events, micro=work.launch.micro, timeout_s=cell.timeout)
    host = noise.difference(group.before, group.after)
    own_faults = work.cgroup_faults if work.cgroup_faults is not None else _faults(work.events)
    proof = outcome.coverage_proof(
        work.events,
        work.twin,
        # The counters are the machine's: they cannot tell attempts apart that ran at once.
        noise.coverage_from_counters(group.before, group.after, own_faults, bench.base_size)
        if len(group.works) == 1
        else None,
        target=arm.treatment.target,
        proof=work.launch.proof,
        source=bench.source,
        share=cell.threshold(arm).share,
        base_above=cell.threshold(arm).base_above,
        thp_disabled_by_us=arm.treatment.thp_disable != "none",
    )
    exited = outcome.last(work.events, probe.Exit)
    measured = exited.wall_ns / 1e9 if exited is not None else 0.0
    return Attempt(
        run=bench.folder.run,
        session=bench.session,
        block=trial.block,
        cell=cell.id,
        arm=arm.name,
        baseline=arm.name == cell.baseline,
        policy=arm.treatment.policy,
        mechanism=arm.treatment.mechanism,
        order=trial.order,
        slot=trial.slot,
        number=work.number,
        state=result.state,
        reason=result.reason,
        started=group.started,
        ended=group.ended,
        wall_s=result.wall_s,
        cpu_s=result.metrics.get("cpu_s", result.cpu_s),
        overhead_s=max(0.0, time.monotonic() - group.clock - measured),
        steal_s=host.steal_s,
        pressure=host.pressure,
        boot_id=bench.boot_id,
        delivery=proof,
        knobs=group.knobs,
        metrics=result.metrics,
        absent=result.absent,
        disturbances=noise.disturbances(group.before, group.after, bench.study.validity),
        environment_pad=trial.environment_pad,
        peak_bytes=result.peak_bytes if work.cgroup_peak is None else work.cgroup_peak,
        pool_bytes=cell.workload.pool(arm.treatment, cell.given(arm)),
        exit_code=result.exit_code,
        signal=result.signal,
        covariates=group.covariates,
    )


def _faults(events: list[probe.Event]) -> int | None:
    usage = outcome.last(events, probe.Usage)
    return None if usage is None else usage.minor_faults + usage.major_faults
