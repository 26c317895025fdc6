"""The cache: packages, kernels, images and surveys, named by the hash of what they are made of.

An entry is a file or a folder, made under a hidden name and renamed, under a lock that dies with its holder. As root, a
cache is used only where no other account can change it: what is in it is run, or booted.

What is made for the cache is made in a sandbox, under root by the unprivileged account. Root lends files that the
account may read, the account makes others in a folder of its own, and root takes regular files of those as its own. The
workers are in a group of this sandbox alone: other processes of the account, such as a workload, can neither enter it
nor trace them. The next sandbox removes the folder of a killed process.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import pwd
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from hugewise import beneath, files, reading, unprivileged
from hugewise.beneath import DirFd
from hugewise.errors import StorageError, UserError
from hugewise.files import sync
from hugewise.reading import UnreadableError
from hugewise.unprivileged import Finished, Say

_DIGITS = 32  # of a SHA-256, in a name
_T = TypeVar("_T")


def folder(kind: str | None = None) -> Path:
    """Return the cache folder, or that of a kind of entry. Under sudo it is root's own: an account's cache shall hold
    nothing that only root can remove. Raises StorageError.
    """
    top = _place()
    path = top / kind if kind else top
    try:
        _refuse_foreign(top)
        _make(top)
        _make(path)
    except OSError as error:
        raise StorageError(
            f"cannot make the cache folder {path}: {error.strerror}", hint="set HUGEWISE_CACHE to a folder of yours"
        ) from error
    return path


def _place() -> Path:
    if chosen := os.environ.get("HUGEWISE_CACHE"):
        return Path(chosen).absolute()
    if os.geteuid() == 0 and "SUDO_UID" in os.environ:
        return Path(pwd.getpwuid(0).pw_dir, ".cache", "hugewise")
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen).absolute() / "hugewise"
    return Path.home() / ".cache" / "hugewise"


def _refuse_foreign(top: Path) -> None:
    # Not even the account that called sudo may change root's cache: root's files would be in it, which that account
    # could not remove.
    if os.geteuid() != 0:
        return
    real = Path(os.path.realpath(top))
    others = (above for above in (real, *real.parents) if above.exists() and above.stat().st_uid != 0)
    other = next(others, None)
    why = files.changeable(top) if other is None else f"{other} belongs to {_account_name(other.stat().st_uid)}"
    if why is not None:
        raise UserError(
            f"as root, hugewise does not use the cache {top}: {why}, and so could decide what root boots",
            hint=f"{_unset_hint()}, or set HUGEWISE_CACHE to a folder of root's",
        )


def _account_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"the account {uid}"


def _unset_hint() -> str:
    for name in ("HUGEWISE_CACHE", "XDG_CACHE_HOME"):
        if os.environ.get(name):
            return f"unset {name}"
    return "set HOME to root's, as su - and sudo -H do"


def _make(path: Path) -> None:
    # readable by everybody: a QEMU without privileges reads what root made
    for above in (*reversed(path.parents), path):
        try:
            above.mkdir()
            above.chmod(0o755)
        except FileExistsError:
            continue


def _of_root_alone(handle: int) -> None:
    # An account that can read a lock's file can hold the lock: root would wait for it.
    if os.geteuid() == 0 and os.fstat(handle).st_uid == 0:
        os.fchmod(handle, 0o600)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex digits."""
    with path.open("rb") as file:
        return reading.digest(file)


def entry_path(kind: str, key: bytes | Mapping[str, object]) -> Path:
    """Return the path of the entry of that key, whether it exists or not. Raises StorageError."""
    return folder(kind) / reading.key_digest(key)[:_DIGITS]


def cached(kind: str, key: bytes | Mapping[str, object], make: Callable[[Path], object]) -> Path:
    """Return the entry of that key; `make` makes a missing one at the path that it is given. Raises StorageError."""
    path = entry_path(kind, key)
    if not path.exists():
        with locked(path.with_name(f".{path.name}.lock")):
            if not path.exists():  # else another process made it meanwhile
                put_entry(path, make)
    return path


