"""The cache: packages, kernels, images and surveys that took long to make, named by the hash of what they are made of.

An entry is a file or a folder. It is made under a hidden name, written to disk and renamed, so that it is there whole
or not at all; a lock that dies with its holder keeps two processes from making the same one. A folder is sealed: what
its files hold is hashed when it is made, and again before it is used (once in a process, as long as they are the same);
a damaged one is made anew. A process that has asked for a place in the cache holds it, shared, until it ends: only who
is alone with it removes entries. The time of an entry's last change is that of its last use.

As root, a cache is used only where no other account can change it: what is in it is run, or booted.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import pwd
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from hugewise import beneath, files, reading
from hugewise.errors import StorageError, UserError
from hugewise.files import sync
from hugewise.reading import AbsentError, UnreadableError
from hugewise.unprivileged import Say

_DIGITS = 32  # of a SHA-256, in a name
_HOLDERS = ".holders"  # the lock of the processes that use a cache
_SEAL = ".sealed"  # in a folder: what its files hold
_BLOCK = 1 << 20
_looked: dict[Path, object] = {}  # folders whose seal was found to hold, and what their files were like then
_held: dict[Path, int] = {}  # the cache that this process holds, and the descriptor of that lock


def folder(kind: str | None = None) -> Path:
    """The cache folder, or the one for a kind of entry in it; it is made where it is not there. Raises StorageError.

    `$HUGEWISE_CACHE`, else `$XDG_CACHE_HOME/hugewise`, else `~/.cache/hugewise`. Who became root by sudo uses root's
    own, whatever sudo kept of the environment: an account's cache shall hold nothing that only root can remove.
    """
    top = _place()
    path = top / kind if kind else top
    try:
        _refuse_foreign(top)
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


def _refuse_foreign(top: Path) -> None:
    """Raise UserError where hugewise is root and another account could change what is in the cache.

    Not even that of who called sudo: root's files would be in it, which they could not remove.
    """
    if os.geteuid() != 0:
        return
    real = Path(os.path.realpath(top))
    others = (each for each in (real, *real.parents) if each.exists() and each.stat().st_uid != 0)
    other = next(others, None)
    why = files.changeable(top) if other is None else f"{other} belongs to {_called(other.stat().st_uid)}"
    if why is not None:
        raise UserError(
            f"as root, hugewise does not use the cache {top}: {why}, and so could decide what root boots",
            hint=f"{_said_by()}, or set HUGEWISE_CACHE to a folder of root's",
        )


def _called(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"the account {uid}"


def _said_by() -> str:
    for name in ("HUGEWISE_CACHE", "XDG_CACHE_HOME"):
        if os.environ.get(name):
            return f"unset {name}"
    return "set HOME to root's, as su - and sudo -H do"


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
        beneath.discard(hidden)
        path.rename(hidden)
        beneath.discard(hidden)
        path.with_name(f".{path.name}.lock").unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot remove {path}: {error.strerror}", hint=f"rm -r {path}") from error


def digest(key: bytes | Mapping[str, object]) -> str:
    """The SHA-256 of a key in hex digits; of a mapping, its JSON with sorted names."""
    data = key if isinstance(key, bytes) else msgspec.json.encode(key, order="deterministic")
    return hashlib.sha256(data).hexdigest()


def sha256(path: Path) -> str:
    """The SHA-256 of a file in hex digits."""
    with path.open("rb") as file:
        return reading.digest(file)


def entry(kind: str, key: bytes | Mapping[str, object]) -> Path:
    """Where the entry of that key is, or would be. Raises StorageError."""
    return folder(kind) / digest(key)[:_DIGITS]


def cached(
    kind: str, key: bytes | Mapping[str, object], make: Callable[[Path], None], say: Say = lambda _: None
) -> Path:
    """The entry of that key; where it is not there, `make` is given a path (nothing is there yet) to make it at.

    A folder that is damaged is made anew, which `say` hears. What `make` raises goes on to the caller, and nothing is
    kept then. Raises StorageError.
    """
    path = entry(kind, key)
    if not path.exists() or damage(path):
        with locked(path.with_name(f".{path.name}.lock")):
            why = damage(path) if path.exists() else ""  # else another process made it meanwhile
            if why:
                say(f"{path} is damaged ({why}): it is made anew")
            if why or not path.exists():
                put(path, make)
    used(path)
    return path


def replaced(kind: str, key: bytes | Mapping[str, object], make: Callable[[Path], None]) -> Path:
    """The entry of that key, a file, made as `kept` does and put in place of what is there."""
    path = entry(kind, key)
    with locked(path.with_name(f".{path.name}.lock")):
        put(path, make)
    return path


def put(path: Path, make: Callable[[Path], None]) -> None:
    """Make what is to be at `path`, and put it there when it is whole and on disk, in place of what is there.

    The caller holds a lock on it. Raises what `make` raises, and OSError.
    """
    unfinished, old = (path.with_name(f".{path.name}.{what}") for what in ("new", "old"))
    for left in (unfinished, old):  # of a process that was killed
        beneath.discard(left)
    try:
        make(unfinished)
        _open_to_all(unfinished)
        if unfinished.is_dir():
            _seal(unfinished)
        _sync(unfinished)
        if path.is_dir():
            path.rename(old)
        unfinished.rename(path)
        sync(path.parent)
    finally:
        beneath.discard(unfinished)
        beneath.discard(old)


def damage(folder: Path) -> str:
    """What of a folder is not as it was when it was made, in words; empty where all is. Of a file: nothing is known."""
    if not folder.is_dir():
        return ""
    try:
        sealed = reading.stored(folder / _SEAL, dict[str, str])
        like = [(name, (folder / name).lstat()) for name in sealed]
    except AbsentError:
        return f"{_SEAL} is not there"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is not there"
    except (OSError, UnreadableError):
        return f"{_SEAL} cannot be read"
    seen = [(name, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for name, at in like]
    if _looked.get(folder) != seen:
        for name, hashed in sealed.items():
            try:
                if _content(folder / name) != hashed:
                    return f"{name} has other bytes than it was made with"
            except OSError as error:
                return f"{name}: {error.strerror}"
        _looked[folder] = seen
    return ""


def _seal(folder: Path) -> None:
    """Write down what the files of a folder hold."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    told = {str(path.relative_to(folder)): _content(path) for path in files}
    (folder / _SEAL).write_bytes(msgspec.json.encode(told))
    (folder / _SEAL).chmod(0o644)


