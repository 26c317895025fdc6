"""System under test of a procedure: its processes, their resources, and the pages that back their memory.

The children of servers are counted while they exist, as a tracer would slow the server: a copy of its parent's memory
has PF_FORKNOEXEC; of ended children a parent keeps the page faults, unless it ignores SIGCHLD.

Source: proc_pid_stat(5), proc_pid_status(5); include/linux/sched.h of the kernel; wait(2).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hugewise.errors import ProbeError
from hugewise.host import network
from hugewise.host.local_machine import LocalMachine
from hugewise.machine import probe, proc
from hugewise.machine.machine import Contained, Machine, Serving
from hugewise.machine.proc import PATIENCE_S, Patience, StuckError, patient_text
from hugewise.model.host import Host, text_of
from hugewise.model.procedure import RoleUse, Server
from hugewise.processes import TICK, parse_stat

_COPY = 0x40  # PF_FORKNOEXEC of include/linux/sched.h
_SIGCHLD = 1 << 16


def count_children(host: Host, pids: Sequence[int], roots: Collection[int]) -> Mapping[str, int]:
    """Count processes among `pids`, of which `roots` were started as servers: those that are `forked` (copies of their
    parent), others that `executed` a program, `threads` beside the first ones, and those whose children have `ended`.
    Empty where one of the processes cannot be read.
    """
    forked = executed = threads = ended = 0
    for pid in pids:
        stat, status = parse_stat(text_of(host, f"/proc/{pid}/stat") or ""), text_of(host, f"/proc/{pid}/status")
        if stat is None or status is None or _ignores_children(status):
            return {}
        copy = bool(stat.flags & _COPY)
        forked += copy
        executed += not copy and pid not in roots
        threads += max(0, stat.num_threads - 1)
        ended += stat.cminflt + stat.cmajflt > 0
    return {"forked": forked, "executed": executed, "threads": threads, "ended": ended} if pids else {}


def _ignores_children(status: str) -> bool:
    """Return whether the process ignores SIGCHLD, so that its children vanish without being waited for."""
    said = proc.fields(status).get("SigIgn", "")
    return re.fullmatch(r"[0-9a-f]{1,32}", said) is None or bool(int(said, 16) & _SIGCHLD)


_SIZE = re.compile(r"^(\w{1,64}):[ \t]{1,64}(\d{1,15}) kB$", re.MULTILINE | re.ASCII)


def resident_bytes(host: Host, pids: Iterable[int]) -> int | None:
    """Return proportional set size and hugetlb pages of these processes; None where one cannot be read."""
    total, shared, patience = 0, 0, Patience(PATIENCE_S)
    for pid in pids:
        with suppress(OSError):
            try:
                sizes = _sizes(patient_text(host, f"/proc/{pid}/smaps_rollup", patience))
            except StuckError:
                return None
            total += sizes.get("Pss", 0) + sizes.get("Private_Hugetlb", 0)
            shared = max(shared, sizes.get("Shared_Hugetlb", 0))
    return (total + shared) or None


def peak_bytes(host: Host, pids: Iterable[int]) -> list[int]:
    """Return the most bytes that each of these processes had resident at once, but for pages of pools."""
    found = []
    for pid in pids:
        with suppress(OSError):
            found.append(_sizes(host.read(f"/proc/{pid}/status")).get("VmHWM", 0))
    return found


def memory_bytes(host: Host, pids: Iterable[int]) -> int:
    """Return the bytes that these processes have now, pages of pools included; shared bytes count for each process."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            sizes = _sizes(host.read(f"/proc/{pid}/status"))
            total += sizes.get("VmRSS", 0) + sizes.get("HugetlbPages", 0)
    return total


def _sizes(text: str) -> dict[str, int]:
    return {name: int(size) << 10 for name, size in _SIZE.findall(text)}


