"""Bringing a run's folder from its host, whole and once: by its manifest, with a hash for each file.

What comes is written into a hidden folder beside its place; when every file is there and has its hash, it is renamed.
Killed before that, the files that are there already are not asked for again; killed after, the folder is found whole.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.beneath import discard
from hugewise.errors import HugewiseError, StorageError
from hugewise.files import made_folder, sync
from hugewise.fleet.engine import Engine, ask
from hugewise.fleet.folder import RESUME
from hugewise.fleet.protocol import CHUNK, Assignment, Bytes, FileEntry, ManifestFound, ManifestOrder, ReadOrder

_LIBC = ctypes.CDLL(None, use_errno=True)
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_ROOM = 64 << 20  # that is left on the coordinator's disk


class Brought(msgspec.Struct, frozen=True):
    """A run that lies whole at its place: its manifest's digest, how many files, of how many bytes."""

    path: Path
    digest: str
    files: int
    size: int


@dataclass(frozen=True)
class RunSource:
    """The run of an assignment on its host, reached by an engine. `timeout`: seconds for each answer."""

    engine: Engine
    host: str
    assignment: Assignment
    timeout: float = 120.0

    def manifest(self) -> ManifestFound:
        """What there is of it. Raises HostLostError, HugewiseError."""
        found = ask(self.engine, self.host, ManifestOrder(assignment=self.assignment), self.timeout)
        if not isinstance(found, ManifestFound) or found.assignment != self.assignment:
            raise HugewiseError(f"{self.host}: it answered something else when asked what there is of a run")
        return found

    def read(self, offset: int, size: int) -> bytes:
        """So many bytes of its files. Raises HostLostError, HugewiseError."""
        order = ReadOrder(assignment=self.assignment, offset=offset, size=size)
        found = ask(self.engine, self.host, order, self.timeout)
        if not isinstance(found, Bytes) or len(found.data) != size:
            raise HugewiseError(f"{self.host}: it gave other than the {size} bytes of its run that were asked for")
        return found.data


class Room:
    """What is free here for runs. `largest`: bytes of one run at most. What is under way is not free any more."""

    def __init__(self, largest: int = 4 << 30) -> None:
        self.largest = largest
        self._taken, self._lock = 0, threading.Lock()

    @contextmanager
    def claimed(self, place: Path, size: int) -> Iterator[None]:
        """Have room for a run of that size. Raises HugewiseError, of one host that says how large its run is."""
        there = next(each for each in (place, *place.parents) if each.is_dir())
        held = os.statvfs(there)
        with self._lock:
            if size > self.largest:
                told = f"its run has {size >> 20:,} MiB, and {self.largest >> 20:,} MiB is the most"
                raise HugewiseError(told, hint="[fleet] largest_run = ... in the inventory")
            if size + self._taken + _ROOM > held.f_bavail * held.f_frsize:
                raise HugewiseError(f"a run of {size >> 20:,} MiB is to come, and there is no room for it in {place}")
            self._taken += size
        try:
            yield
        finally:
            with self._lock:
                self._taken -= size


def bring(
    source: RunSource,
    place: Path,
    room: Room | None = None,
    *,
    look: Callable[[Path, str], None] = lambda *_: None,
    on_step: Callable[[str], None] = lambda _: None,
) -> Brought:
    """Have the run whole in the folder `place`, under its own name. `look` is shown the folder and that name before it
    has it, and raises HugewiseError for one that is not to lie there.

    Raises HostLostError where the host goes, StorageError where the disk here is full or broken, HugewiseError where
    what comes is not what the manifest says, or is more than there is room for.
    """
    found = source.manifest()
    known = Brought(place / found.run, digest(found), len(found.files), found.size)
    # Named by what is to be in it: nothing of another manifest is left in it.
    final, part = known.path, place / f".{source.assignment.number}-{known.digest[:12]}.part"
    _check(found)
    with _of_one_host(source.host, place):
        made_folder(place)
        for other in place.glob(f".{source.assignment.number}-*.part"):
            if other != part:
                discard(other)
        if whole(final, found):
            look(final, found.run)
            discard(part)
            return known
        with (room or Room()).claimed(place, found.size):
            made_folder(part)
            on_step("begun")
            for several in _together(_missing(part, found)):
                _write(part, several, source)
                on_step("part")
            look(part, found.run)
            _on_disk(part)
            discard(final)  # of that name, and not it: what a kill left
            part.rename(final)
            sync(place)
            on_step("renamed")
    return known


