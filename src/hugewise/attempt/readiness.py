"""Whether a server answers where nobody asks it, and what is said of one that has ended: in words, with the cure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hugewise.attempt import believed, outcome
from hugewise.host.listening import ListeningSocket, listening
from hugewise.machine import probe
from hugewise.model.scene import Listens, Says
from hugewise.reading import UnreadableError, patiently

__all__ = ["how_ended", "left_behind", "taken", "unready"]

_NUMBER = re.compile(r"[0-9]+")
_FOREGROUND = (
    "it went into the background, where nothing of it can be measured: have it stay in the foreground, such as by"
    " `--daemonize no`, `-g 'daemon off;'` or without `-d`"
)


def unready(waited: Listens | Says, processes: Sequence[int], said: tuple[Path, Path]) -> str | None:
    """Why the server is not ready, or None when it is.

    processes  those of the server
    said       the files of its stdout and stderr
    """
    return _unheard(waited, processes) if isinstance(waited, Listens) else _unsaid(waited, said)


def _unheard(waited: Listens, processes: Sequence[int]) -> str | None:
    own, others = listening(processes)
    if waited.port is None and waited.path is None:
        return None if own else "it listens at no TCP port and no unix socket"
    if any(_is(waited, one) for one in own):
        return None
    what = f"TCP port {waited.port}" if waited.path is None else f"the socket {waited.path}"
    at = f", but at {', '.join(map(str, own[:4]))}" if own else ""
    taken = any(_is(waited, one) for one in others)
    whose = ": another program listens there already (see: ss -ltnxp); let it choose {port}" if taken else ""
    return f"it does not listen at {what}{at}{whose}"


def taken(port: int, processes: Sequence[int]) -> str | None:
    """Why whoever was asked at `port` is not the server with these `processes`: another one holds it, or a unix socket
    that has its number in its name, and they do not. None where they do, or nobody does (a port of UDP).
    """
    own, others = listening(processes)
    if any(_has(port, one) for one in own):
        return None
    found = next((one for one in others if _has(port, one)), None)
    if found is None:
        return None
    whose = "no process of the service, or one that cannot be looked into, but another one"
    return f"at {found} listens {whose} (see: ss -ltnxp): it was that which answered"


def _has(port: int, one: ListeningSocket) -> bool:
    if one.path is None:
        return one.port == port
    return str(port) in _NUMBER.findall(one.path)


def _is(waited: Listens, found: ListeningSocket) -> bool:
    if waited.path is None:
        return found.port == waited.port
    # A name that was bound from within a folder is shown without it.
    return found.path is not None and (
        found.path == waited.path or (not found.path.startswith(("/", "@")) and Path(waited.path).name == found.path)
    )


def _unsaid(waited: Says, files: tuple[Path, Path]) -> str | None:
    for file in files:
        try:
            text = believed.said(file)
            with patiently(f"line:{waited.pattern}"):
                if re.search(waited.pattern, text, re.MULTILINE) is not None:
                    return None
        except UnreadableError as error:
            return error.reason
    return f"it has not printed what matches {waited.pattern!r} (a program may hold back what it prints: flush it)"


def how_ended(events: Sequence[probe.Event]) -> str:
    """How a server ended that should go on, in brackets; empty where nobody knows."""
    ended = outcome.last(events, probe.Exit)
    if ended is None:
        return ""
    if ended.exceeded is not None:
        return f" ({ended.exceeded})"
    if ended.timed_out:
        return " (its time was over)"
    if ended.signal:
        return f" (signal {ended.signal})"
    left = left_behind(events)
    if ended.code == 0 and left:
        return f" (exit status 0, and it left {left}: {_FOREGROUND})"
    return f" (exit status {ended.code})"


def left_behind(events: Sequence[probe.Event]) -> str:
    """The processes that a server left when it ended, in words; empty where there were none."""
    ended = outcome.last(events, probe.Exit)
    count = 0 if ended is None else ended.killed
    return "" if not count else "a process" if count == 1 else f"{count} processes"
