"""One attempt on one host: check, apply, launch, prove, re-check, store.

The steps are a list, walked by `attempt`; whoever passes `on_step` is told of each before it happens (the kill test is
made from this list, so that a new step is killed too). Nothing here decides what runs next: the conductor does.
"""

from __future__ import annotations

import functools
import os
import pwd
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hugewise import cgroup, noise, outcome, probe
from hugewise.errors import ProbeError, UserError
from hugewise.host import Host
from hugewise.plan import Arm, Cell
from hugewise.runlog import RunFolder, storing
from hugewise.setting import Drift, Settings
from hugewise.study import Study
from hugewise.trial import Attempt, Trial
from hugewise.workload import Launch

__all__ = ["STEPS", "Bench", "Disturbed", "attempt"]

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


@dataclass
class _Work:
    """One attempt under way: what the steps hand on to each other."""

    bench: Bench
    cell: Cell
    arm: Arm
    trial: Trial
    number: int
    launch: Launch
    draft: Path
    started: float = 0.0
    ended: float = 0.0
    clock: float = 0.0
    leaf: cgroup.Leaf | None = None
    before: noise.Snapshot | None = None
    after: noise.Snapshot | None = None
    events: list[probe.Event] = field(default_factory=list)
    twin: list[probe.Event] | None = None
    cgroup_faults: int | None = None
    cgroup_peak: int | None = None
    knobs: Mapping[str, str] = field(default_factory=dict)
    drift: list[Drift] = field(default_factory=list)
    stored: Attempt | None = None


def attempt(bench: Bench, cell: Cell, arm: Arm, trial: Trial, number: int) -> Attempt:
    """Run one attempt and store it. Raises Disturbed when a knob was turned by somebody else before or during it.

    An attempt whose measurement was disturbed is stored all the same, and belongs to a block that does not count.
    """
    name = f"b{trial.block:05d}-{trial.order}-{arm.name}-{number}"
    planned = cell.workload.launch(arm.treatment, cell.values)
    work = _Work(bench, cell, arm, trial, number, planned, bench.folder.draft(name))
    try:
        for step in STEPS:
            bench.on_step(step.__name__)
            step(work)
    finally:
        if work.leaf is not None:
            work.leaf.kill()
            work.leaf.remove()
    if work.drift:
        raise Disturbed(work.drift)
    assert work.stored is not None
    return work.stored


def apply(work: _Work) -> None:
    """Turn the knobs of the treatment; whatever somebody else turned since is a disturbance, seen here first."""
    work.clock = time.monotonic()
    drift = work.bench.settings.apply(work.arm.treatment.knobs)
    if drift:
        raise Disturbed(drift)


def settle(work: _Work) -> None:
    """Carry-over control between trials: the same for all arms, chosen in the study."""
    between = work.bench.study.between
    if work.bench.host.privileged():
        if between.drop_caches:
            os.sync()
            work.bench.host.write("/proc/sys/vm/drop_caches", "3")
        if between.compact:
            work.bench.host.write("/proc/sys/vm/compact_memory", "1")
    time.sleep(between.settle)


def check(work: _Work) -> None:
    """Give the attempt its cgroup and look at the host before it."""
    if work.bench.cgroups is not None:
        work.leaf = work.bench.cgroups.create(work.draft.name.removeprefix("."))
    work.before = noise.snapshot(work.bench.host)


def launch(work: _Work) -> None:
    """The probe starts the workload, holds its memory, scans it, and kills what is left."""
    work.started = time.time()
    work.events = _probe(work, "spec.json", "events.jsonl", twin=False)
    work.ended = time.time()


def recheck(work: _Work) -> None:
    """Look at the host and at the knobs after it."""
    work.after = noise.snapshot(work.bench.host)
    work.drift = work.bench.settings.drift()
    work.knobs = work.bench.settings.values()
    if work.leaf is not None:
        work.cgroup_faults = work.leaf.faults()
        work.cgroup_peak = work.leaf.peak_bytes()


def prove(work: _Work) -> None:
    """Where processes came and went before the root's exit, an untimed twin of the attempt is scanned instead."""
    exited = outcome.last(work.events, probe.Exit)
    short_lived = work.launch.proof == "exit" and exited is not None and exited.early_exits > 0
    wanted = work.arm.treatment.target.kind != "any" and work.cell.delivery.share > 0
    if wanted and (work.launch.proof == "twin" or short_lived):
        work.twin = _probe(work, "twin-spec.json", "twin.jsonl", twin=True)


def store(work: _Work) -> None:
    """Make the attempt part of the run."""
    work.stored = _attempt(work)
    work.bench.folder.accept(work.draft, work.stored)


STEPS: tuple[Callable[[_Work], None], ...] = (apply, settle, check, launch, recheck, prove, store)


