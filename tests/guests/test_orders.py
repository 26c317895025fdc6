"""Orders: given before a guest can be reached, heard when all is done. The agent is a process of this host."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from hugewise.errors import MachineError, ProbeError, SettingError
from hugewise.guests.counted import Orders
from hugewise.machine import messages, probe, serving
from hugewise.machine.agent import CHUNK, Agent
from tests.build.agents import HELLO, fake_guest
from tests.build.live_agent import job, started

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
    ended = serving.events(first.job)[-1]
    assert isinstance(ended, probe.Exit)
    assert ended.code == 3
    assert any(isinstance(event, probe.Coverage) for event in serving.events(second.job))
    kept = msgspec.json.decode(first.job.told.read_bytes(), type=probe.Spec)
    assert Path(kept.stdout).parent == tmp_path / "out"
    assert list((tmp_path / "out").iterdir()) == []


def test_long_outputs(tmp_path: Path, orders: Orders) -> None:
    told = orders.spawn(job(tmp_path / "job", "/usr/bin/head", "-c", str(2 * CHUNK + 7), "/dev/zero"))
    with ordered(tmp_path, orders) as (agent, _):
        assert orders.collect(agent, 60) == []
    assert Path(told.job.spec.stdout).read_bytes() == bytes(2 * CHUNK + 7)


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
    orders.settle(2)
    with ordered(tmp_path, orders) as (agent, _):
        with pytest.raises(MachineError, match=r"it did not say hello within 0\.05 s"):
            orders.collect(agent, 0.05)
        assert agent.ended()


def test_a_guest_that_keeps_its_answers() -> None:
    orders = Orders()
    orders.settle(0)
    with fake_guest() as (agent, _), pytest.raises(MachineError, match="has not carried out its orders"):
        orders.collect(agent, 0.05)


def test_answers_of_another_form_end_the_machine() -> None:
    orders = Orders()
    orders.write("/x", "1")
    with fake_guest(greeting=HELLO + b'{"id":1,"ok":1}\n') as (agent, _):
        with pytest.raises(MachineError, match="answered something else than was ordered"):
            orders.collect(agent, 10)
        assert agent.ended()


def test_orders_that_cannot_be_said(tmp_path: Path) -> None:
    orders = Orders()
    orders.write("/x", "x" * messages.LONGEST)
    with pytest.raises(OSError, match="more than the 1048576 bytes"):
        orders.render()
    told = job(tmp_path / "job", "/bin/true")
    met = msgspec.structs.replace(told.spec, barrier=probe.Barrier(3, 4))
    with pytest.raises(ProbeError, match="cannot meet"):
        orders.spawn(msgspec.structs.replace(told, spec=met))
