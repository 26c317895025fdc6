"""One host as root with system-wide policies: whatever is killed, its page settings are as before."""

import os
import signal
from collections.abc import Iterator

import pytest

from hugewise.host import journal
from hugewise.model.pages import THP
from tests.fleet.driven import Driven, records, study, whole
from tests.fleet.harness import Rack
from tests.state import changed, page_state
from tests.wait import until

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("unchanged")]

BLOCKS = 14


@pytest.fixture
def rack() -> Iterator[Rack]:
    """One host, at which root logs in, with the journal of this machine."""
    with Rack(("alpha",)) as rack:
        rack.as_root("alpha")
        yield rack
    journal.restore()


@pytest.mark.soak
def test_worker_coordinator_keeper_and_run_are_killed_and_the_host_is_as_before(rack: Rack) -> None:
    before = page_state()
    asked = study(rack, blocks=BLOCKS, held=True)
    fleet = Driven.run(rack, asked, rack.inventory('look = "1s"\ncheck = 0'))
    fleet.in_a_block("alpha")
    rack.hold("alpha")
    number = fleet.number("alpha")

    def measures() -> None:
        """It goes on, and is held in a later attempt."""
        seen = len(fleet.log("alpha", number))
        rack.release("alpha")
        until(lambda: len(fleet.log("alpha", number)) > seen, "it measures")
        rack.hold("alpha")
        until(lambda: rack.processes("while [ -e "), "an attempt is held")

    # Its worker: the run knows nothing of it, and another one is there.
    os.kill(rack.process("hugewise fleet work"), signal.SIGKILL)
    fleet.until("alpha: its worker is gone; its run goes on, and another worker is started")
    # Its coordinator, and with it the scheduler and then the worker.
    fleet.in_a_block("alpha")
    fleet.kill()
    until(lambda: not rack.processes("hugewise fleet work"), "the worker is gone")
    measures()
    # The keeper and the run, in the middle of an attempt under turned settings.
    while f"{THP}/enabled" not in changed(before):  # of an arm whose setting is that of the machine
        measures()
    for pid in (*rack.processes(" fleet keep "), rack.process("study.toml --results ")):
        os.kill(pid, signal.SIGKILL)
    assert changed(before) != {}
    rack.release("alpha")
    kept = fleet.log("alpha", number)
    # Another coordinator looks, and the host puts itself back, and goes on.
    command = Driven(rack, "resume", str(fleet.folder)).end()
    assert "1 of 1 hosts have measured" in command
    results = whole(fleet, BLOCKS, {"alpha": kept}, ("alpha",))["alpha"]
    assert results.mechanism == "system"
    assert [record["record"] for record in records(kept)].count("closed") == 0  # it was cut off
    assert changed(before) == {}


def test_a_run_whose_coordinator_is_gone_for_good_puts_its_host_back(rack: Rack) -> None:
    before = page_state()
    fleet = Driven.run(rack, study(rack, blocks=4, held=True), rack.inventory('look = "1s"\ncheck = 0'))
    fleet.in_a_block("alpha")
    rack.hold("alpha")
    number = fleet.number("alpha")
    os.kill(rack.process("hugewise fleet work"), signal.SIGKILL)
    fleet.kill()
    rack.release("alpha")
    until(lambda: not rack.processes(" fleet keep "), "the keeper has ended", 240)
    assert records(fleet.log("alpha", number))[-1]["record"] == "closed"
    assert changed(before) == {}
