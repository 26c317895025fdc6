"""Freezing: all processes of a group stand still, and go on later as if nothing had been.

The kernel does it for the group as a whole: `cgroup.freeze` (version 2), `freezer.state` (version 1). Where it has
neither, every process is stopped by a signal; of that its parent may hear (SIGCHLD), of the others nobody.

Sources: Documentation/admin-guide/cgroup-v2.rst (cgroup.freeze) and cgroup-v1/freezer-subsystem.rst of the Linux
kernel; signal(7).

Whether a program may notice that it was frozen, by what it has open.

A program that only computes cannot tell. One that talks to somebody, or has an alarm set, may: its partner waits or
gives up, a timer goes off that would not have. It is asked of living processes, as no program says it beforehand.
What cannot be seen from outside is not found: setitimer(2) and alarm(2), and whoever reads the clock.

Source: proc(5), proc_pid_fd(5), proc_pid_timers(5).
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hugewise.errors import HugewiseError
from hugewise.model.host import Host, text_of
from hugewise.visible import printable

PATIENCE_S = 5.0
_PAUSES_S = (20e-6, 1e-3)  # the first, and the longest
# The functions of the kernel in which they stand, as /proc/PID/wchan has them.
_STANDS = ("get_signal", "do_freezer_trap", "__refrigerator", "do_signal_stop", "ptrace_stop")
_STOPPED = (b"T", b"t", b"Z", b"X", b"D")


@dataclass(frozen=True)
class Freezer:
    """What freezes one group.

    host       the machine that it is on
    folders    of the group, one in each hierarchy that its processes have entered
    processes  those inside, also in groups below, by their numbers on that machine
    patience   seconds after which what does not obey is an error
    """

    host: Host
    folders: Sequence[Path]
    processes: Callable[[], Iterable[int]]
    patience: float = PATIENCE_S

    def by_kernel(self, *, frozen: bool) -> bool:
        """Freeze or thaw, and wait until it is so; False where no folder can. Raises HugewiseError, OSError."""
        for folder in self.folders:
            if self._wrote(folder / "cgroup.freeze", f"{frozen:d}"):
                self._await(partial(self._is_said, folder / "cgroup.events", f"frozen {frozen:d}"), frozen=frozen)
                return True
        state = "FROZEN" if frozen else "THAWED"
        for folder in self.folders:
            if self._wrote(folder / "freezer.state", state):
                self._await(partial(self._is_now, folder / "freezer.state", state), frozen=frozen)
                return True
        return False

    def by_signals(self, *, frozen: bool) -> None:
        """The same by SIGSTOP, until no process appears that was not seen stopped, and by SIGCONT: on this host alone.

        Raises HugewiseError.
        """
        if frozen:
            self._await(partial(self._are_stopped, set()), frozen=True)
        else:
            _signal(self.processes(), signal.SIGCONT)

    def _wrote(self, file: Path, text: str) -> bool:
        """Whether there is such a file; it has the text then."""
        try:
            self.host.write(str(file), text)
        except FileNotFoundError:
            return False
        return True

    def _is_said(self, file: Path, line: str) -> bool:
        return line in self.host.read(str(file)).splitlines()

    def _is_now(self, file: Path, state: str) -> bool:
        """Whether a group of version 1 is in that state; it is asked again while some of it goes on."""
        now = self.host.read(str(file))
        if now == "FREEZING" and state == "FROZEN":
            self.host.write(str(file), state)
        return now == state

    def _are_stopped(self, sent: set[int]) -> bool:
        """Whether all stand still who were there the last time, and nobody else is. Who is new is sent the signal."""
        found = set(self.processes())
        if found & {0, os.getpid()}:
            raise HugewiseError(
                f"{self.folders[0]} holds processes that must not be stopped from here",
                hint="run hugewise in the PID namespace of the machine, and outside of its own groups",
            )
        new = found - sent
        _signal(new, signal.SIGSTOP)
        sent.clear()  # a number may come again
        sent |= found
        return not new and all(_is_stopped(pid) for pid in found)

    def _await(self, settled: Callable[[], bool], *, frozen: bool) -> None:
        end = time.monotonic() + self.patience
        pause, longest = _PAUSES_S
        while not settled():
            if time.monotonic() > end:
                word = "freeze" if frozen else "thaw"
                raise HugewiseError(
                    f"the cgroup {self.folders[0]} does not {word} within {self.patience:g} s{self._culprit()}",
                    hint="it may hang in the kernel: see /proc/PID/stack, or dmesg; or a group above it is frozen",
                )
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _culprit(self) -> str:
        """The process that looks most as if it went on: which one it is the kernel does not say."""
        looks = [(_standing(self.host, pid), pid) for pid in self.processes()]
        if not looks:
            return ""
        pid = min(looks)[1]
        return f": see pid {pid} ({printable(text_of(self.host, f'/proc/{pid}/comm') or 'gone')})"


def release(folder: Path) -> None:
    """Thaw a group of version 1 whose processes were sent SIGKILL: those that are frozen do not die of it before."""
    file = folder / "freezer.state"
    with suppress(OSError):
        if file.exists():
            file.write_text("THAWED")


def _standing(host: Host, pid: int) -> int:
    """0: a thread runs, 1: one waits for something else, 2: all stand still where the frozen and the stopped do.

    Threads that version 1 freezes where they slept look as if they waited.
    """
    found = 2
    for task in host.names(f"/proc/{pid}/task"):
        wait = text_of(host, f"/proc/{pid}/task/{task}/wchan")
        if wait == "0":
            return 0
        if wait not in _STANDS:
            found = 1
    return found


def _is_stopped(pid: int) -> bool:
    """Whether no thread of a process of this machine that was sent SIGSTOP can go on, or it has ended.

    Who waits in the kernel for its child of vfork(2), which is stopped, is in state D until that one has gone on.
    """
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                if (task / "stat").read_bytes().rpartition(b")")[2].split()[0] not in _STOPPED:
                    return False
    return True


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


_SOCKET = re.compile(r"socket:\[\d+\]")
_TERMINAL = re.compile(r"/dev/(?:pts/\d+|tty\w*|console)(?: \(deleted\))?")
_TIMER = "anon_inode:[timerfd]"


def unfreezable_reason(pids: Iterable[int], proc: Path = Path("/proc")) -> str | None:
    """Why one of these processes of this host may notice that it was frozen, in words; None where nothing is found.

    A process that has ended is passed over; of one that cannot be looked at, that is the reason.
    """
    return next(
        (f"process {pid} ({_name(proc / str(pid))}) {why}" for pid in pids if (why := _why(proc / str(pid)))), None
    )


def _why(process: Path) -> str | None:
    try:
        for link in sorted((process / "fd").iterdir(), key=lambda path: int(path.name)):
            if why := _noticed(link):
                return why
        if (process / "timers").read_bytes():
            return "has a timer of its own (timer_create): it runs on while the process stands still"
    except (FileNotFoundError, ProcessLookupError):
        return None  # it has ended, or the kernel has no such file (CONFIG_CHECKPOINT_RESTORE)
    except OSError as error:
        if _has_ended(process):
            return None
        return f"cannot be looked at: {error.strerror}"
    return None


def _noticed(link: Path) -> str | None:
    """What is to be said of an open file."""
    try:
        target = str(link.readlink())
    except FileNotFoundError:
        return None  # closed since
    if _SOCKET.fullmatch(target):
        return "has a socket: who is at its other end may not wait"
    if _TERMINAL.fullmatch(target):
        return f"has a terminal ({target}): who is there goes on"
    if target == _TIMER:
        return "has a timer of its own (timerfd): it runs on while the process stands still"
    return None


def _has_ended(process: Path) -> bool:
    """Whether it is gone, or a zombie, which nobody may look at."""
    try:
        return (process / "stat").read_bytes().rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"])
    except OSError:
        return True


def _name(process: Path) -> str:
    try:
        return printable((process / "comm").read_text(encoding="utf-8", errors="replace").rstrip("\n"))
    except OSError:
        return "gone"
