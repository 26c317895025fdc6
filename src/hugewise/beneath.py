"""Folders held by a descriptor: how hugewise reads, writes and removes where another account can write.

A path is looked up anew at each call, and whoever may write one of its folders decides each time where it leads. A
descriptor stays with the folder that was opened. So whatever root does in a folder of another account is done here: one
name at a time below a descriptor; links are never followed; what is written was not there before; what is read is a
regular file that belongs to that account; bits that give a program another's rights (setuid, setgid, sticky) are never
kept. Nothing depends on the sysctls `fs.protected_*`. As an ordinary user the same code works in the caller's folders,
where owners are not looked at: the system lets them read no more than they may.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from hugewise.errors import StorageError, UserError

MODE = 0o777
"""The bits of a mode that are kept."""
PATIENCE_S = 600.0
"""Limit on the time that a removal takes while another process keeps adding files."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a pipe is opened without a writer
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NUMBERS = itertools.count()  # for names that were never used
_ATTEMPTS = 16  # against an account that puts something where root has just removed something
_FILLED = (errno.ENOTEMPTY, errno.EEXIST)
_OTHERS_WRITE = 0o022
_CHANGED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # the entry is gone, or something else by now


class DirFd:
    """A folder that stays the same one until it is closed, whatever becomes of its path.

    `path` is what errors call it; `owner` is the account that it belongs to, and so must everything in it. Names are
    single ones; what is called `relative` may have several parts. What the system refuses raises OSError, what this
    class refuses raises StorageError; both name the file.
    """

    def __init__(self, descriptor: int, path: Path, owner: int) -> None:
        self.path = path
        self.owner = owner
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path, called: Path | None = None) -> DirFd:
        """Hold the folder `path`, which is no link; errors call it `called`. The folders above it must be such that
        only root and the caller can change where it leads (see `files.changeable`).
        """
        descriptor = os.open(path, _FOLDER)
        return cls(descriptor, called or path, os.fstat(descriptor).st_uid)

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def fileno(self) -> int:
        return self._descriptor

    @property
    def place(self) -> Path:
        """The path by which other programs reach this very folder, while this process holds it."""
        return Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")

    def must_be_roots(self, what: str) -> None:
        """Raise UserError where the folder is not root's own, or others can write in it. `what`: a run, an advice."""
        found = self.status()
        if found.st_uid != 0 or found.st_mode & _OTHERS_WRITE:
            raise UserError(
                f"{self.path} is not root's own: its account could lead root elsewhere from there",
                hint=f"go on as the account that began the {what}, or begin a new one",
            )

    def __enter__(self) -> DirFd:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- looking

    def names(self) -> list[str]:
        """Return the names in the folder, sorted."""
        return sorted(_names(self._descriptor))

    def status(self, name: str | None = None) -> os.stat_result:
        """Return the status of `name` (of a link itself, not its target), or of the folder for None."""
        if name is None:
            return os.fstat(self._descriptor)
        with self._naming(name):
            return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)

    def target(self, name: str) -> str:
        """Return the target of a symbolic link."""
        with self._naming(name):
            return os.readlink(name, dir_fd=self._descriptor)

    def folder(self, relative: str) -> DirFd:
        """Hold a folder below this one."""
        with ExitStack() as above:
            here = self
            for part in self._parts(relative):
                here = here._below(part, self.owner)
                above.enter_context(here)
            return here._again()

    @contextmanager
    def file(self, name: str) -> Iterator[BinaryIO]:
        """Read a regular file; a pipe is never waited for."""
        with self._naming(name):
            descriptor = os.open(name, _READ, dir_fd=self._descriptor)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise self._refused(name, "it is not a regular file")
            self._check(name, found, self.owner)  # refuses a hard link to a file of another account
        except StorageError:
            os.close(descriptor)
            raise
        with os.fdopen(descriptor, "rb", buffering=0) as opened:
            yield opened

    def read(self, name: str, most: int) -> bytes:
        """Read a regular file as a whole. Refuses one of more than `most` bytes."""
        found = bytearray()
        with self.file(name) as file:
            while len(found) <= most and (chunk := file.read(most + 1 - len(found))):
                found += chunk
        if len(found) > most:
            raise self._refused(name, f"it has more than {most} bytes")
        return bytes(found)

    # -- writing

    def make(self, name: str, mode: int = 0o700) -> DirFd:
        """Make and hold a new folder; it belongs to the caller until it is handed over."""
        with self._naming(name):
            os.mkdir(name, 0o700, dir_fd=self._descriptor)
        made = self._below(name, os.geteuid())
        os.fchmod(made.fileno(), mode & MODE)
        return made

    @contextmanager
    def new(self, name: str, mode: int = 0o600, uid: int | None = None, gid: int | None = None) -> Iterator[BinaryIO]:
        """Write a file that replaces the file or link of that name; it is the account's when it is written."""
        with self._naming(name):
            descriptor = self._created(name)
        with os.fdopen(descriptor, "wb") as opened:
            yield opened
            opened.flush()
            _hand_over(descriptor, mode, uid, gid)

    def _created(self, name: str) -> int:
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._descriptor)
            with suppress(FileExistsError):
                return os.open(name, _NEW, 0o600, dir_fd=self._descriptor)
        raise self._refused(name, "somebody else keeps making it")

    def put(
        self, relative: str, content: bytes, mode: int = 0o600, uid: int | None = None, gid: int | None = None
    ) -> None:
        """Write a file, with the folders that it lies in, all of them for the account."""
        *above, name = self._parts(relative)
        with ExitStack() as held:
            here, made = self, []
            for part in above:
                try:
                    here = held.enter_context(here._below(part, self.owner))
                except FileNotFoundError:
                    here = held.enter_context(here.make(part))
                    made.append(here)
            with here.new(name, mode, uid, gid) as file:
                file.write(content)
            for folder in reversed(made):
                folder.hand_over(uid, gid)

    def symlink(self, name: str, target: str) -> None:
        """Make a symbolic link. It stays the caller's: the owner of a link means nothing."""
        with self._naming(name):
            os.symlink(target, name, dir_fd=self._descriptor)

    def rename(self, name: str, new: str, to: DirFd | None = None) -> None:
        """Rename what is called `name` to `new`, in the folder `to` (None: this one)."""
        with self._naming(name):
            where = self._descriptor if to is None else to.fileno()
            os.rename(name, new, src_dir_fd=self._descriptor, dst_dir_fd=where)

    def hand_over(self, uid: int | None, gid: int | None, mode: int = 0o700) -> None:
        """Give the folder to an account (None: it stays the caller's), as the last thing that is done in it."""
        _hand_over(self._descriptor, mode, uid, gid)

    def sync(self) -> None:
        """Have its names on disk."""
        os.fsync(self._descriptor)

    # -- removing

    def remove(self, name: str, patience: float = PATIENCE_S) -> None:
        """Remove a file, a link, or a folder with everything in it; nothing happens when it is gone.

        However deep it is: there is no recursion, and two descriptors are open at most. As root, folders are taken from
        their account first, so that nothing is added meanwhile. What can be removed is, also where something else
        cannot; a mount is never entered.
        """
        end = time.monotonic() + patience
        with self._naming(name):
            for _ in range(_ATTEMPTS):
                if _unlinked(self._descriptor, name):
                    return
                try:
                    filled = os.open(name, _FOLDER, dir_fd=self._descriptor)
                except OSError as error:
                    if error.errno in _CHANGED:
                        continue
                    raise
                try:
                    _empty(filled, end)
                finally:
                    os.close(filled)
        raise self._refused(name, "somebody else keeps writing there", "cannot be removed")

    # -- basis

    def _below(self, name: str, owner: int) -> DirFd:
        with self._naming(name):
            below = DirFd(os.open(name, _FOLDER, dir_fd=self._descriptor), self.path / name, self.owner)
        try:
            self._check(name, below.status(), owner)
        except StorageError:
            below.close()
            raise
        return below

    def _again(self) -> DirFd:
        return DirFd(os.dup(self._descriptor), self.path, self.owner)

    def _check(self, name: str, found: os.stat_result, owner: int) -> None:
        if os.geteuid() == 0 and found.st_uid != owner:
            raise self._refused(name, f"it belongs to the account {found.st_uid}, not to {owner}")

    def _refused(self, name: str, why: str, what: str = "is not touched") -> StorageError:
        return StorageError(f"{self.path / name} {what}: {why}", hint="see who writes there, and remove it")

    def _parts(self, relative: str) -> list[str]:
        parts = [part for part in relative.split("/") if part not in ("", ".")]
        if not parts or relative.startswith("/") or ".." in parts or "\0" in relative:
            raise self._refused(relative, "it does not lie below that folder")
        return parts

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        """Add the whole path to an error of the system."""
        if "/" in name or name in ("", ".", "..") or "\0" in name:
            raise self._refused(name, "that is not the name of one file")
        try:
            yield
        except OSError as error:
            error.filename = str(self.path / name)
            raise


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as found:
        return [entry.name for entry in found]


