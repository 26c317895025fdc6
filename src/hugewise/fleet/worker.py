"""The engine's worker on a host, from its keeper's side: stopped while an attempt is measured, and what it took.

A worker that is stopped stays registered with its scheduler, and obeys nothing until it goes on. So that it does go on
whatever becomes of the keeper, a process of its own waits for the keeper's end: `Guard`; and where that is killed too,
`sigcont_watchdog` on the worker's side. See signal(7), proc(5).

When the engine's worker may go on for a moment: between two blocks, and as long as an order is being obeyed.
"""

from __future__ import annotations

import fcntl
import functools
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.fleet.sigcont_watchdog import held_by
from hugewise.fleet.spool import WorkerAt
from hugewise.machine.noise import TICK

_START = 19  # of what stands after the name in /proc/PID/stat: field 22
_WORKER = msgspec.json.Decoder(WorkerAt)
_TIMES = slice(11, 13)  # utime and stime, of all threads, also of those that have ended


def process(pid: int) -> WorkerAt | None:
    """The process of that pid; None where there is none, or only what is left of it."""
    fields = _fields(pid)
    return None if fields is None else WorkerAt(pid, int(fields[_START]), _boot(), _exe(pid))


@functools.cache
def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _exe(pid: int) -> str:
    """Also of a file that was replaced meanwhile: it has another name then, and is the same."""
    with suppress(OSError):
        found = Path(f"/proc/{pid}/exe").stat()
        return f"{found.st_dev}:{found.st_ino}"
    return ""


def _fields(pid: int) -> list[str] | None:
    with suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode("ascii").split()
        return None if fields[0] in ("Z", "X", "x") else fields
    return None


def _there(worker: WorkerAt) -> bool:
    return process(worker.pid) == worker


def spent(worker: WorkerAt) -> float | None:
    """Processor time of all of its threads that live, in seconds, by /proc/PID/task/*/schedstat (to the nanosecond);
    by /proc/PID/stat (to a tick) where the kernel has no such files. None where it is gone.
    """
    if not _there(worker):
        return None
    total, tasks = 0, Path(f"/proc/{worker.pid}/task")
    try:
        for task in tasks.iterdir():
            total += int((task / "schedstat").read_bytes().split()[0])
    except (OSError, IndexError, ValueError):
        fields = _fields(worker.pid)
        return None if fields is None else sum(map(int, fields[_TIMES])) * TICK
    return total / 1e9


def _signal(worker: WorkerAt, number: int) -> bool:
    """Whether it was sent to that very process."""
    try:
        held = os.pidfd_open(worker.pid)
    except OSError:
        return False
    try:
        if _there(worker):
            signal.pidfd_send_signal(held, number)
            return True
    except OSError:
        pass
    finally:
        os.close(held)
    return False


def let_go_on(worker: WorkerAt | None) -> None:
    """Continue a worker that a keeper before may have left stopped, where keeper and guard were killed at once."""
    if worker is not None:
        _signal(worker, signal.SIGCONT)


def ask_to_end(keeper: WorkerAt | None) -> bool:
    """Tell a keeper to have its run ended; whether it was there."""
    return keeper is not None and _signal(keeper, signal.SIGTERM)


class Guard:
    """A process that continues a stopped worker when the keeper has ended, however that ended: also by SIGKILL."""

    def __init__(self) -> None:
        ours, theirs = os.pipe2(os.O_CLOEXEC)[::-1]
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _wait_for_the_end(theirs)
            finally:
                os._exit(0)
        os.close(theirs)
        self._pipe = ours

    def stopped(self, worker: WorkerAt) -> bool:
        """It is about to be stopped; whether the guard is there to continue it."""
        try:
            os.write(self._pipe, msgspec.json.encode(worker) + b"\n")
            return os.waitpid(self._pid, os.WNOHANG) == (0, 0)
        except OSError:
            return False

    def close(self) -> None:
        """Have it end, as the keeper does."""
        os.close(self._pipe)
        with suppress(OSError):
            os.waitpid(self._pid, 0)


def _wait_for_the_end(pipe: int) -> None:
    """In the guard's process: nothing of the keeper's is held, so that its lock goes with it."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(0, pipe)
    os.closerange(pipe + 1, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 1 << 16 else 1 << 16)
    told = b""
    while more := os.read(pipe, 4096):
        told = (told + more)[-4096:]
    for line in set(told.splitlines()):
        with suppress(reading.UnreadableError):
            _signal(reading.decoded(_WORKER, line), signal.SIGCONT)


class WorkerHeld:
    """What a keeper does with the worker, and what it has taken while attempts were measured.

    worker_s     seconds of processor that it took in blocks that were measured; None where that is never known
    measured_s   seconds of these blocks, by the clock that its caller gives: those in which it is known
    """

    def __init__(self, *, stop: bool, guard: Guard | None) -> None:
        self.stop, self._guard = stop and guard is not None, guard
        self.measured_s = 0.0
        self.worker_s: float | None = None
        self.held: WorkerAt | None = None
        self._since: float | None = None
        self._before: float | None = None
        self._stopped = False
        self._holds: socket.socket | None = None
        self.ever_stopped = False

    def attempt(self, worker: WorkerAt | None, now: float) -> None:
        """An attempt is about to begin: of a block, the first one counts."""
        if self._since is not None:
            return
        if self._stopped and worker != self.held:
            self.go_on()
        self.held, self._since = worker, now
        if worker is None:
            return
        if self.stop and not self._stopped and self._guard is not None:
            self._stopped = self._hold(worker) and self._guard.stopped(worker) and _signal(worker, signal.SIGSTOP)
            self.ever_stopped = self.ever_stopped or self._stopped
            if not self._stopped:
                self._release()
        self._before = spent(worker)

    def over(self, now: float) -> None:
        """What was measured is over: add up. The worker stays as it is."""
        if self._since is None:
            return
        after = None if self.held is None else spent(self.held)
        if after is not None and self._before is not None:
            self.measured_s += now - self._since
            self.worker_s = (self.worker_s or 0.0) + max(0.0, after - self._before)
        self._since = self._before = None

    def go_on(self) -> None:
        """Continue it, where it was stopped."""
        if self._stopped and self.held is not None:
            _signal(self.held, signal.SIGCONT)
        self._stopped = False
        self._release()

    def _release(self) -> None:
        if self._holds is not None:
            self._holds.close()
            self._holds = None

    def _hold(self, worker: WorkerAt) -> bool:
        """Hold the socket of who has it stopped; a worker whose socket is another's is not stopped."""
        holds = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            holds.bind(held_by(worker.pid, worker.start))
            holds.listen(1)
        except OSError:
            holds.close()
            return False
        self._holds = holds
        return True


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


class WorkerYield:
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
