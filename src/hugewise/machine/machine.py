"""A machine on which programs run: this host, or a guest. Whatever plays a procedure touches it only through `Machine`.

`Host` is what a machine's files say; `Machine` adds processes, and files that programs leave behind. Every program is
started by the launcher of the probe that is there (`probe run`), which drops privileges, enters cgroups, pins, proves,
and ends everything when it is told to or its parent dies.

Which CPUs the system under test has, and which its clients. Pure.

What somebody else turned while hugewise had it turned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from hugewise.errors import HugewiseError
from hugewise.machine.probe import Event, Job
from hugewise.model.host import Host
from hugewise.model.procedure import RoleUse


class Running(Protocol):
    """A launcher under way, with the program below it."""

    def fileno(self) -> int:
        """A descriptor that is readable once it has ended."""
        ...

    def poll(self) -> int | None:
        """Its exit status (negative: the signal that killed it), or None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; when it returns, all that the job's files will hold is in them.

        Raises TimeoutError after `timeout` seconds.
        """
        ...

    def terminate(self) -> None:
        """Ask it to end everything below it, to say so, and to leave."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...

    def close(self) -> None:
        """Let go of it; it has ended."""
        ...


class Contained:
    """The processes of an attempt, or of one role in it, held together by a cgroup. This one is where there is none:
    then nothing is counted, and nothing can be ended as one.
    """

    @property
    def procs_files(self) -> tuple[Path, ...]:
        """What a process writes its pid to in order to enter."""
        return ()

    def kill(self) -> int:
        """Kill every process inside and wait until they are gone; returns how many were seen."""
        return 0

    def freeze(self) -> None:
        """Have every process inside stand still; returns when all do. What is frozen stays so, and can be killed.

        Raises HugewiseError, with a process that goes on where the kernel says which.
        """
        raise HugewiseError("without a cgroup nothing can be frozen", hint="see: hugewise doctor")

    def thaw(self) -> None:
        """Have what was frozen go on; nothing happens where it does. Raises HugewiseError."""
        raise HugewiseError("without a cgroup nothing can be thawed", hint="see: hugewise doctor")

    def peak_bytes(self) -> int | None:
        """The most memory that was charged at once, page cache included and hugetlb pages not; None if not counted."""
        return None

    def used(self) -> RoleUse:
        """CPU time and page faults of all processes since the group was made; None what is not counted.

        `user_s` and `system_s` may add up to slightly less than `cpu_s`. Of the faults the kernel may keep back some 64
        for each CPU.
        """
        return RoleUse()

    def processes(self) -> list[int]:
        """The processes inside, by their numbers on that machine."""
        return []

    def limit_memory(self, size: int, *, swapping: bool = False) -> None:
        """Let the processes inside, and the page cache they fill, have at most `size` bytes. `swapping`: what is more
        is swapped out, and nobody is ended for it.
        """

    def remove(self) -> None:
        """Remove the group, which is empty."""


class Folders(Protocol):
    """Private folders in which an attempt is played, in one place of a machine."""

    @property
    def path(self) -> Path:
        """Below which they lie."""
        ...

    def folder(self, name: str) -> Path:
        """A fresh, empty folder of that name for the account. Raises StorageError."""
        ...

    def within(self, name: str) -> Folders:
        """Folders of the same account in an empty folder of that name, for one of several attempts that are played at
        once. Raises StorageError.
        """
        ...

    def clear(self) -> None:
        """Remove what is inside. Raises StorageError."""
        ...


class Machine(Protocol):
    """Where programs run.

    host         its files
    environment  what every program there finds in its environment at least
    emulated     its clock means nothing: no figure that depends on time may be had from it
    counters     whether the counters of running servers can be had (`hugewise.host.local_machine`)
    """

    host: Host
    environment: Mapping[str, str]
    emulated: bool
    counters: bool

    def cpus(self) -> tuple[int, ...]:
        """The CPUs that may be used, by number."""
        ...

    def ports(self, count: int) -> tuple[int, ...]:
        """TCP ports that are free on its loopback now."""
        ...

    def start(self, job: Job, inherited: tuple[int, ...] = ()) -> Running:
        """Start the launcher. The files of `job` (specification, lines, stderr, and its specification's stdout and
        stderr) are on this side, whatever machine it is; `inherited` descriptors exist on this host alone.

        Raises ProbeError when there is no probe, MachineError when the machine is gone.
        """
        ...

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a process; nothing happens when it is gone."""
        ...

    def ask(self, *arguments: str) -> Event:
        """The first event of a short subcommand of the probe, such as `scan --pid 1`. Raises ProbeError."""
        ...

    def folder(self, path: str, uid: int | None, gid: int | None) -> None:
        """Make a fresh, empty folder for that account, mode 0700, in place of what was there. Raises StorageError."""
        ...

    def put(
        self, folder: str, name: str, content: bytes, uid: int | None, gid: int | None, *, mode: int = 0o644
    ) -> None:
        """Write the file `name` for the account below `folder`, with the folders that it lies in. Those of `name` may
        be the account's already: no link is followed there. Raises StorageError.
        """
        ...

    def files(self, folder: str, pattern: re.Pattern[str]) -> Iterator[bytes]:
        """The contents of the files whose name matches whole, in the order of names; folders and pipes have none.

        Raises UnreadableError where one is a link, too large, or not of the folder's owner.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a file or a folder with everything in it; nothing happens when it is gone. Raises StorageError."""
        ...


def roles(
    clients: bool, sut: Sequence[int] | None, client: Sequence[int] | None, online: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The CPUs of the system under test and of the clients: as the study names them, else half each.

    Without clients the system under test has all. On a machine with one CPU both have it.
    """
    given = tuple(sut or ())
    if not clients:
        every = given or tuple(online)
        return every, every
    named = tuple(client or ())
    if not given and not named:
        half = max(1, len(online) // 2)
        given, named = tuple(online[: len(online) - half]) or tuple(online), tuple(online[-half:])
    elif not given:
        given = tuple(cpu for cpu in online if cpu not in named) or named
    elif not named:
        named = tuple(cpu for cpu in online if cpu not in given) or given
    return given, named


SURPLUS = "surplus_hugepages"
"""The file of a hugetlb pool that counts pages beyond its size (admin-guide/mm/hugetlbpage.rst)."""


class Drift(msgspec.Struct, frozen=True):
    """A knob that does not hold what hugewise last wrote or saw; `found` is None when it cannot be read any more.

    For pages of a pool that could not be given back, as some program still uses them: its count of surplus pages.
    """

    path: str
    expected: str
    found: str | None

    def __str__(self) -> str:
        return f"{self.path} is {self.found or 'gone'}, not {self.expected}"

    def left_alone(self) -> str:
        """Why it is not as it was before the run, for the user."""
        if self.path.endswith(f"/{SURPLUS}"):
            return f"not restored, as a program still uses pages of the pool (they go with it): {self}"
        return f"not restored, somebody else turned it: {self}"
