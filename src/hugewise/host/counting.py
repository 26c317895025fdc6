"""Performance counters of servers that run already, for the measured part alone.

    counting = Counting(pids, events)   # opened on every thread, not yet counting
    counting.begin(); ...; counting.end()
    counting.counts()

Needs the probe's `count`; what the processes and threads make meanwhile is counted too.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Sequence

from hugewise.errors import ProbeError
from hugewise.machine import probe

__all__ = ["Counting"]

_PATIENCE_S = 60.0


class Counting:
    """A probe that counts for other processes. It ends when this process does: its stdin ends then."""

    def __init__(self, pids: Sequence[int], events: Sequence[str]) -> None:
        """Open the counters on the processes and on all that descends from them. Raises ProbeError."""
        words = [word for pid in pids for word in ("--pid", str(pid))]
        self.said = b""  # its lines so far
        self._read = 0
        self._process = subprocess.Popen(
            [probe.find(), "count", "--counters", ",".join(events), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._await("ready")
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """Count from now on. Raises ProbeError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"g")
            self._process.stdin.flush()
        except OSError as error:
            raise ProbeError(f"counting ended before it began: {error}") from None
        self._await("timed")

    def end(self) -> None:
        """Count no more. Raises ProbeError."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._await("held")

    def counts(self) -> probe.Counters:
        """What was counted, when it has ended. Raises ProbeError."""
        while True:
            event = self._next()
            if isinstance(event, probe.Counters):
                return event

    def close(self) -> None:
        """End it, whatever it does."""
        probe.put_away(self._process)

    def _await(self, phase: str) -> None:
        while True:
            event = self._next()
            if isinstance(event, probe.Phase) and event.name == phase:
                return

    def _next(self) -> probe.Event:
        """What it says next."""
        assert self._process.stdout is not None
        give_up = time.monotonic() + _PATIENCE_S
        while b"\n" not in self.said[self._read :]:
            left = max(0.0, give_up - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                raise ProbeError(f"counting the servers: no answer within {_PATIENCE_S:g} s")
            more = os.read(self._process.stdout.fileno(), 65_536)
            if not more:
                raise ProbeError(f"counting the servers ended early: {self._complaint()}")
            self.said += more
        end = self.said.index(b"\n", self._read) + 1
        line, self._read = self.said[self._read : end], end
        return next(probe.decode([line]))

    def _complaint(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.read().decode(errors="replace").strip() or "it said nothing"
