"""Whom `inspect` is asked for, and what the kernel counts: on machines of files."""

from __future__ import annotations

import pytest

from hugewise.errors import UserError
from hugewise.inspection.inspect import changed, evidence, kernel_statistics
from hugewise.inspection.rules import rules_of
from hugewise.inspection.targets import charged, of_command, of_group, of_numbers
from tests.build.hosts import Files

MOUNTS = """\
30 1 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
31 1 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 1 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
"""
V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"


def process(
    pid: int, name: str, first: str = "", *, thread_of: int | None = None, kernel: bool = False
) -> dict[str, str]:
    status = f"Name:\t{name}\nState:\tS (sleeping)\nTgid:\t{thread_of or pid}\n" + ("" if kernel else "VmRSS:\t8 kB\n")
    return {f"/proc/{pid}/status": status, f"/proc/{pid}/cmdline": f"{first}\0-x\0"}


def host(**files: str) -> Files:
    made = {"/proc/self/mountinfo": MOUNTS, **process(10, "redis-server", "/usr/bin/redis-server")}
    made |= process(11, "a-name-that-is-l", "./a-name-that-is-longer") | process(12, "kworker", kernel=True)
    made |= process(13, "redis-io", thread_of=10)
    return Files({**made, **files})


def test_a_thread_is_its_process_and_one_of_the_kernel_none() -> None:
    found = of_numbers(["10", "010", "13"], host())
    assert (found.processes, found.notes) == ((10,), ("13 is a thread of the process 10",))
    with pytest.raises(UserError, match="12: it is a thread of the kernel"):
        of_numbers(["12"], host())
    with pytest.raises(UserError, match="there is no such process"):
        of_numbers(["99"], host())


@pytest.mark.parametrize(
    ("name", "pid"),
    [("redis-server", 10), ("/usr/bin/redis-server", 10), ("a-name-that-is-longer", 11), ("a-name-that-is-l", 11)],
)
def test_a_command_is_known_by_its_name_and_its_file(name: str, pid: int) -> None:
    assert of_command(name, host()).processes == (pid,)


def test_a_group_has_those_below_it_in_either_version() -> None:
    files = {f"{V1}/a/cgroup.procs": "10\n", f"{V1}/a/b/cgroup.procs": "11\n12\n99\n", f"{V1}/a/tasks": ""}
    found, folder = of_group("/a", host(**files))
    assert (found.processes, folder) == ((10, 11), f"{V1}/a")
    assert of_group(f"{V1}/a/b", host(**files))[0].processes == (11,)
    files = {f"{V2}/a/cgroup.threads": "13\n", **files}
    assert of_group("a", host(**files))[1] == f"{V2}/a"
    assert of_group("a", host(**files))[0].processes == (10,)
    with pytest.raises(UserError, match="no process is in it"):
        of_group("/e", host(**{f"{V2}/e/cgroup.procs": ""}))


def test_what_is_charged_to_a_group_is_null_where_it_is_not_counted() -> None:
    one = charged("/g", host(**{"/g/memory.stat": "anon 8192\nanon_thp 4096\nfile_thp 0"}))
    assert one is not None
    assert (one.anonymous, one.anonymous_huge, one.file_huge, one.shmem_huge) == (8192, 4096, 0, None)
    one = charged("/g", host(**{"/g/memory.stat": "rss 1\ntotal_rss 3\ntotal_rss_huge 2"}))
    assert one is not None
    assert (one.anonymous, one.anonymous_huge) == (3, 2)
    assert charged("/g", host()) is None


THP = "/sys/kernel/mm/transparent_hugepage"
OLD = {
    f"{THP}/enabled": "[always] madvise never",
    f"{THP}/hpage_pmd_size": "2097152",
    "/proc/vmstat": "compact_stall 8",
}
NEW = {**OLD, f"{THP}/hugepages-2048kB/enabled": "[inherit] never"}


def test_counts_by_size_are_null_with_their_reason_before_there_were_any() -> None:
    found = kernel_statistics(Files(OLD), rules_of(Files(OLD), 4096))
    (size,) = found.sizes
    assert (size.size, size.enabled, dict(size.counts)) == (2 << 20, "always", {})
    assert "Linux 6.10" in str(size.reason)
    assert (found.events["compact_stall"], found.events["thp_fault_alloc"]) == (8, None)
    assert found.khugepaged["full_scans"] is None
    assert evidence(found, [2 << 20]) is None


def test_faults_that_fell_back_are_evidence_and_changes_are_told() -> None:
    stats = f"{THP}/hugepages-2048kB/stats"
    looks = []
    for got, fell in (("100", "0"), ("100", "300")):
        files = Files({**NEW, f"{stats}/anon_fault_alloc": got, f"{stats}/anon_fault_fallback": fell})
        looks.append(kernel_statistics(files, rules_of(files, 4096)))
    assert evidence(looks[0], [2 << 20]) is None
    assert "300 of 400 faults that asked for 2m got none" in str(evidence(looks[1], [2 << 20]))
    assert evidence(looks[1], [64 << 10]) is None
    assert changed(looks[1], looks[0]) == {"2m anon_fault_fallback": 300}
