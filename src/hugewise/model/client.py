"""The host of their own that clients run on, as a run is told of it and keeps it: nothing of it is secret."""

from __future__ import annotations

import msgspec

__all__ = ["ClientHost"]


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
