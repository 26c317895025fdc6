"""A cgroup for each attempt: its processes can be frozen and killed as one, and its memory and faults counted.

Works with cgroup v1 (memory, pids, freezer, each where mounted, and a v2 hierarchy beside them for cgroup.kill) and
with v2; which one is found from /proc/self/mountinfo and /proc/self/cgroup, by what is present. All groups of a run
lie in one folder `hugewise-PID` in each hierarchy, below hugewise's own group, so that its limits still hold.

Sources: Documentation/admin-guide/cgroup-v1/ and cgroup-v2.rst of the Linux kernel.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hugewise.errors import HugewiseError
from hugewise.host.freezer import PATIENCE_S, Freezer, release
from hugewise.host.ledger import FoldersMade
from hugewise.host.local_host import LocalHost
from hugewise.machine.machine import Contained
from hugewise.machine.proc import kernel_text, mounts
from hugewise.model.host import Host
from hugewise.model.procedure import RoleUse

_CONTROLLERS = ("memory", "pids", "freezer", "cpuacct")
# Files of version 2 that leave nothing to do for a controller of version 1.
_INSTEAD = {"freezer": ("cgroup.kill", "cgroup.freeze"), "cpuacct": ("cpu.stat",)}
_OWN = re.compile(r"/(?:[^/]+/)*hugewise-\d+")


class _CannotError(HugewiseError):
    """A cgroup cannot be made here."""


def is_own(path: str) -> bool:
    """Whether the path is a run's folder in a cgroup file system; checked before it is cleared."""
    return (
        _OWN.fullmatch(path) is not None
        and ".." not in path
        and any(Path(path).is_relative_to(mount) for mount, _, _ in _mounts(Path("/proc/self")))
    )


def _mounts(proc: Path) -> list[tuple[Path, str, frozenset[str]]]:
    """Mount point, root within the hierarchy, and controllers (`2` for v2) of each cgroup mount."""
    return [
        (Path(one.point), one.root, frozenset("2" if one.kind == "cgroup2" else one.options.split(",")))
        for one in mounts(kernel_text(proc / "mountinfo"))
        if one.kind in ("cgroup", "cgroup2")
    ]


def find(proc: Path = Path("/proc/self")) -> dict[str, Path]:
    """This process's own group by hierarchy: `2`, `memory`, `pids`, `freezer`, as far as mounted."""
    own = {}
    for line in filter(None, kernel_text(proc / "cgroup").split("\n")):
        number, names, path = line.split(":", 2)
        for name in ["2"] if number == "0" else names.split(","):
            own[name] = path
    found = {}
    for point, root, controllers in _mounts(proc):
        for name in {"2", *_CONTROLLERS} & controllers & own.keys():
            inside = os.path.relpath(own[name], root)
            # A container may see only a part of the hierarchy: then its top is the nearest that can be reached.
            reachable = point / inside if not inside.startswith("..") else point
            found[name] = reachable if reachable.is_dir() else point
    return found


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
        try:
            found = Freezer(self.host, self.folders, self.processes)
            if not found.by_kernel(frozen=frozen):
                found.by_signals(frozen=frozen)
        except OSError as error:
            word = "freeze" if frozen else "thaw"
            raise _CannotError(f"cannot {word} the cgroup {self.folders[0]}: {error.strerror}") from error

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
                found = self.table(folder, "cpu.stat")
                times = [found[f"{kind}_usec"] / 1e6 for kind in ("usage", "user", "system")]
                return RoleUse(cpu_s=times[0], user_s=times[1], system_s=times[2], faults=faults)
            with suppress(KeyError, OSError):
                split, tick = self.table(folder, "cpuacct.stat"), os.sysconf("SC_CLK_TCK")
                total = int(self.host.read(f"{folder}/cpuacct.usage")) / 1e9
                return RoleUse(cpu_s=total, user_s=split["user"] / tick, system_s=split["system"] / tick, faults=faults)
        return RoleUse(faults=faults)

    def processes(self) -> list[int]:
        return sorted(set(_pids(self.folders[:1])))

    def limit_memory(self, size: int, *, swapping: bool = False) -> None:
        """Let the processes inside, and the page cache they fill, have at most `size` bytes. Raises HugewiseError.

        `swapping`: what is more is to be swapped out. Version 1 does that at its one limit as long as there is swap.
        """
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
        """The numbers in a file of names and numbers; empty where there is none."""
        try:
            lines = self.host.read(f"{folder}/{file}").splitlines()
        except OSError:
            return {}
        return {name: int(value) for name, value in (line.split() for line in lines)}


@dataclass
class Hierarchy:
    """The folders of one run, in which its attempts get theirs."""

    made: FoldersMade
    parents: dict[str, Path]

    @classmethod
    def open(
        cls, note: Callable[[FoldersMade], None] = lambda _: None, own: dict[str, Path] | None = None
    ) -> Hierarchy:
        """Make the run's folders; `note` (the journal) hears of them before.

        `own` are the groups to start from, those of this process if not given. Hierarchies in which this user may
        make no group are left out; raises HugewiseError with the cure when that leaves none.
        """
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
        """The group of one attempt. Raises HugewiseError with the cure."""
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
    """Make the folders that can be made and are of use; returns them, and the last problem.

    Each hierarchy costs a process time to enter: those of version 1 that freeze, and count CPU time, are only wanted
    where version 2 does not do that.
    """
    usable: dict[str, Path] = {}
    problem: HugewiseError | None = None
    for key in ("2", *_CONTROLLERS):
        instead = _INSTEAD.get(key, ())
        if key not in parents or (instead and "2" in usable and all((usable["2"] / name).exists() for name in instead)):
            continue
        try:
            _make(parents[key], exist_ok=True)  # the number is ours: what is there is left of a dead run
        except HugewiseError as error:
            problem = error
        else:
            usable[key] = parents[key]
    return usable, problem


def unavailable(own: dict[str, Path] | None = None) -> HugewiseError | None:
    """Why this process cannot make cgroups here, with the cure, or None when it can; makes and removes the folders."""
    try:
        Hierarchy.open(own=own).remove()
    except HugewiseError as error:
        return error
    return None


def _with_memory(base: Path) -> Path:
    """The nearest v2 group, from `base` upwards, whose children can have the memory controller; else `base`.

    A group that holds processes cannot give controllers to its children (the root can), and only the owner of a
    delegated subtree may write in it.
    """
    for group in (base, *base.parents):
        control = group / "cgroup.subtree_control"
        if not control.exists():
            break
        busy = bool((group / "cgroup.procs").read_text()) and (group.parent / "cgroup.procs").exists()
        given = "memory" in _words(control)
        could = "memory" in _words(group / "cgroup.controllers") and not busy
        if (given or could) and os.access(group, os.W_OK) and os.access(control, os.W_OK):
            return group
    return base


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except FileNotFoundError:
        return []


def _to_enable(group: Path, *names: str) -> tuple[tuple[str, str], ...]:
    """Controllers that `group` has and does not yet give to its children: (subtree_control file, controller)."""
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
    """`folder` and every group below it, the deepest first."""
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
    """Kill by cgroup.kill where there is one; else one by one, frozen so that none can fork away.

    Groups may be frozen already, and so may those inside them: they are thawed only when all have been sent SIGKILL.
    """
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
