"""A hugewise that is tortured: its command line, started as a user starts it, in processes of their own."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hugewise import processes
from hugewise.errors import UserError
from hugewise.torture import descent

__all__ = ["THIS", "CommandEnded", "Subject"]

THIS = (sys.executable, "-P", "-c", "from hugewise.cli.main import main; main()")
"""The hugewise that this is, as a command."""

_LONGEST_S = 600.0


@dataclass(frozen=True)
class CommandEnded:
    """A command that has ended. `status`: its exit status, negative the signal that ended it. `seconds`: its life.

    `hit`: it was still there when it was to be killed.
    """

    verb: str
    status: int
    seconds: float
    said: str
    hit: bool = False

    @property
    def traceback(self) -> bool:
        """Whether it ended with an error that nobody thought of."""
        return "Traceback (most recent call last)" in self.said

    def told(self) -> str:
        """Its end, and the last that it said."""
        lines = [line for line in self.said.strip().splitlines() if line.strip()]
        return f"{self.verb}: exit status {self.status}: {' / '.join(lines[-3:])}"


@dataclass
class Subject:
    """Commands of the hugewise `command`, whose outputs are kept in `folder`.

    before    words before it, such as those of prlimit(1) or unshare(1)
    address   bytes of address space that it may have; None: any
    groups    files of cgroups that it is written into
    """

    command: Sequence[str]
    folder: Path
    before: Sequence[str] = ()
    address: int | None = None
    groups: Sequence[Path] = ()
    _number: int = field(default=0, init=False)

    @contextmanager
    def started(self, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """The command as it lives, and the file with what it says; it does not outlive this context."""
        self._number += 1
        path = self.folder / f"{self._number:02}-{words[0]}.txt"
        with path.open("wb") as said, self._startable():
            process = subprocess.Popen(
                [*self.before, *self.command, *words],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=self._prepare,  # noqa: PLW1509  (no thread is running here)
            )
        try:
            yield process, path
        finally:
            process.kill()
            process.wait()

    @contextmanager
    def _startable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, subprocess.SubprocessError) as error:
            raise UserError(
                f"{self.command[0]} cannot be started: {error}", hint="name a hugewise that can be: --hugewise COMMAND"
            ) from None

    def _prepare(self) -> None:
        processes.die_with_parent()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for file in self.groups:
            file.write_text("0")
        if self.address is not None:
            resource.setrlimit(resource.RLIMIT_AS, (self.address, self.address))

    def run(self, *words: str, beside: Callable[[subprocess.Popen[bytes]], object] = lambda _: None) -> CommandEnded:
        """From its start to its end; `beside` is called meanwhile, and is done when the process is."""
        begin = time.monotonic()
        with self.started(*words) as (process, path):
            beside(process)
            try:
                process.wait(_LONGEST_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGABRT)
        return _ended(words[0], process, begin, path)

    def kill_after(self, seconds: float, *words: str) -> CommandEnded:
        """SIGKILL when it has lived for so many `seconds`."""
        begin = time.monotonic()
        with self.started(*words) as (process, path):
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                return _ended(words[0], process, begin, path, hit=True)
        return _ended(words[0], process, begin, path)

    def kill_when(self, reached: Callable[[], bool], *words: str) -> CommandEnded:
        """SIGKILL as soon as `reached` says so; it is asked without a pause."""
        begin = time.monotonic()
        with self.started(*words) as (process, path):
            while process.poll() is None:
                if reached():
                    process.kill()
                    return _ended(words[0], process, begin, path, hit=True)
        return _ended(words[0], process, begin, path)


def _ended(verb: str, process: subprocess.Popen[bytes], begin: float, path: Path, *, hit: bool = False) -> CommandEnded:
    status, seconds = process.wait(), time.monotonic() - begin
    descent.reap()
    # One that has ended in the moment before the signal was not killed.
    return CommandEnded(verb, status, seconds, path.read_text(errors="replace"), hit and status == -signal.SIGKILL)
