"""Whether a program may notice that it was frozen, by what it has open.

A program that only computes cannot tell. One that talks to somebody, or has an alarm set, may: its partner waits or
gives up, a timer goes off that would not have. It is asked of living processes, as no program says it beforehand.
What cannot be seen from outside is not found: setitimer(2) and alarm(2), and whoever reads the clock.

Source: proc(5), proc_pid_fd(5), proc_pid_timers(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hugewise.visible import printable

__all__ = ["intolerant"]

_SOCKET = re.compile(r"socket:\[\d+\]")
_TERMINAL = re.compile(r"/dev/(?:pts/\d+|tty\w*|console)(?: \(deleted\))?")
_TIMER = "anon_inode:[timerfd]"


def intolerant(pids: Iterable[int], proc: Path = Path("/proc")) -> str | None:
    """Why one of these processes of this host may notice that it was frozen, in words; None where nothing is found.

    A process that has ended is passed over; of one that cannot be looked at, that is the reason.
    """
    return next(
        (f"process {pid} ({_name(proc / str(pid))}) {why}" for pid in pids if (why := _why(proc / str(pid)))), None
    )


def _why(process: Path) -> str | None:
    try:
        for link in sorted((process / "fd").iterdir(), key=lambda path: int(path.name)):
            if why := _noticed(link):
                return why
        if (process / "timers").read_bytes():
            return "has a timer of its own (timer_create): it runs on while the process stands still"
    except (FileNotFoundError, ProcessLookupError):
        return None  # it has ended, or the kernel has no such file (CONFIG_CHECKPOINT_RESTORE)
    except OSError as error:
        if _has_ended(process):
            return None
        return f"cannot be looked at: {error.strerror}"
    return None


def _noticed(link: Path) -> str | None:
    """What is to be said of an open file."""
    try:
        target = str(link.readlink())
    except FileNotFoundError:
        return None  # closed since
    if _SOCKET.fullmatch(target):
        return "has a socket: who is at its other end may not wait"
    if _TERMINAL.fullmatch(target):
        return f"has a terminal ({target}): who is there goes on"
    if target == _TIMER:
        return "has a timer of its own (timerfd): it runs on while the process stands still"
    return None


def _has_ended(process: Path) -> bool:
    """Whether it is gone, or a zombie, which nobody may look at."""
    try:
        return (process / "stat").read_bytes().rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"])
    except OSError:
        return True


def _name(process: Path) -> str:
    try:
        return printable((process / "comm").read_text(encoding="utf-8", errors="replace").rstrip("\n"))
    except OSError:
        return "gone"
