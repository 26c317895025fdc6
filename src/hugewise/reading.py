"""Parse foreign data into values: total functions with limits.

Each function returns a value or raises `UnreadableError`, whose text is the reason and whose `line` says where. The
caller knows what that means: an attempt *fails* with the reason, an importer names the file and the cure, a run's
folder cannot be reported. No depth, length or digit of a file is in the way of that.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import math
import os
import re
import signal
import stat
import threading
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Literal, NoReturn, TypeVar

import msgspec

MOST = 256 << 20
"""Bytes of a file that are read: a log of some million transactions."""

MOST_JSON = 64 << 20
"""Bytes of a file of JSON that are read: as values it takes ten times as many."""

DEEPEST = 64
"""Levels of lists and objects in JSON. What tools write has ten."""

DIGITS = 400
"""Characters of a printed number: those of the largest finite one, 309 digits, with a fraction."""

_LARGEST = 1 << 63  # the store's limit
_PATIENCE = 5.0  # seconds of processor time
_SHOWN = 60
_LONGEST_REASON = 1000
_FIGURE = re.compile(r"[+-]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d++)?+", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_LONG = re.compile(rb"(?<![.0-9])[0-9]{20}")
_ROW = b"0" * 20
_DIGITS = bytes.maketrans(b"0123456789", b"0000000000")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_BYTE = re.compile(r"\(byte (\d{1,18})\)")

_Kind = TypeVar("_Kind")


class UnreadableError(ValueError):
    """Foreign data that cannot be parsed. The text says why; `line` is the line, from 1, if known."""

    def __init__(self, reason: str, *, line: int | None = None) -> None:
        self.reason = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."
        super().__init__(self.reason)
        self.line = line


class AbsentError(UnreadableError):
    """There is no such file."""


def shown(value: object) -> str:
    """Return the beginning of a value's repr, also of one that has none."""
    try:
        written = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, thousands of levels
        return f"a {type(value).__name__} too large to show"
    return written if len(written) <= _SHOWN else f"{written[: _SHOWN - 3]}..."


def content(path: Path, most: int = MOST, *, part: Literal["whole", "head", "tail"] = "whole") -> bytes:
    """Return a regular file of at most `most` bytes, or its head or tail, never waiting. Raises UnreadableError."""
    with _readable(path) as file:
        if part == "tail":
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        found = file.read(most + 1 if part == "whole" else most)
    if len(found) > most:
        raise UnreadableError(f"larger than {most:,} bytes")
    return found


def sha256(path: Path) -> str:
    """Return the SHA-256 of a regular file's bytes in hex digits, of any size. Raises AbsentError, UnreadableError."""
    with _readable(path) as file:
        return digest(file)


def digest(file: BinaryIO) -> str:
    """Return the SHA-256 of the rest of an open file in hex digits, a piece in memory at a time. Raises OSError."""
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # BinaryIO: without readinto


def key_digest(key: object) -> str:
    """Return the SHA-256 of a key (bytes, or a value's JSON with sorted names) by which a store names things."""
    data = key if isinstance(key, bytes) else msgspec.json.encode(key, order="deterministic")
    return hashlib.sha256(data).hexdigest()


def tree_digest(files: Mapping[str, str], head: str = "") -> str:
    """Return the SHA-256 over `head` and the files of a folder, in their order: the SHA-256 of each by its name."""
    lines = "".join(f"{name} {digest}\n" for name, digest in files.items())
    return key_digest(f"{head}{lines}".encode())


@contextmanager
def _readable(path: Path) -> Iterator[BinaryIO]:
    try:
        with _regular(path) as file:
            yield file
    except UnreadableError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise AbsentError(_strerror(error)) from error
    except IsADirectoryError as error:
        raise UnreadableError("a folder") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        raise UnreadableError(_strerror(error)) from error


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file of a run's folder, no link, without waiting. Raises OSError, UnreadableError."""
    try:
        with _regular(path, os.O_NOFOLLOW) as file:
            yield file
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnreadableError("a link, not a regular file") from error
        raise


def _regular(path: Path, flags: int = 0) -> BinaryIO:
    """Open a regular file; a pipe or a device is never waited for. Raises OSError, and UnreadableError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise UnreadableError("not a regular file") from error
        raise
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise UnreadableError("not a regular file")


def kept(path: Path, most: int = MOST_JSON) -> bytes:
    """Return the bytes of a file of a run's folder, `most` at most. Raises OSError, UnreadableError."""
    with opened(path) as file:
        return within(file, most)


def within(file: BinaryIO, most: int) -> bytes:
    """Return the bytes of an open regular file, `most` at most. Raises OSError, UnreadableError."""
    size = os.fstat(file.fileno()).st_size
    if size > most:
        raise UnreadableError(f"larger than {most:,} bytes")
    return file.read(size)


