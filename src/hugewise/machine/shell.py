"""What `sh -c TEXT` becomes, or starts last: the program behind an `exec`, or of a text's one command. Pure.

Only texts of plain commands are followed, one behind the other. With a pipe, a loop, a function or a word that the
shell would make something else of, nobody can tell without being a shell.

Source: POSIX.1-2017, XCU 2 (Shell Command Language) and sh(1).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["SHELLS", "ShellCommand", "begun_by", "text_of"]

SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "rbash"})

_LONGEST = 1 << 16  # characters of a text that are looked at
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_MADE = re.compile(r"[$`*?\[~!]")  # in a word: what the shell may make of it is not known
_REDIRECTION = re.compile(r"[<>]{1,2}&?|>\||<<<|&>>?")
_PLAIN = frozenset({"set", "ulimit", "umask", "trap", "export", "cd", "echo", "true", ":"})
_WITH_WORD = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})


class ShellCommand(NamedTuple):
    """The words of the program, variables that it is given before them, and whether it has a folder of its own."""

    words: tuple[str, ...]
    given: tuple[tuple[str, str], ...] = ()
    moved: bool = False


def text_of(words: Sequence[str]) -> str | None:
    """The text behind `-c` of the call of a shell; None where it has none."""
    rest, asked = list(words[1:]), False
    while rest and rest[0].startswith(("-", "+")) and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        if word in _WITH_WORD:
            rest = rest[1:]
        asked = asked or (word[0] == "-" and word[:2] != "--" and "c" in word)
    if rest and rest[0] in ("-", "--"):
        rest = rest[1:]
    return rest[0] if asked and rest else None


def begun_by(text: str) -> ShellCommand | None:
    """The program that the text becomes, or starts last; None where that cannot be told."""
    commands = _commands(text[:_LONGEST]) if len(text) <= _LONGEST else None
    given: list[tuple[str, str]] = []
    moved = False
    for at, command in enumerate(commands or ()):
        variables, words = _split(command)
        if not words:  # of the shell itself, which does not hand them on unless they are exported
            continue
        name, last = words[0], at + 1 == len(commands or ())
        if name == "export":
            given += [(key, value) for key, _, value in (word.partition("=") for word in words[1:]) if value]
        moved = moved or name == "cd"
        if name == "exec" and (program := _executed(words[1:])):
            return _found(program, [*given, *variables], moved=moved)
        if last and name not in (*_PLAIN, "exec"):
            return _found(words, [*given, *variables], moved=moved)
    return None


def _found(words: list[str], given: list[tuple[str, str]], *, moved: bool) -> ShellCommand | None:
    return None if _MADE.search(words[0]) else ShellCommand(tuple(words), tuple(given), moved)


def _executed(words: list[str]) -> list[str]:
    """Behind `exec` and its options (of bash: -c, -l, -a NAME)."""
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] == "-a" else words[1:]
    return words


def _split(command: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """The assignments before a command, and its words."""
    at = next((place for place, word in enumerate(command) if _ASSIGNMENT.match(word) is None), len(command))
    parts = (word.partition("=") for word in command[:at])
    return [(key, value) for key, _, value in parts], command[at:]


def _commands(text: str) -> list[list[str]] | None:
    """The plain commands of a text, in their order; None where there is something else in it."""
    if "`" in text or "$(" in text or "<<" in text:
        return None
    reader = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    found: list[list[str]] = [[]]
    try:
        tokens = iter(list(reader))
    except ValueError:
        return None
    for token in tokens:
        if token in (";", "&&"):
            found.append([])
        elif _REDIRECTION.fullmatch(token):
            next(tokens, None)
        elif set(token) <= set("|&;()<>") or (not found[-1] and token in _RESERVED):
            return None
        else:
            found[-1].append(token)
    return [command for command in found if command]


_RESERVED = frozenset(
    {
        "if",
        "then",
        "else",
        "elif",
        "fi",
        "for",
        "while",
        "until",
        "do",
        "done",
        "case",
        "esac",
        "{",
        "}",
        "!",
        "function",
    }
    | {"select", "[[", "time", "eval", ".", "source", "return", "exit"}
)
