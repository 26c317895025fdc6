"""Programs of this machine: where one is, and what tells that it was replaced by another. It looks at files only."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from hugewise.workload import Missing

__all__ = ["find", "not_on_path", "stamp"]

# Where Debian puts daemons and games, and people what they have built: a user's PATH, or root's, may have none of it.
_USUAL = ("/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/usr/games", "/usr/local/games")


def find(name: str, *more: str) -> str | None:
    """The path of a program, on PATH or in the usual folders and `more`; None where there is none."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *_USUAL, *more)))


def not_on_path(programs: Mapping[str, str]) -> Iterator[Missing]:
    """What is lacking of programs that are run by their bare names: each with its Debian package."""
    for name, package in programs.items():
        if shutil.which(name) is None:
            yield Missing(f"{name}: no such program on PATH", package)


def stamp(path: str) -> str:
    """What changes when a file does: where it is, its size and when it was written. Only the path where it is gone."""
    try:
        found = Path(path).stat()
    except OSError:
        return path
    return f"{path} {found.st_size} {found.st_mtime_ns}"
