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

from hugewise import cgroup, covariates, dataset, noise, outcome, probe
from hugewise.arrangement import Resident
from hugewise.errors import ProbeError, UserError
from hugewise.host import Host
from hugewise.performance import Performance
from hugewise.plan import Arm, Cell
from hugewise.runlog import RunFolder, storing
from hugewise.scene import Staged
from hugewise.scratch import Scratch
from hugewise.setting import Drift, Settings
from hugewise.stage import StageError
from hugewise.study import Study
from hugewise.trial import Attempt, Trial
from hugewise.workload import Direct, Hearing, Launch

__all__ = ["STEPS", "Bench", "Disturbed", "account", "attempt", "together"]

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
    data: Mapping[str, dataset.Kept] = field(default_factory=dict)  # the data of each cell that has some
    scratch: Mapping[str, Scratch] = field(default_factory=dict)  # where attempts are played, by cell


@dataclass
class _Work:
    """One arm's attempt under way: what the steps hand on to each other."""

    arm: Arm
    trial: Trial
    number: int
    draft: Path
    launch: Launch | None = None  # known when the attempt is supplied
    play: Performance | None = None  # of a staged workload
    leaf: cgroup.Leaf | None = None  # of the system under test
    client: cgroup.Leaf | None = None
    events: list[probe.Event] = field(default_factory=list)
    twin: list[probe.Event] | None = None
    cgroup_faults: int | None = None
    cgroup_peak: int | None = None

    @property
    def command(self) -> Launch:
        """The timed command."""
        assert self.launch is not None
        return self.launch

    @property
    def is_client(self) -> bool:
        """Whether the timed command is a client of the servers that are the system under test."""
        return self.play is not None and self.play.served


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
        works.append(_Work(arm, trial, number, bench.folder.draft(name)))
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
            if work.play is not None:
                work.play.close()
            for leaf in (work.leaf, work.client):
                if leaf is not None:
                    leaf.kill()
                    leaf.remove()
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
        workload = group.cell.workload
        for work in group.launched:
            name = work.draft.name.removeprefix(".")
            work.leaf = group.bench.cgroups.create(name)
            if isinstance(workload, Staged) and workload.clients:
                work.client = group.bench.cgroups.create(f"{name}-client")
    group.before = noise.snapshot(group.bench.host)


def supply(group: _Group) -> None:
    """What will be timed; for a staged workload the data, laid out anew, and what comes before its servers."""
    bench, cell = group.bench, group.cell
    for work in group.works:
        if work.launch is not None:
            continue
        if isinstance(cell.workload, Direct):
            work.launch = cell.workload.launch(work.arm.treatment, cell.given(work.arm))
            continue
        privileged = bench.host.privileged()
        work.play = Performance(
            host=bench.host,
            cell=cell,
            arm=work.arm,
            outputs=work.draft,
            scratch=bench.scratch[cell.storage],
            kept=bench.data.get(cell.id),
            account=account(cell.user, unprivileged=True, privileged=privileged, root=False),
            source=bench.source,
            sut=work.leaf,
            client=work.client,
        )
        work.play.supply()
        work.launch = work.play.scene.timed
        if work.play.scene.account == "caller":
            work.play.account = account(cell.user, unprivileged=False, privileged=privileged, root=work.launch.root)


def serve(group: _Group) -> None:
    """Start the servers of a staged workload, and warm them."""
    for work in group.works:
        if work.play is not None:
            work.play.serve()


def launch(group: _Group) -> None:
    """The probe starts the workload, holds its memory, scans it, and kills what is left."""
    group.started = time.time()
    works = [work for work in group.launched if work.play is None or work.play.problem is None]
    try:
        found = _probes(group, works, "spec.json", "events.jsonl", twin=False) if works else []
    except StageError as error:
        found = []
        for work in works:
            assert work.play is not None
            work.play.fail(error)
    group.ended = time.time()
    if group.shared:
        for index, work in enumerate(group.works):
            work.events = outcome.layout(found[0], index, len(group.works))
    else:
        for work, events in zip(works, found, strict=False):
            work.events = events
            if work.play is not None:
                work.play.timed()


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
        if work.play is not None:
            work.play.conclude()
            if work.play.problem is not None:
                continue
        exited = outcome.last(work.events, probe.Exit)
        short_lived = work.command.proof == "exit" and exited is not None and exited.early_exits > 0
        if group.cell.proof_wanted(work.arm) and (work.command.proof == "twin" or short_lived):
            if work.play is not None:
                work.play.supply()  # make on a tree that was built has nothing to do
            work.twin = _probes(group, [work], "twin-spec.json", "twin.jsonl", twin=True)[0]


