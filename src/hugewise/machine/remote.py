"""Another machine (a guest, a client's host) as a `machine.Machine`; output files are moved here at a program's end."""

from __future__ import annotations

import os
import re
import select
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec

from hugewise.errors import HugewiseError, MachineError, ProbeError, StorageError
from hugewise.files import storing
from hugewise.machine import probe, programs
from hugewise.machine.agent import MOST_OF_A_FILE, Agent
from hugewise.machine.messages import parse_foreign, plain
from hugewise.model.host import Host
from hugewise.reading import UnreadableError

OUTPUTS = "/run/hugewise-out"  # in a guest


class RemoteLauncher:
    """A launcher of another machine: `machine.Running`, told by its agent; and the files of its job on this side.

    One with a barrier meets those of this host: its arrival goes into `ready`, and the end of `go` to its agent.

    Where the machine is gone before the launcher has ended, `poll` and `wait` raise MachineError, but for who has asked
    for its end: that is what became of it, as if by SIGKILL.
    """

    def __init__(self, agent: Agent, process: int, job: probe.Job, outputs: str) -> None:
        self.process, self.job = process, job
        self._agent, self._folder = agent, outputs
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._status: int | None = None
        self._problem: HugewiseError | None = None
        self._unwanted = False
        with storing(str(job.events)):
            job.stderr.write_bytes(b"")
            self._events = job.events.open("wb", buffering=0)
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        barrier = job.spec.barrier  # duplicates: they may be closed here before this hears of it
        self._ready, self._go = (-1, -1) if barrier is None else (os.dup(barrier.ready), os.dup(barrier.go))

    @property
    def spec(self) -> probe.Spec:
        return remote_spec(self.job.spec, self.process, self._folder)

    # -- events of the agent, on the thread that reads its channel

    def line(self, text: str) -> None:
        with self._lock:
            if self._done.is_set():
                return
            try:
                for _ in probe.decode([f"{text}\n".encode()]):
                    pass
            except ProbeError as error:
                why = f"{self._agent.name}: its launcher said something unknown: {plain(error.message)}"
                self._problem = self._problem or MachineError(why)
                return
            try:
                rest = memoryview(f"{text}\n".encode())
                while rest:
                    rest = rest[self._events.write(rest) :]
            except OSError as error:
                self._problem = self._problem or StorageError(f"cannot write {self.job.events}: {error.strerror}")

    def arrived(self) -> None:
        with self._lock:
            if self._ready >= 0:
                os.write(self._ready, b"r")
        threading.Thread(target=self._let_go, daemon=True).start()

    def _let_go(self) -> None:
        if self._go >= 0:
            select.select([self._go, self._descriptor], [], [])
        with suppress(MachineError, OSError):
            self._agent.release(self.process)

    def ended(self, status: int, stderr: str) -> None:
        # a thread of its own takes over the launcher's files, as the agent is asked for them
        threading.Thread(target=self._finish, args=(status, stderr), daemon=True).start()

    def lost(self) -> None:
        self._conclude(None)

    def _finish(self, status: int, stderr: str) -> None:
        try:
            with storing(str(self.job.stderr)):
                self.job.stderr.write_text(stderr, encoding="utf-8", errors="replace")
            spec = self.job.spec
            for path, target in {self.spec.stderr: spec.stderr, self.spec.stdout: spec.stdout}.items():
                self._take(path, Path(target))
        except HugewiseError as error:
            self._problem = self._problem or error
        finally:
            self._conclude(status)

    def _take(self, path: str, target: Path) -> None:
        try:
            take(self._agent, path, target)
        except FileNotFoundError:
            return  # there is none: a micro-workload writes only to its launcher
        except OSError as error:
            raise MachineError(f"{self._agent.name}: cannot read {path}: {error.strerror}") from None
        with suppress(OSError):
            self._agent.remove(path)

    def _conclude(self, status: int | None) -> None:
        with self._lock:
            if self._done.is_set():
                return
            if status is not None:
                self._status = 128 - status if status > 128 else status
            self._events.close()
            self._done.set()
            if self._ready >= 0:
                os.close(self._ready)
                self._ready = -1
            if self._descriptor >= 0:
                os.eventfd_write(self._descriptor, 1)

    # -- machine.Running

    def fileno(self) -> int:
        return self._descriptor

    def poll(self) -> int | None:
        with self._lock:  # the descriptor is readable as soon as this says so, and the other way round
            if not self._done.is_set():
                return None
        if self._problem is not None and not self._unwanted:
            raise self._problem
        if self._status is not None:
            return self._status
        if self._unwanted:
            return -signal.SIGKILL
        raise self._agent.gone()

    def wait(self, timeout: float | None = None) -> int:
        if not self._done.wait(timeout):
            raise TimeoutError
        status = self.poll()
        assert status is not None
        return status

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        self._unwanted = True
        if not self._done.is_set():
            with suppress(MachineError, OSError):
                self._agent.end(self.process, number)

    def close(self) -> None:
        with self._lock:
            for descriptor in (self._descriptor, self._go):
                if descriptor >= 0:
                    os.close(descriptor)
            self._descriptor = self._go = -1


def remote_spec(spec: probe.Spec, process: int, outputs: str) -> probe.Spec:
    """Return the specification with outputs below the folder `outputs` there, whose room is not watched."""
    stderr = f"{outputs}/{process}.stderr"
    stdout = stderr if spec.stdout == spec.stderr else f"{outputs}/{process}.stdout"
    limits = msgspec.structs.replace(spec.limits, rooms=())
    return msgspec.structs.replace(spec, stdout=stdout, stderr=stderr, limits=limits, barrier=None)


