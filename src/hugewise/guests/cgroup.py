"""Control groups in a guest: version 2 (cgroup-v2.rst of the kernel's documentation), gone with the guest."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hugewise.errors import HugewiseError, MachineError
from hugewise.host import cgroup
from hugewise.host.cgroup import Freezer
from hugewise.machine.messages import parse_foreign
from hugewise.machine.remote import RemoteMachine
from hugewise.model.procedure import RoleUse
from hugewise.reading import whole

_ROOT = "/sys/fs/cgroup/hugewise"
_CONTROLLERS = ("memory", "pids")
_MOST_PROCESSES = 10_000  # that are reported
_PATIENCE_S = 60.0  # an emulated guest may share its CPU with many others
_PAUSE_S = 0.01


@dataclass(frozen=True)
class GuestLeaf(cgroup.Leaf):
    """The group of one attempt, or of one role in it, in the guest `host`; it is counted as one of the host is.

    emulated  its CPU time means nothing
    gone      whether the guest is, and with it the group
    discard   removes a folder there
    """

    emulated: bool = False
    gone: Callable[[], bool] = lambda: False
    discard: Callable[[str], None] = lambda _: None

    @property
    def path(self) -> Path:
        return self.folders[0]

    def kill(self) -> int:
        """Kill every process inside and below, and return how many were seen when all are gone. Raises MachineError."""
        seen: set[int] = set()
        end = time.monotonic() + _PATIENCE_S
        while not self.gone() and self._populated():
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

    def _turn(self, *, frozen: bool) -> None:
        with parse_foreign(self.host.name, f"the freezer of {self.path}"):
            try:
                has_freezer = Freezer(self.host, (self.path,), self.processes, _PATIENCE_S).by_kernel(frozen=frozen)
            except MachineError:
                raise
            except HugewiseError as error:
                raise MachineError(f"{self.host.name}: {error.message}", hint=error.hint) from None
        if not has_freezer:
            raise MachineError(
                f"nothing in {self._named} can be frozen: its kernel has no cgroup.freeze",
                hint="give the study a kernel of Linux 5.2 or later",
            )

    def peak_bytes(self) -> int | None:
        with parse_foreign(self.host.name, f"the memory of {self.path}"):
            peak = super().peak_bytes()
            return None if peak is None else whole(str(peak), "memory.peak")

    def used(self) -> RoleUse:
        with parse_foreign(self.host.name, f"what {self.path} used"):
            return RoleUse(faults=self.faults()) if self.emulated else super().used()

    def processes(self) -> list[int]:
        with parse_foreign(self.host.name, f"{self.path}/cgroup.procs"), suppress(OSError):
            pids = self.host.read(f"{self.path}/cgroup.procs").split()
            return sorted({whole(pid, "the number of a process", low=1) for pid in pids[:_MOST_PROCESSES]})
        return []

    def table(self, folder: Path, file: str) -> dict[str, int]:
        """Return the numbers in a file of names and numbers; empty where there is none. Raises MachineError."""
        with parse_foreign(self.host.name, f"{folder}/{file}"):
            return {name: whole(str(value), name) for name, value in super().table(folder, file).items()}

    def limit_memory(self, size: int, *, swapping: bool = False) -> None:
        """Let the processes inside, and the page cache they fill, have at most `size` bytes. Raises MachineError."""
        if self.memory is None:
            raise MachineError(
                f"memory = ... needs the memory controller, and the kernel of {self.host.name} has none",
                hint="give the study a kernel with CONFIG_MEMCG",
            )
        try:
            self.host.write(f"{self.path}/memory.max", str(size))
        except OSError as error:
            raise MachineError(f"cannot limit the memory of {self._named}: {error.strerror}") from None

    def remove(self) -> None:
        """Remove the group, and those made inside. Raises MachineError while processes are inside."""
        end = time.monotonic() + _PATIENCE_S
        while not self.gone():
            try:
                self.discard(str(self.path))
                break
            except OSError as error:
                if error.errno != errno.EBUSY or self._populated() or time.monotonic() > end:
                    raise MachineError(f"cannot remove {self._named}: {error.strerror}") from None
                time.sleep(_PAUSE_S)  # the last process is gone but not yet taken off the books

    @property
    def _named(self) -> str:
        return f"the cgroup {self.path} of {self.host.name}"

    def _populated(self) -> bool:
        return self.table(self.path, "cgroup.events").get("populated", 0) != 0


class Groups:
    """The folder of the groups in a guest; it is made with the first one."""

    def __init__(self, machine: RemoteMachine, root: str = _ROOT) -> None:
        self._agent, self._emulated, self._root = machine.agent, machine.emulated, root
        self._ready = False

    def create(self, name: str) -> GuestLeaf:
        """Return the group of that name, with the memory controller where the kernel has one. Raises MachineError."""
        path = Path(self._root, name)
        try:
            if not self._ready:
                self._prepare()
            self._agent.make(str(path), 0o755)
            counted = "memory.stat" in self._agent.names(str(path))
        except OSError as error:
            raise MachineError(
                f"cannot make the cgroup {path} of {self._agent.name}: {error.strerror}",
                hint="give the study a kernel with CONFIG_CGROUPS",
            ) from None
        return GuestLeaf(
            (path,), path if counted else None, self._agent, self._emulated, self._agent.ended, self._agent.remove
        )

    def _prepare(self) -> None:
        with suppress(FileExistsError):
            self._agent.make(self._root, 0o755)
        offered = self._agent.read(f"{self._root}/cgroup.controllers").split()
        for name in _CONTROLLERS:
            if name in offered:
                self._agent.write(f"{self._root}/cgroup.subtree_control", f"+{name}")
        self._ready = True
