"""The cache: packages, kernels, images and surveys that took long to make, named by the hash of what they are made of.

An entry is a file or a folder, made under a hidden name and renamed, under a lock that dies with its holder. A folder
is sealed: its files are hashed when it is made, and again before it is used (once in a process); a damaged one is made
anew. A process holds the cache, shared, until it ends: who is alone with it removes entries. An entry's last change is
its last use.

As root, a cache is used only where no other account can change it: what is in it is run, or booted.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import pwd
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from rich.table import Table

from hugewise import beneath, files, reading
from hugewise.console import TextConsole
from hugewise.errors import StorageError, UserError
from hugewise.files import sync
from hugewise.quantity import readable_size
from hugewise.reading import AbsentError, UnreadableError
from hugewise.unprivileged import Say

_DIGITS = 32  # of a SHA-256, in a name
_HOLDERS = ".holders"  # the lock of the processes that use a cache
KERNEL_RECORD = "kernel.json"
_SEAL = ".sealed"  # in a folder: the hashes of its files
_BLOCK = 1 << 20
_looked: dict[Path, object] = {}  # folders whose seal was checked, and the state of their files then
_held: dict[Path, int] = {}  # the cache that this process holds, and the descriptor of that lock


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


def _hold(place: Path) -> None:
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
        _of_root_alone(handle)
        fcntl.flock(handle, fcntl.LOCK_SH)
        _held[place] = handle


@contextmanager
def exclusive() -> Iterator[Path]:
    """Hold the cache while no other process does. Raises UserError where another one holds it."""
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


def touch(path: Path) -> None:
    """Note that the entry is used now, where this account may."""
    with suppress(OSError):
        os.utime(path)


def discard(path: Path) -> None:
    """Remove an entry, while `exclusive`; it is never there in part, also when this is killed. Raises StorageError."""
    try:
        hidden = path.with_name(f".{path.name.removeprefix('.')}.removed")
        beneath.discard(hidden)
        path.rename(hidden)
        beneath.discard(hidden)
        path.with_name(f".{path.name}.lock").unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot remove {path}: {error.strerror}", hint=f"rm -r {path}") from error


def entry_named_by(note: Path) -> Path:
    """Return the entry beside a note that the note names. Raises OSError."""
    return note.with_name(note.read_text(encoding="utf-8").strip())


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex digits."""
    with path.open("rb") as file:
        return reading.digest(file)


def entry_path(kind: str, key: bytes | Mapping[str, object]) -> Path:
    """Return the path of the entry of that key, whether it exists or not. Raises StorageError."""
    return folder(kind) / reading.key_digest(key)[:_DIGITS]


def cached(
    kind: str, key: bytes | Mapping[str, object], make: Callable[[Path], object], say: Say = lambda _: None
) -> Path:
    """Return the entry of that key; `make` makes a missing or damaged one at the path that it is given. Raises
    StorageError.
    """
    path = entry_path(kind, key)
    if not path.exists() or damage(path):
        with locked(path.with_name(f".{path.name}.lock")):
            why = damage(path) if path.exists() else ""  # else another process made it meanwhile
            if why:
                say(f"{path} is damaged ({why}): it is made anew")
            if why or not path.exists():
                put_entry(path, make)
    touch(path)
    return path


def replace_entry(kind: str, key: bytes | Mapping[str, object], make: Callable[[Path], object]) -> Path:
    """Return the entry of that key, a file, made as `kept` does and put in place of an earlier one."""
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
    """Describe what has changed in a folder since it was made; empty where nothing has. Files are not checked."""
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
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    hashes = {str(path.relative_to(folder)): _content(path) for path in files}
    (folder / _SEAL).write_bytes(msgspec.json.encode(hashes))
    (folder / _SEAL).chmod(0o644)


