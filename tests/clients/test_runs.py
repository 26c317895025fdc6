"""Whole runs whose clients are in another namespace; and with a link, a client or an agent that is lost."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import hugewise
from hugewise.attempt.service import ServiceDriver
from hugewise.clients import host
from hugewise.session import progress
from hugewise.store.folder import RunFolder
from hugewise.store.records import Noted, Run
from hugewise.study.load import parse
from tests.clients.elsewhere import Elsewhere, elsewhere
from tests.drive import only_run
from tests.requirements import need_program
from tests.servers.trying import alongside
from tests.state import changed, page_state
from tests.wait import until

pytestmark = pytest.mark.whole

WORDS = "0123456789abcdef0123456789abcdef"  # in place of a password that nobody knows
REDIS = 'name = "redis"\nparameters = { keys = 20000, instances = 1, duration = "%s", lead = "100ms" }'
FAR, NEAR = 'label = "far"', 'label = "near"\nclient = "beside"'


def text(*workloads: str, seconds: float, blocks: int = 100) -> str:
    tables = "".join(f"[[workload]]\ndelivery = {{ share = 0 }}\n{workload}\n" for workload in workloads)
    return f"""
format = 1
name = "elsewhere"
policies = ["base", "thp"]
method = "sequential"
budget = {{ blocks = {blocks}, time = "{seconds}s" }}
attempt = {{ retries = 0 }}
{tables}"""


@pytest.fixture
def there() -> Iterator[Elsewhere]:
    for program, package in (("redis-server", "redis-server"), ("redis-cli", "redis-tools"), ("iperf3", "iperf3")):
        need_program(program, package)
    before = page_state()
    with tempfile.TemporaryDirectory(prefix="hw-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        with elsewhere(Path(folder) / "e") as found:
            yield found
            until(lambda: not found.left(), "nothing is left on the host of clients", seen=found.left)
    assert changed(before) == {}


def read(results: Path) -> Run:
    return RunFolder(only_run(results)).read()


def inventory(there: Elsewhere, folder: Path) -> Path:
    file = folder / "hosts.toml"
    file.write_text(
        f"""
[[client]]
name = "elsewhere"
ssh = "elsewhere"
ssh_config = "{there.folder}/ssh_config"
address = "{there.address}"
cpus = [1]
folder = "{there.folder}"
"""
    )
    return file


def words(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from hugewise.cli.main import main; main()", *arguments]


# -- by the command line


def test_one_report_has_both_with_the_network_beside_the_result(there: Elsewhere, tmp_path: Path) -> None:
    study, results = tmp_path / "study.toml", tmp_path / "results"
    study.write_text(text(f"{FAR}\n{REDIS % '300ms'}", f"{NEAR}\n{REDIS % '300ms'}", seconds=3000, blocks=4))
    hosts = inventory(there, tmp_path)
    asked = ("run", str(study), "--client", "elsewhere", "--hosts", str(hosts), "--results", str(results))
    done = subprocess.run(words(*asked), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run = read(results)
    assert [(cell.id, cell.apart) for cell in run.opened.cells] == [("far", True), ("near", False)]
    assert {attempt.state for attempt in run.attempts} == {"accepted"}, [one.reason for one in run.attempts]
    far, near = ([one for one in run.attempts if one.cell == cell] for cell in ("far", "near"))
    assert far and near
    for one in far:
        assert one.facts["client"] == "elsewhere"
        assert float(one.facts["network_mbit_per_s"]) > 0 and float(one.facts["network_used_mbit_per_s"]) > 0
        assert one.metrics["ops_per_s"] and one.wall_s is not None and one.wall_s >= 0.3
    assert all("client" not in one.facts for one in near)
    report = (run.path / "report.md").read_text()
    assert f"clients run on elsewhere ({there.address}, servers listen at {there.here}); network: " in report
    assert "network_mbit_per_s" in report or "network mbit" in report
    assert run.opened.versions["client iperf3"].startswith("iperf 3")
    assert run.opened.study_json is not None and run.study.workload[0].client == "apart"


@pytest.mark.soak
def test_a_run_that_is_killed_leaves_nothing_there_and_goes_on(there: Elsewhere, tmp_path: Path) -> None:
    study, results = tmp_path / "study.toml", tmp_path / "results"
    study.write_text(text(f"{FAR}\n{REDIS % '1s'}", seconds=300, blocks=4))
    hosts = inventory(there, tmp_path)
    asked = ("run", str(study), "--client", "elsewhere", "--hosts", str(hosts), "--results", str(results))
    with (tmp_path / "said").open("wb") as said:
        running = subprocess.Popen(words(*asked), stdout=said, stderr=said)
        try:
            until(
                lambda: _loads(there) != [] and any(results.glob("elsewhere/*/attempts/b*")),
                "an attempt is over, and another runs",
            )
        finally:
            running.kill()
            running.wait()
    until(lambda: not there.left(), "nothing is left on the host of clients", seen=there.left)
    kept = {attempt.started for attempt in read(results).attempts}
    done = subprocess.run(words("resume", str(only_run(results))), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run = read(results)
    assert run.closed is not None
    assert kept <= {attempt.started for attempt in run.attempts}


def test_a_host_that_cannot_be_reached_is_told_before_anything_is_measured(there: Elsewhere, tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(text(REDIS % "1s", seconds=4))
    hosts = inventory(there, tmp_path)
    hosts.write_text(hosts.read_text().replace('ssh = "elsewhere"', 'ssh = "absent@elsewhere"'))
    asked = ("run", str(study), "--client", "elsewhere", "--hosts", str(hosts), "--results", str(tmp_path / "results"))
    done = subprocess.run(words(*asked), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "client elsewhere" in done.stderr
    assert "Permission denied" in done.stderr
    assert list(tmp_path.glob("results/elsewhere/*/attempts/b*")) == []


# -- in this process


@contextmanager
def beside(look: Callable[[], None]) -> Iterator[None]:
    """Meanwhile look again and again; what a look raises is raised at the end."""
    over, failed = threading.Event(), []

    def looking() -> None:
        while not over.wait(0.02):
            try:
                look()
            except BaseException as error:
                failed.append(error)
                return

    thread = threading.Thread(target=looking)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]


def ending(after: threading.Event) -> progress.Listener:
    """Interrupts the run at the end of the second whole block that ended after that."""
    ended: list[int] = []

    def listener(event: progress.Event) -> None:
        if isinstance(event, progress.BlockEnded) and event.state == "complete" and after.is_set():
            ended.append(event.block)
            if len(ended) == 2:
                raise KeyboardInterrupt

    return listener


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _loads(there: Elsewhere) -> list[int]:
    return [pid for pid in there.processes() if b"\0load\0" in _command(pid)]


def _agents(there: Elsewhere) -> list[int]:
    return [pid for pid in there.processes() if b"hugewise-probe\0agent\0" in _command(pid)]


def _listening(port_of: str) -> list[int]:
    """Ports at which somebody listens at that address."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        address, port = local.split(":")
        if state == "0A" and socket.inet_ntoa(bytes.fromhex(address)[::-1]) == port_of:
            found.append(int(port, 16))
    return found


