"""The simple commands of a shell script: what a unit starts by `sh -c`, and what it writes to a knob. Pure.

Read are words with their quotes, variables that are known, pipes, redirections, `for NAME in ...` and what follows a
reserved word. Both branches of a condition count; what a command prints is not known. Source: POSIX, Shell Command
Language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

from hugewise.machine.loader import shell_text

_Part = tuple[str, Literal["plain", "single", "double"]]

_LONGEST = 1 << 16
_MOST_COMMANDS = 2000
_MOST_VALUES = 64
_DEEPEST = 8
_OPERATORS = re.compile(r"&&|\|\||>>|>&|&>|<<|[;&|<>()\n]")
_VARIABLE = re.compile(r"\$(?:(\w{1,64})|\{(\w{1,64})(?::?[-=]([^}]{0,4096}))?\})")
_ASSIGNED = re.compile(r"[A-Za-z_]\w{0,63}")
_RESERVED = {"if", "then", "else", "elif", "fi", "do", "done", "while", "until", "{", "}", "!", "esac"}
_BEFORE = {"exec", "command", "nohup", "time", "sudo", "builtin"}
_SHELLS = {"sh", "bash", "dash", "ash", "ksh", "zsh"}


class ShellCommand(NamedTuple):
    """A simple command: its words, the variables that are set for it alone, the files that it writes, and whether it
    reads what the command before it prints.
    """

    words: tuple[str, ...]
    assigned: tuple[tuple[str, str], ...] = ()
    outputs: tuple[str, ...] = ()
    piped: bool = False


class _Word(NamedTuple):
    parts: tuple[_Part, ...]


def script_of(argv: Sequence[str]) -> str | None:
    """The script that `sh -c SCRIPT` runs; None where it is none."""
    return shell_text(argv) if argv and PurePosixPath(argv[0]).name in _SHELLS else None


def is_script(head: bytes) -> bool:
    """Return whether a file is a shell's script, by its first line."""
    first = head.partition(b"\n")[0]
    return first.startswith(b"#!") and any(name.encode() in first.split(b"/")[-1] for name in _SHELLS)


def commands(text: str, variables: Mapping[str, str]) -> list[ShellCommand]:
    """The simple commands of a script in their order, with the variables that are known replaced."""
    found: list[ShellCommand] = []
    _run(list(_tokens(text[:_LONGEST])), dict(variables), found, 0)
    return found


def _tokens(text: str) -> Iterator[_Word | str]:
    """Words, and operators as text."""
    parts: list[_Part] = []
    plain: list[str] = []
    at = 0

    def closed() -> Iterator[_Word]:
        if plain:
            parts.append(("".join(plain), "plain"))
            plain.clear()
        if parts:
            yield _Word(tuple(parts))
            parts.clear()

    while at < len(text):
        character = text[at]
        if operator := _OPERATORS.match(text, at):
            descriptor = "".join(plain).isdecimal() and not parts and character in "<>"
            if descriptor:
                plain.clear()
            yield from closed()
            yield ";" if operator[0] == "\n" else operator[0]
            at = operator.end()
        elif character in " \t\r":
            yield from closed()
            at += 1
        elif character == "#" and not plain and not parts:
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif character == "\\":
            plain_end = text[at + 1 : at + 2]
            if plain_end != "\n":
                if plain:
                    parts.append(("".join(plain), "plain"))
                    plain.clear()
                parts.append((plain_end, "single"))
            at += 2
        elif character in "'\"":
            if plain:
                parts.append(("".join(plain), "plain"))
                plain.clear()
            inside, at = _quoted(text, at)
            parts.append((inside, "single" if character == "'" else "double"))
        else:
            plain.append(character)
            at += 1
    yield from closed()


def _quoted(text: str, at: int) -> tuple[str, int]:
    """Return the text between the quote at `at` and its end, and where the text goes on."""
    quote, at = text[at], at + 1
    inside: list[str] = []
    while at < len(text) and text[at] != quote:
        if quote == '"' and text[at] == "\\" and text[at + 1 : at + 2] in ('"', "\\", "`", "\n"):
            at += 1
        inside.append(text[at])
        at += 1
    return "".join(inside), at + 1


def _replaced(text: str, variables: Mapping[str, str]) -> str:
    """Variables with what they hold; of an unknown one its default, else itself."""

    def value(match: re.Match[str]) -> str:
        held = variables.get(match[1] or match[2])
        return held if held else match[3] if match[3] is not None else match[0] if held is None else ""

    return _VARIABLE.sub(value, text)[:_LONGEST]


def _expanded(word: _Word, variables: Mapping[str, str]) -> list[str]:
    """The words that a word becomes: what is not quoted is split at blanks."""
    fields: list[str] = []
    open_ = False
    for text, kind in word.parts:
        if kind != "plain":
            piece = text if kind == "single" else _replaced(text, variables)
            fields = [*fields[:-1], fields[-1] + piece] if open_ and fields else [*fields, piece]
            open_ = True
            continue
        value = _replaced(text, variables)
        pieces = value.split()
        if not pieces:
            open_ = open_ and not value
            continue
        joined = open_ and bool(fields) and not value[0].isspace()
        if joined:
            fields[-1] += pieces.pop(0)
        fields += pieces
        open_ = not value[-1].isspace()
    return fields[:_LONGEST]


