"""Attempts of which nobody can tell whether their clock ran, on the real kernel: they are not made again."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

import hugewise
from hugewise.store.folder import RunFolder
from hugewise.store.records import Begun, Lost
from hugewise.study.tables import Design

pytestmark = pytest.mark.usefixtures("unchanged")

# What the kernel's OOM killer may do: end every process of the probe above it, and leave the workload.
KILLS = """
import os, signal, sys
def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
try:
    os.close(os.open(sys.argv[1], os.O_CREAT | os.O_EXCL))
except FileExistsError:
    sys.exit()
above, pid = [], os.getppid()
while "hugewise-probe" in open(f"/proc/{pid}/comm").read()[:15] + "hugewise-probe"[15:] and pid > 1:
    above.append(pid)
    pid = parent(pid)
    if not open(f"/proc/{pid}/comm").read().startswith("hugewise-probe"):
        break
for number in (signal.SIGSTOP, signal.SIGKILL):
    for pid in above[::-1]:
        os.kill(pid, number)
"""


def test_an_attempt_whose_probes_were_all_killed_is_lost_to_its_arm_and_not_made_again(tmp_path: Path) -> None:
    chosen = hugewise.command_study(["base", "as-is"], [sys.executable, "-c", KILLS, str(tmp_path / "once")], blocks=3)
    chosen = msgspec.structs.replace(chosen, design=Design())  # one after the other, so that nothing runs before
    results = hugewise.run(chosen, results=tmp_path / "results")
    run = RunFolder(Path(results.folder)).read()
    (lost,) = (record for record in run.records if isinstance(record, Lost))
    assert "killed by signal 9" in lost.reason
    assert "whether the clock ran is not known" in lost.reason
    tries = [record for record in run.records if isinstance(record, Begun) and record.block == 1]
    assert sorted(arm for record in tries for arm in record.arms) == sorted({"base", "as-is"})
    first = run.blocks[0]
    assert dict(first.lost) == {lost.arm: lost.reason}
    assert lost.arm not in {attempt.arm for attempt in first.attempts}
    assert any(f"{lost.arm} is lost: " in said for said in results.disturbances)
