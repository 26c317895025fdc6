"""A cgroup for each attempt: its processes can be frozen and killed as one, and its memory and faults counted.

Works with cgroup v1 (memory, pids, freezer, each where mounted, and a v2 hierarchy beside them for cgroup.kill) and
with v2; which one is found from /proc/self/mountinfo and /proc/self/cgroup, by what is present. All groups of a run
lie in one folder `hugewise-PID` in each hierarchy, below hugewise's own group, so that its limits still hold.

The kernel freezes a group as a whole: `cgroup.freeze` (version 2), `freezer.state` (version 1). Where it has neither,
SIGSTOP stops each process; its parent (SIGCHLD) or a SIGCONT handler may notice. A program that only computes cannot
tell that it was frozen. The partner of one that communicates may give up, and an alarm may expire: `unfreezable_reason`
looks for such open files and timers. setitimer(2), alarm(2) and reading the clock cannot be seen.

Sources: Documentation/admin-guide/cgroup-v1/ (freezer-subsystem.rst) and cgroup-v2.rst of the Linux kernel; signal(7);
proc_pid_fd(5), proc_pid_timers(5).
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hugewise import processes
from hugewise.errors import HugewiseError
from hugewise.host.ledger import FoldersMade
from hugewise.host.local_host import LocalHost
from hugewise.machine.machine import Contained, Running
from hugewise.machine.proc import kernel_text, mounts
from hugewise.model.host import Host, text_of
from hugewise.model.procedure import RoleUse
from hugewise.visible import printable

PATIENCE_S = 5.0
_PAUSES_S = (20e-6, 1e-3)  # the first, and the longest
_MOST_NAMED = 3  # processes of a group that does not obey
_STOPPED = ("T", "t", "Z", "X", "D")


@dataclass(frozen=True)
class Freezer:
    """Freezer of one group.

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
        """Freeze by SIGSTOP and thaw by SIGCONT, on this host alone. Raises HugewiseError."""
        if frozen:
            self._await(partial(self._are_stopped, set()), frozen=True)
        else:
            _signal(self.processes(), signal.SIGCONT)

    def _wrote(self, file: Path, text: str) -> bool:
        try:
            self.host.write(str(file), text)
        except FileNotFoundError:
            return False
        return True

    def _is_said(self, file: Path, line: str) -> bool:
        return line in self.host.read(str(file)).splitlines()

    def _is_now(self, file: Path, state: str) -> bool:
        # Repeat a freeze while some processes go on.
        now = self.host.read(str(file))
        if now == "FREEZING" and state == "FROZEN":
            self.host.write(str(file), state)
        return now == state

    def _are_stopped(self, sent: set[int]) -> bool:
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
        # A process that was in fork(2) may have made a child since it was listed.
        return not new and all(_is_stopped(pid) for pid in found) and found.issuperset(self.processes())

    def _await(self, settled: Callable[[], bool], *, frozen: bool) -> None:
        end = time.monotonic() + self.patience
        pause, longest = _PAUSES_S
        while True:
            late = time.monotonic() > end  # before the look: this process may itself have stood still
            if settled():
                return
            if late:
                word = "freeze" if frozen else "thaw"
                raise HugewiseError(
                    f"{self.folders[0]} does not {word} within {self.patience:g} s{self._processes_named()}",
                    hint="it may hang in the kernel: see /proc/PID/stack, or dmesg; or a group above it is frozen",
                )
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _processes_named(self) -> str:
        named = (
            f"{pid} ({printable(text_of(self.host, f'/proc/{pid}/comm') or 'gone')})"
            for pid in itertools.islice(self.processes(), _MOST_NAMED)
        )
        text = ", ".join(named)
        return f": see pid {text}" if text else ""


def release(folder: Path) -> None:
    """Thaw a group of version 1 whose processes were sent SIGKILL: those that are frozen do not die of it before."""
    file = folder / "freezer.state"
    with suppress(OSError):
        if file.exists():
            file.write_text("THAWED")


def _is_stopped(pid: int) -> bool:
    # A parent in vfork(2) whose child is stopped stays in state D until the child has gone on.
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            if (stat := processes.stat(task)) is not None and stat.state not in _STOPPED:
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
    """Return why one of these processes may notice a freeze, or cannot be looked at; None for nothing."""
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
        return None  # the process has ended, or the kernel lacks the file (CONFIG_CHECKPOINT_RESTORE)
    except OSError as error:
        if _has_ended(process):
            return None
        return f"cannot be looked at: {error.strerror}"
    return None


def _noticed(link: Path) -> str | None:
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
    # a zombie's files cannot be read
    stat = processes.stat(process)
    return stat is None or stat.has_ended


def _name(process: Path) -> str:
    try:
        return printable((process / "comm").read_text(encoding="utf-8", errors="replace").rstrip("\n"))
    except OSError:
        return "gone"


