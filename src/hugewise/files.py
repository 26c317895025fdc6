"""Writing files, with an error that says what could not be written and what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hugewise.errors import StorageError

__all__ = ["RESUME", "storing", "sync"]

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
