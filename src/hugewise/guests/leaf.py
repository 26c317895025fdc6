"""Control groups in a guest: version 2, in one folder of which each attempt, and each role in it, has its group.

The groups and all in them are gone with the guest; what they counted is read while it runs.

Source: Documentation/admin-guide/cgroup-v2.rst of the Linux kernel.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hugewise.errors import MachineError
from hugewise.guests.agent import Agent
from hugewise.guests.machine import GuestMachine
from hugewise.machine.machine import CpuTime
from hugewise.model.host import Host

__all__ = ["ROOT", "Groups", "Leaf"]

ROOT = "/sys/fs/cgroup/hugewise"
_CONTROLLERS = ("memory", "pids")
_PATIENCE_S = 60.0  # an emulated guest may share its CPU with many others
_PAUSE_S = 0.01


@dataclass(frozen=True)
class Leaf:
    """The group of one attempt, or of one role in it: `machine.Contained`.

    counted   it has the memory controller
    emulated  its CPU time means nothing
    """

    host: Host
    path: str
    counted: bool
    emulated: bool
    discard: Callable[[str], None]

    @property
    def procs_files(self) -> tuple[Path, ...]:
        """What a process writes its pid to in order to enter."""
        return (Path(self.path) / "cgroup.procs",)

    def kill(self) -> int:
        """Kill every process inside, those in groups below too, and wait until they are gone.

        Returns how many were seen. Raises MachineError.
        """
        seen: set[int] = set()
        end = time.monotonic() + _PATIENCE_S
        while self._populated():
            left = self.processes()
            seen |= set(left)
            try:
                self.host.write(f"{self.path}/cgroup.kill", "1")
            except OSError as error:
                raise MachineError(f"cannot kill what is in {self._named}: {error.strerror}") from None
            if time.monotonic() > end:
                raise MachineError(
                    f"{len(left)} processes in {self._named} do not die, such as pid {min(left, default=0)}"
                )
            time.sleep(_PAUSE_S)
        return len(seen)

    def peak_bytes(self) -> int | None:
        """The most memory that was charged at once, page cache included and hugetlb pages not; None if not counted."""
        with suppress(OSError, ValueError):
            return int(self.host.read(f"{self.path}/memory.peak")) if self.counted else None
        return None

    def faults(self) -> int | None:
        """Page faults of all processes since the group was made; the kernel may keep back some 64 for each CPU."""
        return self._table("memory.stat").get("pgfault") if self.counted else None

    def cpu(self) -> CpuTime | None:
        """CPU time of all processes since the group was made; None where it is emulated, or not counted."""
        found = {} if self.emulated else self._table("cpu.stat")
        with suppress(KeyError):
            return CpuTime(found["usage_usec"] / 1e6, found["user_usec"] / 1e6, found["system_usec"] / 1e6)
        return None

    def processes(self) -> list[int]:
        """The processes inside, by their numbers in the guest; those in groups below are left out."""
        with suppress(OSError):
            return sorted({int(pid) for pid in self.host.read(f"{self.path}/cgroup.procs").split()})
        return []

    def limit_memory(self, size: int) -> None:
        """Let the processes inside, and the page cache they fill, have at most `size` bytes. Raises MachineError."""
        if not self.counted:
            raise MachineError(
                f"memory = ... needs the memory controller, and the kernel of guest {self.host.name} has none",
                hint="give the study a kernel with CONFIG_MEMCG",
            )
        try:
            self.host.write(f"{self.path}/memory.max", str(size))
        except OSError as error:
            raise MachineError(f"cannot limit the memory of {self._named}: {error.strerror}") from None

    def remove(self) -> None:
        """Remove the group, and those made inside. Raises MachineError while processes are inside."""
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self.discard(self.path)
            except OSError as error:
                if error.errno != errno.EBUSY or self._populated() or time.monotonic() > end:
                    raise MachineError(f"cannot remove {self._named}: {error.strerror}") from None
                time.sleep(_PAUSE_S)  # the last process is gone but not yet taken off the books
            else:
                return

    @property
    def _named(self) -> str:
        return f"the cgroup {self.path} of guest {self.host.name}"

    def _populated(self) -> bool:
        return self._table("cgroup.events").get("populated", 0) != 0

    def _table(self, file: str) -> dict[str, int]:
        try:
            lines = self.host.read(f"{self.path}/{file}").splitlines()
        except OSError:
            return {}
        return {name: int(value) for name, value in (line.split() for line in lines)}


class Groups:
    """The folder of the groups in a guest; it is made with the first one."""

    def __init__(self, machine: GuestMachine, root: str = ROOT) -> None:
        self._agent: Agent = machine.agent
        self._host, self._emulated, self._root = machine.host, machine.emulated, root
        self._ready = False

    def create(self, name: str) -> Leaf:
        """The group of that name, with the memory controller where the kernel has one. Raises MachineError."""
        path = f"{self._root}/{name}"
        try:
            if not self._ready:
                self._prepare()
            self._agent.make(path, 0o755)
        except OSError as error:
            raise MachineError(
                f"cannot make the cgroup {path} of guest {self._agent.name}: {error.strerror}",
                hint="give the study a kernel with CONFIG_CGROUPS",
            ) from None
        return self.leaf(name)

    def leaf(self, name: str) -> Leaf:
        """The group of that name, which is there."""
        path = f"{self._root}/{name}"
        counted = "memory.stat" in self._host.names(path)
        return Leaf(self._host, path, counted, self._emulated, self._agent.remove)

    def _prepare(self) -> None:
        with suppress(FileExistsError):
            self._agent.make(self._root, 0o755)
        offered = self._host.read(f"{self._root}/cgroup.controllers").split()
        for name in _CONTROLLERS:
            if name in offered:
                self._host.write(f"{self._root}/cgroup.subtree_control", f"+{name}")
        self._ready = True
