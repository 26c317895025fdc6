"""A whole study on three hosts, and again with each thing that goes wrong: nothing is lost, nothing is counted twice.

The hosts are namespaces of this machine (`harness`), with real ssh, a real scheduler and real workers over TLS. Faults
that do not touch each other share a fleet, so that this takes two minutes.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from hugewise.model.fleet import FleetResults
from tests.fleet.driven import Driven, study, whole
from tests.fleet.harness import HOSTS, Rack
from tests.state import changed, page_state
from tests.wait import until

QUICK = 'look = "1s"\ncheck = 0'
CUT_S = float(os.environ.get("HUGEWISE_FLEET_CUT_S", "5"))  # 600: the long form
ALONE = CUT_S <= 60  # for longer the machine is not asked for
pytestmark = [pytest.mark.whole, pytest.mark.soak, pytest.mark.timeout(300 + 4 * CUT_S)]


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    """Three hosts; the page settings that they share with this machine are the same afterwards."""
    before = page_state()
    with Rack() as rack:
        yield rack
    assert not ALONE or changed(before) == {}


def left_behind(rack: Rack, host: str) -> list[str]:
    """Files on a host that are not the fence of a fleet."""
    spool = rack[host].path(rack[host].spool)
    names = {"fence", "order"}
    return sorted(
        str(path.relative_to(spool)) for path in spool.rglob("*") if path.is_file() and path.name not in names
    )


def test_a_whole_study_on_three_hosts(rack: Rack) -> None:
    """With a check before it: verdicts by host, one report, and nothing left on hosts."""
    blocks = 4
    fleet = Driven.run(rack, study(rack, blocks=blocks, settle=0), rack.inventory('look = "1s"\ncheck = 3'))
    output = fleet.end()
    found = whole(fleet, blocks, {}, HOSTS)
    for results in found.values():
        (cell,) = results.cells
        assert [comparison.arm for comparison in cell.comparisons] == ["thp"]
        assert results.mechanism == "process"
    assert len({results.host["machine"] for results in found.values()}) == len(HOSTS)
    assert "3 of 3 hosts have measured" in output
    state = fleet.state()
    for host in HOSTS:
        check, work = state.of_host(host)
        assert (check.assigned.purpose, check.checked and check.checked.reason) == ("check", None)
        assert f"{host}: the check passed" in output
        assert work.settled is not None
        assert left_behind(rack, host) == []
    until(lambda: all(rack[host].pids() == [] for host in HOSTS), "no process is left on the hosts")
    reported = Driven(rack, "report", str(fleet.folder)).end()
    page = (fleet.folder / "report.html").read_text()
    pooled = msgspec.json.decode((fleet.folder / "fleet.json").read_bytes(), type=FleetResults)
    assert "3 hosts of 1 class measured" in reported
    assert [host for host in HOSTS if host not in page] == []
    assert {each.host for each in pooled.hosts} == {*HOSTS}


class Disturbed:
    """A fleet whose hosts and scheduler are disturbed, each in another way."""

    def __init__(self, rack: Rack) -> None:
        # In the long form blocks last longer, of which there are not many more: it hardly takes the processor.
        self.blocks, settle = (18, 500) if CUT_S <= 5 else (110, int(10 * CUT_S))
        asked = study(rack, blocks=self.blocks, settle=settle, held=True)
        self.fleet = fleet = Driven.run(rack, asked, rack.inventory(QUICK))
        self.before = {}
        for host in HOSTS:
            self.before[host] = fleet.in_a_block(host)
            rack.hold(host)
        # A worker is killed.
        (worker,) = rack["alpha"].pids("hugewise fleet work")
        os.kill(worker, signal.SIGKILL)
        fleet.until("alpha: its worker is gone")
        rack.release("alpha")
        # A link is cut in the middle of a block, and mended.
        fleet.in_a_block("beta")
        rack.cut("beta")
        self.at_the_cut = fleet.log("beta", fleet.number("beta"))
        rack.release("beta")
        until(lambda: len(fleet.log("beta", fleet.number("beta"))) > len(self.at_the_cut), "beta measures by itself")
        time.sleep(CUT_S)
        rack.mend("beta")
        # The scheduler is killed.
        (scheduler,) = rack.desk.pids("hugewise.fleet.dask.scheduler")
        os.kill(scheduler, signal.SIGKILL)
        fleet.until("Dask's scheduler ended")
        rack.release("gamma")
        self.told = fleet.end(2 * CUT_S + 150)


@pytest.fixture(scope="module")
def disturbed(rack: Rack) -> Disturbed:
    return Disturbed(rack)


def test_a_worker_that_is_killed_is_started_again_and_the_run_goes_on(disturbed: Disturbed) -> None:
    results = whole(disturbed.fleet, disturbed.blocks, disturbed.before, HOSTS, alone=ALONE)["alpha"]
    assert "alpha: its worker is gone; its run goes on, and another worker is started" in disturbed.told
    assert not any("session 2" in said for said in results.disturbances)  # the run itself was never interrupted


def test_a_link_that_is_cut_within_a_block_stops_no_run(disturbed: Disturbed) -> None:
    results = whole(disturbed.fleet, disturbed.blocks, disturbed.before, HOSTS, alone=ALONE)["beta"]
    assert results.blocks_incomplete == 0
    opened = disturbed.at_the_cut.count(b'"block_opened"')
    assert opened == disturbed.at_the_cut.count(b'"block_closed"') + 1
    if not ALONE:  # a short one is over before anybody has asked
        assert "beta is out of reach: " in disturbed.told and "beta is back" in disturbed.told


def test_a_scheduler_that_is_killed_is_replaced(disturbed: Disturbed) -> None:
    whole(disturbed.fleet, disturbed.blocks, disturbed.before, HOSTS, alone=ALONE)
    assert (
        "Dask's scheduler ended (killed by SIGKILL); a new one is started, and the runs on the hosts go on meanwhile"
        in disturbed.told
    )
    assert "3 of 3 hosts have measured" in disturbed.told


class Taken:
    """A fleet whose coordinator is killed, with clocks that are an hour off, and a host whose disk is full."""

    def __init__(self, rack: Rack) -> None:
        self.blocks = 8
        rack.skew("alpha", 3600)
        rack.skew("beta", -3600)
        rack.small_spool("gamma", 6 << 20)
        filler = rack["gamma"].path(rack["gamma"].spool / "filler")
        try:
            asked = study(rack, blocks=self.blocks, name="taken", held=True)
            self.first = fleet = Driven.run(rack, asked, rack.inventory(QUICK))
            self.before = {}
            for host in HOSTS:
                self.before[host] = fleet.in_a_block(host)
                rack.hold(host)
            # Without a buffer: what is left in one is written again when the file is closed.
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(1 << 16))
            rack.release("gamma")
            until(lambda: not rack["gamma"].pids("study.toml --results "), "gamma's run has died of it")
            self.full = ""

            def told() -> bool:
                self.full = status(rack, fleet.folder)
                return "no room is left in the spool" in self.full or "No space left on device" in self.full

            until(told, "it is told that the disk is full", seen=lambda: self.full)
            filler.unlink()
            fleet.kill()
            self.alive = {host: rack[host].pids(" fleet keep ") for host in HOSTS}
            for host in HOSTS:
                rack.release(host)
            resumed = Driven(rack, "resume", str(fleet.folder))
            self.told = resumed.end(200)
            self.spool = rack["gamma"].spool
            self.spool_left = left_behind(rack, "gamma")
        finally:
            filler.unlink(missing_ok=True)
            rack.skew("alpha", 0)
            rack.skew("beta", 0)


def status(rack: Rack, folder: Path) -> str:
    """What `hugewise fleet status` says."""
    return Driven(rack, "status", str(folder)).end()


@pytest.fixture(scope="module")
def taken(rack: Rack) -> Taken:
    return Taken(rack)


def test_a_coordinator_that_is_killed_is_resumed(taken: Taken) -> None:
    whole(taken.first, taken.blocks, taken.before, HOSTS)
    assert all(taken.alive.values())  # who measured went on
    assert "3 of 3 hosts have measured" in taken.told
    numbers = [work.number for work in taken.first.state().assignments.values()]
    assert numbers == [1, 2, 3]  # nothing was begun a second time


def test_clocks_that_are_an_hour_off_change_nothing(taken: Taken) -> None:
    found = whole(taken.first, taken.blocks, taken.before, HOSTS)
    began = {host: results.started for host, results in found.items()}
    assert began["alpha"] - began["gamma"] == pytest.approx(3600, abs=60)
    assert began["beta"] - began["gamma"] == pytest.approx(-3600, abs=60)


def test_a_disk_that_is_full_stops_a_run_until_there_is_room(taken: Taken) -> None:
    results = whole(taken.first, taken.blocks, taken.before, HOSTS)["gamma"]
    assert results.blocks_complete == taken.blocks
    told = taken.full.partition("  gamma: ")[2]
    # Its last state is written into the room that was set aside; where even that is taken, its host says so.
    assert "No space left on device" in told or f"no room is left in the spool {taken.spool}" in told
    assert any("session 2" in said for said in results.disturbances) or results.blocks_incomplete == 0
    assert taken.spool_left == []
