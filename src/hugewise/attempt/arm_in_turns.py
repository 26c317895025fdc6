"""Arm of an interleaved block: the processes of the arm are frozen while other arms have their turns.

An arm with servers has them and a client; any other arm is a timed command and its processes. An arm whose server or
client has ended has failed, and takes no more turns; a command that holds something that must not be frozen cannot take
turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from hugewise.attempt.context import AttemptState
from hugewise.attempt.outcome import Problem
from hugewise.attempt.procedure import ProcedureError, ends
from hugewise.attempt.service import ServiceDriver
from hugewise.attempt.under_test import memory_bytes
from hugewise.errors import HugewiseError, ProbeError
from hugewise.host import cgroup
from hugewise.machine import probe
from hugewise.machine.machine import Contained, Running
from hugewise.model.design import SEQUENTIAL

EVENTS = "events.jsonl"
"""Events of the launcher of a timed command, in the attempt's folder."""

_LEAST_SCANNED, _GROWN = 4 << 20, 1.25


@dataclass
class ArmInTurns:
    """Arm's processes, as a `turns.Player`.

    groups   its servers' before its client's: servers are thawed before their client, and frozen after it
    launcher of its timed command, which is in none of the groups; None before it is started
    turn     turns the page settings to those of the arm, before each turn; raises Disturbed, SettingError
    rests    when it was frozen: begin and end of each time, in seconds of CLOCK_MONOTONIC
    early    whether its client ended before all turns were over
    fullest  the scan of the processes of a command when they had most memory, which were `most_bytes`
    """

    work: AttemptState
    groups: Sequence[Contained]
    launcher: Running | None = None
    turn: Callable[[], None] = lambda: None
    rests: list[tuple[float, float]] = field(default_factory=list)
    frozen: float | None = None
    early: bool = False
    fullest: Sequence[probe.Coverage] = ()
    most_bytes: int = _LEAST_SCANNED

    @property
    def running(self) -> Running:
        """The launcher of its timed command, which is running."""
        assert self.launcher is not None
        return self.launcher

    @property
    def fallen(self) -> bool:
        """True if the arm takes no more turns."""
        return self.early or self.work.driver.problem is not None

    def fall(self, error: ProcedureError) -> None:
        """End the rest of the arm after its server has gone; nothing of the arm counts. A client may wait for the
        server, and a process that is about to end cannot be frozen.
        """
        self.work.driver.problem = self.work.driver.problem or Problem("failed", error.message)
        self.work.client.kill()
        self.work.leaf.kill()

    @property
    def served(self) -> bool:
        """True if servers are under test; else the timed command is."""
        return self.work.driver.served

    @property
    def driver(self) -> ServiceDriver | None:
        """Driver of a staged workload's arm, else None."""
        return self.work.driver if isinstance(self.work.driver, ServiceDriver) else None

    def freeze(self) -> None:
        """Freeze the arm. Raises ProcedureError."""
        with self._answering():
            for group in reversed(self.groups):
                group.freeze()
        if self.frozen is None:
            self.frozen = time.monotonic()
            if not self.served:
                self._scan()

    def _scan(self) -> None:
        """Scan the frozen processes of a command where they have more memory than at the last scan."""
        if not (processes := self.work.leaf.processes()):
            return
        site = self.work.site
        now = memory_bytes(site.host, processes)
        if now <= self.most_bytes * _GROWN:
            return
        self.most_bytes = now
        scanned = []
        for pid in processes:
            with suppress(ProbeError):  # the process has ended
                scanned.append(site.machine.ask("scan", "--pid", str(pid), "--source", site.source))
        self.fullest = [event for event in scanned if isinstance(event, probe.Coverage)]

    def thaw(self) -> None:
        """Thaw the arm. Raises ProcedureError, Disturbed, SettingError."""
        self.turn()
        self.release()

    def release(self) -> None:
        """Go on, whatever the page settings are. Raises ProcedureError."""
        with self._answering():
            for group in self.groups:
                group.thaw()
        if self.frozen is not None:
            self.rests.append((self.frozen, time.monotonic()))
        self.frozen = None

    @contextmanager
    def _answering(self) -> Iterator[None]:
        # A failure to freeze or thaw is the arm's and ends no run; a missing cgroup is no arm's fault.
        try:
            yield
        except HugewiseError as error:
            if not any(group.procs_files or isinstance(group, cgroup.Tree) for group in self.groups):
                raise
            raise CannotTakeTurnsError(self.work, error.message) from error

    def wait(self, until: float) -> bool:
        """Also True where its server has ended, or its clients have done what they were given to do. Raises
        ProcedureError when a command has what must not be frozen.
        """
        if self.driver is not None:
            return self._works(self.driver, until) if self.driver.fixed else self._serves(self.driver, until)
        if ends([], [self.running], until) or (self._leaving() and ends([], [self.running], None)):
            return True
        if (why := cgroup.unfreezable_reason(self.work.leaf.processes())) is not None:
            raise CannotTakeTurnsError(
                self.work, f"{why}; such a command is compared one after the other: {SEQUENTIAL}"
            )
        return False

    def _works(self, driver: ServiceDriver, until: float) -> bool:
        # a frozen arm's client talks only to its own server, which is frozen as well
        procedure_runners, processes = [driver.procedure_runner], [self.running]
        try:
            return ends(procedure_runners, processes, until) or (
                self._leaving() and ends(procedure_runners, processes, None)
            )
        except ProcedureError as error:
            self.fall(error)
        return True

    def _serves(self, driver: ServiceDriver, until: float) -> bool:
        try:
            if not ends([driver.procedure_runner], [self.running], until):
                return driver.has_done()
            if driver.procedure.window is None:  # it should have ended after its work
                return True
            driver.procedure_runner.check_again()
        except ProcedureError as error:
            self.fall(error)
        else:
            self.early = True
        return True

    def look(self, how: Callable[[], None]) -> None:
        """Look at its servers' pages; they may be gone."""
        try:
            how()
        except ProcedureError as error:
            self.fall(error)

    def _leaving(self) -> bool:
        # The launcher speaks only when its command ends. A process that gives its memory back cannot be frozen, so let
        # it finish
        return (self.work.draft / EVENTS).stat().st_size > 0

    def begun(self) -> bool:
        """Return whether the timed command has replaced its launcher, which would not hear the order to end."""
        if self.running.poll() is not None:
            return True
        return any(map(probe.has_executed, (self.work.client if self.served else self.work.leaf).processes()))


class CannotTakeTurnsError(ProcedureError):
    """An arm cannot take turns."""

    def __init__(self, work: AttemptState, message: str) -> None:
        super().__init__(message)
        self.work = work
