"""The text of systemd's unit files, of environment files and of command lines: words, keys, values. Pure.

Source: systemd.syntax(7), systemd.exec(5), systemd.service(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

__all__ = ["Directive", "directives", "specified", "words"]

_SECTION = re.compile(r"\[([^\]]{1,256})\]")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "s": " ", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_CODE = re.compile(r"x([0-9a-fA-F]{2})|([0-7]{3})|u([0-9a-fA-F]{4})")
_SPECIFIER = re.compile(r"%(.)")


class Directive(msgspec.Struct, frozen=True):
    """`Key=value` in a section; `line` is where it begins, from 1."""

    section: str
    key: str
    value: str
    line: int


def directives(text: str) -> Iterator[Directive]:
    """The assignments of a unit file, in their order. What is none is passed over, as systemd does.

    A line that ends with a backslash goes on with the next one, over comments in between.
    """
    section, begun, line = "", "", 0
    for number, each in enumerate(text.split("\n"), 1):
        stripped = each.strip()
        if stripped.startswith(("#", ";")) or (not stripped and not begun):
            continue
        line = line if begun else number
        if stripped.endswith("\\"):
            begun += stripped[:-1] + " "
            continue
        whole, begun = begun + stripped, ""
        if found := _SECTION.fullmatch(whole):
            section = found[1]
        else:
            key, equals, value = whole.partition("=")
            if equals:
                yield Directive(section, key.strip(), value.strip(), line)


def words(text: str) -> list[str]:
    """The words of a value: between blanks, with quotes and C escapes taken off. An open quote ends with the text."""
    found: list[str] = []
    word: list[str] = []
    quote, begun, at = "", False, 0
    while at < len(text):
        one = text[at]
        at += 1
        if one == "\\" and at < len(text):
            escaped, at = _unescaped(text, at)
            word.append(escaped)
            begun = True
        elif quote:
            if one == quote:
                quote = ""
            else:
                word.append(one)
        elif one in "'\"":
            quote, begun = one, True
        elif one.isspace():
            found += ["".join(word)] if begun else []
            word, begun = [], False
        else:
            word.append(one)
            begun = True
    return [*found, "".join(word)] if begun else found


def _unescaped(text: str, at: int) -> tuple[str, int]:
    """What an escape whose backslash stands before `at` means, and where the text goes on."""
    if code := _CODE.match(text, at):
        number = int(code[1] or code[3] or "0", 16) if code[2] is None else int(code[2], 8)
        return chr(number) if not 0xD800 <= number < 0xE000 else "\N{REPLACEMENT CHARACTER}", code.end()
    return _ESCAPES.get(text[at], text[at]), at + 1


def specified(text: str, unit: str) -> str:
    """`text` with the specifiers that a unit's own name answers; others stay as they are (systemd.unit(5))."""
    stem = unit.rpartition(".")[0]
    prefix, _, instance = stem.partition("@")
    known: Mapping[str, str] = {"n": unit, "N": stem, "p": prefix, "i": instance, "I": instance, "%": "%"}
    return _SPECIFIER.sub(lambda match: known.get(match[1], match[0]), text)