def _run(tokens: list[_Word | str], variables: dict[str, str], found: list[ShellCommand], depth: int) -> None:
    """Take the commands of these tokens in their order."""
    at, piped = 0, False
    while at < len(tokens) and len(found) < _MOST_COMMANDS:
        end = at
        while end < len(tokens) and (
            isinstance(tokens[end], _Word) or tokens[end] in (">", ">>", ">&", "&>", "<", "<<")
        ):
            end += 1
        command = tokens[at:end]
        if _plain(command[:1]) == "for" and depth < _DEEPEST:
            stop = _end_of_loop(tokens, at)
            _loop(tokens[at:stop], variables, found, depth)
            at, piped = stop, False
            continue
        _simple(command, variables, found, piped=piped)
        piped = end < len(tokens) and tokens[end] == "|"
        at = end + 1


def _plain(tokens: Sequence[_Word | str]) -> str:
    """A word that is written without quotes; nothing for another token."""
    first = tokens[0] if tokens else ""
    return (
        first.parts[0][0] if isinstance(first, _Word) and len(first.parts) == 1 and first.parts[0][1] == "plain" else ""
    )


def _end_of_loop(tokens: Sequence[_Word | str], at: int) -> int:
    """The place behind the `done` of the loop that begins at `at`."""
    depth = 0
    for place in range(at, len(tokens)):
        word = _plain(tokens[place : place + 1])
        depth += (word in ("for", "while", "until")) - (word == "done")
        if word == "done" and depth == 0:
            return place + 1
    return len(tokens)


def _loop(tokens: list[_Word | str], variables: dict[str, str], found: list[ShellCommand], depth: int) -> None:
    # `for NAME in WORDS; do BODY; done` yields the body with each of the words
    name = _plain(tokens[1:2])
    begin = next((place for place in range(len(tokens)) if _plain(tokens[place : place + 1]) == "do"), len(tokens))
    words = [token for token in tokens[3:begin] if isinstance(token, _Word)]
    values = [value for word in words for value in _expanded(word, variables)][:_MOST_VALUES]
    for value in values:
        _run(tokens[begin + 1 : -1], {**variables, name: value}, found, depth + 1)


def _simple(
    tokens: Sequence[_Word | str], variables: dict[str, str], found: list[ShellCommand], *, piped: bool
) -> None:
    """A simple command; assignments without one, and those of `export`, hold for what follows."""
    words: list[str] = []
    assigned: list[tuple[str, str]] = []
    outputs: list[str] = []
    redirected = ""
    for token in tokens:
        if not isinstance(token, _Word):
            redirected = token
            continue
        fields = _expanded(token, variables)
        if redirected:
            outputs += fields[:1] if redirected in (">", ">>", "&>") else []
            redirected = ""
            continue
        key, equals, value = (fields[0] if len(fields) == 1 else _whole(token, variables)).partition("=")
        if equals and not words and _ASSIGNED.fullmatch(key):
            assigned.append((key, value))
        elif not words and fields and (fields[0] in _RESERVED or fields[0] in _BEFORE):
            words += fields[1:]
        else:
            words += fields
    if words and words[0] == "export":
        variables |= {key: value for key, equals, value in (word.partition("=") for word in words[1:]) if equals}
    elif not words:
        variables |= dict(assigned)
    if words or outputs:
        found.append(ShellCommand(tuple(words), tuple(assigned), tuple(outputs), piped))


def _whole(word: _Word, variables: Mapping[str, str]) -> str:
    """A word that is not split: of an assignment."""
    return "".join(text if kind == "single" else _replaced(text, variables) for text, kind in word.parts)


class Written(NamedTuple):
    """A file that a script writes, and the value; None: it is not known."""

    path: str
    value: str | None


_HUGEADM = {"--thp-always": "always", "--thp-madvise": "madvise", "--thp-never": "never"}
_ENABLED = "/sys/kernel/mm/transparent_hugepage/enabled"


def written(listed: Sequence[ShellCommand]) -> Iterator[Written]:
    """Yield what the commands write: by echo and printf into a file or a tee, by sysctl and by hugeadm."""
    printed: str | None = None
    for command in listed:
        before, printed = printed if command.piped else None, _printed(command.words)
        name = PurePosixPath(command.words[0]).name if command.words else ""
        if name == "tee":
            yield from (Written(word, before) for word in command.words[1:] if not word.startswith("-"))
            printed = before
        elif name == "sysctl":
            for word in command.words[1:]:
                key, equals, value = word.partition("=")
                if equals:
                    yield Written(f"/proc/sys/{key.strip().replace('.', '/')}", value.strip())
        elif name == "hugeadm":
            yield from (Written(_ENABLED, _HUGEADM[word]) for word in command.words[1:] if word in _HUGEADM)
        yield from (Written(path, printed if name in ("echo", "printf") else before) for path in command.outputs)


def _printed(words: Sequence[str]) -> str | None:
    """Return the output of echo and printf; None where it is not known."""
    name = PurePosixPath(words[0]).name if words else ""
    given = list(words[1:])
    if name == "echo":
        while given and re.fullmatch(r"-[neE]{1,3}", given[0]):
            given.pop(0)
        text = " ".join(given)
    elif name == "printf" and given:
        text = " ".join(given[1:]) if "%" in given[0] else given[0]
    else:
        return None
    text = text.replace("\\n", "").strip()
    return None if "$" in text or "`" in text else text
