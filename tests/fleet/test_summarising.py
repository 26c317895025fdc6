"""The summaries of runs are made beside the coordinator, as soon as they are there; a report has only to read them."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import closing
from pathlib import Path

import pytest

from hugewise.analysis import pooling
from hugewise.fleet import conduct
from hugewise.fleet import pooled as summaries
from hugewise.fleet.decision import FleetRules
from hugewise.fleet.pooled import Summarising, pooled
from tests.build.fleets import FAST, FleetHostMade, a_fleet
from tests.fleet.hosts import Fleet
from tests.wait import until

TWO = (FleetHostMade("a", FAST), FleetHostMade("b", FAST))


def kept(fleet: Path) -> list[str]:
    return sorted(path.name for path in (fleet / "summaries").glob("*.json"))


def test_a_coordinator_leaves_the_summaries_of_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that were judged: not of a check, and of none twice after a resume; the report reads no run."""
    fleet = Fleet(tmp_path, ["a", "b", "c"])
    rules = FleetRules(look=0.05, check=False)
    folder, said = fleet.folder, fleet.said
    with closing(folder):
        folder.hold()
        state = conduct._conducted(folder, fleet.engine, fleet.inventory, rules, said.append)
    assert len(state.counted()) == 3
    made = kept(folder.path)
    assert len(made) == 3
    written = {name: (folder.path / "summaries" / name).stat().st_mtime_ns for name in made}

    def never(run: object) -> object:
        raise AssertionError(f"{run} was read again")

    monkeypatch.setattr(pooling, "summarised", never)
    monkeypatch.setattr(summaries, "summarised", never)
    assert pooled(folder.path).hosts  # the runs are one recorded run: of those that have its name, one
    conduct._conducted(folder, fleet.engine, fleet.inventory, rules, said.append)  # it looks again, and has all of them
    assert {name: (folder.path / "summaries" / name).stat().st_mtime_ns for name in kept(folder.path)} == written


SLOW = """
import os, sys, time
from contextlib import closing
from pathlib import Path
Path(sys.argv[3], "slow").write_text(str(os.getpid()))
time.sleep(600)
"""


def test_who_adds_is_never_held_up_and_an_error_leaves_the_rest_to_the_report(tmp_path: Path) -> None:
    """By one that makes nothing: more runs than its pipe holds are added at once; then it is ended."""
    said: list[str] = []
    command = (sys.executable, "-c", SLOW)
    with pytest.raises(OSError, match="full"), Summarising(tmp_path, said.append, command) as summarising:
        for number in range(5000):
            summarising.add(tmp_path / "hosts" / f"host-{number:05d}" / "20261122T125547Z-548a")
        until(lambda: (tmp_path / "slow").exists() and (tmp_path / "slow").read_text(), "the child says its pid")
        raise OSError("full")
    pid = int((tmp_path / "slow").read_text())
    assert not Path(f"/proc/{pid}").exists() and said == []


def test_one_that_is_killed_is_no_loss(tmp_path: Path) -> None:
    path = a_fleet(tmp_path, TWO)
    runs = [next((path / "hosts" / name).iterdir()) for name in "ab"]
    shutil.rmtree(path / "summaries", ignore_errors=True)
    with Summarising(path, lambda _: None) as summarising:
        summarising.add(runs[0])
        until(lambda: len(kept(path)) == 1, "one summary is kept")
        assert summarising._child is not None
        os.kill(summarising._child.pid, signal.SIGKILL)
        summarising._child.wait()
        summarising.add(runs[1])
    assert len(kept(path)) == 1
    assert len(pooled(path).hosts) == 2 and len(kept(path)) == 2
