"""What a server that takes pages of a pool by an option of its own would be given: its words, and how large a pool.

A candidate of its own beside those of malloc: PostgreSQL's shared buffers and MariaDB's buffer pool are mapped by the
servers themselves. How much PostgreSQL needs is what the pilot saw mapped; MariaDB is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hugewise.advise.pilot import ProgramAsIs
from hugewise.advise.question import Question
from hugewise.errors import UserError
from hugewise.machine import programs
from hugewise.model.pages import PageSizes
from hugewise.workloads import _mariadb
from hugewise.workloads._micro import whole_pages
from hugewise.workloads._own_pool import literals, program_of, server_of, with_option

__all__ = ["own_options"]

_SPARE = 1  # pages: with them on, PostgreSQL counts one more than it fills


def own_options(found: ProgramAsIs, asked: Question, sizes: PageSizes) -> Mapping[int, Mapping[str, Any] | str]:
    """By size of a pool's pages, the parameters of the arm whose server takes them, or why it cannot; empty where its
    server is not known to have such an option.
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
    """Bytes that it maps in such pages; 0 where that is not known. Raises UserError."""
    if server_of(words) == "postgresql":
        return found.shared_bytes or 0
    named = program_of(words)
    program = named if "/" in named else programs.which(named)
    return 0 if program is None else _mariadb.mapped(program, literals(words, _mariadb.SIZED), size)
