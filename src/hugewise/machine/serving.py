"""Launchers under way: a server that runs until it is stopped, commands that run to their end, and where they meet.

Where an attempt runs: this host for a whole session, or a guest for that attempt alone; and where its clients do.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from hugewise import reading
from hugewise.errors import ProbeError
from hugewise.machine import probe
from hugewise.machine.machine import Contained, Drift, Folders, Machine, Running
from hugewise.machine.probe import Source
from hugewise.model.host import Host
from hugewise.model.procedure import Peer

_TO_LEAVE_S = 10


def events(job: probe.Job) -> list[probe.Event]:
    """What the launcher has said so far. Raises ProbeError."""
    try:
        said = reading.content(job.events, probe.MOST_EVENTS)
    except reading.AbsentError:
        return []
    except reading.UnreadableError as error:
        raise ProbeError(f"{job.events}: {error}") from None
    return list(probe.decode(said.splitlines(keepends=True)))


class Serving:
    """A server below a launcher of its own, which ends it when this process dies. `pid` is the server's own.

    `launcher` is readable as soon as it has ended.
    """

    def __init__(self, machine: Machine, job: probe.Job) -> None:
        """Start it, and wait until its process is there. Raises ProbeError when there is none."""
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
            said = next((event.message for event in self.events() if isinstance(event, probe.Error)), "it said nothing")
            self.close()
            raise ProbeError(f"it did not start: {said}")
        self.pid = started.pid

    def _started(self) -> probe.Start | None:
        return next((event for event in self.events() if isinstance(event, probe.Start)), None)

    def events(self) -> list[probe.Event]:
        """What the launcher has said so far."""
        return events(self._job)

    def ended(self) -> bool:
        """Whether the server is gone, and its launcher."""
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
        """End the server and all that it started."""
        _end([self._running])

    def close(self) -> None:
        """End what is left, and let go of it."""
        self.kill()
        self._running.close()


class Meeting:
    """Where probes of this host that begin together wait for each other: two pipes. A context; see the protocol."""

    def __init__(self) -> None:
        self._arrived, self._ready = os.pipe()
        self._held, self._go = os.pipe()

    @property
    def barrier(self) -> probe.Barrier:
        """What each probe is told."""
        return probe.Barrier(self._ready, self._held)

    @property
    def inherited(self) -> tuple[int, int]:
        """The descriptors that the probes need."""
        return self._ready, self._held

    def release(self, launched: Sequence[Running], before: Callable[[], None] = lambda: None) -> None:
        """Let all go when all are ready, after `before` was called. When one has ended without getting there, the
        others need not wait either.
        """
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


def run(
    jobs: Sequence[tuple[Machine, probe.Job]],
    meeting: Meeting | None = None,
    *,
    before: Callable[[], None] = lambda: None,
    alongside: Callable[[Sequence[Running]], None] = lambda _: None,
) -> list[int]:
    """Run attempts, each on its machine, all at once; returns the exit statuses of the launchers.

    `before` is called when all are ready and wait to be let go (with a `meeting`), `alongside` while they run.
    An interrupt, and whatever `alongside` raises, is passed on, so that the probes kill their trees and say so, before
    it is raised again.
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
    """Ask the launchers to kill their trees and to leave."""
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
        """What somebody else turned since."""
        ...

    def values(self) -> Mapping[str, str]:
        """How they stand, by path."""
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
        """The machine's files."""
        return self.machine.host
