"""Servers that take pages of a pool by an option of their own: which a command starts, and its words with the option.

PostgreSQL and MariaDB map their largest memory themselves, where no tunable of malloc's reaches: `huge_pages` and
`huge_page_size`, `large-pages`. The option is put behind the server's name, which may stand in the text of a shell, too
(`sh -c "initdb ... && exec postgres -D ..."`): wherever it is the only one of that name that a command has. Pure.

Sources: PostgreSQL, "Resource Consumption" (huge_pages; huge_page_size, since 14); MariaDB, "Memory Allocation" and
"mariadbd Options" (those that begin with --defaults stand first).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from hugewise.deployment import configuration
from hugewise.model.policy import DeployedFile

OwnServer = Literal["postgresql", "mariadb"]

_PROGRAMS: Mapping[OwnServer, str] = {"postgresql": r"postgres", "mariadb": r"(?:mariadbd|mysqld)"}
_BEFORE, _BEHIND = r"(?:^|(?<=[\s;&|(\"']))(?:/[\w.+/-]*/)?", r"(?=\s|$)"
_FIRST = re.compile(r"(?:\s+--(?:no-defaults|print-defaults|defaults-[\w-]+)(?:=\S*)?)*")
_SPELLED: Mapping[OwnServer, tuple[str, ...]] = {
    "postgresql": ("huge_pages", "huge_page_size"),
    "mariadb": ("large-pages", "large_pages", "skip-large-pages"),
}


class _Place(msgspec.Struct, frozen=True):
    kind: OwnServer
    word: int
    begin: int
    end: int


def server_of(words: Sequence[str]) -> OwnServer | None:
    """Return the server that a command starts; None where it is none of these, or where that is not plain."""
    place = _place(words)
    return None if place is None else place.kind


def server_kind(words: Sequence[str]) -> str:
    """Return the server's name as the command has it; empty where that is not plain."""
    place = _place(words)
    return "" if place is None else words[place.word][place.begin : place.end]


def literals(words: Sequence[str], names: str) -> tuple[str, ...]:
    """Return the server's literal options `--NAME=VALUE` whose name the pattern matches, in order."""
    place = _place(words)
    if place is None:
        return ()
    own = re.split(r"[;&|\n()]", words[place.word][place.end :])[0].split()
    every = own if own else words[place.word + 1 :]
    return tuple(each for each in every if re.fullmatch(rf"--(?:{names})(?:=[^$`{{}}]*)?", each))


def _place(words: Sequence[str]) -> _Place | None:
    places = []
    for number, word in enumerate(words):
        for kind, name in _PROGRAMS.items():
            behind = _BEHIND if re.search(r"\s", word) else "$"
            places += [
                _Place(kind, number, match.start(), match.end()) for match in re.finditer(_BEFORE + name + behind, word)
            ]
    return places[0] if len(places) == 1 else None


def with_option(words: Sequence[str], size: int) -> tuple[str, ...] | str:
    """Return the words of a command by which its server takes pages of `size` bytes, or why it cannot."""
    place = _place(words)
    if place is None:
        return "where the server's options stand in its command is not plain"
    if named := next((each for each in _SPELLED[place.kind] if any(each in word for word in words)), None):
        return f"its command says {named} itself"
    if place.kind == "postgresql":
        options = ["-c", "huge_pages=on", "-c", f"huge_page_size={size >> 10}kB"]
    else:
        options = ["--large-pages"]
    return _put(words, place, options)


def without_pool(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command whose server takes no pool pages: PostgreSQL does by default (huge_pages = try)."""
    place = _place(words)
    if place is None or place.kind != "postgresql" or any("huge_pages" in word for word in words):
        return tuple(words)
    return _put(words, place, ["-c", "huge_pages=off"])


def _put(words: Sequence[str], place: _Place, options: Sequence[str]) -> tuple[str, ...]:
    word = words[place.word]
    if place.end == len(word):  # a word of its own: those that must stand first are words behind it
        first = place.word + 1
        while first < len(words) and _FIRST.fullmatch(f" {words[first]}"):
            first += 1
        return (*words[:first], *options, *words[first:])
    match = _FIRST.match(word, place.end)
    at = place.end if match is None else match.end()
    return (*words[: place.word], f"{word[:at]} {' '.join(options)}{word[at:]}", *words[place.word + 1 :])


def files(kind: OwnServer, size: int) -> tuple[DeployedFile, ...]:
    """Return the server's configuration with that option."""
    if kind == "postgresql":
        return (configuration.postgresql({"huge_pages": "on", "huge_page_size": f"{size >> 10}kB"}),)
    return (configuration.mariadb(large=True),)
