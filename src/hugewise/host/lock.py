"""Lock of a host: root's, which only root can take, and one that accounts have among themselves.

Root takes flock(2) on the roots of debugfs and tracefs (`host.lock`), of which the kernel has one whatever the
namespaces are; fsopen(2) and fsmount(2) give them without a mount. Accounts exclude each other, and root where it can
be had, by an abstract unix socket named with the boot id. The kernel gives both back when their holder dies.

Anybody can bind that socket. So it never keeps root from `hugewise restore`, and from a run only until `--anyway`:
SO_PEERCRED tells whose socket it is, not that it is a run. A holder tells when it expects to be over in the name of a
second such socket. Abstract names belong to a network namespace; accounts in another one see root's runs by its
journal. See unix(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import pwd
import re
import shlex
import socket
import stat
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from types import TracebackType
from typing import NamedTuple

from hugewise import processes
from hugewise.errors import LockedError, UserError
from hugewise.machine.proc import kernel_text
from hugewise.model.host import Host
from hugewise.quantity import format_duration
from hugewise.visible import printable

_FILE = Path("/run/hugewise.lock")

# The same numbers on every architecture that hugewise runs on: they were given after the tables had been joined.
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOEXEC, _CREATE = 1, 6
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class LockPlace:
    """Place of root's lock. `open` raises OSError where the lock cannot be opened, or is not root's alone.

    whole   whether it is the same one for every root of this kernel
    """

    name: str
    open: Callable[[], int]
    whole: bool


def lock_holder(descriptor: int) -> int | None:
    """Return the process whose flock keeps others from the file; None where this pid namespace does not show it."""
    status = os.fstat(descriptor)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            _, kind, *fields = line.split()
            if kind == "FLOCK" and place in fields:
                return int(fields[fields.index(place) - 1])
    return None


def _one_of_the_kernel(kind: str) -> int:
    try:
        found = _mounted_nowhere(kind)
    except OSError:
        found = _mounted_here(kind)
    return _of_root_alone(found)


def _mounted_nowhere(kind: str) -> int:
    context = _call(_FSOPEN, kind.encode(), _CLOEXEC)
    try:
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
        mount = _call(_FSMOUNT, context, _CLOEXEC, 0)
    finally:
        os.close(context)
    try:
        return os.open(".", _FOLDER, dir_fd=mount)
    finally:
        os.close(mount)


def _mounted_here(kind: str) -> int:
    # Root of a container may write sysfs and see the mounted root, and not be allowed to mount.
    for line in filter(None, kernel_text(Path("/proc/self/mountinfo")).split("\n")):
        before, _, after = line.partition(" - ")
        _, _, device, root, where, *_ = before.split(" ")
        if after.startswith(f"{kind} ") and root == "/":
            descriptor = os.open(where, _FOLDER)
            status = os.fstat(descriptor)
            if f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}" == device:
                return descriptor
            os.close(descriptor)  # something else is mounted over it
    raise FileNotFoundError(kind)


def _file(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return _of_root_alone(os.open(path, flags, 0o600))


def _of_root_alone(descriptor: int) -> int:
    status = os.fstat(descriptor)
    if status.st_uid == 0 and not status.st_mode & 0o077 and not stat.S_ISLNK(status.st_mode):
        return descriptor
    os.close(descriptor)
    raise PermissionError("others can open it too")


def _call(number: int, *arguments: int | bytes | None) -> int:
    words = [
        ctypes.c_long(argument) if isinstance(argument, int) else ctypes.c_char_p(argument) for argument in arguments
    ]
    kernel = ctypes.CDLL(None, use_errno=True)
    kernel.syscall.restype = ctypes.c_long
    result = int(kernel.syscall(ctypes.c_long(number), *words))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


PLACES: Sequence[LockPlace] = (
    LockPlace("debugfs", partial(_one_of_the_kernel, "debugfs"), whole=True),
    LockPlace("tracefs", partial(_one_of_the_kernel, "tracefs"), whole=True),
    LockPlace(str(_FILE), partial(_file, _FILE), whole=False),
)
"""All that can be had of the whole ones are taken, so that two roots who can have different ones have one in common
where they can; the file is for where there is none."""

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_TRIES = 20
_PAUSE_S = 1.0  # between looks of one that waits
_ENDS = "-ends-"  # in the name of a socket, before a second of CLOCK_BOOTTIME
_MOST_SHOWN = 120  # characters of a command line
_NO_LOGIN = (1 << 32) - 1  # loginuid of a process that belongs to no login


class _Holder(NamedTuple):
    pid: int | None
    uid: int


def boot_id(host: Host) -> str:
    """Return the kernel's random name of this boot."""
    return host.read("/proc/sys/kernel/random/boot_id")


