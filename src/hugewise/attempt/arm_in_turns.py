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
from hugewise.attempt.service import ServiceDriver
from hugewise.attempt.stage import StageError, ends
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
        return self.early or self.work.play.problem is not None

    def fall(self, error: StageError) -> None:
        """Its server is gone, and nothing of it counts: what is left is ended, as a client may wait for the server, and
        what is about to end cannot be frozen.
        """
        self.work.play.problem = self.work.play.problem or Problem("failed", error.message)
        self.work.client.kill()
        self.work.leaf.kill()

    @property
    def play(self) -> ServiceDriver | None:
        """Of an arm with servers."""
        return self.work.play if isinstance(self.work.play, ServiceDriver) else None

    def freeze(self) -> None:
        """Raises StageError."""
        with self._answering():
            self.side.freeze()
        if self.frozen is None:
            self.frozen = time.monotonic()

    def thaw(self) -> None:
        """Raises StageError."""
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
        """Also True where its server has ended, or its clients have done what they were given to do. Raises StageError
        when a command has what must not be frozen.
        """
        if self.play is not None:
            return self._works(self.play, until) if self.play.fixed else self._serves(self.play, until)
        if ends([], [self.side.running], until) or (self._leaving() and ends([], [self.side.running], None)):
            return True
        if (why := freezer.unfreezable_reason(self.work.leaf.processes())) is not None:
            raise CannotTakeTurnsError(
                self.work, f"{why}; such a command is compared one after the other: {SEQUENTIAL}"
            )
        return False

    def _works(self, play: ServiceDriver, until: float) -> bool:
        """Whom it talks to is its own server, which stands still when it does."""
        stages, processes = [play.stage], [self.side.running]
        try:
            return ends(stages, processes, until) or (self._leaving() and ends(stages, processes, None))
        except StageError as error:
            self.fall(error)
        return True

    def _serves(self, play: ServiceDriver, until: float) -> bool:
        try:
            if not ends([play.stage], [self.side.running], until):
                return play.has_done()
            if play.scene.window is None:  # it was to end when it has done its work
                return True
            play.stage.check_again()
        except StageError as error:
            self.fall(error)
        else:
            self.early = True
        return True

    def look(self, how: Callable[[], None]) -> None:
        """Look at its servers' pages; they may be gone."""
        try:
            how()
        except StageError as error:
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
        for pid in (self.work.leaf if self.play is None else self.work.client).processes():
            with suppress(OSError):
                if Path(f"/proc/{pid}/exe").readlink().name != _PROBE:
                    return True
        return False


class CannotTakeTurnsError(StageError):
    """An arm cannot take turns."""

    def __init__(self, work: AttemptState, message: str) -> None:
        super().__init__(message)
        self.work = work