_CONTROLLERS = ("memory", "pids", "freezer", "cpuacct")
# Files of version 2 that leave nothing to do for a controller of version 1.
_INSTEAD = {"freezer": ("cgroup.kill", "cgroup.freeze"), "cpuacct": ("cpu.stat",)}
_OWN = re.compile(r"/(?:[^/]+/)*hugewise-\d+")


class _CannotError(HugewiseError):
    pass


def is_own(path: str) -> bool:
    """Return whether the path is a run's folder in a cgroup file system; checked before it is cleared."""
    return (
        _OWN.fullmatch(path) is not None
        and ".." not in path
        and any(Path(path).is_relative_to(mount) for mount, _, _ in _mounts(Path("/proc/self")))
    )


def _mounts(proc: Path) -> list[tuple[Path, str, frozenset[str]]]:
    return [
        (Path(mount.point), mount.root, frozenset("2" if mount.kind == "cgroup2" else mount.options.split(",")))
        for mount in mounts(kernel_text(proc / "mountinfo"))
        if mount.kind in ("cgroup", "cgroup2")
    ]


def find(proc: Path = Path("/proc/self")) -> dict[str, Path]:
    """Return this process's own group by hierarchy: `2`, `memory`, `pids`, `freezer`, as far as mounted."""
    own = {}
    for line in filter(None, kernel_text(proc / "cgroup").split("\n")):
        number, names, path = line.split(":", 2)
        for name in ["2"] if number == "0" else names.split(","):
            own[name] = path
    hierarchies = {}
    for point, root, controllers in _mounts(proc):
        for name in {"2", *_CONTROLLERS} & controllers & own.keys():
            inside = os.path.relpath(own[name], root)
            # A container may see only a part of the hierarchy: then its top is the nearest that can be reached.
            reachable = point / inside if not inside.startswith("..") else point
            hierarchies[name] = reachable if reachable.is_dir() else point
    return hierarchies


@contextmanager
def _turning(what: str, *, frozen: bool) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _CannotError(f"cannot {'freeze' if frozen else 'thaw'} {what}: {error.strerror}") from error


@dataclass(frozen=True)
class Leaf(Contained):
    """The cgroup of one attempt, or of one role in it: one folder in each hierarchy.

    memory  the folder that counts memory; None where none does
    """

    folders: tuple[Path, ...]
    memory: Path | None
    host: Host = field(default_factory=LocalHost)

    @property
    def procs_files(self) -> tuple[Path, ...]:
        return tuple(folder / "cgroup.procs" for folder in self.folders)

    def kill(self) -> int:
        """Kill every process inside and wait until they are gone; returns how many were seen. Raises HugewiseError."""
        return _kill(self.folders)

    def freeze(self) -> None:
        self._turn(frozen=True)

    def thaw(self) -> None:
        self._turn(frozen=False)

    def _turn(self, *, frozen: bool) -> None:
        found = Freezer(self.host, self.folders, self.processes)
        with _turning(f"the cgroup {self.folders[0]}", frozen=frozen):
            if not found.by_kernel(frozen=frozen):
                found.by_signals(frozen=frozen)

    def peak_bytes(self) -> int | None:
        for name in ("memory.peak", "memory.max_usage_in_bytes") if self.memory is not None else ():
            with suppress(OSError, ValueError):
                return int(self.host.read(f"{self.memory}/{name}"))
        return None

    def faults(self) -> int | None:
        """Page faults of all processes since the group was made; None if not counted."""
        counted = {} if self.memory is None else self.table(self.memory, "memory.stat")
        return counted.get("total_pgfault", counted.get("pgfault"))

    def used(self) -> RoleUse:
        faults = self.faults()
        for folder in self.folders:
            with suppress(KeyError):
                counters = self.table(folder, "cpu.stat")
                times = [counters[f"{kind}_usec"] / 1e6 for kind in ("usage", "user", "system")]
                return RoleUse(cpu_s=times[0], user_s=times[1], system_s=times[2], faults=faults)
            with suppress(KeyError, OSError):
                split, tick = self.table(folder, "cpuacct.stat"), os.sysconf("SC_CLK_TCK")
                total = int(self.host.read(f"{folder}/cpuacct.usage")) / 1e9
                return RoleUse(cpu_s=total, user_s=split["user"] / tick, system_s=split["system"] / tick, faults=faults)
        return RoleUse(faults=faults)

    def processes(self) -> list[int]:
        return sorted(set(_pids(self.folders[:1])))

    def limit_memory(self, size: int, *, swapping: bool = False) -> None:
        """Limit the processes and their page cache to `size`; `swapping` the rest. Raises HugewiseError."""
        if self.memory is None:
            raise _CannotError(
                "memory = ... needs a memory cgroup, and there is none", hint="sudo hugewise ...; see: hugewise doctor"
            )
        whole = "memory.high" if swapping else "memory.max"
        name = whole if (self.memory / whole).exists() else "memory.limit_in_bytes"
        try:
            (self.memory / name).write_text(str(size))
        except OSError as error:
            raise _CannotError(f"cannot limit the memory of {self.memory}: {error.strerror}") from error

    def remove(self) -> None:
        """Remove the folders, and those made inside. Raises HugewiseError while processes are inside."""
        for folder in self.folders:
            _remove(folder)

    def table(self, folder: Path, file: str) -> dict[str, int]:
        try:
            lines = self.host.read(f"{folder}/{file}").splitlines()
        except OSError:
            return {}
        return {name: int(value) for name, value in (line.split() for line in lines)}


