"""A drop-in completed by what the unit says: its ExecStart= behind the launcher, its tunables beside ours. Pure.

The lines are taken as they are written, so that variables, specifiers and quotes mean what they meant. What a drop-in
of an earlier time has put before them is taken off.

Source: systemd.service(5), "Command Lines"; systemd.exec(5) on the order of Environment= and EnvironmentFile=.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from hugewise.deployment.program import BY_HAND, LAUNCHER, to_complete
from hugewise.deployment.quoting import unit_environment
from hugewise.model.deployment import DeployedFile

__all__ = ["UnitStart", "completed"]

_TUNABLES = "GLIBC_TUNABLES"
_OWN = "glibc.malloc.hugetlb="
_MAY_EXECUTE = (
    "# The unit says which files may be executed (NoExecPaths=): the launcher, and its library, where it has one."
)
_LIBRARY = tuple(f"-/usr/local/{place}/libhugewise-layout.so" for place in ("bin", "share/hugewise", "lib/hugewise"))
_PREFIXES = re.compile(r"[@:+!|-]*")
_WORD = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\\.|[^\s"'\\])+""")
_LAUNCHED = re.compile(rf"(?:# )?ExecStart=({re.escape(LAUNCHER)} .*? --)(?: |$)")
_GIVEN = re.compile(rf'Environment="{_TUNABLES}=([A-Za-z0-9_.:=-]*)"')


class UnitStart(msgspec.Struct, frozen=True, kw_only=True):
    """How a service of a host is started.

    starts      each ExecStart= as it is written, with the place where it stands
    tunables    its GLIBC_TUNABLES, and `tuned_by` where these stand: in its Environment=, in a file that decides over
                that, or in its command itself, which decides over both
    confined    it may execute certain files alone (NoExecPaths=)
    """

    name: str
    starts: tuple[tuple[str, str], ...] = ()
    tunables: str = ""
    tuned_by: Literal["", "unit", "file", "command"] = ""
    tuned_at: str = ""
    confined: bool = False


def completed(file: DeployedFile, unit: UnitStart) -> DeployedFile:
    """The drop-in for that unit, whose own words it has; any other file as it is."""
    if file.kind != "unit":
        return file
    made, needs = list(_tuned(file.content.split("\n"), unit)), list(file.needs)
    at = next((at for at, line in enumerate(made) if _LAUNCHED.match(line)), None)
    if at is not None:
        launch = _LAUNCHED.match(made[at])
        assert launch is not None
        before = _comments_above(made, at)
        needs = [need for need in needs if need != BY_HAND]
        try:
            made[before : at + 1] = _started(launch[1], unit)
        except ValueError as error:
            told = f"{unit.name} of this host could not be taken as it is: {error}."
            made[before : at + 1] = [f"# {line}" for line in (told, *to_complete(launch[1]))]
            needs = [BY_HAND, *needs]
    return msgspec.structs.replace(file, content="\n".join(made), needs=tuple(needs))


def _started(launch: str, unit: UnitStart) -> list[str]:
    """The unit's own commands behind the launcher. Raises ValueError where that cannot be."""
    made = [line for place, text in unit.starts for line in _launched(launch, place, text)]
    if not made:
        raise ValueError("it has no ExecStart=")
    places = "; ".join(place for place, _ in unit.starts)
    head = f"# The unit's own ExecStart= ({places}) behind the launcher; the list is emptied first."
    more = [_MAY_EXECUTE, f"ExecPaths={LAUNCHER} {' '.join(_LIBRARY)}"] if unit.confined else []
    return [head, "ExecStart=", *made, *more]


def _comments_above(lines: list[str], at: int) -> int:
    """Where what belongs to the line begins: the comments above it, and the line that empties the list."""
    while at and (lines[at - 1].startswith("#") or lines[at - 1] == "ExecStart="):
        at -= 1
    return at


def _launched(launch: str, place: str, text: str) -> list[str]:
    """An ExecStart= with the launcher before each of its commands. Raises ValueError where that cannot be."""
    if "\N{REPLACEMENT CHARACTER}" in text or not text.isprintable():
        raise ValueError(f"{place} has characters that cannot be printed")
    found, words = [], _words(text, place)
    for command in _commands(words):
        prefix = _PREFIXES.match(command[0])
        assert prefix is not None
        marks, first = prefix[0], command[0][prefix.end() :]
        if "|" in marks or not first:
            raise ValueError(f"{place}: a shell runs it, behind which the launcher stands for nothing")
        called, rest = "", command[1:]
        if "@" in marks:
            if not rest:
                raise ValueError(f"{place}: `@` stands before one word alone")
            called, rest = f"--argv0 {rest[0]} ", rest[1:]
        whole = [first, *rest]
        if first.strip("\"'") == LAUNCHER and "--" in whole:  # of a drop-in that was put there before
            whole = whole[whole.index("--") + 1 :]
        options = f"{launch.removesuffix('--')}{called}--"
        found.append(f"ExecStart={marks.replace('@', '')}{options} {' '.join(whole)}")
    return found


def _words(text: str, place: str) -> list[str]:
    """The words of a value, each as it is written."""
    found = [match[0] for match in _WORD.finditer(text)]
    if re.sub(r"\s", "", "".join(found)) != re.sub(r"\s", "", text):
        raise ValueError(f"{place}: its quotes do not match")
    return found


def _commands(words: list[str]) -> Iterator[list[str]]:
    """The commands between lone semicolons."""
    command: list[str] = []
    for word in [*words, ";"]:
        if word != ";":
            command.append(word)
        elif command:
            yield command
            command = []


def _tuned(lines: list[str], unit: UnitStart) -> Iterator[str]:
    """The lines; GLIBC_TUNABLES is one list, in which the unit may have others."""
    others = [each for each in unit.tunables.split(":") if each and not each.startswith(_OWN)]
    for line in lines:
        ours = _GIVEN.fullmatch(line)
        if ours is None or not others:
            yield line
            continue
        parts = [each for each in ours[1].split(":") if each not in others]
        if unit.tuned_by != "unit":
            what = "its EnvironmentFile=" if unit.tuned_by == "file" else "its ExecStart="
            yield f"# {what} sets {_TUNABLES} ({unit.tuned_at}), which decides over this: add {':'.join(parts)} there."
        yield f"Environment={unit_environment(_TUNABLES, ':'.join([*others, *parts]))}"