class Watched:
    """What can be seen from outside while servers run for a client elsewhere."""

    def __init__(self, there: Elsewhere) -> None:
        self.there, self.anywhere = there, set(_listening("0.0.0.0"))  # noqa: S104  (to be compared)
        self.refused: set[bytes] = set()
        self.told: list[bytes] = []

    def look(self) -> None:
        """Again and again, and in each attempt once while its servers run."""
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and int(process.name) != os.getpid():
                for name in ("cmdline", "environ"):
                    with suppress(OSError):
                        seen = (process / name).read_bytes()
                        if WORDS.encode() in seen:
                            self.told.append(seen)
                        if name == "cmdline":
                            self._ask(seen)
        assert set(_listening("0.0.0.0")) <= self.anywhere  # noqa: S104

    def _ask(self, title: bytes) -> None:
        """Ask redis or memcached for something without its password; they show where they listen."""
        if (shown := re.search(rb"redis-server \S+:(\d+)|memcached\0-l\0[0-9.]+\0-p\0(\d+)", title)) is None:
            return
        port = int(shown[1] or shown[2])
        with suppress(OSError), socket.create_connection((self.there.here, port), 10) as asked:
            asked.sendall(b"PING\r\n")
            self.refused.add(asked.recv(12)[:7])


ALL = (
    REDIS % "200ms",
    'name = "memcached"\nparameters = { keys = 20000, instances = 1, duration = "200ms", lead = "0s", memory = "64m" }',
    'name = "pgbench"\nparameters = { scale = 1, shared_buffers = "32m", clients = 2, duration = "1s", lead = "1s" }',
    'name = "mysql-ro"\nparameters = { tables = 1, table_size = 1000, buffer_pool = "64m", threads = 2, duration = 1 }',
    'name = "iperf3"\nparameters = { duration = "1s" }',
)


