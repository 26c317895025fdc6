"""The cache: packages, kernels, images and surveys that took long to make, named by the hash of what they are made of.

An entry is a file or a folder. It is made under a hidden name and renamed, so that it is there whole or not at all; a
lock that dies with its holder keeps two processes from making the same one. A process that has asked for a place in the
cache holds it, shared, until it ends: only who is alone with it removes entries. The time of an entry's last change is
that of its last use.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from hugewise.errors import StorageError, UserError

__all__ = ["alone", "digest", "discard", "entry", "folder", "kept", "locked", "replaced", "sha256", "used"]

_DIGITS = 32  # of a SHA-256, in a name
_HOLDERS = ".holders"  # the lock of the processes that use a cache
_held: dict[Path, int] = {}  # the cache that this process holds, and the descriptor of that lock


def folder(kind: str | None = None) -> Path:
    """The cache folder, or the one for a kind of entry in it; it is made where it is not there. Raises StorageError.

    `$HUGEWISE_CACHE`, else `$XDG_CACHE_HOME/hugewise`, else `~/.cache/hugewise`. Who became root by sudo uses root's
    own, whatever sudo kept of the environment: an account's cache shall hold nothing that only root can remove.
    """
    top = _place()
    path = top / kind if kind else top
    try:
        _make(top)
        _hold(top)
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


def _make(path: Path) -> None:
    """Make the folder and its parents, readable by everybody: a QEMU without privileges reads what root made."""
    for each in (*reversed(path.parents), path):
        try:
            each.mkdir()
            each.chmod(0o755)
        except FileExistsError:
            continue


def _hold(place: Path) -> None:
    """Have nobody remove entries of the cache until this process ends, or turns to another cache."""
    if place in _held:
        return
    while _held:
        os.close(_held.popitem()[1])
    handle = -1
    for mode in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        with suppress(OSError):  # another account's: that one's next call makes the file, and this one may read it
            handle = os.open(place / _HOLDERS, mode | os.O_CLOEXEC, 0o644)
            break
    if handle >= 0:
        fcntl.flock(handle, fcntl.LOCK_SH)
        _held[place] = handle


@contextmanager
def alone() -> Iterator[Path]:
    """Hold the cache while no other process does: entries may be removed. Raises UserError where another one holds it.

    Who asks for a place in it meanwhile waits.
    """
    place = folder()
    if place not in _held:
        raise UserError(f"nothing can be removed from {place}: this account may not write there")
    try:
        fcntl.flock(_held[place], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        fcntl.flock(_held[place], fcntl.LOCK_SH)  # a lock that cannot be changed is lost
        raise UserError(
            f"another process of hugewise uses {place}: nothing is removed", hint="wait until its run has ended"
        ) from None
    try:
        yield place
    finally:
        fcntl.flock(_held[place], fcntl.LOCK_SH)


def used(path: Path) -> None:
    """Note that the entry is used now, where this account may."""
    with suppress(OSError):
        os.utime(path)


def discard(path: Path) -> None:
    """Remove an entry, while `alone`; it is never there in part, also when this is killed. Raises StorageError."""
    try:
        hidden = path.with_name(f".{path.name.removeprefix('.')}.removed")
        _remove(hidden)
        path.rename(hidden)
        _remove(hidden)
        path.with_name(f".{path.name}.lock").unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot remove {path}: {error.strerror}", hint=f"rm -r {path}") from error


def digest(key: bytes | Mapping[str, object]) -> str:
    """The SHA-256 of a key in hex digits; of a mapping, its JSON with sorted names."""
    data = key if isinstance(key, bytes) else msgspec.json.encode(key, order="deterministic")
    return hashlib.sha256(data).hexdigest()


def sha256(path: Path) -> str:
    """The SHA-256 of a file in hex digits."""
    with path.open("rb") as reading:
        return hashlib.file_digest(reading, "sha256").hexdigest()


def entry(kind: str, key: bytes | Mapping[str, object]) -> Path:
    """Where the entry of that key is, or would be. Raises StorageError."""
    return folder(kind) / digest(key)[:_DIGITS]


def kept(kind: str, key: bytes | Mapping[str, object], make: Callable[[Path], None]) -> Path:
    """The entry of that key; where it is not there, `make` is given a path (nothing is there yet) to make it at.

    What `make` raises goes on to the caller, and nothing is kept then. Raises StorageError.
    """
    path = entry(kind, key)
    if not path.exists():
        with locked(path.with_name(f".{path.name}.lock")):
            if not path.exists():  # else another process made it meanwhile
                _make_at(path, make)
    used(path)
    return path


def replaced(kind: str, key: bytes | Mapping[str, object], make: Callable[[Path], None]) -> Path:
    """The entry of that key, a file, made as `kept` does and put in place of what is there."""
    path = entry(kind, key)
    with locked(path.with_name(f".{path.name}.lock")):
        _make_at(path, make)
    return path


def _make_at(path: Path, make: Callable[[Path], None]) -> None:
    unfinished = path.with_name(f".{path.name}.new")
    _remove(unfinished)  # of a process that was killed
    try:
        make(unfinished)
        _open_to_all(unfinished)
        unfinished.rename(path)
    finally:
        _remove(unfinished)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file; waits for whoever holds it. It stays there: to remove it would let two hold it at once."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StorageError(f"cannot write in the cache: {path}: {error.strerror}", hint="set HUGEWISE_CACHE") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _open_to_all(path: Path) -> None:
    for each in (path, *path.rglob("*")) if path.is_dir() else (path,):
        if not each.is_symlink():
            each.chmod(each.stat().st_mode | (0o555 if each.is_dir() else 0o444))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
