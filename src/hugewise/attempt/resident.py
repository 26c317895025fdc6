"""Resident blocks: the processes of all arms are there at once, and one arm at a time works for a slice.

Each arm is brought up under its own treatment. Then the page settings are such that nobody's pages change any more
(`design.quiet`), and the arms take turns in the coin's order: either one client visits the servers of all, or each has
a client (or is a command), and all but one are frozen. What backs the servers is looked at before the turns and after.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hugewise.attempt.launching import probes
from hugewise.attempt.outcome import Problem
from hugewise.attempt.performance import Performance
from hugewise.attempt.play import Play
from hugewise.attempt.stage import StageError, ends
from hugewise.attempt.turns import Turn, take_turns
from hugewise.attempt.underway import Group, Work, turn_knobs
from hugewise.files import storing
from hugewise.host import tolerance
from hugewise.machine import probe
from hugewise.machine.machine import Running
from hugewise.model.design import Slicing, Visited, lasting, quiet
from hugewise.model.scene import Part, Staged

__all__ = ["launch", "leave_to_itself", "quieten", "turn_to"]

_LOAD = b'{"ev":"load"'


def turn_to(work: Work) -> None:
    """Turn the knobs of the treatment: what an arm brings up, it brings up under its own. Raises Disturbed."""
    turn_knobs(work.site, work.arm.treatment.knobs)


def leave_to_itself(work: Work) -> None:
    """The arm is up: under which settings, and with which pages."""
    work.knobs = work.site.knobs.values()
    if isinstance(work.play, Performance) and work.play.visited:  # else when its clients have warmed up
        work.play.look_first()


def quieten(group: Group) -> None:
    """Have the setting that all arms share while they take turns. Raises Disturbed."""
    if isinstance(group.cell.workload, Staged):  # commands have one setting anyway
        _keep_still(group.works[0])


def _keep_still(one: Work) -> None:
    """Turn the knobs so that nobody's pages change; what must go on is the same in all arms."""
    turn_knobs(one.site, {**lasting(one.arm.treatment.knobs), **quiet(one.site.knobs.values())})


def launch(group: Group, works: Sequence[Work]) -> list[list[probe.Event]]:
    """Have the arms take turns; the events of each. What goes wrong for one of them leaves all to be tried again."""
    try:
        return _visit(group, works) if works[0].play.visited else _in_turns(group, works)
    except StageError as error:
        fallen = [work for work in works if isinstance(work.play, Performance) and work.play.stage is error.stage]
        for work in fallen or works:
            work.play.problem = work.play.problem or Problem("rejected", error.message)
        return [[] for _ in works]


# -- one client visits all


@dataclass
class _Visiting(Play):
    """Beside the one client: it is let go when it has connected to all servers, and no server may end meanwhile."""

    plays: Sequence[Performance]
    served = True
    gate = True

    def timing(self, *, held: bool) -> Callable[[Sequence[Running]], None]:
        stages = [play.stage for play in self.plays]

        def alongside(processes: Sequence[Running]) -> None:
            ends(stages, processes, None)

        return alongside

    def mark(self) -> None:
        for play in self.plays:
            play.mark()


