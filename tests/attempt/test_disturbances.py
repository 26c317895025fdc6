"""Noise: what a snapshot reads, what counts as a disturbance, and that the attempt's own load does not."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from hugewise.attempt.recording import disturbances, shared_work
from hugewise.host.local_host import LocalHost
from hugewise.machine import noise
from hugewise.study.tables import Validity
from tests.build.hosts import Files, stat_text

TICKS = os.sysconf("SC_CLK_TCK")
FOLDER = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/stats"
POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB"

FILES = {
    "/proc/stat": "cpu  100 10 50 9000 7 3 2 40 5 0\ncpu0 50 5 25 4500 3 1 1 20 0 0\ncpu1 50 5 25 4500 4 2 1 20 5 0\n",
    "/proc/loadavg": "0.50 0.12 0.07 1/91 9120",
    "/proc/self/stat": stat_text(77, "a) b", "R", utime=30, stime=20, cutime=5, cstime=5),
    "/proc/38/stat": stat_text(38, "khugepaged", ppid=2, stime=100),
    "/proc/99/stat": stat_text(99, "khugepaged", stime=900),
    "/proc/vmstat": "pswpin 3\npswpout 4\ncompact_stall 5\nthp_fault_alloc 9\nnr_free_pages 1",
    "/proc/meminfo": "MemTotal:  4194304 kB\nAnonHugePages:    2048 kB\nShmemHugePages:       0 kB",
    "/proc/pressure/cpu": "some avg10=0.64 avg60=2.41 avg300=1.07 total=8432533\nfull avg10=0.00 total=0",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
    f"{FOLDER}/anon_fault_alloc": "10",
    f"{FOLDER}/anon_fault_fallback": "1",
    f"{FOLDER}/nr_anon": "16",
    f"{POOL}/nr_hugepages": "8",
    f"{POOL}/free_hugepages": "6",
    "/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "2",
    "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "performance",
}


QUIET = msgspec.structs.replace(noise.snapshot(Files(FILES)), monotonic_s=100.0)
LATER = msgspec.structs.replace(QUIET, monotonic_s=110.0)  # 10 s, 2 CPUs: 20 s of CPU time


def judged(rules: Validity | None = None, **changed: Any) -> tuple[str, ...]:
    return disturbances(noise.difference(QUIET, msgspec.structs.replace(LATER, **changed)), rules or Validity())


def test_a_snapshot_reads_what_the_kernel_says() -> None:
    assert QUIET.cpus == 2
    assert QUIET.busy_s == pytest.approx((100 + 10 + 50 + 3 + 2) / TICKS)
    assert QUIET.steal_s == pytest.approx(40 / TICKS)
    assert QUIET.own_cpu_s == pytest.approx((30 + 20 + 5 + 5) / TICKS)
    assert QUIET.pressure["cpu.some"] == pytest.approx(8.432533)
    assert QUIET.vmstat == {"pswpin": 3, "pswpout": 4, "compact_stall": 5, "thp_fault_alloc": 9}
    assert QUIET.huge_in_use == {"shmem": 0, "anon:65536": 16 * 65536, "hugetlb:2097152": 2 * 2097152}
    assert QUIET.faults == {65536: (10, 1)}
    assert QUIET.frequency == {"/sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "performance"}


def test_a_program_that_calls_itself_khugepaged_is_no_kernel_thread() -> None:
    assert QUIET.kernel_threads == {"khugepaged": pytest.approx(100 / TICKS)}


def test_what_is_absent_is_null_and_never_zero() -> None:
    bare = noise.snapshot(Files({"/proc/stat": FILES["/proc/stat"]}))
    assert (bare.load, bare.own_cpu_s, bare.clock_source) == (None, None, None)
    assert set(bare.pressure.values()) == {None}
    change = noise.difference(bare, bare)
    assert (change.swap_pages, change.throttles, change.other_cpu_s, change.other_load) == (None,) * 4
    assert disturbances(noise.difference(bare, bare), Validity()) == ()


def test_a_quiet_host_is_not_flagged() -> None:
    assert judged() == ()


def test_steal_is_flagged_above_its_rule_by_more_than_a_tick() -> None:
    assert judged(steal_s=QUIET.steal_s + 1.42) == ("steal 7.1% of CPU time (rule: at most 5%)",)
    assert judged(steal_s=QUIET.steal_s + 1.0 + 0.5 / TICKS) == ()
    assert judged(Validity(steal=0.10), steal_s=QUIET.steal_s + 1.42) == ()


def test_the_load_of_others_is_flagged_and_the_attempts_own_is_not() -> None:
    own = QUIET.own_cpu_s
    assert own is not None
    # A program of 16 threads on 2 CPUs: load 16, but all the CPU time was the attempt's.
    assert judged(load=16.0, busy_s=QUIET.busy_s + 20, own_cpu_s=own + 20) == ()
    # The same load made by others, of which the attempt got one part in ten.
    (said,) = judged(load=20.0, busy_s=QUIET.busy_s + 20, own_cpu_s=own + 2)
    assert said == "load of other processes 9.0 per CPU (rule: at most 1.5)"


def test_khugepaged_works_for_the_treatment_and_is_not_others_load() -> None:
    threads = {"khugepaged": QUIET.kernel_threads["khugepaged"] + 8}
    after = msgspec.structs.replace(LATER, load=8.0, busy_s=QUIET.busy_s + 8, kernel_threads=threads)
    assert noise.difference(QUIET, after).kernel_thread_cpu == {"khugepaged": pytest.approx(8)}
    assert disturbances(noise.difference(QUIET, after), Validity()) == ()


def test_background_work_while_arms_take_turns_is_told_above_half_a_percent() -> None:
    """It is in nobody's slice: compaction for one arm may fall into the slices of all."""
    names = {1: "kcompactd0", 2: "kswapd0", 3: "ksmd", 4: "khugepaged", 5: "kworker/u8:1", 6: "kworker/u8:2", 7: "rcu"}
    last = {**names, 5: "kworker/u8:1-flush-254:0", 6: "kworker/u8:2-events_unbound"}

    def seen(names: dict[int, str], spent: int) -> Mapping[str, tuple[str, float]]:
        kernel = {f"/proc/{pid}/stat": stat_text(pid, name, ppid=2, stime=spent) for pid, name in names.items()}
        return noise.background(Files({**kernel, "/proc/99/stat": stat_text(99, "kswapd0", stime=9 * spent)}))

    spent = noise.background_s(seen(names, 100), seen(last, 104))
    assert spent == pytest.approx(dict.fromkeys(("kcompactd", "kswapd", "ksmd", "khugepaged", "writeback"), 4 / TICKS))
    (said,) = shared_work(spent, 10 / TICKS, 2)
    assert "kcompactd 0.04 s" in said and "100.0% of the CPU time of the arms, which share it" in said
    assert [*shared_work({"ksmd": 1.01}, 100.0, 2), *shared_work(spent, None, 2), *shared_work({}, 1.0, 2)] == []
    assert [*shared_work({"ksmd": 1.02}, 100.0, 2)]


