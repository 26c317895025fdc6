"""Resident blocks: the processes of all arms are there at once, and one arm at a time works for a slice.

Each arm is brought up under its own treatment. Then the page settings are such that nobody's pages change any more
(`design.quiet`), and the arms take turns in the coin's order: either one client visits the servers of all, or each has
a client (or is a command), and all but one are frozen. What backs the servers is looked at before the turns and after.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hugewise.attempt import outcome
from hugewise.attempt.launching import probes
from hugewise.attempt.outcome import Problem
from hugewise.attempt.performance import Performance
from hugewise.attempt.play import Play
from hugewise.attempt.stage import StageError, ends
from hugewise.attempt.turns import Side, Turn, take_turns
from hugewise.attempt.underway import Group, Work, turn_knobs
from hugewise.errors import HugewiseError
from hugewise.files import storing
from hugewise.host import tolerance
from hugewise.machine import probe
from hugewise.machine.machine import Running
from hugewise.model.design import SEQUENTIAL, FixedWork, Visited, lasting, quiet
from hugewise.model.scene import Part, Staged

__all__ = ["launch", "leave_to_itself", "quieten", "turn_to"]

_LOAD = b'{"ev":"load"'
_PROBE, _EVENTS = "hugewise-probe", "events.jsonl"
_TO_BEGIN_S, _PAUSE_S = 10.0, 0.001


def turn_to(work: Work) -> None:
    """Turn the knobs of the treatment: what an arm brings up, it brings up under its own. Raises Disturbed."""
    turn_knobs(work.site, work.arm.treatment.knobs)


def leave_to_itself(work: Work) -> None:
    """The arm is up: under which settings, and with which pages."""
    work.knobs = work.site.knobs.values()
    play = work.play
    # Else when its clients have warmed up; or, of what takes its memory while it is asked, in the end.
    if isinstance(play, Performance) and (play.visited or (play.fixed and play.scene.warm)):
        play.look_first()


def quieten(group: Group) -> None:
    """Have the setting that all arms share while they take turns. Raises Disturbed."""
    workload, knobs = group.cell.workload, [work.arm.treatment.knobs for work in group.works]
    if isinstance(workload, FixedWork) and all(each == knobs[0] for each in knobs):
        return  # they go on under the one that they have, as commands do
    if isinstance(workload, Staged):
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
        if isinstance(error, _ArmError):
            fallen = [error.work]
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
    (events,) = probes(group, works[:1], "spec.json", _EVENTS, twin=False, beside=_Visiting(plays))
    exited = outcome.last(events, probe.Exit)
    if exited is None or exited.code not in client.success:
        for play in plays:  # it may have failed because a server is gone: whose is told
            play.stage.check_again()
    _hand_out([work.draft / _EVENTS for work in works])
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

    side   its groups and the launcher of its timed command
    rests  when it was frozen: begin and end of each time, in seconds of CLOCK_MONOTONIC
    """

    work: Work
    side: Side
    rests: list[tuple[float, float]] = field(default_factory=list)
    frozen: float | None = None

    @property
    def play(self) -> Performance | None:
        """Of an arm with servers."""
        return self.work.play if isinstance(self.work.play, Performance) else None

    def freeze(self) -> None:
        """Raises StageError."""
        with self._answering():
            self.side.freeze()
        if self.frozen is None:
            self.frozen = time.monotonic()

    def thaw(self) -> None:
        """Raises StageError."""
        with self._answering():
            self.side.thaw()
        if self.frozen is not None:
            self.rests.append((self.frozen, time.monotonic()))
        self.frozen = None

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """What does not stand still, or does not go on, is the arm's doing, and ends no run. That there is no cgroup
        is nobody's.
        """
        try:
            yield
        except HugewiseError as error:
            if not any(group.procs_files for group in self.side.groups):
                raise
            raise _ArmError(self.work, error.message) from error

    def wait(self, until: float) -> bool:
        """Raises StageError when a server has ended, or a command has what must not be frozen."""
        stages = [] if self.play is None else [self.play.stage]
        if self.play is not None and not self.play.fixed:
            if ends(stages, [self.side.running], until):
                self.play.stage.check_again()
                raise StageError("its client ended before all turns were over", self.play.stage)
            return False
        if ends(stages, [self.side.running], until) or (self._leaving() and ends(stages, [self.side.running], None)):
            return True
        if self.play is not None:  # whom it talks to is its own server, which stands still when it does
            return False
        if (why := tolerance.intolerant(self.work.leaf.processes())) is not None:
            raise _ArmError(self.work, f"{why}; such a command is compared one after the other: {SEQUENTIAL}")
        return False

    def _leaving(self) -> bool:
        """Whether its command is on its way out: its launcher has kept silent until then. A process that gives its
        memory back cannot be frozen, so that it has the time to itself: else what that takes, which depends on the size
        of its pages, would be nobody's.
        """
        return (self.work.draft / _EVENTS).stat().st_size > 0

    def begun(self) -> bool:
        """Whether its timed command is there, and no longer the launcher about to become it. A launcher that waits for
        that would not hear that it shall end.
        """
        if self.side.running.poll() is not None:
            return True
        for pid in (self.work.leaf if self.play is None else self.work.client).processes():
            with suppress(OSError):
                if Path(f"/proc/{pid}/exe").readlink().name != _PROBE:
                    return True
        return False


