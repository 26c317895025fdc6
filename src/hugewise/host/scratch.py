"""Private folders in which attempts are played, and copies of data into them.

A session has one folder `hugewise-PID` in each place that its study names (tmpfs or a disk). Inside, an attempt's
folders have the same names every time, so that no path differs between arms. The journal hears of a folder before it
is made; what a killed run left is removed by the next root call.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hugewise.errors import StorageError, UserError
from hugewise.host.local_host import mounted
from hugewise.quantity import format_size

__all__ = ["Copied", "Scratch", "copy", "discard", "file_system", "fresh", "is_own", "need_room", "tree"]

_OWN = re.compile(r"hugewise-\d+")
_CHUNK = 1 << 20
_SPARE = 64 << 20  # beside the data: sockets, logs, outputs


def is_own(path: str) -> bool:
    """Whether the path can be a session's folder: by its name, and (where it is there) its owner and kind."""
    folder = Path(path)
    if not folder.is_absolute() or ".." in folder.parts or _OWN.fullmatch(folder.name) is None:
        return False
    with suppress(OSError):
        found = folder.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return True


def discard(path: str) -> None:
    """Remove a session's folder with everything in it, or a file in it; nothing happens when it is gone.

    Raises StorageError.
    """
    try:
        if Path(path).is_dir() and not Path(path).is_symlink():
            shutil.rmtree(path)
        else:
            Path(path).unlink(missing_ok=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot remove {path}: {error.strerror}", hint=f"rm -r {path}") from error


def fresh(path: Path, owner: int | None, group: int | None) -> None:
    """Make an empty folder for the account (None: the caller), whatever is there goes. Raises StorageError."""
    try:
        if path.exists():
            shutil.rmtree(path)
        path.mkdir(mode=0o700)
        if owner is not None and group is not None:
            os.chown(path, owner, group)
    except OSError as error:
        raise StorageError(f"cannot make {path}: {error.strerror}") from error


@dataclass(frozen=True)
class Scratch:
    """A session's folder in one place; `owner` and `group` are whom the attempts run as (None: the caller)."""

    path: Path
    owner: int | None
    group: int | None

    @classmethod
    def open(cls, place: Path, owner: int | None, group: int | None, note: Callable[[str], None]) -> Scratch:
        """Make the folder in `place`; `note` (the journal) hears of it before. Raises UserError."""
        path = place / f"hugewise-{os.getpid()}"
        note(str(path))
        try:
            for left in place.glob("hugewise-*"):
                if is_own(str(left)) and (left == path or not Path("/proc", left.name.partition("-")[2]).exists()):
                    discard(str(left))  # of a session that was killed
            path.mkdir(mode=0o711)
            path.chmod(0o711)
        except OSError as error:
            raise UserError(
                f"storage = {str(place)!r}: {error.strerror}", hint="name a tmpfs or disk folder that you may write"
            ) from None
        return cls(path, owner, group)

    def folder(self, name: str) -> Path:
        """A fresh, empty folder of that name for the account. Raises StorageError."""
        path = self.path / name
        fresh(path, self.owner, self.group)
        return path

    def clear(self) -> None:
        """Remove what is inside. Raises StorageError."""
        for path in self.path.iterdir():
            discard(str(path))


@dataclass(frozen=True)
class Copied:
    """What was copied: bytes of file contents, and the SHA-256 over names, modes and contents in their order."""

    bytes: int
    digest: str


def tree(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything below `folder` as (path relative to it, entry), in the order of the paths; links are not followed."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        yield entry.name, entry
        if entry.is_dir(follow_symlinks=False):
            for name, below in tree(Path(entry.path)):
                yield f"{entry.name}/{name}", below


def copy(source: Path, target: Path, owner: int | None = None, group: int | None = None) -> Copied:
    """Copy the tree below `source` into the folder `target`, owned by the account, and hash it on the way.

    On a disk the copy is written out and leaves the page cache: what an attempt reads, it reads itself. Times of
    modification are kept (make goes by them). Raises StorageError.
    """
    digest, size = hashlib.sha256(), 0
    on_disk = file_system(target) not in ("tmpfs", "ramfs")
    folders: list[tuple[Path, int]] = []
    try:
        for name, entry in tree(source):
            place, info = target / name, entry.stat(follow_symlinks=False)
            mode = stat.S_IMODE(info.st_mode)
            digest.update(f"{name}\0{mode:o}\0".encode("utf-8", "surrogateescape"))
            if entry.is_symlink():
                link = str(Path(entry.path).readlink())
                digest.update(link.encode("utf-8", "surrogateescape"))
                place.symlink_to(link)
                if owner is not None and group is not None:
                    os.chown(place, owner, group, follow_symlinks=False)
                continue
            if entry.is_dir(follow_symlinks=False):
                place.mkdir(mode=0o700)
                folders.append((place, info.st_mtime_ns))
            elif entry.is_file(follow_symlinks=False):
                size += _copy_file(Path(entry.path), place, digest.update, on_disk=on_disk)
                os.utime(place, ns=(info.st_mtime_ns, info.st_mtime_ns))
            else:
                continue  # sockets and pipes of a server that was there
            if owner is not None and group is not None:
                os.chown(place, owner, group)
            place.chmod(mode)
        for place, modified in reversed(folders):
            os.utime(place, ns=(modified, modified))
    except OSError as error:
        raise StorageError(f"cannot copy {source} to {target}: {error.strerror}", hint="free space there") from error
    return Copied(size, digest.hexdigest())


def _copy_file(source: Path, target: Path, update: Callable[[bytes], None], *, on_disk: bool) -> int:
    size = 0
    with source.open("rb", buffering=0) as reading, target.open("xb", buffering=0) as writing:
        while chunk := reading.read(_CHUNK):
            update(chunk)
            rest = memoryview(chunk)
            while rest:
                rest = rest[writing.write(rest) :]
            size += len(chunk)
        update(b"\0")
        if on_disk:
            os.fsync(writing.fileno())
            os.posix_fadvise(writing.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return size


def need_room(place: Path, size: int) -> None:
    """Raise UserError when the file system of `place` has no room for `size` bytes of data and what attempts write."""
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    if free < size + _SPARE:
        has, needs = (format_size(each >> 20 << 20) for each in (free, size + _SPARE))
        raise UserError(
            f"{place} has {has} free, and an attempt needs {needs}",
            hint='free space there, or name another folder: storage = "/path"',
        )


def file_system(path: Path) -> str:
    """The type of the file system that holds `path`, such as tmpfs, ext4 or xfs; `unknown` when it cannot be told."""
    best, kind = "", "unknown"
    with suppress(OSError):
        place = str(path.resolve())
        for _, point, type_, _ in mounted():
            inside = place == point or place.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, kind = point, type_
    return kind
