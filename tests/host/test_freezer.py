"""Freezing by each of three ways, of real processes and groups that do not obey; who may notice that it was frozen."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hugewise.errors import HugewiseError
from hugewise.host import cgroup
from hugewise.host.cgroup import Freezer, Hierarchy, Leaf, unfreezable_reason
from hugewise.host.journal import Journal, recover
from hugewise.host.local_host import LocalHost
from tests.build import known
from tests.build.hosts import FakeHost, stat_text
from tests.host.test_cgroup import entered
from tests.requirements import need
from tests.wait import until

pytestmark = pytest.mark.looks

HOST = LocalHost()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a busy machine is slow to stop is not given up; a test that is to see it given up says when."""
    monkeypatch.setattr(Freezer.__init__, "__defaults__", (60.0,))


WAYS = {"cgroup.freeze": ("2",), "freezer.state": ("freezer",), "signals": ("pids", "memory", "cpuacct")}
BUSY = "while :; do :; done"
FORKING = "while :; do /bin/true; done & while :; do (:); done"


def own(way: str) -> dict[str, Path]:
    """The group to start from for that way, and no other one."""
    reason = cgroup.unavailable()
    need(reason is None, f"cgroups that can be made: {reason}")
    found = [(key, path) for key, path in cgroup.find().items() if key in WAYS[way]]
    need(bool(found), f"a cgroup hierarchy of {' or '.join(WAYS[way])}")
    return dict(found[:1])


@pytest.fixture(params=WAYS)
def leaf(request: pytest.FixtureRequest) -> Iterator[Leaf]:
    """An empty group that can be frozen by that way alone."""
    hierarchy = Hierarchy.open(own=own(request.param))
    try:
        made = hierarchy.create("frozen")
        there = [name for name in WAYS if (made.folders[0] / name).exists()]
        need(there == [request.param] or (not there and request.param == "signals"), f"a group with {request.param}")
        yield made
    finally:
        hierarchy.remove()


@contextmanager
def thawed_at_last(leaf: Leaf, script: str) -> Iterator[subprocess.Popen[bytes]]:
    """A shell inside the group that runs `script`. What a test that fails leaves frozen is thawed, to be killed."""
    with entered(leaf, script) as child:
        try:
            yield child
        finally:
            leaf.thaw()


def ran_ns(leaf: Leaf) -> dict[int, int]:
    """CPU time that its processes have had, in ns, by number."""
    found = {}
    for pid in leaf.processes():
        with suppress(FileNotFoundError, ProcessLookupError):
            found[pid] = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    return found


def word_of(pid: int, name: str) -> str:
    """A file of /proc/PID, or why it could not be read."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError as error:
        return str(error)


def state_of(pid: int) -> str:
    """The letter that /proc/PID/stat has; "R" where it has a CPU or waits for one."""
    return word_of(pid, "stat").rpartition(")")[2][1:2]


def kernel_on(leaf: Leaf) -> dict[int, list[str]]:
    """What the kernel says of each process of it."""
    return {pid: [word_of(pid, name) for name in ("stat", "wchan", "stack")] for pid in leaf.processes()}


def grows(leaf: Leaf) -> bool:
    """Whether its processes get CPU time, or others come."""
    before = ran_ns(leaf)
    return until(lambda: ran_ns(leaf) != before, "its processes get CPU time", seen=lambda: (before, kernel_on(leaf)))


def rests(leaf: Leaf) -> bool:
    """Whether nothing happens in it between two looks. Version 2 says that all are frozen before the last process has
    left its CPU, so that looks are repeated.
    """

    def stood_still() -> bool:
        before = ran_ns(leaf)
        time.sleep(0.01)
        return "R" not in map(state_of, leaf.processes()) and ran_ns(leaf) == before

    return until(stood_still, "its processes stand still", seen=lambda: kernel_on(leaf))


@pytest.mark.parametrize("script", [BUSY, FORKING])
def test_what_is_frozen_stands_still_and_goes_on(leaf: Leaf, script: str) -> None:
    with thawed_at_last(leaf, script):
        for _ in range(5):
            leaf.freeze()
            assert rests(leaf)
            leaf.freeze()  # once more does nothing
            assert rests(leaf)
            leaf.thaw()
            assert grows(leaf)
            leaf.thaw()
        leaf.kill()


def test_what_is_frozen_is_killed_and_nothing_runs_on_before(leaf: Leaf, tmp_path: Path) -> None:
    written = tmp_path / "written"
    with thawed_at_last(leaf, f"for i in 1 2 3 4; do (while :; do echo; done >> {written}) & done; wait") as child:
        until(lambda: len(leaf.processes()) == 5, "the shell and its four loops are there", seen=leaf.processes)
        until(lambda: written.exists() and written.stat().st_size > 0, "the loops write")
        leaf.freeze()
        before = written.stat().st_size
        assert leaf.kill() == 5
        assert child.wait(timeout=60) == -signal.SIGKILL
    assert written.stat().st_size == before
    assert leaf.processes() == []


def test_a_group_of_which_a_part_is_frozen_is_killed(leaf: Leaf) -> None:
    for folder in leaf.folders:
        (folder / "inner").mkdir()
    inner = Leaf(tuple(folder / "inner" for folder in leaf.folders), None)
    with thawed_at_last(inner, BUSY) as child:
        inner.freeze()
        assert leaf.kill() == 1
        assert child.wait(timeout=60) == -signal.SIGKILL


def test_who_waits_for_its_stopped_child_of_vfork_stands_still_too(leaf: Leaf, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    spawn = f"os.posix_spawn('/bin/true', ['true'], {{}}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, '{pipe}', 0, 0)])"
    with thawed_at_last(leaf, f'exec {sys.executable} -S -c "import os; os.waitpid({spawn}, 0)"') as child:
        until(
            lambda: len(leaf.processes()) == 2 and state_of(child.pid) == "D",
            "it waits for its child of vfork",
            seen=lambda: kernel_on(leaf),
        )
        leaf.freeze()
        assert rests(leaf)
        leaf.thaw()
        pipe.write_bytes(b"")
        assert child.wait(timeout=60) == 0


def test_an_empty_group_is_frozen_at_once(leaf: Leaf) -> None:
    leaf.freeze()
    leaf.thaw()
    leaf.remove()
    assert not any(folder.exists() for folder in leaf.folders)


@pytest.mark.parametrize("way", WAYS)
def test_recovery_ends_what_a_killed_run_left_frozen(way: str, tmp_path: Path) -> None:
    host = FakeHost()
    host.fixed["/proc/sys/kernel/random/boot_id"] = HOST.read("/proc/sys/kernel/random/boot_id")
    path = tmp_path / "journal.jsonl"
    start = own(way)
    journal = Journal.begin(host, path, "killed")
    hierarchy = Hierarchy.open(journal.append, start)
    try:
        leaf = hierarchy.create("b1")
        with thawed_at_last(leaf, BUSY) as child:
            leaf.freeze()
            journal.abandon()
            assert recover(host, path).killed == 1
            assert child.wait(timeout=60) == -signal.SIGKILL
    finally:
        hierarchy.remove()
    assert not any(folder.exists() for folder in hierarchy.parents.values())


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that sleeps."""
    with subprocess.Popen(["/bin/sleep", "60"]) as child:
        yield child.pid
        child.kill()


