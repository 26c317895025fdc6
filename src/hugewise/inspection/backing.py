"""Backing of mappings: from the probe's output or smaps to bytes by folio size, kind and state. Pure.

Memory that processes share, or that one maps twice, is counted once. The kernel identifies shared memory by a device
and an inode; parts of it at the same offsets are the same pages. Otherwise a few pages mapped by many processes would
outweigh each one's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from hugewise.inspection.inspected import MappingKind, PageKind, SizeBacked
from hugewise.inspection.look import Look
from hugewise.inspection.rules import Rules
from hugewise.machine.smaps import BackedMapping

Key = tuple[PageKind, int | None, str]
"""A kind of page, a folio's size (None: not known) and a state (`?`: not known)."""

_STATES = ("pmd", "aligned", "unaligned", "partial")
_SHMEM_KINDS = ("/memfd:", "/SYSV", "/dev/zero (deleted)", "[anon_shmem:")
_PAGES: dict[str, PageKind] = {"anon": "anon", "shmem": "shmem", "file": "file", "hugetlb": "hugetlb"}


def cells(said: Mapping[str, int], without: Mapping[str, int] | None = None) -> Counter[Key]:
    """Count bytes from the probe's keys; `without` is subtracted."""
    found: Counter[Key] = Counter()
    for sign, one in ((1, said), (-1, without or {})):
        for key, size in one.items():
            kind, folio, state = key.split(":")
            found[_PAGES[kind], int(folio), state] += sign * size
    return found


def by_smaps(mapping: BackedMapping, rules: Rules, *, disabled: bool | None) -> Counter[Key]:
    """Count bytes from smaps, which knows what the PMD maps and what comes from a pool. The rest is base pages where
    nothing else is possible, and otherwise unknown.
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


def shown_rows(found: Mapping[Key, int]) -> tuple[SizeBacked, ...]:
    """Return rows: a kind of page and a size each, the largest sum first."""
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
    """Return bytes in folios above the base size; None where some size is not known."""
    if any(size is None and bytes_ for (_, size, _), bytes_ in found.items()):
        return None
    return sum(bytes_ for (_, size, _), bytes_ in found.items() if size is not None and size > base)


def whole_of(parts: Iterable[Mapping[Key, int]]) -> Counter[Key]:
    """Return the sum of the counts."""
    found: Counter[Key] = Counter()
    for part in parts:
        found.update(part)
    return found


def kind_of(name: str, permissions: str, inode: int, pages: Sequence[PageKind]) -> MappingKind:
    """Return the kind of a mapping, by its name and its pages."""
    if "hugetlb" in pages or name.startswith("/anon_hugepage"):
        return "hugetlb"
    if name == "[heap]":
        return "heap"
    if name.startswith("[stack"):
        return "stack"
    if permissions.endswith("s") and (name.startswith(_SHMEM_KINDS) or "shmem" in pages):
        return "shmem"
    return "file" if inode or name.startswith("/") else "anonymous"


Range = tuple[int, int]
Scan = Callable[[int, list[Range]], Mapping[str, int]]


def coverage_once(looks: Sequence[Look], scan: Scan) -> dict[str, int]:
    """Return bytes by `kind:page size` of all that was looked at. `scan` finds those of ranges of a process.

    Raises what `scan` does.
    """
    found: Counter[str] = Counter()
    for look in looks:
        found.update(look.coverage)
    for pid, ranges in again(looks).items():
        found.subtract(scan(pid, ranges))
    return {key: size for key, size in sorted(found.items()) if size > 0}


def again(looks: Sequence[Look]) -> dict[int, list[Range]]:
    """Return, by process, ranges whose memory is counted elsewhere: in the process that has most of it resident."""
    objects: dict[tuple[str, int], list[tuple[int, BackedMapping]]] = {}
    for look in looks:
        for mapping in look.mappings:
            if mapping.object is not None and _backed(mapping):
                objects.setdefault(mapping.object, []).append((look.pid, mapping))
    found: dict[int, list[Range]] = {}
    for several in objects.values():
        if len(several) > 1:
            taken: list[Range] = []
            for pid, mapping in sorted(several, key=lambda each: -_backed(each[1])):
                part = (mapping.offset, mapping.offset + mapping.size)
                moved = mapping.start - mapping.offset
                found.setdefault(pid, []).extend((at + moved, to + moved) for at, to in _common(part, taken))
                taken = _joined([*taken, part])
    return {pid: sorted(ranges) for pid, ranges in found.items() if ranges}


def _backed(mapping: BackedMapping) -> int:
    return mapping.resident + mapping.pool


def _common(part: Range, taken: Sequence[Range]) -> Iterator[Range]:
    for start, end in taken:
        if max(start, part[0]) < min(end, part[1]):
            yield max(start, part[0]), min(end, part[1])


def _joined(parts: list[Range]) -> list[Range]:
    """Return the ranges without overlaps."""
    joined: list[Range] = []
    for start, end in sorted(parts):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined
