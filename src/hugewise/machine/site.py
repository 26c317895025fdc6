"""Where an attempt runs: this host for a whole session, or a guest for that attempt alone; and where its clients do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hugewise.machine.drift import Drift
from hugewise.machine.machine import Contained, Folders, Machine
from hugewise.machine.probe import Source
from hugewise.model.host import Host
from hugewise.model.scene import Peer

__all__ = ["ClientSite", "Knobs", "Site"]


class Knobs(Protocol):
    """The page settings of a machine."""

    def apply(self, knobs: Mapping[str, str]) -> list[Drift]:
        """Turn them; returns what somebody else turned since. Raises SettingError."""
        ...

    def drift(self) -> list[Drift]:
        """What somebody else turned since."""
        ...

    def values(self) -> Mapping[str, str]:
        """How they stand, by path."""
        ...


@dataclass(frozen=True)
class ClientSite:
    """A host of their own for the clients of an attempt.

    contain   what runs there for hugewise, as one
    scratch   private folders there
    owner     whom programs run as there; None: as hugewise arrives
    cpus      that the clients have
    programs  paths there, by name
    address   of this host, as that one sees it; `client`: of that one
    clock     what time it is there: of the measured part, both ends are told by this clock
    carried   bytes that this host's interface of the address has sent and received; None where it does not say
    network   bits a second that the network was seen to carry, the lesser of both directions
    facts     what is kept with each attempt of it
    """

    machine: Machine
    contain: Contained
    scratch: Folders
    owner: tuple[int | None, int | None]
    cpus: tuple[int, ...]
    programs: Mapping[str, str]
    address: str
    client: str
    clock: Callable[[], float]
    carried: Callable[[], int | None]
    network: float
    facts: Mapping[str, str | int | float]


@dataclass(frozen=True)
class Site:
    """A machine with what attempts need there.

    contain    makes the cgroup of that name, where there are some
    scratch    the private folders in a place of the machine, as a study names it
    source     how page sizes are looked up
    base_size  bytes of a base page
    peer       this host, as a guest sees it
    """

    machine: Machine
    knobs: Knobs
    contain: Callable[[str], Contained]
    scratch: Callable[[str], Folders]
    source: Source
    base_size: int
    peer: Peer = field(default_factory=Peer)

    @property
    def host(self) -> Host:
        """The machine's files."""
        return self.machine.host
