"""The files of the machine that hugewise itself runs on."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

__all__ = ["LocalHost", "mounted"]

_ESCAPE = re.compile(r"\\(\d{3})")


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


def mounted(proc: Path = Path("/proc/self")) -> Iterator[tuple[str, str, str, str]]:
    """Of each mount: its root within the file system, its point, the file system's type and options; see proc(5)."""
    for line in (proc / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = (_ESCAPE.sub(lambda found: chr(int(found[1], 8)), text) for text in before.split(" ")[3:5])
        yield root, point, kind, options
