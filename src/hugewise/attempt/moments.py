"""The ends of an attempt's measured part: what both roles and the machine had counted at each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from hugewise.machine import noise
from hugewise.machine.site import ClientSite, Site
from hugewise.model.scene import RoleUse

__all__ = ["MarkedEnds", "MarkedMoment"]


@dataclass(frozen=True)
class MarkedMoment:
    """Counters of both roles and of the machine at one end of the measured part.

    t        UTC epoch seconds by the clients' clock
    carried  bytes that the network to clients elsewhere has carried; None where there is none, or it does not say
    """

    t: float
    host: noise.Snapshot
    sut: RoleUse
    client: RoleUse
    carried: int | None


@dataclass
class MarkedEnds:
    """None, one, or both of them: what comes after the second one replaces it."""

    seen: list[MarkedMoment] = field(default_factory=list)

    def mark(self, site: Site, sut: RoleUse, client: Callable[[], RoleUse], far: ClientSite | None) -> None:
        """The measured part begins or ends now. Raises MachineError where clients elsewhere are gone."""
        t = time.time() if far is None else far.clock()
        used = client() if far is None else far.contain.used()
        carried = None if far is None else far.carried()
        self.seen.append(MarkedMoment(t, noise.snapshot(site.host), sut, used, carried))

    def begin_anew(self) -> None:
        """What was marked does not count."""
        self.seen.clear()

    @property
    def begun(self) -> bool:
        """Whether it has begun."""
        return bool(self.seen)

    @property
    def whole(self) -> bool:
        """Whether it is over."""
        return len(self.seen) >= 2

    @property
    def first(self) -> bool:
        """Whether it has begun and is not over."""
        return len(self.seen) == 1

    @property
    def ends(self) -> tuple[float, float]:
        """Begin and end; it is over."""
        return self.seen[0].t, self.seen[-1].t

    @property
    def host(self) -> tuple[noise.Snapshot, noise.Snapshot]:
        """The machine's counters at both ends; it is over."""
        return self.seen[0].host, self.seen[-1].host

    def use(self, role: Literal["sut", "client"]) -> RoleUse:
        """What a role used in it."""
        if not self.whole:
            return RoleUse()
        first, last = self.seen[0], self.seen[-1]
        return last.sut.since(first.sut) if role == "sut" else last.client.since(first.client)

    @property
    def carried(self) -> int | None:
        """Bytes that the network carried in it; None where it does not say."""
        if not self.whole or self.seen[0].carried is None or self.seen[-1].carried is None:
            return None
        return self.seen[-1].carried - self.seen[0].carried
