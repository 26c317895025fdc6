"""Putting back what a killed run left turned, for the next run and for `hugewise restore`."""

from __future__ import annotations

from hugewise.host import journal
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import HostLock
from hugewise.model.host import Host

__all__ = ["leftovers", "restore"]


def restore() -> list[str]:
    """`hugewise restore`: put back what a killed run left. Raises LockedError while a run holds the host.

    An account's run is none that keeps root from it: it turns nothing.
    """
    host = LocalHost()
    with HostLock(host, anyway=True):
        return leftovers(host) or ["nothing to restore"]


def leftovers(host: Host) -> list[str]:
    """Close the journal of a dead run: what was put back, and what was left to others. Raises UserError for a user."""
    found = journal.recover(host)
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
