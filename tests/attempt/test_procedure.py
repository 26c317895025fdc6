"""A procedure with real programs: a server of a few lines of Python on a unix socket, and its clients."""

from __future__ import annotations

import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from hugewise.attempt.procedure import ProcedureError, ProcedureRunner
from hugewise.attempt.service import WorkloadOutputs
from hugewise.host.local_host import LocalHost
from hugewise.host.local_machine import LocalLauncher, LocalMachine
from hugewise.machine.machine import Contained, roles
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Part, Places, Quota, RoleUse, Server, Step, Window, Write, counted
from hugewise.reading import UnreadableError
from tests.requirements import need
from tests.wait import has_ended, until

PYTHON = "/usr/bin/python3"
SERVER = """
import mmap, os, signal, socket, sys
held = mmap.mmap(-1, 40 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
for at in range(0, len(held), 4096):
    held[at] = 1
signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in sys.argv else lambda *_: sys.exit(0))
listening = socket.socket(socket.AF_UNIX)
listening.bind("socket")
listening.listen()
print("said by the server", os.environ.get("TREATED", "no"), flush=True)
while True:
    one, _ = listening.accept()
    one.close()
    if "mortal" in sys.argv and os.path.exists("die"):
        sys.exit(7)
"""
ASK = "import socket; socket.socket(socket.AF_UNIX).connect('socket')"


def need_python() -> None:
    need(os.access(PYTHON, os.X_OK), f"{PYTHON} (apt install python3)")


@pytest.fixture
def runner(reached: Path) -> Iterator[ProcedureRunner]:
    """Without cgroups, as whoever runs the tests."""
    need_python()
    account = pwd.getpwnam("nobody") if LocalHost().privileged() else None
    for name in ("data", "run", "outputs"):
        (reached / name).mkdir()
        if account is not None:
            os.chown(reached / name, account.pw_uid, account.pw_gid)
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    places = Places(data=str(reached / "data"), run=str(reached / "run"), ports=(), sut=cpus, client=cpus)
    treatment = Treatment(policy="x", mechanism="process", target=PageTarget("any", 0), environment={"TREATED": "yes"})
    made = ProcedureRunner(
        LocalMachine(), reached / "outputs", places, account, Contained(), Contained(), treatment, "smaps"
    )
    yield made
    made.end()


def server(*words: str, patience: float = 60.0) -> Server:
    ready = Step(name="ready", argv=(PYTHON, "-c", ASK), timeout=60)
    return Server(name="server", argv=(PYTHON, "-c", SERVER, *words), ready=ready, named="shared", patience=patience)


def test_a_server_is_asked_until_it_answers_and_is_gone_when_it_was_stopped(runner: ProcedureRunner) -> None:
    runner.start(server())
    pid = runner.running[0][1].pid
    assert not has_ended(pid)
    runner.do(Step(name="again", argv=(PYTHON, "-c", ASK)))
    runner.check()
    runner.stop()
    assert has_ended(pid)
    assert "said by the server yes" in runner.text("server", "stdout")
    if runner.account is not None:
        assert Path(runner.places.run, "socket").stat().st_uid == runner.account.pw_uid


def test_the_named_memory_of_a_server_is_scanned_while_it_lives(runner: ProcedureRunner) -> None:
    runner.start(server())
    (found,) = runner.scan()
    assert sum(found.bytes.values()) == 40 << 20
    assert found.named


def test_a_server_that_does_not_stop_is_killed_and_named(runner: ProcedureRunner) -> None:
    runner.start(server("stubborn", patience=0.3))
    pid = runner.running[0][1].pid
    with pytest.raises(ProcedureError, match=r"server did not stop within 0.3 s: said by the server"):
        runner.stop()
    assert has_ended(pid)


def test_what_servers_left_in_their_group_is_killed_when_they_were_stopped(runner: ProcedureRunner) -> None:
    killed: list[int] = []

    class Group(Contained):
        def kill(self) -> int:
            killed.append(len(runner.running))
            return 0

    runner.sut = Group()
    runner.start(server())
    runner.stop()
    assert killed == [0], "after all were stopped"


