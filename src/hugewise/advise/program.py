"""Program that holds a workload's memory, and its own option for pages of a pool or transparent huge pages."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from hugewise.advise.pilot import ProgramAsIs
from hugewise.advise.question import Question, command_of, environment
from hugewise.deployment.runtimes import OwnOption, own_option
from hugewise.errors import UserError
from hugewise.machine import programs
from hugewise.machine.loader import unreached
from hugewise.model.pages import PageSizes, PageTarget
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Places, Staged
from hugewise.model.workload import Direct, ParameterValue, Workload
from hugewise.workloads import _mariadb
from hugewise.workloads._micro import whole_pages
from hugewise.workloads._own_pool import literals, server_kind, server_of, with_option

_AS_IS = Treatment(policy="as-is", mechanism="process", target=PageTarget("any", 4096))
_PORTS = 1 << 10  # port numbers are written and never used: nothing is started


def program_of(workload: Workload, values: Mapping[str, ParameterValue]) -> tuple[str, ...]:
    """Return the words of a workload's program: its first server, or the timed command. Raises HugewiseError."""
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


def thp_option(allocator: str, asked: Question, words: Sequence[str]) -> Mapping[str, Any] | str | None:
    """Return the candidate's option for transparent huge pages, why there is none, or None where none is known."""
    known = environment(asked)
    found = own_option(allocator, words, os.environ if known is None else known, server=asked.of_service)
    if not isinstance(found, OwnOption):
        return found
    more = {"parameters": {"server": [*words, *found.words]}} if found.words else {}
    return {"environment": dict(found.environment), **more}


_SPARE = 1  # pages: with them on, PostgreSQL counts one more than it fills


def own_options(found: ProgramAsIs, asked: Question, sizes: PageSizes) -> Mapping[int, Mapping[str, Any] | str]:
    """Return, by size of a pool's pages, the parameters of the arm whose server takes them, or why it cannot."""
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
