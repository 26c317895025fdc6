"""Data of workloads, made once by their recipe and kept below the results folder; and series over time of attempts.

    results/data/<name>-<hash of the key>/{manifest.json, tree/}

Data are made in a hidden folder and renamed, so that they are there whole or not at all. Two runs that need the same
data share them; `rm -r results/data` makes them anew. A series is written before its attempt is stored, and held
against the digest in the attempt.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.beneath import DirFd
from hugewise.errors import RunError, StorageError
from hugewise.files import made_folder, storing, write_whole
from hugewise.host import scratch
from hugewise.model.over_time import SampleSeries
from hugewise.model.procedure import Data
from hugewise.model.trial import Attempt

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Data that were made: `digest` is the SHA-256 over names, modes and contents, `bytes` their size."""

    format: int = 1
    name: str
    key: Mapping[str, str | int | float | bool]
    bytes: int
    digest: str
    folder: str = ""

    @property
    def tree(self) -> Path:
        return Path(self.folder) / "tree"


def _folder(results: Path, data: Data) -> Path:
    name = _UNSAFE.sub("_", data.name)[:60]
    return results / "data" / f"{name}-{reading.key_digest([data.name, data.key])[:12]}"


def find(results: Path, data: Data) -> Kept | None:
    """Return the data as they were kept, or None where they must be made."""
    folder = _folder(results, data)
    try:
        kept = reading.stored(folder / "manifest.json", Kept)
    except reading.UnreadableError:
        return None
    return msgspec.structs.replace(kept, folder=str(folder.resolve()))


def keep_dataset(results: Path, data: Data, made: Path) -> Kept:
    """Keep the tree below `made`, which the recipe has filled. Raises StorageError."""
    folder = _folder(results, data)
    draft = folder.with_name(f".{folder.name}-{os.getpid()}")
    with storing(str(folder)):
        made_folder(draft.parent)
        with DirFd.open(draft.parent.resolve()) as above:
            above.remove(draft.name)
            with above.make(draft.name, 0o755) as new:
                with new.make("tree", 0o755) as tree:
                    copied = scratch.copy(made, tree)
                kept = Kept(name=data.name, key=data.key, bytes=copied.bytes, digest=copied.digest)
                new.put("manifest.json", msgspec.json.format(msgspec.json.encode(kept), indent=1), 0o644)
            above.remove(folder.name)
            above.rename(draft.name, folder.name)
    return msgspec.structs.replace(kept, folder=str(folder.resolve()))


def lay_out(kept: Kept, place: scratch.Scratch) -> Path:
    """Lay out a fresh, verified copy of the data for an attempt. Raises StorageError, UserError for no room."""
    return place.folder("data", lambda target: _fill(target, kept, place))


def _fill(target: DirFd, kept: Kept, place: scratch.Scratch) -> None:
    scratch.need_room(target.path, kept.bytes)
    copied = scratch.copy(kept.tree, target, place.owner, place.group)
    if copied.digest != kept.digest:
        raise StorageError(
            f"{kept.folder} was changed since it was made (SHA-256 {copied.digest[:12]}, it was {kept.digest[:12]})",
            hint=f"make it anew: rm -r {kept.folder}",
        )


FILE = "samples.json.gz"
"""Name of the file in the folder of an attempt."""

_UNSAFE_NAMES = re.compile(r"[^A-Za-z0-9._=-]+")
_EVENTS, _SERIES = "events.jsonl", b'{"ev":"series"'
_DECODER = msgspec.json.Decoder(SampleSeries)
_MOST = 32 << 20  # bytes of the text: 2,048 readings of 300 changing counters have 5 MB


def folder_of(run: Path, attempt: Attempt) -> Path:
    """Return the folder of an attempt in that of its run."""
    name = f"b{attempt.block:05d}-{attempt.order}-{attempt.arm}-{attempt.number}"
    return run / "attempts" / _UNSAFE_NAMES.sub("-", name)


def keep_samples(folder: Path, stored: bytes) -> None:
    """Write the text of a `SampleSeries` into the folder of an attempt that is not stored yet. Raises StorageError."""
    events = folder / _EVENTS
    with storing(str(folder)):
        (folder / FILE).write_bytes(gzip.compress(stored, mtime=0))
        # Remove the event: it holds the same series in ten times the room.
        said = events.read_bytes().splitlines(keepends=True)
        kept = [line for line in said if not line.startswith(_SERIES)]
        if len(kept) < len(said):
            write_whole(events, b"".join(kept))


def samples(run: Path, attempt: Attempt) -> SampleSeries | None:
    """Read an attempt's series over time, or None. Raises RunError where the file is not what was stored."""
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
