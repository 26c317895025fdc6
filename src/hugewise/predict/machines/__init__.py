"""Described machines: their TLBs and page-walk caches, one TOML file each.

    names()          ("golden-cove", "neoverse-n1", ...)
    load("zen-5")    one of them

`[granule.NAME]` has the levels of the page table, as the powers of two that an entry of each covers, and for each but
the last the entries of its page-walk cache. `[[page]]` is a size of pages, backed by one granule: what an entry of each
level of the TLB covers, and how many entries it has. Pages of one name and granule are variants of what no source says;
the answer is a band over them.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from hugewise import reading
from hugewise.errors import UserError
from hugewise.quantity import parse_size

DEFAULT = ("zen-5", "golden-cove", "neoverse-n1")
"""Sixteen configurations together: pages of x86 and of arm64."""


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where figures stand, and which. `read`: they were compared with it; else they are as others cite them. `assumed`:
    figures that no source gives.
    """

    text: str
    says: str
    url: str = ""
    read: bool = False
    assumed: bool = False


class Granule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The page table of a base page: see the module."""

    walk: tuple[int, ...]
    cached: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.cached) + 1 != len(self.walk) or sorted(self.walk, reverse=True) != list(self.walk):
            raise ValueError(
                "walk falls from the root to the leaf, and cached has an entry for each level but the last"
            )


class First(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A first level: bytes that an entry covers, and entries."""

    entry: str
    entries: int


class Second(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A second level: bytes that an entry covers, sets, and ways of a set."""

    entry: str
    sets: int
    ways: int


class Page(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory in pages of `size` on a kernel whose base page is `granule`. `policy`: that of hugewise for such pages."""

    name: str
    policy: str
    granule: str
    size: str
    l1: First
    l2: Second | None = None

    @property
    def bytes(self) -> int:
        """The size in bytes."""
        return parse_size(self.size)


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A described machine."""

    title: str
    architecture: Literal["x86-64", "arm64"]
    source: tuple[Source, ...]
    granule: dict[str, Granule]
    page: tuple[Page, ...]

    def configuration(self, page: Page) -> dict[str, object]:
        """Return the page as the plugin is asked for it: powers of two instead of bytes."""
        granule, size = self.granule[page.granule], _power(page.size)
        # A walk ends at the first level whose entry maps no more than the page: contiguous entries are read one by one.
        levels = next(at for at, each in enumerate(granule.walk, 1) if each <= size)
        l2 = page.l2 and {"shift": _power(page.l2.entry), "sets": page.l2.sets, "ways": page.l2.ways}
        return {
            "l1": {"shift": _power(page.l1.entry), "entries": page.l1.entries},
            "l2": l2,
            "walk": granule.walk[:levels],
            "cached": granule.cached[: levels - 1],
        }


def _power(size: str) -> int:
    return parse_size(size).bit_length() - 1


@cache
def names() -> tuple[str, ...]:
    """Return the names of all described machines."""
    files = (file.name for file in resources.files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


@cache
def load(name: str) -> Machine:
    """Return the machine of that name. Raises UserError."""
    if name not in names():
        raise UserError(f"--machine {name}: no such machine is described", hint=f"name one of {', '.join(names())}")
    text = resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return msgspec.convert(reading.toml(text), Machine)
