"""One arm in its turns, without a run: when its turn ends, when it has none any more, and what is said of that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hugewise.attempt.arm_in_turns import ArmInTurns
from hugewise.attempt.context import AttemptState
from hugewise.attempt.outcome import Problem
from hugewise.attempt.procedure import ProcedureError, ProcedureRunner
from hugewise.attempt.service import ServiceDriver
from hugewise.attempt.turns import take_turns
from hugewise.machine import probe
from hugewise.machine.machine import Contained
from hugewise.model.procedure import Procedure, Quota, Window, Write
from hugewise.model.workload import Launch
from tests.attempt.test_runner_guests import trial
from tests.build.studies import an_arm
from tests.machine.test_serving import Launcher

WINDOW = Window(0.1, 1.0)


@dataclass
class Held(Contained):
    """A group that keeps whether it was killed."""

    killed: bool = False
    still: bool = False

    def freeze(self) -> None:
        self.still = True

    def thaw(self) -> None:
        self.still = False

    def kill(self) -> int:
        self.killed = True
        return 1


@dataclass
class Serving:
    """A procedure runner with one server, which ends when its launcher does."""

    server: Launcher = field(default_factory=Launcher)
    through: bool = False

    @property
    def running(self) -> list[Any]:
        return [("server", SimpleNamespace(launcher=self.server.fileno()))]

    def ended(self, server: str) -> str:
        return f"{server} ended during the attempt (signal 9)"

    def check_again(self) -> None:
        if self.server.poll() is not None:
            raise ProcedureError(self.ended("server"), cast(ProcedureRunner, self))

    def has_done(self, quota: Quota) -> bool:
        return self.through


class Acting(ServiceDriver):
    """An attempt of which only its runner and its procedure are there."""

    def __init__(self, runner: Serving, window: Window | None) -> None:
        self._runner = cast(ProcedureRunner, runner)
        self._procedure = Procedure(timed=Launch(argv=("client",), proof="live"), window=window)
        self.problem = None
        self.fixed = False


@dataclass
class Arm:
    """An arm, its server and its client."""

    side: ArmInTurns
    runner: Serving
    client: Launcher

    def wait(self) -> bool:
        return self.side.wait(time.monotonic() + 0.01)


def an_arm_in_turns(folder: Path, window: Window | None) -> Arm:
    runner, client, arm = Serving(), Launcher(), an_arm("thp")
    work = AttemptState(arm, trial("thp"), 1, folder, driver=Acting(runner, window), leaf=Held(), client=Held())
    return Arm(ArmInTurns(work, (work.leaf, work.client), client), runner, client)


@pytest.fixture
def arm(tmp_path: Path) -> Iterator[Arm]:
    yield an_arm_in_turns(tmp_path, WINDOW)


@pytest.mark.parametrize("client_too", [False, True])
def test_whose_server_is_gone_has_failed_and_what_is_left_of_it_is_ended(arm: Arm, client_too: bool) -> None:
    """A client that ends because of that is not what is named."""
    arm.runner.server.end(-9)
    if client_too:
        arm.client.end(1)
    assert arm.wait() and arm.side.fallen and not arm.side.early
    work = arm.side.work
    assert work.driver.problem == Problem("failed", "server ended during the attempt (signal 9)")
    assert cast(Held, work.leaf).killed and cast(Held, work.client).killed


def test_a_client_that_ends_before_its_turns_are_over_takes_no_more(arm: Arm) -> None:
    arm.client.end(-9)
    assert arm.wait() and arm.side.fallen and arm.side.early
    assert not cast(Held, arm.side.work.leaf).killed, "its server is still to be stopped in order"


def test_others_go_on_without_who_has_fallen(tmp_path: Path) -> None:
    arms = [an_arm_in_turns(tmp_path, WINDOW) for _ in range(3)]
    arms[1].runner.server.end(-9)
    turns = take_turns([arm.side for arm in arms], [1, 0, 2, 1, 2, 0], length=0.01, wash_out=0.002)
    assert [turn.player for turn in turns] == [1, 0, 2, 2, 0]
    assert [turn.ended for turn in turns] == [True, False, False, False, False]
    assert [arm.side.fallen for arm in arms] == [False, True, False]


def test_who_has_done_its_work_has_no_more_turns_and_has_not_failed(tmp_path: Path) -> None:
    quota = Quota(Write("begin", ""), cast(Any, None), 2)
    arm = an_arm_in_turns(tmp_path, Window(0.1, 0.0, quota))
    assert not arm.wait()
    arm.runner.through = True
    assert arm.wait() and not arm.side.fallen


def test_a_client_that_ends_with_its_work_may(tmp_path: Path) -> None:
    arm = an_arm_in_turns(tmp_path, None)
    assert not arm.wait()
    arm.client.end(0)
    assert arm.wait() and not arm.side.fallen


def test_how_a_client_ended_is_said_with_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "stderr").write_text("pgbench: error: client 0 aborted\n")
    runner = ProcedureRunner.__new__(ProcedureRunner)
    runner.outputs = tmp_path
    exited = probe.Exit(5, 4, None, 9, False, 0, 0)
    assert runner.how("its client ended", [exited]) == "its client ended (signal 9): pgbench: error: client 0 aborted"
    failed = probe.Exit(5, 4, 2, None, False, 0, 0)
    assert runner.how("postgres ended", [failed], "postgres") == "postgres ended (exit status 2)"
    late = probe.Exit(5, 4, None, 9, True, 0, 0)
    assert "(its time was over)" in runner.how("its client ended", [late])


@dataclass
class Noted(Contained):
    """A group that only notes what is done with it."""

    name: str
    notes: list[str]

    def freeze(self) -> None:
        self.notes.append(f"{self.name} off")

    def thaw(self) -> None:
        self.notes.append(f"{self.name} on")


def test_the_server_goes_on_before_its_client_and_stands_still_after_it(arm: Arm) -> None:
    notes: list[str] = []
    arm.side.groups = (Noted("server", notes), Noted("client", notes))
    arm.side.thaw()
    arm.side.freeze()
    assert notes == ["server on", "client on", "client off", "server off"]