@dataclass
class Tree(Contained):
    """The processes below a launcher, for an ordinary user without a cgroup: they are stopped by signals."""

    root: int | None = None

    def follow(self, launcher: Running) -> None:
        about = Path(f"/proc/self/fdinfo/{launcher.fileno()}").read_text()
        self.root = int(about.partition("\nPid:")[2].split()[0])  # of a pidfd: proc_pid_fdinfo(5)

    def processes(self) -> list[int]:
        # without the launcher and the guardian above it: they go on, to end the others
        return [] if self.root is None else processes.tree(self.root)[2:]

    def freeze(self) -> None:
        if self.root is None:
            super().freeze()
        self._turn(frozen=True)

    def thaw(self) -> None:
        self._turn(frozen=False)

    def _turn(self, *, frozen: bool) -> None:
        with _turning("the command, one of whose processes is perhaps another account's (sudo, su)", frozen=frozen):
            Freezer(LocalHost(), (Path(f"/proc/{self.root}"),), self.processes).by_signals(frozen=frozen)


@dataclass
class Hierarchy:
    """The folders of one run, in which its attempts get theirs."""

    made: FoldersMade
    parents: dict[str, Path]

    @classmethod
    def open(
        cls, note: Callable[[FoldersMade], None] = lambda _: None, own: dict[str, Path] | None = None
    ) -> Hierarchy:
        """Make the run's folders below `own`, after `note` heard of them. Raises HugewiseError."""
        own = dict(find() if own is None else own)
        if not own:
            raise _CannotError(
                "no cgroup file system is mounted", hint="mount -t cgroup2 none /sys/fs/cgroup (as root)"
            )
        enabled: tuple[tuple[str, str], ...] = ()
        if "2" in own and "memory" not in own:
            own["2"] = _with_memory(own["2"])
            enabled = _to_enable(own["2"], "memory", "pids")
        parents = {key: base / f"hugewise-{os.getpid()}" for key, base in own.items()}
        made = FoldersMade(tuple(str(path) for path in parents.values()), enabled)
        note(made)
        usable, problem = _make_all(parents)
        if not usable and problem is not None:
            raise problem
        _enable(enabled)
        if "2" in usable:
            _enable(_to_enable(usable["2"], "memory", "pids"))
        return cls(made, usable)

    def create(self, name: str) -> Leaf:
        """Return the group of one attempt. Raises HugewiseError with the cure."""
        folders = {key: parent / name for key, parent in self.parents.items()}
        for folder in folders.values():
            _make(folder)
        memory = folders.get("memory", folders.get("2"))
        counts = memory is not None and (memory / "memory.stat").exists()
        return Leaf(tuple(folders.values()), memory if counts else None)

    def remove(self) -> None:
        """Kill what is left in the run's folders and remove them; controllers enabled for the run are disabled."""
        clear(self.made)


def _make_all(parents: dict[str, Path]) -> tuple[dict[str, Path], HugewiseError | None]:
    # Each hierarchy costs a process time to enter: those of version 1 are made only where version 2 does not freeze or
    # count CPU time.
    usable: dict[str, Path] = {}
    problem: HugewiseError | None = None
    for key in ("2", *_CONTROLLERS):
        instead = _INSTEAD.get(key, ())
        if key not in parents or (instead and "2" in usable and all((usable["2"] / name).exists() for name in instead)):
            continue
        try:
            _make(parents[key], exist_ok=True)  # the number is this process's: an existing folder is left of a dead run
        except HugewiseError as error:
            problem = error
        else:
            usable[key] = parents[key]
    return usable, problem


def unavailable(own: dict[str, Path] | None = None) -> HugewiseError | None:
    """Return why this process cannot make cgroups here, found out by trying, or None."""
    try:
        Hierarchy.open(own=own).remove()
    except HugewiseError as error:
        return error
    return None


