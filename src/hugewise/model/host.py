"""A machine, as everything above sees it: files to read and write, by absolute path.

Policies, settings, coverage and the runner touch a machine only through `Host`. Tests put a dictionary in its place,
and a guest can later answer the same questions through its agent.
"""

from __future__ import annotations

import re
from typing import Protocol

__all__ = ["Host", "number_of", "text_of"]

_NUMBER = re.compile(r"[0-9]{1,18}")


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


def text_of(host: Host, path: str) -> str | None:
    """The file's text; None where it cannot be read."""
    try:
        return host.read(path)
    except OSError:
        return None


def number_of(host: Host, path: str) -> int | None:
    """The number in the file; None where there is none."""
    text = text_of(host, path)
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None