def take(agent: Agent, path: str, target: Path) -> None:
    """Write a file of that machine to `target`. Raises OSError for its side, StorageError for this one."""
    pieces = agent.get(path)
    first = next(pieces, b"")  # without the file there, none is made here
    with ExitStack() as stack:
        with storing(str(target)):
            file = stack.enter_context(target.open("wb", buffering=0))
        for piece in chain([first], pieces):
            with storing(str(target)):
                rest = memoryview(piece)
                while rest:
                    rest = rest[file.write(rest) :]


class RemoteMachine:
    """Another machine on which programs run: `machine.Machine`.

    outputs  folder there for what programs say
    """

    counters = False

    def __init__(self, agent: Agent, *, emulated: bool, outputs: str = OUTPUTS) -> None:
        self.agent = agent
        self.emulated = emulated
        self.host: Host = agent
        self.environment: Mapping[str, str] = {"PATH": programs.PATH}
        self._outputs = outputs

    def cpus(self) -> tuple[int, ...]:
        return tuple(sorted(self.agent.hello().cpus))

    def ports(self, count: int) -> tuple[int, ...]:
        if count == 0:
            return ()
        try:
            return self.agent.ports(count)
        except OSError as error:
            raise MachineError(f"{self.agent.name}: no free ports: {error.strerror}") from None

    def start(self, job: probe.Job, inherited: tuple[int, ...] = ()) -> RemoteLauncher:
        """Start the launcher; its agent bridges the barrier among `inherited`. Raises ProbeError, MachineError."""
        launched = RemoteLauncher(self.agent, self.agent.process(), job, self._outputs)
        try:
            job.tell(launched.spec)
            self.agent.spawn(launched.process, launched.spec, launched, held=job.spec.barrier is not None)
        except BaseException as error:
            launched.lost()
            launched.close()
            if isinstance(error, OSError):
                raise ProbeError(f"it does not start in {self.agent.name}: {error.strerror}") from None
            raise
        return launched

    def signal(self, pid: int, number: int) -> None:
        """Send a signal; nothing happens when the process is gone. Raises MachineError."""
        with parse_foreign(self.agent.name, f"signal {number} to process {pid}"), suppress(ProcessLookupError):
            self.agent.signal(pid, number)

    def ask(self, *arguments: str) -> probe.Event:
        return self.agent.ask(*arguments)

    # -- files

    def make(self, path: str, mode: int) -> None:
        """Make a folder of root's, unless it is there. Raises StorageError."""
        with self._storing(f"make {path}"), suppress(FileExistsError):
            self.agent.make(path, mode)

    def folder(self, path: str, uid: int | None, gid: int | None) -> None:
        with self._storing(f"make {path}"):
            self.agent.remove(path)
            self.agent.make(path, 0o700, uid, gid)

    def put(
        self, folder: str, name: str, content: bytes, uid: int | None, gid: int | None, *, mode: int = 0o644
    ) -> None:
        with self._storing(f"write {folder}/{name}"):
            self.agent.put(f"{folder}/{name}", content, mode, uid=uid, gid=gid)

    def files(self, folder: str, pattern: re.Pattern[str]) -> Iterator[bytes]:
        """Yield files by name, limited together. Raises UnreadableError for a link, MachineError for too much."""
        total = 0
        for name in self.agent.names(folder):
            path = f"{folder}/{name}"
            if pattern.fullmatch(name) is not None and self.agent.status(path).kind in ("file", "link"):
                try:
                    content = b"".join(self.agent.get(path))
                except OSError as error:
                    raise UnreadableError(f"{path} in {self.agent.name}: {error.strerror}") from None
                total += len(content)
                if total > MOST_OF_A_FILE:
                    why = f"the files in {plain(folder)} have more than the {MOST_OF_A_FILE} bytes that are taken over"
                    raise MachineError(f"{self.agent.name}: {why}")
                yield content

    def remove(self, path: str) -> None:
        with self._storing(f"remove {path}"):
            self.agent.remove(path)

    @contextmanager
    def _storing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"cannot {plain(what)} in {self.agent.name}: {error.strerror}") from None


@dataclass(frozen=True)
class RemoteFolders:
    """`machine.Folders` of another machine; `owner` and `group` are those of the attempts' account (None: root)."""

    machine: RemoteMachine
    path: Path
    owner: int | None
    group: int | None

    @classmethod
    def open(cls, machine: RemoteMachine, place: str, owner: int | None, group: int | None) -> RemoteFolders:
        """Return the folders in `place`, which is made unless it is there. Raises StorageError."""
        machine.make(place, 0o711)
        return cls(machine, Path(place), owner, group)

    def folder(self, name: str) -> Path:
        """Return a fresh, empty folder of that name for the account. Raises StorageError."""
        path = self.path / name
        self.machine.folder(str(path), self.owner, self.group)
        return path

    def within(self, name: str) -> RemoteFolders:
        """Make a folder of that name inside. Raises StorageError."""
        return RemoteFolders.open(self.machine, str(self.path / name), self.owner, self.group)

    def clear(self) -> None:
        """Remove what is inside; a machine that is gone has taken it along. Raises MachineError, StorageError."""
        if self.machine.agent.ended():
            return
        with parse_foreign(self.machine.agent.name, f"the files in {self.path}"):
            names = self.machine.agent.names(str(self.path))
        for name in names:
            self.machine.remove(str(self.path / name))