def _with_memory(base: Path) -> Path:
    # A group that holds processes cannot give controllers to its children (the root can), and only the owner of a
    # delegated subtree may write in it.
    for group in (base, *base.parents):
        control = group / "cgroup.subtree_control"
        if not control.exists():
            break
        busy = _holds_processes(group) and (group.parent / "cgroup.procs").exists()
        given = "memory" in _words(control)
        could = "memory" in _words(group / "cgroup.controllers") and not busy
        if (given or could) and os.access(group, os.W_OK) and os.access(control, os.W_OK):
            return group
    return base


def _holds_processes(group: Path) -> bool:
    try:
        return bool((group / "cgroup.procs").read_text())
    except OSError:  # a threaded group (EOPNOTSUPP) has threads alone
        return True


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except FileNotFoundError:
        return []


def _to_enable(group: Path, *names: str) -> tuple[tuple[str, str], ...]:
    control = group / "cgroup.subtree_control"
    offered, given = _words(group / "cgroup.controllers"), _words(control)
    return tuple((str(control), name) for name in names if name in offered and name not in given)


def _enable(controllers: tuple[tuple[str, str], ...]) -> None:
    for file, name in controllers:
        with suppress(OSError):  # then memory is not counted; groups can still be killed
            Path(file).write_text(f"+{name}")


def _make(folder: Path, *, exist_ok: bool = False) -> None:
    try:
        folder.mkdir(mode=0o755, exist_ok=exist_ok)
    except OSError as error:
        cures = {
            errno.EACCES: "as an ordinary user start it with: systemd-run --user --scope -p Delegate=yes hugewise ...",
            errno.EPERM: "in a container: start it privileged, or with its cgroup mounted writable",
            errno.EROFS: "the cgroup file system is mounted read-only: mount -o remount,rw /sys/fs/cgroup (as root)",
            errno.EEXIST: "an earlier run left it: sudo hugewise restore",
            errno.EAGAIN: "cgroup.max.descendants is reached: remove unused groups or raise it",
            errno.ENOSPC: "the kernel has no room for more cgroups: remove unused groups",
        }
        raise _CannotError(
            f"cannot make the cgroup {folder}: {error.strerror}", hint=cures.get(error.errno or 0)
        ) from error


def _descendants(folder: Path) -> list[Path]:
    return [Path(path) for path, _, _ in os.walk(folder, topdown=False)]


def _pids(folders: tuple[Path, ...]) -> Iterator[int]:
    for top in folders:
        for folder in _descendants(top):
            with suppress(OSError):
                yield from (int(pid) for pid in (folder / "cgroup.procs").read_text().split())


def _kill(folders: tuple[Path, ...]) -> int:
    seen = set(_pids(folders))
    if not seen:
        return 0
    if 0 in seen or os.getpid() in seen:
        raise _CannotError(
            f"{folders[0]} holds processes that must not be killed from here",
            hint="run hugewise in the PID namespace of the machine, and outside of its own groups",
        )
    end = time.monotonic() + PATIENCE_S
    pause = 0.0005
    while left := set(_pids(folders)):
        seen |= left
        _kill_once(folders, left)
        if time.monotonic() > end:
            raise _CannotError(
                f"{len(left)} processes in {folders[0]} do not die, such as pid {min(left)}",
                hint="it may hang in the kernel: see /proc/PID/stack, or dmesg",
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return len(seen)


def _kill_once(folders: tuple[Path, ...], pids: set[int]) -> None:
    # Groups, and those inside them, may be frozen already: they are thawed only when all have been sent SIGKILL.
    by_kernel = [folder / "cgroup.kill" for folder in folders if (folder / "cgroup.kill").exists()]
    for file in by_kernel:
        file.write_text("1")
    if not by_kernel:
        for folder in folders:
            if (folder / "freezer.state").exists():
                (folder / "freezer.state").write_text("FROZEN")
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for top in folders:
        if (top / "freezer.state").exists():
            for folder in _descendants(top):
                release(folder)


def _remove(top: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    for folder in _descendants(top):
        while True:
            try:
                folder.rmdir()
            except FileNotFoundError:
                break
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > end:
                    raise _CannotError(
                        f"cannot remove the cgroup {folder}: {error.strerror}", hint=f"see {folder}/cgroup.procs"
                    ) from error
                time.sleep(0.001)  # the last process is gone but not yet taken off the books
            else:
                break


def clear(made: FoldersMade) -> int:
    """Kill everything in a run's folders, remove them, and disable what was enabled; returns the number killed."""
    folders = tuple(Path(path) for path in made.paths if Path(path).is_dir())
    killed = _kill(folders) if folders else 0
    for folder in folders:
        _remove(folder)
    for file, controller in made.enabled:
        with suppress(OSError):  # others use the controller by now: it stays enabled
            Path(file).write_text(f"-{controller}")
    return killed
