"""Putting back what a killed run left turned, for the next run and for `hugewise restore`."""

from __future__ import annotations

from pathlib import Path

from hugewise.host import journal
from hugewise.host.journal import JOURNAL
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import HostLock
from hugewise.model.host import Host

__all__ = ["leftovers", "restore"]


def restore(host: Host | None = None, path: Path = JOURNAL) -> list[str]:
    """`hugewise restore`: put back what a killed run left. Raises LockedError while a run holds the host.

    An account's run is none that keeps root from it: it turns nothing.
    """
    host = host or LocalHost()
    with HostLock(host, anyway=True):
        return leftovers(host, path) or [_nothing(host, path)]


def _nothing(host: Host, path: Path) -> str:
    """An ordinary user is told what that rests on: root's journal alone, and only the one that is seen from here."""
    if host.privileged():
        return "nothing to restore"
    if path.exists():
        return (
            f"nothing to restore: by root's journal ({path}) no run of root's left settings turned; no other turns any"
        )
    return (
        f"nothing to restore that a user can see: here is no journal of root's runs ({path}), and no other turns"
        " settings; a run of root's in a container has its journal there"
    )


def leftovers(host: Host, path: Path = JOURNAL) -> list[str]:
    """Close the journal of a dead run: what was put back, and what was left to others. Raises UserError for a user."""
    found = journal.recover(host, path)
    if found.run is None:
        return []
    if found.note:
        return [f"run {found.run}: {found.note}"]
    lines = [f"put back what the killed run {found.run} left"]
    lines += [f"  {each}" for each in found.put_back]
    lines += [f"  {drift.left_alone()}" for drift in found.left]
    if found.killed:
        lines.append(f"  ended {found.killed} of its processes")
    return lines
