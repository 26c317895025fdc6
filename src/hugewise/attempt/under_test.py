"""The system under test of a scene: its processes, what they have used, and what backs their memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hugewise.attempt import begetting, memory
from hugewise.errors import ProbeError
from hugewise.host import listening
from hugewise.host.local_machine import LocalMachine
from hugewise.machine import maps, probe
from hugewise.machine.machine import Contained, Machine
from hugewise.machine.noise import TICK
from hugewise.machine.patience import Patience, StuckError, patient_text
from hugewise.machine.serving import Serving
from hugewise.model.scene import RoleUse, Server

__all__ = ["UnderTest"]


@dataclass(frozen=True)
class UnderTest:
    """`running`: the servers, each with its launcher, on `machine` in the cgroup `sut`; `source` of page sizes."""

    machine: Machine
    sut: Contained
    source: probe.Source
    running: Sequence[tuple[Server, Serving]]

    def scan(self) -> list[probe.Coverage]:
        """What backs the servers' named memory now. Raises ProbeError."""
        found = []
        for server, begun in self.running:
            if not server.treated or server.where == "host":
                continue
            if server.named == "tree":
                found += self._scan_each()
                continue
            pid = begun.pid if server.named != "shared" else memory.most_shared(self.machine.host, begun.pid, self.sut)
            with suppress(FileNotFoundError, ProcessLookupError):
                ranges = maps.named(self._maps(pid), server.named)
                if ranges == []:
                    continue
                words = [word for start, end in ranges or () for word in ("--range", f"{start:x}-{end:x}")]
                event = self.machine.ask("scan", "--pid", str(pid), *words, "--source", self.source)
                if isinstance(event, probe.Coverage):
                    found.append(event)
        return found

    def _maps(self, pid: int) -> str:
        """What a process has mapped. Raises ProbeError where that cannot be read in time, OSError."""
        try:
            return patient_text(self.machine.host, f"/proc/{pid}/maps")
        except StuckError as error:
            raise ProbeError(f"process {pid}: {error}") from None

    def _scan_each(self) -> list[probe.Coverage]:
        """What backs the memory of every process of the system under test; some may end meanwhile."""
        found = []
        for pid in self.processes():
            try:
                event = self.machine.ask("scan", "--pid", str(pid), "--source", self.source)
            except ProbeError:
                if pid in self.processes():
                    raise
                continue
            if isinstance(event, probe.Coverage):
                found.append(event)
        return found

    def processes(self) -> list[int]:
        """The system under test: what is in its cgroup; where there is none, the servers and all that descends from
        them, as far as this host shows it.
        """
        if inside := self.sut.processes():
            return inside
        servers = [begun.pid for server, begun in self.running if server.where == "machine"]
        return listening.tree(servers) if isinstance(self.machine, LocalMachine) else servers

    def used(self) -> RoleUse:
        """What the system under test has used: by its cgroup; else as each of its processes says, in steps of a clock
        tick, without those that ended and were nobody's children.
        """
        counted = self.sut.used()
        if counted.cpu_s is not None or not isinstance(self.machine, LocalMachine):
            return counted
        told = listening.used(self.processes())
        user, system = told.user * TICK, told.system * TICK
        return RoleUse(cpu_s=user + system, user_s=user, system_s=system, faults=told.faults)

    def _shared(self) -> int | None:
        """Bytes of the largest shared mapping without a file that one of its processes has (the buffers of a database),
        touched or not; None where it is not looked for, or cannot be.
        """
        if not any(server.named == "tree" for server, _ in self.running):
            return None
        largest, patience = 0, Patience()
        for pid in self.processes():
            with suppress(OSError, StuckError):
                text = patient_text(self.machine.host, f"/proc/{pid}/maps", patience)
                largest = max([largest, *(end - start for start, end in maps.named(text, "shared") or ())])
        return largest

    def peaks(self) -> list[int]:
        """The most bytes that each process of the system under test had resident, but for pages of pools."""
        return memory.peaks(self.machine.host, self.processes())

    def begotten(self) -> Mapping[str, int]:
        """What the servers of this host have begun, as far as that is seen while they are there; what they share."""
        shared = self._shared()
        found = {} if shared is None else {"shared_bytes": shared}
        if not isinstance(self.machine, LocalMachine):
            return found
        servers = {begun.pid for server, begun in self.running if server.where == "machine"}
        return {**begetting.begotten(self.machine.host, self.processes(), servers), **found}

    def footprint(self) -> int | None:
        """Bytes resident in the system under test: proportional set size and hugetlb pages of its processes."""
        return memory.footprint(self.machine.host, self.processes())
