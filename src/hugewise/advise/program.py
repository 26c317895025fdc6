"""What a command's program is, as far as its file says: whose allocator it has, and whether a tunable reaches it."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

from hugewise import reading
from hugewise.inspection.allocator import Allocator, allocator, read_program
from hugewise.machine import programs
from hugewise.machine.elf import needed

__all__ = ["allocator_of"]

_MOST = 64 << 20  # bytes of its file that are looked at
_MOST_LINE = 256


def allocator_of(program: str) -> Allocator | None:
    """The allocator of a program on PATH, of a script that of its interpreter; None where nothing can be read."""
    path = _found(program)
    try:
        data = b"" if path is None else reading.content(path, _MOST, part="head")
        if data.startswith(b"#!"):
            path = _interpreter(data[2:_MOST_LINE].partition(b"\n")[0].split())
            data = b"" if path is None else reading.content(path, _MOST, part="head")
        if path is None:
            return None
        known = path.stat()
    except (OSError, reading.UnreadableError):
        return None
    secure = bool(known.st_mode & stat.S_ISUID and known.st_uid != os.geteuid())
    names = [str(path), *(f"/lib/{name}" for name in needed(data))]
    return allocator(read_program(io.BytesIO(data)), names, {}, secure=secure)


def _found(program: str) -> Path | None:
    found = programs.which(program)
    try:
        return None if found is None else Path(found).resolve()
    except (OSError, RuntimeError):  # a circle of links
        return None


def _interpreter(words: list[bytes]) -> Path | None:
    if words and words[0].endswith(b"/env"):
        words = words[1:]
    return _found(os.fsdecode(words[0])) if words else None
