"""Writing files: whole and on disk, with an error that says what could not be written and what to do."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hugewise.errors import StorageError

__all__ = ["RESUME", "made_folder", "storing", "sync", "write_whole"]

RESUME = "free some space or name another folder with --results; what was accepted is kept: hugewise resume"
"""The cure for a file of a run."""


@contextmanager
def storing(what: str, hint: str = RESUME) -> Iterator[None]:
    """Turn an operating-system error into a StorageError that says what could not be written; `hint` is the cure."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {what}: {error.strerror or error}", hint=hint) from error


def sync(path: Path) -> None:
    """Have a file or a folder on disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Have `data` in the file `path`, on disk when this returns; at any moment it is the old file or the new one.

    Written beside its place, synced, renamed, and the folder synced: without the last two a power cut may leave a name
    with an empty file, or none. Raises OSError, and leaves nothing beside it then.
    """
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(draft, path)  # noqa: PTH105  (names, not paths)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)  # noqa: PTH108
        raise
    sync(path.parent)


def made_folder(path: Path) -> None:
    """Have the folder `path`, with those above it, on disk. Raises OSError."""
    if not path.is_dir():
        made_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)
