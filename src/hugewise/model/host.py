"""Machine as everything above sees it: files by absolute path, two clocks (the wall's, and one for durations), and
findings.

Policies, settings, coverage and the runner touch a machine only through `Host`, in whose place tests put a dictionary,
and a guest answers through its agent.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import msgspec

_NUMBER = re.compile(r"[0-9]{1,18}")


class Host(Protocol):
    """Machine, as far as policies, settings and the runner need it."""

    name: str

    def privileged(self) -> bool:
        """Return whether system-wide knobs can be turned (effective uid 0)."""
        ...

    def read(self, path: str) -> str:
        """Return the file's text, stripped. Raises FileNotFoundError when absent, OSError when it cannot be read."""
        ...

    def write(self, path: str, text: str) -> None:
        """Write `text` in one call, as sysfs wants it. Raises OSError."""
        ...

    def writable(self, path: str) -> bool:
        """Return whether the file's mode lets the owner write (root passes any mode, but not a read-only file)."""
        ...

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder; empty when there is none."""
        ...


def text_of(host: Host, path: str) -> str | None:
    """Return the file's text; None where it cannot be read."""
    try:
        return host.read(path)
    except OSError:
        return None


def number_in(text: str | None) -> int | None:
    """Return the number that a file's text is; None for every other text. Limits of control groups have none where
    nothing is limited: `max`, or a number of 19 digits.
    """
    match = None if text is None else _NUMBER.fullmatch(text.strip())
    return None if match is None else int(match[0])


def number_of(host: Host, path: str) -> int | None:
    """Return the number in the file; None where there is none."""
    return number_in(text_of(host, path))


EpochSeconds = Annotated[float, msgspec.Meta(ge=0, lt=253402300800)]
"""UTC epoch seconds before the year 10000: what a folder of somebody else says must be a date too."""


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Clock:
    """Both in seconds.

    wall   since the epoch, UTC. Anybody may set it, forwards and back: it is for display alone
    up     since boot, which nobody can set. CLOCK_BOOTTIME, not CLOCK_MONOTONIC: that one stands still while a machine
           is suspended, and a block that was broken off by a night's sleep would look like one that went on
    """

    wall: Callable[[], float] = time.time
    up: Callable[[], float] = _since_boot


CLOCK = Clock()
"""Clocks of this machine."""

State = Literal["ok", "limited", "missing"]


class Check(msgspec.Struct, frozen=True):
    """Finding. `cure` is a command, or what else to do; None when nothing is missing or nothing helps.

    `packages` are the Debian packages that a study lacks here by this finding.
    """

    section: str
    name: str
    state: State
    finding: str
    cure: str | None = None
    packages: tuple[str, ...] = ()


class ClientHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host for clients.

    name     what it is called
    ssh      words for ssh(1) that reach it: options of the user's, and the target last
    address  at which it is on the network that is measured over; servers see clients come from there
    cpus     that clients have there; none: all
    folder   in which hugewise has a folder of its own there while it runs
    """

    name: str
    ssh: tuple[str, ...]
    address: str
    cpus: tuple[int, ...] = ()
    folder: str = "/tmp"  # noqa: S108  (a new folder of mode 0700 in it)
