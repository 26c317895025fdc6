"""Processes of this host: whose they are, and what becomes of those whose parents have ended.

See prctl(2) and proc(5).
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_TO_DIE_S: Final = 5.0  # for what was killed, and for what that had started meanwhile
_PAUSE_S: Final = 0.002


@contextmanager
def ended(uid: int) -> Iterator[None]:
    """What processes of that user leave running meanwhile comes to this process, and is ended at the end of the last
    `with` that is under way. What was a child of this process before the first is left alone.
    """
    with _gathered.lock:
        if _gathered.under_way == 0:
            was = ctypes.c_int()
            _LIBC.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(was), 0, 0, 0)
            _gathered.before, _gathered.was = frozenset(_children()), was.value
            with suppress(OSError):
                adopt()
        _gathered.under_way += 1
    try:
        yield
    finally:
        with _gathered.lock:
            _gathered.under_way -= 1
            if _gathered.under_way == 0:
                end(lambda pid: pid not in _gathered.before and user(pid) == uid)
                _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, _gathered.was, 0, 0, 0)


@contextmanager
def spawning() -> Iterator[None]:
    """Interpreters that multiprocessing starts meanwhile do not look for modules in the working directory, where a file
    may be anybody's: a shipped run may hold one that is called `multiprocessing.py`. See python(1), PYTHONSAFEPATH.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


class _Gathered:
    """How many programs and works are under way in this process, and how it was before the first of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.under_way = 0
        self.before: frozenset[int] = frozenset()
        self.was = 0


_gathered: Final = _Gathered()


def adopt() -> None:
    """Have orphans among the descendants of this process become its children, however they daemonise.

    Raises OSError.
    """
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have this process get that signal when its parent ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def end(ours: Callable[[int], bool]) -> None:
    """End the children that are `ours`, and theirs, which then become children of this process, while time is left."""
    until = time.monotonic() + _TO_DIE_S
    while (found := [pid for pid in _children() if ours(pid)]) and time.monotonic() < until:
        for pid in found:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_PAUSE_S)


def _children() -> list[int]:
    """Of all threads of this process; none where the kernel does not say (CONFIG_PROC_CHILDREN)."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found += map(int, (task / "children").read_text(encoding="ascii").split())
    return found


def user(pid: int) -> int | None:
    """The real user id of a process, which it cannot hide; None when it is gone."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith(b"Uid:")), None)
    return None
