"""Names of files that hold figures and tables of cells and arms."""

from __future__ import annotations

import hashlib
import re

__all__ = ["file_name"]

_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]+")


def file_name(text: str) -> str:
    """`text` as the stem of a file on any file system: ASCII, no separator, at most 72 characters.

    A name that had to be changed carries a part of its hash, so that different names stay different; so does one
    with capitals, for file systems that do not tell them apart.
    """
    safe = _UNSAFE.sub("-", text).strip("-.")[:60]
    if safe == text and text == text.lower():
        return safe
    return f"{safe.lower() or 'x'}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:10]}"