def dismiss(group: _Group) -> None:
    """Stop the servers, see that they are gone, and remove the folders."""
    for work in group.works:
        if work.play is not None:
            work.play.dismiss()
            if work.is_client:  # before, the servers' own pages would be taken for those of others
                group.after = noise.snapshot(group.bench.host)


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


STEPS: tuple[Callable[[_Group], None], ...] = (
    observe,
    apply,
    settle,
    check,
    supply,
    serve,
    launch,
    recheck,
    prove,
    dismiss,
    store,
)


def _probes(
    group: _Group, works: Sequence[_Work], spec_name: str, events_name: str, *, twin: bool
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
    group: _Group, work: _Work, stdout: Path, stderr: Path, meeting: probe.Meeting | None, *, twin: bool
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


@functools.cache
def account(user: str | None, *, unprivileged: bool, privileged: bool, root: bool) -> pwd.struct_passwd | None:
    """Whom the workload runs as: the study's user; else, under root, nobody for an `unprivileged` workload, sudo's
    caller for a command. None: as the caller. Raises UserError.
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
    if unprivileged:
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
    play, command = work.play, work.command
    # A client of servers has its own event with its figures, which the workload reads.
    own_result = command.micro and not work.is_client
    result = outcome.outcome(work.events, micro=own_result, timeout_s=cell.timeout, success=command.success)
    host = noise.difference(group.before, group.after)
    measured_host = host if play is None or play.around is None else noise.difference(*play.around)
    result = outcome.with_kernel_work(result, measured_host, bench.base_size)
    if play is not None:
        result = outcome.staged(
            result,
            play.problem,
            play.reading,
            servers=play.use("sut") if work.is_client else None,
            counted=play.counted,
            measured=play.measured if work.is_client or play.scene.window is not None else None,
            footprint=play.footprint,
        )
    if isinstance(cell.workload, Hearing):
        result = outcome.heard(result, _heard(cell.workload, cell, work))
    own_faults = work.cgroup_faults if work.cgroup_faults is not None else _faults(work.events)
    proof = outcome.coverage_proof(
        play.coverage if play is not None and work.is_client else work.events,
        work.twin,
        # The counters are the machine's: they cannot tell attempts apart that ran at once.
        noise.coverage_from_counters(group.before, group.after, own_faults, bench.base_size)
        if len(group.works) == 1
        else None,
        target=arm.treatment.target,
        proof=command.proof,
        source=bench.source,
        share=cell.threshold(arm).share,
        base_above=cell.threshold(arm).base_above,
        thp_disabled_by_us=arm.treatment.thp_disable != "none",
        success=command.success,
    )
    result = outcome.with_footprint(result, proof)
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
        disturbances=(
            *noise.disturbances(group.before, group.after, bench.study.validity),
            *(play.marks if play is not None else ()),
        ),
        environment_pad=trial.environment_pad,
        peak_bytes=result.peak_bytes if work.cgroup_peak is None else work.cgroup_peak,
        pool_bytes=cell.workload.pool(arm.treatment, cell.given(arm)),
        exit_code=result.exit_code,
        signal=result.signal,
        covariates=group.covariates,
        series=play.reading.series if play is not None else (),
        facts=play.facts() if play is not None else {},
    )


def _heard(workload: Hearing, cell: Cell, work: _Work) -> Mapping[str, float] | str:
    """The metrics in what the command said, or why they are not there."""
    stdout, stderr = ((work.draft / name).read_text(errors="replace") for name in ("stdout", "stderr"))
    try:
        return workload.hear(stdout, stderr, cell.given(work.arm))
    except ValueError as error:
        return str(error)


def _faults(events: list[probe.Event]) -> int | None:
    usage = outcome.last(events, probe.Usage)
    return None if usage is None else usage.minor_faults + usage.major_faults
