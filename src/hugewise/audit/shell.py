"""The simple commands of a shell script: what a unit starts by `sh -c`, and what it writes to a knob. Pure.

Read are words with their quotes, variables that are known, pipes, redirections, `for NAME in ...` and what follows a
reserved word. Both branches of a condition count; what a command prints is not known. Source: POSIX, Shell Command
Language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from hugewise.machine.loader import shell_text

_LONGEST = 1 << 16
_MOST_COMMANDS = 2000
_MOST_VALUES = 64
_DEEPEST = 8
_TOKEN = re.compile(
    r"#[^\n]*+|(?P<operator>\d*+(?:>>|>&|<<|[<>])|&>|&&|\|\||[;&|()\n])"
    r"""|(?P<word>(?:"(?:\\.|[^"\\])*+"?|'[^']*+'?|\\.|[^\s"'\\;&|<>()])++)""",
    re.DOTALL,
)
_PART = re.compile(
    r""""(?P<double>(?:\\.|[^"\\])*+)"?|'(?P<single>[^']*+)'?|\\(?P<escaped>.)|(?P<plain>[^"'\\]++)""", re.DOTALL
)
_ESCAPED = re.compile(r'\\(["\\`])')
_REDIRECTS = (">", ">>", ">&", "&>", "<", "<<")
_VARIABLE = re.compile(r"\$(?:(\w{1,64})|\{(\w{1,64})(?::?[-=]([^}]{0,4096}))?\})")
_ASSIGNED = re.compile(r"[A-Za-z_]\w{0,63}")
_RESERVED = {"if", "then", "else", "elif", "fi", "do", "done", "while", "until", "{", "}", "!", "esac"}
_BEFORE = {"exec", "command", "nohup", "time", "sudo", "builtin"}
_SHELLS = {"sh", "bash", "dash", "ash", "ksh", "zsh"}
_BLANK = "\0"  # a blank that parts a word: of a variable without quotes


class ShellCommand(NamedTuple):
    """A simple command: its words, its own variables, the files that it writes, and whether it reads a pipe."""

    words: tuple[str, ...]
    assigned: tuple[tuple[str, str], ...] = ()
    outputs: tuple[str, ...] = ()
    piped: bool = False


class _Token(NamedTuple):
    operator: str
    word: str

    @property
    def redirects(self) -> bool:
        return self.operator.lstrip("0123456789") in _REDIRECTS


def script_of(argv: Sequence[str]) -> str | None:
    """Return the script that `sh -c SCRIPT` runs; None where it is none."""
    return shell_text(argv) if argv and PurePosixPath(argv[0]).name in _SHELLS else None


def is_script(head: bytes) -> bool:
    """Return whether a file is a shell's script, by its first line."""
    first = head.partition(b"\n")[0]
    return first.startswith(b"#!") and any(name.encode() in first.split(b"/")[-1] for name in _SHELLS)


def commands(text: str, variables: Mapping[str, str]) -> list[ShellCommand]:
    """Return the simple commands of a script in their order, with the variables that are known replaced."""
    found: list[ShellCommand] = []
    matches = _TOKEN.finditer(text[:_LONGEST].replace("\\\n", "").replace(_BLANK, ""))
    tokens = [_Token(match["operator"] or "", match["word"] or "") for match in matches]
    _run([token for token in tokens if token != ("", "")], dict(variables), found, 0)
    return found


def _replaced(text: str, variables: Mapping[str, str]) -> str:
    # an unknown variable stays as it is, unless it has a default

    def value(match: re.Match[str]) -> str:
        held = variables.get(match[1] or match[2])
        return held if held else match[3] if match[3] is not None else match[0] if held is None else ""

    return _VARIABLE.sub(value, text)[:_LONGEST].replace(_BLANK, "")


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    """Return the word without quotes and with its variables; `_BLANK` stands where it is split."""
    found = ""
    for part in _PART.finditer(word):
        if part["plain"] is not None:
            found += re.sub(r"\s+", _BLANK, _replaced(part["plain"], variables))
        elif part["double"] is not None:
            found += _replaced(_ESCAPED.sub(r"\1", part["double"]), variables)
        else:
            found += part["single"] if part["single"] is not None else part["escaped"]
    return found


def _fields(word: str, variables: Mapping[str, str]) -> list[str]:
    expanded = _expanded(word, variables)
    quoted = word[:1] in ("'", '"')
    return [field for field in expanded.split(_BLANK) if field] or ([""] if quoted else [])


def _run(tokens: Sequence[_Token], variables: dict[str, str], found: list[ShellCommand], depth: int) -> None:
    at, piped = 0, False
    while at < len(tokens) and len(found) < _MOST_COMMANDS:
        end = at
        while end < len(tokens) and (tokens[end].word or tokens[end].redirects):
            end += 1
        if tokens[at].word == "for" and depth < _DEEPEST:
            stop = _end_of_loop(tokens, at)
            _loop(tokens[at:stop], variables, found, depth)
            at, piped = stop, False
            continue
        _simple(tokens[at:end], variables, found, piped=piped)
        piped = end < len(tokens) and tokens[end].operator == "|"
        at = end + 1


def _end_of_loop(tokens: Sequence[_Token], at: int) -> int:
    depth = 0
    for place in range(at, len(tokens)):
        word = tokens[place].word
        depth += (word in ("for", "while", "until")) - (word == "done")
        if word == "done" and depth == 0:
            return place + 1
    return len(tokens)


def _loop(tokens: Sequence[_Token], variables: dict[str, str], found: list[ShellCommand], depth: int) -> None:
    # `for NAME in WORDS; do BODY; done` yields the body with each of the words
    words = [token.word for token in tokens]
    begin = words.index("do") if "do" in words else len(words)
    values = [value for word in words[3:begin] if word for value in _fields(word, variables)]
    for value in values[:_MOST_VALUES]:
        _run(tokens[begin + 1 : -1], {**variables, words[1]: value}, found, depth + 1)


def _simple(tokens: Sequence[_Token], variables: dict[str, str], found: list[ShellCommand], *, piped: bool) -> None:
    # assignments without a command, and those of `export`, hold for what follows
    words: list[str] = []
    assigned: list[tuple[str, str]] = []
    outputs: list[str] = []
    redirected = ""
    for token in tokens:
        if token.operator:
            redirected = token.operator.lstrip("0123456789")
            continue
        fields = _fields(token.word, variables)
        if redirected:
            outputs += fields[:1] if redirected in (">", ">>", "&>") else []
            redirected = ""
            continue
        key, equals, value = _expanded(token.word, variables).replace(_BLANK, " ").partition("=")
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
