"""Names of files that hold the figures of a cell."""

from __future__ import annotations

import re

__all__ = ["file_name"]

_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]+")


def file_name(number: int, text: str) -> str:
    """The stem of the files of the cell `number` called `text`: `1-chase-bytes=1g`.

    Safe on any file system: ASCII, no separator, at most 60 characters of the text. The number keeps names apart
    whose texts differ only in characters that had to be replaced, or in capitals.
    """
    safe = _UNSAFE.sub("-", text).strip("-.")[:60].rstrip("-.")
    return f"{number}-{safe}" if safe else str(number)
