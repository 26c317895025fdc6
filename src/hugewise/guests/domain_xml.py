"""XML that somebody else wrote, read without expanding anything: elements with the line they begin in.

A document type is refused: it is where entities are declared, and a libvirt domain has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

from hugewise.errors import UserError

__all__ = ["Element", "parse"]

_DEEPEST = 100  # a domain has about ten levels


@dataclass
class Element:
    """An element: its tag, attributes, text and children, and the line of the file that it begins in."""

    tag: str
    attributes: Mapping[str, str]
    line: int
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> Iterator[Element]:
        """The children of that tag."""
        return (child for child in self.children if child.tag == tag)

    def first(self, *path: str) -> Element | None:
        """The first child of the first tag, its first child of the second, and so on; None where there is none."""
        here: Element | None = self
        for tag in path:
            here = None if here is None else next(here.all(tag), None)
        return here


def parse(text: bytes, file: str) -> Element:
    """The root element of the document in `text`. Raises UserError, which names `file` and the line."""
    roots: list[Element] = []
    open_: list[Element] = []
    texts: list[list[str]] = []
    parser = expat.ParserCreate()
    parser.buffer_text = True

    def begin(tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag, attributes, parser.CurrentLineNumber)
        if len(open_) >= _DEEPEST:
            raise UserError(f"{file}:{element.line}: is nested too deeply", hint="name the XML of one domain")
        (open_[-1].children if open_ else roots).append(element)
        open_.append(element)
        texts.append([])

    def end(_: str) -> None:
        open_.pop().text = "".join(texts.pop())

    def characters(data: str) -> None:
        texts[-1].append(data)

    def document_type(*_: object) -> None:
        raise UserError(
            f"{file}:{parser.CurrentLineNumber}: has a document type, which could declare entities, and is not read",
            hint="remove <!DOCTYPE ...>: a libvirt domain has none",
        )

    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    parser.StartDoctypeDeclHandler = document_type
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise UserError(
            f"{file}:{error.lineno}: is not well-formed XML: {expat.ErrorString(error.code)}"
            f" (column {error.offset + 1})",
            hint="write it anew with: virsh dumpxml DOMAIN",
        ) from None
    except (LookupError, ValueError, TypeError) as error:  # of the codec that its declaration names
        cure = "write it anew, in UTF-8, with: virsh dumpxml DOMAIN"
        raise UserError(f"{file}:1: its encoding cannot be read: {error}", hint=cure) from None
    return roots[0]
