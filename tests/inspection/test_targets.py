"""Which processes `inspect` is asked for: numbers, units and control groups; hostile names are none."""

import pytest

from hugewise.errors import UserError
from hugewise.inspection.inspect import changed, evidence, kernel_statistics
from hugewise.inspection.rules import rules_of
from hugewise.inspection.targets import charged, of_group, of_numbers, subject
from tests.build.hosts import Files, stat_text

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


BOOTED = {"/run/systemd/system/x": ""}


def proc(pid: int, parent: int = 1, state: str = "S", cgroup: str = "0::/", name: str = "a) S 9 (b") -> dict[str, str]:
    """A process whose name looks like the fields behind it."""
    return {
        f"/proc/{pid}/stat": stat_text(pid, name, state, parent),
        f"/proc/{pid}/status": f"Name:\tx\nState:\t{state} (x)\nTgid:\t{pid}\nPid:\t{pid}\nVmRSS:\t8 kB\n",
        f"/proc/{pid}/cgroup": cgroup,
    }


def test_a_process_is_meant_with_all_that_descends_from_it() -> None:
    files = {**proc(10), **proc(11, 10), **proc(12, 11), **proc(13, 1), **proc(14, 10, "Z"), "/proc/self/x": ""}
    found = subject("10", Files(files))
    assert (found.name, found.processes, found.process) == ("process 10", (10, 11, 12), 10)
    assert subject("0010", Files(files)).processes == (10, 11, 12)
    assert subject("10", Files({**proc(10, 11), **proc(11, 10)})).processes == (10, 11), "a circle of parents ends"
    found = subject("15", Files({**files, "/proc/15/status": "Name:\tx\nState:\tS\nTgid:\t10\n"}))
    assert (found.processes, found.notes) == ((10, 11, 12), ("15 is a thread of the process 10",))


@pytest.mark.parametrize("text", ["0", "9", "99999999999999999999", "4294967297"])
def test_a_number_of_no_process_or_of_one_that_has_ended_is_said(text: str) -> None:
    with pytest.raises(UserError, match=f"{text}: there is no such process"):
        subject(text, Files(proc(10)))
    with pytest.raises(UserError, match="the process has ended"):
        subject("10", Files(proc(10, state="Z")))


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/redis.service", "redis"),
        ("0::/system.slice/redis.service/worker", "redis.service"),
        ("12:pids:/\n1:name=systemd:/system.slice/redis.service\n0::/", "redis"),
        ("0::/docker/abc/system.slice/system-getty.slice/getty@tty1.service", "getty@tty1"),
        ("0::/system.slice/_cgroup.service", "cgroup"),
        (r"0::/system.slice/a\x2db.service", r"a\x2db"),
    ],
)
def test_the_processes_of_a_unit_are_those_in_its_control_group(cgroup: str, unit: str) -> None:
    host = Files(
        {**proc(10, cgroup=cgroup), **proc(11, cgroup=cgroup), **proc(12, cgroup="0::/system.slice/other.service")}
    )
    found = subject(unit, host)
    assert (found.processes, found.process) == ((10, 11), None)


def test_a_name_that_several_have_is_told() -> None:
    groups = ("0::/system.slice/a.service", "0::/user.slice/user@1.service/a.service")
    files = {**proc(10, cgroup=groups[0]), **proc(11, cgroup=groups[1])}
    found = subject("a", Files(files))
    assert found.processes == (10,)
    assert found.notes == (
        "not looked at, for they are no units of the system's: /user.slice/user@1.service/a.service",
    )
    found = subject("a", Files({**files, **proc(12, cgroup="0::/x.slice/a.service")}))
    assert found.processes == (10, 12)
    assert found.notes[1] == "several control groups are called so: /system.slice/a.service, /x.slice/a.service"


@pytest.mark.parametrize(
    "group",
    [
        "/user.slice/user-1000.slice/user@1000.service/app.slice/redis.service",
        "/system.slice/delegating.service/redis.service",
        "/system.slice/docker-ab.scope/system.slice/redis.service",
        "/user.slice/user-1000.slice/user@1000.service/x\v0::/redis.service",
    ],
)
def test_root_takes_no_group_of_others_for_the_unit(group: str) -> None:
    """Who has a subtree of their own could have their pages counted for those of a service."""
    with pytest.raises(UserError, match=r"redis\.service: the system has no unit of that name") as raised:
        subject("redis", Files({**proc(10, cgroup=f"0::{group}"), **BOOTED}, root=True))
    assert raised.value.hint == "if that is meant, name its first process: 10"
    assert subject("redis", Files(proc(10, cgroup=f"0::{group}"))).processes == (10,), "one's own manager's"


def test_in_a_container_units_lie_below_its_own_group() -> None:
    files = {**proc(1, 0, cgroup="0::/docker/ab/init.scope"), **proc(10, cgroup="0::/docker/ab/x.slice/redis.service")}
    assert subject("redis", Files(files, root=True)).processes == (10,)


def test_a_process_lives_as_long_as_a_thread_of_it() -> None:
    """Its first thread has ended: the kernel shows that one as a zombie, and the memory at the others."""
    threads = {"/proc/11/task/11/status": "State:\tZ\n", "/proc/11/task/12/status": "State:\tS\n"}
    files = {**proc(10), **proc(11, 10, "Z"), **threads, **proc(13, 11)}
    assert subject("10", Files(files)).processes == (10, 11, 13)
    assert subject("11", Files(files)).processes == (11, 13)


def test_a_controller_is_no_place_of_units_and_without_systemd_there_are_none() -> None:
    """Of version 1, a group that somebody else made by that name."""
    host = Files({**proc(10, cgroup="4:memory:/system.slice/a.service\n1:name=systemd:/"), **BOOTED})
    with pytest.raises(UserError, match=r"a\.service: no process is in a control group") as raised:
        subject("a", host)
    assert raised.value.hint == "is it running? systemctl status a.service"
    with pytest.raises(UserError, match="systemd does not run here") as raised:
        subject("redis", Files(proc(10)))
    assert raised.value.hint == "name a process by its number"


@pytest.mark.parametrize("text", ["", "-1", "../x", "a b", "a/b", "\x1b[2J", "１２", "$(id)", "a\nb", "x" * 300])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        subject(text, Files({**proc(10), **proc(12), **BOOTED}))
