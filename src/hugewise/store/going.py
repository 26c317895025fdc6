"""Whether a run goes on: its process holds a lock on the run's log, which the kernel gives back when that process ends,
however it ends. It keeps nobody out (`host.lock` does that), and whoever can read the log can ask.

A lock of the open file description, fcntl_locking(2): those of a process would be lost with any other descriptor of the
log that the process closes.
"""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path

from hugewise import reading

__all__ = ["going_on", "hold"]

_FLOCK = struct.Struct("hhxxxxqqixxxx")  # struct flock of 64 bits: type, whence, start, length (0: all), pid


def hold(descriptor: int) -> None:
    """Say it for as long as the descriptor is open; a file system without locks says nothing. Raises nothing."""
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))


def going_on(folder: Path) -> bool:
    """Whether somebody holds the log of the run in the folder. False too where nobody can tell. Raises nothing."""
    with suppress(OSError, reading.UnreadableError), reading.opened(folder / "run.jsonl") as file:
        asked = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_ = _FLOCK.unpack(fcntl.fcntl(file.fileno(), fcntl.F_OFD_GETLK, asked))
        return bool(kind == fcntl.F_WRLCK)
    return False
