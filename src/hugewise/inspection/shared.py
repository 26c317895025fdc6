"""What backs several processes together: memory that they share, or that one maps twice, is counted once.

The kernel names what stands behind shared memory by a device and an inode; parts of it at the same offsets are the same
pages, whoever maps them. Else some pages that many map would outweigh what each has for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from hugewise.inspection.look import Look
from hugewise.inspection.smaps import BackedMapping

__all__ = ["again", "coverage_once"]

Range = tuple[int, int]
Scan = Callable[[int, list[Range]], Mapping[str, int]]


def coverage_once(looks: Sequence[Look], scan: Scan) -> dict[str, int]:
    """Bytes by `kind:page size` of all that was looked at. `scan` finds those of ranges of a process.

    Raises what `scan` does.
    """
    found: Counter[str] = Counter()
    for one in looks:
        found.update(one.coverage)
    for pid, ranges in again(looks).items():
        found.subtract(scan(pid, ranges))
    return {key: size for key, size in sorted(found.items()) if size > 0}


def again(looks: Sequence[Look]) -> dict[int, list[Range]]:
    """By process, the ranges of addresses whose memory is counted elsewhere: where most of it is resident."""
    objects: dict[tuple[str, int], list[tuple[int, BackedMapping]]] = {}
    for one in looks:
        for mapping in one.mappings:
            if mapping.object is not None and _backed(mapping):
                objects.setdefault(mapping.object, []).append((one.pid, mapping))
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
    """The same without overlaps."""
    joined: list[Range] = []
    for start, end in sorted(parts):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined
