"""Kernel configurations and the fragments that ask for them: read, merged, checked, compared. Pure.

A configuration (.config) and a fragment have the same form: `CONFIG_NET=y`, `# CONFIG_SWAP is not set`. A symbol that
is not in a configuration cannot be chosen there, which is the same as that it is not set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

__all__ = ["NO", "SymbolDifference", "base_page", "differing", "merged", "parse", "together", "unmet"]

NO = "n"

_SET = re.compile(r"CONFIG_(?P<symbol>\w+)=(?P<value>.*)")
_NOT_SET = re.compile(r"# CONFIG_(?P<symbol>\w+) is not set")
_PAGES = (("ARM64_64K_PAGES", 65536), ("ARM64_16K_PAGES", 16384))


class SymbolDifference(msgspec.Struct, frozen=True):
    """A symbol that two configurations set differently; `n`: it is not set, or not there."""

    symbol: str
    first: str
    second: str


def parse(text: str) -> dict[str, str]:
    """The symbols of a configuration or a fragment without `CONFIG_`, as they are written; `n` for those not set.

    Where one stands several times, the last counts. Raises ValueError naming a line that is neither.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if (match := _SET.fullmatch(stripped)) is not None:
            found[match["symbol"]] = match["value"]
        elif (match := _NOT_SET.fullmatch(stripped)) is not None:
            found[match["symbol"]] = NO
        elif stripped and not stripped.startswith("#"):
            raise ValueError(f"line {number}: {stripped!r} is neither CONFIG_X=... nor # CONFIG_X is not set")
    return found


def together(fragments: Iterable[str]) -> dict[str, str]:
    """What fragments ask for: where two name a symbol, the later one counts. Raises ValueError."""
    asked: dict[str, str] = {}
    for fragment in fragments:
        asked.update(parse(fragment))
    return asked


def merged(base: str, fragments: Iterable[str]) -> str:
    """A configuration for `make olddefconfig`: the base, without what the fragments say, and then what they say."""
    asked = together(fragments)
    kept = [f"CONFIG_{symbol}={value}" for symbol, value in parse(base).items() if symbol not in asked]
    return "\n".join((*kept, *(f"CONFIG_{symbol}={value}" for symbol, value in asked.items()))) + "\n"


def unmet(fragments: Iterable[str], config: str) -> list[SymbolDifference]:
    """What the fragments ask for, later ones overriding earlier ones, and the configuration does not have.

    `first` is what was asked. A symbol is dropped silently by the kernel's own tools where what it depends on is not
    there, or where it was renamed.
    """
    there = parse(config)
    return [
        SymbolDifference(symbol, value, there.get(symbol, NO))
        for symbol, value in together(fragments).items()
        if there.get(symbol, NO) != value
    ]


def differing(first: str, second: str) -> list[SymbolDifference]:
    """The symbols, in their alphabet, that two configurations set differently; another compiler is among them."""
    one, other = parse(first), parse(second)
    return [
        SymbolDifference(symbol, one.get(symbol, NO), other.get(symbol, NO))
        for symbol in sorted(one.keys() | other.keys())
        if one.get(symbol, NO) != other.get(symbol, NO)
    ]


def base_page(config: Mapping[str, str]) -> int:
    """Bytes of a base page under a parsed configuration of x86-64 or arm64."""
    return next((size for symbol, size in _PAGES if config.get(symbol) == "y"), 4096)
