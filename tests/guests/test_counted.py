"""A counting guest as a machine: everything before its program becomes an order, and starting the program boots it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.errors import MachineError, ProbeError
from hugewise.guests.counted import CountingKnobs, CountingMachine
from hugewise.guests.survey import Survey
from hugewise.machine import serving
from hugewise.machine.agent import Agent
from hugewise.model.pages import THP
from tests.build.agents import HELLO, FakeGuest, fake_guest
from tests.build.live_agent import job

ENABLED = f"{THP}/enabled"
DROP = "/proc/sys/vm/drop_caches"
PARANOID = "/proc/sys/kernel/perf_event_paranoid"
SURVEY = Survey(release="6.12.0", page_size=4096, files={ENABLED: "always [madvise] never"})
START = {"ev": "start", "v": 1, "t_ns": 1, "pid": 7, "probe": "0"}


class Booting:
    """Boots a fake guest that has done its orders: it says what came of them after hello, and serves."""

    def __init__(self, fails: dict[str, bytes] | None = None, reads: str = "[always] madvise never") -> None:
        self.fails, self.reads = fails or {}, reads
        self.rendered: list[bytes] = []
        self._open: list[Any] = []

    def __call__(self, rendered: bytes) -> Agent:
        self.rendered.append(rendered)
        opened = fake_guest(self._reacts, HELLO)
        agent, guest = opened.__enter__()
        self._open.append(opened)
        self._tell(guest)
        return agent

    @property
    def orders(self) -> list[dict[str, Any]]:
        (rendered,) = self.rendered
        return [msgspec.json.decode(line) for line in rendered.splitlines()]

    def close(self) -> None:
        for opened in self._open:
            opened.__exit__(None, None, None)

    def _tell(self, guest: FakeGuest) -> None:
        for order in self.orders:
            number = str(order["id"]).encode()
            failed = self.fails.get(order["do"])
            guest.say(b'{"id":%s,%s}\n' % (number, failed or b'"ok":{}'))
            if order["do"] == "spawn" and not failed:
                line = msgspec.json.encode(msgspec.json.encode(START).decode())
                process = str(order["process"]).encode()
                guest.say(b'{"process":%s,"line":%s}\n' % (process, line))
                guest.say(b'{"process":%s,"ended":{"status":0,"stderr":""}}\n' % process)

    def _reacts(self, request: dict[str, Any]) -> bytes:
        if request["do"] == "read":
            return b'{"id":ID,"ok":{"text":%s}}\n' % msgspec.json.encode(self.reads)
        if request["do"] == "get":
            return b'{"id":ID,"ok":{"data":"c2FpZA==","size":4}}\n'
        return b'{"id":ID,"ok":{}}\n'


@pytest.fixture
def booting() -> Iterator[Booting]:
    made = Booting()
    yield made
    made.close()


def machine(boot: Callable[[bytes], Agent]) -> CountingMachine:
    return CountingMachine(SURVEY, "guest counts", boot, settle=60.0, patience=20.0)


def test_orders_are_the_writes_the_knobs_the_pause_and_the_program_in_this_order(
    booting: Booting, tmp_path: Path
) -> None:
    guest = machine(booting)
    knobs = CountingKnobs(guest)
    guest.host.write(DROP, "3")
    assert knobs.apply({ENABLED: "always"}) == []
    assert booting.rendered == []  # nothing is booted before its program is started
    running = guest.start(job(tmp_path / "job", "mmap-perf", micro=True))
    said = [(each["do"], each.get("path"), each.get("text", each.get("seconds"))) for each in booting.orders]
    assert said == [
        ("write", DROP, "3"),
        ("write", PARANOID, "0"),
        ("write", ENABLED, "always"),
        ("write", ENABLED, "always"),  # twice: some values are taken only when another knob is turned
        ("settle", None, 60.0),
        ("spawn", None, None),
        ("wait", None, None),
    ]
    assert booting.orders[5]["spec"]["argv"] == ["mmap-perf"]
    assert str(tmp_path) not in booting.rendered[0].decode()  # the same bytes whatever folder it is played in
    assert (running.poll(), running.wait(0)) == (0, 0)
    assert running.fileno() >= 0
    running.terminate()
    running.kill()
    running.close()
    assert (knobs.values(), knobs.drift()) == ({ENABLED: "always"}, [])


def test_it_is_run_like_any_other_machine_and_its_files_are_there(booting: Booting, tmp_path: Path) -> None:
    told = job(tmp_path / "job", "mmap-perf", micro=True)
    assert serving.run([(machine(booting), told)]) == [0]
    (start,) = serving.events(told)
    assert getattr(start, "pid", None) == 7
    assert Path(told.spec.stdout).read_bytes() == b"said"


def test_an_order_that_failed_is_named_and_an_optional_one_is_not(tmp_path: Path) -> None:
    nothing = b'"error":{"errno":2,"message":"No such file or directory"}'
    booting = Booting({"settle": nothing})
    with pytest.raises(ProbeError, match=r"guest counts: settle.*No such file"):
        machine(booting).start(job(tmp_path / "settle", "mmap-perf", micro=True))
    booting.close()
    booting = Booting({"write": nothing})
    assert machine(booting).start(job(tmp_path / "write", "mmap-perf", micro=True)).poll() == 0
    booting.close()


def test_a_guest_that_is_gone_says_so(tmp_path: Path) -> None:
    with fake_guest(greeting=b"") as (agent, guest):
        guest.leave()
        with pytest.raises(MachineError, match="guest fake"):
            machine(lambda _: agent).start(job(tmp_path / "job", "mmap-perf", micro=True))


def never(_: bytes) -> Agent:
    raise AssertionError("it is not booted for this")


def test_what_it_cannot_is_refused_with_a_cure(tmp_path: Path) -> None:
    guest = machine(never)
    for what, act in (
        ("has no network", lambda: guest.ports(1)),
        ("has no folder /data", lambda: guest.folder("/data", None, None)),
        ("takes no file /data/x", lambda: guest.put("/data", "x", b"", None, None)),
        ("has no files in /data", lambda: guest.files("/data", re.compile("."))),
    ):
        with pytest.raises(MachineError, match=what) as caught:
            act()
        assert "remove counting = true" in (caught.value.hint or "")
    with pytest.raises(ProbeError, match="cannot be asked for scan --pid 7"):
        guest.ask("scan", "--pid", "7")
    with pytest.raises(ProbeError, match="cannot meet"):
        guest.start(job(tmp_path / "job", "mmap-perf", micro=True), (3, 4))


def test_what_asks_for_nothing_is_answered() -> None:
    guest = machine(never)
    assert (guest.emulated, guest.counters, guest.cpus(), guest.ports(0)) == (True, False, (0,), ())
    assert guest.host.read(ENABLED) == "always [madvise] never"
    assert guest.environment["PATH"]
    guest.signal(7, 15)
    guest.remove("/data")
