"""Turns of players that only keep a diary, under a clock that only they move; and of real loops in their groups."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from hugewise.attempt.turns import Turn, take_turns
from hugewise.errors import HugewiseError
from hugewise.host import cgroup
from hugewise.host.cgroup import Hierarchy, Leaf
from tests import wait
from tests.host.test_cgroup import entered
from tests.host.test_freezer import rests
from tests.requirements import need

EPOCH = 1_000_000.0


@dataclass
class Time:
    """Two clocks that stand still until somebody moves them on. `set_by`: how far the wall's was set."""

    now: float = 50.0
    set_by: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return EPOCH + self.now + self.set_by


@dataclass
class Diary:
    """A player whose command ends after `work` seconds in which it was not frozen. Thawing and freezing take time."""

    time: Time
    name: str = "a"
    work: float = 1e9
    pages: list[str] = field(default_factory=list)
    frozen: bool = False
    breaks: str | None = None

    def thaw(self) -> None:
        self.pages.append(f"{self.name} on")
        self.frozen = False
        self.fail("thaw")
        self.time.now += 0.25

    def freeze(self) -> None:
        self.pages.append(f"{self.name} off")
        self.fail("freeze")
        self.time.now += 0.5
        self.frozen = True

    def wait(self, until: float) -> bool:
        self.fail("wait")
        played = min(until - self.time.now, self.work)
        self.work -= played
        self.time.now += played
        return self.work == 0

    def fail(self, at: str) -> None:
        if self.breaks == at:
            self.breaks = None
            raise HugewiseError(at)


def play(players: list[Diary], order: Iterator[int] | list[int], time: Time) -> list[Turn]:
    return take_turns(players, order, length=10.0, wash_out=2.0, monotonic=time.monotonic, wall=time.wall)


def test_one_plays_and_the_others_are_frozen() -> None:
    time, pages = Time(), list[str]()
    players = [Diary(time, name, pages=pages) for name in "abc"]
    turns = play(players, [1, 0, 2, 0], time)
    assert pages == [
        *("a off", "b off", "c off"),
        *("b on", "b off", "a on", "a off", "c on", "c off", "a on", "a off"),
    ]
    assert [turn.player for turn in turns] == [1, 0, 2, 0]
    assert all(player.frozen for player in players)


def test_a_turn_counts_from_its_wash_out_to_just_before_it_is_frozen() -> None:
    time = Time()
    turns = play([Diary(time)], [0, 0], time)
    first = EPOCH + 50.0 + 0.5 + 0.25  # frozen, and thawed
    second = first + 10.0 + 0.5 + 0.25
    assert turns == [Turn(0, at, at + 2.0, at + 10.0, False) for at in (first, second)]


def test_a_clock_that_is_set_meanwhile_changes_no_turn() -> None:
    time = Time()

    class Setting(Diary):
        def wait(self, until: float) -> bool:
            self.time.set_by += 3600.0
            return super().wait(until)

    plain = Time()
    assert play([Setting(time)], [0, 0, 0], time) == play([Diary(plain)], [0, 0, 0], plain)


def test_whose_command_has_ended_is_passed_over_and_turns_end_with_the_last_one() -> None:
    time, pages = Time(), list[str]()
    players = [Diary(time, "a", 15.0, pages), Diary(time, "b", 31.0, pages)]
    turns = play(players, itertools.cycle([0, 1]), time)
    assert [(turn.player, turn.ended) for turn in turns] == [
        *((0, False), (1, False), (0, True), (1, False), (1, False), (1, True)),
    ]
    assert [turn.end - turn.begin for turn in turns] == [8.0, 8.0, 3.0, 8.0, 8.0, 0.0]
    assert turns[-1].end - turns[-1].thawed == 1.0  # nothing of it counts: it ended in the wash-out
    assert pages[-1] == "b off"


def test_an_order_is_not_asked_on_when_all_have_ended() -> None:
    time = Time()
    asked: list[int] = []

    def order() -> Iterator[int]:
        while True:
            asked.append(0)
            yield 0

    play([Diary(time, work=5.0)], order(), time)
    assert len(asked) == 1
    assert play([], order(), time) == []


@pytest.mark.parametrize("at", ["thaw", "wait"])
def test_all_are_frozen_when_something_raises(at: str) -> None:
    time = Time()
    players = [Diary(time), Diary(time, breaks=at)]
    with pytest.raises(HugewiseError, match=at):
        play(players, [0, 1, 0], time)
    assert all(player.frozen for player in players)


def test_who_cannot_be_frozen_lets_nobody_begin() -> None:
    time, pages = Time(), list[str]()
    with pytest.raises(HugewiseError, match="freeze"):
        play([Diary(time, "a", pages=pages), Diary(time, "b", pages=pages, breaks="freeze")], [0, 1], time)
    assert pages == ["a off", "b off"]


@pytest.mark.parametrize(("length", "wash_out"), [(1.0, 1.0), (1.0, 2.0), (0.0, 0.0), (1.0, -0.1)])
def test_a_turn_of_which_nothing_counts_is_refused(length: float, wash_out: float) -> None:
    with pytest.raises(ValueError, match="wash_out"):
        take_turns([], [], length=length, wash_out=wash_out)


@dataclass
class Watched:
    """A player that notes the CPU time of its group each time that it goes on or stands still, in seconds."""

    leaf: Leaf
    used: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.leaf.used().cpu_s or 0.0

    def thaw(self) -> None:
        self.used.append(self.now())
        self.leaf.thaw()

    def wait(self, until: float) -> bool:
        """A turn lasts until the loop has had CPU time, however busy the machine is."""
        wait.until(lambda: self.now() > self.used[-1], "it gets CPU time in its turn", seen=lambda: self.used)
        time.sleep(max(0.0, until - time.monotonic()))
        return False

    def freeze(self) -> None:
        self.leaf.freeze()
        assert rests(self.leaf)
        self.used.append(self.now())


@pytest.mark.host  # others look among the cgroups for what a run left
def test_real_loops_get_cpu_time_in_their_turns_alone() -> None:
    reason = cgroup.unavailable()
    need(reason is None, f"cgroups that can be made: {reason}")
    hierarchy = Hierarchy.open()
    try:
        leaves = [hierarchy.create(name) for name in "ab"]
        need(leaves[0].used().cpu_s is not None, "a cgroup that counts CPU time")
        with entered(leaves[0], "while :; do :; done"), entered(leaves[1], "while :; do :; done"):
            sides = [Watched(leaf) for leaf in leaves]
            turns = take_turns(sides, [0, 1, 1, 0, 1, 0, 0], length=0.05, wash_out=0.01)
            for side in sides:
                stood, went_on = side.used[0::2], side.used[1::2]
                resting = [after - before for before, after in zip(stood[:-1], went_on, strict=True)]
                playing = [after - before for before, after in zip(went_on, stood[1:], strict=True)]
                assert len(playing) == [turn.player for turn in turns].count(sides.index(side))
                assert set(resting) == {0.0} and min(playing) > 0.0, (resting, playing)
        assert [turn.player for turn in turns] == [0, 1, 1, 0, 1, 0, 0]
        assert all(before.end <= after.thawed for before, after in itertools.pairwise(turns))
        assert all(turn.thawed < turn.begin < turn.end and not turn.ended for turn in turns)
    finally:
        hierarchy.remove()
