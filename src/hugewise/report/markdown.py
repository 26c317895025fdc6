"""A document as Markdown (GitHub flavour); figures are linked as files."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator

from hugewise.model.results import VERDICTS
from hugewise.report import document as doc
from hugewise.report.sentences import marked
from hugewise.visible import printable

_PAGE = re.compile(r"(?<![^\s,(])([A-Za-z0-9][A-Za-z0-9._=+-]{0,119}\.md)(?![^\s,);:])")
"""The name of a page between blanks, commas or brackets: no path, and no address of anything elsewhere."""
_ADDRESS = re.compile(r"(?<!\S)(https://[A-Za-z0-9./_#?=&%+-]*[A-Za-z0-9/])(?=[;,]?(?:\s|$))")
"""An address between blanks, as it stands in the columns that may have links: escapes in it would break it."""
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|&~$])")


def escape(text: str) -> str:
    """Return the text with nothing in it that means something in Markdown."""
    return _SPECIAL.sub(r"\\\1", printable(text))


def _sentence(text: str) -> str:
    """Return the text with its names as code."""
    parts = enumerate(doc.NAMED.split(printable(text)))
    return "".join(f"`{part}`" if place % 2 else escape(part) for place, part in parts)


def markdown(document: doc.Document, *, figures: str = "figures") -> str:
    """Return the report's text; `figures` is the folder that its figures are linked in."""
    parts = [f"# {escape(document.title)}", *_blocks(document.top), *_blocks(document.lead)]
    for section in document.sections:
        parts += [f"## {escape(section.title)}", *_blocks(section.blocks)]
    if figures != "figures":
        parts = [part.replace("](figures/", f"]({figures}/") if part.startswith("![") else part for part in parts]
    return "\n\n".join(filter(None, parts)) + "\n"


def _blocks(blocks: Iterable[doc.Block]) -> Iterator[str]:
    for block in blocks:
        match block:
            case doc.Table():
                yield f"**{escape(block.caption)}**"
                yield _table(block)
            case doc.Commands():
                note = block.note
                text = f"no commands are known; what it did: {block.treatment}" if note is None else note
                yield f"**{escape(block.arm)}**, for {escape(block.place)}: {escape(text)}"
                for title, lines in block.steps:
                    yield f"{escape(title.lower())}:"
                    yield "\n".join(f"    {printable(line)}" for line in lines)
            case doc.Folded(summary, inner, long=True):
                # Collapsed where Markdown is rendered as on GitHub.
                yield f"<details><summary>{html.escape(printable(summary))}</summary>"
                yield from _blocks(inner)
                yield "</details>"
            case doc.Bundle(blocks=inner) | doc.Folded(blocks=inner):
                yield from _blocks(inner)
            case _:
                yield _text(block)


def _text(block: doc.Block) -> str:
    match block:
        case doc.Line(text):
            return _sentence(text)
        case doc.Headline(verdict, text, lines):
            head = f"**{VERDICTS[verdict].symbol} {_sentence(text)}**"
            return "\n\n".join(filter(None, (head, "\n".join(f"- {_sentence(line)}" for line in lines))))
        case doc.Points(lines):
            return "\n".join(f"- {_sentence(line)}" for line in lines)
        case doc.Note(text):
            return f"**Note**: {_sentence(text)}"
        case doc.Heading(text):
            return f"### {escape(text)}"
        case doc.Verdicts(verdicts):
            return "\n".join(line for verdict in verdicts for line in _verdict(verdict))
        case doc.Figure():
            return f"![{escape(block.text)}](figures/{block.stem}.svg)"
    return ""


def _verdict(verdict: doc.Verdict) -> Iterator[str]:
    facts = "; ".join(f"{name} {value}" for name, value in verdict.facts)
    told = f" {facts[0].upper()}{facts[1:]}." if facts else ""
    yield f"- **{marked(verdict.verdict)}**: {_sentence(verdict.text)}{escape(told)}"
    for finding in verdict.findings:
        text = _sentence(finding.text)
        yield f"  - **Finding**: {f'**{text}**' if finding.leads else text}"
    if verdict.cause:
        yield f"  - **Why**: {_sentence(verdict.cause)}"


def _table(table: doc.Table) -> str:
    if not table.rows:
        return "None."
    rule = "|".join("---:" if place >= table.numeric else "---" for place in range(len(table.head)))
    rows = (
        " | ".join(_linked(entry) if place in table.linked else escape(entry) for place, entry in enumerate(row))
        for row in table.rows
    )
    return "\n".join([f"| {' | '.join(map(escape, table.head))} |", f"|{rule}|", *(f"| {row} |" for row in rows)])


def _linked(text: str) -> str:
    return "".join(f"<{part}>" if place % 2 else _with_pages(part) for place, part in enumerate(_ADDRESS.split(text)))


def _with_pages(text: str) -> str:
    return "".join(
        f"[{escape(part)}]({part})" if place % 2 else escape(part) for place, part in enumerate(_PAGE.split(text))
    )
