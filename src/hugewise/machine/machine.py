"""A machine on which programs run: this host, or a guest. A procedure touches it only through `Machine`.

`Host` is what a machine's files say; `Machine` adds processes, and files that programs leave behind. Every program is
started by the launcher of the probe that is there (`probe run`), which drops privileges, enters cgroups, pins, proves,
and ends everything when it is told to or its parent dies. Launchers under way are servers, commands, and those that
meet at a barrier.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from hugewise import reading
from hugewise.errors import HugewiseError, ProbeError
from hugewise.machine import probe
from hugewise.machine.probe import Event, Job, Source
from hugewise.model.host import Host
from hugewise.model.procedure import Peer, RoleUse


class Running(Protocol):
    """A launcher under way, with the program below it."""

    def fileno(self) -> int:
        """Return a descriptor that is readable once it has ended."""
        ...

    def poll(self) -> int | None:
        """Return the exit status (negative: the signal that killed it), or None while the process runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, when the job's files are complete. Raises TimeoutError after `timeout` seconds."""
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
    """The processes of an attempt or role, in a cgroup. Here without one: nothing is counted, or ended as one."""

    @property
    def procs_files(self) -> tuple[Path, ...]:
        return ()

    def kill(self) -> int:
        return 0

    def freeze(self) -> None:
        """Have every process inside stand still; frozen processes can be killed. Raises HugewiseError."""
        raise HugewiseError("without a cgroup nothing can be frozen", hint="see: hugewise doctor")

    def thaw(self) -> None:
        """Have what was frozen go on; nothing happens where it does. Raises HugewiseError."""
        raise HugewiseError("without a cgroup nothing can be thawed", hint="see: hugewise doctor")

    def follow(self, launcher: Running) -> None:
        """Hear which launcher has started the processes inside."""

    def peak_bytes(self) -> int | None:
        return None

    def used(self) -> RoleUse:
        """Return CPU time and faults since the group was made (None: not counted); up to 64 faults a CPU may lack."""
        return RoleUse()

    def processes(self) -> list[int]:
        return []

    def limit_memory(self, size: int, *, swapping: bool = False) -> None:
        """Limit the processes inside, with their page cache, to `size` bytes; `swapping`: the rest is swapped out."""

    def remove(self) -> None: ...


class Folders(Protocol):
    """Private folders in which an attempt is played, in one place of a machine."""

    @property
    def path(self) -> Path:
        """Folder that holds the files."""
        ...

    def folder(self, name: str) -> Path:
        """Return a fresh, empty folder of that name for the account. Raises StorageError."""
        ...

    def within(self, name: str) -> Folders:
        """Return folders of the same account in a new folder of that name. Raises StorageError."""
        ...

    def clear(self) -> None:
        """Remove what is inside. Raises StorageError."""
        ...


class Machine(Protocol):
    """A machine that programs run on.

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
        """Return the CPUs that may be used, by number."""
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
        """Run a short subcommand of the probe, and return its first event. Raises ProbeError."""
        ...

    def folder(self, path: str, uid: int | None, gid: int | None) -> None:
        """Make a fresh, empty folder for that account, mode 0700, in place of what was there. Raises StorageError."""
        ...

    def put(
        self, folder: str, name: str, content: bytes, uid: int | None, gid: int | None, *, mode: int = 0o644
    ) -> None:
        """Write the file `name` for the account below `folder`, following no link in `name`. Raises StorageError."""
        ...

    def files(self, folder: str, pattern: re.Pattern[str]) -> Iterator[bytes]:
        """Return the contents of regular files whose name matches, by name. Raises UnreadableError."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file or a folder with everything in it; nothing happens when it is gone. Raises StorageError."""
        ...


