"""One arm of those that are resident together and take turns: it is frozen while others have theirs.

With servers it is these and a client; else it is a command alone. Whose server or client is gone has failed, and takes
no more turns; a command with what must not be frozen cannot take any.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from hugewise.attempt.context import AttemptState
from hugewise.attempt.outcome import Problem
from hugewise.attempt.procedure import ProcedureError, ends
from hugewise.attempt.service import ServiceDriver
from hugewise.attempt.turns import Side
from hugewise.errors import HugewiseError
from hugewise.host import freezer
from hugewise.model.design import SEQUENTIAL

EVENTS = "events.jsonl"
"""What the launcher of a timed command says, in the attempt's folder."""

_PROBE = "hugewise-probe"


@dataclass
class ArmInTurns:
    """One arm's processes, as a `turns.Player`.

    side   its groups and the launcher of its timed command
    rests  when it was frozen: begin and end of each time, in seconds of CLOCK_MONOTONIC
    early  whether its client ended before all turns were over
    """

    work: AttemptState
    side: Side
    rests: list[tuple[float, float]] = field(default_factory=list)
    frozen: float | None = None
    early: bool = False

    @property
    def fallen(self) -> bool:
        """Whether it takes no more turns."""
        return self.early or self.work.driver.problem is not None

    def fall(self, error: ProcedureError) -> None:
        """Its server is gone, and nothing of it counts: what is left is ended, as a client may wait for the server, and
        what is about to end cannot be frozen.
        """
        self.work.driver.problem = self.work.driver.problem or Problem("failed", error.message)
        self.work.client.kill()
        self.work.leaf.kill()

    @property
    def driver(self) -> ServiceDriver | None:
        """Of an arm with servers."""
        return self.work.driver if isinstance(self.work.driver, ServiceDriver) else None

    def freeze(self) -> None:
        """Raises ProcedureError."""
        with self._answering():
            self.side.freeze()
        if self.frozen is None:
            self.frozen = time.monotonic()

    def thaw(self) -> None:
        """Raises ProcedureError."""
        with self._answering():
            self.side.thaw()
        if self.frozen is not None:
            self.rests.append((self.frozen, time.monotonic()))
        self.frozen = None

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """What does not stand still, or does not go on, is the arm's doing, and ends no run. That there is no cgroup
        is nobody's.
        """
        try:
            yield
        except HugewiseError as error:
            if not any(group.procs_files for group in self.side.groups):
                raise
            raise CannotTakeTurnsError(self.work, error.message) from error

    def wait(self, until: float) -> bool:
        """Also True where its server has ended, or its clients have done what they were given to do. Raises
        ProcedureError when a command has what must not be frozen.
        """
        if self.driver is not None:
            return self._works(self.driver, until) if self.driver.fixed else self._serves(self.driver, until)
        if ends([], [self.side.running], until) or (self._leaving() and ends([], [self.side.running], None)):
            return True
        if (why := freezer.unfreezable_reason(self.work.leaf.processes())) is not None:
            raise CannotTakeTurnsError(
                self.work, f"{why}; such a command is compared one after the other: {SEQUENTIAL}"
            )
        return False

    def _works(self, driver: ServiceDriver, until: float) -> bool:
        """Whom it talks to is its own server, which stands still when it does."""
        procedure_runners, processes = [driver.procedure_runner], [self.side.running]
        try:
            return ends(procedure_runners, processes, until) or (
                self._leaving() and ends(procedure_runners, processes, None)
            )
        except ProcedureError as error:
            self.fall(error)
        return True

    def _serves(self, driver: ServiceDriver, until: float) -> bool:
        try:
            if not ends([driver.procedure_runner], [self.side.running], until):
                return driver.has_done()
            if driver.procedure.window is None:  # it was to end when it has done its work
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
        """Whether its command is on its way out: its launcher has kept silent until then. A process that gives its
        memory back cannot be frozen, so that it has the time to itself: else what that takes, which depends on the size
        of its pages, would be nobody's.
        """
        return (self.work.draft / EVENTS).stat().st_size > 0

    def begun(self) -> bool:
        """Whether its timed command is there, and no longer the launcher about to become it. A launcher that waits for
        that would not hear that it shall end.
        """
        if self.side.running.poll() is not None:
            return True
        for pid in (self.work.leaf if self.driver is None else self.work.client).processes():
            with suppress(OSError):
                if Path(f"/proc/{pid}/exe").readlink().name != _PROBE:
                    return True
        return False


class CannotTakeTurnsError(ProcedureError):
    """An arm cannot take turns."""

    def __init__(self, work: AttemptState, message: str) -> None:
        super().__init__(message)
        self.work = work
