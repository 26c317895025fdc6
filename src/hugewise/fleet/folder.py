"""The folder of a fleet: what the coordinator keeps, and where shipped runs lie.

    results/fleets/<study>/<fleet>/
      log.jsonl      what was decided and what came of it (`records`), fsynced line by line
      now.json       what the coordinator saw last of each host; nothing is resumed from it
      study.toml     the study, as every host runs it
      hosts.toml     the inventory
      hosts/NAME/RUN the run of a host, as its own `results/STUDY/RUN`: any verb that takes a run takes it
      checks/NAME/RUN  its comparison of the same with the same, before
      lock           held by the one coordinator that works on it

A run is brought by its manifest into `.NUMBER.part` beside its place, and renamed when every file is there and has its
hash: killed before, what is there is not asked for again. `status_lines` prints log and snapshot for
`hugewise fleet status`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.beneath import discard
from hugewise.errors import HugewiseError, LockedError, RunError, StorageError
from hugewise.files import append_line, made_folder, own, storing, sync, write_whole
from hugewise.fleet.engine import Engine, ask
from hugewise.fleet.protocol import (
    CHUNK,
    Assignment,
    AssignmentSeen,
    FileEntry,
    ManifestFound,
    ManifestOrder,
    ReadOrder,
    RunBytes,
)
from hugewise.fleet.records import FleetOpened, FleetRecord, FleetState, HostState
from hugewise.model.host import Clock
from hugewise.quantity import format_duration
from hugewise.visible import printable

_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]+")
_MOST_LOG = 1 << 30
_RECORD: msgspec.json.Decoder[FleetRecord] = msgspec.json.Decoder(FleetRecord)
RESUME = "free some space; what was shipped is kept: hugewise fleet resume"


class FleetFolder:
    """Fleet on disk. `make` begins it, `records` says what its log holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = -1

    @classmethod
    def new(cls, results: Path, study: str) -> FleetFolder:
        name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}"
        return cls(results / "fleets" / _UNSAFE.sub("-", study) / name)

    def make(self, *, study_toml: str, hosts_toml: str) -> None:
        """Make it. Raises StorageError, and UserError where others could change it."""
        with storing(f"the fleet's folder {self.path}", RESUME):
            results = self.path.parents[2]
            own(results, f"results = {str(results)!r}")
            made_folder(self.path.parent)
            made_folder(self.path)
            for below in ("hosts", "checks"):
                (self.path / below).mkdir()
            write_whole(self.path / "study.toml", study_toml.encode())
            write_whole(self.path / "hosts.toml", hosts_toml.encode())
            write_whole(self.path / "lock", b"", 0o600)  # who can read it can hold it

    @property
    def fleet(self) -> str:
        return self.path.absolute().name

    def hold(self) -> None:
        """Be the one coordinator of it. Raises LockedError while another one is, RunError where there is no fleet."""
        try:
            own(self.path, f"the fleet in {self.path}")
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(f"{self.path} is not a fleet's folder (no lock)", hint="see: ls results/fleets/*") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise LockedError(None) from None
        self._lock = descriptor

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def append(self, record: FleetRecord) -> None:
        """Add a record; on disk when this returns. Raises StorageError, and leaves no half line where it can."""
        path = self.path / "log.jsonl"
        with storing(str(path), RESUME):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                end = _whole(descriptor)
                append_line(descriptor, msgspec.json.encode(record) + b"\n")
                if not end:
                    sync(path.parent)
            finally:
                os.close(descriptor)

    def records(self) -> Sequence[FleetRecord]:
        """Read all records; a line that a kill tore at the end is passed over. Raises RunError."""
        path = self.path / "log.jsonl"
        try:
            lines = reading.kept(path, _MOST_LOG).split(b"\n")[:-1]
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(
                f"{self.path} is not a fleet's folder (no log.jsonl)", hint="see: ls results/fleets/*"
            ) from None
        except (OSError, reading.UnreadableError) as error:
            raise RunError(f"{path}: {error}", hint="check its permissions, or put a copy of it back") from None
        records: list[FleetRecord] = []
        for number, line in enumerate(lines, 1):
            try:
                records.append(reading.decoded(_RECORD, line))
            except reading.UnreadableError as error:
                raise RunError(f"{path}, line {number}: {error}", hint="put a copy of it back") from None
        if not records or not isinstance(records[0], FleetOpened):
            raise RunError(f"{path} has no first record", hint="start the fleet anew: hugewise fleet run")
        return records


