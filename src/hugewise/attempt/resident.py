"""Resident blocks: the processes of all arms are there at once, and one arm at a time works for a slice.

Each arm is brought up under its own treatment. Then the page settings are such that nobody's pages change any more
(`design.quiet`), and the arms take turns in the coin's order: either one client visits the servers of all, or each has
a client (or is a command), and all but one are frozen. What backs the servers is looked at before the turns and after.

An arm whose server or client ends meanwhile has failed, as it has where arms are measured one after the other: that may
hang on its pages. The others go on without it, so that they have their values for this block.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from hugewise.attempt import outcome
from hugewise.attempt.arm_in_turns import EVENTS, ArmInTurns, CannotTakeTurnsError
from hugewise.attempt.context import AttemptState, Group, turn_knobs
from hugewise.attempt.driver import AttemptDriver
from hugewise.attempt.launching import probes
from hugewise.attempt.outcome import Problem
from hugewise.attempt.procedure import ProcedureError, ends
from hugewise.attempt.service import ServiceDriver
from hugewise.attempt.turns import Side, Turn, take_turns
from hugewise.files import storing
from hugewise.machine import probe
from hugewise.machine.machine import Running
from hugewise.model.design import FixedWork, Visited, lasting, quiet
from hugewise.model.procedure import Part, Staged

_LOAD = b'{"ev":"load"'
_TO_BEGIN_S, _PAUSE_S = 10.0, 0.001


def turn_to(work: AttemptState) -> None:
    """Turn the knobs of the treatment: what an arm brings up, it brings up under its own. Raises Disturbed."""
    turn_knobs(work.site, work.arm.treatment.knobs)


def leave_to_itself(work: AttemptState) -> None:
    """The arm is up: under which settings, and with which pages."""
    work.knobs = work.site.knobs.values()
    driver = work.driver
    # Else when its clients have warmed up; or, of what takes its memory while it is asked, in the end.
    if isinstance(driver, ServiceDriver) and (driver.visited or (driver.fixed and driver.procedure.warm)):
        driver.look_first()


def quieten(group: Group) -> None:
    """Have the setting that all arms share while they take turns. Raises Disturbed."""
    workload, knobs = group.cell.workload, [work.arm.treatment.knobs for work in group.works]
    if isinstance(workload, FixedWork) and all(each == knobs[0] for each in knobs):
        return  # they go on under the one that they have, as commands do
    if isinstance(workload, Staged):
        _keep_still(group.works[0])


def _keep_still(one: AttemptState) -> None:
    """Turn the knobs so that nobody's pages change; what must go on is the same in all arms."""
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
    """Whose server it is that is gone."""
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
    """Beside the one client: it is let go when it has connected to all servers, and no server may end meanwhile."""

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
    """The client knows no servers that are gone: when one is, it begins anew with those of the others, which are
    filled as they were.
    """
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
    """Have those of `works` visited, of all in the block; the events of each."""
    workload, slicing = group.cell.workload, group.slicing
    plays = [work.driver for work in works if isinstance(work.driver, ServiceDriver)]
    assert isinstance(workload, Visited) and group.rounds is not None and slicing is not None
    values = group.cell.values
    rounds = slicing.rounds(float(values["duration"]))  # type: ignore[arg-type]
    digits = {str(everyone.index(work)): str(number) for number, work in enumerate(works)}
    turns = "".join(digits.get(each, "") for each in "".join(itertools.islice(group.rounds, rounds)))
    client = workload.visit(
        values, [driver.procedure_runner.places for driver in plays], turns, slicing.length, slicing.wash_out
    )
    for work in works:
        work.launch = client
    (events,) = probes(group, works[:1], "spec.json", EVENTS, twin=False, beside=_Visiting(plays))
    exited = outcome.last(events, probe.Exit)
    if exited is None or exited.code not in client.success:
        for driver in plays:  # it may have failed because a server is gone: whose is told
            driver.procedure_runner.check_again()
    _hand_out([work.draft / EVENTS for work in works])
    return [events for _ in works]


