"""Interleaved blocks: the processes of all arms are there at once, and one arm at a time works for a slice.

The servers of each arm are started under the treatment of the arm. Then the page settings are such that no page of a
server changes any more (`design.quiet`), and the arms take turns in the coin's order: either one client visits the
servers of all arms, or each arm has a client, and all arms but one are frozen. The pages of the servers are scanned
before the turns and after them.

Commands take their memory in their turns. Each command is frozen before its exec, and the page settings of an arm hold
during the turns of that arm (`design.turn_settings`). The pages of a command are scanned while the command is frozen,
whenever the command has more memory than at the last scan.

An arm whose server or client ends meanwhile has failed, as in the sequential design: its pages may be the cause. The
other arms go on, so that they have their values for this block.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from hugewise.attempt import outcome
from hugewise.attempt.arm_in_turns import EVENTS, ArmInTurns, CannotTakeTurnsError
from hugewise.attempt.context import Alternation, AttemptState, Group, turn_knobs
from hugewise.attempt.driver import AttemptDriver
from hugewise.attempt.launching import probes
from hugewise.attempt.outcome import Problem
from hugewise.attempt.procedure import ProcedureError, ends
from hugewise.attempt.service import ServiceDriver
from hugewise.attempt.turns import Turn, take_turns
from hugewise.attempt.under_test import memory_bytes
from hugewise.files import storing
from hugewise.host import cgroup
from hugewise.machine import probe
from hugewise.machine.machine import Running
from hugewise.model.design import FixedWork, Visited, lasting, quiet, turn_settings
from hugewise.model.host import text_of
from hugewise.model.pages import THP, PageSizes
from hugewise.model.procedure import Part, Staged

_LOAD = b'{"ev":"load"'
_COLLAPSED = f"{THP}/khugepaged/pages_collapsed"
_TO_BEGIN_S, _PAUSE_S = 10.0, 0.001


def share_settings(group: Group) -> None:
    """Turn the knobs that commands share in all their turns, and prepare those of each arm. Raises Disturbed.

    An ordinary user turns none: the arms differ by prctl alone, which khugepaged heeds for each process.
    """
    site, initial = group.works[0].site, group.bench.settings.initial
    if not site.host.privileged():
        return
    sizes = PageSizes.discover(site.host)
    order = [arm.name for arm in group.cell.arms]  # in the study's order: the settings are the same in every block
    works = sorted(group.works, key=lambda work: order.index(work.arm.name))
    settings = turn_settings([work.arm.treatment for work in works], initial, sizes.pmd)
    turn_knobs(site, settings.shared)
    arms = [work.arm.name for work in works]
    group.alternation = Alternation(arms, settings, group.bench.settings.alternation(settings.own))
    for work, own, disabled in zip(works, settings.own, settings.thp_disable, strict=True):
        work.knobs = {**site.knobs.values(), **own}
        if disabled != work.arm.treatment.thp_disable:
            work.knobs = {**work.knobs, "PR_SET_THP_DISABLE": disabled}
        treatment = msgspec.structs.replace(work.arm.treatment, thp_disable=disabled)
        work.arm = msgspec.structs.replace(work.arm, treatment=treatment)


def turn_to(group: Group, work: AttemptState) -> None:
    """Turn the knobs to those of an arm. Raises Disturbed."""
    if group.alternation is None:
        turn_knobs(work.site, work.arm.treatment.knobs)
    else:
        group.alternation.turn(work.arm.name)


def leave_to_itself(work: AttemptState) -> None:
    """Record the settings and the pages of the arm that is up."""
    work.knobs = work.knobs or work.site.knobs.values()
    driver = work.driver
    # Otherwise scan when the clients have warmed up; or at the end, if memory is taken on demand.
    if isinstance(driver, ServiceDriver) and (driver.visited or (driver.fixed and driver.procedure.warm)):
        driver.look_first()


def quieten(group: Group) -> None:
    """Have the setting that all arms share while they take turns. Raises Disturbed."""
    if group.alternation is not None:  # each arm has its own setting in its turns
        return
    workload, knobs = group.cell.workload, [work.arm.treatment.knobs for work in group.works]
    if isinstance(workload, FixedWork) and all(each == knobs[0] for each in knobs):
        return  # all arms go on under the one setting that they have
    if isinstance(workload, Staged):
        _keep_still(group.works[0])


def _keep_still(one: AttemptState) -> None:
    """Set the knobs so that no process's pages change; settings that must stay in force are the same in all arms."""
    turn_knobs(one.site, {**lasting(one.arm.treatment.knobs), **quiet(one.site.knobs.values())})


