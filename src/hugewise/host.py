"""A machine, as everything above sees it: files to read and write, by absolute path.

Policies, settings, coverage and the runner touch a machine only through `Host`. Tests put a dictionary in its place,
and a guest can later answer the same questions through its agent.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol

__all__ = ["Host", "LocalHost"]


class Host(Protocol):
    """What a policy, a setting or the runner may ask of a machine."""

    name: str

    def privileged(self) -> bool:
        """Whether system-wide knobs can be turned (effective uid 0)."""
        ...

    def read(self, path: str) -> str:
        """The file's text, stripped. Raises FileNotFoundError when absent, OSError when it cannot be read."""
        ...

    def write(self, path: str, text: str) -> None:
        """Write `text` in one call, as sysfs wants it. Raises OSError."""
        ...

    def writable(self, path: str) -> bool:
        """Whether it is a file that its mode lets the owner write (root passes any mode, but not a read-only file)."""
        ...

    def names(self, path: str) -> list[str]:
        """The sorted names in a folder; empty when there is none."""
        ...


class LocalHost:
    """The machine that hugewise itself runs on."""

    def __init__(self) -> None:
        self.name = os.uname().nodename

    def privileged(self) -> bool:
        """Whether this process may turn system-wide knobs."""
        return os.geteuid() == 0

    def read(self, path: str) -> str:
        """The file's text, stripped."""
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()

    def write(self, path: str, text: str) -> None:
        """Write `text` in one call."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def writable(self, path: str) -> bool:
        """Whether it is a file with the owner's write bit."""
        try:
            mode = Path(path).stat().st_mode
        except OSError:
            return False
        return stat.S_ISREG(mode) and bool(mode & stat.S_IWUSR)

    def names(self, path: str) -> list[str]:
        """The sorted names in a folder."""
        try:
            return sorted(entry.name for entry in Path(path).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