def _content(path: Path) -> str:
    # The size, and each MiB that is not all zeros after its number: an image is mostly holes.
    zeros = bytes(_BLOCK)
    with path.open("rb", buffering=0) as reading:
        size = os.fstat(reading.fileno()).st_size
        running, done = hashlib.sha256(b"%d\n" % size), -1
        for start, end in extents(reading.fileno()):
            for number in range(max(start // _BLOCK, done + 1), -(-end // _BLOCK)):
                block = os.pread(reading.fileno(), _BLOCK, number * _BLOCK)
                if block != zeros[: len(block)]:
                    running.update(b"%d\n" % number + block)
                done = number
    return running.hexdigest()


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


def being_made(path: Path) -> bool:
    """Return whether another process is making that entry now."""
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
    for entry in (path, *path.rglob("*")) if path.is_dir() else (path,):
        if not entry.is_symlink():
            entry.chmod(entry.stat().st_mode | (0o555 if entry.is_dir() else 0o444))


_KINDS = ("apt", "images", "kernels", "packages", "surveys")
_UNFINISHED = "unfinished"
_LISTS = re.compile(r"^(?:Types|Suites|Architectures): (.*)$", re.MULTILINE)


class _Record(msgspec.Struct, frozen=True):
    release: str
    name: str = ""


class CacheEntry(msgspec.Struct, frozen=True):
    """One entry. `size` in bytes on the disk, `used` in seconds since the epoch; `unfinished`: being made, or left by a
    killed process.
    """

    kind: str
    name: str
    size: int
    used: float
    paths: tuple[Path, ...]
    unfinished: bool = False


def entries() -> list[CacheEntry]:
    """Return the cache's entries, by kind and last use, the oldest first. Raises StorageError."""
    top = folder()
    listed = [item for kind in _KINDS if (top / kind).is_dir() for item in _entries_of(top / kind)]
    return sorted(listed, key=lambda item: (item.kind, item.used, item.name))


def remove_unused(seconds: float) -> list[CacheEntry]:
    """Remove and return what was not used for so long. Raises UserError where another process holds the cache,
    StorageError.
    """
    with exclusive() as top:
        before = time.time() - seconds
        gone = [item for item in entries() if item.used <= before]
        for item in gone:
            for path in item.paths:
                discard(path)
        for note in (top / "kernels").glob("*.note"):
            if not entry_named_by(note).exists():
                discard(note)
    return gone


def print_entries(items: Iterable[CacheEntry], closing: str) -> None:
    """Print entries, and a line about how many and how large they are: `closing` with both in front."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("kind", no_wrap=True)
    table.add_column("name", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("last used", no_wrap=True)
    count = total = 0
    for item in items:
        count, total = count + 1, total + item.size
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(item.used))
        table.add_row(item.kind, item.name, readable_size(item.size), when)
    console = TextConsole()
    if count:
        console.print(table)
    console.print(f"{count} {'entry' if count == 1 else 'entries'}, {readable_size(total)} {closing}", soft_wrap=True)


def _entries_of(folder: Path) -> Iterator[CacheEntry]:
    # a log belongs to its kernel, and notes are found again by what they name
    groups: dict[str, list[Path]] = {}
    for path in folder.iterdir():
        if path.name.endswith((".lock", ".note")):
            continue
        hidden = path.name.startswith(".")
        groups.setdefault(path.name if hidden else path.name.partition(".")[0], []).append(path)
    for name, paths in groups.items():
        unfinished = name.startswith(".")
        made = folder / name.removeprefix(".").partition(".")[0]
        description = f"being made: {made.name[:8]}" if unfinished and being_made(made) else f"{_UNFINISHED} {name}"
        yield CacheEntry(
            kind=folder.name,
            name=description if unfinished else f"{_entry_names(folder / name)} ({name[:8]})",
            size=sum(map(_size, paths)),
            used=max(path.lstat().st_mtime for path in paths),
            paths=tuple(sorted(paths)),
            unfinished=unfinished,
        )


def _entry_names(path: Path) -> str:
    try:
        match path.parent.name:
            case "kernels" if not path.exists():
                return "log of a build that is under way" if being_made(path) else "log of a build that failed"
            case "kernels":
                record = msgspec.json.decode((path / KERNEL_RECORD).read_bytes(), type=_Record)
                return f"{record.name} {record.release}"
            case "packages":
                return " ".join(sorted(file.name for file in path.iterdir())) or "empty"
            case "surveys":
                return f"of {msgspec.json.decode(path.read_bytes(), type=_Record).release}"
            case "apt":
                return "lists of " + " ".join(_LISTS.findall((path / "main.sources").read_text(encoding="utf-8")))
            case _:
                return "image" if path.is_dir() else "initramfs"
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        return "damaged"


def _size(path: Path) -> int:
    total = 0
    try:
        total += path.lstat().st_blocks * 512
        if path.is_dir() and not path.is_symlink():
            with os.scandir(path) as below:
                total += sum(_size(Path(child.path)) for child in below)
    except FileNotFoundError:
        pass
    return total