def peer(connected: socket.socket) -> int:
    """Return the process at the other end of a unix socket."""
    pid, _, _ = _credentials(connected)
    return pid


def _credentials(connected: socket.socket) -> tuple[int, int, int]:
    pid, uid, gid = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid, gid


class HostLock:
    """Context manager that holds the host until the outermost `with` ends. Entering raises LockedError when another
    process does, or waits for its end.

    `anyway`: root goes on beside an account that has the socket. `wait` is told whom it waits for; None: it does not
    wait. `remarks` are what the report must say of the lock.
    """

    def __init__(
        self,
        host: Host,
        *,
        anyway: bool = False,
        wait: Callable[[str], None] | None = None,
        places: Sequence[LockPlace] = PLACES,
    ) -> None:
        self._name = f"hugewise-{boot_id(host)}"
        self._privileged, self._anyway, self._wait, self._places = host.privileged(), anyway, wait, places
        self._held, self._whole = ExitStack(), False
        self._entered, self._end_is_known = 0, False
        self.remarks: tuple[str, ...] = ()

    def __enter__(self) -> HostLock:
        if self._entered == 0:
            self._take()
        self._entered += 1
        return self

    def _take(self) -> None:
        told: int | None = -1
        while True:
            self.remarks, self._whole, self._end_is_known = (), False, False
            try:
                with ExitStack() as held:
                    root = self._privileged and self._take_as_root(held)
                    self._take_among_accounts(held, root=root)
                    self._held = held.pop_all()
            except LockedError as error:
                if self._wait is None:
                    raise
                if error.pid != told:
                    told = error.pid
                    self._wait(f"waiting for its end (Ctrl-C stops waiting): {error.message}")
                time.sleep(_PAUSE_S)
            else:
                return

    def expect_end(self, seconds: float) -> None:
        """Let others know that the host will be free in so many seconds. The first word counts."""
        if self._end_is_known:
            return
        self._end_is_known = True
        listener = self._held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC))
        with suppress(OSError):  # who asks learns nothing then
            listener.bind(f"\0{self._name}{_ENDS}{time.clock_gettime(time.CLOCK_BOOTTIME) + seconds:.0f}")
            listener.listen(socket.SOMAXCONN)

    def _take_as_root(self, held: ExitStack) -> bool:
        whole = [place for place in self._places if place.whole and self._lock(place, held)]
        if whole:
            self._whole = True
            return True
        near = next((place for place in self._places if not place.whole and self._lock(place, held)), None)
        if near is None:  # root of a user namespace: to the host it is an account
            self.remarks += ("root's lock could not be had: runs elsewhere on this host are not kept out",)
            return False
        self.remarks += (
            f"the lock of this host reaches only as far as {near.name}: a run in a container with another one is not"
            " kept out",
        )
        return True

    def _lock(self, place: LockPlace, held: ExitStack) -> bool:
        try:
            descriptor = place.open()
        except OSError:
            return False
        held.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _locked(self._name, lock_holder(descriptor)) from None
        return True

    def _take_among_accounts(self, held: ExitStack, *, root: bool) -> None:
        holder = None
        for _ in range(_TRIES):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                listener.bind(f"\0{self._name}")
                # Nobody accepts, so that askers stay in the queue. A long queue keeps the answer available.
                listener.listen(socket.SOMAXCONN)
            except OSError as error:
                listener.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                held.callback(listener.close)
                return
            if (holder := self._asked()) is not None:
                break
            time.sleep(0.05)  # the holder is between bind and listen, or has just let go
        self._refused(holder, root=root)

    def _refused(self, holder: _Holder | None, *, root: bool) -> None:
        if not root and holder is None:
            if self._wait is not None:  # the queue of a holder that many ask is full: it holds the host all the same
                raise _locked(self._name, None)
            raise UserError("another hugewise run holds this host, and does not say its pid", hint="see: ss -xlp")
        # No root that has root's lock is beside one that reaches the whole host, whoever the socket says it is.
        if holder and holder.uid in (0, os.geteuid()) and not (self._anyway and root and self._whole):
            raise _locked(self._name, holder.pid)
        pid = holder and holder.pid
        account = "somebody" if holder is None else _name(holder.uid)
        if not (root and self._anyway):
            raise _locked(self._name, pid, account=account, anyway=root)
        who = account if pid is None else f"{account} (pid {pid})"
        self.remarks += (f"root went on (--anyway) beside {who}, who has the lock that accounts share",)

    def _asked(self) -> _Holder | None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.setblocking(False)
            try:
                asking.connect(f"\0{self._name}")
            except (ConnectionRefusedError, BlockingIOError):
                return None
            pid, uid, _ = _credentials(asking)
        # The process that called listen(2) may have handed the socket on and be gone: its pid may be another's now.
        return _Holder(pid if processes.user(pid) == uid else None, uid)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered -= 1
        if self._entered == 0:
            self._held.close()


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def locked(host: Host, pid: int) -> LockedError:
    """Return the error that this process holds the host."""
    return _locked(f"hugewise-{boot_id(host)}", pid)


