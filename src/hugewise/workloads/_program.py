"""Programs that a workload needs: in the usual folders too, and each missing one with its package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from hugewise import unprivileged
from hugewise.errors import HugewiseError
from hugewise.machine import programs as places
from hugewise.model.workload import Missing

__all__ = ["find", "named", "not_on_path", "said"]

# Where Debian puts daemons and games, and people what they have built: a user's PATH, or root's, may have none of it.
_USUAL = ("/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/usr/games", "/usr/local/games")


def find(name: str, *more: str) -> str | None:
    """The path of a program, on PATH or in the usual folders and `more`; None where there is none."""
    return places.which(name, *_USUAL, *more)


@lru_cache
def said(*argv: str) -> str | None:
    """What a program of this host says of itself, without its last line's end; None where it fails.

    A study names it, or PATH: under root the unprivileged account asks it.
    """
    try:
        done = unprivileged.run(argv)
    except HugewiseError:
        return None
    return done.stdout.strip() if done.status == 0 else None


def not_on_path(programs: Iterable[tuple[str, str]]) -> Iterator[Missing]:
    """What is lacking of programs that are run by their bare names: each with its Debian package."""
    for name, package in programs:
        if places.which(name) is None:
            yield Missing(f"{name}: no such program on PATH", package)


def named(programs: Iterable[str]) -> tuple[Missing, ...]:
    """What is lacking of programs that the study names: on this host, or in the image of its guests."""
    lacking = [name for name in programs if places.which(name) is None]
    if places.place() is None:
        return tuple(Missing(f"{name}: no such program on PATH", named=True) for name in lacking)
    where = 'in the guests\' image: name the Debian package that has it, packages = ["..."] in [guest]'
    return tuple(Missing(f"{name}: no such program {where}", named=True) for name in lacking)
