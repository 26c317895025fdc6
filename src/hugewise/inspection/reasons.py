"""Reasons why memory is not backed as it was promised, each with its bytes and the cure. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from hugewise.inspection.allocator import tunable
from hugewise.inspection.look import Look
from hugewise.inspection.rules import Rules
from hugewise.machine.smaps import BackedMapping
from hugewise.model.pages import HUGETLB, THP, PageTarget
from hugewise.quantity import format_duration, format_size, readable_size

ReasonId = Literal[
    "rules-never",
    "not-advised",
    "eligible-not-backed",
    "disabled-by-itself",
    "except-advised",
    "advised-against",
    "not-eligible",
    "too-small",
    "shared-memory",
    "swapped",
    "other-size",
    "mapped-in-pieces",
    "larger-pages",
    "pool-short",
    "no-pool",
    "tunable-missing",
    "tunable-ignored",
    "tunable-unknown",
    "sizes-unproven",
]
"""Stable: scripts may go by them; docs/reference/missing-pages.md explains each."""


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Reason: an id, a sentence, the bytes concerned (None: not known), and the cure."""

    id: ReasonId
    text: str
    bytes: int | None = None
    cure: str | None = None


_ADVISE = "start it with GLIBC_TUNABLES=glibc.malloc.hugetlb=1, where its memory is glibc's malloc"


def _rest(mapping: BackedMapping) -> int:
    """Return the bytes of anonymous memory in no page of the PMD size."""
    return max(0, mapping.anonymous - mapping.huge)


def class_of(mapping: BackedMapping, rules: Rules, size: int, *, disabled: bool | None) -> ReasonId:
    """Return why anonymous memory of the mapping that has room for a page of `size` bytes is not in one."""
    mode = rules.sizes.get(size, "never")
    if disabled:
        return "disabled-by-itself"
    if "nh" in mapping.flags:
        return "advised-against"
    if mode == "never":
        return "rules-never"
    if mode == "madvise" and "hg" not in mapping.flags:
        return "not-advised"
    if mapping.eligible is False:
        return "not-eligible" if "hg" in mapping.flags else "except-advised"
    return "eligible-not-backed"


def _classes(one: Look, rules: Rules, size: int) -> tuple[Counter[ReasonId], list[BackedMapping]]:
    """Return the bytes by reason, and the mappings that are eligible and not backed."""
    found: Counter[ReasonId] = Counter()
    pending = []
    for mapping in one.mappings:
        found["swapped"] += mapping.swapped if mapping.room(size) else 0
        if mapping.pool or not (rest := _rest(mapping)):
            continue
        within = min(rest, max(0, mapping.room(size) - mapping.huge))
        found["too-small"] += rest - within
        if within:
            why = class_of(mapping, rules, size, disabled=one.thp_disabled)
            found[why] += within
            if why == "eligible-not-backed":
                pending.append(mapping)
    return found, pending


def waiting(one: Look, rules: Rules, size: int) -> list[BackedMapping]:
    """Return the mappings that the rules allow pages of `size` bytes, and that are not all made of them."""
    return _classes(one, rules, size)[1]


def not_huge(
    looks: Sequence[Look], rules: Rules, target: PageTarget, whole: Mapping[int, int | None]
) -> Iterator[Reason]:
    """Yield the reasons why transparent huge pages are missing.

    `whole`: by process, bytes of the blocks in its eligible mappings that are touched throughout, where it is known.
    """
    total: Counter[ReasonId] = Counter()
    pending: list[tuple[Look, BackedMapping]] = []
    for one in looks:
        found, mappings = _classes(one, rules, target.size)
        total += found
        pending += [(one, mapping) for mapping in mappings]
    given = sum(bytes_ for look in looks for key, bytes_ in look.coverage.items() if key == f"anon:{target.size}")
    much = total["eligible-not-backed"] - (given if target.size != rules.pmd else 0)
    if much > 0:
        yield waits_for_khugepaged(target.size, much, _touched(pending, whole), rules)
    for name in _SENTENCES:
        if total[name]:
            yield sentence(name, target.size, total[name])
    yield from _shared(looks, rules, target.size)
    yield from _other_sizes(looks, target)


_SENTENCES: dict[ReasonId, tuple[str, str | None]] = {
    "disabled-by-itself": (
        "{much} of a process for which transparent huge pages are switched off (prctl 41, PR_SET_THP_DISABLE): by"
        " itself, by what started it, or by MemoryTHP=disable",
        "see who does: redis has disable-thp, MariaDB does it at its start; systemd: systemctl show -p MemoryTHP UNIT",
    ),
    "advised-against": ("{much} that the program itself asked to have no huge pages (MADV_NOHUGEPAGE)", None),
    "rules-never": (
        "{much} could be in pages of {size}, but these are set to never",
        "as root: echo madvise > {knob}",
    ),
    "not-advised": (
        "{much} could be in pages of {size}, but the rule is madvise, and nobody has advised it",
        f"{_ADVISE}; or (every program): echo always > {{top}}/enabled",
    ),
    "not-eligible": ("{much} is advised, and the kernel says that it is not eligible", None),
    "except-advised": (
        "{much} that the rule `always` reaches is not eligible: it looks as if the process had"
        " PR_THP_DISABLE_EXCEPT_ADVISED (prctl 41; THP_enabled of its status is 1 then too: it cannot be told)",
        f"see what started it; {_ADVISE}",
    ),
    "too-small": ("{much} is in mappings, or at their ends, that have no room for an aligned page of {size}", None),
    "swapped": ("{much} is in swap", None),
}


