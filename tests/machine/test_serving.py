"""Launchers under way, with fakes that end when a test says so, and a few real ones of this host."""

import os
import select
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.errors import ProbeError
from hugewise.host.local_machine import LocalMachine
from hugewise.machine import probe
from hugewise.machine.machine import Meeting, Running, Serving, read_events, run_launchers
from tests.build import known
from tests.build.live_agent import job


class Launcher:
    """A `machine.Running`. It leaves when it is asked to; a stubborn one waits to be killed."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.stubborn, self.acts = stubborn, list[str]()
        self.status: int | None = None
        self._read, self._write = os.pipe()

    def end(self, status: int) -> None:
        if self.status is None:
            self.status = status
            os.write(self._write, b".")

    def fileno(self) -> int:
        return self._read

    def poll(self) -> int | None:
        return self.status

    def wait(self, timeout: float | None = None) -> int:
        if self.status is None and self.stubborn:
            raise TimeoutError
        if self.status is None:
            select.select([self._read], [], [], 20)
        return known(self.status)

    def terminate(self) -> None:
        self.acts.append("terminate")
        if not self.stubborn:
            self.end(0)

    def kill(self) -> None:
        self.acts.append("kill")
        self.end(-9)

    def close(self) -> None:
        self.acts.append("close")
        os.close(self._read)
        os.close(self._write)


class Machine:
    """Starts what it is given, or fails; what the launchers say is in the files already."""

    def __init__(self, launcher: Launcher | Exception) -> None:
        self.launcher, self.inherited = launcher, list[tuple[int, ...]]()
        self.signals: list[tuple[int, int]] = []

    def start(self, job: probe.Job, inherited: tuple[int, ...] = ()) -> Running:
        self.inherited.append(inherited)
        if isinstance(self.launcher, Exception):
            raise self.launcher
        return self.launcher

    def signal(self, pid: int, number: int) -> None:
        self.signals.append((pid, number))
        if isinstance(self.launcher, Launcher) and not self.launcher.stubborn:
            self.launcher.end(0)


def jobs(folder: Path, *launchers: Launcher | Exception) -> list[tuple[Any, probe.Job]]:
    return [(Machine(launcher), job(folder / str(n), "/bin/true")) for n, launcher in enumerate(launchers)]


def test_all_run_at_once_and_give_their_exit_statuses(tmp_path: Path) -> None:
    first, second = Launcher(), Launcher()
    seen: list[Sequence[Running]] = []

    def alongside(launched: Sequence[Running]) -> None:
        seen.append(launched)
        first.end(0)
        second.end(3)

    assert run_launchers(jobs(tmp_path, first, second), alongside=alongside) == [0, 3]
    assert [list(launched) for launched in seen] == [[first, second]]  # both were there before either was waited for
    assert first.acts == second.acts == ["close"]


def test_one_that_cannot_be_started_ends_the_others(tmp_path: Path) -> None:
    first = Launcher()
    with pytest.raises(ProbeError, match="no probe"):
        run_launchers(jobs(tmp_path, first, ProbeError("no probe")))
    assert first.acts == ["terminate", "close"]


def test_whatever_happens_meanwhile_they_are_ended_and_it_is_passed_on(tmp_path: Path) -> None:
    good, stubborn = Launcher(), Launcher(stubborn=True)

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_launchers(jobs(tmp_path, good, stubborn), alongside=interrupted)
    assert good.acts == ["terminate", "close"]
    assert stubborn.acts == ["terminate", "kill", "close"]
    assert stubborn.status == -9


def test_those_who_meet_are_let_go_when_all_have_arrived(tmp_path: Path) -> None:
    launchers = [Launcher(), Launcher()]
    order: list[str] = []
    with Meeting() as meeting:
        ready, go = meeting.inherited
        assert (meeting.barrier.ready, meeting.barrier.go) == (ready, go)
        os.write(ready, b".")

        def arrive() -> None:
            os.write(ready, b".")
            select.select([go], [], [], 20)  # the end of the pipe: they are let go
            order.append("let go")
            for launcher in launchers:
                launcher.end(0)

        def before() -> None:
            order.append("before")

        late = threading.Thread(target=arrive)
        made = jobs(tmp_path, *launchers)
        late.start()
        assert run_launchers(made, meeting, before=before) == [0, 0]
        late.join()
    assert order == ["before", "let go"]
    assert [machine.inherited for machine, _ in made] == [[(ready, go)], [(ready, go)]]


def test_nobody_waits_for_one_that_has_ended_without_arriving(tmp_path: Path) -> None:
    early, other = Launcher(), Launcher()
    early.end(1)
    with Meeting() as meeting:
        _, go = meeting.inherited

        def alongside(_: object) -> None:
            assert select.select([go], [], [], 0)[0]
            other.end(0)

        assert run_launchers(jobs(tmp_path, early, other), meeting, alongside=alongside) == [1, 0]


def said(told: probe.Job, *events: dict[str, Any]) -> None:
    told.events.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))


START = {"ev": "start", "v": 1, "t_ns": 1, "pid": 7, "probe": "0"}


def test_a_server_is_asked_to_end_by_its_own_pid(tmp_path: Path) -> None:
    launcher = Launcher()
    ((machine, told),) = jobs(tmp_path, launcher)
    said(told, START)
    server = Serving(machine, told)
    assert (server.pid, server.launcher, server.ended()) == (7, launcher.fileno(), False)
    assert server.stop(15, 1.0)
    assert machine.signals == [(7, 15)]
    assert server.ended()
    server.close()


def test_a_server_that_does_not_end_is_killed(tmp_path: Path) -> None:
    ((machine, told),) = jobs(tmp_path, Launcher(stubborn=True))
    said(told, START)
    server = Serving(machine, told)
    assert not server.stop(15, 0.01)
    assert server.ended()
    server.close()


def test_a_server_that_did_not_start_says_why(tmp_path: Path) -> None:
    launcher = Launcher()
    launcher.end(1)
    ((machine, told),) = jobs(tmp_path, launcher)
    said(told, {"ev": "error", "fault": "host", "before_timed": True, "message": "no such program"})
    with pytest.raises(ProbeError, match="it did not start: no such program"):
        Serving(machine, told)
    assert launcher.acts[-1] == "close"


def test_what_was_not_said_yet_is_nothing_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    told = job(tmp_path, "/bin/true")
    assert read_events(told) == []
    said(told, START)
    with told.events.open("ab") as file:
        file.write(b'{"ev":"sta')
    assert [type(event) for event in read_events(told)] == [probe.Start]


def test_real_launchers_meet_and_fill_their_files(tmp_path: Path) -> None:
    with Meeting() as meeting:
        made = []
        for name in ("a", "b"):
            told = job(tmp_path / name, "/bin/sh", "-c", f"echo {name}; exit 3")
            spec = msgspec.structs.replace(told.spec, barrier=meeting.barrier)
            made.append((LocalMachine(), msgspec.structs.replace(told, spec=spec)))
        assert run_launchers(made, meeting) == [0, 0]
    for name, (_, told) in zip("ab", made, strict=True):
        ended = read_events(told)[-1]
        assert isinstance(ended, probe.Exit)
        assert ended.code == 3
        assert Path(told.spec.stdout).read_text() == f"{name}\n"


def test_events_without_end_are_not_read(tmp_path: Path) -> None:
    told = job(tmp_path, "/bin/true")
    with told.events.open("wb") as file:
        file.truncate(1 << 43)
    with pytest.raises(ProbeError, match="larger than 67,108,864 bytes"):
        read_events(told)