def roles(
    clients: bool, sut: Sequence[int] | None, client: Sequence[int] | None, online: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the CPUs of the system under test and of the clients: as the study names them, else half each."""
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
    """A knob (of a pool its surplus) that does not hold what hugewise last wrote or saw; `found` None: unreadable."""

    path: str
    expected: str
    found: str | None

    def __str__(self) -> str:
        return f"{self.path} is {self.found or 'gone'}, not {self.expected}"

    def left_alone(self) -> str:
        if self.path.endswith(f"/{SURPLUS}"):
            return f"not restored, as a program still uses pages of the pool (they go with it): {self}"
        return f"not restored, somebody else turned it: {self}"


_TO_LEAVE_S = 10


def read_events(job: probe.Job) -> list[probe.Event]:
    """Return the launcher's events so far. Raises ProbeError."""
    try:
        lines = reading.content(job.events, probe.MOST_EVENTS)
    except reading.AbsentError:
        return []
    except reading.UnreadableError as error:
        raise ProbeError(f"{job.events}: {error}") from None
    return list(probe.decode(lines.splitlines(keepends=True)))


class Serving:
    """A server (`pid`) below a launcher of its own, which dies with this process; `launcher` is readable at its end."""

    def __init__(self, machine: Machine, job: probe.Job) -> None:
        self._machine, self._job = machine, job
        self._running = machine.start(job)
        self.launcher = self._running.fileno()
        started = None
        while started is None and self._running.poll() is None:
            started = self._started()
            if started is None:
                select.select([self.launcher], [], [], 0.002)
        started = started or self._started()
        if started is None:
            message = next(
                (event.message for event in self.events() if isinstance(event, probe.Error)), "it said nothing"
            )
            self.close()
            raise ProbeError(f"it did not start: {message}")
        self.pid = started.pid

    def _started(self) -> probe.Start | None:
        return next((event for event in self.events() if isinstance(event, probe.Start)), None)

    def events(self) -> list[probe.Event]:
        return read_events(self._job)

    def ended(self) -> bool:
        return self._running.poll() is not None

    def stop(self, number: int, patience: float) -> bool:
        """Send the server `number` and wait until it is gone; False when it had to be killed after `patience` s."""
        if not self.ended():
            self._machine.signal(self.pid, number)
        try:
            self._running.wait(patience)
        except TimeoutError:
            self.kill()
            return False
        return True

    def kill(self) -> None:
        _end([self._running])

    def close(self) -> None:
        self.kill()
        self._running.close()


class Meeting:
    """Barrier at which probes of this host wait for each other: two pipes. A context manager; see the protocol."""

    def __init__(self) -> None:
        self._arrived, self._ready = os.pipe()
        self._held, self._go = os.pipe()

    @property
    def barrier(self) -> probe.Barrier:
        return probe.Barrier(self._ready, self._held)

    @property
    def inherited(self) -> tuple[int, int]:
        return self._ready, self._held

    def release(self, launched: Sequence[Running], before: Callable[[], None] = lambda: None) -> None:
        """Let all go when all are ready, or one has ended, after `before` was called."""
        try:
            waiting, ends = len(launched), [running.fileno() for running in launched]
            while waiting > 0:
                readable, _, _ = select.select([self._arrived, *ends], [], [])
                if self._arrived in readable:
                    waiting -= len(os.read(self._arrived, waiting))
                else:
                    break
            before()
        finally:
            os.close(self._go)
            self._go = -1

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in (self._arrived, self._ready, self._held, self._go):
            if descriptor >= 0:
                os.close(descriptor)


def run_launchers(
    jobs: Sequence[tuple[Machine, probe.Job]],
    meeting: Meeting | None = None,
    *,
    before: Callable[[], None] = lambda: None,
    alongside: Callable[[Sequence[Running]], None] = lambda _: None,
) -> list[int]:
    """Run attempts, each on its machine, all at once, and return their launchers' exit statuses.

    `before` is called when all wait at the `meeting`, `alongside` while they run. An interrupt ends the probes' trees.
    """
    launched: list[Running] = []
    try:
        for machine, job in jobs:
            # Not a comprehension: one that cannot be started must find the others in the list.
            launched.append(machine.start(job, () if meeting is None else meeting.inherited))
        if meeting is not None:
            meeting.release(launched, before)
        alongside(launched)
        return [running.wait() for running in launched]
    except BaseException:
        _end(launched)
        raise
    finally:
        for running in launched:
            running.close()


def _end(launched: Sequence[Running]) -> None:
    for running in launched:
        running.terminate()
    for running in launched:
        try:
            running.wait(_TO_LEAVE_S)
        except TimeoutError:
            running.kill()
            with suppress(TimeoutError):
                running.wait(_TO_LEAVE_S)


class Knobs(Protocol):
    """The page settings of a machine."""

    def apply(self, knobs: Mapping[str, str]) -> list[Drift]:
        """Turn them; returns what somebody else turned since. Raises SettingError."""
        ...

    def drift(self) -> list[Drift]:
        """Return the settings that another process has changed since."""
        ...

    def values(self) -> Mapping[str, str]:
        """Return the current settings, by path."""
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
        return self.machine.host
