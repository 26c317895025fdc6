"""The spool on disk: a folder for each fleet, and in it one for each assignment until it is shipped.

SPOOL/                   0700, the account's own
  FLEET/
    fence                the highest number that was begun, and whether that one is over
    order                locked while an order is obeyed: by all that read, alone by what begins or forgets
    NUMBER/
      begin.json         what was ordered; an assignment without it was never begun
      study.toml
      results/STUDY/RUN  the run
      state.json         what its keeper last said (`KeeperRecord`)
      lock               locked by its keeper as long as it lives
      end                there when it is to be ended
      said.txt           what the run said
      manifest.json      of a run that has ended: what is shipped
      reserve            room for the last state on a full disk
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from hugewise import processes, reading
from hugewise.beneath import DirFd
from hugewise.errors import HugewiseError
from hugewise.files import write_whole
from hugewise.fleet.protocol import (
    MOST_FILES,
    AssignmentSeen,
    BeginOrder,
    FileEntry,
    KeeperState,
    ManifestFound,
    safe_file,
)

FINAL = ("ended", "interrupted", "failed")
"""States of an assignment that nothing changes any more."""
_RESERVE = 64 << 10
_WORDS, _TAIL = 2000, 8192
_HIDDEN = "."
_BLOCK_CLOSED = b'{"record":"block_closed"'

_Kind = TypeVar("_Kind")


class Fence(msgspec.Struct, frozen=True):
    """The highest number of a fleet that was begun here; `over` once it is forgotten: it never begins again."""

    number: int = 0
    over: bool = False


class ProcessIdentity(msgspec.Struct, frozen=True):
    """A process: pid, start in clock ticks since boot, boot id, and its file by device and inode (empty: unknown)."""

    pid: int
    start: int
    boot: str = ""
    exe: str = ""


class KeeperRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Last state that a keeper recorded of its assignment; see `AssignmentSeen`.

    keeper       its process; None when it has ended by itself
    unreadable   no manifest can be made of the run
    """

    state: KeeperState = "starting"
    reason: str | None = None
    restarts: int = 0
    keeper: ProcessIdentity | None = None
    unreadable: bool = False


class SpoolEntry:
    """The folder of an assignment. `path` is root's own under root: `host_agent` sees to that first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results = path / "results"

    # -- orders and state

    def order(self) -> BeginOrder | None:
        """Return the order; None where nothing was begun. Raises HugewiseError."""
        return _stored(self.path / "begin.json", BeginOrder)

    def kept(self) -> KeeperRecord:
        return _stored(self.path / "state.json", KeeperRecord) or KeeperRecord()

    def keep(self, state: KeeperRecord) -> bool:
        """Have it on disk; False where there is no room even after the reserve is given up, or it cannot be written."""
        for last in (False, True):
            try:
                write_whole(self.path / "state.json", msgspec.json.encode(state), 0o600)
            except OSError as error:
                if last or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    return False
                self.give_up_reserve()
            else:
                return True
        return False

    def reserve_space(self) -> None:
        """Have room for the last state, whatever fills the disk. Raises OSError."""
        write_whole(self.path / "reserve", os.urandom(_RESERVE), 0o600)

    def give_up_reserve(self) -> None:
        with suppress(OSError):
            (self.path / "reserve").unlink()

    def end_ordered(self) -> bool:
        return (self.path / "end").exists()

    def end(self) -> None:
        """Have it ended, also by a keeper that is started later. Raises OSError."""
        write_whole(self.path / "end", b"", 0o600)

    def concluded(self) -> bool:
        """Return whether a keeper has nothing more to do: its last state is there, and the files to ship are known."""
        kept = self.kept()
        return kept.state in FINAL and (kept.unreadable or self.manifest() is not None or self.run() is None)

    # -- its keeper

    @contextmanager
    def held(self) -> Iterator[int | None]:
        """Yield the descriptor of the lock, which a keeper that inherits it keeps; None while a keeper lives."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            yield None
            return
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def has_keeper(self) -> bool:
        with self.held() as free:
            return free is None

    # -- its run

    def run(self) -> Path | None:
        """Return the folder of the run that has begun, or None. Raises HugewiseError where there are several."""
        runs = sorted(path.parent for path in self.results.glob("*/*/run.jsonl"))
        if len(runs) > 1:
            raise HugewiseError(f"{self.results} holds {len(runs)} runs, and one was ordered")
        return runs[0] if runs else None

    def seen(self, order: BeginOrder, *, keeper: bool) -> AssignmentSeen:
        kept, run = self.kept(), self.run()
        return AssignmentSeen(
            assignment=order.assignment,
            state=kept.state,
            keeper=keeper,
            run=None if run is None else run.name,
            closed=0 if run is None else _closed_blocks(run),
            words=last_words(self.path / "said.txt"),
            reason=kept.reason or (None if kept.state in FINAL else self._full()),
            restarts=kept.restarts,
        )

    def _full(self) -> str | None:
        held = os.statvfs(self.path)
        if held.f_bavail * held.f_frsize >= _RESERVE:
            return None
        return f"no room is left in the spool {self.path.parent.parent}: it goes on when there is some"

    def manifest(self) -> ManifestFound | None:
        """Return the manifest of the files to ship; None until it is made. Raises HugewiseError."""
        return _stored(self.path / "manifest.json", ManifestFound)

    def write_manifest(self, order: BeginOrder) -> None:
        """Write down what is shipped of it, where there is a run. Raises OSError, HugewiseError."""
        if (run := self.run()) is not None:
            record = ManifestFound(assignment=order.assignment, run=run.name, files=manifest(run))
            write_whole(self.path / "manifest.json", msgspec.json.encode(record), 0o600)