@pytest.mark.soak
def test_servers_of_all_kinds_are_asked_from_there_with_passwords_that_nobody_sees(
    there: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program, package in (
        ("memcached", "memcached"),
        ("pgbench", "postgresql"),
        ("mariadbd", "mariadb-server"),
        ("sysbench", "sysbench"),
    ):
        need_program(program, package)
    monkeypatch.setattr("secrets.token_hex", lambda size: WORDS[: 2 * size])
    watched = Watched(there)

    def one_block_each(event: progress.Event) -> None:
        if isinstance(event, progress.BlockEnded) and event.closed == len(ALL):
            raise KeyboardInterrupt

    alongside(monkeypatch, lambda _: watched.look())
    # Time for all: where it has no room, the last cells wait. It ends after a block of each.
    study = parse(text(*ALL, seconds=3600), "all.toml")
    with beside(watched.look):
        hugewise.run(study, results=tmp_path, client=there.host(1), listener=one_block_each)
    run = read(tmp_path)
    by_cell = {cell.id: [one for one in run.attempts if one.cell == cell.id] for cell in run.opened.cells}
    assert list(by_cell) == ["redis", "memcached", "pgbench", "mysql-ro", "iperf3"]
    for cell, attempts in by_cell.items():
        assert attempts, cell
        assert {attempt.state for attempt in attempts} == {"accepted"}, [one.reason for one in attempts]
        assert {one.facts["client"] for one in attempts} == {"elsewhere"}
    assert {one.facts["client_pgbench"] for one in by_cell["pgbench"]} == {run.opened.versions["client pgbench"]}
    for one in by_cell["iperf3"]:  # which asks for all of it, beside whatever else runs
        assert float(one.facts["network_used_mbit_per_s"]) > 0.05 * float(one.facts["network_mbit_per_s"])
    noted = [record.text for record in run.records if isinstance(record, Noted)]
    assert any("the server of iperf3 takes transfers of whoever" in note for note in noted)
    # The password is in no process list, and in nothing that is kept.
    assert watched.told == []
    assert {b"-NOAUTH", b"CLIENT_"} <= watched.refused  # of redis, and of memcached: "CLIENT_ERROR unauthenticated"
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and WORDS.encode() in path.read_bytes()]
    assert kept == []


def meanwhile(
    monkeypatch: pytest.MonkeyPatch, there: Elsewhere, results: Path, act: Callable[[], None], workload: str
) -> None:
    """A run in which that is done while the client of the third attempt waits for its server, which is stopped so
    long; interrupted at the end of the second whole block after that.
    """
    over = threading.Event()
    begun: list[Future[None]] = []

    def acting(servers: list[int]) -> None:
        try:
            until(lambda: _loads(there), "the client runs")
            act()
        finally:
            over.set()
            with suppress(ProcessLookupError):  # it may have been ended by now
                for pid in servers:
                    os.kill(pid, signal.SIGCONT)

    with ThreadPoolExecutor(1) as beside_it:

        def hold(play: ServiceDriver) -> None:
            if not begun and len([*results.glob("elsewhere/*/attempts/b*")]) >= 2:
                servers = play.procedure_runner.tested.processes()
                for pid in servers:
                    os.kill(pid, signal.SIGSTOP)
                begun.append(beside_it.submit(acting, servers))

        alongside(monkeypatch, hold)
        study = parse(text(workload, seconds=120), "meanwhile.toml")
        hugewise.run(study, results=results, client=there.host(1), listener=ending(over))
        begun[0].result()


@pytest.mark.soak
def test_a_cut_link_fails_that_attempt_alone(there: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_WATCHED_S", 0.3)
    monkeypatch.setattr(host, "_PATIENCE_S", 1.0)
    monkeypatch.setattr(host, "SILENCE_S", 2)
    monkeypatch.setattr(host, "_CONNECT_S", 1)

    def cut() -> None:
        there.link("down")
        until(lambda: not there.left(), "clients that are cut off have ended", seen=there.left)
        there.link("up")

    meanwhile(monkeypatch, there, tmp_path, cut, REDIS % "1500ms")
    run = read(tmp_path)
    states = [attempt.state for attempt in run.attempts]
    assert states[:2] == ["accepted", "accepted"]
    assert states.count("failed") == 1
    (failed,) = (one for one in run.attempts if one.state == "failed")
    assert "client elsewhere: " in str(failed.reason)
    assert run.attempts[-1].state == "accepted"  # it was reached again


@pytest.mark.parametrize(
    ("whom", "said"), [(_loads, '"signal":9'), (_agents, "client elsewhere: ")], ids=["client", "agent"]
)
@pytest.mark.soak
def test_a_client_that_is_killed_fails_its_attempt_and_the_next_one_counts(
    there: Elsewhere,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whom: Callable[[Elsewhere], list[int]],
    said: str,
) -> None:
    meanwhile(monkeypatch, there, tmp_path, lambda: os.kill(whom(there)[0], signal.SIGKILL), REDIS % "700ms")
    run = read(tmp_path)
    assert [attempt.state for attempt in run.attempts].count("failed") == 1
    (failed,) = (one for one in run.attempts if one.state == "failed")
    assert said in str(failed.reason)
    assert run.attempts[-1].state == "accepted"


def test_an_interrupt_puts_the_host_back_and_leaves_nothing_there(there: Elsewhere, tmp_path: Path) -> None:
    def listener(event: progress.Event) -> None:
        if isinstance(event, progress.AttemptStarted) and event.block == 2:
            raise KeyboardInterrupt

    results = hugewise.run(
        parse(text(REDIS % "300ms", seconds=1200), "ended.toml"),
        results=tmp_path,
        client=there.host(1),
        listener=listener,
    )
    assert results.state == "interrupted"
