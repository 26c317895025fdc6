"""One attempt on one host, or several at once: check, apply, supply, serve, launch, prove, re-check, store.

The steps are a list, walked by `attempt`; whoever passes `on_step` is told of each before it happens (the kill test is
made from this list, so that a new step is killed too). Nothing here decides what runs next: the conductor does.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence

import msgspec

from hugewise import covariates, noise, outcome, probe
from hugewise.account import account
from hugewise.arrangement import Resident
from hugewise.launching import probes
from hugewise.performance import Performance
from hugewise.plan import Arm, Cell
from hugewise.recording import stored
from hugewise.runlog import storing
from hugewise.scene import Staged
from hugewise.stage import StageError
from hugewise.trial import Attempt, Trial
from hugewise.underway import Bench, Disturbed, Group, Work
from hugewise.workload import Direct

__all__ = ["STEPS", "attempt", "together"]


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
        works.append(Work(arm, trial, number, bench.folder.draft(name)))
    if turns is not None:
        assert isinstance(cell.workload, Resident)
        resident = cell.workload.launch_together([work.arm.treatment for work in works], cell.values, turns)
        works[0].launch = resident
    group = Group(bench, cell, works, shared=turns is not None)
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


def observe(group: Group) -> None:
    """Measure the covariates while the treatment is still to come: it cannot have moved them."""
    group.clock = time.monotonic()
    group.covariates = covariates.measure(group.bench.host)


def apply(group: Group) -> None:
    """Turn the knobs of the treatment; whatever somebody else turned since is a disturbance, seen here first."""
    drift = group.bench.settings.apply(group.works[0].arm.treatment.knobs)
    if drift:
        raise Disturbed(drift)


def settle(group: Group) -> None:
    """Carry-over control between trials: the same for all arms, chosen in the study."""
    between, host = group.bench.study.between, group.bench.host
    if host.privileged():
        if between.drop_caches:
            os.sync()
            host.write("/proc/sys/vm/drop_caches", "3")
        if between.compact:
            host.write("/proc/sys/vm/compact_memory", "1")
    time.sleep(between.settle)


def check(group: Group) -> None:
    """Give each process its cgroup and look at the host before it."""
    if group.bench.cgroups is not None:
        workload = group.cell.workload
        for work in group.launched:
            name = work.draft.name.removeprefix(".")
            work.leaf = group.bench.cgroups.create(name)
            if isinstance(workload, Staged) and workload.clients:
                work.client = group.bench.cgroups.create(f"{name}-client")
    group.before = noise.snapshot(group.bench.host)


def supply(group: Group) -> None:
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


def serve(group: Group) -> None:
    """Start the servers of a staged workload, and warm them."""
    for work in group.works:
        if work.play is not None:
            work.play.serve()


def launch(group: Group) -> None:
    """The probe starts the workload, holds its memory, scans it, and kills what is left."""
    group.started = time.time()
    works = [work for work in group.launched if work.play is None or work.play.problem is None]
    try:
        found = probes(group, works, "spec.json", "events.jsonl", twin=False) if works else []
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
                exited = outcome.last(events, probe.Exit)
                work.play.timed(failed=exited is None or exited.code not in work.command.success)


def recheck(group: Group) -> None:
    """Look at the host and at the knobs after it."""
    group.after = noise.snapshot(group.bench.host)
    group.drift = group.bench.settings.drift()
    group.knobs = group.bench.settings.values()
    for work in group.works:
        if work.leaf is not None and not group.shared:
            work.cgroup_faults = work.leaf.faults()
            work.cgroup_peak = work.leaf.peak_bytes()


def prove(group: Group) -> None:
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
            work.twin = probes(group, [work], "twin-spec.json", "twin.jsonl", twin=True)[0]


def dismiss(group: Group) -> None:
    """Stop the servers, see that they are gone, and remove the folders."""
    for work in group.works:
        if work.play is not None:
            work.play.dismiss()
            if work.is_client:  # before, the servers' own pages would be taken for those of others
                group.after = noise.snapshot(group.bench.host)


def store(group: Group) -> None:
    """Make the attempts part of the run."""
    found = [stored(group, work) for work in group.works]
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


STEPS: tuple[Callable[[Group], None], ...] = (
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
