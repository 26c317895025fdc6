"""The files of the machine that hugewise itself runs on."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class LocalHost:
    """The machine that hugewise itself runs on."""

    def __init__(self) -> None:
        self.name = os.uname().nodename

    def privileged(self) -> bool:
        """Whether this process may turn system-wide knobs."""
        return os.geteuid() == 0

    def read(self, path: str) -> str:
        """The file's text, stripped."""
        return Path(path).read_bytes().decode("utf-8", "replace").strip()

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
