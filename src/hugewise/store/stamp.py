"""What the system says of a file, by which one look at it is known to be as good as the last."""

from __future__ import annotations

from os import stat_result
from typing import NamedTuple, Self

__all__ = ["Stamp"]


class Stamp(NamedTuple):
    """What tells a file from another one, and from itself once it was written again."""

    inode: int
    size: int
    written_ns: int

    @classmethod
    def of(cls, status: stat_result) -> Self:
        """Of the file of which the system says that."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)
