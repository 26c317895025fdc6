"""Whether what was promised backs a process, or a unit's, now: the answer, with its reasons.

Without a policy the promise is that of the rules in force: memory that the kernel says is eligible has huge pages, and
malloc's memory has pages of the pool that a tunable of glibc asks for.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from hugewise.attempt.outcome import judge_delivery, total_coverage
from hugewise.errors import ProbeError, UserError
from hugewise.host.local_host import LocalHost
from hugewise.inspection import reasons
from hugewise.inspection.allocator import tunable
from hugewise.inspection.backing import coverage_once
from hugewise.inspection.look import DeniedError, GoneError, Look, Looker, coverage, whole_blocks
from hugewise.inspection.reasons import Reason
from hugewise.inspection.rules import Rules, rules_of
from hugewise.inspection.smaps import BackedMapping
from hugewise.inspection.targets import Inspected, subject
from hugewise.machine import probe, proc
from hugewise.model.host import Host
from hugewise.model.pages import PageSizes, PageTarget, page_flags_readable
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Named
from hugewise.policies import discover
from hugewise.quantity import format_size, readable_size

SHARE = 0.95
"""The share of the memory at the promised size that is enough, as a study has it."""
BASE_ABOVE = 0.01
_MOST_MAPPINGS = 10
_AS_ROOT = "call it as root: sudo"
_OUTSIDE = "call it outside of the container, or name a process that may be looked at"
_LOOKS = 3  # at most, where somebody turns the rules meanwhile


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """What was promised: by a policy, or (None) by the rules in force; in words, and as pages (None: nothing)."""

    policy: str | None
    text: str
    target: PageTarget | None
    needed: float


class MappingSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One of the largest mappings: bytes by what backs them; `eligible` and `advised` as the kernel says."""

    start: str
    name: str
    memory: int
    huge: int
    pool: int
    eligible: bool | None
    advised: bool


class ProcessSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A process that was looked at. `thp_disabled`: prctl(PR_SET_THP_DISABLE), in its full form."""

    pid: int
    command: str
    uid: int
    coverage: Mapping[str, int]
    thp_disabled: bool | None
    allocator: str
    tunable: int | None


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `delivered` None: it could not be proven; `share` of the memory that was promised something."""

    subject: str
    promise: Promise
    delivered: bool | None
    share: float | None
    coverage: Mapping[str, int]
    source: str
    said: str
    reasons: tuple[Reason, ...]
    rules: tuple[str, ...]
    processes: tuple[ProcessSeen, ...]
    mappings: tuple[MappingSeen, ...]
    notes: tuple[str, ...] = ()


def verify(text: str, host: Host, policy: str | None = None, *, share: float = SHARE, named: Named = "all") -> Verified:
    """Look at the process or unit `text` once. Raises UserError where there is nothing to look at, or it is not allowed
    (what can be said all the same is in its text), and for a policy that this machine does not know.
    """
    treatment = None if policy is None else _treatment(policy, host)
    who = subject(text, host)
    source = "kpageflags" if host.privileged() and page_flags_readable() else "smaps"
    looker = Looker("kpageflags" if source == "kpageflags" else "smaps", named)
    for _ in range(_LOOKS):
        rules = rules_of(host)
        looks, notes, denied = _looked(who, looker)
        if rules_of(host).same(rules):
            break
    else:
        notes = [*notes, "the rules changed while it was looked at: what is said of them may not hold"]
    found_together, more = _together(looks, looker.source)
    notes += more
    if treatment is None:
        promise, delivered, part, said, found = _by_rules(looks, rules, share)
    else:
        promise, delivered, part, said, found = _by_policy(
            looks, rules, treatment, share, source=source, backed=found_together
        )
    if denied and delivered:
        delivered, said = None, f"{said}; of {denied} of its processes nothing is known"
    told = {(one.id, one.text): one for one in (*found, *reasons.ignored(looks, rules), *reasons.unknown(looks, rules))}
    return Verified(
        subject=who.name,
        promise=promise,
        delivered=delivered,
        share=part,
        coverage=found_together,
        source=source,
        said=said,
        reasons=tuple(told.values()),
        rules=tuple(rules.lines()),
        processes=tuple(_process(one) for one in looks),
        mappings=tuple(_largest(looks)),
        notes=(*who.notes, *notes),
    )


