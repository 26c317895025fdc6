"""Processes of this host: what /proc/PID/stat says of them, whose they are, and how orphans are adopted and ended.

See prctl(2) and proc_pid_stat(5).
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_TO_DIE_S: Final = 5.0  # for killed processes, and for those that they had started meanwhile
_PAUSE_S: Final = 0.002
_STAT: Final = re.compile(
    r"([0-9]{1,10}) \((.*)\) (\S) ([0-9]{1,10})(?: -?[0-9]{1,10}){4}"  # up to tpgid
    r" ([0-9]{1,10})" + r" ([0-9]{1,19})" * 4 + r" (-?[0-9]{1,19})" * 4 + r"(?: -?[0-9]{1,10}){2}"  # up to nice
    r" ([0-9]{1,10}) [0-9]{1,19} ([0-9]{1,19}) [0-9]{1,20} (-?[0-9]{1,19})(?: .*)?",
    re.DOTALL | re.ASCII,
)
_FLAGS: Final = re.compile(r"^flags:\s+([0-7]+)$", re.MULTILINE)

TICK: Final = 1 / os.sysconf("SC_CLK_TCK")
"""The unit of times in /proc/stat and /proc/PID/stat, in seconds."""


class ProcessStat(NamedTuple):
    """Fields of /proc/PID/stat, by their names in proc_pid_stat(5). Times are in clock ticks, `rss` is in pages."""

    pid: int
    comm: str
    state: str
    ppid: int
    flags: int
    minflt: int
    cminflt: int
    majflt: int
    cmajflt: int
    utime: int
    stime: int
    cutime: int
    cstime: int
    num_threads: int
    starttime: int
    rss: int

    @property
    def has_ended(self) -> bool:
        return self.state in ("Z", "X", "x")


def tree(root: int) -> list[int]:
    """Return a process and all that descend from it; no other process is read. See proc_pid_task(5), `children`."""
    found = [root]
    for pid in found:  # the list grows meanwhile
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def lists_children() -> bool:
    """Return whether the kernel lists the children of a process (CONFIG_PROC_CHILDREN), as `tree` needs."""
    return Path("/proc/thread-self/children").exists()


def parse_stat(text: str) -> ProcessStat | None:
    """Parse the text of /proc/PID/stat; None for any other text. A name may hold blanks and parentheses."""
    match = _STAT.fullmatch(text.rstrip("\n"))
    if match is None:
        return None
    pid, comm, state, *numbers = match.groups()
    return ProcessStat(int(pid), comm, state, *map(int, numbers))


def stat(folder: Path) -> ProcessStat | None:
    """Read the `stat` file of a process or thread folder (/proc/PID, /proc/PID/task/TID); None when it is gone."""
    try:
        return parse_stat((folder / "stat").read_bytes().decode("utf-8", "replace"))
    except OSError:
        return None


def is_open_for_writing(folder: Path, descriptor: str) -> bool:
    """Tell whether a descriptor of a process is open for writing (proc_pid_fdinfo(5)). Raises OSError."""
    match = _FLAGS.search((folder / "fdinfo" / descriptor).read_text())
    return match is not None and int(match[1], 8) & os.O_ACCMODE != os.O_RDONLY


@contextmanager
def ended(uid: int) -> Iterator[None]:
    """Adopt processes that the user's programs leave, and end them when the outermost `with` ends."""
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
    """Count of programs and works under way in this process, and the state before the first of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.under_way = 0
        self.before: frozenset[int] = frozenset()
        self.was = 0


_gathered: Final = _Gathered()


def adopt() -> None:
    """Have orphans among the descendants become children of this process. Raises OSError."""
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
    """Return the children of all threads of this process; none where the kernel lacks CONFIG_PROC_CHILDREN."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found += map(int, (task / "children").read_text(encoding="ascii").split())
    return found


def user(pid: int) -> int | None:
    """Return the real user id of a process, which it cannot hide; None when it is gone."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith(b"Uid:")), None)
    return None
