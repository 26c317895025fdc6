"""Who is meant: a process with its descendants, or a unit by its control group; hostile names are none."""

from __future__ import annotations

import pytest

from hugewise.errors import UserError
from hugewise.inspection.targets import subject
from tests.build.hosts import Files

BOOTED = {"/run/systemd/system/x": ""}


def proc(pid: int, parent: int = 1, state: str = "S", cgroup: str = "0::/", name: str = "a) S 9 (b") -> dict[str, str]:
    """A process whose name looks like the fields behind it."""
    return {
        f"/proc/{pid}/stat": f"{pid} ({name}) {state} {parent} 0 0",
        f"/proc/{pid}/status": f"Name:\tx\nState:\t{state} (x)\nTgid:\t{pid}\nPid:\t{pid}\n",
        f"/proc/{pid}/cgroup": cgroup,
    }


def test_a_process_is_meant_with_all_that_descends_from_it() -> None:
    host = Files({**proc(10), **proc(11, 10), **proc(12, 11), **proc(13, 1), **proc(14, 10, "Z"), "/proc/self/x": ""})
    found = subject("10", host)
    assert (found.name, found.processes, found.process) == ("process 10", (10, 11, 12), 10)
    assert subject("0010", host).processes == (10, 11, 12)


def test_a_circle_of_parents_ends() -> None:
    assert subject("10", Files({**proc(10, 11), **proc(11, 10)})).processes == (10, 11)


def test_a_thread_stands_for_its_process() -> None:
    host = Files({**proc(10), "/proc/15/status": "Name:\tx\nState:\tS\nTgid:\t10\n"})
    found = subject("15", host)
    assert found.processes == (10,)
    assert found.notes == ("15 is a thread of the process 10",)


@pytest.mark.parametrize("text", ["0", "9", "99999999999999999999", "4294967297"])
def test_a_number_of_no_process_is_said(text: str) -> None:
    with pytest.raises(UserError, match=f"{text}: there is no such process"):
        subject(text, Files(proc(10)))


def test_one_that_has_ended_is_said() -> None:
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


def test_a_controller_is_no_place_of_units() -> None:
    """Of version 1, a group that somebody else made by that name."""
    host = Files({**proc(10, cgroup="4:memory:/system.slice/a.service\n1:name=systemd:/"), **BOOTED})
    with pytest.raises(UserError, match=r"a\.service: no process is in a control group") as raised:
        subject("a", host)
    assert raised.value.hint == "is it running? systemctl status a.service"


def test_without_systemd_there_are_no_units() -> None:
    with pytest.raises(UserError, match="systemd does not run here") as raised:
        subject("redis", Files(proc(10)))
    assert raised.value.hint == "name a process by its number"


@pytest.mark.parametrize("text", ["", "-1", "../x", "a b", "a/b", "\x1b[2J", "１２", "$(id)", "a\nb", "x" * 300])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        subject(text, Files({**proc(10), **proc(12), **BOOTED}))
