"""One host as root with system-wide policies: whatever is killed, its page settings are as before."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hugewise.host import recovery
from hugewise.model.pages import THP
from tests.fleet.driven import Driven, records, study, until, whole
from tests.fleet.harness import Rack
from tests.state import changed, page_state

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("unchanged")]

BLOCKS = 14


@pytest.fixture
def rack() -> Iterator[Rack]:
    """One host, at which root logs in, with the journal of this machine."""
    with Rack(("alpha",)) as rack:
        rack.as_root("alpha")
        yield rack
    recovery.restore()


def test_worker_coordinator_keeper_and_run_are_killed_and_the_host_is_as_before(rack: Rack) -> None:
    before = page_state()
    fleet = Driven.run(rack, study(rack, blocks=BLOCKS), rack.inventory('look = "1s"\ncheck = 0'))
    fleet.in_a_block("alpha")
    number = fleet.number("alpha")
    # Its worker: the run knows nothing of it, and another one is there.
    os.kill(rack.process("hugewise fleet work"), signal.SIGKILL)
    fleet.until("alpha: its worker is gone; its run goes on, and another worker is started")
    # Its coordinator, and with it the scheduler and then the worker.
    log = fleet.in_a_block("alpha")
    fleet.kill()
    until(lambda: not rack.processes("hugewise fleet work"))
    until(lambda: len(fleet.log("alpha", number)) > len(log))  # it measures
    # The keeper and the run, in the middle of an attempt under turned settings.
    run, keeper = rack.process(" --keeper="), rack.processes(" fleet keep ")
    until(lambda: _stopped(run, lambda: f"{THP}/enabled" in changed(before)))
    for pid in (*keeper, run):
        os.kill(pid, signal.SIGKILL)
    assert changed(before) != {}
    kept = fleet.log("alpha", number)
    # Another coordinator looks, and the host puts itself back, and goes on.
    told = Driven(rack, "resume", str(fleet.folder)).end()
    assert "1 of 1 hosts have measured" in told
    found = whole(fleet, BLOCKS, {"alpha": kept}, ("alpha",))["alpha"]
    assert found.mechanism == "system"
    assert [each["record"] for each in records(kept)].count("closed") == 0  # it was cut off
    assert changed(before) == {}


def test_a_run_whose_coordinator_is_gone_for_good_puts_its_host_back(rack: Rack) -> None:
    before = page_state()
    fleet = Driven.run(rack, study(rack, blocks=8), rack.inventory('look = "1s"\ncheck = 0'))
    fleet.in_a_block("alpha")
    number = fleet.number("alpha")
    os.kill(rack.process("hugewise fleet work"), signal.SIGKILL)
    fleet.kill()
    until(lambda: not rack.processes(" fleet keep "))
    assert records(fleet.log("alpha", number))[-1]["record"] == "closed"
    assert changed(before) == {}


def _stopped(pid: int, holds: Callable[[], bool]) -> bool:
    """Stop the process, so that nothing changes from the look until its end; it goes on where that does not hold."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    if not holds():
        os.kill(pid, signal.SIGCONT)
        return False
    return True
