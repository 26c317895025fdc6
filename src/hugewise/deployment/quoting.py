"""Texts of others in the words of a format: nothing that stands in them is a key, a line or a command of it.

Sources: systemd.syntax(7), systemd.service(5) and systemd.unit(5); tmpfiles.d(5); YAML 1.2, double-quoted style; POSIX
shell.
"""

from __future__ import annotations

import re
import shlex

from hugewise.errors import UserError

_PLAIN = re.compile(r"[A-Za-z0-9_+,:./-]{1,4096}")
_UNIT = re.compile(r"[A-Za-z0-9:_.@\\-]{1,255}")
_KINDS = (".service", ".slice", ".scope", ".mount", ".socket", ".swap")


def plain(text: str) -> str:
    """Return a word that means the same in every format: a sysfs path, a kernel's value. Raises ValueError."""
    if _PLAIN.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a plain word")
    return text


def shell_words(words: tuple[str, ...]) -> str:
    """Return the words for a shell, each as it is. Raises ValueError for a NUL."""
    if any("\0" in word for word in words):
        raise ValueError("a NUL in a word")
    return " ".join(map(shlex.quote, words))


def unit_word(word: str) -> str:
    """Return a word of ExecStart= unchanged: no variable, specifier or end of the line. Raises ValueError."""
    return f'"{_escaped(word).replace("$", "$$")}"'


def unit_environment(name: str, value: str) -> str:
    """Return the assignment for Environment=. Raises ValueError for a name that is none."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
        raise ValueError(f"{name!r} is not the name of a variable")
    return f'"{name}={_escaped(value)}"'


def _escaped(text: str) -> str:
    """Quote the text for systemd, with its specifiers doubled and unprintable bytes as numbers."""
    if "\0" in text:
        raise ValueError("a NUL in a word")
    made = []
    for character in text:
        if character in '"\\':
            made.append(f"\\{character}")
        elif character == "%":
            made.append("%%")
        elif character.isprintable():
            made.append(character)
        else:
            made += [f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape")]
    return "".join(made)


def unit_name(text: str) -> str:
    """Return the name of a unit, of a service where it says no kind, as systemctl takes it. Raises UserError."""
    name = text if text.endswith(_KINDS) else f"{text}.service"
    if _UNIT.fullmatch(name) is None or name.startswith("."):
        raise UserError(
            f"{text!r} is not the name of a unit",
            hint=r"name one as systemctl shows it: letters, digits and : - _ . @ \, such as redis-server.service",
        )
    return name


def yaml_text(text: str) -> str:
    """Return a scalar of YAML that is this text, whatever stands in it."""
    made = []
    for character in text:
        if character in '"\\':
            made.append(f"\\{character}")
        elif character.isprintable():
            made.append(character)
        else:
            code = ord(character)
            made.append(f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return f'"{"".join(made)}"'
