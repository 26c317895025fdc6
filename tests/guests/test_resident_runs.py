"""Runs in one guest that stays: one boot, policies that hold one after the other, and what is left when it dies."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import hugewise
from hugewise.errors import HugewiseError, MachineError
from hugewise.host import journal
from hugewise.session import session
from hugewise.store.folder import RunFolder
from tests.build import known
from tests.drive import drive, only_run
from tests.guests import runs
from tests.guests.conftest import Bootable
from tests.requirements import need_root
from tests.state import page_state

STAYS = f"""
format = 1
name = "stays"
policies = ["base", "thp"]
{runs.SHORT}{runs.TCG}memory = "256m"
resident = true
{runs.KERNEL}
[[workload]]
name = "fault"
timeout = "60s"
parameters = {{ bytes = "16m", rounds = 1 }}
"""


@pytest.fixture(autouse=True)
def nothing_left(x86: Bootable) -> Iterator[None]:
    """Root, and Debian's kernel in the cache; nothing is left afterwards of what a run makes, or turns."""
    need_root()
    assert x86.kernel.arch == "x86-64"
    state, before = page_state(), runs.left()
    yield
    journal.restore()
    assert runs.not_as(state) == {}
    assert runs.left() - before == set()


def test_all_attempts_are_of_one_boot_each_under_its_policy(tmp_path: Path) -> None:
    results = hugewise.run(hugewise.load(runs.write(tmp_path, STAYS)), results=tmp_path / "results")
    assert results.state == "finished"
    counted = runs.counted(results)
    assert Counter((a.arm, a.state) for a in counted) == {("base", "accepted"): 2, ("thp", "accepted"): 2}
    assert len({a.guest["resident_boot"] for a in results.attempts}) == 1
    for attempt in counted:
        small = attempt.arm == "base"
        assert attempt.metrics["page_faults"] == runs.BYTES // (4096 if small else 2 << 20)
        assert attempt.delivery.coverage == {"anon:4096" if small else "anon:2097152": runs.BYTES}
        assert "backing_share" in attempt.guest
        name = f"b{attempt.block:05d}-{attempt.order}-{attempt.arm}-{attempt.number}"
        assert (Path(results.folder) / "attempts" / name / "smaps.txt").stat().st_size
    (comparison,) = [c for cell in results.cells for c in cell.comparisons]
    assert "it is for this boot of its guest: another may differ" in comparison.reason
    assert "All attempts ran in one guest" in hugewise.write_reports(results)["markdown"].read_text()


@pytest.mark.soak
def test_a_guest_that_dies_ends_the_run_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    seen = 0

    def on_step(name: str) -> None:
        nonlocal seen
        seen += name == "board"
        if name == "board" and seen == 4:
            for pid, words in runs.processes().items():
                if f"hugewise-{os.getpid()}" in words:
                    os.kill(pid, signal.SIGKILL)

    study = hugewise.load(runs.write(tmp_path, STAYS))
    with pytest.raises(HugewiseError, match="the guest of all attempts is gone after [34] of them") as caught:
        session.run(study, tmp_path / "results", on_step=on_step)
    assert not isinstance(caught.value, MachineError)
    folder = only_run(tmp_path / "results")
    kept = {(a.block, a.arm): a.started for a in RunFolder(folder).read().attempts}
    assert len(kept) == 3
    results = hugewise.resume(folder)
    assert results.state == "finished"
    assert {key: started for key, started in kept.items() if key[0] == 1}.keys() <= {
        (a.block, a.arm) for a in results.attempts
    }
    assert len(known(results.guests).stayed) == 2
    (comparison,) = [c for cell in results.cells for c in cell.comparisons]
    assert "these 2 boots of its guest" in comparison.reason


@pytest.mark.parametrize("step", ["launch", "settle"])
@pytest.mark.soak
def test_killed_while_the_guest_stays_no_qemu_outlives_it(tmp_path: Path, step: str) -> None:
    before = runs.left()
    study = runs.write(tmp_path, STAYS)
    killed = drive("run", study, tmp_path / "results", "--at", step, "--nth", "3", "--do", "kill")
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    assert runs.ended(before) == set()
