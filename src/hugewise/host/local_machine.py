"""The host as a `machine.Machine`, and performance counters for the measured part of servers that already run.

    counting = Counting(pids, events)   # opened on every thread, not yet counting
    counting.begin(); ...; counting.end()
    counting.counts()

Counting needs the probe's `count`; what the processes and threads make meanwhile is counted too.
"""

from __future__ import annotations

import os
import pwd
import re
import select
import socket
import stat
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.beneath import DirFd
from hugewise.errors import MachineError, ProbeError, StorageError
from hugewise.files import storing
from hugewise.host import scratch
from hugewise.host.local_host import LocalHost, groups, is_caller
from hugewise.machine import probe
from hugewise.machine.machine import Machine
from hugewise.model.host import Host

_MOST_OF_ALL = 4 * reading.MOST  # bytes of the files of one pattern
_LATELY = 64
_MINIMAL = ("PATH", "LANG", "TZ")


class LocalLauncher:
    """A process of this host, such as a launcher, as a `machine.Running`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._descriptor = os.pidfd_open(process.pid)

    def fileno(self) -> int:
        return self._descriptor

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises TimeoutError."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None

    def terminate(self) -> None:
        with suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LocalMachine:
    """The machine that hugewise itself runs on."""

    emulated = False
    counters = True

    def __init__(self, host: Host | None = None) -> None:
        self.host: Host = host or LocalHost()
        self._told: deque[int] = deque(maxlen=_LATELY)
        self.environment: Mapping[str, str] = {name: os.environ[name] for name in _MINIMAL if name in os.environ}

    def cpus(self) -> tuple[int, ...]:
        return tuple(sorted(os.sched_getaffinity(0)))

    def ports(self, count: int, address: str = "127.0.0.1") -> tuple[int, ...]:
        """Return free TCP ports at an address of this host, without those given out lately. Raises MachineError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with ExitStack() as held:
            found: list[int] = []
            while len(found) < count:
                taken = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
                try:
                    taken.bind((address, 0))
                except OSError as error:
                    raise MachineError(f"nothing can listen at {address} of this host: {error.strerror}") from None
                port = int(taken.getsockname()[1])
                if port not in self._told:
                    self._told.append(port)
                    found.append(port)
            return tuple(found)

    def start(self, job: probe.Job, inherited: tuple[int, ...] = ()) -> LocalLauncher:
        """Start the launcher. Raises ProbeError, StorageError."""
        job.tell()
        program = probe.find()
        with storing(str(job.events)), job.events.open("wb") as events, job.stderr.open("wb") as stderr:
            return LocalLauncher(
                subprocess.Popen(
                    [program, "run", "--spec", str(job.told)],
                    stdin=subprocess.DEVNULL,
                    stdout=events,
                    stderr=stderr,
                    start_new_session=True,
                    pass_fds=inherited,
                )
            )

    def signal(self, pid: int, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def ask(self, *arguments: str) -> probe.Event:
        return probe.ask(*arguments)

    def folder(self, path: str, uid: int | None, gid: int | None) -> None:
        scratch.fresh(Path(path), uid, gid)

    def put(
        self, folder: str, name: str, content: bytes, uid: int | None, gid: int | None, *, mode: int = 0o644
    ) -> None:
        """Write a file. The folder may be the account's: no link in it is followed."""
        with storing(f"{folder}/{name}"), DirFd.open(Path(folder)) as held:
            held.put(name, content, mode, uid, gid)

    def files(self, folder: str, pattern: re.Pattern[str]) -> Iterator[bytes]:
        """Yield files by name. The folder belongs to the account."""
        left = _MOST_OF_ALL
        with DirFd.open(Path(folder)) as held:
            for name in held.names():
                if pattern.fullmatch(name) is None:
                    continue
                names = held.status(name)
                if stat.S_ISREG(names.st_mode) or stat.S_ISLNK(names.st_mode):  # a link is refused as it is read
                    if left < names.st_size <= reading.MOST:
                        raise reading.UnreadableError(f"{folder}: they have more than {_MOST_OF_ALL} bytes in all")
                    content = self._content(held, name, min(left, reading.MOST))
                    left -= len(content)
                    yield content

    def _content(self, folder: DirFd, name: str, most: int) -> bytes:
        try:
            return folder.read(name, most)
        except OSError as error:
            raise reading.UnreadableError(f"{error.filename}: {error.strerror}") from None
        except StorageError as error:
            raise reading.UnreadableError(error.message) from None

    def remove(self, path: str) -> None:
        scratch.discard(path)


def groups_of(machine: Machine, who: pwd.struct_passwd | None) -> tuple[int, ...] | msgspec.UnsetType:
    """Return a program's supplementary groups: those of the account that called sudo."""
    return (groups(who) or msgspec.UNSET) if isinstance(machine, LocalMachine) else msgspec.UNSET


def removes_ipc(machine: Machine, who: pwd.struct_passwd | None) -> bool | msgspec.UnsetType:
    """Return whether the account's System V IPC objects are removed with its program: not those of the caller."""
    return True if isinstance(machine, LocalMachine) and not is_caller(who) else msgspec.UNSET


_PATIENCE_S = 60.0


class Counting:
    """A probe that counts for other processes. It ends when this process does: its stdin ends then."""

    def __init__(self, pids: Sequence[int], events: Sequence[str]) -> None:
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
        """Return the counts, after `end`. Raises ProbeError."""
        while True:
            event = self._next()
            if isinstance(event, probe.Counters):
                return event

    def close(self) -> None:
        probe.put_away(self._process)

    def _await(self, phase: str) -> None:
        while True:
            event = self._next()
            if isinstance(event, probe.Phase) and event.name == phase:
                return

    def _next(self) -> probe.Event:
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