def test_a_server_that_cannot_start_says_why(runner: ProcedureRunner) -> None:
    broken = Server(name="broken", argv=(PYTHON, "-c", "raise SystemExit('no room for me')"), ready=server().ready)
    with pytest.raises(ProcedureError, match="broken ended before it answered.*no room for me"):
        runner.start(broken)
    absent = Server(name="absent", argv=("/no/such/server",), ready=server().ready)
    with pytest.raises(ProcedureError, match="absent"):
        runner.start(absent)


LISTENS = """
import socket, sys, time
time.sleep(0.3)
if sys.argv[1] == "unix":
    held = socket.socket(socket.AF_UNIX)
    held.bind(f".s.OWN.{sys.argv[2]}")
    held.listen()
elif sys.argv[1] == "tcp":
    held = socket.create_server(("127.0.0.1", int(sys.argv[2])))
time.sleep(60)
"""


def asked_at(port: int, kind: str) -> Server:
    """A server that listens so, in a while, and of which a command says that it is up that says so of anybody."""
    ready = Step(name="ready", argv=("/bin/true",))
    argv = (PYTHON, "-c", LISTENS, kind, str(port))
    return Server(name="server", argv=argv, ready=ready, port=port, ready_within=2.0 if kind == "none" else 60.0)


def test_who_answers_at_the_servers_port_must_be_the_server(runner: ProcedureRunner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(ProcedureError, match=f"at TCP port {port} listens no process of the service") as raised:
            runner.start(asked_at(port, "none"))
        assert "it was that which answered" in str(raised.value)
        runner.end()
    runner.start(asked_at(port, "tcp"))
    runner.end()


def test_a_socket_that_is_called_by_the_port_must_be_the_servers(runner: ProcedureRunner, tmp_path: Path) -> None:
    (port,) = LocalMachine().ports(1)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(tmp_path / f".s.PGSQL.{port}"))
        stranger.listen()
        with pytest.raises(ProcedureError, match=f"PGSQL.{port} listens no process of the service"):
            runner.start(asked_at(port, "none"))
        runner.end()
        runner.start(asked_at(port, "unix"))
        runner.end()


def test_a_port_that_nobody_holds_is_no_strangers(runner: ProcedureRunner) -> None:
    (port,) = LocalMachine().ports(1)
    runner.start(asked_at(port, "none"))
    runner.end()


def test_a_step_that_fails_has_its_last_lines_in_the_error(runner: ProcedureRunner) -> None:
    script = "import sys; print('a'); print('b', file=sys.stderr); sys.exit(3)"
    with pytest.raises(ProcedureError, match=r"load \(python3\): exit status 3: b"):
        runner.do(Step(name="load", argv=(PYTHON, "-c", script)))
    with pytest.raises(ProcedureError, match="not done after 0.2 s"):
        runner.do(Step(name="slow", argv=(PYTHON, "-c", "import time; time.sleep(600)"), timeout=0.2))
    with pytest.raises(ProcedureError, match="does not contain 'PONG'"):
        runner.do(Step(name="ping", argv=(PYTHON, "-c", "print('LOADING')"), expects="PONG"))


def test_what_a_command_of_the_probe_says_is_its_stdout(runner: ProcedureRunner) -> None:
    spin = ("spin", "--iterations", "1000", "--bytes", "65536", "--no-hold")
    said = runner.do(Step(name="fill", argv=spin, micro=True, expects='"ev":"result"'))
    played = WorkloadOutputs(runner, 0.0, 1.0, RoleUse(), RoleUse(), ())
    assert played.stdout("fill") == said
    with pytest.raises(ProcedureError, match=r"does not contain 'PONG'"):
        runner.do(Step(name="ping", argv=spin, micro=True, expects="PONG"))
    load = ("load", "--protocol", "redis", "--server", "unix:/no/such/socket", "--keys", "1", "--cpus", "0")
    with pytest.raises(ProcedureError, match=r"load .*: exit status 1: .*/no/such/socket"):
        runner.do(Step(name="load", argv=(*load, "--preload"), micro=True))


