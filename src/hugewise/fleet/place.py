"""Where and how a host obeys: its spool, what starts a keeper, and the engine's worker that carried an order."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["HostPlace", "usual_spool"]


def usual_spool() -> Path:
    """Where runs are kept until they are shipped, for who calls."""
    if os.geteuid() == 0:
        return Path("/var/lib/hugewise/fleet")
    return Path.home() / ".local/state/hugewise/fleet"


@dataclass(frozen=True)
class HostPlace:
    """A host, as orders find it.

    spool    the folder with all assignments; made with mode 0700
    worker   the pid of the engine's worker that carries orders here; None where there is none (ssh, Slurm)
    start    starts a keeper for the folder of an assignment, which inherits the descriptor of its lock, and returns at
             once; a simulation has its own
    """

    spool: Path
    worker: int | None = None
    start: Callable[[Path, int], None] | None = None