class _ArmError(StageError):
    """An arm cannot take turns."""

    def __init__(self, work: Work, message: str) -> None:
        super().__init__(message)
        self.work = work


@dataclass
class _Turning(Play):
    """Beside the clients, or the commands: when all have begun all are frozen, and have their turns."""

    group: Group
    works: Sequence[Work]
    sides: Sequence[_Side] = ()

    def timing(self, *, held: bool) -> Callable[[Sequence[Running]], None]:
        def alongside(processes: Sequence[Running]) -> None:
            self.sides = [
                _Side(work, Side((work.leaf, work.client) if work.play.served else (work.leaf,), process))
                for work, process in zip(self.works, processes, strict=True)
            ]
            with ExitStack() as thawing:  # one that does not go on leaves no other frozen
                for side in self.sides:
                    thawing.callback(side.thaw)
                self._await()
                self._take()
            ends([side.play.stage for side in self.sides if side.play is not None], processes, None)

        return alongside

    def _await(self) -> None:
        end = time.monotonic() + _TO_BEGIN_S
        while not all(side.begun() for side in self.sides):
            if time.monotonic() > end:
                raise StageError(f"not all timed commands were there after {_TO_BEGIN_S:g} s")
            time.sleep(_PAUSE_S)

    def _take(self) -> None:
        slicing = self.group.slicing
        assert slicing is not None
        for side in self.sides:
            side.freeze()
        performances = [side.play for side in self.sides if side.play is not None]
        length, wash_out = slicing.length, slicing.length * slicing.wash_out
        if not performances:
            take_turns(self.sides, self._digits(None), length=length, wash_out=wash_out)
            return
        if performances[0].fixed:
            for play in performances:
                play.mark()
            take_turns(self.sides, self._digits(None), length=length, wash_out=wash_out)
            for play in performances:
                play.mark()
            for play in performances:
                play.look()
            return
        window = performances[0].scene.window
        assert window is not None
        for number in self._digits(1):  # the leads: each connects and warms up under its own treatment
            side = self.sides[number]
            turn_to(side.work)
            take_turns([side], [0], length=window.lead, wash_out=0.0)
            performances[number].look_first()
        _keep_still(self.sides[0].work)
        for play in performances:
            play.mark()
        taken = take_turns(self.sides, self._digits(slicing.rounds(window.length)), length=length, wash_out=wash_out)
        for number, play in enumerate(performances):
            play.parts = tuple(_part(turn) for turn in taken if turn.player == number)
            play.mark()
        for play in performances:
            play.look()

    def _digits(self, rounds: int | None) -> Iterator[int]:
        return (int(digit) for each in itertools.islice(self.group.rounds or (), rounds) for digit in each)


def _part(turn: Turn) -> Part:
    return Part(turn.begin, turn.end, turn.thawed)


def _in_turns(group: Group, works: Sequence[Work]) -> list[list[probe.Event]]:
    beside = _Turning(group, works)
    found = probes(group, works, "spec.json", _EVENTS, twin=False, beside=beside)
    if not beside.sides:
        return found
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
