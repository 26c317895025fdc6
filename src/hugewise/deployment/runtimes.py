"""Options of runtimes, allocators and servers for transparent huge pages of their own memory: the table of candidates
`own-thp`. Pure.

Sources: the java command, "Advanced Runtime Options" (UseTransparentHugePages; JAVA_TOOL_OPTIONS, JVM TI
specification); jemalloc(3), opt.thp, and its INSTALL, --with-jemalloc-prefix; mimalloc's options (large_os_pages, since
2.1 allow_large_os_pages); redis.conf, disable-thp; memcached(1), -L. Go's runtime, V8 and gperftools' tcmalloc have no
option that gives a heap such pages; V8's --use-largepages moves the program's code alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

from hugewise.deployment import configuration
from hugewise.model.policy import DeployedFile


class OwnOption(NamedTuple):
    """How a program itself is told to ask for transparent huge pages.

    environment  variables that tell its allocator or runtime
    words        options that its command gets
    decided      texts by which a command or a variable decides the same already
    file         configuration that has the words
    """

    environment: Mapping[str, str] = {}
    words: tuple[str, ...] = ()
    decided: tuple[str, ...] = ()
    file: DeployedFile | None = None


ALLOCATORS: Mapping[str, OwnOption] = {
    "the JVM": OwnOption(
        {"JAVA_TOOL_OPTIONS": "-XX:+UseTransparentHugePages"}, decided=("UseTransparentHugePages", "UseLargePages")
    ),
    "jemalloc": OwnOption({"MALLOC_CONF": "thp:always"}),
    "jemalloc of redis": OwnOption({"JE_MALLOC_CONF": "thp:always"}),
    "jemalloc of Rust": OwnOption({"_RJEM_MALLOC_CONF": "thp:always"}),
    "mimalloc": OwnOption({"MIMALLOC_ALLOW_LARGE_OS_PAGES": "1", "MIMALLOC_LARGE_OS_PAGES": "1"}),
}
"""By the name of an allocator (`inspection.allocator`)."""

VARIABLES: Mapping[str, str] = {
    name: value for option in ALLOCATORS.values() for name, value in option.environment.items()
}
"""Variables of the table. Other values of some do more than choose pages, such as to load an agent into the JVM."""

_REDIS = OwnOption(words=("--disable-thp", "no"), decided=("disable-thp",), file=configuration.redis(disable_thp=False))
SERVERS: Mapping[str, OwnOption] = {
    "redis-server": _REDIS,
    "valkey-server": _REDIS,
    "memcached": OwnOption(words=("-L",), decided=("-L", "--enable-largepages"), file=configuration.memcached()),
}
"""By the name of a server's program."""

TURN_OFF = ("redis-server", "valkey-server")
"""Servers that turn transparent huge pages off for themselves where the machine is set to `always`, unless their option
says otherwise.
"""


def server_named(words: Sequence[str]) -> str:
    """Return the name of the server of the table that a command starts by itself; empty where it is none."""
    name = PurePath(words[0]).name if words else ""
    return name if name in SERVERS else ""


def turns_off(words: Sequence[str]) -> bool:
    """Return whether the server that a command starts turns transparent huge pages off for itself."""
    return server_named(words) in TURN_OFF and ("--disable-thp", "no") not in pairwise(words)


def own_option(
    allocator: str, words: Sequence[str], environment: Mapping[str, str], *, server: bool
) -> OwnOption | str | None:
    """Return the option by which such a program has transparent huge pages; why not; None where none is known."""
    of_memory = ALLOCATORS.get(allocator)
    of_server = SERVERS.get(server_named(words)) if server else None
    parts = [one for one in (of_memory, of_server) if one is not None]
    if not parts:
        return None
    given = [*words, *environment.values()]
    for text in (text for one in parts for text in one.decided):
        if text in words if text.startswith("-") else any(text in word for word in given):
            return f"its command or environment says {text} itself"
    variables = {name: value for one in parts for name, value in one.environment.items()}
    if present := next((name for name in variables if environment.get(name)), None):
        return f"{present} is set already: add {variables[present]} to it by hand"
    return OwnOption(variables, tuple(word for one in parts for word in one.words))


def files_of(words: Sequence[str]) -> tuple[DeployedFile, ...]:
    """Return the configuration with the option that ends a server's words; these only choose a file of the table."""
    ending = (one.file for one in SERVERS.values() if one.file and tuple(words[-len(one.words) :]) == one.words)
    return tuple(ending)[:1]