def launch(group: Group, works: Sequence[AttemptState]) -> list[list[probe.Event]]:
    """Have the arms take turns; the events of each. That one of them cannot leaves all to be tried again."""
    try:
        return _visit(group, works) if works[0].driver.visited else _in_turns(group, works)
    except ProcedureError as error:
        for work in [error.work] if isinstance(error, CannotTakeTurnsError) else works:
            work.driver.problem = work.driver.problem or Problem("rejected", error.message)
        return [[] for _ in works]


def _of(works: Sequence[AttemptState], error: ProcedureError) -> AttemptState | None:
    return next(
        (
            one
            for one in works
            if isinstance(one.driver, ServiceDriver) and one.driver.procedure_runner is error.procedure_runner
        ),
        None,
    )


# -- one client visits all


@dataclass
class _Visiting(AttemptDriver):
    """Driver of the one client: it goes on when it has connected to all servers, and no server may end meanwhile."""

    plays: Sequence[ServiceDriver]
    served = True
    gate = True

    def timing(self, *, held: bool) -> Callable[[Sequence[Running]], None]:
        procedure_runners = [driver.procedure_runner for driver in self.plays]

        def alongside(processes: Sequence[Running]) -> None:
            ends(procedure_runners, processes, None)

        return alongside

    def mark(self) -> None:
        for driver in self.plays:
            driver.mark()


def _visit(group: Group, works: Sequence[AttemptState]) -> list[list[probe.Event]]:
    """Let the client visit the servers. When a server is gone, the client starts anew with the others, refilled."""
    found: dict[int, list[probe.Event]] = {}
    left = list(works)
    while left and not found:
        try:
            found = dict(zip(map(id, left), _visits(group, works, left), strict=True))
        except ProcedureError as error:
            if (fallen := _of(left, error)) is None:
                raise
            fallen.driver.problem = Problem("failed", error.message)
            left.remove(fallen)
            for work in left:
                work.driver.begin_anew()
    return [found.get(id(work), []) for work in works]


def _visits(group: Group, everyone: Sequence[AttemptState], works: Sequence[AttemptState]) -> list[list[probe.Event]]:
    """Have `works`, of all in the block, visited; return the events of each."""
    workload, slicing = group.cell.workload, group.slicing
    plays = [work.driver for work in works if isinstance(work.driver, ServiceDriver)]
    assert isinstance(workload, Visited) and slicing is not None
    values = group.cell.values
    rounds = slicing.rounds(float(values["duration"]))  # type: ignore[arg-type]
    digits = {str(everyone.index(work)): str(number) for number, work in enumerate(works)}
    turns = "".join(
        digits.get(each, "") for each in itertools.islice(itertools.cycle(group.turns), rounds * len(everyone))
    )
    client = workload.visit(
        values, [driver.procedure_runner.places for driver in plays], turns, slicing.length, slicing.wash_out
    )
    for work in works:
        work.launch = client
    (events,) = probes(group, works[:1], "spec.json", EVENTS, twin=False, beside=_Visiting(plays))
    exited = outcome.last(events, probe.Exit)
    if exited is None or exited.code not in client.success:
        for driver in plays:  # it may have failed because a server is gone: report which
            driver.procedure_runner.check_again()
    _hand_out([work.draft / EVENTS for work in works])
    return [events for _ in works]


def _hand_out(files: Sequence[Path]) -> None:
    """Give each attempt its own result from the client, and the client's common facts."""
    with storing(str(files[0])):
        lines = files[0].read_bytes().splitlines(keepends=True)
        for number, file in enumerate(files):
            results = itertools.count()
            kept = [line for line in lines if not line.startswith(_LOAD) or next(results) == number]
            file.write_bytes(b"".join(kept))


# -- each has its own, and all but one are frozen


