"""When memory is touched that the host of a virtual machine took back, and what is learnt from the attempts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hugewise.attempt import interleaved, runner
from hugewise.attempt.arm_in_turns import ArmInTurns
from hugewise.attempt.context import AttemptState, Group
from hugewise.attempt.outcome import Problem
from hugewise.host.backing import Backing
from hugewise.machine.programs import cpus
from hugewise.model.pages import MemoryAge
from hugewise.workloads import discover
from tests.attempt.test_interleaved_attacks import OnThisHost
from tests.attempt.test_runner_guests import FakeGuest, FakeMachine, Fault, bench, trial
from tests.build.hosts import Files
from tests.build.studies import an_arm, cell_of
from tests.build.trials import attempt, delivery


class Touching(Backing):
    """It keeps what it was asked to touch: for which cell, and how much is held already (None: before an attempt)."""

    def __init__(self) -> None:
        super().__init__(Files(), 2 << 20)
        self.asked: list[tuple[str, int | None]] = []

    def prefault(self, cell: str, held: int = 0, most: int = 0) -> None:
        self.asked.append((cell, held or None))

    def prefault_again(self, cell: str, held: Callable[[], int]) -> None:
        self.asked.append((cell, held()))


def group_of(
    folder: Path,
    workload: Any = None,
    *,
    turns: str = "",
    own: bool = False,
    memory_age: MemoryAge = "fresh",
    values: dict[str, Any] | None = None,
) -> tuple[Group, Touching]:
    arms = [an_arm(name) for name in ("base", "thp")]
    cell = cell_of(
        workload or Fault(), *arms, kind="interleaved" if turns else "sequential",
        memory_age=memory_age, values=values or {},
    )  # fmt: skip
    aboard = (FakeGuest if own else OnThisHost)(FakeMachine(emulated=False))
    works = [AttemptState(arm, trial(arm.name), 1, folder, aboard=aboard) for arm in arms[: 2 if turns else 1]]
    touching = Touching()
    made = dataclasses.replace(bench(folder), backing=touching)
    return Group(made, cell, works, turns), touching


def test_memory_is_touched_before_a_command_and_before_the_counters_that_prove_its_pages(tmp_path: Path) -> None:
    group, touching = group_of(tmp_path)
    runner.settle(group)
    assert touching.asked == [("fault", None)]
    launched(group)
    assert touching.asked == [("fault", None)]


@pytest.mark.parametrize("name", ["build", "x264", "integer-set"])
def test_where_data_are_laid_out_first_memory_is_touched_after_that(tmp_path: Path, name: str) -> None:
    group, touching = group_of(tmp_path, discover()[name])
    runner.settle(group)
    assert touching.asked == []
    launched(group)
    assert touching.asked == [(name, None)]


def launched(group: Group) -> None:
    """The step is done with arms that have failed before: nothing is started."""
    for work in group.works:
        work.driver.problem = Problem("rejected", "it failed before")
    runner.launch(group)


@pytest.mark.parametrize(
    "changes",
    [
        {"own": True},
        {"memory_age": "pressure"},
        {"workload": discover()["redis"]},
        {"workload": discover()["service"], "values": {"fill": ("true",)}},
    ],
    ids=["in a guest", "aged memory", "servers that were filled before", "a service that was filled before"],
)
def test_memory_is_left_alone_where_the_attempt_takes_none_or_wants_another_state(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    group, touching = group_of(tmp_path, **changes)
    runner.settle(group)
    launched(group)
    assert touching.asked == []


@pytest.mark.parametrize("name", ["command", "build", "x264", "integer-set", "service"])
def test_arms_in_turns_find_touched_memory_whenever_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(interleaved, "memory_bytes", lambda *_: 60)
    group, touching = group_of(tmp_path, discover()[name], turns="0110", values={"fill": ()})
    runner.settle(group)  # what is touched so early is gone when the first arm goes on
    assert touching.asked == []
    sides = [ArmInTurns(work, ()) for work in group.works]
    turning = interleaved._Turning(group, group.works, sides)
    assert list(turning._digits(2)) == [0, 1, 1, 0]
    assert touching.asked == [(name, 120)] * 4


def test_memory_is_touched_before_the_first_arm_executes_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the processes of all arms have: each arm goes on at once, so that little time has passed for the second
    touching.
    """
    monkeypatch.setattr(interleaved, "memory_bytes", lambda *_: 60)
    monkeypatch.setattr(Touching, "prefault_again", lambda *_: None)
    group, touching = group_of(tmp_path, discover()["command"], turns="01")
    sides = [ArmInTurns(work, ()) for work in group.works]
    went_on = list[list[tuple[str, int | None]]]()
    for name, did in (("thaw", lambda _: went_on.append(list(touching.asked))), ("freeze", lambda _: None)):
        monkeypatch.setattr(ArmInTurns, name, did)
    monkeypatch.setattr(ArmInTurns, "begun", lambda _: True)
    interleaved._Turning(group, group.works, sides)._await()
    assert went_on == [[("command", 120)]] * 2


@pytest.mark.parametrize(
    ("name", "asked"),
    [("chase", 0), ("gups", 0), ("spin", 0), ("stream", 0), ("fault", 1), ("lat-mmap", 1), ("mmap-perf", 1)],
)
def test_for_micro_workloads_that_touch_their_memory_untimed_none_is_touched(
    tmp_path: Path, name: str, asked: int
) -> None:
    group, touching = group_of(tmp_path, discover()[name])
    runner.settle(group)
    assert len(touching.asked) == asked


def test_what_the_attempts_took_is_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what the cgroup counted, files in memory with it, nor all that a twin saw of one process after another."""
    group, touching = group_of(tmp_path, turns="01")
    proofs = (delivery(coverage={"anon:4096": 350}), delivery(coverage={"anon:4096": 9000}, proof="twin"))
    made = (
        attempt(work.arm.name, 1.0, cell="fault", delivery=proof, peak_bytes=900, metrics={"peak_bytes": 300})
        for work, proof in zip(group.works, proofs, strict=True)
    )
    monkeypatch.setattr(runner, "stored", lambda group, work: next(made))
    monkeypatch.setattr(type(group.bench.folder), "accept", lambda *_: None)
    runner.store(group)
    assert touching.peaks == {"fault": 350 + 300 * cpus()}
