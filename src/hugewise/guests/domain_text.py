"""Somebody else's text in a study that is written: as names, comments and values of TOML. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

__all__ = ["file_name", "listed", "plain", "quoted", "remark"]


def file_name(text: str) -> str:
    """Of it what a study and its folder may be called."""
    kept = "".join(each if each.isascii() and (each.isalnum() or each in "._-") else "-" for each in text)
    return kept.lstrip("._-")[:64] or "domain"


def remark(text: str) -> str:
    """A comment of a study with somebody else's text in it, which never ends the line."""
    return f"#   {plain(text)}\n"


def plain(text: str) -> str:
    """In one line, whatever stands in it."""
    return "".join(each if each.isprintable() else " " for each in text)


def quoted(text: str) -> str:
    """As a TOML basic string, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def listed(words: Sequence[str]) -> str:
    """As an array of TOML."""
    return f"[{', '.join(map(quoted, words))}]"
