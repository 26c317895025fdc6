"""A run's log: a record a line, fsynced, each with a running hash over all that stands before it.

    {"record":"begun","t":...,"chain":"<64 hexadecimal digits>"}

The running hash of a line is SHA-256 over that of the line before (its digits) and the line without it. Before the
first line stands the commitment to the run's seed. So a line that was changed, left out, repeated or moved does not
follow from the one before it; whoever noted the last hash can see that nothing was written anew either.

What is not the whole of a record is normal in one place: after the last newline, where a kill or a full disk tears.
Logs of versions before there was a hash are read as they are; there a torn line also stands before a `resumed` one.

A run goes on as long as its process holds a lock on the log, which the kernel gives back however the process ends.
The lock keeps nobody out (`host.lock` does that), and whoever can read the log can ask. It is of the open file
description, fcntl_locking(2): locks of a process would be lost with any other descriptor of the log that it closes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import struct
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import msgspec

from hugewise import reading
from hugewise.errors import RunError
from hugewise.files import append_line, storing, sync
from hugewise.store.records import AttemptStored, Lost, Opened, Record, Resumed, Stamp

_FLOCK = struct.Struct("hhxxxxqqixxxx")  # struct flock of 64 bits: type, whence, start, length (0: all), pid


def hold_lock(descriptor: int) -> None:
    """Say it for as long as the descriptor is open; a file system without locks says nothing. Raises nothing."""
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))


def going_on(folder: Path) -> bool:
    """Return whether a process holds the log of the run in the folder; False if unknown. Raises nothing."""
    with suppress(OSError, reading.UnreadableError), reading.opened(folder / "run.jsonl") as file:
        asked = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_ = _FLOCK.unpack(fcntl.fcntl(file.fileno(), fcntl.F_OFD_GETLK, asked))
        return bool(kind == fcntl.F_WRLCK)
    return False


ANEW = "start a new run of its study"
PERMISSIONS = "check its permissions"
COPY = "put a copy of it back"

_RECORD = msgspec.json.Decoder(Record)
_MOST = 1 << 30  # bytes that are read, some million attempts: all of it is held, as values
_FIELD, _DIGITS = b',"chain":"', 64
_SEAL = len(_FIELD) + _DIGITS + len(b'"}')
_UNFIT = "does not follow from the line before it: one of the two was changed, or lines between them are missing"

_Kind = TypeVar("_Kind", bound=Record)


class LogContents(NamedTuple):
    """Contents of a log.

    opened    the first record
    records   all in their order, each with the number of its line, counted from 1
    stamp     what the system said of the file before it was read: it is another one once that differs
    hash      the last running hash; None of a run of before there was one
    chained   whether its lines have running hashes
    torn      whether something that is no record stands behind its last newline
    """

    opened: Opened
    records: tuple[tuple[int, Record], ...]
    stamp: Stamp
    hash: str | None
    chained: bool
    torn: bool


class _Line(NamedTuple):
    record: Record | None
    problem: str | None
    body: bytes
    chain: str | None


class RunLog:
    """The file `run.jsonl`, reached at `place` where that is not `path`; the holder of the host writes it."""

    def __init__(self, path: Path, place: Path | None = None) -> None:
        self.path = path
        self._place = place or path
        self._end = -1  # end of this object's last line; another process may have appended
        self._head: str | None = None
        self._held: Callable[[], object] | None = None

    def append(self, record: Record) -> None:
        """Add a record; on disk when this returns. Raises StorageError, and leaves no half line where it can."""
        with storing(str(self.path)):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._place, flags, 0o644)
            try:
                line = self._prepared(descriptor, record)
                self._end = -1  # until all of the line is there
                end = append_line(descriptor, line)
                if not end:
                    sync(self._place.parent)
                self._end = end + len(line)
                if self._held is None:
                    self._held = weakref.finalize(self, os.close, kept := os.dup(descriptor))
                    hold_lock(kept)
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """Nothing more is added: until then, from what was added first, others find that the run goes on."""
        if self._held is not None:
            self._held()
            self._held = None

    def chained(self) -> bool:
        """Return whether new lines get a running hash: not in a run whose log began without. Raises StorageError."""
        if self._end < 0:
            with storing(str(self.path)), contextlib.suppress(FileNotFoundError), reading.opened(self._place) as file:
                self._look(file.fileno())
        return self._head is not None

    def _prepared(self, descriptor: int, record: Record) -> bytes:
        # a line that a kill or a full disk has torn is cut off before
        if os.fstat(descriptor).st_size != self._end:
            torn = self._look(descriptor)
            if torn:
                os.ftruncate(descriptor, self._end)
        if self._end == 0 and isinstance(record, Opened):
            self._head = record.seed_hash
        line = msgspec.json.encode(record)
        if self._head is not None:
            line, self._head = sealed(line, self._head)
        ended = self._end == 0 or os.pread(descriptor, 1, self._end - 1) == b"\n"
        return (b"" if ended else b"\n") + line + b"\n"

    def _look(self, descriptor: int) -> int:
        size = os.fstat(descriptor).st_size
        text = os.pread(descriptor, size, 0)
        start = text.rfind(b"\n") + 1
        rest = _line(text[start:])
        self._end = size if rest.record is not None else start
        last = rest if rest.record is not None else _line(text[text.rfind(b"\n", 0, max(0, start - 1)) + 1 : start - 1])
        self._head = last.chain
        return size - self._end

    def first(self) -> Opened:
        """Return the first record; no more is read. Raises RunError."""
        with self._open() as file:
            return self._opened(_line(file.readline(reading.MOST_JSON).rstrip(b"\n")))

    def read(self) -> LogContents:
        """Read the whole log. Raises RunError at the first damaged line."""
        with self._open() as file:
            stamp, text = Stamp.of(os.fstat(file.fileno())), reading.within(file, _MOST)
        lines, torn = [_line(each) for each in text.split(b"\n")], False
        if lines[-1].record is None:  # nothing, or a torn line, stands behind the last newline
            torn = bool(lines.pop().body)
        opened = self._opened(lines[0] if lines else _line(b""))
        chained, previous = lines[0].chain is not None, opened.seed_hash
        found: list[tuple[int, Record]] = []
        known: str | None = previous
        for number, line in enumerate(lines, 1):
            problem = line.problem or _misplaced(line, known, chained=chained)
            if problem is None and line.record is not None:
                found.append((number, line.record))
            elif chained or line.record is not None or not _resumed(lines[number:]):
                raise RunError(f"{self.path}, line {number}: {problem}", hint=COPY)
            known = line.chain
        if not chained and _stripped(found):
            problem = "its lines have no running hashes, and were written with them: these were taken out"
            raise RunError(f"{self.path}: {problem}", hint=COPY)
        return LogContents(
            opened=opened,
            records=tuple(found),
            stamp=stamp,
            hash=known if chained else None,
            chained=chained,
            torn=torn,
        )

    def _opened(self, line: _Line) -> Opened:
        if not isinstance(line.record, Opened):
            why = f": {line.problem}" if line.problem else ""
            raise RunError(f"{self.path} has no first record{why}", hint=ANEW)
        return line.record

    @contextlib.contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        try:
            with reading.opened(self.path) as file:
                yield file
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(
                f"{self.path.parent} is not a run's folder (no run.jsonl)", hint="see: ls results/*"
            ) from None
        except OSError as error:
            raise RunError(f"{self.path}: {error.strerror}", hint=PERMISSIONS) from None
        except reading.UnreadableError as error:
            raise RunError(f"{self.path} cannot be read: {error}", hint=f"put a copy of it back, or {ANEW}") from None


def sealed(body: bytes, previous: str) -> tuple[bytes, str]:
    """Return the line of a record with its running hash, and that hash; `previous` is the one before it."""
    chain = hashlib.sha256(previous.encode() + body).hexdigest()
    return body[:-1] + _FIELD + chain.encode() + b'"}', chain


def _line(text: bytes) -> _Line:
    body, chain = text, None
    if text[-_SEAL:].startswith(_FIELD) and text.endswith(b'"}'):
        body = text[:-_SEAL] + b"}"
        chain = text[-_DIGITS - 2 : -2].decode("ascii", "replace")
    try:
        return _Line(reading.decoded(_RECORD, text), None, body, chain)
    except reading.UnreadableError as error:
        return _Line(None, f"it is not a record ({error})", body, None)


def _misplaced(line: _Line, previous: str | None, *, chained: bool) -> str | None:
    if chained != (line.chain is not None):
        return "it has no running hash" if chained else "it has a running hash, and the lines before it have none"
    if not chained or previous is None or sealed(line.body, previous)[1] == line.chain:
        return None
    return _UNFIT


def _stripped(records: Sequence[tuple[int, Record]]) -> bool:
    # Records that a later version adds to an old run stand behind a `resumed` one.
    if any(isinstance(record, AttemptStored) for _, record in records):
        return True
    first = itertools.takewhile(lambda record: not isinstance(record, Resumed), (record for _, record in records))
    return any(
        record.up is not None or isinstance(record, Lost) or (isinstance(record, Opened) and record.format > 1)
        for record in first
    )


def _resumed(after: Sequence[_Line]) -> bool:
    # versions without a running hash ended a torn line when they resumed the run
    return bool(after) and isinstance(after[0].record, Resumed)