def _check(found: ManifestFound) -> None:
    """Raises HugewiseError for a manifest that makes no folder."""
    names = {file.name for file in found.files}
    folders = {str(above) for name in names for above in Path(name).parents}
    if len(names) < len(found.files) or names & folders:
        raise HugewiseError("its manifest names a file twice, or a file as a folder")


@contextmanager
def _of_one_host(host: str, place: Path) -> Iterator[None]:
    """A full or broken disk of the coordinator is a StorageError; whatever else the system refuses, a host has caused
    by what it says.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _OF_THE_DISK:
            raise StorageError(f"cannot write {place}: {error.strerror}", hint=RESUME) from error
        told = f"{host}: its run cannot be kept: {error.strerror or error} ({error.filename or place})"
        raise HugewiseError(told) from error


def _missing(part: Path, found: ManifestFound) -> list[tuple[int, FileEntry]]:
    """The files that are not there yet, each with where it begins."""
    missing, at = [], 0
    for file in found.files:
        if not _same(part / file.name, file):
            missing.append((at, file))
        at += file.size
    return missing


def _on_disk(folder: Path) -> None:
    """Have all of the file system on disk that it lies in: a call for each of thousands of files takes minutes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _LIBC.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(descriptor)


def _together(pending: list[tuple[int, FileEntry]]) -> Iterator[list[tuple[int, FileEntry]]]:
    """Files that lie one after another, as many as one answer holds; a larger one comes alone."""
    group: list[tuple[int, FileEntry]] = []
    for offset, file in pending:
        if group:
            start, end = group[0][0], group[-1][0] + group[-1][1].size
            if offset != end or end + file.size - start > CHUNK:
                yield group
                group = []
        group.append((offset, file))
    if group:
        yield group


def _write(part: Path, several: list[tuple[int, FileEntry]], source: RunSource) -> None:
    """Files that lie one after another, if they are what the manifest says. Raises HugewiseError, OSError."""
    start, size = several[0][0], sum(file.size for _, file in several)
    if size > CHUNK:
        ((_, file),) = several
        done = range(0, size, CHUNK)
        _write_one(part, file, (source.read(start + each, min(CHUNK, size - each)) for each in done), source.host)
        return
    data = source.read(start, size) if size else b""
    for offset, file in several:
        _write_one(part, file, iter([data[offset - start : offset - start + file.size]]), source.host)


def _write_one(part: Path, file: FileEntry, pieces: Iterator[bytes], host: str) -> None:
    path, running = part / file.name, hashlib.sha256()
    made_folder(path.parent)
    discard(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "wb") as out:
        for piece in pieces:
            running.update(piece)
            out.write(piece)
    if running.hexdigest() != file.digest:
        raise HugewiseError(f"{host}: {file.name} has not the hash that its manifest says")


def whole(path: Path, found: ManifestFound) -> bool:
    """Whether all files of a manifest lie below `path` as it says, and nothing else does. Raises OSError."""
    if not path.is_dir() or path.is_symlink():
        return False
    there = {str(each.relative_to(path)) for each in path.rglob("*") if not each.is_dir() or each.is_symlink()}
    return there == {file.name for file in found.files} and all(_same(path / file.name, file) for file in found.files)


def _same(path: Path, file: FileEntry) -> bool:
    try:
        with reading.opened(path) as held:
            if os.fstat(held.fileno()).st_size != file.size:
                return False
            return reading.digest(held) == file.digest
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, reading.UnreadableError):
        return False


def digest(found: ManifestFound) -> str:
    """SHA-256 over a manifest."""
    return hashlib.sha256(msgspec.json.encode(found.files)).hexdigest()
