"""A real run in fragmented memory: what it does to delivery, also of pages of a pool, reserved before or made when they
are mapped, and that nothing of it outlives a SIGKILL.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

import hugewise
from hugewise.host import journal, recovery
from hugewise.host.local_host import LocalHost
from hugewise.machine.proc import meminfo, start_time
from hugewise.plan.aged_hosts import refusal
from hugewise.report.sections.ageing import remarks
from tests.drive import drive, only_run
from tests.memory import huge_share
from tests.requirements import need, need_now, need_root

pytestmark = [pytest.mark.usefixtures("unchanged"), pytest.mark.timeout(900)]

STUDY = """
format = 1
name = "aged"
policies = ["base", "thp", "hugetlb-2m", "surplus-2m"]
method = "fixed-n"

[budget]
blocks = 2

[between]
settle = "0ms"

[[workload]]
name = "chase"
memory_age = "fragmented"
parameters = { bytes = "64m", loads = 20000 }
"""


def test_fragmented_memory_has_no_huge_page_and_is_whole_again_after_a_kill(tmp_path: Path) -> None:
    need_root()
    host = LocalHost()
    need((why := refusal("fragmented", host)) is None, why or "")
    known = meminfo(host)
    need_now(known["MemAvailable"] > 0.4 * known["MemTotal"], "two fifths of the memory available")
    study = tmp_path / "aged.toml"
    study.write_text(STUDY)

    # Killed when its attempts are done, and nothing is undone yet: the process that holds the memory goes with it.
    killed = drive("run", study, tmp_path / "results", "--at", "end_ageing", "--do", "kill", timeout=840)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (one,) = journal.ledger_of(journal.JOURNAL.read_bytes(), journal.JOURNAL).fragmenters
    end = time.monotonic() + 20
    while start_time(host, one.pid) == one.pid_start and time.monotonic() < end:
        time.sleep(0.05)
    assert start_time(host, one.pid) != one.pid_start
    recovery.restore()
    end = time.monotonic() + 60
    while huge_share() < 0.2 and time.monotonic() < end:  # whatever other programs have allocated meanwhile
        host.write("/proc/sys/vm/drop_caches", "3")
        host.write("/proc/sys/vm/compact_memory", "1")
        time.sleep(1)
    assert huge_share() > 0.2

    results = hugewise.open_results(only_run(tmp_path / "results"))
    assert results.state == "finished"
    (cell,) = results.cells
    assert (cell.cell, cell.memory_age) == ("chase-fragmented", "fragmented")
    counted = [one for one in results.attempts if one.state == "accepted"]
    assert len(counted) == 8
    for attempt in counted:
        assert attempt.aged["free_huge"] <= min(0.05 * attempt.aged["free"], (64 << 20) / 10)
        assert attempt.aged["pinned"] > 100
    shares = {arm.arm: arm.delivered_share for arm in cell.arms}
    assert shares["base"] == shares["hugetlb-2m"] == 1, "a pool that was filled before stays whole"
    assert shares["surplus-2m"] == 0, "none can be made, and none of the pool's is taken instead"
    assert shares["thp"] is not None and shares["thp"] < 0.3  # others may give some blocks back meanwhile
    for arm in ("surplus-2m", "hugetlb-2m"):
        (compared,) = (each for each in cell.comparisons if each.arm == arm)
        assert compared.judged == "setting"
    (thp,) = (each for each in cell.comparisons if each.arm == "thp")
    assert (thp.judged, thp.delivered_share) == ("setting", shares["thp"])
    (told,) = remarks(cell)
    assert told.startswith("Its memory was fragmented before every attempt: at most")
