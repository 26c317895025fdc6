"""Subject of a torture: hugewise as a user starts it, in processes of their own, and its studies.

The studies are short, and use everything that a run can set or make.
"""

from __future__ import annotations

import os
import resource
import shutil
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
from tools.torture import traces

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
        """True if the command ended with an unexpected exception."""
        return "Traceback (most recent call last)" in self.said

    def told(self) -> str:
        """Describe the command's end, with its last lines."""
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
        """Yield the running command, and the file with its output; it does not outlive this context."""
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
        """Run the command to its end; `beside` is called meanwhile, and ends when the process does."""
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
    traces.reap()
    # One that has ended in the moment before the signal was not killed.
    return CommandEnded(verb, status, seconds, path.read_text(errors="replace"), hit and status == -signal.SIGKILL)


_HEAD = """\
format = 1
name = "{name}"
policies = {policies}
confidence = 0.9

[budget]
blocks = {blocks}

[between]
settle = "0ms"
"""
_SERVED = """
[[workload]]
name = "{name}"
policies = {policies}
timeout = "{timeout}"
delivery = {{ share = 0.0 }}
parameters = {{ keys = 2000, duration = "{duration}", lead = "0s"{more} }}
"""
_CHASE = """
[[workload]]
name = "chase"
policies = ["base", "thp", "hugetlb-2m"]
timeout = "30s"
parameters = { bytes = "8m", loads = 20000 }
"""
_COMMAND = """
[[workload]]
name = "command"
timeout = "30s"
delivery = {{ share = 0.0 }}
parameters = {{ argv = ["true"], pool_bytes = "{pool}m" }}
"""
_GUEST = """
[guest]
arch = "x86-64"
accelerator = "tcg"
memory = "256m"

[[kernel]]
name = "debian"
package = "linux-image-cloud-amd64"

[[workload]]
name = "fault"
timeout = "60s"
parameters = { bytes = "16m", rounds = 1 }
"""
_BACKED = """[
    { name = "small", from = "base", backing = { pages = "hugetlb-2m", source = "file" } },
    { name = "huge", from = "thp", backing = { pages = "hugetlb-2m", source = "file" } },
]"""
_PLAIN = '[{ name = "small", from = "base", backing = "base" }, { name = "huge", from = "thp", backing = "base" }]'
# For each server its workload, a policy beside base and thp, and more parameters.
_SERVERS = {
    "redis-server": ("redis", ', "mthp-64k"', ""),
    "memcached": ("memcached", ', "hugetlb-2m"', ', memory = "64m"'),
}


def _head(name: str, policies: str, blocks: int = 2) -> str:
    return _HEAD.format(name=name, policies=policies, blocks=blocks)


def servers() -> list[str]:
    """Return the servers that are installed, of those that can be tortured; the one that starts faster first."""
    return [name for name in _SERVERS if shutil.which(name) is not None]


def small_study(blocks: int = 2) -> str:
    """No server: the shortest run that turns knobs, has a pool and attempts."""
    return _head("small", '["base", "thp", "hugetlb-2m"]', blocks) + _CHASE


def host(*, timeout: str = "30s", duration: str = "100ms") -> str:
    """Return a server, and a workload without one: knobs, a pool, cgroups, private folders."""
    return _head("host", '["base", "thp", "mthp-64k", "hugetlb-2m"]') + _served(timeout, duration) + _CHASE


def stopping() -> str:
    """Return a server with so much time in its measured part that it can be stopped there, and little patience."""
    return _head("stopping", '["base", "thp"]') + _served("6s", "1s", few=True)


def _served(timeout: str, duration: str, *, few: bool = False) -> str:
    """Return the workload of the first server that is installed, or an empty one. `few`: under base and thp alone."""
    for server in servers():
        name, third, more = _SERVERS[server]
        policies = f'["base", "thp"{"" if few else third}]'
        return _SERVED.format(name=name, policies=policies, timeout=timeout, duration=duration, more=more)
    return ""


def pool(mib: int) -> str:
    """Return a pool of so many MiB, and nothing else that takes time."""
    return _head("pool", '["base", "hugetlb-2m"]') + _COMMAND.format(pool=mib)


def guest(*, root: bool) -> str:
    """Four short boots under emulation; as root with memory from a pool, on a hugetlbfs of the session's own."""
    return _head("guest", _BACKED if root else _PLAIN) + _GUEST


def write_study(folder: Path, text: str) -> Path:
    """Write the study as a file there."""
    path = folder / "study.toml"
    path.write_text(text)
    return path