def test_the_seconds_that_count_are_those_of_all_parts() -> None:
    assert counted((Part(1.0, 1.5, 0.5), Part(2.5, 3.5, 2.25))) == 1.5


def test_programs_get_little_of_the_callers_environment(
    runner: ProcedureRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "1")
    said = runner.do(Step(name="env", argv=("/usr/bin/env",), environment={"OWN": "2"}))
    assert "SECRET" not in said
    assert "OWN=2" in said
    assert f"HOME={runner.places.run}" in said
    if runner.account is not None:
        assert "USER=nobody" in said


def test_a_recipe_writes_files_and_ends_its_servers(runner: ProcedureRunner) -> None:
    runner.run_all([Write("sub/conf", "x = 1\n"), server(), Step(name="ask", argv=(PYTHON, "-c", ASK))])
    assert Path(runner.places.data, "sub/conf").read_text() == "x = 1\n"
    assert runner.running == []


def test_a_step_that_cannot_be_started_says_why(runner: ProcedureRunner) -> None:
    with pytest.raises(ProcedureError, match=r"ask \(true\): did not start: .*No such file"):
        runner.do(Step(name="ask", argv=("/bin/true",), stdin="/nowhere/gone"))


def attended(
    runner: ProcedureRunner,
    argv: list[str],
    window: Window | None,
    looks: list[float],
    enough: Literal["ALRM"] | Write | None = None,
) -> list[float]:
    """Play `argv` as the timed command would be, without the probe; the moments that were marked."""
    marks: list[float] = []
    with subprocess.Popen(argv, cwd=runner.places.run) as process:
        if isinstance(runner.client, Group):
            runner.client.pids.append(process.pid)
        begun = time.monotonic()

        def look() -> None:
            looks.append(time.monotonic() - begun)
            Path(runner.places.run, "looked").touch()

        alongside = runner.attend(window, lambda: marks.append(time.monotonic() - begun), look, enough=enough)
        try:
            alongside([LocalLauncher(process)])
        finally:
            process.kill()
    return marks


def test_the_window_is_marked_at_its_ends_and_looked_at_after_it(runner: ProcedureRunner) -> None:
    looks: list[float] = []
    argv = ["/bin/sh", "-c", "until [ -e looked ]; do :; done"]
    marks = attended(runner, argv, Window(0.1, 0.2), looks)
    assert len(marks) == 2
    assert marks[0] >= 0.1
    assert marks[1] >= 0.3
    assert looks[0] >= marks[1]


class Group(Contained):
    """A group that was told which processes it has."""

    def __init__(self) -> None:
        self.pids: list[int] = []

    def processes(self) -> list[int]:
        return self.pids


UNTIL_TOLD = "import os, signal, time; signal.signal(signal.SIGALRM, lambda *_: os._exit(0)); time.sleep(600)"


def test_a_command_ends_by_a_signal_when_its_window_is_over_and_it_was_looked_at(runner: ProcedureRunner) -> None:
    looks: list[float] = []
    runner.client = Group()
    marks = attended(runner, [PYTHON, "-c", UNTIL_TOLD], Window(0.3, 0.2), looks, "ALRM")
    assert looks[0] >= marks[1] >= 0.5


WORKS = """
import os, signal, sys, time
signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
data, run = sys.argv[1:]
while not os.path.exists(data + "/begin"):
    time.sleep(0.005)
for number in range(2):
    time.sleep(0.1)
    open(f"{run}/done.{number}", "w").close()
time.sleep(60)
"""


def test_the_measured_part_of_a_given_work_ends_when_all_have_done_their_share(runner: ProcedureRunner) -> None:
    for folder in (runner.places.data, runner.places.run):
        os.chown(folder, os.geteuid(), os.getegid())
    runner.account, runner.client = None, Group()
    looks: list[float] = []
    window = Window(0.3, 0.0, Quota(Write("begin", ""), re.compile(r"done\.\d+"), 2))
    marks = attended(runner, [PYTHON, "-c", WORKS, runner.places.data, runner.places.run], window, looks, "ALRM")
    assert len(marks) == 2 and marks[0] >= 0.3 and marks[1] - marks[0] >= 0.2
    assert looks[0] >= marks[1]