def _treatment(name: str, host: Host) -> Treatment:
    sizes = PageSizes.discover(host)
    known = discover(sizes)
    if name not in known:
        told = f"choose from: {', '.join(known)}; for a setting of an advice, its files' README.md names the policy"
        raise UserError(f"--policy {name}: not a policy of this machine", hint=told)
    return known[name].treatment(host, sizes, "system")


def _together(looks: Sequence[Look], source: probe.Source) -> tuple[dict[str, int], list[str]]:
    """What backs all of them, and what the reader should know of it."""

    def scan(pid: int, ranges: list[tuple[int, int]]) -> Mapping[str, int]:
        return coverage(proc.living(LocalHost(), pid) or pid, source, ranges)

    try:
        return coverage_once(looks, scan), []
    except (GoneError, ProbeError):
        return total_coverage(one.coverage for one in looks), [
            "what several of its processes share is counted for each of them"
        ]


def _looked(who: Inspected, looker: Looker) -> tuple[list[Look], list[str], int]:
    """Those that could be looked at, and how many could not. Raises UserError where none could."""
    looks: list[Look] = []
    denied: dict[int, DeniedError] = {}
    gone = 0
    for pid in who.processes:
        try:
            looks.append(looker.look(pid))
        except DeniedError as error:
            denied[pid] = error
        except GoneError as error:
            if pid == who.process:
                raise UserError(f"{who.name}: {error}", hint="name one that runs: pgrep -a NAME") from None
            gone += 1
    if not looks and not denied:
        raise UserError(
            f"{who.name}: all its processes have ended meanwhile", hint="is it being started again and again?"
        )
    if not looks or who.processes[0] in denied:
        pid, why = next(iter(denied.items()))
        hint = why.hint or (_AS_ROOT if os.geteuid() else _OUTSIDE)
        raise UserError(f"{who.name}: the memory of {pid} cannot be looked at: {why}", hint=hint)
    notes = [f"{len(denied)} of its processes cannot be looked at: {next(iter(denied.values()))}"] if denied else []
    ended = [f"{gone} of its processes have ended meanwhile, or have no memory"] if gone else []
    return looks, notes + ended, len(denied)


_Answer = tuple[Promise, bool | None, float | None, str, list[Reason]]


def _by_policy(
    looks: Sequence[Look],
    rules: Rules,
    treatment: Treatment,
    share: float,
    *,
    source: str,
    backed: Mapping[str, int],
) -> _Answer:
    target = treatment.target
    # What is in swap is in no larger page, and comes back in one of the base size.
    swapped = sum(each.swapped for one in looks for each in one.mappings) if target.kind != "base" else 0
    found = judge_delivery(
        target,
        total_coverage([backed, {f"anon:{rules.base}": swapped}]),
        proof="live",
        source=source,
        share=share,
        base_above=BASE_ABOVE,
        thp_disabled=any(one.thp_disabled for one in looks),
    )
    needed = 1 - BASE_ABOVE if target.kind == "base" else share
    promise = Promise(policy=treatment.policy, text=f"{target}", target=target, needed=needed)
    if target.kind == "any":
        return promise, True, None, "the policy promises no page size", []
    part = "nothing was found" if found.share is None else f"{found.share:.1%} of its memory is in {target}"
    said = f"{part} ({needed:.0%} was promised)" + (f": {found.reason}" if found.delivered is None else "")
    return promise, found.delivered, found.share, said, [] if found.delivered else _why(looks, rules, treatment)


def _why(looks: Sequence[Look], rules: Rules, treatment: Treatment) -> list[Reason]:
    target = treatment.target
    wanted = tunable(treatment.environment)
    if target.kind == "base":
        return list(reasons.not_base(looks))
    if target.kind == "hugetlb":
        found = list(reasons.not_pooled(looks, rules, target.size))
    else:
        found = list(reasons.not_huge(looks, rules, target, _whole(looks, rules, target.size)))
    return found + (list(reasons.tunables(looks, rules, wanted)) if wanted else [])


def _whole(looks: Sequence[Look], rules: Rules, size: int) -> dict[int, int | None]:
    """By process, how much of what is eligible and not backed is touched throughout."""
    found: dict[int, int | None] = {}
    for one in looks:
        if several := reasons.waiting(one, rules, size):
            found[one.pid] = whole_blocks(one.pid, several, size, rules.base)
    return found


