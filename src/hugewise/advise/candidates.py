"""Which settings are tried on a program, and which are not and why: rules as data, the narrowest reach first. Pure.

A rule gives a candidate, or the reason why it is none. What a per-process mechanism cannot deliver to a program's
allocator is left out by name (the mechanisms were measured one by one: docs/concepts/advice.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from hugewise.quantity import format_size

__all__ = ["RULES", "CandidateRule", "LeftOutCandidate", "ProgramHere", "Reach", "SettingCandidate", "candidates"]

Reach = Literal["process", "pool", "host"]
"""What a setting changes: the program alone, a pool that is reserved beside it, or every program of the host."""

_SOME = 0.005  # share of memory in huge pages below which there are none to speak of
_MOST = 0.95  # and above which there is nothing left to gain by more of them


class ProgramHere(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules look at.

    root        whether settings of the host can be turned
    mode        of transparent huge pages of the PMD size: always, madvise or never
    top         of the top-level setting, which is what malloc looks at
    pmd         that size in bytes; None on a kernel without them
    mthp        sizes of multi-size THP in bytes, the PMD's not among them
    pools       page sizes of hugetlb pools in bytes
    huge        share of the program's memory in huge pages, as it is; None where it was not seen
    memory      bytes that it had at most, or that its user says it needs; 0 where it is not known
    tuned       whether tunables of glibc reach its allocator (None: not known); `why` not
    """

    root: bool
    mode: str
    top: str
    pmd: int | None
    mthp: tuple[int, ...]
    pools: tuple[int, ...]
    huge: float | None
    memory: int
    tuned: bool | None
    why: str = ""


class SettingCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that is tried. `use` is the policy as a study names it."""

    name: str
    use: str | Mapping[str, Any]
    reach: Reach
    reason: str


class LeftOutCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that is not tried, and why."""

    name: str
    reason: str


class CandidateRule(NamedTuple):
    """`use` of the study, or why there is none; `reason` says what it would be good for."""

    name: str
    reach: Reach
    reason: str
    use: Callable[[ProgramHere], Mapping[str, Any] | str]


def _needs_thp(found: ProgramHere) -> str | None:
    return "the kernel has no transparent huge pages" if found.pmd is None else None


def _off(found: ProgramHere) -> Mapping[str, Any] | str:
    if found.huge is not None and found.huge < _SOME:
        return "the program has base pages already"
    return _needs_thp(found) or {"name": "off", "from": "base", "mechanism": "process"}


def _advised(found: ProgramHere) -> Mapping[str, Any] | str:
    if (why := _needs_thp(found)) or (why := _untuned(found)):
        return why
    if found.mode != "madvise" or found.top != "madvise":
        other = found.mode if found.mode != "madvise" else found.top
        return f"malloc asks for them only where the machine is set to madvise, and here it is set to {other}"
    if found.huge is not None and found.huge > _MOST:
        return "nearly all of its memory is in huge pages already"
    return {"name": "advised", "from": "thp", "mechanism": "process"}


def _untuned(found: ProgramHere) -> str | None:
    return None if found.tuned is not False else f"tunables of malloc do not reach it: {found.why}"


def _pool(found: ProgramHere) -> Mapping[str, Any] | str:
    if found.pmd not in found.pools or found.pmd is None:
        return "the kernel has no pool of pages of that size"
    if (why := _untuned(found)) is not None:
        return why
    if not found.root:
        return "filling a pool needs root"
    if not found.memory:
        return "how much memory it needs is not known: name it with --pool"
    name = f"hugetlb-{format_size(found.pmd)}"
    return {"name": f"pool-{format_size(found.pmd)}", "from": name, "mechanism": "process"}


def _always(found: ProgramHere) -> Mapping[str, Any] | str:
    if (why := _needs_thp(found)) or (why := _of_host(found)):
        return why
    if found.mode == "always":
        return "it is set so already"
    return {"name": "always", "from": "thp", "mechanism": "system"}


def _of_host(found: ProgramHere) -> str | None:
    return None if found.root else "turning a setting of the whole machine needs root"


def _of_64k(found: ProgramHere) -> Mapping[str, Any] | str:
    if 64 << 10 not in found.mthp:
        return "the kernel has no transparent huge pages of 64k"
    return _of_host(found) or {"name": "always-64k", "from": "mthp-64k", "mechanism": "system"}


RULES: Sequence[CandidateRule] = (
    CandidateRule("off", "process", "no transparent huge pages for it, by prctl: less memory, no stalls", _off),
    CandidateRule(
        "advised", "process", "malloc asks for transparent huge pages: fewer faults, shorter page walks", _advised
    ),
    CandidateRule("pool", "pool", "malloc takes huge pages that were reserved for it, from the begin", _pool),
    CandidateRule("always", "host", "transparent huge pages for all memory of all programs", _always),
    CandidateRule(
        "always-64k", "host", "middle-sized pages for all programs: fewer faults, little memory lost", _of_64k
    ),
)


def candidates(found: ProgramHere, most: int) -> tuple[list[SettingCandidate], list[LeftOutCandidate]]:
    """At most so many settings to try, the narrowest reach first, and those that are not tried."""
    tried: list[SettingCandidate] = []
    left: list[LeftOutCandidate] = []
    for rule in RULES:
        use = rule.use(found)
        if isinstance(use, str):
            left.append(LeftOutCandidate(name=rule.name, reason=use))
        elif len(tried) == most:
            left.append(
                LeftOutCandidate(name=rule.name, reason=f"of more than {most}, those that reach least are tried")
            )
        else:
            tried.append(SettingCandidate(name=use["name"], use=use, reach=rule.reach, reason=rule.reason))
    return tried, left
