"""The lock: who holds it, how far it reaches, and the folders of the host that root takes it in."""

import ctypes
import errno
import os
import pwd
import re
import signal
import socket
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from hugewise.errors import LockedError
from hugewise.host import journal, lock
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import HostLock, LockPlace, boot_id
from tests.build import known
from tests.build.hosts import FakeHost
from tests.requirements import need, need_own_namespaces, need_root

pytestmark = pytest.mark.looks

NOBODY, DAEMON = 65534, 1
CURE = "wait for it (run and advise: --wait), or go on beside it with: --anyway"
PR_SET_DUMPABLE = 4
NEW_USER, NEW_NET = 0x10000000, 0x40000000

_HOLDER = """
import sys, time
from hugewise.host.lock import HostLock
from tests.build.hosts import FakeHost
host = FakeHost()
host.fixed["/proc/sys/kernel/random/boot_id"] = sys.argv[1]
with HostLock(host) as lock:
    for seconds in sys.argv[2:]:
        lock.expect_end(float(seconds))
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def holder(host: FakeHost, *ends: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the host, and expects those ends, in seconds."""
    command = [sys.executable, "-c", _HOLDER, boot_id(host), *ends]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert known(process.stdout).readline() == b"held\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def host() -> FakeHost:
    """A host of its own for each test: its boot id is unique."""
    host = FakeHost(root=False)
    host.fixed["/proc/sys/kernel/random/boot_id"] = str(uuid.uuid4())
    return host


@pytest.mark.whole
def test_a_second_holder_is_told_the_pid_and_the_lock_dies_with_its_holder(host: FakeHost) -> None:
    with holder(host) as process:
        for _ in range(200):  # who asked stays in the queue of a holder that never accepts
            with pytest.raises(LockedError) as caught, HostLock(host):
                pass
            assert caught.value.pid == process.pid
    with HostLock(host):
        pass


def refused(host: FakeHost) -> str:
    with pytest.raises(LockedError) as caught:
        HostLock(host).__enter__()
    return caught.value.message


def test_who_is_refused_is_told_the_user_the_command_and_the_time_that_is_left(host: FakeHost) -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    with holder(host) as process:
        said = refused(host)
        assert said.startswith(f"another hugewise run holds this host (pid {process.pid}, of {user}")
        assert f"): {Path(sys.executable).name} -c " in said
        assert "left" not in said.partition("):")[0]
    with holder(host, "7200", "60") as process:  # the first word counts
        assert re.search(r", about (2 h 00|1 h 59) min left\): ", refused(host))
    with holder(host, "-60"):
        assert ", about to end): " in refused(host)


def test_the_time_that_is_left_is_believed_from_the_holder_alone(host: FakeHost) -> None:
    ends = time.clock_gettime(time.CLOCK_BOOTTIME) + 7200
    with holder(host), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(f"\0hugewise-{boot_id(host)}-ends-{ends:.0f}")
        other.listen()
        assert "left" not in refused(host).partition("):")[0]


