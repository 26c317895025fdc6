"""One attempt, or several at once, in `STEPS`: from observing the host to storing what was found.

The steps are a list, walked by `attempt`; whoever passes `on_step` is told of each before it happens (the kill test is
made from this list, so that a new step is killed too). Nothing here decides what runs next: the conductor does.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext

import msgspec

from hugewise.attempt import covariates, laying, outcome, resident
from hugewise.attempt.before import Before
from hugewise.attempt.idle import idle
from hugewise.attempt.launching import probes
from hugewise.attempt.performance import Performance
from hugewise.attempt.play import Alone
from hugewise.attempt.recording import stored
from hugewise.attempt.same import held, telling
from hugewise.attempt.stage import StageError
from hugewise.attempt.underway import Bench, Disturbed, Group, Work, turn_knobs
from hugewise.beneath import Folder
from hugewise.errors import AttemptLostError, MachineError
from hugewise.files import storing
from hugewise.host.account import is_caller
from hugewise.host.pool import hold
from hugewise.host.scratch import Scratch, copy
from hugewise.machine import noise, probe
from hugewise.machine.foreign import heard
from hugewise.model.age import pressed
from hugewise.model.design import Layered
from hugewise.model.scene import Staged
from hugewise.model.trial import BESIDE, Attempt, Trial
from hugewise.model.workload import Direct
from hugewise.plan.ageing import need
from hugewise.plan.plan import Arm, Cell

__all__ = ["STEPS", "attempt", "together"]


def attempt(bench: Bench, cell: Cell, arm: Arm, trial: Trial, number: int) -> Attempt:
    """Run one attempt and store it. Raises Disturbed when a knob was turned by somebody else before or during it.

    An attempt whose measurement was disturbed is stored all the same, and belongs to a block that does not count.
    """
    return together(bench, cell, [(arm, trial)], number)[0]


def together(
    bench: Bench,
    cell: Cell,
    arms: Sequence[tuple[Arm, Trial]],
    number: int,
    *,
    rounds: Iterator[str] | None = None,
) -> list[Attempt]:
    """Run the attempts of all `arms` at once and store them: as the cell's kind of design has it.

    `rounds` is the order in which they take turns, where they do: each a digit for each arm, in the order of the
    trials. Either all of them count or none does: when one is to be tried again, so are the others. Raises Disturbed
    like `attempt`, and MachineError when a guest was gone before anything was launched in it.
    """
    works = []
    for arm, trial in sorted(arms, key=lambda each: each[1].order):
        name = f"b{trial.block:05d}-{trial.order}-{arm.name}-{number}"
        works.append(Work(arm, trial, number, bench.folder.draft(name)))
    group = Group(bench, cell, works, rounds)
    if group.shared:
        assert isinstance(cell.workload, Layered) and rounds is not None
        turns = "".join(itertools.islice(rounds, bench.study.design.turns))
        works[0].launch = cell.workload.launch_together([work.arm.treatment for work in works], cell.values, turns)
    try:
        for step in STEPS:
            bench.on_step(step.__name__)
            try:
                with bench.folder.naming(), _hearing(group):
                    step(group)
            except MachineError as error:
                if not group.started:
                    error.arm = None if group.turn is None else group.turn.arm.name
                    raise
                _broken(group, error)
    finally:
        for work in works:
            work.clear()
    if group.drift:
        raise Disturbed(group.drift)
    return group.stored


def _hearing(group: Group) -> AbstractContextManager[None]:
    """A guest may say anything: what makes no sense takes the guest away, as if it were gone, and not the run."""
    guests = [work.site.host.name for work in group.works if work.aboard is not None and work.aboard.own]
    return heard(" or ".join(guests), "what it said") if guests else nullcontext()


def _broken(group: Group, error: MachineError) -> None:
    """A guest that is gone takes its attempts with it, and those beside them: what is known of them is stored."""
    for work in group.works:
        if work.broken is None:
            work.broken, work.let_down = error.message, error.emulator


def observe(group: Group) -> None:
    """Measure the covariates while the treatment is still to come: it cannot have moved them."""
    group.clock = time.monotonic()
    group.covariates = covariates.measure(group.bench.host, wash_out=group.bench.study.covariate is not None)


def board(group: Group) -> None:
    """Give each attempt its machine: a guest is booted."""
    for work in group.each():
        work.aboard = group.bench.boarding.board(group.cell, work.arm, work.trial, work.number, work.draft)


def age(group: Group) -> None:
    """Have the host's memory as the cell wants it; whatever takes long is done before a treatment is there."""
    ageing, cell = group.bench.ageing, group.cell
    if ageing is None or ageing.holds(cell.memory_age):
        return
    for site, _ in group.sites:
        turn_knobs(site, {})
    ageing.bring(cell.memory_age, need(cell))


def apply(group: Group) -> None:
    """Turn the knobs of the treatment; whatever somebody else turned since is a disturbance, seen here first."""
    for site, work in group.sites:
        turn_knobs(site, {} if group.resident else work.arm.treatment.knobs)  # then each arm when it is its turn
        if work.arm.treatment.surplus and not work.boarded.own:
            work.held = hold(site.host, work.arm.treatment.target.size)  # those of the other arms