def _content(path: Path) -> str:
    """The SHA-256 of what a file holds: its size, and each MiB that is not all zeros after its number.

    A hole is as good as zeros, and takes no time: an image is mostly holes.
    """
    zeros = bytes(_BLOCK)
    with path.open("rb", buffering=0) as reading:
        size = os.fstat(reading.fileno()).st_size
        found, done = hashlib.sha256(b"%d\n" % size), -1
        for start, end in extents(reading.fileno()):
            for number in range(max(start // _BLOCK, done + 1), -(-end // _BLOCK)):
                block = os.pread(reading.fileno(), _BLOCK, number * _BLOCK)
                if block != zeros[: len(block)]:
                    found.update(b"%d\n" % number + block)
                done = number
    return found.hexdigest()


def extents(descriptor: int) -> Iterator[tuple[int, int]]:
    """Where a file has data: from the one byte to before the other. What is between is a hole. Raises OSError."""
    end = 0
    while True:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # there is none any more
                return
            raise
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, end


def _sync(path: Path) -> None:
    for each in (*path.rglob("*"), path) if path.is_dir() else (path,):
        if not each.is_symlink():
            sync(each)


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


def busy(path: Path) -> bool:
    """Whether somebody makes that entry now."""
    try:
        handle = os.open(path.with_name(f".{path.name}.lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _open_to_all(path: Path) -> None:
    for each in (path, *path.rglob("*")) if path.is_dir() else (path,):
        if not each.is_symlink():
            each.chmod(each.stat().st_mode | (0o555 if each.is_dir() else 0o444))
