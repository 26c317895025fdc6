"""A report as a document: sections of sentences, tables and figures, rendered as HTML, Markdown or terminal text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hugewise.report import page
from hugewise.report.markdown_text import captioned, escape, paragraphs
from hugewise.report.tables import Table

__all__ = ["Document", "Lines", "Part", "Picture", "Section", "html", "markdown"]


@dataclass(frozen=True)
class Lines:
    """Sentences; as a list where they are `points`. The badge, if any, is a word of `sentences.SYMBOLS`."""

    lines: tuple[str, ...]
    points: bool = False
    badge: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure by its key, with its caption."""

    key: str
    caption: str


Part = Lines | Table | Picture


@dataclass(frozen=True)
class Section:
    """`level` 2 or 3; sections that are not `brief` are left out on a terminal."""

    title: str
    parts: tuple[Part, ...]
    level: int = 2
    brief: bool = False


@dataclass(frozen=True)
class Document:
    """A title, what it is about, and its sections."""

    title: str
    lead: tuple[str, ...]
    sections: tuple[Section, ...] = field(default=())


def html(document: Document, figures: Mapping[str, str], symbols: Mapping[str, str]) -> str:
    """One page that needs nothing else. `figures`: key -> SVG made by `images.inline`."""
    return page.render(
        "document.html.jinja",
        figures,
        document=document,
        symbols=symbols,
        is_table=lambda part: isinstance(part, Table),
        is_picture=lambda part: isinstance(part, Picture),
    )


def markdown(document: Document, figures: Mapping[str, str], symbols: Mapping[str, str]) -> str:
    """GitHub flavour. `figures`: key -> path relative to the report."""
    return "\n".join(_lines(document, figures, symbols)) + "\n"


def _lines(document: Document, figures: Mapping[str, str], symbols: Mapping[str, str]) -> Iterator[str]:
    yield f"# {escape(document.title)}"
    yield from paragraphs(document.lead)
    for section in document.sections:
        yield from ("", f"{'#' * section.level} {escape(section.title)}")
        for part in section.parts:
            match part:
                case Lines():
                    yield ""
                    badge = f"**{symbols[part.badge]} {part.badge}**: " if part.badge else ""
                    first, *rest = part.lines
                    mark = "- " if part.points else ""
                    yield f"{mark}{badge}{escape(first)}"
                    for line in rest:
                        yield f"{mark}{escape(line)}" if part.points else f"\n{escape(line)}"
                case Picture():
                    yield ""
                    if part.key in figures:
                        yield f"![{escape(part.caption)}]({figures[part.key]})"
                case Table():
                    yield from captioned(part)