def test_the_command_of_a_holder_begins_with_hugewise_and_is_cut(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command line as that of the installed program."""
    monkeypatch.setattr(lock, "_MOST_SHOWN", 30)
    command = ["/bin/sh", "-c", "echo up; read x", "/opt/bin/hugewise", "run", "a study.toml", "--time", "4m"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert known(process.stdout).readline() == b"up\n"
        assert lock.locked(host, process.pid).message.endswith("): hugewise run 'a study.toml' --...")
        process.communicate(b"\n")


def test_one_that_waits_says_so_and_takes_the_host_at_the_end_of_the_other(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_PAUSE_S", 0.01)
    said: list[str] = []
    with holder(host) as process:

        def told(text: str) -> None:
            said.append(text)
            process.kill()
            process.wait()

        with HostLock(host, wait=told):
            assert refused(host).startswith(f"another hugewise run holds this host (pid {os.getpid()}")
    (line,) = said
    expected = "waiting for its end (Ctrl-C stops waiting): another hugewise run holds this host"
    assert line.startswith(f"{expected} (pid {process.pid}")


def test_one_that_waits_can_be_interrupted(host: FakeHost) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    with holder(host):
        with pytest.raises(KeyboardInterrupt):
            HostLock(host, wait=interrupted).__enter__()
        assert "holds this host" in refused(host)


def test_the_host_is_held_until_the_outermost_with_ends(host: FakeHost) -> None:
    held = HostLock(host)
    with held:
        for _ in range(2):  # phases of one advice
            with held:
                pass
            assert "holds this host" in refused(host)
    with HostLock(host):
        pass


def test_it_is_not_inherited(host: FakeHost) -> None:
    with HostLock(host):
        pipe = subprocess.PIPE
        child = subprocess.Popen(["/bin/sh", "-c", "echo up; read x"], stdin=pipe, stdout=pipe, close_fds=False)
        assert known(child.stdout).readline() == b"up\n"
    try:
        with HostLock(host):
            pass
    finally:
        child.communicate(b"\n")


@contextmanager
def as_nobody(action: Callable[[], object]) -> Iterator[int]:
    """A process of the account nobody in which `action` was done, and what it returned is kept; its pid."""
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)  # as a process that was nobody's from the beginning
            kept = action()
            os.write(done, b"y")
            time.sleep(60)
            del kept
        finally:
            os._exit(1)
    os.close(done)
    try:
        assert os.read(ready, 1) == b"y"
        yield child
    finally:
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def bound(name: str, *, queue: int | None) -> list[socket.socket]:
    """The lock's socket as somebody else may have it: listening with that queue, which is full, or not at all."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    holder.bind(f"\0hugewise-{name}")
    kept = [holder]
    if queue is not None:
        holder.listen(queue)
    for _ in range(0 if queue is None or queue > 1 else queue + 1):
        asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        asking.connect(f"\0hugewise-{name}")
        kept.append(asking)
    return kept


@pytest.fixture
def root(tmp_path: Path) -> FakeHost:
    """A host of root's with a boot id of its own, and a lock that is not that of this machine."""
    need_root()
    host = FakeHost()
    host.fixed["/proc/sys/kernel/random/boot_id"] = str(uuid.uuid4())
    return host


def own(tmp_path: Path, *, whole: bool = True) -> tuple[LockPlace, ...]:
    """A place of this test alone."""
    path = tmp_path / "lock"
    return (LockPlace(str(path), partial(lock._file, path), whole),)


def test_a_socket_that_an_account_has_bound_is_named_and_root_goes_on_anyway(root: FakeHost, tmp_path: Path) -> None:
    with as_nobody(lambda: bound(boot_id(root), queue=16)) as pid:
        with pytest.raises(LockedError, match=rf"nobody holds the lock of this host \(pid {pid}\)") as caught:
            HostLock(root, places=own(tmp_path)).__enter__()
        assert f"kill {pid}, or go on beside it with: --anyway" in (caught.value.hint or "")
        with HostLock(root, anyway=True, places=own(tmp_path)) as lock:
            assert lock.remarks == (
                f"root went on (--anyway) beside nobody (pid {pid}), who has the lock that accounts share",
            )
            with pytest.raises(LockedError, match=f"pid {os.getpid()}"):  # and is a lock all the same
                HostLock(root, anyway=True, places=own(tmp_path)).__enter__()


@pytest.mark.parametrize("queue", [0, None], ids=["full", "deaf"])
def test_of_a_socket_that_does_not_answer_nothing_is_told(root: FakeHost, tmp_path: Path, queue: int | None) -> None:
    """No process is named, and none to be killed."""
    with as_nobody(lambda: bound(boot_id(root), queue=queue)):
        said = r"somebody holds the lock of this host \(pid unknown\)"
        with pytest.raises(LockedError, match=said) as caught:
            HostLock(root, places=own(tmp_path)).__enter__()
        assert (caught.value.pid, caught.value.hint) == (None, CURE)
        with HostLock(root, anyway=True, places=own(tmp_path)) as lock:
            assert lock.remarks == ("root went on (--anyway) beside somebody, who has the lock that accounts share",)


def test_the_pid_of_a_socket_whose_process_is_gone_is_not_named(root: FakeHost, tmp_path: Path) -> None:
    """The one that called listen(2) has handed it to a child and ended: its pid may be anybody's by now."""

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        kept = bound(boot_id(root), queue=16)
        grandchild = os.fork()
        if grandchild:
            os.write(writing, str(grandchild).encode())
            os._exit(0)
        time.sleep(60)
        del kept
        os._exit(0)
    holder = int(os.read(reading, 16))
    os.waitpid(child, 0)
    try:
        with pytest.raises(LockedError, match=r"nobody holds the lock of this host \(pid unknown\)"):
            HostLock(root, places=own(tmp_path)).__enter__()
    finally:
        os.kill(holder, signal.SIGKILL)


def test_accounts_exclude_each_other_and_are_not_offered_to_go_on(host: FakeHost) -> None:
    need_root()
    with as_nobody(lambda: bound(boot_id(host), queue=16)) as pid:
        os.seteuid(DAEMON)
        try:
            with pytest.raises(LockedError, match=f"nobody holds the lock of this host .pid {pid}") as caught:
                HostLock(host, anyway=True).__enter__()
        finally:
            os.seteuid(0)
        assert "--anyway" not in (caught.value.hint or "")


def test_an_account_sees_the_run_of_root(root: FakeHost, host: FakeHost, tmp_path: Path) -> None:
    host.fixed = root.fixed
    with HostLock(root, places=own(tmp_path)):
        os.seteuid(NOBODY)
        try:
            with pytest.raises(
                LockedError, match=rf"another hugewise run holds this host \(pid {os.getpid()}, of root"
            ):
                HostLock(host).__enter__()
        finally:
            os.seteuid(0)


NAMESPACE = """
import sys
from hugewise.errors import LockedError
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import HostLock
try:
    with HostLock(LocalHost()) as lock:
        print("taken", *lock.remarks)
except LockedError as error:
    print(error.pid, error.message)
"""


def asked_in(*namespaces: str) -> str:
    """What a run says in those namespaces."""
    command = ["unshare", *namespaces, sys.executable, "-c", NAMESPACE]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.whole
@pytest.mark.parametrize("namespaces", [("--net",), ("--mount",), ("--net", "--mount", "--uts", "--ipc")], ids=str)
def test_the_lock_of_root_reaches_every_namespace_of_the_host(namespaces: tuple[str, ...]) -> None:
    need_root()
    need_own_namespaces()
    need(reaches_all(), "a kernel with debugfs or tracefs whose root is root's alone, and fsopen(2)")
    with HostLock(LocalHost()) as lock:
        assert lock.remarks == ()
        assert asked_in(*namespaces).startswith(f"{os.getpid()} another hugewise run holds this host")
        hidden = asked_in("--pid", "--fork", "--mount-proc", "--net")
        assert hidden == "None another hugewise run holds this host (in another pid namespace)\n"
    assert asked_in(*namespaces) == "taken\n"


@pytest.mark.whole
def test_the_root_of_a_user_namespace_is_an_account_to_the_host() -> None:
    """It takes none of root's locks, so it keeps nobody from anything."""
    need_root()
    need_own_namespaces()
    libc = ctypes.CDLL(None, use_errno=True)

    def as_root_of_its_own() -> HostLock:
        assert libc.unshare(NEW_USER | NEW_NET) == 0
        Path("/proc/self/uid_map").write_text(f"0 {NOBODY} 1")
        assert os.geteuid() == 0
        lock = HostLock(LocalHost()).__enter__()
        assert lock.remarks == ("root's lock could not be had: runs elsewhere on this host are not kept out",)
        return lock

    with as_nobody(as_root_of_its_own), HostLock(LocalHost()) as lock:
        assert lock.remarks == ()


def reaches_all() -> bool:
    for place in lock.PLACES:
        with suppress(OSError):
            os.close(place.open())
            return place.whole
    return False


def test_a_lock_that_does_not_reach_the_whole_host_says_how_far_it_does(root: FakeHost, tmp_path: Path) -> None:
    def none() -> int:
        raise PermissionError

    places = (LockPlace("debugfs", none, whole=True), *own(tmp_path, whole=False))
    with HostLock(root, places=places) as lock:
        assert lock.remarks == (
            f"the lock of this host reaches only as far as {tmp_path}/lock: a run in a container with another one is"
            " not kept out",
        )
        assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600
        with pytest.raises(LockedError, match=f"pid {os.getpid()}"):
            HostLock(root, places=places).__enter__()


@pytest.mark.parametrize("kind", ["link", "theirs", "open", "fifo"])
def test_a_lock_file_that_others_made_is_not_locked(root: FakeHost, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "lock"
    if kind == "link":
        path.symlink_to(tmp_path / "victim")
    elif kind == "fifo":
        os.mkfifo(path, 0o666)
        path.chmod(0o666)
    else:
        path.touch(0o600)
        os.chown(path, NOBODY if kind == "theirs" else 0, 0)
        path.chmod(0o600 if kind == "theirs" else 0o644)
    with HostLock(root, places=own(tmp_path)) as lock:
        assert lock.remarks == ("root's lock could not be had: runs elsewhere on this host are not kept out",)
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("queue", [16, 0, None], ids=["listening", "full", "deaf"])
def test_an_account_never_keeps_root_from_restoring(unchanged: None, queue: int | None) -> None:
    need_root()
    name = boot_id(LocalHost())
    with as_nobody(lambda: bound(name, queue=queue)):
        assert journal.restore() == ["nothing to restore"]


def mounted(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Have /proc/self/mountinfo say so, and the kernel mount nothing."""

    def refuse(kind: str) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(lock, "kernel_text", lambda path: "".join(f"{line}\n" for line in lines))
    monkeypatch.setattr(lock, "_mounted_nowhere", refuse)


def line(folder: Path, *, kind: str = "debugfs", root: str = "/", minor: int = 0) -> str:
    device = folder.stat().st_dev
    return f"22 1 {os.major(device)}:{os.minor(device) + minor} {root} {folder} rw shared:2 - {kind} none rw"


def test_what_cannot_be_mounted_is_opened_where_it_is_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that may write sysfs and not mount has root's lock in common with the host."""
    need_root()
    part, over, other, whole = (tmp_path / name for name in ("part", "over", "other", "whole"))
    for folder in (part, over, other, whole):
        folder.mkdir(mode=0o700)
    none = (line(part, root="/part"), line(over, minor=1), line(other, kind="tracefs"))  # the second is mounted over
    debugfs = next(place for place in lock.PLACES if place.name == "debugfs")
    before = sorted(Path("/proc/self/fd").iterdir())
    mounted(monkeypatch, *none, line(whole))
    descriptor = debugfs.open()
    assert Path(f"/proc/self/fd/{descriptor}").readlink() == whole
    os.close(descriptor)
    mounted(monkeypatch, *none)
    with pytest.raises(FileNotFoundError):
        debugfs.open()
    whole.chmod(0o755)
    mounted(monkeypatch, line(whole))
    with pytest.raises(PermissionError, match="others can open it too"):
        debugfs.open()
    assert sorted(Path("/proc/self/fd").iterdir()) == before
