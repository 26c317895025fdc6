"""What tests of reports read: a study's document in each format, and the blocks of a document."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from hugewise.model.results import Results
from hugewise.report import images
from hugewise.report.document import Block, Bundle, Document, Folded, Table
from hugewise.report.html import html
from hugewise.report.markdown import markdown
from hugewise.report.summary import summary
from hugewise.report.terminal import show
from hugewise.report.write import report

Kind = TypeVar("Kind")


def page(results: Results) -> str:
    """Without the font (base64 may have anything in it)."""
    return html(report(results), {}).replace(images.font_face(), "")


def text(results: Results) -> str:
    return markdown(report(results))


def printed(document: Document, path: Path | None = None, width: int = 80) -> str:
    out = io.StringIO()
    show(document, path, Console(file=out, width=width, force_terminal=False))
    return out.getvalue()


def terminal(results: Results) -> str:
    """At 80 columns, which it keeps."""
    shown = printed(summary(results))
    assert max(map(len, shown.splitlines())) <= 80
    return shown


def rows(table: Table | None) -> dict[str, tuple[str, ...]]:
    """By their first entry; they are as long as the head."""
    assert table is not None
    assert {len(row) for row in table.rows} == {len(table.head)}
    return {row[0]: row[1:] for row in table.rows}


def blocks(document: Document, kind: type[Kind]) -> list[Kind]:
    """Every block of this kind, in order."""

    def within(several: Iterable[Block]) -> list[Kind]:
        found: list[Kind] = []
        for block in several:
            if isinstance(block, kind):
                found.append(block)
            elif isinstance(block, Bundle | Folded):
                found += within(block.blocks)
        return found

    return within(
        [*document.top, *document.lead, *(block for section in document.sections for block in section.blocks)]
    )