def replace_entry(kind: str, key: bytes | Mapping[str, object], make: Callable[[Path], object]) -> Path:
    """Return the entry of that key, a file, made by `make` and put in place of an earlier one."""
    path = entry_path(kind, key)
    with locked(path.with_name(f".{path.name}.lock")):
        put_entry(path, make)
    return path


def find_survey(key: Mapping[str, object], form: type[_T]) -> _T | None:
    """Return the answers that a guest gave once, where they are kept and whole."""
    try:
        return reading.stored(entry_path("surveys", key), form)
    except UnreadableError:
        return None


def keep_survey(key: Mapping[str, object], answers: object) -> None:
    """Keep answers of a guest in place of earlier ones, which this version could not read. Raises StorageError."""

    def make(path: Path) -> None:
        with files.storing(str(path)):
            path.write_bytes(msgspec.json.format(msgspec.json.encode(answers), indent=1))

    replace_entry("surveys", key, make)


def put_entry(path: Path, make: Callable[[Path], object]) -> None:
    """Replace the entry `path` by what `make` makes, under the caller's lock. Raises as `make`, and OSError."""
    unfinished, old = (path.with_name(f".{path.name}.{what}") for what in ("new", "old"))
    for left in (unfinished, old):  # left by a killed process
        beneath.discard(left)
    try:
        make(unfinished)
        _open_to_all(unfinished)
        _sync(unfinished)
        if path.is_dir():
            path.rename(old)
        unfinished.rename(path)
        sync(path.parent)
    finally:
        beneath.discard(unfinished)
        beneath.discard(old)