def _probe(work: _Work, spec_name: str, events_name: str, *, twin: bool) -> list[probe.Event]:
    spec_path, events_path = work.draft / spec_name, work.draft / events_name
    suffix = ".twin" if twin else ""
    spec = _spec(work, work.draft / f"stdout{suffix}", work.draft / f"stderr{suffix}", twin=twin)
    with storing(str(work.draft)):
        spec_path.touch(mode=0o600)  # the environment of a command can hold secrets
        spec_path.write_bytes(msgspec.json.format(msgspec.json.encode(spec), indent=1))
        with events_path.open("xb") as events, (work.draft / f"probe-stderr{suffix}").open("xb") as stderr:
            status = probe.run(spec_path, events, stderr)
    found = list(probe.decode(events_path.read_bytes().splitlines(keepends=True)))
    if status != 0 and not any(isinstance(event, probe.Error) for event in found):
        said = (work.draft / f"probe-stderr{suffix}").read_text(errors="replace").strip()
        raise ProbeError(f"the probe failed (exit {status}): {said or 'it said nothing'}", hint=f"see {spec_path}")
    return found


def _spec(work: _Work, stdout: Path, stderr: Path, *, twin: bool) -> probe.Spec:
    treatment, cell, start = work.arm.treatment, work.cell, work.launch
    inherited = {k: v for k, v in os.environ.items() if not start.micro or k in _MINIMAL}
    environment = inherited | dict(start.environment) | {"HUGEWISE_PAD": "x" * work.trial.environment_pad}
    account = _account(cell.user, micro=start.micro, privileged=work.bench.host.privileged(), root=start.root)
    if account is not None:
        environment |= {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
    counters = () if twin else COUNTERS
    return probe.Spec(
        # A micro-workload counts its timed region itself; the launcher counts the whole command.
        argv=(*start.argv, "--counters", ",".join(counters)) if start.micro else start.argv,
        micro=start.micro,
        env=environment,
        cwd=None if start.micro else str(Path.cwd()),
        stdout=str(stdout),
        stderr=str(stderr),
        uid=None if account is None else account.pw_uid,
        gid=None if account is None else account.pw_gid,
        thp_disable=treatment.thp_disable,
        cgroup_procs=tuple(str(path) for path in work.leaf.procs_files) if work.leaf is not None else (),
        cpus=cell.cpus,
        timeout_s=cell.timeout,
        counters=counters,
        scan="every-exit" if twin else "exit" if start.micro or start.proof == "exit" else "none",
        source="kpageflags" if work.bench.source == "kpageflags" else "smaps",
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
        return pwd.getpwnam("nobody")
    caller = os.environ.get("SUDO_UID", "")
    try:
        return pwd.getpwuid(int(caller)) if caller.isdigit() and caller != "0" else None
    except KeyError:
        return None


def _attempt(work: _Work) -> Attempt:
    bench, arm, trial = work.bench, work.arm, work.trial
    assert work.before is not None and work.after is not None
    result = outcome.outcome(work.events, micro=work.launch.micro, timeout_s=work.cell.timeout)
    host = noise.difference(work.before, work.after)
    own_faults = work.cgroup_faults if work.cgroup_faults is not None else _faults(work.events)
    proof = outcome.coverage_proof(
        work.events,
        work.twin,
        noise.coverage_from_counters(work.before, work.after, own_faults, bench.base_size),
        target=arm.treatment.target,
        proof=work.launch.proof,
        source=bench.source,
        share=work.cell.delivery.share,
        base_above=work.cell.delivery.base_above,
        thp_disabled_by_us=arm.treatment.thp_disable != "none",
    )
    exited = outcome.last(work.events, probe.Exit)
    measured = exited.wall_ns / 1e9 if exited is not None else 0.0
    return Attempt(
        run=bench.folder.run,
        session=bench.session,
        block=trial.block,
        cell=work.cell.id,
        arm=arm.name,
        baseline=arm.name == work.cell.baseline,
        policy=arm.treatment.policy,
        mechanism=arm.treatment.mechanism,
        order=trial.order,
        slot=trial.slot,
        number=work.number,
        state=result.state,
        reason=result.reason,
        started=work.started,
        ended=work.ended,
        wall_s=result.wall_s,
        cpu_s=result.cpu_s,
        overhead_s=max(0.0, time.monotonic() - work.clock - measured),
        steal_s=host.steal_s,
        pressure=host.pressure,
        boot_id=bench.boot_id,
        delivery=proof,
        knobs=work.knobs,
        metrics=result.metrics,
        absent=result.absent,
        disturbances=noise.disturbances(work.before, work.after, bench.study.validity),
        environment_pad=trial.environment_pad,
        peak_bytes=result.peak_bytes if work.cgroup_peak is None else work.cgroup_peak,
        pool_bytes=work.cell.workload.pool(arm.treatment, work.cell.values),
        exit_code=result.exit_code,
        signal=result.signal,
    )


def _faults(events: list[probe.Event]) -> int | None:
    usage = outcome.last(events, probe.Usage)
    return None if usage is None else usage.minor_faults + usage.major_faults