@pytest.mark.parametrize(
    ("knob", "said", "word"),
    [("cgroup.freeze", "frozen 0", "freeze"), ("cgroup.freeze", "frozen 1", "thaw"), ("freezer.state", "", "freeze")],
)
def test_what_does_not_obey_is_named(tmp_path: Path, knob: str, said: str, word: str, sleeper: int) -> None:
    (tmp_path / knob).touch()
    (tmp_path / "cgroup.events").write_text(f"populated 1\n{said}\n")

    class Stubborn(LocalHost):
        def write(self, path: str, text: str) -> None:
            super().write(path, "FREEZING" if text == "FROZEN" else text)

    with pytest.raises(HugewiseError) as caught:
        Freezer(Stubborn(), [tmp_path], lambda: [sleeper], 0.01).by_kernel(frozen=word == "freeze")
    assert caught.value.message == f"{tmp_path} does not {word} within 0.01 s: see pid {sleeper} (sleep)"
    assert "dmesg" in (caught.value.hint or "")


def test_a_group_without_a_freezer_is_none_of_the_kernels(tmp_path: Path) -> None:
    assert not Freezer(HOST, [tmp_path], list).by_kernel(frozen=True)
    with pytest.raises(HugewiseError, match="must not be stopped from here"):
        Freezer(HOST, [tmp_path], lambda: [os.getpid()]).by_signals(frozen=True)


@pytest.mark.parametrize("seen", [1, 2])
def test_who_appears_while_others_are_stopped_is_stopped_too(seen: int) -> None:
    """Also whom a process begets between a look at who is there and a look at whether they stand still."""
    with subprocess.Popen(["/bin/sleep", "60"]) as first, subprocess.Popen(["/bin/sleep", "60"]) as second:
        try:
            os.kill(first.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WNOWAIT)
            looks = iter([[first.pid]] * seen)
            Freezer(HOST, [Path("x")], lambda: next(looks, [first.pid, second.pid])).by_signals(frozen=True)
            for child in (first, second):
                assert "State:\tT" in Path(f"/proc/{child.pid}/status").read_text()
        finally:
            first.kill()
            second.kill()


def test_a_group_of_version_1_is_asked_again_while_some_of_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "freezer.state").touch()
    asked: list[str] = []

    class Slow(LocalHost):
        def write(self, path: str, text: str) -> None:
            if not Path(path).exists():
                raise FileNotFoundError(path)
            asked.append(text)
            Path(path).write_text("FREEZING" if len(asked) < 3 else "FROZEN")

    assert Freezer(Slow(), [tmp_path], list).by_kernel(frozen=True)
    assert asked == ["FROZEN"] * 3


