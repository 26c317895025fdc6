"""What runs for hugewise on a client's host, as the agent's /proc shows it: with an agent of this host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hugewise.clients import network
from hugewise.clients.host import RemoteProcessTree
from hugewise.errors import MachineError, UserError
from hugewise.host.local_host import LocalHost
from hugewise.host.local_machine import LocalMachine
from tests.build.live_agent import Live, job, live

SPIN = (
    "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nprint('done', flush=True)\n"
)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Live]:
    with live(tmp_path, emulated=False) as found:
        yield found


def _until_said(path: Path) -> None:
    end = time.monotonic() + 10
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < end
        time.sleep(0.02)


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
        running.wait(10)
        running.close()
    assert below.processes() == []


def test_cpu_time_is_counted_of_what_runs_and_of_what_has_ended(there: Live) -> None:
    below = RemoteProcessTree(there.machine.agent)
    before = below.used()
    told = job(there.folder / "job", "/usr/bin/env", "python3", "-c", SPIN + "time.sleep(60)")
    running = there.machine.start(told)
    _until_said(there.folder / "out" / "1.stdout")
    during = below.used().since(before)
    running.terminate()
    running.wait(10)
    running.close()
    after = below.used().since(before)
    assert during.cpu_s is not None and after.cpu_s is not None
    assert 0.25 <= during.cpu_s <= 2.0
    assert 0.25 <= after.cpu_s <= 2.0  # it was reaped, and is not forgotten


def test_what_a_program_says_there_is_heard_and_a_failure_has_its_words(there: Live) -> None:
    environment = dict(there.machine.environment)
    assert network.output_of(there.machine, ("/bin/echo", "yes"), (None, None), environment) == "yes\n"
    with pytest.raises(MachineError, match="/bin/sh: no such thing"):
        network.output_of(there.machine, ("/bin/sh", "-c", "echo no such thing >&2; exit 3"), (None, None), environment)


def test_addresses_and_interfaces_of_this_host() -> None:
    assert network.address_towards("127.0.0.1") == "127.0.0.1"
    assert network.interface_of("127.0.0.1") == "lo"
    assert network.interface_of("192.0.2.1") is None
    assert network.resolved("::1") == "::1"
    first = network.carried(LocalHost(), "lo")
    assert first is not None and first >= 0
    assert network.carried(LocalHost(), None) is None
    with pytest.raises(UserError, match=r"no\.such\.host\.invalid"):
        network.resolved("no.such.host.invalid")


def test_what_iperf3_says_is_not_believed_as_it_stands() -> None:
    assert network._rate('{"end": {"sum_received": {"bits_per_second": 5.0}}}') == 5.0
    assert network._round_trip('{"end": {"streams": [{"sender": {"min_rtt": 20}}]}}') == pytest.approx(20e-6)
    assert network._round_trip('{"end": {"streams": [{"sender": {}}]}}') is None
    for wrong in ("", "[]", '{"error": "the server is busy"}', '{"end": {"sum_received": {"bits_per_second": -1}}}'):
        with pytest.raises(MachineError, match="iperf3"):
            network._rate(wrong)


def test_a_server_that_does_not_listen_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """iperf3 3.12 ends with status 0 then, and has the error within its JSON."""
    answers = iter(
        [
            '{"start": {"connected": []}, "end": {}, "error": "unable to connect to server: Connection refused"}',
            '{"end": {"streams": [{"sender": {"min_rtt": 40}}]}}',
        ]
    )
    monkeypatch.setattr(network, "output_of", lambda *_: next(answers))
    monkeypatch.setattr(network, "_PAUSE_S", 0.0)
    assert network._first(LocalMachine(), ("iperf3",), (None, None)) == pytest.approx(40e-6)
    assert next(answers, None) is None
