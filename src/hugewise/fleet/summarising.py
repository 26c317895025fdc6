"""The summaries of a fleet's runs, made as soon as each run is there: so that its report has only to read them.

A process of its own makes them, at the least priority: the coordinator is never held up, and what one of them costs in
memory is gone with it. It is told of runs on its standard input, a path a line, and ends when that does. Nothing rests
on it: what it has not made when it ends, or is killed, a report makes.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from hugewise.fleet.installation import THIS
from hugewise.fleet.summaries import summaries
from hugewise.processes import die_with_parent

__all__ = ["Summarising", "main"]

_LEAST = 19  # nice(2)
_CHUNK = 1 << 16
_PIPE_BUF = 4096  # what is not longer is written whole or not at all: pipe(7)


class Summarising:
    """Meanwhile, `add` has the summary of a run made, and returns at once. At the end the last ones are waited for, and
    `say` hears how many; an interrupt leaves them to the report.
    """

    def __init__(self, fleet: Path, say: Callable[[str], None], command: Sequence[str] = THIS) -> None:
        self._fleet, self._say, self._command = fleet, say, command
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def add(self, run: Path) -> None:
        """Have it made."""
        if self._child is None:
            self._child = self._started()
        assert self._child.stdin is not None
        line = os.fsencode(run.absolute()) + b"\n"
        if len(line) <= _PIPE_BUF:
            with suppress(OSError):  # it was killed, or has much to do: a report will make it
                self._child.stdin.write(line)

    def _started(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [*self._command, "fleet", "summarise", str(self._fleet.absolute())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is the coordinator's
        )
        assert child.stdin is not None
        os.set_blocking(child.stdin.fileno(), False)  # 64 KiB of paths wait in the pipe; more are left to the report
        return child

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        try:
            child.stdin.close()
            if kind is None:
                try:
                    child.wait(1.0)
                except subprocess.TimeoutExpired:
                    self._say("the last runs are being summarised for the report (Ctrl-C leaves that to it)")
                    child.wait()
        except KeyboardInterrupt:
            pass
        finally:
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def main(fleet: Path) -> None:
    """`hugewise fleet summarise FLEET`: what standard input names. One after another while more may come, so that the
    coordinator has its processor; then the rest at once.
    """
    die_with_parent(signal.SIGKILL)
    os.nice(_LEAST)
    left: list[Path] = []
    rest, over = b"", False
    os.set_blocking(0, False)
    while not over or left:
        if not over:
            more, over = _said(wait=not left)
            *lines, rest = (rest + more).split(b"\n")
            left += [Path(os.fsdecode(line)) for line in lines]
        now, left = (left, []) if over else (left[:1], left[1:])
        if now:
            summaries(fleet, now, jobs=None if over else 1)


def _said(*, wait: bool) -> tuple[bytes, bool]:
    """What standard input has, and whether that was all."""
    found = b""
    while True:
        if wait and not found:
            select.select([0], [], [])
        try:
            more = os.read(0, _CHUNK)
        except BlockingIOError:
            return found, False
        if not more:
            return found, True
        found += more