def extents(descriptor: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a file that have data, as first byte and byte after the end. Raises OSError."""
    end = 0
    while True:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data any more
                return
            raise
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, end


def _sync(path: Path) -> None:
    for entry in (*path.rglob("*"), path) if path.is_dir() else (path,):
        if not entry.is_symlink():
            sync(entry)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file, which stays: if it were removed, two processes could hold it."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StorageError(f"cannot write in the cache: {path}: {error.strerror}", hint="set HUGEWISE_CACHE") from error
    try:
        _of_root_alone(handle)
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _open_to_all(path: Path) -> None:
    for entry in (path, *path.rglob("*")) if path.is_dir() else (path,):
        if not entry.is_symlink():
            entry.chmod(entry.stat().st_mode | (0o555 if entry.is_dir() else 0o444))


_PLACE: Final = Path("/var/tmp")  # noqa: S108  (on a disk, and reachable by the account; the folder is root's)
_KIND: Final = "workshops"
_NAME: Final = "hugewise-made-"
_GROUPS: Final = range(61184, 65520)
_MOST_FILES: Final = 4096
_DEEPEST: Final = 2  # folders below the taken one


@dataclass(frozen=True)
class Sandbox:
    """Two folders: `lent` is read by the working account, `own` belongs to it; `group` is its group, or None."""

    path: Path
    group: int | None

    @property
    def lent(self) -> Path:
        """Folder of files that root lends: others may read them, and not change them."""
        return self.path / "lent"

    @property
    def own(self) -> Path:
        return self.path / "own"

    def lend(self, file: Path, name: str, *, kept: bool = False) -> Path:
        """Lend a file as `name`, without a copy if it is `kept` in the cache. Raises StorageError."""
        place = self.lent / name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if kept:
                with suppress(OSError):  # another file system
                    os.link(file, place)
                    return place
            shutil.copyfile(file, place)
            place.chmod(0o755 if os.access(file, os.X_OK) else 0o644)
        except OSError as error:
            raise StorageError(f"cannot copy {file} to {place}: {error.strerror}", hint="free space there") from error
        return place

    def write(self, name: str, text: str) -> Path:
        """Lend a text, as `name`; where it is then. Raises StorageError."""
        place = self.lent / name
        try:
            place.write_text(text, encoding="utf-8")
            place.chmod(0o644)
        except OSError as error:
            raise StorageError(f"cannot write {place}: {error.strerror}", hint="free space there") from error
        return place

    def do(self, work: Callable[[Say], None], say: Say, *, keep: Sequence[int] = ()) -> None:
        """Have the account do it: see `unprivileged.call`. Raises HugewiseError, StorageError."""
        try:
            unprivileged.call(work, say, keep=keep, group=self.group)
        except OSError as error:
            raise StorageError(f"cannot work in {self.path}: {error.strerror}", hint="free space there") from error

    def run(self, argv: Sequence[str], *, timeout: float, environment: Mapping[str, str]) -> Finished:
        """Have the account run a program in its folder: see `unprivileged.run`. Raises HugewiseError."""
        return unprivileged.run(argv, timeout=timeout, environment=environment, cwd=str(self.own), group=self.group)

    def take(self, name: str, target: Path, *, without: Collection[str] = ()) -> None:
        """Copy `name` below `own` to `target`, regular files and folders alone. Raises StorageError."""
        try:
            with DirFd.open(self.own) as own:
                if stat.S_ISDIR(own.status(name).st_mode):
                    with own.folder(name) as folder:
                        _taken(folder, target, frozenset(without), _DEEPEST, [0])
                else:
                    _copied(own, name, target)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise StorageError(
                f"cannot take what was made: {where}{error.strerror}", hint=f"free space at {target.parent}"
            ) from error


def _taken(folder: DirFd, target: Path, without: frozenset[str], depth: int, count: list[int]) -> None:
    target.mkdir(mode=0o755)
    for name in folder.names():
        count[0] += 1
        if count[0] > _MOST_FILES:
            raise StorageError(f"{folder.path}: more than {_MOST_FILES} files were made")
        if name in without:
            continue
        if not stat.S_ISDIR(folder.status(name).st_mode):
            _copied(folder, name, target / name)
        elif depth == 0:
            raise StorageError(f"{folder.path / name}: a folder was made where only files are taken")
        else:
            with folder.folder(name) as below:
                _taken(below, target / name, without, depth - 1, count)


def _copied(folder: DirFd, name: str, target: Path) -> None:
    # an image is mostly holes
    with folder.file(name) as reading, target.open("xb", buffering=0) as writing:
        source = reading.fileno()
        os.truncate(writing.fileno(), os.fstat(source).st_size)
        for start, end in extents(source):
            os.lseek(writing.fileno(), start, os.SEEK_SET)
            at = start
            while at < end and (sent := os.sendfile(writing.fileno(), source, at, end - at)):
                at += sent
        os.fchmod(writing.fileno(), 0o644)


@contextmanager
def open_sandbox() -> Iterator[Sandbox]:
    """Yield a sandbox that is removed at the end. Raises StorageError, UserError."""
    account = unprivileged.account()
    place = folder(_KIND) if account is None else _PLACE
    if (why := files.changeable(place)) is not None:
        raise UserError(f"nothing can be made in {place}: {why}")
    try:
        _tidy(place)
        path, held = _opened(place)
        try:
            for name in ("lent", "own"):
                (path / name).mkdir(mode=0o755)
            group = None if account is None else _unused_group()
            if account is not None and group is not None:
                (path / "own").chmod(0o700)
                os.chown(path / "own", account.pw_uid, group)
                os.chown(path, 0, group)
                path.chmod(0o710)
            yield Sandbox(path, group)
        finally:
            _removed(path)
            os.close(held)
    except OSError as error:
        raise StorageError(f"cannot make a folder in {place}: {error.strerror}", hint="free space there") from error


def _unused_group() -> int:
    # Of the numbers without a fixed owner in systemd (uid-gid).
    while True:
        number = secrets.choice(_GROUPS)
        try:
            grp.getgrgid(number)
        except KeyError:
            return number


def _opened(place: Path) -> tuple[Path, int]:
    # Until the folder is locked another process may take it for an abandoned one, and remove it.
    while True:
        path = Path(tempfile.mkdtemp(prefix=_NAME, dir=place))
        try:
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        fcntl.flock(held, fcntl.LOCK_EX)
        if os.fstat(held).st_nlink:
            return path, held
        os.close(held)


def _tidy(place: Path) -> None:
    for path in place.glob(f"{_NAME}*"):
        try:
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # gone, or another account's
            continue
        try:
            if os.fstat(held).st_uid == os.geteuid():
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _removed(path)
        except BlockingIOError:
            continue
        finally:
            os.close(held)


def _removed(path: Path) -> None:
    # what cannot be removed now, the next sandbox removes: the result is not lost for it
    with suppress(OSError, StorageError):
        beneath.discard(path)
