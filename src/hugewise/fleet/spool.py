"""The spool on disk: a folder for each fleet, and in it one for each assignment until it is shipped.

SPOOL/                   0700, the account's own
  FLEET/
    fence                the highest number that was begun, and whether that one is over
    order                locked while an order is obeyed: by all that read, alone by what begins or forgets
    worker               the engine's worker that carried the last order, where there is one
    NUMBER/
      begin.json         what was ordered; an assignment without it was never begun
      study.toml
      results/STUDY/RUN  the run
      state.json         what its keeper last said (`KeptState`)
      lock               locked by its keeper as long as it lives
      end                there when it is to be ended
      said.txt           what the run said
      manifest.json      of a run that has ended: what is shipped
      reserve            room for the last state on a full disk
      costs              processor time of orders that were programs of their own
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from hugewise import reading
from hugewise.beneath import DirFd
from hugewise.errors import HugewiseError
from hugewise.files import write_whole
from hugewise.fleet.protocol import (
    MOST_FILES,
    AssignmentSeen,
    BeginOrder,
    Cost,
    FileEntry,
    KeeperState,
    ManifestFound,
    safe_file,
)

FINAL = ("ended", "interrupted", "failed")
"""States of an assignment that nothing changes any more."""
_RESERVE = 64 << 10
_WORDS, _TAIL = 2000, 8192
_MOST_STATE = 1 << 20
_HIDDEN = "."

_Kind = TypeVar("_Kind")


class Fence(msgspec.Struct, frozen=True):
    """The highest number of a fleet that was begun here; `over` once it is forgotten: it never begins again."""

    number: int = 0
    over: bool = False


class WorkerAt(msgspec.Struct, frozen=True):
    """A process, so that no other one is taken for it: its pid, its start in clock ticks since boot, the id of that
    boot, and the file that it runs, by device and inode (empty where that cannot be seen).
    """

    pid: int
    start: int
    boot: str = ""
    exe: str = ""


class KeptState(msgspec.Struct, frozen=True, kw_only=True):
    """What a keeper last said of its assignment; see `AssignmentSeen`. `folder` of the run is below `results`.

    keeper       its process; None when it has ended by itself
    unreadable   no manifest can be made of the run
    """

    state: KeeperState = "starting"
    folder: str | None = None
    closed: int = 0
    blocks: int = 0
    left_s: float | None = None
    reason: str | None = None
    restarts: int = 0
    cost: Cost = Cost()
    keeper: WorkerAt | None = None
    unreadable: bool = False


class _Costs(msgspec.Struct, frozen=True):
    seconds: float = 0.0
    orders: int = 0


class SpoolEntry:
    """The folder of an assignment. `path` is root's own under root: `host_agent` sees to that first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results = path / "results"

    # -- what was ordered, and how it is

    def ordered(self) -> BeginOrder | None:
        """What was ordered; None where nothing was begun. Raises HugewiseError."""
        return _stored(self.path / "begin.json", BeginOrder)

    def kept(self) -> KeptState:
        """What its keeper last said."""
        return _stored(self.path / "state.json", KeptState) or KeptState()

    def keep(self, state: KeptState) -> bool:
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

    def set_aside(self) -> None:
        """Have room for the last state, whatever fills the disk. Raises OSError."""
        write_whole(self.path / "reserve", os.urandom(_RESERVE), 0o600)

    def give_up_reserve(self) -> None:
        """Have the room that was set aside."""
        with suppress(OSError):
            (self.path / "reserve").unlink()

    def to_end(self) -> bool:
        """Whether it was ordered to end."""
        return (self.path / "end").exists()

    def end(self) -> None:
        """Have it ended, also by a keeper that is started later. Raises OSError."""
        write_whole(self.path / "end", b"", 0o600)

    def concluded(self) -> bool:
        """Whether a keeper has nothing more to do: its last state is there, and what is shipped of it is known."""
        kept = self.kept()
        return kept.state in FINAL and (kept.unreadable or self.manifest() is not None or self.run() is None)

    # -- its keeper

    @contextmanager
    def held(self) -> Iterator[int | None]:
        """The descriptor of its lock, which a keeper that inherits it keeps; None while a keeper lives."""
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

    def living(self) -> bool:
        """Whether a keeper has it."""
        with self.held() as free:
            return free is None

    # -- its run

    def run(self) -> Path | None:
        """The folder of its run, which has begun; None where none has. Raises HugewiseError where there are several."""
        found = sorted(path.parent for path in self.results.glob("*/*/run.jsonl"))
        if len(found) > 1:
            raise HugewiseError(f"{self.results} holds {len(found)} runs, and one was ordered")
        return found[0] if found else None

    def seen(self, order: BeginOrder, *, keeper: bool) -> AssignmentSeen:
        """How it is, for the coordinator."""
        kept, costs = self.kept(), _stored(self.path / "costs", _Costs) or _Costs()
        return AssignmentSeen(
            assignment=order.assignment,
            state=kept.state,
            keeper=keeper,
            run=None if kept.folder is None else Path(kept.folder).name,
            closed=kept.closed,
            blocks=kept.blocks,
            left_s=kept.left_s,
            words=last_words(self.path / "said.txt"),
            reason=kept.reason or (None if kept.state in FINAL else self._full()),
            restarts=kept.restarts,
            cost=msgspec.structs.replace(kept.cost, orders_s=costs.seconds, orders=costs.orders),
        )

    def _full(self) -> str | None:
        """That its disk is full, which its keeper cannot write down; None where it is not."""
        held = os.statvfs(self.path)
        if held.f_bavail * held.f_frsize >= _RESERVE:
            return None
        return f"no room is left in the spool {self.path.parent.parent}: it goes on when there is some"

    def add_cost(self, seconds: float) -> None:
        """Count an order that was a program of its own. Raises OSError."""
        before = _stored(self.path / "costs", _Costs) or _Costs()
        write_whole(
            self.path / "costs", msgspec.json.encode(_Costs(before.seconds + seconds, before.orders + 1)), 0o600
        )

    def manifest(self) -> ManifestFound | None:
        """What is shipped of it; None until it is made. Raises HugewiseError."""
        return _stored(self.path / "manifest.json", ManifestFound)

    def make_manifest(self, order: BeginOrder) -> None:
        """Write down what is shipped of it, where there is a run. Raises OSError, HugewiseError."""
        if (run := self.run()) is not None:
            found = ManifestFound(assignment=order.assignment, run=run.name, files=manifest(run))
            write_whole(self.path / "manifest.json", msgspec.json.encode(found), 0o600)


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
    """The files of a run's folder in the order of their names: what is hidden (drafts) and what is no regular file is
    left out. The run may belong to another account: it is read below a descriptor. Raises OSError, HugewiseError.
    """
    with DirFd.open(run) as held:
        found = tuple(_entries(held, ""))
    if len(found) > MOST_FILES:
        raise HugewiseError(f"{run} has more than {MOST_FILES:,} files")
    return found


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


def last_words(path: Path) -> str:
    """The last lines of what a run said."""
    try:
        lines = reading.content(path, _TAIL, part="tail").decode(errors="replace").splitlines()
    except reading.UnreadableError:
        return ""
    return "\n".join([line for line in lines if line.strip()][-4:])[-_WORDS:]