def _whole(descriptor: int) -> int:
    # a line behind the last whole one was torn by a kill, and is cut off
    size = os.fstat(descriptor).st_size
    end = size
    while end and os.pread(descriptor, 1, end - 1) != b"\n":
        end -= 1
    if end < size:
        os.ftruncate(descriptor, end)
    return end


_EVERY_S = 2.0
_MOST_SHARE = 0.02  # share of the coordinator's time, where a large fleet takes long to write


class FleetSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Last answers to looks, and reasons why hosts are out of reach, by host. `t`: UTC epoch seconds."""

    t: float
    seen: dict[str, AssignmentSeen]
    out: dict[str, str]


class Snapshots:
    """Written every two seconds, or more seldom."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path, self._clock = path, clock
        self._next = float("-inf")

    def due(self, now: float) -> bool:
        return now >= self._next

    def write(self, snapshot: FleetSnapshot) -> None:
        """Have it on disk. Raises StorageError."""
        began = self._clock.up()
        with storing(str(self._path), RESUME):
            write_whole(self._path, msgspec.json.encode(snapshot))
        took = self._clock.up() - began
        self._next = began + max(_EVERY_S, took / _MOST_SHARE)


_OLD_S = 60.0


def status_lines(path: Path) -> Iterator[str]:
    """Yield the fleet in the folder `path`. Raises RunError."""
    state = FleetState.of(FleetFolder(path).records())
    try:
        snapshot = reading.stored(path / "now.json", FleetSnapshot)
    except reading.UnreadableError:
        snapshot = FleetSnapshot(t=0.0, seen={}, out={})
    yield f"fleet {state.opened.fleet} of {state.opened.study}: {_how(state, snapshot)}"
    for host in state.hosts.values():
        yield printable(f"  {host.name}: {_of_host(state, host, snapshot)}")
    if state.closed is None:
        yield f"to go on, where no coordinator works on it: hugewise fleet resume {path}"


def _how(state: FleetState, snapshot: FleetSnapshot) -> str:
    if state.closed is not None:
        return f"over; {state.closed.reason}"
    age = time.time() - snapshot.t
    if not snapshot.t or age > _OLD_S:
        return "under way; no coordinator has looked" + (f" for {format_duration(age)}" if snapshot.t else "")
    return "under way"


def _of_host(state: FleetState, host: HostState, snapshot: FleetSnapshot) -> str:
    assignments = state.of_host(host.name)
    work = assignments[-1] if assignments else None
    parts = []
    if host.quarantined is not None:
        parts.append(f"quarantined ({host.quarantined})")
    if host.out is not None:
        parts.append(f"out of reach ({host.out.reason})")
    if work is None or (work.assigned.purpose == "check" and work.forgotten):
        parts.append("nothing begun yet" if work is None else "checked")
        return "; ".join(parts)
    what = "check" if work.assigned.purpose == "check" else "study"
    seen = snapshot.seen.get(host.name)
    if work.shipped is not None:
        ended = "" if work.settled is None or work.settled.state == "ended" else f" ({work.settled.state})"
        parts.append(f"{what} brought{ended}: {work.shipped.folder}")
    elif work.given_up is not None:
        parts.append(f"{what} given up: {work.given_up.reason}")
    elif work.settled is not None:
        parts.append(f"{what} {work.settled.state}, to be brought")
    elif seen is not None and seen.assignment.number == work.number:
        parts.append(f"{what} {_progress(seen)}")
    else:
        parts.append(f"{what} begun")
    return "; ".join(parts)


def _progress(seen: AssignmentSeen) -> str:
    why = f" ({seen.reason})" if seen.reason else ""
    return f"{seen.state}{why}: {seen.closed} blocks closed"


_LIBC = ctypes.CDLL(None, use_errno=True)
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_ROOM = 64 << 20  # bytes kept free on the coordinator's disk


class ShippedRun(msgspec.Struct, frozen=True):
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
        """Return the manifest of the run. Raises HostLostError, HugewiseError."""
        answer = ask(self.engine, self.host, ManifestOrder(assignment=self.assignment), self.timeout)
        if not isinstance(answer, ManifestFound) or answer.assignment != self.assignment:
            raise HugewiseError(f"{self.host}: it answered something else when asked what there is of a run")
        return answer

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes of the run's files. Raises HostLostError, HugewiseError."""
        order = ReadOrder(assignment=self.assignment, offset=offset, size=size)
        answer = ask(self.engine, self.host, order, self.timeout)
        if not isinstance(answer, RunBytes) or len(answer.data) != size:
            raise HugewiseError(f"{self.host}: it gave other than the {size} bytes of its run that were asked for")
        return answer.data