@dataclass
class _Turning(AttemptDriver):
    """Driver of all clients or commands: freezes them all once they have begun, then gives them turns."""

    group: Group
    works: Sequence[AttemptState]
    sides: Sequence[ArmInTurns]

    def timing(self, *, held: bool) -> Callable[[Sequence[Running]], None]:
        def alongside(processes: Sequence[Running]) -> None:
            for side, process in zip(self.sides, processes, strict=True):
                side.launcher = process
                side.work.leaf.follow(process)
            with ExitStack() as thawing:  # one that does not go on leaves no other frozen
                for side in self.sides:
                    thawing.callback(side.release)
                with self._without_khugepaged():
                    for side in self.sides:
                        if side.driver is not None and not side.served:
                            side.driver.mark()
                    self._await()
                    self._take()
            self._wait(processes)

        return alongside

    @contextmanager
    def _without_khugepaged(self) -> Iterator[None]:
        """Raise ProcedureError where khugepaged does not sleep as it should: another arm's setting could be the
        cause.
        """
        alternation, host = self.group.alternation, self.works[0].site.host
        asleep = alternation is not None and alternation.settings.without_khugepaged
        before = text_of(host, _COLLAPSED) if asleep else None
        yield
        if before is not None and (after := text_of(host, _COLLAPSED)) != before:
            raise ProcedureError(f"khugepaged collapsed pages while the arms took turns ({before} before, {after} now)")

    def _wait(self, processes: Sequence[Running]) -> None:
        while True:
            serving = {
                id(side.driver.procedure_runner): side
                for side in self.sides
                if side.driver is not None and not side.fallen
            }
            try:
                ends(
                    [side.driver.procedure_runner for side in serving.values() if side.driver is not None],
                    processes,
                    None,
                )
            except ProcedureError as error:
                serving[id(error.procedure_runner)].fall(error)
            else:
                return

    def _await(self) -> None:
        """Wait until each arm has executed its program; a command gets a turn for that, as it is frozen before."""
        if self.group.backing is not None:
            self.group.backing.prefault(self.group.cell.id, self._held())
        for number in self._digits(1):
            side = self.sides[number]
            if not side.served:
                side.thaw()
            end = time.monotonic() + _TO_BEGIN_S
            while not side.begun():
                if time.monotonic() > end:
                    raise CannotTakeTurnsError(side.work, f"its timed command was not there after {_TO_BEGIN_S:g} s")
                time.sleep(_PAUSE_S)
            if not side.served:
                side.freeze()

    def _take(self) -> None:
        slicing = self.group.slicing
        assert slicing is not None
        for side in self.sides:
            side.freeze()
        length, wash_out = slicing.length, slicing.length * slicing.wash_out
        performances = [(side, side.driver) for side in self.sides if side.driver is not None]
        if not performances:
            take_turns(self.sides, self._digits(None), length=length, wash_out=wash_out)
            return
        if performances[0][1].fixed:
            self._work(performances, length)
            return
        window = performances[0][
            1
        ].procedure.window  # none: it ends by itself when it has done all that it was given to do
        for number in self._digits(1):  # the leads: each connects and warms up under its own treatment
            side, driver = performances[number]
            turn_to(self.group, side.work)
            if window is not None:
                take_turns([side], [0], length=window.lead, wash_out=0.0)
            if not side.fallen:
                side.look(partial(driver.look_first, in_turns=True))
        _keep_still(self.sides[0].work)
        for _, driver in performances:
            driver.mark()
            driver.begin_work()
        left = {number for number, side in enumerate(self.sides) if not side.fallen}
        timed = window is not None and window.quota is None  # else until all have done their work
        rounds = slicing.rounds(window.length) if window is not None and timed else None
        order = (number for number in self._digits(rounds) if number in left) if left else ()
        taken = take_turns(self.sides, order, length=length, wash_out=0.0 if window is None else wash_out)
        for number, (_, driver) in enumerate(performances):
            driver.parts = tuple(_part(turn) for turn in taken if turn.player == number)
            driver.mark()
        for side, driver in performances:
            if not side.fallen:
                side.look(driver.look)
                driver.let_end()

    def _work(self, performances: Sequence[tuple[ArmInTurns, ServiceDriver]], length: float) -> None:
        """Give the servers and their clients turns until the clients have done their work; all of it counts. Commands
        without servers began before: each has had a turn to execute its program.
        """
        for side, driver in performances:
            if side.served:
                driver.mark()
        take_turns(self.sides, self._digits(None), length=length, wash_out=0.0)
        for _, driver in performances:
            driver.mark()
        for side, driver in performances:
            if not side.fallen:
                side.look(driver.look)

    def _held(self) -> int:
        """Return the bytes that the processes of all arms have."""
        return sum(memory_bytes(side.work.site.host, side.work.leaf.processes()) for side in self.sides)

    def _digits(self, rounds: int | None) -> Iterator[int]:
        """Yield whose turn it is. Nobody works meanwhile, so that memory can be touched for the arms that take some in
        their turns.
        """
        turns = None if rounds is None else rounds * len(self.sides)
        for digit in itertools.islice(itertools.cycle(self.group.turns), turns):
            if self.group.backing is not None:
                self.group.backing.prefault_again(self.group.cell.id, self._held)
            yield int(digit)


