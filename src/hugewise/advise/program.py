"""Which program a workload's memory is, and what its file says: its allocator, and whether a tunable reaches it."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from hugewise import reading
from hugewise.inspection.allocator import Allocator, allocator, read_program
from hugewise.machine import programs
from hugewise.machine.elf import needed
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment
from hugewise.model.scene import Places, Staged
from hugewise.model.workload import Direct, ParameterValue, Workload

__all__ = ["allocator_of", "is_own", "program_of"]

_MOST = 64 << 20  # bytes of its file that are looked at
_MOST_LINE = 256


_AS_IS = Treatment(policy="as-is", mechanism="process", target=PageTarget("any", 4096))
_PORTS = 1 << 10  # numbers that name no port that is used: nothing is started


def program_of(workload: Workload, values: Mapping[str, ParameterValue]) -> str | None:
    """The program whose pages a workload is about: its first server, or the timed command; None of what has none.

    Raises HugewiseError where the workload lacks something that it would be made of.
    """
    if isinstance(workload, Staged):
        ports = tuple(range(_PORTS, _PORTS + workload.ports))
        scene = workload.scene(_AS_IS, values, Places(data="/data", run="/run", ports=ports, sut=(0,), client=(0,)))
        servers = [server for server in scene.servers if server.treated]
        return servers[0].argv[0] if servers else scene.timed.argv[0]
    return workload.launch(_AS_IS, values).argv[0] if isinstance(workload, Direct) else None


def is_own(workload: Workload, values: Mapping[str, ParameterValue]) -> bool:
    """Whether it is a micro-workload of the probe, which maps its memory as the policy says."""
    if isinstance(workload, Staged) or not isinstance(workload, Direct):
        return False
    return workload.launch(_AS_IS, values).micro


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
