"""The system under test of a procedure: its processes, what they have used, and what backs their memory.

What the servers of a system under test have begun, as the kernel says it while they are there.

Nobody follows a server, as a tracer would slow it. But the kernel keeps of each process whether it goes on with a copy
of its parent's memory (PF_FORKNOEXEC, of one that was forked and has executed nothing since), and of each parent the
page faults of the children that it has waited for: no child lives without one. What such a child was nobody can tell
any more. Children that are ignored (SIGCHLD) and have ended leave nothing behind; then nothing is known.

Source: proc_pid_stat(5), proc_pid_status(5); PF_FORKNOEXEC of the kernel's include/linux/sched.h; wait(2).

How much memory the processes of a system under test have, as the kernel says it of each.
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
from hugewise.machine.machine import Contained, Machine
from hugewise.machine.noise import TICK
from hugewise.machine.proc import PATIENCE_S, Patience, StuckError, patient_text
from hugewise.machine.serving import Serving
from hugewise.model.host import Host, text_of
from hugewise.model.procedure import RoleUse, Server

_STAT = re.compile(r"\d{1,10} \(.*\) (\S) ([-0-9 ]{1,2000})\s*", re.DOTALL)
_FLAGS, _CHILDREN_MINOR, _CHILDREN_MAJOR, _THREADS = 5, 7, 9, 16  # among the numbers behind the state
_COPY = 0x40
_SIGCHLD = 1 << 16


def count_children(host: Host, pids: Sequence[int], roots: Collection[int]) -> Mapping[str, int]:
    """Of the processes `pids`, of which `roots` were started as servers: those that are `forked` (copies of their
    parent), others that `executed` a program, `threads` beside the first ones, and those whose children have `ended`.
    Nothing where nothing is known of one of them.
    """
    forked = executed = threads = ended = 0
    for pid in pids:
        stat, status = (text_of(host, f"/proc/{pid}/{name}") for name in ("stat", "status"))
        said = None if stat is None else _STAT.fullmatch(stat)
        numbers = [] if said is None else [int(word) for word in said[2].split()]
        if status is None or len(numbers) <= _THREADS or _ignores_children(status):
            return {}
        copy = bool(numbers[_FLAGS] & _COPY)
        forked += copy
        executed += not copy and pid not in roots
        threads += max(0, numbers[_THREADS] - 1)
        ended += numbers[_CHILDREN_MINOR] + numbers[_CHILDREN_MAJOR] > 0
    return {"forked": forked, "executed": executed, "threads": threads, "ended": ended} if pids else {}


def _ignores_children(status: str) -> bool:
    """Whether its children vanish when they end, without anybody waiting for them."""
    said = proc.fields(status).get("SigIgn", "")
    return re.fullmatch(r"[0-9a-f]{1,32}", said) is None or bool(int(said, 16) & _SIGCHLD)


_SIZE = re.compile(r"^(\w{1,64}):[ \t]{1,64}(\d{1,15}) kB$", re.MULTILINE | re.ASCII)


def resident_bytes(host: Host, pids: Iterable[int]) -> int | None:
    """Bytes resident: proportional set size and hugetlb pages of these processes; None where there are none, and where
    one of them cannot be read in time.
    """
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
    """The most bytes that each of these processes had resident at once, but for pages of pools."""
    found = []
    for pid in pids:
        with suppress(OSError):
            found.append(_sizes(host.read(f"/proc/{pid}/status")).get("VmHWM", 0))
    return found


def _sizes(text: str) -> dict[str, int]:
    """Sizes in bytes by name, of smaps_rollup or status."""
    return {name: int(size) << 10 for name, size in _SIZE.findall(text)}


def most_shared_process(host: Host, root: int, leaf: Contained) -> int:
    """The process of the system under test that has most shared memory mapped: the one in which it can be looked at."""
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
        """What backs the servers' named memory now. Raises ProbeError."""
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
        return network.tree(servers) if isinstance(self.machine, LocalMachine) else servers

    def used(self) -> RoleUse:
        """What the system under test has used: by its cgroup; else as each of its processes says, in steps of a clock
        tick, without those that ended and were nobody's children.
        """
        counted = self.sut.used()
        if counted.cpu_s is not None or not isinstance(self.machine, LocalMachine):
            return counted
        told = network.used(self.processes())
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
                largest = max([largest, *(end - start for start, end in proc.named_ranges(text, "shared") or ())])
        return largest

    def peaks(self) -> list[int]:
        """The most bytes that each process of the system under test had resident, but for pages of pools."""
        return peak_bytes(self.machine.host, self.processes())

    def begotten(self) -> Mapping[str, int]:
        """What the servers of this host have begun, as far as that is seen while they are there; what they share."""
        shared = self._shared()
        found = {} if shared is None else {"shared_bytes": shared}
        if not isinstance(self.machine, LocalMachine):
            return found
        servers = {begun.pid for server, begun in self.running if server.where == "machine"}
        return {**count_children(self.machine.host, self.processes(), servers), **found}

    def footprint(self) -> int | None:
        """Bytes resident in the system under test: proportional set size and hugetlb pages of its processes."""
        return resident_bytes(self.machine.host, self.processes())
