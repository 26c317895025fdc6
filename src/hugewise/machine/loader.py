"""By what a program is started: whether the dynamic loader of glibc loads a library into it that LD_PRELOAD names.

It reads files, and starts nothing. The launcher (`probe/exec`) asks the same of what it is about to start; here it is
known while a run is planned.

Sources: elf(5); ld.so(8) on secure-execution mode; fs/binfmt_script.c of the Linux kernel.
"""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from typing import BinaryIO, Literal

from hugewise import reading
from hugewise.machine import programs
from hugewise.machine.elf import MAGIC

__all__ = ["Started", "started", "unpreloaded"]

Started = Literal["glibc", "musl", "other loader", "static", "go", "foreign", "script", "unknown"]

_MACHINES = {"x86_64": 62, "aarch64": 183}
_GLIBC = {"x86_64": b"ld-linux-x86-64.so.2", "aarch64": b"ld-linux-aarch64.so.1"}
_INTERP, _NOTE = 3, 4
_ENTRY = 56  # bytes of a program header, in ELF-64
_MOST_SEGMENTS = 256
_MOST_LINE = 255  # of a script, that the kernel looks at
_DEEPEST = 5  # interpreters of interpreters, that the kernel follows

_WHY: dict[Started, str] = {
    "musl": "it uses musl, which has not glibc's heap",
    "other loader": "its loader is not glibc's",
    "static": "it is statically linked: no library can be loaded into it",
    "go": "it is written in Go, whose memory does not come from malloc",
    "foreign": "it is of another architecture (or of 32 bits)",
    "unknown": "it is neither a program for this machine nor a script",
}


def unpreloaded(program: str) -> str | None:
    """Why a preloaded library would not reach the program of this path, in words that name the file; None if it would.

    A script is what its interpreter is. What cannot be read is not reached, as far as anybody can tell.
    """
    return _unpreloaded(program, 0)


def _unpreloaded(program: str, depth: int) -> str | None:
    if depth == _DEEPEST:
        return f"{program}: too many interpreters of interpreters"
    try:
        path = Path(program).resolve(strict=True)
        with reading.opened(path) as file:
            kind, line = started(file), _first_line(file)
            if kind == "script":
                return _by_interpreter(program, line, depth)
            if kind != "glibc":
                return f"{program}: {_WHY[kind]}"
            mode = os.fstat(file.fileno()).st_mode
            if mode & stat.S_ISUID or (mode & stat.S_ISGID and mode & stat.S_IXGRP):
                return f"{program}: it is setuid or setgid, and so its loader loads no library that its caller names"
            if "security.capability" in os.listxattr(file.fileno()):
                return f"{program}: its file has capabilities, and so its loader loads no library that its caller names"
    except (OSError, RuntimeError, reading.UnreadableError) as error:
        return f"{program}: it cannot be read ({error})"
    return None


def started(file: BinaryIO, machine: str | None = None) -> Started:
    """What the file is, for a `machine` as uname says it (None: as programs are looked for). Raises OSError."""
    machine = machine or programs.machine()
    head = _at(file, 0, 64)
    if head.startswith(b"#!"):
        return "script"
    if len(head) < 64 or not head.startswith(MAGIC):
        return "unknown"
    kind, architecture = struct.unpack_from("<HH", head, 16)
    if head[4:6] != b"\x02\x01" or architecture != _MACHINES.get(machine):
        return "foreign"
    table, size, count = *struct.unpack_from("<Q", head, 32), *struct.unpack_from("<HH", head, 54)
    if kind not in (2, 3) or size != _ENTRY or not 0 < count <= _MOST_SEGMENTS:
        return "unknown"
    found: Started = "static"
    headers = _at(file, table, count * _ENTRY)
    for at in range(0, len(headers) - _ENTRY + 1, _ENTRY):
        (segment,) = struct.unpack_from("<I", headers, at)
        (offset,), (length,) = struct.unpack_from("<Q", headers, at + 8), struct.unpack_from("<Q", headers, at + 32)
        if segment == _INTERP:
            name = _at(file, offset, min(length, 256)).split(b"\0")[0].rpartition(b"/")[2]
            glibc = name == _GLIBC.get(machine)
            found = "glibc" if glibc else "musl" if name.startswith(b"ld-musl") else "other loader"
        elif segment == _NOTE and _at(file, offset, 16)[12:] == b"Go\0\0":
            return "go"
    return found


def _at(file: BinaryIO, offset: int, length: int) -> bytes:
    """So many bytes, fewer at the end of the file; none at a place that no file has."""
    try:
        file.seek(offset)
    except (OSError, OverflowError, ValueError):
        return b""
    return file.read(length)


def _first_line(file: BinaryIO) -> bytes:
    return _at(file, 0, _MOST_LINE).split(b"\n")[0]


def _by_interpreter(program: str, line: bytes, depth: int) -> str | None:
    words = line[2:].split()
    if not words:
        return f"{program}: it names no interpreter"
    interpreter = os.fsdecode(words[0])
    refusal = _unpreloaded(interpreter, depth + 1)
    if refusal is not None or Path(interpreter).name != "env":
        return None if refusal is None else f"{program}: {refusal}"
    # What env starts, where its options are plain.
    named = [word for word in words[1:] if word not in (b"-S", b"--")][:1]
    if not named or named[0].startswith(b"-") or b"=" in named[0]:
        return None
    real = programs.which(os.fsdecode(named[0]))
    refusal = f"{os.fsdecode(named[0])}: no such program on PATH" if real is None else _unpreloaded(real, depth + 1)
    return None if refusal is None else f"{program}: {refusal}"
