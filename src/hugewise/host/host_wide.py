"""Folders of which the whole host has one, and which only its root can open: root's lock is taken on them.

The kernel has one debugfs and one tracefs, whatever mount, network or user namespaces there are, and their roots are
0700. fsopen(2) and fsmount(2) give their root without mounting them anywhere; the root of a user namespace may not.
A lock there (flock(2)) is seen by every root of this kernel and given back by the kernel when its holder dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hugewise.machine.proc import kernel_text

__all__ = ["PLACES", "LockPlace", "holder"]

_FILE = Path("/run/hugewise.lock")

# The same numbers on every architecture that hugewise runs on: they were given after the tables had been joined.
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOEXEC, _CREATE = 1, 6
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class LockPlace:
    """Where root takes its lock. `open` raises OSError where it cannot be had, or is not root's alone.

    whole   whether it is the same one for every root of this kernel
    """

    name: str
    open: Callable[[], int]
    whole: bool


def holder(descriptor: int) -> int | None:
    """The process whose flock keeps others from the file; None where this pid namespace does not show it."""
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
    """The same root where it is mounted already: a container may see it and not be allowed to mount."""
    for line in filter(None, kernel_text(Path("/proc/self/mountinfo")).split("\n")):
        before, _, after = line.partition(" - ")
        _, _, device, root, where, *_ = before.split(" ")
        if after.startswith(f"{kind} ") and root == "/":
            found = os.open(where, _FOLDER)
            status = os.fstat(found)
            if f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}" == device:
                return found
            os.close(found)  # something else is mounted over it
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
    words = [ctypes.c_long(each) if isinstance(each, int) else ctypes.c_char_p(each) for each in arguments]
    kernel = ctypes.CDLL(None, use_errno=True)
    kernel.syscall.restype = ctypes.c_long
    found = int(kernel.syscall(ctypes.c_long(number), *words))
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


PLACES: Sequence[LockPlace] = (
    LockPlace("debugfs", partial(_one_of_the_kernel, "debugfs"), whole=True),
    LockPlace("tracefs", partial(_one_of_the_kernel, "tracefs"), whole=True),
    LockPlace(str(_FILE), partial(_file, _FILE), whole=False),
)
"""All that can be had of the whole ones are taken, so that two roots who can have different ones have one in common
where they can; the file is for where there is none."""