def _part(turn: Turn) -> Part:
    return Part(turn.begin, turn.end, turn.thawed)


def _in_turns(group: Group, works: Sequence[AttemptState]) -> list[list[probe.Event]]:
    sides = [ArmInTurns(work, (work.leaf, work.client) if work.driver.served else (work.leaf,)) for work in works]
    with ExitStack() as thawing:
        for side in sides:
            if not side.served:
                thawing.callback(side.release)
                if not isinstance(side.work.leaf, cgroup.Tree):
                    side.freeze()  # the command enters its group before its exec, and stands still there
            if group.alternation is not None:
                side.turn = partial(group.alternation.turn, side.work.arm.name)
        events_of = probes(group, works, "spec.json", EVENTS, twin=False, beside=_Turning(group, works, sides))
    for events, side in zip(events_of, sides, strict=True):
        if side.early and side.driver is not None:
            ended = side.driver.procedure_runner.how("its client ended before all turns were over", events)
            side.driver.problem = side.driver.problem or Problem("failed", ended)
    return [_in_own_time(side, events) for events, side in zip(events_of, sides, strict=True)]


def _in_own_time(side: ArmInTurns, events: list[probe.Event]) -> list[probe.Event]:
    """Return the events of an arm by the clock of its own turns, with the fullest scan; rates go by that clock too."""
    events = _without_rests(events, side.rests)
    exited = outcome.last(events, probe.Exit)
    if side.driver is not None and not side.served and side.driver.measured is not None and exited is not None:
        begin, _ = side.driver.measured
        side.driver.parts = (Part(begin, begin + exited.wall_ns / 1e9),)
    side.work.scanned_frozen = bool(side.fullest)
    return _with_fullest(events, side.fullest)


def _with_fullest(events: list[probe.Event], fullest: Sequence[probe.Coverage]) -> list[probe.Event]:
    """Return the events with the fullest scan as proof of the pages: a program may free memory before its end."""
    at_exit = [event for event in events if isinstance(event, probe.Coverage)]
    scanned, left = (sum(sum(event.bytes.values()) for event in scan) for scan in (fullest, at_exit))
    if scanned <= left:
        return events
    return [*(event for event in events if not isinstance(event, probe.Coverage)), *fullest]


def _without_rests(events: Sequence[probe.Event], rests: Sequence[tuple[float, float]]) -> list[probe.Event]:
    """Return the launcher's events on a clock that stood still while its program was frozen, as long as the program
    existed.

    From the exit on nothing is subtracted. The launcher's own clock stands still while it looks at the pages. If the
    time in which a program gives its memory back in a frozen group were subtracted, the arm with more pages would seem
    to be faster.
    """
    found: list[probe.Event] = []
    started = outcome.last(events, probe.Start)
    since = 0.0 if started is None else started.t_ns / 1e9
    for event in events:
        if isinstance(event, probe.Exit):
            left = (event.looked_ns or (event.t_ns,))[0] / 1e9
            rested = sum(max(0.0, min(end, left) - max(begin, since)) for begin, end in rests)
            event = msgspec.structs.replace(event, wall_ns=max(0, event.wall_ns - round(rested * 1e9)))  # noqa: PLW2901
        found.append(event)
    return found
