"""A document on a terminal: readable at 80 columns, and without colour.

Plain text where the output is not a terminal: rich then leaves out all escape sequences. Texts of the user never pass
through rich's markup, and control characters are removed from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path
from typing import Literal

import rich.table
from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from hugewise.console import TextConsole
from hugewise.model.results import VERDICTS
from hugewise.report import document as doc
from hugewise.report.numbers import MINUS
from hugewise.report.sentences import marked
from hugewise.visible import printable

_BADGES = {marked(verdict): words.colour for verdict, words in VERDICTS.items()}
_WIDEST = 240  # of a table in a text
_NAME = 14  # columns of a name at 80 columns; longer ones are folded


def show(document: doc.Document, report: Path | None = None, console: Console | None = None, width: int = 100) -> None:
    """Print at the console's width (at most `width` columns); plain lines where it is no terminal."""
    console = console or TextConsole()
    shown = Group(*_parts(document, report))
    if console.is_terminal:
        console.print(shown, width=min(console.width, width), crop=False)
        return
    with console.capture() as captured:
        console.print(shown, width=min(console.width, width), crop=False)
    lines = (line.rstrip() for line in captured.get().splitlines())  # padding to the width is of no use in a file
    console.file.write("\n".join(lines) + "\n")


def lines(table: doc.Table) -> Iterator[str]:
    """Yield the table as lines of a text, as wide as it is; nothing of one without rows."""
    console = TextConsole(StringIO())
    console.width = _WIDEST
    with console.capture() as captured:
        console.print(*_table(table, ruled=False))
    yield from (line.rstrip() for line in captured.get().splitlines() if table.rows)


def _parts(document: doc.Document, report: Path | None) -> Iterator[RenderableType]:
    yield _text(document.title, "bold")
    yield from _blocks(document.top)
    yield from _blocks(document.lead)
    for section in document.sections:
        yield Text()
        if section.title:
            yield _text(section.title, "bold")
        yield from _blocks(section.blocks)
    if report is not None:
        yield Text()
        yield _unbroken(f"Report: {printable(report)}")


def _blocks(blocks: Iterable[doc.Block]) -> Iterator[RenderableType]:
    for block in blocks:
        match block:
            case doc.Line() | doc.Headline() | doc.Points() | doc.Note() | doc.Heading():
                yield from _texts(block)
            case doc.Verdicts(verdicts):
                for one in verdicts:
                    symbol = Text(VERDICTS[one.verdict].symbol, style=VERDICTS[one.verdict].colour, overflow="fold")
                    yield _indented(Text.assemble(symbol, f" {_plain(one.text)}", overflow="fold"))
                    yield from (_indented(_text(f"+ {f.text}", "bold" if f.leads else "")) for f in one.findings)
                    if one.cause:
                        yield Padding(_text(one.cause), (0, 0, 0, 4))
            case doc.Table():
                yield from _table(block)
            case doc.Commands():
                yield _indented(_text(f"{block.arm}, for {block.place}:"))
                # Never broken: they are there to be copied.
                yield from (_unbroken(f"    {printable(line)}") for _, lines in block.steps for line in lines)
            case doc.Bundle(blocks=inner) | doc.Folded(blocks=inner):
                yield from _blocks(inner)


def _texts(block: doc.Line | doc.Headline | doc.Points | doc.Note | doc.Heading) -> Iterator[RenderableType]:
    match block:
        case doc.Line(text, quiet):
            yield _indented(_text(text)) if quiet else _text(text)
        case doc.Headline(verdict, text, lines):
            symbol = Text(VERDICTS[verdict].symbol, style=VERDICTS[verdict].colour)
            yield Text.assemble(symbol, " ", (_plain(text), "bold"), overflow="fold")
            yield from (_indented(_text(line)) for line in lines)
        case doc.Points(lines):
            yield from (_indented(_text(f"- {line}")) for line in lines)
        case doc.Note(text):
            yield _indented(_text(f"note: {text}"))
        case doc.Heading(text):
            yield from (Text(), _text(text, "bold"))


def _table(table: doc.Table, *, ruled: bool = True) -> Iterator[RenderableType]:
    if table.caption:
        yield _indented(_text(table.caption, "italic"))
    kind, gap = (box.SIMPLE_HEAD, 1) if ruled else (None, 2)
    shown = rich.table.Table(box=kind, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False)
    head, *rows = zip(table.head, *table.rows, strict=True) if table.turned else (table.head, *table.rows)
    numeric = 1 if table.turned else table.numeric
    for place, name in enumerate(head):
        left = place < numeric or any(row[place] in _BADGES for row in rows)
        most = _NAME if ruled and place == 0 and numeric and not table.turned else None
        fold: Literal["fold", "ellipsis"] = "fold" if most or table.turned else "ellipsis"
        shown.add_column(_text(name), justify="left" if left else "right", max_width=most, overflow=fold)
    for row in rows:
        shown.add_row(*(Text(_plain(entry), style=_BADGES.get(entry, "")) for entry in row))
    yield _indented(shown) if table.turned else shown


def _plain(text: str) -> str:
    return printable(text).replace(MINUS, "-")


def _text(text: str, style: str = "") -> Text:
    return Text(_plain(text), style=style, overflow="fold")


def _indented(shown: RenderableType) -> Padding:
    return Padding(shown, (0, 0, 0, 2))


def _unbroken(text: str) -> Text:
    return Text(text, overflow="ignore", no_wrap=True)
