"""Programs of this machine: where one is, and what tells that it was replaced by another. It looks at files only."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

__all__ = ["find", "stamp"]

_DEBIAN = ("/usr/games", "/usr/sbin", "/usr/local/games")  # of which a user's PATH, or root's, may have none


def find(name: str) -> str | None:
    """The path of a program, on PATH or where Debian puts games and daemons; None where there is none."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(_DEBIAN))


def stamp(path: str) -> str:
    """What changes when a file does: where it is, its size and when it was written. Only the path where it is gone."""
    try:
        found = Path(path).stat()
    except OSError:
        return path
    return f"{path} {found.st_size} {found.st_mtime_ns}"