class DiskSpace:
    """Free space here for runs, of at most `largest` bytes each, without the space for transfers under way."""

    def __init__(self, largest: int = 4 << 30) -> None:
        self.largest = largest
        self._taken, self._lock = 0, threading.Lock()

    @contextmanager
    def reserve(self, place: Path, size: int) -> Iterator[None]:
        """Have room for a run of that size. Raises HugewiseError, of one host that says how large its run is."""
        there = next(folder for folder in (place, *place.parents) if folder.is_dir())
        held = os.statvfs(there)
        with self._lock:
            if size > self.largest:
                why = f"its run has {size >> 20:,} MiB, and {self.largest >> 20:,} MiB is the most"
                raise HugewiseError(why, hint="[fleet] largest_run = ... in the inventory")
            if size + self._taken + _ROOM > held.f_bavail * held.f_frsize:
                raise HugewiseError(f"a run of {size >> 20:,} MiB is to come, and there is no room for it in {place}")
            self._taken += size
        try:
            yield
        finally:
            with self._lock:
                self._taken -= size


def ship_run(
    source: RunSource,
    place: Path,
    room: DiskSpace | None = None,
    *,
    look: Callable[[Path, str], None] = lambda *_: None,
    on_step: Callable[[str], None] = lambda _: None,
) -> ShippedRun:
    """Bring the run whole into `place`; `look` may refuse it. Raises HostLostError, StorageError, HugewiseError."""
    manifest = source.manifest()
    known = ShippedRun(place / manifest.run, reading.key_digest(manifest.files), len(manifest.files), manifest.size)
    # Named by its contents: it holds nothing of another manifest.
    final, part = known.path, place / f".{source.assignment.number}-{known.digest[:12]}.part"
    _check(manifest)
    with _host_errors(source.host, place):
        made_folder(place)
        for other in place.glob(f".{source.assignment.number}-*.part"):
            if other != part:
                discard(other)
        if is_complete(final, manifest):
            look(final, manifest.run)
            discard(part)
            return known
        with (room or DiskSpace()).reserve(place, manifest.size):
            made_folder(part)
            on_step("begun")
            for several in _batches(_missing(part, manifest)):
                _write(part, several, source)
                on_step("part")
            look(part, manifest.run)
            _sync_filesystem(part)
            discard(final)  # another folder of that name, left by a kill
            part.rename(final)
            sync(place)
            on_step("renamed")
    return known


def _check(manifest: ManifestFound) -> None:
    names = {file.name for file in manifest.files}
    folders = {str(above) for name in names for above in Path(name).parents}
    if len(names) < len(manifest.files) or names & folders:
        raise HugewiseError("its manifest names a file twice, or a file as a folder")


@contextmanager
def _host_errors(host: str, place: Path) -> Iterator[None]:
    # A full or broken disk is the coordinator's; any other error of the system was caused by what the host sent.
    try:
        yield
    except OSError as error:
        if error.errno in _OF_THE_DISK:
            raise StorageError(f"cannot write {place}: {error.strerror}", hint=RESUME) from error
        why = f"{host}: its run cannot be kept: {error.strerror or error} ({error.filename or place})"
        raise HugewiseError(why) from error


def _missing(part: Path, manifest: ManifestFound) -> list[tuple[int, FileEntry]]:
    missing, at = [], 0
    for file in manifest.files:
        if not _matches(part / file.name, file):
            missing.append((at, file))
        at += file.size
    return missing


def _sync_filesystem(folder: Path) -> None:
    # A call for each of thousands of files takes minutes.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _LIBC.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(descriptor)


def _batches(pending: list[tuple[int, FileEntry]]) -> Iterator[list[tuple[int, FileEntry]]]:
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
    start, size = several[0][0], sum(file.size for _, file in several)
    if size > CHUNK:
        ((_, file),) = several
        done = range(0, size, CHUNK)
        _write_one(part, file, (source.read(start + piece, min(CHUNK, size - piece)) for piece in done), source.host)
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


def is_complete(path: Path, manifest: ManifestFound) -> bool:
    """Return whether exactly the manifest's files lie below `path`, as it lists them. Raises OSError."""
    if not path.is_dir() or path.is_symlink():
        return False
    there = {str(entry.relative_to(path)) for entry in path.rglob("*") if not entry.is_dir() or entry.is_symlink()}
    return there == {file.name for file in manifest.files} and all(
        _matches(path / file.name, file) for file in manifest.files
    )


def _matches(path: Path, file: FileEntry) -> bool:
    try:
        with reading.opened(path) as held:
            if os.fstat(held.fileno()).st_size != file.size:
                return False
            return reading.digest(held) == file.digest
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, reading.UnreadableError):
        return False
