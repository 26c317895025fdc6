"""Steps of one attempt, or of several at once (`STEPS`): from boarding a machine to storing the record.

`on_step` is called before each step; the kill test is made from this list.

Some attempts of a cell must produce the same result without a reference, such as a build in a guest: an attempt whose
result is not that of the first has failed. Where an arm produces another result again and again, neither is known to be
right (a coin chose the first arm), and no attempt of the cell counts any more.
"""

from __future__ import annotations

import pwd
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hugewise.attempt import context, interleaved, outcome
from hugewise.attempt.context import AttemptState, Disturbed, Group, RunContext, turn_knobs
from hugewise.attempt.driver import CommandDriver, Surroundings
from hugewise.attempt.launching import probes, untimed_spec
from hugewise.attempt.procedure import ProcedureError
from hugewise.attempt.recording import needs_twin, stored
from hugewise.attempt.service import ServiceDriver
from hugewise.errors import AttemptLostError, MachineError, UserError
from hugewise.files import storing
from hugewise.host.local_host import is_caller
from hugewise.host.pool import hold
from hugewise.host.scratch import Scratch
from hugewise.machine import noise, probe
from hugewise.machine.machine import Machine, read_events, run_launchers
from hugewise.machine.messages import parse_foreign
from hugewise.machine.programs import cpus
from hugewise.model.pages import pressed
from hugewise.model.procedure import Staged
from hugewise.model.trial import BESIDE, Attempt, Trial
from hugewise.model.workload import Direct
from hugewise.plan.arms import Arm
from hugewise.plan.memory import need
from hugewise.plan.plan import Cell

_LAST_LINES = 3
_HINT = "it must end with status 0 whenever it is run (rm -f, mkdir -p), without a terminal; no shell reads it"


@dataclass(frozen=True)
class Before:
    """A command before another: as the same account, in the same folder, with the same environment but for what the
    treatment puts there. What it leaves running is ended with it.

    outputs  the attempt's folder, for what it says
    timeout  seconds that it has
    """

    argv: tuple[str, ...]
    machine: Machine
    outputs: Path
    account: pwd.struct_passwd | None
    timeout: float

    def __call__(self, around: Surroundings) -> None:
        """Run it to its end. Raises UserError where it fails, ProbeError."""
        spec = untimed_spec(
            self.argv,
            around,
            self.outputs,
            "prepare",
            machine=self.machine,
            account=self.account,
            timeout=self.timeout,
        )
        job = probe.Job.below(self.outputs, "prepare", spec)
        with storing(str(self.outputs)):
            run_launchers([(self.machine, job)])
        if (why := self._failed(job)) is not None:
            raise UserError(f"the command that prepares an attempt fails: {shlex.join(self.argv)}: {why}", hint=_HINT)

    def _failed(self, job: probe.Job) -> str | None:
        events = read_events(job)
        ended = outcome.last(events, probe.Exit)
        if ended is None:
            said = outcome.last(events, probe.Error)
            return "it did not start" if said is None else said.message
        if ended.timed_out:
            return f"it has not ended after {self.timeout:g} s"
        if ended.exceeded is None and ended.code == 0:
            return None
        how = ended.exceeded or (f"signal {ended.signal}" if ended.code is None else f"exit status {ended.code}")
        for stream in ("stderr", "stdout"):
            if lines := outcome.last_lines(self.outputs / f"prepare.{stream}", _LAST_LINES):
                return f"{how}: {' | '.join(lines)[:600]}"
        return how


def held(attempt: Attempt, names: Sequence[str], cell: Cell, earlier: Iterable[Attempt]) -> Attempt:
    """`attempt`, failed where one of the facts `names` is not that of the first of `earlier` that counts for it. Pure.

    What counts are accepted attempts of the same cell whose arm gives the workload the same parameters.
    """
    if not names or attempt.state != "accepted":
        return attempt
    given = cell.given(cell.arm(attempt.arm))
    alike = {arm.name for arm in cell.arms if cell.given(arm) == given}
    known = [a for a in earlier if a.cell == cell.id and a.arm in alike]
    why = disagreement(attempt, names, [a for a in known if a.state == "accepted"]) or disputed(names, known)
    if why is None:
        return attempt
    return msgspec.structs.replace(
        attempt, state="failed", reason=why, metrics={}, absent={}, wall_s=None, cpu_s=None, series=()
    )


