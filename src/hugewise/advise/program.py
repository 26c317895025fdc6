"""Which program a workload's memory is, and what its file says: its allocator, and whether a tunable reaches it."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hugewise import reading
from hugewise.host.account import account
from hugewise.inspection.allocator import Allocator, allocator, read_program
from hugewise.machine.elf import needed
from hugewise.machine.loader import UntoldError, executed, gains
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment
from hugewise.model.scene import Places, Staged
from hugewise.model.workload import Direct, ParameterValue, Workload

__all__ = ["allocator_of", "is_own", "program_of"]

_MOST = 64 << 20  # bytes of its file that are looked at


_OLD = Allocator(name="glibc", tuned=False, why="its glibc is older than 2.35, which has the tunable")
_AS_IS = Treatment(policy="as-is", mechanism="process", target=PageTarget("any", 4096))
_PORTS = 1 << 10  # of numbers that are written and not used: nothing is started


def program_of(workload: Workload, values: Mapping[str, ParameterValue]) -> tuple[str, ...]:
    """The words of the program whose pages a workload is about: its first server, or the timed command.

    Raises HugewiseError where the workload lacks something that it would be made of.
    """
    if isinstance(workload, Staged):
        ports = tuple(range(_PORTS, _PORTS + workload.ports))
        scene = workload.scene(_AS_IS, values, Places(data="/data", run="/run", ports=ports, sut=(0,), client=(0,)))
        servers = [server for server in scene.servers if server.treated]
        return servers[0].argv if servers else scene.timed.argv
    return workload.launch(_AS_IS, values).argv if isinstance(workload, Direct) else ()


def is_own(workload: Workload, values: Mapping[str, ParameterValue]) -> bool:
    """Whether it is a micro-workload of the probe, which maps its memory as the policy says."""
    if isinstance(workload, Staged) or not isinstance(workload, Direct):
        return False
    return workload.launch(_AS_IS, values).micro


def allocator_of(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Allocator | None:
    """The allocator of what a command executes in the end, through scripts and wrappers; None where nobody can tell.

    `environment` is what the command is started with (None: what this process has): a library that it preloads comes
    before the program's own.
    """
    try:
        found = executed(command, os.environ if environment is None else environment)
        data = reading.content(Path(found.path), _MOST, part="head")
        secure = _gains(found.path)
    except (OSError, UntoldError, reading.UnreadableError):
        return None
    preloaded = [] if secure else found.environment.get("LD_PRELOAD", "").replace(":", " ").split()
    names = [os.path.realpath(found.path), *(f"/lib/{name}" for name in needed(data))]
    names += [name if name.startswith("/") else f"/lib/{name}" for name in preloaded]
    file = read_program(io.BytesIO(data))
    seen = allocator(file, names, found.environment, secure=secure)
    return _OLD if seen.name == "glibc" and seen.tuned and _untunable(file.interpreter) else seen


def _untunable(interpreter: str | None) -> bool:
    """Whether the loader of a program of glibc lacks the tunable: the list of tunables is the loader's."""
    try:
        data = reading.content(Path(interpreter or "/nowhere"), _MOST, part="head")
    except (OSError, reading.UnreadableError):
        return False
    return "tunable" not in read_program(io.BytesIO(data)).holds


def _gains(path: str) -> bool:
    """Whether it gets rights by its file: then its loader does not listen to its caller.

    Whoever is made another account by this program cannot gain any (PR_SET_NO_NEW_PRIVS).
    """
    privileged = os.geteuid() == 0
    if privileged and account(None, "caller", privileged=True) is not None:
        return False
    return gains(path, (os.getuid(), os.getgid())) is not None
