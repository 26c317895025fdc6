"""Boarding: an attempt is given the machine that it runs on. This host boards as guests do."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import msgspec

from hugewise.machine import noise, probe
from hugewise.machine.site import ClientSite, Site
from hugewise.model.trial import Trial
from hugewise.plan.plan import Arm, Cell
from hugewise.study.tables import Slots

__all__ = ["Backed", "Boarded", "Boarding", "HostBoarding"]


class Backed(msgspec.Struct, frozen=True):
    """What backed a guest's memory: facts for the record, and why it is not what the arm promises (None: it is)."""

    facts: Mapping[str, str | int | float] = {}
    problem: str | None = None


class Boarded(Protocol):
    """The machine of an attempt, until it is left.

    site         where the attempt runs
    own          it is the attempt's alone: what its kernel counts is the attempt's
    meets        launchers there can wait for others of this host
    cwd          where that runs unless it says so: the same in all sessions of a run
    places       CPUs of each slot of the design, of which the attempt has its trial's; none where it has all
    far          the host of their own that its clients are on; None: they are on the site
    """

    own: bool
    meets: bool
    site: Site
    cwd: str
    places: Slots

    @property
    def far(self) -> ClientSite | None:
        """See above."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """What a user's command finds there."""
        ...

    def look(self, here: noise.Snapshot) -> noise.Snapshot | None:
        """The machine's counters, where those of this host are `here`; None of one that must not be looked at."""
        ...

    def flush(self) -> None:
        """Have written what is still to be, before its page cache is dropped."""
        ...

    def instructions(self, events: Sequence[probe.Event]) -> int | None:
        """Instructions of the timed region, where its clock goes by them."""
        ...

    def leave(self) -> Backed:
        """Give it up, and see that it is gone; what was found of its memory meanwhile."""
        ...

    def close(self) -> None:
        """End it at once, whatever happened."""
        ...


class Boarding(Protocol):
    """Has a machine for each attempt."""

    def board(self, cell: Cell, arm: Arm, trial: Trial, number: int, outputs: Path) -> Boarded:
        """The machine for one attempt, ready. Raises MachineError with the last console lines."""
        ...


@dataclass
class HostBoarding:
    """This host, for all attempts of a session: it is there already, and stays.

    clients  reaches the host of clients, anew where it was lost; raises MachineError
    """

    site: Site
    cwd: str
    places: Slots = ()
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clients: Callable[[], ClientSite] | None = None
    far: ClientSite | None = None
    own = False
    meets = True

    def board(self, cell: Cell, arm: Arm, trial: Trial, number: int, outputs: Path) -> HostBoarding:
        """It is boarded by everybody, with the host of its clients where that is another one."""
        if not cell.apart:
            return self
        assert self.clients is not None, "a run whose clients are apart has reached their host"
        return replace(self, far=self.clients())

    def look(self, here: noise.Snapshot) -> noise.Snapshot:
        """It was looked at already."""
        return here

    def flush(self) -> None:
        """Pages that are not written yet cannot be dropped."""
        os.sync()

    def instructions(self, events: Sequence[probe.Event]) -> None:
        """Its clock is a clock."""

    def leave(self) -> Backed:
        """It stays."""
        return Backed()

    def close(self) -> None:
        """It stays."""
