"""Commands in a file, one a line, for `xargs -L 1`: how several processes are started at once without a shell. Pure.

Source: xargs(1), findutils: arguments are separated by blanks; a backslash takes the next character as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["in_turn", "lines", "one_per_cpu"]

_SPECIAL = re.compile(r"([\s\"'\\])")


def lines(commands: Iterable[Sequence[str]]) -> str:
    """The file's text. Raises ValueError for an argument that no line can hold."""
    written = []
    for command in commands:
        for word in command:
            if "\n" in word or not word:
                raise ValueError(f"{word!r} cannot be an argument in a file for xargs")
        written.append(" ".join(_SPECIAL.sub(r"\\\1", word) for word in command))
    return "".join(f"{line}\n" for line in written)


def in_turn(path: str) -> tuple[str, ...]:
    """The command that runs the commands in the file `path` one after the other, and fails when one of them does."""
    return ("xargs", "-a", path, "-L", "1", "env")


def one_per_cpu(path: str, count: int) -> tuple[str, ...]:
    """The command that runs `count` lines at once, each of which is a CPU and the command that is pinned to it."""
    return ("xargs", "-a", path, "-P", str(count), "-L", "1", "taskset", "-c")
