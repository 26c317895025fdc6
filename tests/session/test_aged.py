"""A real run in fragmented memory: what it does to delivery, also of pages of a pool, reserved before or made when they
are mapped, and that nothing of it outlives a SIGKILL.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import hugewise
from hugewise.host import journal
from hugewise.host.local_host import LocalHost
from hugewise.machine.proc import meminfo, start_time
from hugewise.plan.plan import ageing_refusal
from hugewise.report.sections.over_time import ageing_remarks
from hugewise.store.folder import RunFolder
from tests.drive import drive, only_run
from tests.memory import huge_share
from tests.requirements import need, need_now, need_root
from tests.wait import until

pytestmark = [pytest.mark.usefixtures("unchanged"), pytest.mark.timeout(900), pytest.mark.soak]

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

HUGE = 2 << 20


def made(host: LocalHost) -> int:
    """Pages of pools that the kernel has made out of free memory since it booted, those of a filled pool included."""
    words = host.read("/proc/vmstat").split()
    return int(words[words.index("htlb_buddy_alloc_success") + 1])


def test_fragmented_memory_has_no_huge_page_and_is_whole_again_after_a_kill(tmp_path: Path) -> None:
    need_root()
    host = LocalHost()
    need((why := ageing_refusal("fragmented", host)) is None, why or "")
    known = meminfo(host)
    need_now(known["MemAvailable"] > 0.4 * known["MemTotal"], "two fifths of the memory available")
    study = tmp_path / "aged.toml"
    study.write_text(STUDY)

    # Killed when its attempts are done, and nothing is undone yet: the process that holds the memory goes with it.
    pages_made = made(host)
    killed = drive("run", study, tmp_path / "results", "--at", "end_ageing", "--do", "kill", timeout=840)
    pages_made = made(host) - pages_made
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (one,) = journal.ledger_of(journal.JOURNAL.read_bytes(), journal.JOURNAL).fragmenters
    until(lambda: start_time(host, one.pid) != one.pid_start, "what held the memory is gone with the run")
    journal.restore()

    def whole() -> bool:  # whatever other programs have allocated meanwhile
        host.write("/proc/sys/vm/drop_caches", "3")
        host.write("/proc/sys/vm/compact_memory", "1")
        return huge_share() > 0.2

    until(whole, "a fifth of the free memory is in blocks of a huge page", 120, seen=huge_share)

    run = only_run(tmp_path / "results")
    results = hugewise.open_results(run)
    assert results.state == "finished", [(one.arm, one.state, one.reason) for one in results.attempts]
    (cell,) = results.cells
    assert (cell.cell, cell.memory_age) == ("chase-fragmented", "fragmented")
    counted = [one for one in results.attempts if one.state == "accepted"]
    assert len(counted) == 8
    for attempt in counted:
        assert attempt.aged["free_huge"] <= min(0.05 * attempt.aged["free"], (64 << 20) / 10)
        assert attempt.aged["pinned"] > 100
    shares = {arm.arm: arm.delivered_share for arm in cell.arms}
    assert shares["base"] == shares["hugetlb-2m"] == 1, "a pool that was filled before stays whole"
    # Other programs may give whole blocks back meanwhile; of four attempts one found too few.
    backed = [
        sum(size for kind, size in one.delivery.coverage.items() if kind.endswith(f":{HUGE}"))
        for one in counted
        if one.arm in ("thp", "surplus-2m")
    ]
    assert len(backed) == 4 and min(backed) < 0.3 * (64 << 20), backed
    # Where surplus pages were had, the kernel made them: none of the pool's is taken instead.
    surplus = sum(one.delivery.coverage.get(f"hugetlb:{HUGE}", 0) // HUGE for one in counted if one.arm == "surplus-2m")
    assert pages_made >= RunFolder(run).opened().pools[HUGE] + surplus
    for arm in ("surplus-2m", "hugetlb-2m"):
        (compared,) = (each for each in cell.comparisons if each.arm == arm)
        assert compared.judged == "setting"
    (thp,) = (each for each in cell.comparisons if each.arm == "thp")
    assert (thp.judged, thp.delivered_share) == ("setting", shares["thp"])
    (told,) = ageing_remarks(cell)
    assert told.startswith("Its memory was fragmented before every attempt: at most")
