"""What Debian packages will take, before they are fetched: by the lists that are in the cache, if they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from hugewise import reading
from hugewise.errors import HugewiseError
from hugewise.guests import debian
from hugewise.guests.debian import Package

__all__ = ["Foreseen", "foreseen", "to_fetch", "unpacked_bytes"]

_UNPACKED: Final = re.compile(
    r"^After this operation, (?P<number>\d[\d,]{0,9}(\.\d)?) (?P<unit>[kMGT]?)B of additional", re.M
)
_UNITS: Final[Mapping[str, int]] = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class Foreseen(NamedTuple):
    """What packages take with all that they need: those, and bytes when they are unpacked (None: apt did not say)."""

    packages: tuple[Package, ...]
    unpacked: int | None


def foreseen(packages: Sequence[str], suite: str, arch: str) -> Foreseen | None:
    """What `packages` take; None where the lists are not there, or do not have them. Nothing is fetched."""
    try:
        said = debian.listed(packages, suite, arch)
    except HugewiseError:  # who has them fetched is told why not
        return None
    return None if said is None else Foreseen(tuple(debian.parse_uris(said, (suite, arch))), unpacked_bytes(said))


def to_fetch(packages: Iterable[Package]) -> int:
    """Bytes of those that are not in the cache."""
    return sum(each.size for each in packages if not debian.kept(each))


def unpacked_bytes(text: str) -> int | None:
    """Bytes that `apt-get install` says its packages take on a disk; None where it does not. Pure."""
    found = _UNPACKED.search(text)
    if found is None:
        return None
    return round(reading.figure(found["number"].replace(",", ""), "what apt needs", low=0) * _UNITS[found["unit"]])