def telling(attempts: Iterable[Attempt], names: Sequence[str]) -> list[Attempt]:
    """Return the attempts that report all facts that `held` compares, without what repeats an arm's result. Pure."""
    times: Counter[tuple[object, ...]] = Counter()
    found = []
    for attempt in attempts:
        made = (attempt.arm, attempt.state, *(attempt.facts.get(name) for name in names))
        times[made] += 1
        if times[made] <= {"accepted": 1, "failed": 2}.get(attempt.state, 0):
            found.append(attempt)
    return found


def disputed(names: Sequence[str], earlier: Sequence[Attempt]) -> str | None:
    """Return why the cell's first attempt is no longer the reference: an arm made another thing twice. Else None."""
    for name in names:
        made = [a for a in earlier if name in a.facts]
        first = next((a for a in made if a.state == "accepted"), None)
        if first is None:
            continue
        right = {a.arm for a in made if a.state == "accepted" and a.facts[name] == first.facts[name]}
        wrong = Counter((a.arm, a.facts[name]) for a in made if a.state == "failed" and a.arm not in right)
        for (arm, value), times in wrong.items():
            if times > 1 and value != first.facts[name]:
                return f"{name} is {value} under {arm} and {first.facts[name]} under {first.arm}: either may be right"
    return None


def disagreement(attempt: Attempt, names: Sequence[str], earlier: Sequence[Attempt]) -> str | None:
    """Return the fact in which `attempt` differs from the first of `earlier` that has the fact, or None. Pure."""
    for name in names:
        first = next((each for each in earlier if name in each.facts), None)
        if first is not None and attempt.facts.get(name) != first.facts[name]:
            return (
                f"{name} is {attempt.facts.get(name)}, and in block {first.block} ({first.arm}) it was"
                f" {first.facts[name]}: it must be the same in all attempts"
            )
    return None


def attempt(bench: RunContext, cell: Cell, arm: Arm, trial: Trial, number: int) -> Attempt:
    """Run one attempt and store it. Raises Disturbed when a knob was turned by somebody else before or during it.

    An attempt whose measurement was disturbed is stored all the same, and belongs to a block that does not count.
    """
    return run_together(bench, cell, [(arm, trial)], number)[0]


def run_together(
    bench: RunContext,
    cell: Cell,
    arms: Sequence[tuple[Arm, Trial]],
    number: int,
    *,
    turns: str = "",
) -> list[Attempt]:
    """Run the attempts of all `arms` at once and store them: as the cell's kind of design has it.

    `turns` is the order in which they take turns, where they do, repeated until the end: a digit is the place of an arm
    among the trials. Either all of them count or none does: when one is to be tried again, so are the others. Raises
    Disturbed like `attempt`, and MachineError when a guest was gone before anything was launched in it.
    """
    works = []
    for arm, trial in sorted(arms, key=lambda each: each[1].order):
        name = f"b{trial.block:05d}-{trial.order}-{arm.name}-{number}"
        works.append(AttemptState(arm, trial, number, bench.folder.draft(name)))
    group = Group(bench, cell, works, turns)
    try:
        for step in STEPS:
            bench.on_step(step.__name__)
            try:
                with bench.folder.naming(), _hearing(group):
                    step(group)
            except MachineError as error:
                if not group.started:
                    error.arm = None if group.turn is None else group.turn.trial.label
                    raise
                _broken(group, error)
    finally:
        for work in works:
            work.clear()
    if group.drift:
        raise Disturbed(group.drift)
    return group.stored


def _hearing(group: Group) -> AbstractContextManager[None]:
    # nonsense from a guest ends the guest, and not the run
    guests = [work.site.host.name for work in group.works if work.aboard is not None and work.aboard.own]
    return parse_foreign(" or ".join(guests), "what it said") if guests else nullcontext()


def _broken(group: Group, error: MachineError) -> None:
    """Store what is known of the attempts of a guest that is gone, and of those beside them."""
    for work in group.works:
        if work.broken is None:
            work.broken, work.let_down = error.message, error.emulator


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
        if not group.interleaved:
            turn_knobs(site, work.arm.treatment.knobs)
        elif group.faults_in_turns:
            interleaved.share_settings(group)
        else:  # each arm when its servers are started
            turn_knobs(site, {})
        if work.arm.treatment.surplus and not work.boarded.own:
            work.held = hold(site.host, work.arm.treatment.target.size)  # pages of the other arms