def settle(group: Group) -> None:
    """Carry-over control between trials: the same for all arms, chosen in the study."""
    between = group.bench.study.between
    for site, work in group.sites:
        if not site.host.privileged():
            continue
        if between.drop_caches:
            work.boarded.flush()
            site.host.write("/proc/sys/vm/drop_caches", "3")
        if between.compact:
            site.host.write("/proc/sys/vm/compact_memory", "1")
    time.sleep(between.settle)
    if group.bench.ageing is not None:  # mended, as all of that and whoever else may have changed it
        group.aged = group.bench.ageing.bring(group.cell.memory_age, need(group.cell))


def check(group: Group) -> None:
    """Give each process its cgroup and look at the machines before it."""
    for work in group.launched:
        contain = work.site.contain
        workload, name = group.cell.workload, work.draft.name.removeprefix(".")
        work.leaf = contain(name)
        if group.cell.memory is not None and pressed(group.cell.memory_age) and isinstance(workload, Direct):
            work.leaf.limit_memory(group.cell.memory, swapping=True)
        if isinstance(workload, Staged) and workload.clients:
            work.client = contain(f"{name}-client")
    group.before = noise.snapshot(group.bench.host)
    for work in group.works:
        work.before = work.boarded.look(group.before)


def supply(group: Group) -> None:
    """What will be timed; for a staged workload the data, laid out anew, and what comes before its servers."""
    bench, cell = group.bench, group.cell
    for work in group.each():
        site = work.site
        if not isinstance(cell.workload, Staged):
            if work.launch is None:  # else it is of all at once
                assert isinstance(cell.workload, Direct)
                work.launch = cell.workload.launch(work.arm.treatment, cell.given(work.arm))
                _have_reported(group, work)
            start, boarded = work.launch, work.boarded
            # What a person has in their environment, such as a token, is for their own commands.
            whole = not start.micro and (is_caller(cell.account) or boarded.own)
            before = Before(start.prepare, site.machine, work.draft, cell.account, cell.timeout)
            work.play = Alone(
                account=cell.account,
                inherited=boarded.environment if whole else site.machine.environment,
                cwd=boarded.cwd,
                cpus=cell.cpus,
                before=before if start.prepare else None,
            )
            work.play.supply()
            continue
        scratch = site.scratch(cell.storage)
        if isinstance(scratch, Scratch):  # of this host, where every cell has its account
            scratch = scratch.of(cell.stage_account)
        work.play = play = Performance(
            site=site,
            cell=cell,
            arm=work.arm,
            outputs=work.draft,
            scratch=scratch if group.alone(work) else scratch.within(str(work.trial.order)),
            sut=work.leaf,
            client=work.client,
            kept=bench.data.get(cell.id),
            turns=group.slicing,
            cwd=work.boarded.cwd,
            events=bench.events(work.trial.block, guest=work.arm.kernel is not None),
            far=work.boarded.far,
        )
        play.supply()
        work.launch = play.scene.timed


def _have_reported(group: Group, work: Work) -> None:
    """Give the layout library a file to which it says what it did."""
    cell, launch = group.cell, work.command
    if work.arm.treatment.layout:  # which are of this host
        below = work.site.scratch(cell.storage).path
        work.report, variable = laying.reporting(below, work.trial.order, cell.account)
        work.launch = msgspec.structs.replace(launch, environment={**launch.environment, **variable})


def serve(group: Group) -> None:
    """Start the servers of a staged workload, and warm them."""
    for work in group.each():
        if group.resident:
            resident.turn_to(work)
        work.play.serve()
        if group.resident:
            resident.leave_to_itself(work)
    if group.resident:
        resident.quieten(group)


def launch(group: Group) -> None:
    """The probe starts the workload, holds its memory, scans it, and kills what is left."""
    group.started, begun = time.time(), time.monotonic()
    works = [work for work in group.launched if work.play.problem is None]
    if group.resident and len(works) < len(group.works):
        works = []  # all or none
    try:
        together = len({id(work.site) for work in works}) < 2
        found = _launch(group, works) if together else _launch_apart(group, works)
    finally:
        # Also of attempts whose guest is gone, which are stored; and by no clock that somebody may have set meanwhile.
        group.ended = group.started + (time.monotonic() - begun)
    if group.shared:
        for index, work in enumerate(group.works):
            work.events = outcome.layout(found[0], index, len(group.works))
    else:
        for work, events in zip(works, found, strict=True):
            work.events = events
        for work in works:
            if work.play.problem is None:
                exited = outcome.last(work.events, probe.Exit)
                work.play.timed(failed=exited is None or exited.code not in work.command.success)


