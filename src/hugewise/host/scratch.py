"""Private folders of attempts, and copies of data into them.

A session has one folder `hugewise-PID` in each place that its study names (tmpfs or a disk). Inside, an attempt's
folders have the same names every time, so that no path differs between arms. The journal hears of a folder before it
is made; what a killed run left is removed by the next root call. What is done in these folders, once they are the
account's, is done below descriptors (`hugewise.beneath`).
"""

from __future__ import annotations

import errno
import hashlib
import os
import pwd
import re
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hugewise import beneath, files
from hugewise.beneath import MODE, DirFd
from hugewise.errors import StorageError, UserError
from hugewise.machine.proc import kernel_text, mounts
from hugewise.quantity import format_size

_OWN = re.compile(r"hugewise-\d+(-[0-9a-f]{8})?")
_CHUNK = 1 << 20
_SPARE = 64 << 20  # beside the data: sockets, logs, outputs
_DEEPEST = 200  # folders in folders of data; two descriptors each
_NAMES = 16


def is_named(path: str) -> bool:
    """Return whether `path` has the form of a session's folder."""
    folder = Path(path)
    return folder.is_absolute() and ".." not in folder.parts and _OWN.fullmatch(folder.name) is not None


def is_own(path: str) -> bool:
    """Return whether `path` can be a session's folder, by its name and, where it exists, its owner and kind."""
    if not is_named(path):
        return False
    with suppress(OSError):
        status = Path(path).lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return True


def discard(path: str) -> None:
    """Remove a session's folder, or a file in it; nothing happens when it is gone. Raises StorageError."""
    try:
        beneath.discard(Path(path))
    except OSError as error:
        raise StorageError(f"cannot remove {path}: {error.strerror}", hint=f"rm -r {path}") from error


def fresh(path: Path, owner: int | None, group: int | None, fill: Callable[[DirFd], None] = lambda _: None) -> None:
    """Make a folder in place of any there, and hand it over to the account when `fill` is done. Raises StorageError."""
    try:
        with DirFd.open(path.parent) as above:
            above.remove(path.name)
            with above.make(path.name) as made:
                fill(made)
                made.hand_over(owner, group)
    except OSError as error:
        raise StorageError(f"cannot make {path}: {error.strerror}") from error


@dataclass(frozen=True)
class Scratch:
    """A session's folder in one place; `owner` and `group` are those of the attempts' account (None: the caller)."""

    path: Path
    owner: int | None
    group: int | None

    @classmethod
    def open(cls, place: Path, owner: int | None, group: int | None, note: Callable[[str], None]) -> Scratch:
        """Make the folder in `place` under a free name; `note` hears of it before. Raises UserError."""
        try:
            files.own(place, f"storage = {str(place)!r}", "name a folder of root's, or a sticky one such as /dev/shm")
            for left in place.glob("hugewise-*"):
                pid = left.name.split("-")[1]
                if is_own(str(left)) and (pid == str(os.getpid()) or not Path("/proc", pid).exists()):
                    with suppress(StorageError):  # another name will do
                        discard(str(left))  # left by a session that was killed
            with DirFd.open(place.resolve()) as within:
                name = _made(within, place, note)
        except OSError as error:
            raise UserError(
                f"storage = {str(place)!r}: {error.strerror}", hint="name a tmpfs or disk folder that you may write"
            ) from None
        return cls(place / name, owner, group)

    def of(self, who: pwd.struct_passwd | None) -> Scratch:
        """Return the folder for another account (None: the caller): workloads of one study may run as several."""
        return replace(self, owner=None if who is None else who.pw_uid, group=None if who is None else who.pw_gid)

    def folder(self, name: str, fill: Callable[[DirFd], None] = lambda _: None) -> Path:
        """Return a fresh folder of that name for the account, with what `fill` puts there. Raises StorageError."""
        path = self.path / name
        fresh(path, self.owner, self.group, fill)
        return path

    def within(self, name: str) -> Scratch:
        """Return a new folder of that name inside, which the account can pass through and not change."""
        try:
            with DirFd.open(self.path) as above:
                above.remove(name)
                above.make(name, 0o711).close()
        except OSError as error:
            raise StorageError(f"cannot make {self.path / name}: {error.strerror}") from error
        return replace(self, path=self.path / name)

    def clear(self) -> None:
        """Remove what is inside. Raises StorageError."""
        for path in self.path.iterdir():
            discard(str(path))


def _made(within: DirFd, place: Path, note: Callable[[str], None]) -> str:
    name = f"hugewise-{os.getpid()}"
    for left in reversed(range(_NAMES)):
        note(str(place / name))
        try:
            with within.make(name, 0o711):
                return name
        except FileExistsError:
            if not left:
                raise
            name = f"hugewise-{os.getpid()}-{secrets.token_hex(4)}"
    raise AssertionError


@dataclass(frozen=True)
class Copied:
    """Copied data: bytes of file contents, and the SHA-256 over names, modes and contents in their order."""

    bytes: int
    digest: str