def settle(group: Group) -> None:
    """Carry-over control between trials: the same for all arms, chosen in the study."""
    time.sleep(group.bench.study.between.settle)
    if group.bench.ageing is not None:  # mended, as others may have changed it
        group.aged = group.bench.ageing.bring(group.cell.memory_age, need(group.cell))
    # Before the counters are read that prove the pages of a command; those of staged workloads are proven by scans.
    if isinstance(group.cell.workload, Direct):
        _prefault(group)


def _prefault(group: Group) -> None:
    # For arms in turns it is touched when the first of them goes on: by then the host could have taken it back again.
    if group.backing is not None and not group.interleaved:
        group.backing.prefault(group.cell.id)


def check(group: Group) -> None:
    """Give each process its cgroup and look at the machines before it."""
    for work in group.works:
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
    """Prepare the timed command; for a staged workload also its data and the steps before its servers."""
    bench, cell = group.bench, group.cell
    for work in group.each():
        site = work.site
        if not isinstance(cell.workload, Staged):
            assert isinstance(cell.workload, Direct)
            work.launch = cell.workload.launch(work.arm.treatment, cell.given(work.arm))
            _have_reported(group, work)
            start, boarded = work.command, work.boarded
            # A person's environment, such as a token in it, is for their own commands.
            whole = not start.micro and (is_caller(cell.account) or boarded.own)
            before = Before(start.prepare, site.machine, work.draft, cell.account, cell.timeout)
            work.driver = CommandDriver(
                account=cell.account,
                inherited=boarded.environment if whole else site.machine.environment,
                cwd=boarded.cwd,
                cpus=cell.cpus,
                before=before if start.prepare else None,
            )
            work.driver.supply()
            continue
        scratch = site.scratch(cell.storage)
        if isinstance(scratch, Scratch):  # on this host, where every cell has its account
            scratch = scratch.of(cell.stage_account)
        work.driver = driver = ServiceDriver(
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
        driver.supply()
        work.launch = driver.procedure.timed


def _have_reported(group: Group, work: AttemptState) -> None:
    cell, launch = group.cell, work.command
    if work.arm.treatment.layout:  # layouts are on this host
        below = work.site.scratch(cell.storage).path
        work.report, variable = context.reporting(below, work.trial.order, cell.account)
        work.launch = msgspec.structs.replace(launch, environment={**launch.environment, **variable})


def serve(group: Group) -> None:
    """Start the servers of a staged workload, and warm them."""
    for work in group.each():
        if group.interleaved and work.driver.served:
            interleaved.turn_to(group, work)
        work.driver.serve()
        if group.interleaved and work.driver.served:
            interleaved.leave_to_itself(work)
    if group.interleaved:
        interleaved.quieten(group)


def launch(group: Group) -> None:
    """Launch the workload by the probe, which holds its memory, scans it, and kills what is left."""
    if isinstance(group.cell.workload, Staged):
        _prefault(group)  # its data were laid out meanwhile
    group.started, begun = time.time(), time.monotonic()
    works = [work for work in group.works if work.driver.problem is None]
    if group.interleaved and len(works) < len(group.works):
        works = []  # all or none
    threads = noise.background(group.bench.host) if group.interleaved else {}
    try:
        together = len({id(work.site) for work in works}) < 2
        found = _launch(group, works) if together else _launch_apart(group, works)
    finally:
        # Also for attempts whose guest is gone, which are stored; and not by the wall clock, which may be set
        # meanwhile.
        group.ended = group.started + (time.monotonic() - begun)
        if group.interleaved:
            group.background = noise.background_s(threads, noise.background(group.bench.host))
    for work, events in zip(works, found, strict=True):
        work.events = events
    for work in works:
        if work.driver.problem is None:
            exited = outcome.last(work.events, probe.Exit)
            work.driver.timed(failed=exited is None or exited.code not in work.command.success)


def _launch_apart(group: Group, works: Sequence[AttemptState]) -> list[list[probe.Event]]:
    """Launch each of `works` on its own machine, at once. When one fails, the others are not waited for."""
    with ThreadPoolExecutor(len(works)) as pool:
        try:
            launched = [pool.submit(_launch, group, [work]) for work in works]
            ended, _ = wait(launched, return_when=FIRST_EXCEPTION)
            for each in ended:
                each.result()
            return [events for each in launched for events in each.result()]
        except BaseException:
            for work in works:
                work.clear()  # waiters for the guest stop waiting
            raise


def _launch(group: Group, works: Sequence[AttemptState]) -> list[list[probe.Event]]:
    """Run the timed commands of `works` at once; return the events of each, empty where its procedure failed."""
    if group.interleaved:
        return interleaved.launch(group, works) if works else []
    try:
        return probes(group, works, "spec.json", "events.jsonl", twin=False) if works else []
    except ProcedureError as error:
        for work in works:
            work.driver.fail(error)
        return [[] for _ in works]


def recheck(group: Group) -> None:
    """Look at the machines and at the knobs after it."""
    # A guest has no other users. A knob of this host cannot change an emulated guest's counts, and the backing of its
    # memory is proven for each attempt.
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
        if work.report is not None:  # before a twin adds to it
            work.laid = context.reported(work.report)
    for site, _ in group.sites:
        values = site.knobs.values()
        for work in group.works:
            if work.site is site and not group.interleaved:  # interleaved arms started under settings of their own
                work.knobs = values
    for work in group.works:
        work.cgroup_faults = work.leaf.used().faults
        work.cgroup_peak = work.leaf.peak_bytes()


def prove_by_twin(group: Group) -> None:
    """Run an untimed twin where the attempt's own scan is no proof of its pages. `recording` judges the delivery."""
    for work in group.works:
        work.driver.conclude()
        if work.driver.problem is not None:
            continue
        if group.cell.proof_wanted(work.arm) and needs_twin(group, work):
            if group.alternation is not None:
                interleaved.turn_to(group, work)
            work.driver.supply()  # make on a tree that was built has nothing to do
            work.twin = probes(group, [work], "twin-spec.json", "twin.jsonl", twin=True)[0]


def dismiss(group: Group) -> None:
    """Stop the servers, see that they are gone, and remove the folders."""
    for work in group.works:
        work.driver.dismiss()
    if served := [work for work in group.works if work.driver.served and not work.boarded.own]:
        group.after = noise.snapshot(group.bench.host)  # before, the servers' own pages would be taken for others'
        for work in served:
            work.after = group.after


def leave(group: Group) -> None:
    """Give the machines up: guests are powered off, after the proof of their backing."""
    for work in group.works:
        work.backed = work.boarded.leave()


def store(group: Group) -> None:
    """Make the attempts part of the run."""
    found: list[Attempt] = []
    earlier = group.bench.earlier[group.cell.id]
    for work in group.works:
        made = stored(group, work)
        if same := work.driver.reading.same:
            earlier[:] = telling(earlier, same)
            made = held(made, same, group.cell, (*earlier, *found))
        found.append(made)
    if group.backing is not None:
        group.backing.learn(group.cell.id, sum(map(_taken, found)))
    rejected = next((attempt for attempt in found if attempt.state == "rejected"), None)
    for work, attempt in zip(group.works, found, strict=True):
        if rejected is not None and attempt.state != "rejected":
            problem = work.driver.problem  # kept, though the attempt is made again
            why = f"{rejected.arm}{BESIDE}{rejected.reason}" if problem is None else problem.reason
            attempt = msgspec.structs.replace(attempt, state="rejected", reason=why)  # noqa: PLW2901
        if group.drift:  # said here, as the run may be killed before its block is closed as disturbed
            attempt = msgspec.structs.replace(attempt, state="abandoned", reason=str(Disturbed(group.drift)))  # noqa: PLW2901
        group.stored.append(attempt)
    # Together, as late as possible: a run that is killed between two of them begins the block anew.
    for work, attempt in zip(group.works, group.stored, strict=True):
        group.bench.folder.accept(work.draft, attempt)
        if work.driver.reading.same:
            earlier.append(attempt)


def _taken(attempt: Attempt) -> int:
    """Return the bytes that an attempt took at its most: those of its scan, or the peak of its largest process. A twin
    sees each process at its fullest, and hardly more of them are there at once than there are CPUs.
    """
    scanned = sum(attempt.delivery.coverage.values())
    largest = int(attempt.metrics.get("peak_bytes") or 0)
    return min(scanned, largest * cpus()) if attempt.delivery.proof == "twin" else max(scanned, largest)


STEPS: tuple[Callable[[Group], None], ...] = (
    board,
    age,
    apply,
    settle,
    check,
    supply,
    serve,
    launch,
    recheck,
    prove_by_twin,
    dismiss,
    leave,
    store,
)