def _amount(much: int | None) -> str:
    return "memory" if much is None else readable_size(much)


def sentence(name: ReasonId, size: int, much: int | None) -> Reason:
    """Return the reason in words, with its cure: `much` memory (None: not known) is in no page of `size` bytes."""
    text, cure = _SENTENCES[name]
    text_of_reason = text.format(size=format_size(size), much=_amount(much))
    knob = f"{THP}/hugepages-{size >> 10}kB/enabled"
    return Reason(id=name, text=text_of_reason, bytes=much, cure=(cure or "").format(knob=knob, top=THP) or None)


def _touched(pending: list[tuple[Look, BackedMapping]], whole: Mapping[int, int | None]) -> int | None:
    """Return bytes of these mappings in blocks that are touched throughout and are no huge page, where it is known."""
    seen = [whole.get(one.pid) for one in {each[0].pid: each[0] for each in pending}.values()]
    if None in seen:
        return None
    return max(0, sum(each or 0 for each in seen) - sum(mapping.huge for _, mapping in pending))


def waits_for_khugepaged(size: int, much: int | None, touched: int | None, rules: Rules) -> Reason:
    """Return that the rules allow `much` memory (None: not known) pages of `size` bytes, and that it has none.

    `touched`: bytes of it in blocks that are touched throughout, where it is known.
    """
    sentences = [f"{_amount(much)} is eligible for pages of {format_size(size)}, and has none"]
    if touched is not None:
        touched = touched if much is None else min(touched, much)
        sentences.append(f"{readable_size(touched)} of it in blocks that are touched throughout")
    daemon, cure = rules.khugepaged, "have it advised before it is touched, or start the program again"
    pace = daemon.pace(rules.base)
    if size != rules.pmd:
        sentences.append("khugepaged makes pages of that size only where this kernel's can")
    elif daemon.pages_to_scan == 0:
        sentences.append("khugepaged, which could still make them, is off (pages_to_scan is 0)")
    elif pace is not None and much is not None:
        sentences.append(
            f"khugepaged could still make them: it looks at most at {readable_size(round(pace))} a second, of all"
            f" programs together, so in {format_duration(much / pace)} at the earliest"
        )
        cure = f"wait for khugepaged, or raise {THP}/khugepaged/pages_to_scan; {cure}"
    return Reason(id="eligible-not-backed", text="; ".join(sentences), bytes=much, cure=cure)


def shared_memory(much: int, size: int, mode: str) -> Reason:
    """Return that so much shared memory, which has a rule of its own, is in no page of `size` bytes."""
    return Reason(
        id="shared-memory",
        text=f"{readable_size(much)} is shared memory, for which pages of {format_size(size)} are set to {mode}",
        bytes=much,
        cure=f"as root: echo always > {THP}/shmem_enabled",
    )


def _shared(looks: Sequence[Look], rules: Rules, size: int) -> Iterator[Reason]:
    much = sum(
        max(0, mapping.resident - mapping.anonymous - mapping.shared_huge)
        for look in looks
        for mapping in look.mappings
        if mapping.is_shmem
    )
    mode = rules.shared.get(size, "never")
    if much and mode not in ("always", "force"):
        yield shared_memory(much, size, mode)


def _other_sizes(looks: Sequence[Look], target: PageTarget) -> Iterator[Reason]:
    """Yield larger pages than base that are not the promised ones."""
    found: Counter[str] = Counter()
    for look in looks:
        found.update(look.coverage)
    for key, much in sorted(found.items()):
        kind, _, size = key.partition(":")
        if kind in ("anon-pte", "shmem-pte"):
            pages = f"pages of {format_size(int(size))} that are mapped in pieces (split, or moved)"
            yield Reason(id="mapped-in-pieces", text=f"{readable_size(much)} is in {pages}", bytes=much)
        elif kind == "anon" and size.isdigit() and int(size) not in (target.size, _least(found)):
            text = f"{readable_size(much)} is in pages of {format_size(int(size))}: that size is on as well"
            cure = f"as root: echo never > {THP}/hugepages-{int(size) >> 10}kB/enabled"
            yield Reason(id="other-size", text=text, bytes=much, cure=cure)


def _least(found: Mapping[str, int]) -> int:
    # the base page is the smallest of all sizes found
    return min((int(key.partition(":")[2]) for key in found if key != "unproven"), default=4096)


