"""Why a mapping is in base pages that could be in larger ones, and what cures it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hugewise.inspection.inspected import KernelStatistics, LostBacking
from hugewise.inspection.kernel_counts import evidence
from hugewise.inspection.reasons import ReasonId, class_of, sentence
from hugewise.inspection.rules import Rules
from hugewise.inspection.smaps import BackedMapping
from hugewise.model.pages import THP
from hugewise.quantity import format_duration, format_size, readable_size

__all__ = ["lost_backing", "together"]

_SHMEM_ON = ("always", "within_size", "advise", "force")


def lost_backing(
    mapping: BackedMapping,
    larger: int | None,
    whole: int | None,
    rules: Rules,
    statistics: KernelStatistics,
    *,
    disabled: bool | None,
) -> LostBacking | None:
    """None where nothing of it could be in larger pages.

    `larger` is in folios above the base size (None: not known), `whole` in blocks of the PMD size that are touched
    throughout and not mapped as one (None: not known).
    """
    if mapping.pool:
        return None
    if mapping.is_shmem:
        return _shared(mapping, larger, rules)
    if not mapping.anonymous:
        return None  # of a file: the page cache decides, not the rules of anonymous memory
    offered = _offered(mapping, rules, disabled=disabled)
    size = max(offered, default=rules.pmd or max(rules.sizes, default=0))
    if not size:
        return None
    had = mapping.huge if larger is None else larger
    if not (room := mapping.room(min(offered, default=size))):
        small = max(0, mapping.anonymous - had)
        return _lost("too-small", size, small) if small >= size else None
    missing = max(0, min(mapping.anonymous, room) - had)
    # Where sizes between are on, smaps does not say what has them.
    known = larger is not None or not [one for one in offered if one != rules.pmd]
    if missing < min(offered, default=size):
        return None
    why = class_of(mapping, rules, size, disabled=disabled)
    if why != "eligible-not-backed":
        return _lost(why, size, missing if known else None)
    return _pending(size, missing if known else None, whole, rules, evidence(statistics, offered))


def _offered(mapping: BackedMapping, rules: Rules, *, disabled: bool | None) -> list[int]:
    """The sizes that the rules give this mapping, where it has room for one."""
    if disabled or "nh" in mapping.flags:
        return []
    advised = "hg" in mapping.flags
    given = (size for size, mode in rules.sizes.items() if mode == "always" or (mode == "madvise" and advised))
    return [size for size in given if mapping.room(size)]


def _lost(name: ReasonId, size: int, much: int | None) -> LostBacking:
    one = sentence(name, size, much)
    return LostBacking(id=one.id, size=size, bytes=much, text=one.text, cure=one.cure)


def _pending(size: int, much: int | None, whole: int | None, rules: Rules, counted: str | None) -> LostBacking:
    """The rules allow it larger pages, and it has none: khugepaged may still give them."""
    named = format_size(size)
    said = [f"{'memory' if much is None else readable_size(much)} is eligible for pages of {named}, and has none"]
    if whole is not None and size == rules.pmd:
        said.append(f"{readable_size(min(whole, much or whole))} of it in blocks that are touched throughout")
    daemon, pace = rules.khugepaged, rules.khugepaged.pace(rules.base)
    cure = "have it advised before it is touched, or start the program again"
    if size != rules.pmd:
        said.append("khugepaged makes pages of that size only where this kernel's can")
    elif daemon.pages_to_scan == 0:
        said.append("khugepaged, which could still make them, is off (pages_to_scan is 0)")
    elif pace is not None and much is not None:
        said.append(f"khugepaged needs {format_duration(much / pace)} for it at the earliest")
        cure = f"wait for khugepaged, or raise {THP}/khugepaged/pages_to_scan; {cure}"
    return LostBacking(
        id="eligible-not-backed", size=size, bytes=much, text="; ".join(said), cure=cure, evidence=counted
    )


def _shared(mapping: BackedMapping, larger: int | None, rules: Rules) -> LostBacking | None:
    """Shared memory goes by rules of its own."""
    resident = max(0, mapping.resident - mapping.anonymous)
    missing = resident - (mapping.shared_huge if larger is None else larger)
    size = rules.pmd
    if size is None or missing < size or not mapping.room(size):
        return None
    mode = rules.shared.get(size, "never")
    if mode in _SHMEM_ON:
        text = f"{readable_size(missing)} of shared memory has no larger pages, though {format_size(size)} is {mode}"
        text += ": it was touched before that, its file is too small, or nobody advised it"
        return LostBacking(id="shared-memory", size=size, bytes=missing, text=text, cure=None)
    return LostBacking(
        id="shared-memory",
        size=size,
        bytes=missing,
        text=f"{readable_size(missing)} is shared memory, for which pages of {format_size(size)} are set to {mode}",
        cure=f"as root: echo always > {THP}/shmem_enabled",
    )


def together(lost: Iterable[LostBacking]) -> list[LostBacking]:
    """Each reason once, over all mappings, the most memory first."""
    sums: dict[tuple[str, int | None], LostBacking] = {}
    for one in lost:
        key = (one.id, one.size)
        if (found := sums.get(key)) is None:
            sums[key] = one
            continue
        much = None if one.bytes is None or found.bytes is None else found.bytes + one.bytes
        sums[key] = msgspec.structs.replace(found, bytes=much, text=_again(found, much))
    return sorted(sums.values(), key=lambda one: -(one.bytes or 0))


def _again(one: LostBacking, much: int | None) -> str:
    """Its sentence with the sum in place of its own bytes; what was said of the one mapping alone is left out."""
    own = "memory" if one.bytes is None else readable_size(one.bytes)
    first = one.text.partition("; ")[0] if one.id == "eligible-not-backed" else one.text
    return ("memory" if much is None else readable_size(much)) + first.removeprefix(own)