def _visit(group: Group, works: Sequence[Work]) -> list[list[probe.Event]]:
    workload, slicing = group.cell.workload, group.slicing
    plays = [work.play for work in works if isinstance(work.play, Performance)]
    assert isinstance(workload, Visited) and group.rounds is not None and slicing is not None
    values = group.cell.values
    rounds = slicing.rounds(float(values["duration"]))  # type: ignore[arg-type]
    turns = "".join(itertools.islice(group.rounds, rounds))
    client = workload.visit(values, [play.stage.places for play in plays], turns, slicing.length, slicing.wash_out)
    for work in works:
        work.launch = client
    (events,) = probes(group, works[:1], "spec.json", "events.jsonl", twin=False, beside=_Visiting(plays))
    _hand_out([work.draft / "events.jsonl" for work in works])
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
class _Side:
    """One arm's processes, as `turns.Player`.

    frozen  since when it is, in seconds of CLOCK_MONOTONIC
    rested  how long it was in all while its timed command was there
    """

    work: Work
    process: Running | None = None
    frozen: float | None = None
    rested: float = 0.0
    looked: bool = False
    over: bool = False

    def freeze(self) -> None:
        self.work.client.freeze()  # first who asks, then who answers
        self.work.leaf.freeze()
        if self.frozen is None:
            self.frozen = time.monotonic()

    def thaw(self) -> None:
        self.work.leaf.thaw()
        self.work.client.thaw()
        if self.frozen is not None and not self.over:
            self.rested += time.monotonic() - self.frozen
        self.frozen = None

    def wait(self, until: float) -> bool:
        """Raises StageError when a server has ended, or a command has what must not be frozen."""
        play = self.work.play
        assert self.process is not None
        if isinstance(play, Performance):
            if ends([play.stage], [self.process], until):
                raise StageError("its client ended before all turns were over", play.stage)
            return False
        self.over = ends([], [self.process], until)
        if not self.over and not self.looked:
            self.looked = True
            if (why := tolerance.intolerant(self.work.leaf.processes())) is not None:
                self.work.play.problem = Problem("rejected", why)
                raise StageError(why)
        return self.over


@dataclass
class _Turning(Play):
    """Beside the clients, or the commands: all are frozen before they are let go, and then have their turns."""

    sides: Sequence[_Side]
    slicing: Slicing
    rounds: Iterator[str]
    gate = False

    def mark(self) -> None:
        for side in self.sides:
            side.freeze()

    def timing(self, *, held: bool) -> Callable[[Sequence[Running]], None]:
        def alongside(processes: Sequence[Running]) -> None:
            for side, process in zip(self.sides, processes, strict=True):
                side.process = process
            try:
                self._take()
            finally:
                for side in self.sides:
                    side.thaw()
            stages = [side.work.play.stage for side in self.sides if isinstance(side.work.play, Performance)]
            ends(stages, processes, None)

        return alongside

    def _take(self) -> None:
        plays = [side.work.play for side in self.sides]
        performances = [play for play in plays if isinstance(play, Performance)]
        length, wash_out = self.slicing.length, self.slicing.length * self.slicing.wash_out
        if not performances:
            take_turns(self.sides, self._digits(None), length=length, wash_out=wash_out)
            return
        window = performances[0].scene.window
        assert window is not None
        for number in map(int, next(self.rounds)):  # the leads: each connects and warms up under its own treatment
            side = self.sides[number]
            turn_to(side.work)
            take_turns([side], [0], length=window.lead, wash_out=0.0)
            performances[number].look_first()
        _keep_still(self.sides[0].work)
        for play in performances:
            play.mark()
        taken = take_turns(
            self.sides, self._digits(self.slicing.rounds(window.length)), length=length, wash_out=wash_out
        )
        for number, play in enumerate(performances):
            play.parts = tuple(_part(turn) for turn in taken if turn.player == number)
            play.mark()
        for play in performances:
            play.look()

    def _digits(self, rounds: int | None) -> Iterator[int]:
        return (int(digit) for each in itertools.islice(self.rounds, rounds) for digit in each)


def _part(turn: Turn) -> Part:
    return Part(turn.begin, turn.end, turn.thawed)


def _in_turns(group: Group, works: Sequence[Work]) -> list[list[probe.Event]]:
    assert group.rounds is not None and group.slicing is not None
    sides = [_Side(work) for work in works]
    beside = _Turning(sides, group.slicing, group.rounds)
    found = probes(group, works, "spec.json", "events.jsonl", twin=False, beside=beside)
    return [_without_rest(events, side.rested) for events, side in zip(found, sides, strict=True)]


def _without_rest(events: Sequence[probe.Event], rested: float) -> list[probe.Event]:
    """What a launcher said, by a clock that stood still while its program was frozen."""
    return [
        msgspec.structs.replace(event, wall_ns=max(0, event.wall_ns - round(rested * 1e9)))
        if isinstance(event, probe.Exit)
        else event
        for event in events
    ]
