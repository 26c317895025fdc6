"""The processes that descend from this one, also those whose parents have died.

This process adopts its orphans: so what a killed run leaves running is found by its parents alone, without trusting
cgroups, sessions or names. See proc(5).
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from hugewise import processes
from hugewise.errors import HugewiseError
from hugewise.machine.proc import kernel_text

__all__ = ["adopt", "descendants", "end_all", "reap"]


def adopt() -> None:
    """Become the parent of descendants whose parents die. Raises HugewiseError."""
    try:
        processes.adopt()
    except OSError as error:
        raise HugewiseError(f"cannot adopt orphans: {error.strerror}") from None


def reap() -> None:
    """Take note of children that have ended: adopted ones, that nobody else waits for.

    To be called only while no process of `subprocess` is under way: it takes their exit statuses too.
    """
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def descendants() -> dict[int, str]:
    """The names of living descendants by pid; those that have ended and were not waited for are left out."""
    parents: dict[int, tuple[int, str]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            head, _, rest = kernel_text(process / "stat").rpartition(")")
            state, parent = rest.split()[:2]
            if state not in "ZX":
                parents[int(process.name)] = (int(parent), head.partition("(")[2])
    found: dict[int, str] = {}
    fresh = {os.getpid()}
    while fresh:
        fresh = {pid for pid, (parent, _) in parents.items() if parent in fresh and pid not in found}
        found |= {pid: parents[pid][1] for pid in fresh}
    return found


def end_all() -> None:
    """Kill every descendant, and wait for those that are children by now."""
    for pid in descendants():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    reap()
