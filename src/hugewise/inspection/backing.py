"""From what the probe or smaps says of a mapping to bytes by folio size, kind and state. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hugewise.inspection.inspected import MappingKind, PageKind, SizeBacked
from hugewise.inspection.rules import Rules
from hugewise.inspection.smaps import BackedMapping

__all__ = ["Key", "by_smaps", "cells", "kind_of", "large", "shown", "whole_of"]

Key = tuple[PageKind, int | None, str]
"""A kind of page, a folio's size (None: not known) and a state (`?`: not known)."""

_STATES = ("pmd", "aligned", "unaligned", "partial")
_SHMEM = ("/memfd:", "/SYSV", "/dev/zero (deleted)", "[anon_shmem:")
_PAGES: dict[str, PageKind] = {"anon": "anon", "shmem": "shmem", "file": "file", "hugetlb": "hugetlb"}


def cells(said: Mapping[str, int], without: Mapping[str, int] | None = None) -> Counter[Key]:
    """From the probe's keys; `without` is taken off."""
    found: Counter[Key] = Counter()
    for sign, one in ((1, said), (-1, without or {})):
        for key, size in one.items():
            kind, folio, state = key.split(":")
            found[_PAGES[kind], int(folio), state] += sign * size
    return found


def by_smaps(mapping: BackedMapping, rules: Rules, *, disabled: bool | None) -> Counter[Key]:
    """From smaps, which knows what the PMD maps and what is of a pool; the rest is base pages where nothing else is
    possible, and else not known.
    """
    found: Counter[Key] = Counter()
    found["hugetlb", mapping.page or None, "pmd"] += mapping.pool
    found["anon", rules.pmd, "pmd"] += mapping.huge
    rest = max(0, mapping.anonymous - mapping.huge)
    is_base = bool(disabled) or not rules.on()
    found["anon" if is_base else "unproven", rules.base if is_base else None, "aligned" if is_base else "?"] += rest
    other = max(0, mapping.resident - mapping.anonymous)
    pages: PageKind = "shmem" if mapping.is_shmem else "file"
    mapped = min(other, mapping.shared_huge + mapping.file_huge)
    found[pages, rules.pmd, "pmd"] += mapped
    no_shmem = mapping.is_shmem and all(mode in ("never", "deny") for mode in rules.shared.values())
    key: tuple[PageKind, int | None, str] = ("shmem", rules.base, "aligned") if no_shmem else ("unproven", None, "?")
    found[key] += other - mapped
    return +found


def shown(found: Mapping[Key, int]) -> tuple[SizeBacked, ...]:
    """Rows: a kind of page and a size each, the largest sum first."""
    rows: dict[tuple[PageKind, int | None], Counter[str]] = {}
    for (pages, size, state), bytes_ in found.items():
        rows.setdefault((pages, size), Counter())[state] += bytes_
    made = (_row(pages, size, states) for (pages, size), states in rows.items())
    return tuple(sorted((one for one in made if one.bytes), key=lambda one: (-one.bytes, one.pages, one.size or 0)))


def _row(pages: PageKind, size: int | None, states: Counter[str]) -> SizeBacked:
    known = "?" not in states
    parts = {state: states[state] if known else None for state in _STATES}
    return SizeBacked(pages=pages, size=size, bytes=states.total(), **parts)


def large(found: Mapping[Key, int], base: int) -> int | None:
    """Bytes in folios above the base size; None where some size is not known."""
    if any(size is None and bytes_ for (_, size, _), bytes_ in found.items()):
        return None
    return sum(bytes_ for (_, size, _), bytes_ in found.items() if size is not None and size > base)


def whole_of(parts: Iterable[Mapping[Key, int]]) -> Counter[Key]:
    """Their sum."""
    found: Counter[Key] = Counter()
    for one in parts:
        found.update(one)
    return found


def kind_of(name: str, permissions: str, inode: int, pages: Sequence[PageKind]) -> MappingKind:
    """What a mapping is: by its name and what backs it."""
    if "hugetlb" in pages or name.startswith("/anon_hugepage"):
        return "hugetlb"
    if name == "[heap]":
        return "heap"
    if name.startswith("[stack"):
        return "stack"
    if permissions.endswith("s") and (name.startswith(_SHMEM) or "shmem" in pages):
        return "shmem"
    return "file" if inode or name.startswith("/") else "anonymous"