def _locked(name: str, pid: int | None, *, account: str | None = None, anyway: bool = False) -> LockedError:
    if pid is None:
        return LockedError(None, account=account, anyway=anyway)
    about = [] if account is not None else [f"of {user}" for user in [_user(pid)] if user]
    left = _seconds_left(name, pid)
    if left is not None:
        about.append(f"about {format_duration(left)} left" if left > 0 else "about to end")
    return LockedError(pid, account=account, anyway=anyway, about=about, command=_command(pid))


def _user(pid: int) -> str:
    """Return the account of a process, and who became that account by sudo; empty where it is gone."""
    uid, login = processes.user(pid), None
    if uid is None:
        return ""
    with suppress(OSError, ValueError):
        login = int(Path(f"/proc/{pid}/loginuid").read_bytes())
    return _name(uid) if login in (None, uid, _NO_LOGIN) else f"{_name(uid)}, by {_name(login)}"


def _command(pid: int) -> str:
    """Return the command line of a process, cut; its program without the folder, and without Python's where known."""
    try:
        with Path(f"/proc/{pid}/cmdline").open("rb") as file:
            read = file.read(1 << 12).decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    words = [PurePath(word).name if at == 0 else word for at, word in enumerate(read[:-1])]
    at = next((at for at, word in enumerate(words[:4]) if PurePath(word).name == "hugewise"), None)
    shown = printable(shlex.join(words if at is None else ["hugewise", *words[at + 1 :]]))
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."


def _seconds_left(name: str, pid: int) -> float | None:
    """Return the seconds until the process expects to be over; None where it has not said so."""
    ends = re.compile(rb"@(%b(\d{1,10}))" % re.escape(f"{name}{_ENDS}".encode()), re.ASCII)
    with suppress(OSError):
        for line in Path("/proc/net/unix").read_bytes().split(b"\n"):
            match = ends.fullmatch(line.rpartition(b" ")[2])
            if match is None:
                continue
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking, suppress(OSError):
                asking.setblocking(False)
                asking.connect(b"\0" + match[1])
                if peer(asking) == pid:
                    return int(match[2]) - time.clock_gettime(time.CLOCK_BOOTTIME)
    return None
