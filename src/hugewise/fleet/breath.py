"""When the engine's worker may go on for a moment: between two blocks, and as long as an order is being obeyed."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hugewise import reading
from hugewise.fleet.kept import WorkerAt

__all__ = ["Breath", "obeying"]

EVERY_S, LASTS_S, _MOST_S, _STEP_S = 15.0, 0.5, 5.0, 0.02


@contextmanager
def obeying(path: Path, *, alone: bool = False) -> Iterator[None]:
    """Meanwhile, an order is obeyed: the keeper has no attempt begin between two blocks (for some seconds), and who is
    `alone` waits for all others. Raises OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


class Breath:
    """`orders` is the file that is locked while an order is obeyed; beside it stands which worker carried the last."""

    def __init__(self, orders: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._orders, self._clock, self._last = orders, clock, clock()

    def worker(self) -> WorkerAt | None:
        """The worker that carried the last order; None where none did."""
        with suppress(reading.UnreadableError):
            return reading.stored(self._orders.with_name("worker"), WorkerAt)
        return None

    def due(self) -> bool:
        """Whether the last one is long enough ago."""
        return self._clock() - self._last >= EVERY_S

    def take(self) -> None:
        """Give the worker a moment, and an order that it is obeying some seconds."""
        time.sleep(LASTS_S)
        end = time.monotonic() + _MOST_S
        with suppress(OSError):
            descriptor = os.open(self._orders, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                while time.monotonic() < end:
                    with suppress(BlockingIOError):
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    time.sleep(_STEP_S)
            finally:
                os.close(descriptor)
        self._last = self._clock()
