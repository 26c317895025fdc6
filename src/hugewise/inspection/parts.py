"""The mappings of a process as `hugewise inspect` tells them, from the probe's scan and smaps. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from hugewise.inspection.backing import Key, by_smaps, cells, kind_of, large, shown, whole_of
from hugewise.inspection.inspected import (
    KernelStatistics,
    KindBacked,
    LostBacking,
    MappingInspected,
    MappingKind,
)
from hugewise.inspection.look import Look
from hugewise.inspection.rules import Rules
from hugewise.inspection.shared import again
from hugewise.inspection.smaps import BackedMapping
from hugewise.inspection.why import lost_backing
from hugewise.machine.folios import FoliosOfMapping, MappedFolios

__all__ = ["BackedPart", "kinds", "leave_out_again", "parts_of"]


class BackedPart(msgspec.Struct):
    """A mapping of a process, with what backs it, and that as far as it is counted here and not elsewhere.

    cells  bytes by kind of page, folio size and state; once: without what was counted before
    zero   reads as zero, and has no memory; None: not known
    """

    told: MappingInspected
    cells: Counter[Key]
    once: Counter[Key]
    zero: int | None


def parts_of(
    pid: int, look: Look | None, folios: MappedFolios | None, rules: Rules, statistics: KernelStatistics
) -> list[BackedPart]:
    """The mappings of a process. What the probe found and what smaps said are of two moments: of a mapping that smaps
    did not have, nothing is said of why.
    """
    disabled = look.thp_disabled if look is not None else None
    smaps = {each.start: each for each in look.mappings} if look is not None else {}

    def lost(each: BackedMapping | None, larger: int | None, whole: int | None) -> LostBacking | None:
        return None if each is None else lost_backing(each, larger, whole, rules, statistics, disabled=disabled)

    def told(each: FoliosOfMapping | BackedMapping, found: Counter[Key], **more: Any) -> MappingInspected:
        return MappingInspected(
            pid=pid,
            start=f"{each.start:x}",
            end=f"{each.end:x}",
            permissions=each.permissions,
            kind=kind_of(each.name, each.permissions, each.inode, [page for page, _, _ in found]),
            name=each.name,
            bytes=found.total(),
            large=large(found, rules.base),
            swapped=each.swapped,
            sizes=shown(found),
            **more,
        )

    def by_probe(each: FoliosOfMapping) -> BackedPart:
        found, mine = cells(each.bytes), smaps.get(each.start)
        anonymous = sum(size for (page, of, _), size in found.items() if page == "anon" and (of or 0) > rules.base)
        larger = large(found, rules.base) if mine is not None and mine.is_shmem else anonymous
        of_probe = told(
            each,
            found,
            whole=each.whole,
            nodes=dict(each.nodes) or None,
            eligible=None if mine is None else mine.eligible,
            advised=None if mine is None else _advised(mine),
            lost=lost(mine, larger, each.whole),
        )
        return BackedPart(of_probe, found, cells(each.bytes, each.again), each.zero)

    def by_text(each: BackedMapping) -> BackedPart:
        found = by_smaps(each, rules, disabled=disabled)
        of_smaps = told(
            each,
            found,
            whole=None,
            nodes=None,
            eligible=each.eligible,
            advised=_advised(each),
            lost=lost(each, large(found, rules.base), None),
        )
        return BackedPart(of_smaps, found, found, None)

    if folios is None:
        return [by_text(each) for each in smaps.values()]
    return [by_probe(each) for each in folios.mappings]


def _advised(smaps: BackedMapping) -> Literal["huge", "base"] | None:
    return "huge" if "hg" in smaps.flags else "base" if "nh" in smaps.flags else None


def leave_out_again(looks: Sequence[Look], parts: Sequence[Sequence[BackedPart]]) -> None:
    """Have shared mappings that are wholly counted elsewhere count nothing: smaps names what they are of."""
    elsewhere = again(looks)
    for look, mine in zip(looks, parts, strict=True):
        ranges = elsewhere.get(look.pid, [])
        for part in mine:
            start, end = int(part.told.start, 16), int(part.told.end, 16)
            covered = sum(max(0, min(end, to) - max(start, at)) for at, to in ranges)
            if part.told.permissions.endswith("s") and covered >= end - start:
                part.once = Counter()


def kinds(parts: Iterable[BackedPart], base: int) -> Iterator[KindBacked]:
    """The kinds of mappings, the one with most memory first."""
    by_kind: dict[MappingKind, list[BackedPart]] = {}
    for part in parts:
        by_kind.setdefault(part.told.kind, []).append(part)
    made = [_kind(kind, several, base) for kind, several in by_kind.items()]
    yield from sorted(made, key=lambda one: -one.bytes)


def _kind(kind: MappingKind, parts: Sequence[BackedPart], base: int) -> KindBacked:
    found = whole_of(part.once for part in parts)
    lost = [part.told.lost.bytes for part in parts if part.told.lost is not None]
    known = [each for each in lost if each is not None]
    zero = [part.zero for part in parts if part.zero is not None]
    return KindBacked(
        kind=kind,
        mappings=len(parts),
        bytes=found.total(),
        large=large(found, base),
        swapped=sum(part.told.swapped for part in parts),
        zero=sum(zero) if len(zero) == len(parts) else None,
        missing=sum(known) if len(known) == len(lost) else None,
        sizes=shown(found),
    )
