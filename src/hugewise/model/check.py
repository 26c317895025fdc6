"""What was looked for on a machine, what was found, and the cure."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Check", "State"]

State = Literal["ok", "limited", "missing"]


class Check(msgspec.Struct, frozen=True):
    """One finding. `cure` is a command, or what else to do; None when nothing is missing or nothing helps.

    `packages` are the Debian packages that a study lacks here by this finding.
    """

    section: str
    name: str
    state: State
    finding: str
    cure: str | None = None
    packages: tuple[str, ...] = ()