def most_shared_process(host: Host, root: int, leaf: Contained) -> int:
    """Return the process of the system under test that maps most shared memory, to look at that memory in."""
    best, most = root, -1
    for pid in leaf.processes() or [root]:
        with suppress(OSError):
            sizes = _sizes(host.read(f"/proc/{pid}/status"))
            mapped = sizes.get("RssShmem", 0) + sizes.get("HugetlbPages", 0)
            if mapped > most:
                best, most = pid, mapped
    return best


@dataclass(frozen=True)
class UnderTest:
    """`running`: the servers, each with its launcher, on `machine` in the cgroup `sut`; `source` of page sizes."""

    machine: Machine
    sut: Contained
    source: probe.Source
    running: Sequence[tuple[Server, Serving]]

    def scan(self) -> list[probe.Coverage]:
        """Return the pages that back the servers' named memory now. Raises ProbeError."""
        found = []
        for server, begun in self.running:
            if not server.treated or server.where == "host":
                continue
            if server.named == "tree":
                found += self._scan_each()
                continue
            pid = begun.pid if server.named != "shared" else most_shared_process(self.machine.host, begun.pid, self.sut)
            with suppress(FileNotFoundError, ProcessLookupError):
                ranges = proc.named_ranges(self._maps(pid), server.named)
                if ranges == []:
                    continue
                words = [word for start, end in ranges or () for word in ("--range", f"{start:x}-{end:x}")]
                event = self.machine.ask("scan", "--pid", str(pid), *words, "--source", self.source)
                if isinstance(event, probe.Coverage):
                    found.append(event)
        return found

    def _maps(self, pid: int) -> str:
        """Return the mappings of a process. Raises OSError, and ProbeError where they cannot be read in time."""
        try:
            return patient_text(self.machine.host, f"/proc/{pid}/maps")
        except StuckError as error:
            raise ProbeError(f"process {pid}: {error}") from None

    def _scan_each(self) -> list[probe.Coverage]:
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
        """Return the processes in its cgroup, or else the servers and their descendants."""
        if inside := self.sut.processes():
            return inside
        servers = [begun.pid for server, begun in self.running if server.where == "machine"]
        return network.tree(servers) if isinstance(self.machine, LocalMachine) else servers

    def used(self) -> RoleUse:
        """Return the resources by its cgroup, or else summed over its processes, in clock ticks."""
        counted = self.sut.used()
        if counted.cpu_s is not None or not isinstance(self.machine, LocalMachine):
            return counted
        told = network.used(self.processes())
        user, system = told.user * TICK, told.system * TICK
        return RoleUse(cpu_s=user + system, user_s=user, system_s=system, faults=told.faults)

    def _shared(self) -> int | None:
        """Return the bytes of the largest shared anonymous mapping of the servers (the buffers of a database), touched
        or not; None where it is not looked for, or cannot be.
        """
        if not any(server.named == "tree" for server, _ in self.running):
            return None
        largest, patience = 0, Patience()
        for pid in self.processes():
            with suppress(OSError, StuckError):
                text = patient_text(self.machine.host, f"/proc/{pid}/maps", patience)
                largest = max([largest, *(end - start for start, end in proc.named_ranges(text, "shared") or ())])
        return largest

    def peaks(self) -> list[int]:
        """Return the most bytes that each process of the system under test had resident, but for pages of pools."""
        return peak_bytes(self.machine.host, self.processes())

    def begotten(self) -> Mapping[str, int]:
        """Count processes and threads that the servers of this host have begun, and the bytes that they share."""
        shared = self._shared()
        found = {} if shared is None else {"shared_bytes": shared}
        if not isinstance(self.machine, LocalMachine):
            return found
        servers = {begun.pid for server, begun in self.running if server.where == "machine"}
        return {**count_children(self.machine.host, self.processes(), servers), **found}

    def footprint(self) -> int | None:
        """Return bytes resident in the system under test: proportional set size and hugetlb pages of its processes."""
        return resident_bytes(self.machine.host, self.processes())
