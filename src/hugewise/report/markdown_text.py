"""Texts and tables in Markdown, as GitHub renders it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hugewise.report.sentences import printable
from hugewise.report.tables import Table

__all__ = ["captioned", "escape", "paragraphs", "rows"]

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|&~$])")


def escape(text: str) -> str:
    """The text with nothing in it that means something in Markdown."""
    return _SPECIAL.sub(r"\\\1", printable(text))


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Each line as a paragraph of its own, below an empty line."""
    for line in lines:
        yield from ("", escape(line))


def captioned(table: Table) -> Iterator[str]:
    """An empty line, the caption, and the table."""
    yield from ("", f"**{escape(table.caption)}**", "")
    yield from rows(table)


def rows(table: Table) -> Iterator[str]:
    """The table without its caption."""
    if not table.rows:
        yield "None."
        return
    yield "| " + " | ".join(escape(entry) for entry in table.head) + " |"
    yield "|" + "|".join("---:" if i >= table.numeric else "---" for i in range(len(table.head))) + "|"
    for row in table.rows:
        yield "| " + " | ".join(escape(entry) for entry in row) + " |"
