"""Clients of an attempt on a host of their own: their folder there, how their programs are started, what they carry.

Both ends of the measured part are told by the clock of that host, and so are all durations: two hosts' clocks are never
compared. The password of the servers is made for each attempt and lies in files of the attempt alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from hugewise.host.local_machine import LocalMachine
from hugewise.machine import probe
from hugewise.machine.machine import Contained, Machine
from hugewise.machine.site import ClientSite
from hugewise.model.scene import Far, Places

__all__ = ["Apart"]

# Of what the network was seen to carry: above it, the network may be what was measured.
_NEAR = 0.7


@dataclass(frozen=True)
class Apart:
    """The clients' side of one attempt.

    folder  its own, there
    beside  the CPUs of this host that its clients would have here: untimed steps beside the servers have them
    """

    site: ClientSite
    folder: str
    beside: tuple[int, ...]

    @classmethod
    def begin(cls, site: ClientSite, beside: tuple[int, ...]) -> Apart:
        """Make the folder. Raises MachineError, StorageError."""
        site.scratch.clear()
        return cls(site, str(site.scratch.folder("client")), beside)

    @property
    def machine(self) -> Machine:
        """Where they run."""
        return self.site.machine

    @property
    def contain(self) -> Contained:
        """What of them runs there."""
        return self.site.contain

    def places(self, places: Places, ports: int) -> Places:
        """The places with the way to the clients, and CPUs of theirs. Raises MachineError."""
        far = Far(
            address=self.site.address,
            ports=LocalMachine().ports(ports, self.site.address),
            client=self.site.client,
            folder=self.folder,
            programs=self.site.programs,
            password=secrets.token_hex(16),
        )
        return msgspec.structs.replace(places, client=self.site.cpus, far=far)

    def put(self, path: str, content: bytes, mode: int) -> None:
        """Write a file into the folder. Raises StorageError."""
        self.machine.put(self.folder, path, content, *self.site.owner, mode=mode)

    def environment(self, added: Mapping[str, str]) -> dict[str, str]:
        """What programs find there."""
        return {**self.machine.environment, "HOME": self.folder, "TMPDIR": self.folder, **added}

    def spec(self, spec: probe.Spec, added: Mapping[str, str], cwd: str | None = None) -> probe.Spec:
        """How a program of the clients is started there, which would be started here by `spec`."""
        uid, gid = self.site.owner
        return msgspec.structs.replace(
            spec,
            env=self.environment(added),
            cwd=cwd or self.folder,
            uid=uid,
            gid=gid,
            groups=msgspec.UNSET,
            cgroup_procs=(),
            cpus=self.site.cpus,
            own_ipc=msgspec.UNSET,
        )

    def marks(self, carried: int | None, seconds: float) -> tuple[str, ...]:
        """What the reader is told where `carried` bytes in the measured part come near to what the network carries."""
        if carried is None or seconds <= 0:
            return ()
        rate = 8 * carried / seconds
        if rate < _NEAR * self.site.network:
            return ()
        return (
            f"the network carried {rate / 1e6:,.0f} Mbit/s of the {self.site.network / 1e6:,.0f} that it was seen to"
            " carry: it may be what was measured",
        )

    def facts(self, carried: int | None, seconds: float) -> dict[str, str | int | float]:
        """What is kept with the attempt."""
        found = dict(self.site.facts)
        if carried is not None and seconds > 0:
            found["network_used_mbit_per_s"] = round(8 * carried / seconds / 1e6, 1)
        return found