def test_a_group_that_may_not_be_frozen_says_so(tmp_path: Path) -> None:
    (tmp_path / "cgroup.freeze").mkdir()
    with pytest.raises(HugewiseError, match=f"cannot freeze the cgroup {tmp_path}: Is a directory"):
        Leaf((tmp_path,), None).freeze()


@pytest.mark.parametrize(
    ("there", "entered_too"),
    [((), True), (("cgroup.freeze",), True), (("cgroup.kill",), True), (("cgroup.kill", "cgroup.freeze"), False)],
)
def test_the_freezer_of_version_1_is_entered_where_version_2_does_not_freeze_and_kill(
    tmp_path: Path, there: tuple[str, ...], entered_too: bool
) -> None:
    parents = {key: tmp_path / key / f"hugewise-{os.getpid()}" for key in ("2", "freezer")}
    for folder in parents.values():
        folder.mkdir(parents=True)
    for name in there:
        (parents["2"] / name).touch()
    hierarchy = Hierarchy.open(own={key: path.parent for key, path in parents.items()})
    assert ("freezer" in hierarchy.parents) is entered_too


PLAIN = "f = open('/dev/null'); r, w = os.pipe()"
SOCKET = "import socket; held = socket.socketpair()"
TERMINAL = "held = os.openpty()"
TIMERFD = """
import ctypes
assert ctypes.CDLL(None).timerfd_create(1, 0) >= 0
"""
TIMER = """
import ctypes
identity = ctypes.c_void_p()
libc = ctypes.CDLL(None)
create = getattr(libc, "timer_create", None) or ctypes.CDLL("librt.so.1").timer_create
assert create(1, None, ctypes.byref(identity)) == 0
"""
NAMED = "open('/proc/self/comm', 'w').write('a\\x1b[31m\\nb'); import socket; held = socket.socketpair()"


@contextmanager
def running(script: str) -> Iterator[int]:
    """A Python that has done `script`, and waits; without a terminal or a socket of the caller."""
    words = [sys.executable, "-S", "-c", f"import os\n{script}\nprint(flush=True)\ninput()"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as child:
        try:
            assert known(child.stdout).readline() == b"\n"
            yield child.pid
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (SOCKET, "has a socket: who is at its other end may not wait"),
        (TERMINAL, r"has a terminal \(/dev/pts/\d+\): who is there goes on"),
        (TIMERFD, r"has a timer of its own \(timerfd\)"),
        (TIMER, r"has a timer of its own \(timer_create\)"),
    ],
)
def test_what_may_notice_is_told(script: str, reason: str) -> None:
    with running(PLAIN) as plain, running(script) as other:
        if script == TIMER:
            need(Path(f"/proc/{other}/timers").exists(), "/proc/PID/timers (CONFIG_CHECKPOINT_RESTORE)")
        assert re.match(rf"process {other} \(python[\w.]*\) {reason}", known(unfreezable_reason([plain, other])))


def test_what_only_computes_does_not_notice() -> None:
    with running(PLAIN) as plain:
        assert unfreezable_reason([plain]) is None
    assert unfreezable_reason([]) is None


def test_who_has_ended_is_passed_over() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert unfreezable_reason([child]) is None  # a zombie
    os.waitpid(child, 0)
    assert unfreezable_reason([child]) is None


def test_a_name_is_shown_as_text() -> None:
    with running(NAMED) as pid:
        assert known(unfreezable_reason([pid])).startswith(
            f"process {pid} (a\N{REPLACEMENT CHARACTER}[31m b) has a socket"
        )


def test_a_kernel_without_timers_says_what_it_can(tmp_path: Path) -> None:
    fd = tmp_path / "7" / "fd"
    fd.mkdir(parents=True)
    (tmp_path / "7" / "comm").write_text("old\n")
    (fd / "0").symlink_to("/dev/null")
    (fd / "10").symlink_to("/dev/tty1")
    (fd / "9").symlink_to("/dev/pts/3 (deleted)")
    assert known(unfreezable_reason([7], tmp_path)).startswith("process 7 (old) has a terminal (/dev/pts/3 (deleted))")
    (fd / "9").unlink()
    (fd / "10").unlink()
    assert unfreezable_reason([7], tmp_path) is None


@pytest.mark.parametrize(
    ("stat", "said"),
    [
        (stat_text(7, "a) b", "Z"), None),
        (stat_text(7, "old", "X"), None),
        (None, None),
        (stat_text(7, "Z", "S"), "process 7 (old) cannot be looked at: Not a directory"),
    ],
)
def test_who_cannot_be_looked_at_is_passed_over_where_it_has_ended(
    tmp_path: Path, stat: str | None, said: str | None
) -> None:
    process = tmp_path / "7"
    process.mkdir()
    (process / "fd").touch()
    (process / "comm").write_text("old\n")
    if stat is not None:
        (process / "stat").write_text(stat)
    assert unfreezable_reason([7], tmp_path) == said
