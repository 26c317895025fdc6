"""What runs for hugewise on a client's host, as the agent's /proc shows it: with an agent of this host."""

import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from hugewise.clients import host
from hugewise.clients import host as clients
from hugewise.clients.host import RemoteProcessTree
from hugewise.errors import MachineError, UserError
from hugewise.host.local_host import LocalHost
from hugewise.host.local_machine import LocalMachine
from hugewise.machine.agent import Agent
from hugewise.model.host import ClientHost
from tests.build.live_agent import Live, job, live
from tests.wait import until

# It says what CPU time it has had.
SPIN = (
    "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    "print(time.process_time(), flush=True)\n"
)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Live]:
    with live(tmp_path, emulated=False) as found:
        yield found


def _until_said(path: Path) -> str:
    until(lambda: path.exists() and path.read_text().endswith("\n"), "it has said a line")
    return path.read_text()


def test_programs_are_seen_and_launchers_are_not(there: Live) -> None:
    below = RemoteProcessTree(there.machine.agent)
    assert below.processes() == []
    told = job(there.folder / "job", "/bin/sh", "-c", "sleep 60 & echo $$ $!; wait")
    running = there.machine.start(told)
    try:
        said = there.folder / "out" / "1.stdout"
        _until_said(said)
        assert sorted(below.processes()) == sorted(map(int, said.read_text().split()))
    finally:
        running.terminate()
        running.wait(60)
        running.close()
    assert below.processes() == []


def test_the_last_words_of_a_program_there_are_not_long(there: Live) -> None:
    words = ("/bin/sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x >&2; exit 3")
    with pytest.raises(MachineError, match="^/bin/sh: xxx") as failed:
        host.output_of(there.machine, words, (None, None), {"PATH": "/usr/bin:/bin"})
    assert len(failed.value.message) < 1000


def test_a_host_that_names_children_without_end_is_looked_at_within_a_limit() -> None:
    most = 0

    class Lying:
        name = "client lying"

        def read(self, path: str) -> str:
            nonlocal most
            most += 1
            if path.endswith("/children"):
                return "7 " * 100_000
            return f"7 (x) S {' '.join(['1'] * 60)}"

    tracemalloc.start()
    try:
        found = RemoteProcessTree(cast(Agent, Lying())).processes()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) <= 4096 and most <= 2 * 4096
    assert peak < 32 << 20


def test_what_a_host_says_on_stderr_takes_no_end_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, make = [], os.memfd_create

    def made(*given: Any) -> int:
        kept.append(os.dup(descriptor := make(*given)))
        return descriptor

    monkeypatch.setattr(os, "memfd_create", made)
    monkeypatch.setattr(clients, "_MOST_WORDS", 1 << 20)
    monkeypatch.setattr(clients, "_HELLO_S", 20.0)
    monkeypatch.setattr(clients, "_argv", lambda *_: ["sh", "-c", "sleep 0.5; exec head -c 32m /dev/zero >&2"])
    program = tmp_path / "agent"
    program.write_bytes(b"x")
    with pytest.raises(MachineError):
        clients.connect_agent(ClientHost(name="c", ssh=("c",), address="127.0.0.1"), program)
    assert os.fstat(kept[0]).st_size <= 1 << 20
    os.close(kept[0])


def test_cpu_time_is_counted_of_what_runs_and_of_what_has_ended(there: Live) -> None:
    below = RemoteProcessTree(there.machine.agent)
    before = below.used()
    told = job(there.folder / "job", "/usr/bin/env", "python3", "-c", SPIN + "time.sleep(60)")
    running = there.machine.start(told)
    spun = float(_until_said(there.folder / "out" / "1.stdout"))
    during = below.used().since(before)
    running.terminate()
    running.wait(60)
    running.close()
    after = below.used().since(before)
    assert during.cpu_s is not None and after.cpu_s is not None
    assert 0.25 <= during.cpu_s <= spun + 1.5
    assert 0.25 <= after.cpu_s <= spun + 1.5  # it was reaped, and is not forgotten


def test_what_a_program_says_there_is_heard_and_a_failure_has_its_words(there: Live) -> None:
    environment = dict(there.machine.environment)
    assert host.output_of(there.machine, ("/bin/echo", "yes"), (None, None), environment) == "yes\n"
    with pytest.raises(MachineError, match="/bin/sh: no such thing"):
        host.output_of(there.machine, ("/bin/sh", "-c", "echo no such thing >&2; exit 3"), (None, None), environment)


def test_addresses_and_interfaces_of_this_host() -> None:
    assert host.address_towards("127.0.0.1") == "127.0.0.1"
    assert host.interface_of("127.0.0.1") == "lo"
    assert host.interface_of("192.0.2.1") is None
    assert host.resolved("::1") == "::1"
    first = host.carried(LocalHost(), "lo")
    assert first is not None and first >= 0
    assert host.carried(LocalHost(), None) is None
    with pytest.raises(UserError, match=r"no\.such\.host\.invalid"):
        host.resolved("no.such.host.invalid")


def test_what_iperf3_says_is_not_believed_as_it_stands() -> None:
    assert host._rate('{"end": {"sum_received": {"bits_per_second": 5.0}}}') == 5.0
    assert host._round_trip('{"end": {"streams": [{"sender": {"min_rtt": 20}}]}}') == pytest.approx(20e-6)
    assert host._round_trip('{"end": {"streams": [{"sender": {}}]}}') is None
    for wrong in ("", "[]", '{"error": "the server is busy"}', '{"end": {"sum_received": {"bits_per_second": -1}}}'):
        with pytest.raises(MachineError, match="iperf3"):
            host._rate(wrong)


def test_a_server_that_does_not_listen_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """iperf3 3.12 ends with status 0 then, and has the error within its JSON."""
    answers = iter(
        [
            '{"start": {"connected": []}, "end": {}, "error": "unable to connect to server: Connection refused"}',
            '{"end": {"streams": [{"sender": {"min_rtt": 40}}]}}',
        ]
    )
    monkeypatch.setattr(host, "output_of", lambda *_: next(answers))
    monkeypatch.setattr(host, "_PAUSE_S", 0.0)
    assert host._first(LocalMachine(), ("iperf3",), (None, None)) == pytest.approx(40e-6)
    assert next(answers, None) is None