def _hand_out(files: Sequence[Path]) -> None:
    """Give each attempt what the client said of it: its own result, and all that is of the client itself."""
    with storing(str(files[0])):
        lines = files[0].read_bytes().splitlines(keepends=True)
        for number, file in enumerate(files):
            results = itertools.count()
            kept = [line for line in lines if not line.startswith(_LOAD) or next(results) == number]
            file.write_bytes(b"".join(kept))


# -- each has its own, and all but one are frozen


@dataclass
class _Turning(AttemptDriver):
    """Beside the clients, or the commands: when all have begun all are frozen, and have their turns."""

    group: Group
    works: Sequence[AttemptState]
    sides: Sequence[ArmInTurns] = ()

    def timing(self, *, held: bool) -> Callable[[Sequence[Running]], None]:
        def alongside(processes: Sequence[Running]) -> None:
            self.sides = [
                ArmInTurns(work, Side((work.leaf, work.client) if work.driver.served else (work.leaf,), process))
                for work, process in zip(self.works, processes, strict=True)
            ]
            with ExitStack() as thawing:  # one that does not go on leaves no other frozen
                for side in self.sides:
                    thawing.callback(side.thaw)
                self._await()
                self._take()
            self._wait(processes)

        return alongside

    def _wait(self, processes: Sequence[Running]) -> None:
        """Until all have ended, whatever becomes of servers meanwhile."""
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
        end = time.monotonic() + _TO_BEGIN_S
        while waiting := [side for side in self.sides if not side.begun()]:
            if time.monotonic() > end:
                raise CannotTakeTurnsError(waiting[0].work, f"its timed command was not there after {_TO_BEGIN_S:g} s")
            time.sleep(_PAUSE_S)

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
            turn_to(side.work)
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
        """Servers and what asks them have turns until that has done its work: all of it counts."""
        for _, driver in performances:
            driver.mark()
        take_turns(self.sides, self._digits(None), length=length, wash_out=0.0)
        for _, driver in performances:
            driver.mark()
        for side, driver in performances:
            if not side.fallen:
                side.look(driver.look)

    def _digits(self, rounds: int | None) -> Iterator[int]:
        return (int(digit) for each in itertools.islice(self.group.rounds or (), rounds) for digit in each)


def _part(turn: Turn) -> Part:
    return Part(turn.begin, turn.end, turn.thawed)


def _in_turns(group: Group, works: Sequence[AttemptState]) -> list[list[probe.Event]]:
    beside = _Turning(group, works)
    found = probes(group, works, "spec.json", EVENTS, twin=False, beside=beside)
    if not beside.sides:
        return found
    for events, side in zip(found, beside.sides, strict=True):
        if side.early and side.driver is not None:
            ended = side.driver.procedure_runner.how("its client ended before all turns were over", events)
            side.driver.problem = side.driver.problem or Problem("failed", ended)
    return [_without_rests(events, side.rests) for events, side in zip(found, beside.sides, strict=True)]


def _without_rests(events: Sequence[probe.Event], rests: Sequence[tuple[float, float]]) -> list[probe.Event]:
    """What a launcher said, by a clock that stood still while its program was frozen, as long as that was there.

    From its exit on nothing is taken off any more. The launcher's own clock stands still while it looks at the pages,
    and what gives its memory back then goes on in a frozen group: who has more pages would seem to be faster.
    """
    found: list[probe.Event] = []
    for event in events:
        if isinstance(event, probe.Exit):
            left = (event.looked_ns or (event.t_ns,))[0] / 1e9
            rested = sum(max(0.0, min(end, left) - begin) for begin, end in rests)
            event = msgspec.structs.replace(event, wall_ns=max(0, event.wall_ns - round(rested * 1e9)))  # noqa: PLW2901
        found.append(event)
    return found
