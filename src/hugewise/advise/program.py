"""Program that holds a workload's memory, and its allocator from its file, with whether a tunable reaches it.

Some servers take pages of a pool by an option of their own: PostgreSQL for its shared buffers, MariaDB for its buffer
pool. Such a server gets a candidate of its own beside those of malloc. The size of PostgreSQL's pool is the memory that
the pilot saw mapped; MariaDB is asked.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hugewise import reading
from hugewise.advise.pilot import ProgramAsIs
from hugewise.advise.question import Question, command_of, environment
from hugewise.deployment.runtimes import OwnOption, own_option
from hugewise.errors import UserError
from hugewise.host.local_host import account
from hugewise.inspection.allocator import Allocator, allocator, read_program
from hugewise.machine import programs
from hugewise.machine.loader import UntoldError, executed, gains, needed, unreached
from hugewise.model.pages import PageSizes, PageTarget
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Places, Staged
from hugewise.model.workload import Direct, ParameterValue, Workload
from hugewise.workloads import _mariadb
from hugewise.workloads._micro import whole_pages
from hugewise.workloads._own_pool import literals, server_kind, server_of, with_option

_MOST_FILE_BYTES = 64 << 20  # bytes of its file that are looked at


_JVM = ("lib/server/libjvm.so", "jre/lib/amd64/server/libjvm.so")
"""Places of the JVM beside the folder of its launcher `java` (JDK 9 and later; JDK 8)."""

_OLD = Allocator(name="glibc", tuned=False, why="its glibc is older than 2.35, which has the tunable")
_AS_IS = Treatment(policy="as-is", mechanism="process", target=PageTarget("any", 4096))
_PORTS = 1 << 10  # port numbers are written and never used: nothing is started


def program_of(workload: Workload, values: Mapping[str, ParameterValue]) -> tuple[str, ...]:
    """Return the words of the program whose pages a workload is about: its first server, or the timed command.

    Raises HugewiseError where the workload lacks something that it would be made of.
    """
    if isinstance(workload, Staged):
        ports = tuple(range(_PORTS, _PORTS + workload.ports))
        procedure = workload.procedure(
            _AS_IS, values, Places(data="/data", run="/run", ports=ports, sut=(0,), client=(0,))
        )
        servers = [server for server in procedure.servers if server.treated]
        return servers[0].argv if servers else procedure.timed.argv
    return workload.launch(_AS_IS, values).argv if isinstance(workload, Direct) else ()


def unlaid(asked: Question) -> str | None:
    """Return why the layout library does not reach the program, or None where it does."""
    command = command_of(asked)
    if asked.of_service:
        command = tuple(asked.workload.get("parameters", {}).get("server", ()))
    if not command:
        return "layouts are for commands, and for services by --server and --load"
    return unreached(command, _AS_IS)


def is_own(workload: Workload, values: Mapping[str, ParameterValue]) -> bool:
    """Return whether the workload is a micro-workload of the probe, which maps its memory as the policy says."""
    if isinstance(workload, Staged) or not isinstance(workload, Direct):
        return False
    return workload.launch(_AS_IS, values).micro


def allocator_of(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Allocator | None:
    """Return the allocator of what a command executes in the end, through scripts and wrappers; None where nobody can
    tell.

    `environment` is what the command is started with (None: what this process has): a library that it preloads comes
    before the program's own.
    """
    try:
        found = executed(command, os.environ if environment is None else environment)
        data = reading.content(Path(found.path), _MOST_FILE_BYTES, part="head")
        secure = _gains(found.path)
    except (OSError, UntoldError, reading.UnreadableError):
        return None
    preloaded = [] if secure else found.environment.get("LD_PRELOAD", "").replace(":", " ").split()
    names = [os.path.realpath(found.path), *(f"/lib/{name}" for name in needed(data))]
    names += [name if name.startswith("/") else f"/lib/{name}" for name in preloaded]
    names += [str(Path(names[0]).parent.parent / place) for place in _JVM if _launches_jvm(names[0], place)]
    file = read_program(io.BytesIO(data))
    seen = allocator(file, names, found.environment, secure=secure)
    return _OLD if seen.name == "glibc" and seen.tuned and _untunable(file.interpreter) else seen


def _launches_jvm(path: str, place: str) -> bool:
    # the launcher opens its JVM by itself: the loader does not see it among the libraries that the file needs
    return Path(path).name == "java" and (Path(path).parent.parent / place).is_file()


def _untunable(interpreter: str | None) -> bool:
    """Return whether the loader of a program of glibc lacks the tunable: the list of tunables is the loader's."""
    try:
        data = reading.content(Path(interpreter or "/nowhere"), _MOST_FILE_BYTES, part="head")
    except (OSError, reading.UnreadableError):
        return False
    return "tunable" not in read_program(io.BytesIO(data)).holds


def _gains(path: str) -> bool:
    """Return whether the program gains privileges by its file: then its loader ignores its caller.

    A program that hugewise starts under another account cannot gain any (PR_SET_NO_NEW_PRIVS).
    """
    privileged = os.geteuid() == 0
    if privileged and account(None, "caller", privileged=True) is not None:
        return False
    return gains(path, (os.getuid(), os.getgid())) is not None


def thp_option(allocator: str, asked: Question, words: Sequence[str]) -> Mapping[str, Any] | str | None:
    """Return how the program is told to ask for transparent huge pages, as a candidate has it; why it cannot be told;
    None where no such option is known. `words`: of the command, or of the server.
    """
    known = environment(asked)
    found = own_option(allocator, words, os.environ if known is None else known, server=asked.of_service)
    if not isinstance(found, OwnOption):
        return found
    more = {"parameters": {"server": [*words, *found.words]}} if found.words else {}
    return {"environment": dict(found.environment), **more}


_SPARE = 1  # pages: with them on, PostgreSQL counts one more than it fills


def own_options(found: ProgramAsIs, asked: Question, sizes: PageSizes) -> Mapping[int, Mapping[str, Any] | str]:
    """Return, by size of a pool's pages, the parameters of the arm whose server takes them, or why it cannot; empty
    where its server is not known to have such an option.
    """
    words = tuple(map(str, asked.workload.get("parameters", {}).get("server", ()))) if asked.of_service else ()
    if server_of(words) is None:
        return {}
    return {size: _parameters(words, found, asked, size) for size in sizes.hugetlb}


def _parameters(words: tuple[str, ...], found: ProgramAsIs, asked: Question, size: int) -> Mapping[str, Any] | str:
    if any(name.startswith("hugetlb:") and had for name, had in found.coverage.items()):
        return "it takes pages of a pool already"
    put = with_option(words, size)
    if isinstance(put, str):
        return put
    try:
        bytes_ = asked.pool or _needed(words, found, size)
    except UserError as error:
        return error.message
    if not bytes_:
        return "how much memory it shares was not seen: name it with --pool"
    if bytes_ < size:
        return "it has less of such memory than one page of that size"
    whole = whole_pages(bytes_, size) + _SPARE * size
    return {"server": list(put), "own_pool": True, "pool_bytes": whole}


def _needed(words: tuple[str, ...], found: ProgramAsIs, size: int) -> int:
    if server_of(words) == "postgresql":
        return found.shared_bytes or 0
    named = server_kind(words)
    program = named if "/" in named else programs.which(named)
    return 0 if program is None else _mariadb.mapped(program, literals(words, _mariadb.SIZED), size)