def _launch_apart(group: Group, works: Sequence[Work]) -> list[list[probe.Event]]:
    """Each of `works` on its own machine, at once. When one fails, the others are not waited for."""
    with ThreadPoolExecutor(len(works)) as pool:
        try:
            launched = [pool.submit(_launch, group, [work]) for work in works]
            ended, _ = wait(launched, return_when=FIRST_EXCEPTION)
            for each in ended:
                each.result()
            return [events for each in launched for events in each.result()]
        except BaseException:
            for work in works:
                work.clear()  # what waits for its guest waits no longer
            raise


def _launch(group: Group, works: Sequence[Work]) -> list[list[probe.Event]]:
    """Run the timed commands of `works` at once; the events of each, empty where its stage failed meanwhile."""
    if group.resident:
        return resident.launch(group, works) if works else []
    try:
        return probes(group, works, "spec.json", "events.jsonl", twin=False) if works else []
    except StageError as error:
        for work in works:
            work.play.fail(error)
        return [[] for _ in works]


def recheck(group: Group) -> None:
    """Look at the machines and at the knobs after it."""
    # In a guest there is nobody else. A knob of this host cannot change what an emulated one counts, and what backs its
    # memory is proven of each.
    if not all(site.machine.emulated for site, _ in group.sites):
        group.drift = group.bench.settings.drift()
    if (ageing := group.bench.ageing) is not None:
        if (why := ageing.lost(group.cell.memory_age)) is not None:
            raise AttemptLostError(f"{why}: what it was measured in is not known")
        group.aged = {**group.aged, "free_huge_after": ageing.free().huge}
    group.after = noise.snapshot(group.bench.host)
    for work in group.works:
        if work.broken is None:
            work.after = work.boarded.look(group.after)
        if work.report is not None:  # before a twin says more
            work.laid = laying.reported(work.report)
    for site, _ in group.sites:
        values = site.knobs.values()
        for work in group.works:
            if work.site is site and not group.resident:  # of which each was started under its own
                work.knobs = values
    for work in group.works:
        if not group.shared:
            work.cgroup_faults = work.leaf.used().faults
            work.cgroup_peak = work.leaf.peak_bytes()


def prove(group: Group) -> None:
    """Where processes came and went before the root's exit, an untimed twin of the attempt is scanned instead."""
    for work in group.launched:
        work.play.conclude()
        if work.play.problem is not None:
            continue
        exited = outcome.last(work.events, probe.Exit)
        short_lived = work.command.proof == "exit" and exited is not None and exited.early_exits > 0
        if group.cell.proof_wanted(work.arm) and (work.command.proof == "twin" or short_lived):
            work.play.supply()  # make on a tree that was built has nothing to do
            work.twin = probes(group, [work], "twin-spec.json", "twin.jsonl", twin=True)[0]


def rest(group: Group) -> None:
    """See how much memory idle servers have when khugepaged is done with them, where the study asks for that."""
    for work in group.each():
        found = idle(group, work)
        work.idle_bytes, work.idle_why = found.bytes, found.why


def dismiss(group: Group) -> None:
    """Stop the servers, see that they are gone, and remove the folders."""
    for work in group.works:
        work.play.dismiss()
    if served := [work for work in group.works if work.play.served and not work.boarded.own]:
        group.after = noise.snapshot(group.bench.host)  # before, the servers' own pages would be taken for others'
        for work in served:
            work.after = group.after


def leave(group: Group) -> None:
    """Give the machines up: guests are powered off, with the proof of what backed them."""
    for work in group.works:
        work.backed = work.boarded.leave()


def store(group: Group) -> None:
    """Make the attempts part of the run."""
    found: list[Attempt] = []
    earlier = group.bench.earlier[group.cell.id]
    for work in group.works:
        made = stored(group, work)
        if same := work.play.reading.same:
            earlier[:] = telling(earlier, same)
            made = held(made, same, group.cell, (*earlier, *found))
        found.append(made)
    rejected = next((attempt for attempt in found if attempt.state == "rejected"), None)
    for work, attempt in zip(group.works, found, strict=True):
        if rejected is not None and attempt.state != "rejected":
            problem = work.play.problem  # of its own: it stays known, though it is made again
            why = f"{rejected.arm}{BESIDE}{rejected.reason}" if problem is None else problem.reason
            attempt = msgspec.structs.replace(attempt, state="rejected", reason=why)  # noqa: PLW2901
        if group.drift:  # said here, as the run may be killed before its block is closed as disturbed
            attempt = msgspec.structs.replace(attempt, state="abandoned", reason=str(Disturbed(group.drift)))  # noqa: PLW2901
        if group.shared and work is not group.works[0]:
            with storing(str(work.draft)), Folder.open(work.draft) as own:
                copy(group.works[0].draft, own)
        group.stored.append(attempt)
    # Together, as late as possible: a run that is killed between two of them begins the block anew.
    for work, attempt in zip(group.works, group.stored, strict=True):
        group.bench.folder.accept(work.draft, attempt)
        if work.play.reading.same:
            earlier.append(attempt)


STEPS: tuple[Callable[[Group], None], ...] = (
    observe,
    board,
    age,
    apply,
    settle,
    check,
    supply,
    serve,
    launch,
    recheck,
    prove,
    rest,
    dismiss,
    leave,
    store,
)
