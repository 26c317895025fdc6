"""XML that somebody else wrote, read without expanding anything: elements with the line they begin in.

A document type is refused: it is where entities are declared, and a libvirt domain has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

from hugewise.errors import UserError

__all__ = ["Element", "cpu_set", "node_set", "parse", "scaled", "wrong"]

_DEEPEST = 100  # a domain has about ten levels
_LARGEST_NODE, _LARGEST_CPU = 1023, 8191


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


def wrong(file: str, where: Element, message: str, hint: str) -> UserError:
    """The error to raise for an element."""
    return UserError(f"{file}:{where.line}: {message}", hint=hint)


def scaled(file: str, where: Element, written: str, plain: str = "KiB") -> int:
    """`written` in the element's unit, as bytes: as libvirt scales, `plain` where there is none. Raises UserError."""
    unit = where.attributes.get("unit") or plain
    if re.fullmatch(r"[0-9]{1,19}", written.strip()) is None:
        raise wrong(file, where, f"{written!r} is not a number of {unit}", "write a whole number")
    scale = _scale(unit)
    if scale is None:
        choices = "choose from: b, KiB, MiB, GiB, KB, MB, GB"
        raise wrong(file, where, f"unit={unit!r} is not one of libvirt's", choices)
    return int(written) * scale


def node_set(file: str, where: Element, name: str = "nodeset") -> frozenset[int] | None:
    """The nodes that the attribute names; None where it names none. Raises UserError."""
    written = where.attributes.get(name)
    return None if written is None else _numbers(file, where, name, (_LARGEST_NODE, "nodes"))


def cpu_set(file: str, where: Element, name: str) -> tuple[int, ...]:
    """The CPUs that the attribute names, in order; none where it names none. Raises UserError."""
    if name not in where.attributes:
        return ()
    return tuple(sorted(_numbers(file, where, name, (_LARGEST_CPU, "CPUs"))))


def _numbers(file: str, where: Element, name: str, of: tuple[int, str]) -> frozenset[int]:
    """The numbers of a set such as `0-3,^2`; `of`: the largest that there can be, and what they are."""
    (largest, what), written = of, where.attributes[name]
    chosen: set[int] = set()
    for part in written.split(","):
        match = re.fullmatch(r"\s*(\^?)(\d{1,4})(?:-(\d{1,4}))?\s*", part, re.ASCII)
        first, last = (int(match[2]), int(match[3] or match[2])) if match else (1, 0)
        if match is None or first > last or last > largest or (match[1] and match[3]):
            cure = "write for example 0-3,^2"
            raise wrong(file, where, f"{name}={written!r} is not a set of {what}", cure)
        chosen = chosen - {first} if match[1] else chosen | set(range(first, last + 1))
    return frozenset(chosen)


def _scale(unit: str) -> int | None:
    """Bytes of a unit as libvirt names them, without regard to case; None where it is none."""
    small = unit.lower()
    if small in {"b", "byte", "bytes"}:
        return 1
    power = "kmgtpe".find(small[0]) + 1
    if power == 0 or small[1:] not in {"", "ib", "b"}:
        return None
    return int((1000 if small[1:] == "b" else 1024) ** power)