def test_swap_throttling_clock_and_frequency_are_flagged() -> None:
    changed: dict[str, Any] = {
        "vmstat": {**QUIET.vmstat, "pswpout": 10},
        "throttles": dict.fromkeys(QUIET.throttles, 5),
        "clock_source": "hpet",
        "frequency": dict.fromkeys(QUIET.frequency, "powersave"),
    }
    assert judged(**changed) == (
        "6 pages swapped (rule: none)",
        "throttled for heat at least 3 times (rule: none)",
        "cpufreq/policy0/scaling_governor changed from performance to powersave (rule: no change)",
        "clock source changed from tsc to hpet (rule: no change)",
    )


def test_a_slow_clock_source_is_flagged_even_when_it_stays() -> None:
    slow = msgspec.structs.replace(QUIET, clock_source="acpi_pm")
    (said,) = disturbances(noise.difference(slow, slow), Validity())
    assert said.startswith("clock source acpi_pm is slow to read")


def test_huge_pages_that_others_took_are_flagged_and_constant_users_are_not() -> None:
    taken = {**QUIET.huge_in_use, "hugetlb:2097152": QUIET.huge_in_use["hugetlb:2097152"] + (2 << 20)}
    (said,) = judged(huge_in_use=taken)
    assert said == "huge pages of other programs (hugetlb:2097152) changed by +2 MiB (rule: none)"
    held = msgspec.structs.replace(QUIET, huge_in_use=taken)
    assert disturbances(noise.difference(held, held), Validity()) == ()


