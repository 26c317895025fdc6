"""Orders given before a guest can be reached, heard when all is done; a counting guest as a machine over them."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.errors import MachineError, ProbeError, SettingError
from hugewise.guests.counted import CountingKnobs, CountingMachine, Orders, Survey
from hugewise.machine import messages, probe
from hugewise.machine.agent import Agent
from hugewise.machine.machine import read_events, run_launchers
from hugewise.model.pages import THP
from tests.build.agents import HELLO, FakeGuest, fake_guest
from tests.build.live_agent import job, started

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
    return CountingMachine(SURVEY, "guest counts", boot, settle=60.0, patience=60.0)


def test_orders_are_the_writes_the_knobs_the_pause_and_the_program_in_this_order(
    booting: Booting, tmp_path: Path
) -> None:
    guest = machine(booting)
    knobs = CountingKnobs(guest)
    guest.host.write(DROP, "3")
    assert knobs.apply({ENABLED: "always"}) == []
    assert booting.rendered == []  # nothing is booted before its program is started
    running = guest.start(job(tmp_path / "job", "mmap-perf", micro=True))
    said = [(order["do"], order.get("path"), order.get("text", order.get("seconds"))) for order in booting.orders]
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
    launch = job(tmp_path / "job", "mmap-perf", micro=True)
    assert run_launchers([(machine(booting), launch)]) == [0]
    (start,) = read_events(launch)
    assert getattr(start, "pid", None) == 7
    assert Path(launch.spec.stdout).read_bytes() == b"said"


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


SH = "/bin/sh"


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    return Orders(str(tmp_path / "out"))


@contextmanager
def ordered(folder: Path, orders: Orders) -> Iterator[tuple[Agent, subprocess.Popen[bytes]]]:
    """An agent that carries out `orders`, and has not been heard yet."""
    file = folder / "orders.jsonl"
    file.write_bytes(orders.render())
    with started(folder, "--orders", str(file)) as (channel, process):
        agent = Agent(channel, "guest counting")
        try:
            yield agent, process
        finally:
            agent.close()


def test_orders_are_carried_out_one_after_the_other(tmp_path: Path, orders: Orders) -> None:
    place = tmp_path / "place"
    place.write_text("before")
    orders.write(str(place), "ordered")
    first = orders.spawn(job(tmp_path / "first", SH, "-c", f"sleep 0.2; cat {place}; echo after > {place}; exit 3"))
    orders.wait(first)
    orders.settle(0.01)
    second = orders.spawn(job(tmp_path / "second", "fault", "--bytes", "4m", micro=True, scan="exit"))
    orders.wait(second)
    third = orders.spawn(job(tmp_path / "third", "/bin/cat", str(place)))  # not waited for
    with ordered(tmp_path, orders) as (agent, _):
        assert orders.collect(agent, 60) == []
        assert [each.status() for each in (first, second, third)] == [0, 0, 0]
        # It answers like any other now.
        assert agent.hello().boot_id == agent.read("/proc/sys/kernel/random/boot_id").strip()
    assert [Path(each.job.spec.stdout).read_text() for each in (first, third)] == ["ordered", "after\n"]
    ended = read_events(first.job)[-1]
    assert isinstance(ended, probe.Exit)
    assert ended.code == 3
    assert any(isinstance(event, probe.Coverage) for event in read_events(second.job))
    kept = msgspec.json.decode(first.job.told.read_bytes(), type=probe.Spec)
    assert Path(kept.stdout).parent == tmp_path / "out"
    assert list((tmp_path / "out").iterdir()) == []


def test_what_could_not_be_done_is_said_by_what_was_asked(tmp_path: Path, orders: Orders) -> None:
    orders.write(str(tmp_path / "none"), "1")
    orders.write(str(tmp_path / "none"), "2", optional=True)
    refused = orders.spawn(job(tmp_path / "refused"))
    orders.wait(refused)
    done = orders.spawn(job(tmp_path / "done", "/bin/true"))
    with ordered(tmp_path, orders) as (agent, _):
        assert orders.collect(agent, 60) == [f"write '1' to {tmp_path}/none: No such file or directory"]
    assert refused.status() == 2  # the launcher was there, and refused its specification
    assert "argv" in refused.job.stderr.read_text()
    assert done.status() == 0


def test_a_launcher_that_cannot_be_started(tmp_path: Path, orders: Orders) -> None:
    (tmp_path / "out").write_text("in the way")
    spawned = orders.spawn(job(tmp_path / "job", "/bin/true"))
    orders.wait(spawned)
    with ordered(tmp_path, orders) as (agent, _):
        assert orders.collect(agent, 60) == ["start /bin/true: File exists"]
    with pytest.raises(ProbeError, match="start /bin/true: File exists"):
        spawned.status()


def test_a_knob_that_was_not_taken_is_an_error(tmp_path: Path, orders: Orders) -> None:
    (tmp_path / "knob").write_text("0")
    orders.turn({str(tmp_path / "knob"): "07"})
    with (
        ordered(tmp_path, orders) as (agent, _),
        pytest.raises(SettingError, match="did not take .*knob = 7: it is 07"),
    ):
        orders.collect(agent, 60)
    assert (tmp_path / "knob").read_text() == "07"


def test_the_same_orders_are_the_same_bytes(tmp_path: Path) -> None:
    def rendered() -> bytes:
        orders = Orders()
        orders.settle(60)
        orders.wait(orders.spawn(job(tmp_path / "job", "/bin/true")))
        return orders.render()

    assert rendered() == rendered()
    assert str(tmp_path).encode() not in rendered()  # where the results lie does not reach the guest


def test_a_guest_that_dies_over_its_orders(tmp_path: Path, orders: Orders) -> None:
    spawned = orders.spawn(job(tmp_path / "job", SH, "-c", "sleep 600"))
    orders.wait(spawned)
    with ordered(tmp_path, orders) as (agent, process):
        while not (tmp_path / "out").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        with pytest.raises(MachineError, match="guest counting: it ended"):
            orders.collect(agent, 60)


def test_a_guest_that_never_comes_to_an_end(tmp_path: Path, orders: Orders) -> None:
    orders.settle(600)
    with ordered(tmp_path, orders) as (agent, process):
        with pytest.raises(MachineError, match=r"it did not say hello within 0\.05 s"):
            orders.collect(agent, 0.05)
        assert agent.ended()
        process.kill()


def test_a_guest_that_keeps_its_answers() -> None:
    for patience in (0.05, 5.0, 50.0):
        orders = Orders()
        orders.settle(0)
        with fake_guest() as (agent, _), pytest.raises(MachineError) as caught:
            orders.collect(agent, patience)
        if "did not say hello" not in caught.value.message:
            break  # else its hello was not heard in time
    assert "has not carried out its orders" in caught.value.message


def test_answers_of_another_form_end_the_machine() -> None:
    orders = Orders()
    orders.write("/x", "1")
    with fake_guest(greeting=HELLO + b'{"id":1,"ok":1}\n') as (agent, _):
        with pytest.raises(MachineError, match="answered something else than was ordered"):
            orders.collect(agent, 60)
        assert agent.ended()


def test_orders_that_cannot_be_said(tmp_path: Path) -> None:
    orders = Orders()
    orders.write("/x", "x" * messages.LONGEST)
    with pytest.raises(OSError, match="more than the 1048576 bytes"):
        orders.render()
    launch = job(tmp_path / "job", "/bin/true")
    met = msgspec.structs.replace(launch.spec, barrier=probe.Barrier(3, 4))
    with pytest.raises(ProbeError, match="cannot meet"):
        orders.spawn(msgspec.structs.replace(launch, spec=met))
