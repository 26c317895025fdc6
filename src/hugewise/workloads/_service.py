"""How a service is written: by what it is known to be up, and what stands in its commands for ports and folders. Pure.

tcp:PORT     one of its processes listens at that port
unix:PATH    the same at a unix socket (`@NAME`: one of no file)
line:REGEX   it has printed something that this matches
exec:CMD     this command succeeds; it is split as a shell does it, and no shell is involved. Where it names {port},
             nobody else may hold that port: who listens there answers for the service, or its success says nothing
(empty)      it listens: at {port} where its command has that, else anywhere
"""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Sequence

from hugewise.model.scene import Listens, Places, Says, Step
from hugewise.model.workload import MARKS
from hugewise.reading import shown

__all__ = ["READY", "asked_at", "filled_in", "ready", "split", "variables"]

READY = "tcp:PORT, unix:PATH, line:REGEX or exec:COMMAND"

_PORT, _FOLDER = MARKS
_ASKING_S = 10.0
_LAST_PORT = 65_535
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = "glibc.malloc.hugetlb="


def filled_in(words: Sequence[str], places: Places) -> tuple[str, ...]:
    """A command with the port and the folder of an attempt; no other braces mean anything."""
    port = str(places.ports[0]) if places.ports else _PORT
    return tuple(word.replace(_PORT, port).replace(_FOLDER, places.data) for word in words)


def ready(text: str, server: Sequence[str], places: Places) -> Step | Listens | Says:
    """What says that the server is up. Raises ValueError with how it is written."""
    kind, _, rest = text.partition(":")
    if not text:
        named = any(_PORT in word for word in server)
        return Listens(port=places.ports[0] if named and places.ports else None)
    (put,) = filled_in((rest,), places)
    match kind:
        case "tcp" if put.isascii() and put.isdigit() and 0 < int(put) <= _LAST_PORT:
            return Listens(port=int(put))
        case "unix" if put.startswith(("/", "@")):
            return Listens(path=put)
        case "line" if put:
            _check(rest)
            return Says(rest)
        case "exec" if put.strip():
            argv = filled_in(split(rest), places)
            return Step(name="ready", argv=argv, timeout=_ASKING_S, cwd=places.cwd)
    raise ValueError(f"{shown(text)}: write {READY}")


def asked_at(text: str, places: Places) -> int | None:
    """The port of the attempt's own at which the command of `exec:` asks; None where it names none."""
    kind, _, rest = text.partition(":")
    return places.ports[0] if kind == "exec" and _PORT in rest and places.ports else None


def _check(pattern: str) -> None:
    """Raises ValueError where it is no pattern."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            re.compile(pattern, re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"line:{shown(pattern)} is not a regular expression: {error}") from None


def split(command: str) -> tuple[str, ...]:
    """The words of a command, as a shell would split them; nothing else of a shell is done. Raises ValueError."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise ValueError(f"{shown(command)}: {str(error)[:1].lower()}{str(error)[1:]}") from None
    if not words or not words[0]:
        raise ValueError(f"{shown(command)} names no program")
    return words


def variables(given: Sequence[str]) -> dict[str, str]:
    """The variables NAME=VALUE. Raises ValueError where one is none, or is the treatment's."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or _NAME.fullmatch(name) is None:
            raise ValueError(f"{shown(text)} is not NAME=VALUE")
        if name == "GLIBC_TUNABLES" and _OURS in value:
            raise ValueError(f"{_OURS.rstrip('=')} belongs to the treatment: it cannot be given")
        found[name] = value
    return found