def _strerror(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def text(data: bytes) -> str:
    """UTF-8, with or without a byte order mark. Raises UnreadableError with the line and the byte."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or data[:8].count(b"\0") >= 3:
        raise UnreadableError("it is UTF-16 or UTF-32, not UTF-8 text", line=1)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(
            f"byte {error.start} is not UTF-8 text", line=data.count(b"\n", 0, error.start) + 1
        ) from error


def decoded(decoder: msgspec.json.Decoder[_Kind], data: bytes) -> _Kind:
    """Decode JSON of the decoder's type with limits on depth and digits. Raises UnreadableError."""
    _modest(data)
    return _decoded(decoder, data)


def _decoded(decoder: msgspec.json.Decoder[_Kind], data: bytes) -> _Kind:
    try:
        return decoder.decode(data)
    except RecursionError as error:
        raise UnreadableError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise UnreadableError("it holds bytes that are not UTF-8 text", line=_line(data)) from error
    except ValueError as error:  # msgspec's errors, and surrogates without their other half
        where = _BYTE.search(str(error))
        line = None if where is None else data.count(b"\n", 0, int(where[1])) + 1
        if "truncated" in str(error):  # also reported for an invalid escape
            line = data.count(b"\n") + 1
        reason = str(error).replace("JSON is malformed:", "it is not JSON:")
        raise UnreadableError(reason, line=line) from error


def _modest(data: bytes) -> None:
    """Check cheaply that data has few brackets, and no long row of digits even in a string. Raises UnreadableError."""
    # A row of digits is sought in a translation: ten times as fast as by an expression.
    few = data.count(b"{") + data.count(b"[") <= DEEPEST
    if few and (_ROW not in data.translate(_DIGITS) or _LONG.search(data) is None):
        return
    bare = _STRING.sub(b"", data)
    if _LONG.search(bare) is not None:
        raise UnreadableError("it holds a whole number of more than 19 digits")
    depth = 0
    for bracket in _BRACKET.findall(bare):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEEPEST:
            raise UnreadableError(f"it is nested deeper than {DEEPEST} levels")


def _line(data: bytes) -> int | None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return data.count(b"\n", 0, error.start) + 1
    return None


_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Any)


def json(data: bytes, what: str | None = None) -> Any:
    """Decode JSON of at most DEEPEST levels; `number` judges its numbers. Raises UnreadableError, naming `what`."""
    try:
        return _shallow(_decoded(_ANY, data.removeprefix(b"\xef\xbb\xbf")))
    except UnreadableError as error:
        if what is None:
            raise
        raise UnreadableError(f"{what} is not as expected: {error.reason}", line=error.line) from error


def stored(path: Path, kind: type[_Kind]) -> _Kind:
    """Return a file of JSON of that type. Raises AbsentError, UnreadableError."""
    return decoded(msgspec.json.Decoder(kind), content(path, MOST_JSON))


def toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text. Raises UnreadableError."""
    try:
        found = tomllib.loads(text)
    except RecursionError as error:
        raise UnreadableError("it is nested too deeply") from error
    except ValueError as error:  # TOMLDecodeError, and integers of thousands of digits
        raise UnreadableError(f"it is not TOML: {error}") from error
    return _shallow(found)


def _shallow(found: _Kind) -> _Kind:
    """Return the decoded value unless it is nested deeper than DEEPEST; then raise UnreadableError."""
    level: list[Any] = [found]
    depth = 0
    while level:
        if depth > DEEPEST:
            raise UnreadableError(f"it is nested deeper than {DEEPEST} levels")
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict | list):
                below += value.values() if isinstance(value, dict) else value
        level, depth = below, depth + 1
    return found


def number(value: object, what: str = "it", *, low: float = -math.inf) -> float:
    """Return a number that JSON holds: finite, at least `low`, and not `true`. Raises UnreadableError with `what`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnreadableError(f"{what} is {shown(value)}, not a number")
    try:
        found = float(value)
    except OverflowError:
        raise UnreadableError(f"{what} is {shown(value)}, beyond all numbers") from None
    if not math.isfinite(found) or found < low:
        raise UnreadableError(f"{what} is {shown(value)}, not a number" + (f" from {low:g}" if found < low else ""))
    return found


def count(value: object, what: str = "it") -> int:
    """Return a count that JSON holds, from 0 to the store's limit. Raises UnreadableError with `what`."""
    found = number(value, what, low=0)
    if found >= _LARGEST:
        raise UnreadableError(f"{what} is {shown(value)}, beyond all counts")
    return int(found)


def figure(written: str, what: str = "it", *, low: float = -math.inf) -> float:
    """Return a number printed in ASCII digits: finite, at least `low`. Raises UnreadableError with `what`."""
    stripped = written.strip()
    if len(stripped) > DIGITS or _FIGURE.fullmatch(stripped) is None:
        raise UnreadableError(f"{what} is {shown(written)}, not a number")
    found = float(stripped)
    if not math.isfinite(found) or found < low:
        raise UnreadableError(f"{what} is {shown(written)}, not a number" + (f" from {low:g}" if found < low else ""))
    return found


def whole(written: str, what: str = "it", *, low: int = 0) -> int:
    """Return a whole number as programs print it, from `low` to the store's limit. Raises UnreadableError."""
    if _WHOLE.fullmatch(written.strip()) is None or not low <= int(written) < _LARGEST:
        raise UnreadableError(f"{what} is {shown(written)}, not a whole number from {low}")
    return int(written)


@contextmanager
def patiently(what: str, seconds: float = _PATIENCE) -> Iterator[None]:
    """Give up after so much processor time. Raises UnreadableError, which names `what`.

    Python's patterns look for signals while they match. Signals are the main thread's: in another one there is no
    limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(_: int, __: FrameType | None) -> NoReturn:
        raise UnreadableError(f"{what}: not done after {seconds:g} s of processor time")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def believing(what: str) -> Iterator[None]:
    """Turn whatever a reader of somebody's output raises into UnreadableError, which names `what`.

    Readers are to raise UnreadableError, or another ValueError, themselves: fuzzers hold them to it. What they did not
    foresee must end as well, as one failed attempt and not as a run that is lost. MemoryError and the errors of
    hugewise itself pass.
    """
    try:
        yield
    except UnreadableError:
        raise
    except ValueError as error:
        raise UnreadableError(str(error)) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, RecursionError, OSError, csv.Error) as error:
        raise UnreadableError(f"{what} is not as expected: {type(error).__name__}: {error}") from error