def _stored(path: Path, kind: type[_Kind]) -> _Kind | None:
    try:
        return reading.stored(path, kind)
    except reading.AbsentError:
        return None
    except reading.UnreadableError as error:
        raise HugewiseError(
            f"{path}: {error}", hint="see who writes there; the assignment can be removed by hand"
        ) from None


def manifest(run: Path) -> tuple[FileEntry, ...]:
    """Return the files of a run's folder by name, without hidden and irregular ones. Raises OSError, HugewiseError."""
    with DirFd.open(run) as held:
        entries = tuple(_entries(held, ""))
    if len(entries) > MOST_FILES:
        raise HugewiseError(f"{run} has more than {MOST_FILES:,} files")
    return entries


def _entries(folder: DirFd, above: str) -> Iterator[FileEntry]:
    for name in folder.names():
        status, relative = folder.status(name), f"{above}{name}"
        if name.startswith(_HIDDEN) or not safe_file(relative):
            continue
        if stat.S_ISDIR(status.st_mode):
            with folder.folder(name) as below:
                yield from _entries(below, f"{relative}/")
        elif stat.S_ISREG(status.st_mode):
            with folder.file(name) as file:
                digest = reading.digest(file)
                yield FileEntry(relative, os.lseek(file.fileno(), 0, os.SEEK_CUR), digest)


def _closed_blocks(run: Path) -> int:
    with suppress(OSError, reading.UnreadableError), reading.opened(run / "run.jsonl") as log:
        return sum(line.startswith(_BLOCK_CLOSED) for line in log)
    return 0


def last_words(path: Path) -> str:
    """Return the last lines of a run's output."""
    try:
        lines = reading.content(path, _TAIL, part="tail").decode(errors="replace").splitlines()
    except reading.UnreadableError:
        return ""
    return "\n".join([line for line in lines if line.strip()][-4:])[-_WORDS:]


def identify(pid: int) -> ProcessIdentity | None:
    """Return the process of that pid; None where there is none, or only what is left of it."""
    stat = processes.stat(Path(f"/proc/{pid}"))
    return None if stat is None or stat.has_ended else ProcessIdentity(pid, stat.starttime, _boot(), _exe(pid))


@functools.cache
def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _exe(pid: int) -> str:
    # a file that was replaced meanwhile has another name then, and is the same
    with suppress(OSError):
        file = Path(f"/proc/{pid}/exe").stat()
        return f"{file.st_dev}:{file.st_ino}"
    return ""


def terminate_keeper(keeper: ProcessIdentity | None) -> None:
    """Tell a keeper, where it is still there, to have its run ended."""
    if keeper is None:
        return
    try:
        held = os.pidfd_open(keeper.pid)
    except OSError:
        return
    try:
        if identify(keeper.pid) == keeper:
            with suppress(OSError):
                signal.pidfd_send_signal(held, signal.SIGTERM)
    finally:
        os.close(held)


@contextmanager
def obeying_order(path: Path, *, alone: bool = False) -> Iterator[None]:
    """Hold the lock of a fleet's orders: shared with others that read, or `alone`. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)
