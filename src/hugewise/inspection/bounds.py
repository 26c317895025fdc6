"""What a sample of processes' blocks says of all of them, with its bounds. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hugewise.inspection.backing import Key, cells, kind_of
from hugewise.inspection.inspected import KindBacked, MappingKind, PageKind, SampleBounds, SizeBacked
from hugewise.machine.folios import FoliosOfMapping, MappedFolios
from hugewise.stats.without_replacement import finite_mean

__all__ = ["bounds_of", "estimated", "estimated_kinds"]

_STATES = ("pmd", "aligned", "unaligned", "partial")
_Blocks = list[Counter[Key]]
_Row = tuple[PageKind, int | None]


def bounds_of(folios: Sequence[MappedFolios], seed: int, confidence: float) -> SampleBounds | None:
    """How much was looked at; None where all of each process was, as it has no more blocks than were asked for."""
    sampled = [one.sampled for one in folios if one.sampled is not None]
    if not sampled:
        return None
    each = _each(folios, confidence)
    nothing = (finite_mean([0.0] * len(one.drawn), one.population, each).high for one in sampled)
    unseen = sum(one.population * one.block * high for one, high in zip(sampled, nothing, strict=True))
    return SampleBounds(
        drawn=sum(len(one.drawn) for one in sampled),
        population=sum(one.population for one in sampled),
        block=max(one.block for one in sampled),
        seed=seed,
        confidence=confidence,
        unseen=round(unseen),
    )


def _each(folios: Sequence[MappedFolios], confidence: float) -> float:
    """The confidence of each process's interval, so that their sum has the asked one (Bonferroni)."""
    return 1 - (1 - confidence) / max(1, sum(one.sampled is not None for one in folios))


def estimated(
    folios: Sequence[MappedFolios], confidence: float, kind: MappingKind | None = None
) -> tuple[SizeBacked, ...]:
    """Rows as of a whole look, each with an interval that holds by itself. `kind`: of such mappings alone."""
    blocks = [_blocks(one, kind) for one in folios]
    rows = {(page, size) for several in blocks for found in several for page, size, _ in found}
    made = [_row(row, folios, blocks, _each(folios, confidence)) for row in rows]
    return tuple(sorted(made, key=lambda one: (-one.bytes, one.pages, one.size or 0)))


def estimated_kinds(folios: Sequence[MappedFolios], confidence: float, base: int) -> tuple[KindBacked, ...]:
    """By kind of mapping. What is in swap, and what is missing, a sample does not say."""
    counts = Counter(_kind(mapping) for one in folios for mapping in one.mappings if mapping.bytes)
    found = []
    for kind, mappings in counts.items():
        sizes = estimated(folios, confidence, kind)
        large = sum(one.bytes for one in sizes if one.size is not None and one.size > base)
        total = sum(one.bytes for one in sizes)
        found.append(KindBacked(kind=kind, mappings=mappings, bytes=total, large=large, sizes=sizes))
    return tuple(sorted(found, key=lambda one: -one.bytes))


def _blocks(one: MappedFolios, kind: MappingKind | None) -> _Blocks:
    """What is in each block that was drawn; of a process that was looked at as a whole, all of it as one."""
    wanted = [kind is None or _kind(mapping) == kind for mapping in one.mappings]
    if one.sampled is None:
        whole: Counter[Key] = Counter()
        for mapping, is_wanted in zip(one.mappings, wanted, strict=True):
            whole.update(cells(mapping.bytes) if is_wanted else {})
        return [whole]
    return [cells(each.bytes) if wanted[each.mapping] else Counter() for each in one.sampled.drawn]


def _row(row: _Row, folios: Sequence[MappedFolios], blocks: Sequence[_Blocks], each: float) -> SizeBacked:
    """A kind of page and a size, over all processes."""
    pages, size = row
    states = dict.fromkeys(_STATES, 0.0)
    low = high = 0.0
    for one, several in zip(folios, blocks, strict=True):
        sums = [list(_of_row(found, row)) for found in several]
        scale = 1.0 if one.sampled is None else one.sampled.population / len(several)
        for found in sums:
            for state, bytes_ in found:
                states[state] += bytes_ * scale
        totals = [sum(bytes_ for _, bytes_ in found) for found in sums]
        if one.sampled is None:
            low, high = low + sum(totals), high + sum(totals)
            continue
        whole = one.sampled.population * one.sampled.block
        mean = finite_mean([total / one.sampled.block for total in totals], one.sampled.population, each)
        low, high = low + mean.low * whole, high + mean.high * whole
    return SizeBacked(
        pages=pages,
        size=size,
        bytes=round(sum(states.values())),
        low=round(low),
        high=round(high),
        **{state: round(states[state]) for state in _STATES},
    )


def _of_row(found: Counter[Key], row: _Row) -> Iterator[tuple[str, int]]:
    return ((key[2], bytes_) for key, bytes_ in found.items() if (key[0], key[1]) == row)


def _kind(one: FoliosOfMapping) -> MappingKind:
    return kind_of(one.name, one.permissions, one.inode, [page for page, _, _ in cells(one.bytes)])