def _hand_over(descriptor: int, mode: int, uid: int | None, gid: int | None) -> None:
    os.fchmod(descriptor, mode & MODE)
    if uid is not None and gid is not None:
        os.fchown(descriptor, uid, gid)


def _unlinked(folder: int, name: str) -> bool:
    """Remove a file, a link or an empty folder; False when it is a folder with something in it. Raises OSError."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except IsADirectoryError:
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (*_FILLED, *_CHANGED):
                raise
            return error.errno == errno.ENOENT
    return True


def _take(folder: int) -> None:
    """Make the folder writable for its owner alone; other callers than root may write in their read-only folders."""
    with suppress(OSError):  # the next call reports the error
        if os.geteuid() == 0:
            os.fchown(folder, 0, 0)
        os.fchmod(folder, 0o700)


def _empty(top: int, end: float) -> None:
    """Remove everything in a folder. A folder in a folder is moved up into `top` and is then removed from there, so
    that neither depth nor path length matters. Raises OSError after removing all that can be removed.
    """
    _take(top)
    stuck: dict[str, OSError] = {}
    for _ in range(_ATTEMPTS):
        left = set(stuck)
        # First the folders that have folders are taken, down to the last one, and nothing else is done: whoever still
        # writes in one of them would else make new things as fast as those above it go.
        pending = [name for name in _with_folders(top) if name not in left]
        while pending:
            with _sticking(stuck, name := pending.pop()):
                _within(end)
                if not _unlinked(top, name):  # no mount is entered: it is busy
                    _lift(top, name, _with_folders, pending, end)
        if not (pending := [name for name in _names(top) if name not in left]):
            break
        while pending:
            with _sticking(stuck, name := pending.pop()):
                _within(end)
                gone = _unlinked(top, name)
                if not gone:
                    _lift(top, name, _names, pending, end)
                    gone = _unlinked(top, name)
                if gone:  # whatever was in the way before
                    stuck.pop(name, None)
    if stuck:
        first = next(iter(stuck.values()))
        raise OSError(first.errno, f"{first.strerror} ({first.filename!r}, in it)")


def _within(end: float) -> None:
    if time.monotonic() > end:
        raise TimeoutError(errno.ETIMEDOUT, "somebody else keeps writing there")


@contextmanager
def _sticking(stuck: dict[str, OSError], name: str) -> Iterator[None]:
    # An entry that has become something else is looked at again; any other error is kept.
    try:
        yield
    except OSError as error:
        if error.errno not in _CHANGED:
            stuck.setdefault(name, error)


def _with_folders(folder: int) -> list[str]:
    """Return the folders in `folder` that may have folders in them: a link count of two says that they have none (a
    file system that does not count them, as Btrfs, says one).
    """
    found = []
    for name in _names(folder):
        with suppress(OSError):  # it is gone
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode) and status.st_nlink != 2:
                found.append(name)
    return found


def _lift(top: int, name: str, which: Callable[[int], list[str]], lifted: list[str], end: float) -> None:
    """Take the folder `name` of `top`, and remove its entries in `which`. A folder that is not empty is moved into
    `top` instead, under the new name `lifted`. Raises OSError for the first entry that stays, after the others.
    """
    stuck: dict[str, OSError] = {}
    folder = os.open(name, _FOLDER, dir_fd=top)
    try:
        _take(folder)
        for each in which(folder):
            _within(end)
            with _sticking(stuck, each):
                if not _unlinked(folder, each):
                    os.rename(
                        each, new := f".{secrets.token_hex(8)}-{next(_NUMBERS)}", src_dir_fd=folder, dst_dir_fd=top
                    )
                    lifted.append(new)
    finally:
        os.close(folder)
    for error in stuck.values():
        raise error


def discard(path: Path) -> None:
    """Remove a file or a whole folder by a path that nobody else can change. Raises OSError, StorageError."""
    with suppress(FileNotFoundError):
        descriptor = os.open(path.parent, _FOLDER & ~os.O_NOFOLLOW)
        with DirFd(descriptor, path.parent, os.geteuid()) as above:
            above.remove(path.name)