def not_pooled(looks: Sequence[Look], rules: Rules, size: int) -> Iterator[Reason]:
    """Yield the reasons why memory is not in pages of the pool of that size."""
    rest = sum(_rest(each) + each.huge for one in looks for each in one.mappings if not each.pool and each.room(size))
    small = sum(
        _rest(mapping) for one in looks for mapping in one.mappings if not mapping.pool and not mapping.room(size)
    )
    pool, named = rules.pools.get(size), format_size(size)
    if pool is None:
        yield Reason(id="no-pool", text=f"the kernel has no pool of {named} pages")
        return
    asked = [look for look in looks if (tunable(look.environment or {}) or 0) >= 2]
    if rest and not pool.available:
        fell = "; glibc took base pages in their place, without a word" if asked else ""
        yield Reason(
            id="pool-short",
            text=f"the pool of {named} pages has {pool.free} free of {pool.pages}, {pool.reserved} of them reserved;"
            f" {readable_size(rest)} of memory that has room for such pages is in none{fell}",
            bytes=rest,
            cure=f"as root: echo {pool.pages + -(-rest // size)} >"
            f" {HUGETLB}/hugepages-{size >> 10}kB/nr_hugepages, then start it again",
        )
    if small:
        text = f"{readable_size(small)} is in mappings that have no room for an aligned page of {named}"
        yield Reason(id="too-small", text=text, bytes=small)


def tunables(looks: Sequence[Look], rules: Rules, wanted: int) -> Iterator[Reason]:
    """Yield whether glibc was told as the policy does (`wanted`: its glibc.malloc.hugetlb), each answer once."""
    told: dict[tuple[ReasonId, str], list[Look]] = {}
    for look in looks:
        value = None if look.environment is None else tunable(look.environment)
        if look.environment is None:
            why = "the variables that it was begun with cannot be read, or it has written over them"
            told.setdefault(("tunable-unknown", why), []).append(look)
        elif (value or 0) != wanted and not (wanted >= 2 and (value or 0) >= 2):
            state = "is not set" if value is None else f"is {value}"
            why = f"the policy has glibc.malloc.hugetlb={wanted}; in its GLIBC_TUNABLES it {state}"
            told.setdefault(("tunable-missing", why), []).append(look)
    for (name, why), several in told.items():
        cure = f"start it with GLIBC_TUNABLES=glibc.malloc.hugetlb={wanted}" if name == "tunable-missing" else None
        yield Reason(id=name, text=f"{_of(several, looks)}{why}", cure=cure)
    yield from ignored(looks, rules)


def ignored(looks: Sequence[Look], rules: Rules) -> Iterator[Reason]:
    """Tunables that are set and have no effect, or not on all memory; each reason once."""
    told: dict[str, list[Look]] = {}
    for look in looks:
        value = tunable(look.environment or {})
        if value and look.allocator.why:
            told.setdefault(f"glibc.malloc.hugetlb={value} is set, but {look.allocator.why}", []).append(look)
        if value == 1 and rules.top != "madvise":
            why = f"glibc heeds it only where {THP}/enabled is madvise: it is {rules.top}"
            told.setdefault(f"glibc.malloc.hugetlb=1 is set, but {why}", []).append(look)
    for why, several in told.items():
        yield Reason(id="tunable-ignored", text=f"{_of(several, looks)}{why}")


def _of(some: Sequence[Look], all_: Sequence[Look]) -> str:
    """Return the processes that a sentence concerns, where it does not concern all."""
    if len(some) == len(all_):
        return ""
    return f"{', '.join(str(one.pid) for one in some[:5])}{', ...' if len(some) > 5 else ''}: "


def not_base(looks: Sequence[Look]) -> Iterator[Reason]:
    """Yield the processes that have pages larger than the base size, and where."""
    for look in looks:
        large = sorted((mapping for mapping in look.mappings if _large(mapping)), key=_large, reverse=True)
        if much := sum(map(_large, large)):
            where = ", ".join(f"{each.called} at {each.start:x} ({readable_size(_large(each))})" for each in large[:3])
            state = {True: "off", False: "not off", None: "not known to be off"}[look.thp_disabled]
            yield Reason(
                id="larger-pages",
                text=f"process {look.pid} has {readable_size(much)} in larger pages: {where};"
                f" transparent ones are {state} for it",
                bytes=much,
                cure="start it with hugewise-exec --pages off -- COMMAND: what is huge already stays so until then",
            )


def _large(mapping: BackedMapping) -> int:
    """Return the mapping's bytes in pages of the PMD size, or of a pool."""
    return mapping.huge + mapping.shared_huge + mapping.pool


def unknown(looks: Sequence[Look], rules: Rules) -> Iterator[Reason]:
    """Yield what is unknown, with the cure."""
    if any("unproven" in look.coverage for look in looks) and any(size != rules.pmd for size in rules.on()):
        yield Reason(
            id="sizes-unproven",
            text="sizes between base pages and the largest cannot be told apart without root",
            cure="call it as root",
        )
