"""A guest whose instructions are counted: it is told everything before it boots, so that nothing reaches it meanwhile.

To whoever plays an attempt it is a machine like any other, but one that is not there before its one program is started:
what is turned before becomes an order, and starting the program is what boots it. With the same orders and seed it
counts the same, bit for bit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping

from hugewise.errors import MachineError, ProbeError
from hugewise.guests.orders import Orders
from hugewise.guests.survey import Survey, Surveyed
from hugewise.machine import probe, programs
from hugewise.machine.agent import Agent
from hugewise.machine.drift import Drift
from hugewise.model.host import Host

__all__ = ["CountingKnobs", "CountingMachine"]


class CountingMachine:
    """A machine for one micro-workload: `machine.Machine`.

    boot     boots the guest with these orders, and returns its agent before anything was heard of it
    settle   seconds on the guest's clock in which it idles before the program starts: what a kernel does in the
             background after boot is done then
    patience seconds on this host's clock until all orders must be done
    """

    emulated = True
    counters = False

    def __init__(
        self, survey: Survey, name: str, boot: Callable[[bytes], Agent], *, settle: float, patience: float
    ) -> None:
        self.host: Host = _Planned(survey, name)
        self.environment: Mapping[str, str] = {"PATH": programs.PATH}
        self.knobs: dict[str, str] = {}
        self._boot, self._settle, self._patience = boot, settle, patience

    def cpus(self) -> tuple[int, ...]:
        """Its only one."""
        return (0,)

    def ports(self, count: int) -> tuple[int, ...]:
        """It has no network. Raises MachineError."""
        if count:
            raise self._cannot("has no network")
        return ()

    def start(self, job: probe.Job, inherited: tuple[int, ...] = ()) -> _Done:
        """Boot it, let it do everything, and hear it out; the launcher has ended then.

        Raises ProbeError, SettingError when a knob was not taken, MachineError when the guest is gone.
        """
        if inherited:
            raise ProbeError("launchers of a guest cannot meet those of this host")
        orders = Orders()
        for path, text in self._planned.writes:
            orders.write(path, text)
        orders.write("/proc/sys/kernel/perf_event_paranoid", "0", optional=True)  # the guest is nobody else's
        orders.turn(self.knobs)
        orders.settle(self._settle)
        spawned = orders.spawn(job)
        orders.wait(spawned)
        if problems := orders.collect(self._boot(orders.render()), self._patience):
            raise ProbeError(f"{self.host.name}: {'; '.join(problems)}")
        return _Done(spawned.status())

    def signal(self, pid: int, number: int) -> None:
        """Its program has ended."""

    def ask(self, *arguments: str) -> probe.Event:
        """It cannot be asked. Raises ProbeError."""
        raise ProbeError(f"{self.host.name} counts: it cannot be asked for {' '.join(arguments)}")

    def folder(self, path: str, uid: int | None, gid: int | None) -> None:
        """It has no files of its own. Raises MachineError."""
        raise self._cannot(f"has no folder {path}")

    def put(
        self, folder: str, name: str, content: bytes, uid: int | None, gid: int | None, *, mode: int = 0o644
    ) -> None:
        """Likewise."""
        raise self._cannot(f"takes no file {folder}/{name}")

    def files(self, folder: str, pattern: re.Pattern[str]) -> Iterator[bytes]:
        """Likewise."""
        raise self._cannot(f"has no files in {folder}")

    def remove(self, path: str) -> None:
        """There is nothing to remove."""

    @property
    def _planned(self) -> _Planned:
        assert isinstance(self.host, _Planned)
        return self.host

    def _cannot(self, what: str) -> MachineError:
        return MachineError(
            f"{self.host.name} counts instructions and runs micro-workloads alone: it {what}",
            hint="remove counting = true from [guest], or the workload from the study",
        )


class _Planned(Surveyed):
    """What the survey of its kernel says; what is written is kept as an order."""

    def __init__(self, survey: Survey, name: str) -> None:
        super().__init__(survey, name)
        self.writes: list[tuple[str, str]] = []

    def write(self, path: str, text: str) -> None:
        """Have it written when the guest has booted."""
        self.writes.append((path, text))


class CountingKnobs:
    """Its page settings: `site.Knobs`. They are turned when it boots, and read back when it is heard out."""

    def __init__(self, machine: CountingMachine) -> None:
        self._machine = machine

    def apply(self, knobs: Mapping[str, str]) -> list[Drift]:
        """Have them turned."""
        self._machine.knobs = dict(knobs)
        return []

    def drift(self) -> list[Drift]:
        """Nobody else is there."""
        return []

    def values(self) -> Mapping[str, str]:
        """What was turned, and taken."""
        return self._machine.knobs


class _Done:
    """A launcher that has ended: `machine.Running`."""

    def __init__(self, status: int) -> None:
        self._status = status
        self._descriptor = os.eventfd(1, os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._descriptor

    def poll(self) -> int:
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        return self._status

    def terminate(self) -> None:
        pass

    def kill(self) -> None:
        pass

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
