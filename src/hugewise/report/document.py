"""A report as values: a title and sections of blocks. Each renderer (`html`, `markdown`, `terminal`) knows every block.

A text is anything that was measured or read: renderers make it one line and escape it, so that no builder has to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hugewise.report.sentences import Finding
from hugewise.visible import printable

NAMED = re.compile(r"`([A-Za-z0-9/][A-Za-z0-9._:=/,+ '-]{0,199})`")
"""A name in a sentence, of a policy, a file or a setting: between backticks. `split` gives the text and the names in
turn."""


@dataclass(frozen=True)
class Line:
    """A sentence or a few; `quiet` where it is a detail of what stands above."""

    text: str
    quiet: bool = False


@dataclass(frozen=True)
class Headline:
    """Action in a few words, and its subjects: a line each. `verdict`: a key of `VERDICTS`."""

    verdict: str
    text: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Points:
    """A list."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Note:
    """Note that the reader needs before believing the text above."""

    text: str


@dataclass(frozen=True)
class Heading:
    """A heading within a section; `link` is the key of a section."""

    text: str
    link: str = ""


@dataclass(frozen=True)
class Verdict:
    """A key of `VERDICTS`, its sentence, what was found beside it, named facts, and what stands behind it."""

    verdict: str
    text: str
    arm: str = ""
    findings: tuple[Finding, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    cause: str = ""


@dataclass(frozen=True)
class Verdicts:
    """The verdicts on one cell or metric."""

    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True)
class Table:
    """A caption, a head, and rows; the columns from `numeric` on are aligned to the right.

    swatch  the first column names arms, which are shown with their colours
    turned  a terminal shows rows as columns: for many figures of few arms
    linked  columns in which names of pages beside this one (`redhat-2021.md`) and addresses (https) are links in
            Markdown: of our own words alone
    """

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: int = 1
    swatch: bool = False
    turned: bool = False
    linked: tuple[int, ...] = ()


@dataclass(frozen=True)
class Figure:
    """A drawing by its key and the stem of its files; `text` describes it, `caption` (else `text`) stands below it.

    narrow   the drawing for a window as narrow as a telephone's, which the page alone has; None: `spec` scrolls there
    """

    key: str
    stem: str
    text: str
    spec: Mapping[str, Any]
    caption: str = ""
    narrow: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Commands:
    """Commands that apply a policy, in steps with a title each; without a note there is only what it did."""

    arm: str
    place: str
    note: str | None
    treatment: str = ""
    steps: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Bundle:
    """Blocks that belong together: a card, or a remark on reading."""

    kind: Literal["card", "legend"]
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Folded:
    """Blocks that few readers need, behind a line where a format can fold; in Markdown only those that are `long`."""

    summary: str
    blocks: tuple[Block, ...]
    open: bool = False
    long: bool = False


Block = Line | Headline | Points | Note | Heading | Verdicts | Table | Figure | Commands | Bundle | Folded


@dataclass(frozen=True)
class Section:
    """A part of a report with its title (none: it goes on without one) and its name in the list of sections.

    `brief` where it is for a terminal as well (see `brief`).
    """

    title: str
    blocks: tuple[Block, ...]
    key: str = ""
    nav: str = ""
    brief: bool = False


@dataclass(frozen=True)
class Document:
    """A title, what it is about, and sections; `top` stands above all of these.

    The rest is for a page: what it is `about`, what it is called and headed by (else the title), how often each verdict
    was given, the files beside it, and the colours of arms.
    """

    title: str
    lead: tuple[Block, ...]
    sections: tuple[Section, ...]
    top: tuple[Block, ...] = ()
    about: str = ""
    page: str = ""
    heading: str = ""
    tally: tuple[tuple[str, int], ...] = ()
    files: str = "report.json and figures/"
    colours: Mapping[str, str] = field(default_factory=dict)


def table(
    caption: str,
    head: Iterable[object],
    rows: Iterable[Sequence[object]],
    numeric: int = 1,
    *,
    linked: tuple[int, ...] = (),
    **looks: bool,
) -> Table:
    """Return a table of anything: every entry as text in one line."""
    body = tuple(tuple(map(printable, row)) for row in rows)
    return Table(printable(caption), tuple(map(printable, head)), body, numeric, linked=linked, **looks)


def some(*blocks: Block | None) -> tuple[Block, ...]:
    """Return the blocks that are not None."""
    return tuple(block for block in blocks if block is not None)


def brief(document: Document) -> Document:
    """Return the document with its brief sections alone."""
    return replace(document, sections=tuple(section for section in document.sections if section.brief))


def figures(document: Document) -> Iterator[Figure]:
    """Yield every figure of the document, in order."""

    def within(blocks: Iterable[Block]) -> Iterator[Figure]:
        for block in blocks:
            if isinstance(block, Figure):
                yield block
            elif isinstance(block, Bundle | Folded):
                yield from within(block.blocks)

    for section in document.sections:
        yield from within(section.blocks)


def narrow_figures(document: Document) -> Iterator[Figure]:
    """Yield the drawings for narrow windows, as figures with keys of their own."""
    for figure in figures(document):
        if figure.narrow is not None:
            yield replace(figure, key=f"{figure.key}-narrow", spec=figure.narrow, narrow=None)


_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]+")


def file_name(number: int, text: str) -> str:
    """Return the stem of the files of the cell `number` called `text`: `1-chase-bytes=1g`.

    Safe on any file system: ASCII, no separator, at most 60 characters of the text. The number keeps names apart
    whose texts differ only in characters that had to be replaced, or in capitals.
    """
    safe = _UNSAFE.sub("-", text).strip("-.")[:60].rstrip("-.")
    return f"{number}-{safe}" if safe else str(number)