def _by_rules(looks: Sequence[Look], rules: Rules, share: float) -> _Answer:
    """What the kernel and glibc would give by the rules, and whether they did."""
    parts: list[tuple[int, int]] = []
    texts: list[str] = []
    found: list[Reason] = []
    unproven = False
    on = rules.on()
    promised, backed = (sum(each) for each in zip(*(reasons.eligible(one, rules) for one in looks), strict=True))
    if promised:
        target = PageTarget("thp" if on[:1] == [rules.pmd] else "mthp", on[0] if on else rules.pmd or rules.base)
        larger = sum(
            bytes_
            for one in looks
            for key, bytes_ in one.coverage.items()
            if key.startswith("anon:") and int(key[5:]) > rules.base
        )
        backed = max(backed, min(promised, larger))
        unproven = backed < share * promised and any("unproven" in one.coverage for one in looks) and on != [rules.pmd]
        parts.append((promised, backed))
        sizes = ", ".join(map(format_size, on)) or format_size(target.size)
        texts.append(f"transparent huge pages ({sizes}) for {readable_size(promised)} that is eligible")
        if backed < share * promised:
            found += reasons.not_huge(looks, rules, target, _whole(looks, rules, target.size))
    for size, several in _asking(looks, rules).items():
        pool = sum(each.pool for one in several for each in one.mappings)
        rest = sum(each.anonymous for one in several for each in one.mappings if each.room(size) and not each.pool)
        parts.append((pool + rest, pool))
        texts.append(f"pages of the {format_size(size)} pool for malloc's memory (GLIBC_TUNABLES)")
        if pool < share * (pool + rest):
            found += reasons.not_pooled(several, rules, size)
    wanted, had = sum(each for each, _ in parts), sum(each for _, each in parts)
    text = "; ".join(texts) or "nothing: no memory of it is eligible for larger pages, and no pool is asked for"
    promise = Promise(policy=None, text=text, target=None, needed=share)
    if not wanted:
        return promise, True, None, "the rules in force promise it no larger pages", found
    delivered = all(part >= share * whole for whole, part in parts)
    said = f"{had / wanted:.1%} of {readable_size(wanted)} that the rules in force promise larger pages is in them"
    return promise, None if unproven else delivered, had / wanted, said, found


def _asking(looks: Sequence[Look], rules: Rules) -> dict[int, list[Look]]:
    """The processes whose malloc asks for pages of a pool, by the size of these; a 2 is the default size."""
    found: dict[int, list[Look]] = {}
    for one in looks:
        value = tunable(one.environment or {}) or 0
        if value >= 2 and one.allocator.tuned:
            size = rules.default_pool if value == 2 else value
            if size in rules.pools:
                found.setdefault(size, []).append(one)
    return found


def _process(one: Look) -> ProcessSeen:
    return ProcessSeen(
        pid=one.pid,
        command=one.command,
        uid=one.uid,
        coverage=one.coverage,
        thp_disabled=one.thp_disabled,
        allocator=one.allocator.name,
        tunable=tunable(one.environment or {}),
    )


def _largest(looks: Sequence[Look]) -> list[MappingSeen]:
    """The mappings with most memory, and the rest of each process as one line of what is left."""
    every = sorted((each for one in looks for each in one.mappings if each.memory), key=_memory, reverse=True)
    shown = [_mapping(each) for each in every[:_MOST_MAPPINGS]]
    if rest := every[_MOST_MAPPINGS:]:
        sums: Counter[str] = Counter()
        for each in rest:
            sums.update(memory=each.memory, huge=each.huge + each.shared_huge, pool=each.pool)
        name = f"{len(rest)} smaller ones"
        shown.append(MappingSeen(start="", name=name, eligible=None, advised=False, **{k: sums[k] for k in _SUMS}))
    return shown


_SUMS = ("memory", "huge", "pool")


def _memory(mapping: BackedMapping) -> int:
    return mapping.memory


def _mapping(one: BackedMapping) -> MappingSeen:
    return MappingSeen(
        start=f"{one.start:x}",
        name=one.called,
        memory=one.memory,
        huge=one.huge + one.shared_huge,
        pool=one.pool,
        eligible=one.eligible,
        advised="hg" in one.flags,
    )