def test_transparent_pages_that_the_arm_itself_hands_out_are_not_flagged_until_they_are_many() -> None:
    some = {**QUIET.huge_in_use, "anon:65536": QUIET.huge_in_use["anon:65536"] + (200 << 20)}  # of 4 GiB
    assert judged(huge_in_use=some) == ()
    (said,) = judged(huge_in_use={**some, "anon:65536": 300 << 20})
    assert said.endswith("+299 MiB (rule: at most 5% of memory)")


def test_coverage_from_counters_gives_huge_faults_their_size_and_the_rest_a_base_page() -> None:
    after = msgspec.structs.replace(LATER, faults={65536: (30, 1)})
    found = noise.coverage_from_counters(noise.difference(QUIET, after), 120, 4096)
    assert found == {"anon:65536": 20 * 65536, "anon:4096": 100 * 4096}


def test_coverage_from_counters_is_none_where_it_cannot_be_known() -> None:
    assert noise.coverage_from_counters(noise.difference(QUIET, LATER), None, 4096) is None
    without = msgspec.structs.replace(QUIET, faults={})
    assert noise.coverage_from_counters(noise.difference(without, without), 10, 4096) is None


def test_coverage_from_counters_never_counts_below_zero_when_others_fault_too() -> None:
    after = msgspec.structs.replace(LATER, faults={65536: (30, 1)})
    assert noise.coverage_from_counters(noise.difference(QUIET, after), 5, 4096) == {"anon:65536": 20 * 65536}


class Watched(LocalHost):
    """This machine, and what is asked of it, in order."""

    def __init__(self) -> None:
        self.read_files: list[str] = []
        self.texts: dict[str, str] = {}
        self.listed: list[str] = []

    def read(self, path: str) -> str:
        self.read_files.append(path)
        self.texts[path] = super().read(path)
        return self.texts[path]

    def names(self, path: str) -> list[str]:
        self.listed.append(path)
        return super().names(path)


def test_a_second_look_lists_nothing_and_reads_each_file_once_and_no_other_program_s() -> None:
    host = Watched()
    noise.snapshot(host)
    assert host.listed, "the first look finds the files"
    host.read_files.clear()
    host.texts.clear()
    host.listed.clear()
    found = noise.snapshot(host)
    assert host.listed == []
    assert len(set(host.read_files)) == len(host.read_files)
    assert found.busy_s > 0
    # By their parents, kernel threads; everything else of /proc/PID is a program's.
    of_programs = [path for path in host.read_files if re.match(r"/proc/\d+/", path)]
    assert all(host.texts[path].rpartition(")")[2].split()[1] == "2" for path in of_programs if path in host.texts)
    assert len(host.read_files) > 5


def test_a_busy_child_counts_as_own() -> None:
    host = LocalHost()
    before = noise.snapshot(host)
    subprocess.run(["python3", "-c", "sum(range(4_000_000))"], check=True)
    change = noise.difference(before, noise.snapshot(host))
    assert change.own_cpu_s is not None and change.own_cpu_s > 0
    assert change.elapsed_s > 0
    assert change.after.cpus >= len(os.sched_getaffinity(0))
