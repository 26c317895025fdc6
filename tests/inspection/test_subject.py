"""Who is meant: a process with its descendants, or a unit by its control group; hostile names are none."""

from __future__ import annotations

import pytest

from hugewise.errors import UserError
from hugewise.inspection.subject import subject
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
    found = subject("a", Files({**proc(10, cgroup=groups[0]), **proc(11, cgroup=groups[1])}))
    assert found.processes == (10, 11)
    assert found.notes == (
        "several control groups are called so: /system.slice/a.service, /user.slice/user@1.service/a.service",
    )


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
