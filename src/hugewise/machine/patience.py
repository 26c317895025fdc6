"""Reading what a process keeps from being read, for a limited time.

Files of /proc that show the memory of a process are made under a lock of that process's (mmap_lock). Who waits for it
waits as long as somebody has it: for ever, where that one hangs in a page fault on a file of a server that does not
answer. Nothing but SIGKILL ends that wait, not even Ctrl-C. So whatever is read of a process that is not known to be
well is read in a thread, which is given up when the time is over. The kernel takes such a thread along when this
process ends.

Sources: fs/proc/task_mmu.c of Linux (mmap_read_lock_killable); proc_pid_smaps(5).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Generic, TypeVar

from hugewise.model.host import Host

__all__ = ["PATIENCE_S", "Patience", "StuckError", "patient_text"]

PATIENCE_S = 60.0
"""Seconds for the memory map of one process: of 2 TiB in base pages smaps takes some 50."""

_AGAIN_S = 1.0
_PIECE = 1 << 20
_Value = TypeVar("_Value")


class StuckError(Exception):
    """It could not be read in time; the message says within how many seconds, and why that may be."""


class _Work(Generic[_Value]):
    """What a thread is to find out, and what it found."""

    def __init__(self, work: Callable[[], _Value]) -> None:
        self._work = work
        self.done = threading.Event()
        self.found: list[_Value] = []
        self.failed: BaseException | None = None

    def __call__(self) -> None:
        try:
            self.found.append(self._work())
        except BaseException as error:  # raised again by who waits
            self.failed = error
        self.done.set()


class Patience:
    """How long is waited for one process after the other: for one that is stuck `seconds`, for all later ones a second
    at most, so that many of them do not add up.
    """

    def __init__(self, seconds: float = PATIENCE_S) -> None:
        self.seconds = seconds

    def until(self) -> float:
        """When the time for a process that is begun now is over, by the monotonic clock."""
        return time.monotonic() + self.seconds

    def of(self, work: Callable[[], _Value], until: float | None = None) -> _Value:
        """What `work` gives, or raises. Raises StuckError where it has not ended by then (None: from now on)."""
        until = self.until() if until is None else until
        one = _Work(work)
        threading.Thread(target=one, daemon=True).start()
        if not one.done.wait(max(0.0, until - time.monotonic())):
            told = (
                f"it could not be read within {self.seconds:g} s: its map of memory is held (it hangs in the kernel, or"
                " who looks into it does: see /proc/PID/task/*/stack)"
            )
            self.seconds = min(self.seconds, _AGAIN_S)
            raise StuckError(told)
        if one.failed is not None:
            raise one.failed
        return one.found[0]

    def lines(self, path: Path) -> Iterator[bytes]:
        """The lines of a file of /proc, all of them within the time. Raises StuckError, OSError."""
        until = self.until()
        # Without a buffer of Python's: its lock would have whoever gives up wait for the thread, to close it.
        with self.of(lambda: path.open("rb", buffering=0), until) as file:
            rest = b""
            while piece := self.of(lambda: _piece(file), until):
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield line + b"\n"
            if rest:
                yield rest


def _piece(file: FileIO) -> bytes:
    """So many bytes, or what is left: the kernel gives a few thousand at a time."""
    found = bytearray()
    while len(found) < _PIECE and (more := file.read(_PIECE)):
        found += more
    return bytes(found)


def patient_text(host: Host, path: str, patience: Patience | None = None) -> str:
    """The text of a file of a process. Raises StuckError, OSError."""
    return (patience or Patience()).of(lambda: host.read(path))
