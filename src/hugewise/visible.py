"""The one way to a terminal: nothing that somebody else wrote moves its cursor, names its window or hides what it says.

Names of files, arms and units, a program's last words, a guest's console, libvirt's XML: they are text. Every character
that is no printable one (C0, DEL and C1, marks of text direction, surrogates) is shown as U+FFFD; escape sequences are
those that rich makes (`hugewise.console`). Whatever prints, prints through here; a test walks the source.
"""

from __future__ import annotations

import re
import sys

import msgspec

_SPACES = re.compile(r"[\n\t\r]")


def printable(text: object, *, keep: str = "") -> str:
    """Return `text` in one line without control, format or surrogate characters, but for those in `keep`."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(
        one if one.isprintable() or one in keep else " " if _SPACES.match(one) else "\N{REPLACEMENT CHARACTER}"
        for one in shown
    )


def say(text: str, *, err: bool = False) -> None:
    """Print text, in its own lines, on stdout or stderr."""
    stream = sys.stderr if err else sys.stdout
    shown = printable(text, keep="\n\t")
    stream.write(f"{shown}\n".encode(stream.encoding or "utf-8", "replace").decode(stream.encoding or "utf-8"))
    stream.flush()


def json_text(value: object) -> str:
    """Return a value as indented JSON, in which characters that are not printable are escaped."""
    told = msgspec.json.format(msgspec.json.encode(value), indent=1).decode()
    if told.replace("\n", "").isprintable():
        return told
    # Unprintable characters stand in strings alone, except ends of lines.
    return "".join(one if one.isprintable() or one == "\n" else _escaped(one) for one in told)


def say_json(value: object) -> None:
    """Print a value as `json_text`."""
    sys.stdout.write(json_text(value) + "\n")


def say_line(value: object) -> None:
    """Print a value as JSON in one line, at once: of one look after the other."""
    told = msgspec.json.encode(value).decode()
    shown = told if told.isprintable() else "".join(one if one.isprintable() else _escaped(one) for one in told)
    sys.stdout.write(f"{shown}\n")
    sys.stdout.flush()


def _escaped(one: str) -> str:
    units = one.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