def test_who_ends_before_its_work_is_done_is_an_error(runner: ProcedureRunner) -> None:
    window = Window(0.05, 0.0, Quota(Write("begin", ""), re.compile(r"done\.\d+"), 2))
    with pytest.raises(ProcedureError, match="before its measured part of a given work was over"):
        attended(runner, ["/usr/bin/sleep", "0.2"], window, [])


def test_a_command_ends_by_a_file_that_it_looks_for(runner: ProcedureRunner) -> None:
    path = f"{runner.places.data}/enough"
    script = f"import os, time\nwhile not os.path.exists({path!r}): time.sleep(0.01)"
    begun = time.monotonic()
    attended(runner, [PYTHON, "-c", script], Window(0.1, 0.1), [], Write("enough", ""))
    assert time.monotonic() - begun >= 0.2


def test_a_command_that_ends_before_its_window_does_is_an_error(runner: ProcedureRunner) -> None:
    with pytest.raises(ProcedureError, match="before its measured part"):
        attended(runner, ["/usr/bin/sleep", "0.1"], Window(0.05, 600.0), [])


def test_a_server_that_dies_meanwhile_ends_the_command(runner: ProcedureRunner) -> None:
    runner.start(server("mortal"))
    Path(runner.places.run, "die").touch()
    script = f"import time; {ASK}; time.sleep(600)"
    with pytest.raises(ProcedureError, match=r"server ended during the attempt \(exit status 7\): said by the server"):
        attended(runner, [PYTHON, "-c", script], None, [])
    with pytest.raises(ProcedureError, match="ended during the attempt"):
        runner.check()


def test_servers_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    """Their launcher gets a signal when hugewise is killed, and kills them."""
    need_python()
    started = subprocess.Popen([PYTHON, "-c", "import time; time.sleep(600)"])
    started.kill()
    started.wait()
    script = f"""
import os, pathlib, signal
from hugewise.machine import probe
from hugewise.machine.machine import Serving
from hugewise.host.local_machine import LocalMachine
spec = probe.Spec(argv=("/usr/bin/sleep", "60"), env={{}}, stdout="/dev/null", stderr="/dev/null", announce=True)
server = Serving(LocalMachine(), probe.Job.below(pathlib.Path({str(tmp_path)!r}), "server", spec))
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid = int(done.stdout)
    until(lambda: has_ended(pid), "the server has ended")


def test_outputs_are_read_and_links_are_not_followed(runner: ProcedureRunner) -> None:
    run = Path(runner.places.run)
    (run / "log.2").write_text("two")
    (run / "log.1").write_text("one")
    (run / "other").write_text("no")
    for path in run.iterdir():
        os.chown(path, run.stat().st_uid, run.stat().st_gid)
    played = WorkloadOutputs(runner, 0.0, 1.0, RoleUse(), RoleUse(), ())
    assert list(played.files(re.compile(r"log\.\d"))) == [b"one", b"two"]
    (run / "log.3").symlink_to("/etc/shadow")
    with pytest.raises(UnreadableError, match="symbolic"):
        list(played.files(re.compile(r"log\.\d")))


@pytest.mark.parametrize(
    ("clients", "sut", "client", "online", "expected"),
    [
        (True, None, None, [0, 1], ((0,), (1,))),
        (True, None, None, [0, 1, 2, 3], ((0, 1), (2, 3))),
        (True, None, None, [0, 1, 2], ((0, 1), (2,))),
        (True, None, None, [3], ((3,), (3,))),
        (True, [2], None, [0, 1, 2, 3], ((2,), (0, 1, 3))),
        (True, None, [0], [0, 1, 2, 3], ((1, 2, 3), (0,))),
        (True, [1], [2, 3], [0, 1, 2, 3], ((1,), (2, 3))),
        (False, None, None, [0, 1], ((0, 1), (0, 1))),
        (False, [1], None, [0, 1], ((1,), (1,))),
    ],
)
def test_roles_have_cpus_of_their_own(
    clients: bool,
    sut: list[int] | None,
    client: list[int] | None,
    online: list[int],
    expected: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    assert roles(clients, sut, client, online) == expected