def copy(source: Path, target: DirFd, owner: int | None = None, group: int | None = None) -> Copied:
    """Copy the tree `source` into `target` and hash it. Links are copied, sockets, pipes and mode bits beyond rwx are
    not, holes are filled, times of modification kept (for make). Raises StorageError.
    """
    on_disk = file_system(target.path) not in ("tmpfs", "ramfs")
    copying = _Copying(owner, group, on_disk, _free(target.fileno()) - _SPARE)
    try:
        with DirFd.open(source) as top:
            copying.walk(top, target)
    except OSError as error:
        raise StorageError(
            f"cannot copy {error.filename or source}: {error.strerror}", hint="free space there"
        ) from error
    return Copied(copying.size, copying.digest.hexdigest())


class _Copying:
    def __init__(self, owner: int | None, group: int | None, on_disk: bool, room: int) -> None:
        self.digest, self.size = hashlib.sha256(), 0
        self._room = room  # bytes for all of it; others may fill the disk meanwhile
        self._owner, self._group, self._on_disk = owner, group, on_disk

    def walk(self, source: DirFd, target: DirFd) -> None:
        levels = [(source, target, iter(source.names()), "")]
        try:
            while levels:
                here, there, names, prefix = levels[-1]
                if (name := next(names, None)) is not None:
                    if (below := self._copy(here, there, name, prefix)) is not None:
                        levels.append((*below, iter(below[0].names()), f"{prefix}{name}/"))
                        if len(levels) > _DEEPEST:
                            raise StorageError(f"{below[0].path}: data have at most {_DEEPEST} folders in folders")
                else:
                    if here is not source:
                        self._end(here, there)
                    levels.pop()
        finally:
            for here, there, *_ in levels[1:]:
                here.close()
                there.close()

    def _copy(self, here: DirFd, there: DirFd, name: str, prefix: str) -> tuple[DirFd, DirFd] | None:
        mode = here.status(name).st_mode
        if stat.S_ISDIR(mode):
            below = here.folder(name)
            self._tell(f"{prefix}{name}", below.status().st_mode)
            return below, there.make(name)
        if stat.S_ISLNK(mode):
            self._tell(f"{prefix}{name}", mode, link := here.target(name))
            there.symlink(name, link)
        elif stat.S_ISREG(mode):
            self._file(here, there, name, f"{prefix}{name}")
        return None

    def _tell(self, path: str, mode: int, link: str = "") -> None:
        self.digest.update(f"{path}\0{mode & MODE:o}\0{link}".encode("utf-8", "surrogateescape"))

    def _end(self, here: DirFd, there: DirFd) -> None:
        status = here.status()
        os.utime(there.fileno(), ns=(status.st_mtime_ns, status.st_mtime_ns))
        if self._on_disk:
            there.sync()
        there.hand_over(self._owner, self._group, status.st_mode)
        here.close()
        there.close()

    def _file(self, here: DirFd, there: DirFd, name: str, path: str) -> None:
        with here.file(name) as reading:
            status = os.fstat(reading.fileno())
            self._tell(path, status.st_mode)
            if self.size + status.st_size > self._room or status.st_size > _free(there.fileno()):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(here.path / name))
            with there.new(name, status.st_mode, self._owner, self._group) as writing:
                left = status.st_size
                while chunk := reading.read(min(_CHUNK, left)):
                    self.digest.update(chunk)
                    writing.write(chunk)
                    left -= len(chunk)
                if left or reading.read(1):
                    raise StorageError(f"{here.path / name} was changed while it was copied")
                self.digest.update(b"\0")
                self.size += status.st_size
                writing.flush()
                os.utime(writing.fileno(), ns=(status.st_mtime_ns, status.st_mtime_ns))
                if self._on_disk:
                    os.fsync(writing.fileno())
                    os.posix_fadvise(writing.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _free(place: Path | int) -> int:
    space = os.statvfs(place)
    return space.f_bavail * space.f_frsize


def need_room(place: Path, size: int) -> None:
    """Raise UserError when the file system of `place` has no room for `size` bytes of data and what attempts write."""
    free = _free(place)
    if free < size + _SPARE:
        has, needs = (format_size(each >> 20 << 20) for each in (free, size + _SPARE))
        raise UserError(
            f"{place} has {has} free, and an attempt needs {needs}",
            hint='free space there, or name another folder: storage = "/path"',
        )


def file_system(path: Path) -> str:
    """Return the type of the file system that holds `path`, such as tmpfs, ext4 or xfs, or `unknown`."""
    best, kind = "", "unknown"
    with suppress(OSError):
        place = str(path.resolve())
        for mount in mounts(kernel_text(Path("/proc/self/mountinfo"))):
            inside = place == mount.point or place.startswith(mount.point.rstrip("/") + "/")
            if inside and len(mount.point) >= len(best):
                best, kind = mount.point, mount.kind
    return kind
