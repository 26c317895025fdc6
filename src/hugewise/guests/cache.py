"""The cache: packages, kernels, images and surveys, named by the hash of what they are made of.

An entry is a file or a folder, made under a hidden name and renamed, under a lock that dies with its holder. As root, a
cache is used only where no other account can change it: what is in it is run, or booted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hugewise import beneath, files, reading
from hugewise.errors import StorageError, UserError
from hugewise.files import sync

_DIGITS = 32  # of a SHA-256, in a name


def folder(kind: str | None = None) -> Path:
    """Return the cache folder, or that of a kind of entry, made where it is not there. Raises StorageError.

    `$HUGEWISE_CACHE`, else `$XDG_CACHE_HOME/hugewise`, else `~/.cache/hugewise`. Under sudo it is root's own: an
    account's cache shall hold nothing that only root can remove.
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


def put_entry(path: Path, make: Callable[[Path], object]) -> None:
    """Make the entry `path` in place of an earlier one, under the caller's lock. Raises what `make` raises, and
    OSError.
    """
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
