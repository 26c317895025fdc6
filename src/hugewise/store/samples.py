"""What an attempt's folder has over time: written before the attempt is stored, and held against the digest in it."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import zlib
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.errors import RunError
from hugewise.files import storing, write_whole
from hugewise.model.sampled import SampleSeries
from hugewise.model.trial import Attempt

__all__ = ["FILE", "folder_of", "keep", "samples"]

FILE = "samples.json.gz"
"""Its name in the folder of an attempt."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]+")
_EVENTS, _SERIES = "events.jsonl", b'{"ev":"series"'
_DECODER = msgspec.json.Decoder(SampleSeries)
_MOST = 32 << 20  # bytes of the text: 2,048 readings of 300 changing counters have 5 MB


def folder_of(run: Path, attempt: Attempt) -> Path:
    """The folder of an attempt in that of its run."""
    name = f"b{attempt.block:05d}-{attempt.order}-{attempt.arm}-{attempt.number}"
    return run / "attempts" / _UNSAFE.sub("-", name)


def keep(folder: Path, stored: bytes) -> None:
    """Write the text of a `SampleSeries` into the folder of an attempt that is not stored yet. Raises StorageError."""
    events = folder / _EVENTS
    with storing(str(folder)):
        (folder / FILE).write_bytes(gzip.compress(stored, mtime=0))
        # There it is once more, in ten times the room.
        said = events.read_bytes().splitlines(keepends=True)
        kept = [line for line in said if not line.startswith(_SERIES)]
        if len(kept) < len(said):
            write_whole(events, b"".join(kept))


def samples(run: Path, attempt: Attempt) -> SampleSeries | None:
    """What was kept over time; None where nothing was. Raises RunError where it is not what was stored."""
    if attempt.sampled is None:
        return None
    path = folder_of(run, attempt) / FILE
    try:
        packed = reading.kept(path)
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            text = file.read(_MOST + 1)
        if len(text) > _MOST:
            raise RunError(f"{path} cannot be read: it holds more than {_MOST:,} bytes")
        if hashlib.sha256(text).hexdigest() != attempt.sampled.digest:
            raise RunError(f"{path} is not what was stored: it was changed", hint="put a copy of it back")
        return reading.decoded(_DECODER, text)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise RunError(f"{path} cannot be read: {why}", hint="put a copy of it back") from None
    except reading.UnreadableError as error:
        raise RunError(f"{path} cannot be read: {error}", hint="put a copy of it back") from None
