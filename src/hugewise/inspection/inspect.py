"""Page sizes of running processes, and why they are not larger: `hugewise inspect`. Nothing is changed or stopped.

As root the probe scans page tables, with smaps for what the rules say of each mapping; else smaps alone. What the
kernel counts of huge pages is of the whole host since its boot.

Source: Documentation/admin-guide/mm/transhuge.rst of the Linux kernel, "Monitoring usage".
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hugewise.errors import UserError
from hugewise.inspection.allocator import tunable
from hugewise.inspection.backing import Key, again, by_smaps, cells, kind_of, large, shown_rows, whole_of
from hugewise.inspection.inspected import (
    Inspection,
    KernelStatistics,
    KindBacked,
    LostBacking,
    MappingInspected,
    MappingKind,
    ProcessInspected,
    SizeStatistics,
)
from hugewise.inspection.look import DeniedError, GoneError, Look, Looker, identity
from hugewise.inspection.reasons import Reason, class_of, sentence, shared_memory, waits_for_khugepaged
from hugewise.inspection.rules import Rules, rules_of
from hugewise.inspection.targets import Inspected, charged
from hugewise.machine import probe
from hugewise.machine.probe import FoliosOfMapping, MappedFolios
from hugewise.machine.proc import living
from hugewise.machine.smaps import BackedMapping
from hugewise.model.host import Host, number_of, text_of
from hugewise.model.pages import THP, page_flags_readable
from hugewise.quantity import format_size, readable_size

EVENTS = (
    *("thp_fault_alloc", "thp_fault_fallback", "thp_fault_fallback_charge", "thp_collapse_alloc"),
    *("thp_collapse_alloc_failed", "thp_file_alloc", "thp_file_fallback", "thp_split_page", "thp_split_pmd"),
    *("thp_deferred_split_page", "thp_underused_split_page", "thp_zero_page_alloc", "thp_swpout"),
    *("thp_swpout_fallback", "compact_stall", "compact_fail", "compact_success"),
)
KHUGEPAGED = (
    *("pages_collapsed", "full_scans", "pages_to_scan", "scan_sleep_millisecs"),
    *("max_ptes_none", "max_ptes_swap", "max_ptes_shared", "defrag"),
)
_FEW = 0.01  # share of faults that fell back: below it, no remark


def kernel_statistics(host: Host, rules: Rules) -> KernelStatistics:
    """Return the kernel's statistics on `host` now; None, or the reason, for those that this kernel lacks."""
    counted: dict[str, int] = {}
    for line in (text_of(host, "/proc/vmstat") or "").split("\n"):
        name, _, value = line.partition(" ")
        if name in EVENTS and value.isascii() and value.isdigit():
            counted[name] = int(value)
    return KernelStatistics(
        sizes=tuple(_of_size(host, size, rules) for size in sorted({*rules.sizes, *rules.shared})),
        events={name: counted.get(name) for name in EVENTS},
        khugepaged={name: number_of(host, f"{THP}/khugepaged/{name}") for name in KHUGEPAGED},
    )


def _of_size(host: Host, size: int, rules: Rules) -> SizeStatistics:
    folder = f"{THP}/hugepages-{size >> 10}kB/stats"
    read = {name: number_of(host, f"{folder}/{name}") for name in host.names(folder)}
    counts = {name: value for name, value in read.items() if value is not None}
    return SizeStatistics(
        size=size,
        enabled=rules.sizes.get(size),
        shmem_enabled=rules.shared.get(size),
        counts=counts,
        reason=None if counts else f"this kernel has no {folder} (it came with Linux 6.10)",
    )


def changed(now: KernelStatistics, before: KernelStatistics) -> dict[str, int]:
    """Return the counts that rose between two looks, by name: `64k anon_fault_alloc`, or an event's."""
    found: dict[str, int] = {}
    then = {size.size: size.counts for size in before.sizes}
    for one in now.sizes:
        found |= {
            f"{format_size(one.size)} {name}": value - then[one.size][name]
            for name, value in one.counts.items()
            if name in then.get(one.size, {}) and value != then[one.size][name]
        }
    for names, others in ((now.events, before.events), (now.khugepaged, before.khugepaged)):
        found |= {name: value - old for name, value, old in _both(names, others) if value != old}
    return found


def _both(now: Mapping[str, int | None], before: Mapping[str, int | None]) -> list[tuple[str, int, int]]:
    both = ((name, value, before.get(name)) for name, value in now.items())
    return [(name, value, old) for name, value, old in both if value is not None and old is not None]


def evidence(statistics: KernelStatistics, sizes: Sequence[int]) -> str | None:
    """Return the kernel's counts of faults that wanted pages of these sizes and got none, or None."""
    lines = []
    for size in statistics.sizes:
        if size.size not in sizes or not size.counts:
            continue
        got, fell = size.counts.get("anon_fault_alloc"), size.counts.get("anon_fault_fallback")
        if got is None or fell is None or fell <= _FEW * (got + fell):
            continue
        charged = size.counts.get("anon_fault_fallback_charge", 0)
        limit = f" ({charged:,} for a limit of their cgroup)" if charged else ""
        lines.append(f"{fell:,} of {got + fell:,} faults that asked for {format_size(size.size)} got none{limit}")
    if lines:
        tried, failed = statistics.events.get("compact_stall"), statistics.events.get("compact_fail")
        if tried and failed is not None:
            lines.append(f"{failed:,} of {tried:,} direct compactions failed")
    return f"on this host since it was booted: {'; '.join(lines)}" if lines else None


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
    """Return the memory that could be in larger pages, or None.

    `larger` is in folios above the base size (None: not known), `whole` in blocks of the PMD size that are touched
    throughout and not mapped as one (None: not known).
    """
    if mapping.pool:
        return None
    if mapping.is_shmem:
        return _shared(mapping, larger, rules)
    if not mapping.anonymous:
        return None  # file pages: the page cache decides, not the rules of anonymous memory
    offered = _offered(mapping, rules, disabled=disabled)
    size = max(offered, default=rules.pmd or max(rules.sizes, default=0))
    if not size:
        return None
    had = mapping.huge if larger is None else larger
    if not (room := mapping.room(min(offered, default=size))):
        small = max(0, mapping.anonymous - had)
        return _lost(size, sentence("too-small", size, small)) if small >= size else None
    missing = max(0, min(mapping.anonymous, room) - had)
    # Where sizes between are on, smaps does not tell which mappings have them.
    known = larger is not None or not [one for one in offered if one != rules.pmd]
    if missing < min(offered, default=size):
        return None
    why = class_of(mapping, rules, size, disabled=disabled)
    if why != "eligible-not-backed":
        return _lost(size, sentence(why, size, missing if known else None))
    touched = whole if size == rules.pmd else None
    waits = waits_for_khugepaged(size, missing if known else None, touched, rules)
    return _lost(size, waits, evidence(statistics, offered))


def _offered(mapping: BackedMapping, rules: Rules, *, disabled: bool | None) -> list[int]:
    """Return the sizes that the rules give this mapping, where it has room for one."""
    if disabled or "nh" in mapping.flags:
        return []
    advised = "hg" in mapping.flags
    given = (size for size, mode in rules.sizes.items() if mode == "always" or (mode == "madvise" and advised))
    return [size for size in given if mapping.room(size)]


def _lost(size: int, why: Reason, evidence: str | None = None) -> LostBacking:
    return LostBacking(id=why.id, size=size, bytes=why.bytes, text=why.text, cure=why.cure, evidence=evidence)


def _shared(mapping: BackedMapping, larger: int | None, rules: Rules) -> LostBacking | None:
    # shared memory has rules of its own
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
    return _lost(size, shared_memory(missing, size, mode))


def merged_reasons(lost: Iterable[LostBacking]) -> list[LostBacking]:
    """Return each reason once, over all mappings, the most memory first."""
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
    """Return the sentence with the sum in place of its own bytes; what concerns one mapping alone is left out."""
    own = "memory" if one.bytes is None else readable_size(one.bytes)
    first = one.text.partition("; ")[0] if one.id == "eligible-not-backed" else one.text
    return ("memory" if much is None else readable_size(much)) + first.removeprefix(own)


class BackedPart(msgspec.Struct):
    """A mapping of a process, with what backs it, and that as far as it is counted here and not elsewhere.

    cells  bytes by kind of page, folio size and state; once: without what was counted before
    zero   reads as zero, and has no memory; None: not known
    """

    told: MappingInspected
    cells: Counter[Key]
    once: Counter[Key]
    zero: int | None


def inspected_mapping(
    pid: int, each: FoliosOfMapping | BackedMapping, found: Counter[Key], base: int, **more: Any
) -> MappingInspected:
    """Return what is reported of a mapping with these bytes by page; `base`: bytes of a base page."""
    return MappingInspected(
        pid=pid,
        start=f"{each.start:x}",
        end=f"{each.end:x}",
        permissions=each.permissions,
        kind=kind_of(each.name, each.permissions, each.inode, [page for page, _, _ in found]),
        name=each.name,
        bytes=found.total(),
        large=large(found, base),
        swapped=each.swapped,
        sizes=shown_rows(found),
        **more,
    )


def part_of_smaps(
    pid: int, each: BackedMapping, found: Counter[Key], base: int, lost: LostBacking | None
) -> BackedPart:
    """Return a mapping of which smaps alone is known."""
    told = inspected_mapping(
        pid, each, found, base, whole=None, nodes=None, eligible=each.eligible, advised=each.advised, lost=lost
    )
    return BackedPart(told, found, found, None)


def parts_of(
    pid: int, look: Look, folios: MappedFolios | None, rules: Rules, statistics: KernelStatistics
) -> list[BackedPart]:
    """Return the mappings of a process; of one that the probe alone saw nothing is said of why."""
    disabled = look.thp_disabled
    smaps = {each.start: each for each in look.mappings}

    def lost(each: BackedMapping | None, larger: int | None, whole: int | None) -> LostBacking | None:
        return None if each is None else lost_backing(each, larger, whole, rules, statistics, disabled=disabled)

    def by_probe(each: FoliosOfMapping) -> BackedPart:
        found, mine = cells(each.bytes), smaps.get(each.start)
        anonymous = sum(size for (page, of, _), size in found.items() if page == "anon" and (of or 0) > rules.base)
        larger = large(found, rules.base) if mine is not None and mine.is_shmem else anonymous
        of_probe = inspected_mapping(
            pid,
            each,
            found,
            rules.base,
            whole=each.whole,
            nodes=dict(each.nodes) or None,
            eligible=None if mine is None else mine.eligible,
            advised=None if mine is None else mine.advised,
            lost=lost(mine, larger, each.whole),
        )
        return BackedPart(of_probe, found, cells(each.bytes, each.again), each.zero)

    def by_text(each: BackedMapping) -> BackedPart:
        found = by_smaps(each, rules, disabled=disabled)
        return part_of_smaps(pid, each, found, rules.base, lost(each, large(found, rules.base), None))

    if folios is None:
        return [by_text(smap) for smap in smaps.values()]
    return [by_probe(mapping) for mapping in folios.mappings]


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
    """Yield the kinds of mappings, the one with most memory first."""
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
        sizes=shown_rows(found),
    )


_AS_ROOT = "call it as root: sudo"
_CONTAINER = "call it outside of the container, or name a process that may be looked at"
_GONE = "name one that runs: pgrep -a NAME"
_BY_SMAPS = (
    "without root the sizes between base pages and the largest are not known, nor which pages are mapped in part, nor"
    " what several processes share since a fork"
)
_SHARED_BY_SMAPS = (
    "shared memory is counted once, as far as smaps tells what is the same; what processes share since a fork, and the"
    " pages of programs and libraries, count for each of them"
)
_ONCE = "a page that several of these processes map counts once, for the first of them"


class _Seen(msgspec.Struct):
    """A process: what smaps said, and what the probe found (None: an ordinary user has none)."""

    pid: int
    started: int
    look: Look
    folios: probe.MappedFolios | None = None


def inspect(who: Inspected, host: Host, *, group: str | None = None) -> Inspection:
    """Look at these processes once. Raises UserError where there is nothing to look at, or it is not allowed."""
    began = time.monotonic()
    exact = host.privileged() and page_flags_readable()
    rules = rules_of(host)
    statistics = kernel_statistics(host, rules)
    found, notes, scanned = _look_at(who, host, exact=exact)
    parts = [parts_of(one.pid, one.look, one.folios, rules, statistics) for one in found]
    every = [part for mine in parts for part in mine]
    if not exact:
        leave_out_again([one.look for one in found], parts)
        notes.append(_BY_SMAPS)
    if len(found) > 1:
        notes.append(_ONCE if exact else _SHARED_BY_SMAPS)
    if not rules_of(host).same(rules):
        notes.append("the rules changed while it was looked at: what is said of them may not hold")
    whole = whole_of(part.once for part in every)
    sizes = shown_rows(whole)
    nodes: Counter[int] = Counter()
    for part in every:
        nodes.update(part.told.nodes or {})
    return Inspection(
        subject=who.name,
        taken=time.time(),
        source="kpageflags" if exact else "smaps",
        once=len(found) > 1 and exact,
        base=rules.base,
        bytes=sum(size.bytes for size in sizes),
        large=large(whole, rules.base),
        swapped=sum(part.told.swapped for part in every),
        sizes=sizes,
        kinds=tuple(kinds(every, rules.base)),
        nodes=dict(sorted(nodes.items())) if nodes else None,
        lost=tuple(merged_reasons(part.told.lost for part in every if part.told.lost is not None)),
        processes=tuple(_process(one, mine, rules.base) for one, mine in zip(found, parts, strict=True)),
        mappings=tuple(sorted((part.told for part in every), key=lambda told: -told.bytes)),
        statistics=statistics,
        group=None if group is None else charged(group, host),
        rules=tuple(rules.lines()),
        notes=(*who.notes, *notes),
        look_s=time.monotonic() - began,
        scan_s=scanned,
    )


def _look_at(who: Inspected, host: Host, *, exact: bool) -> tuple[list[_Seen], list[str], float | None]:
    """Look at the processes, each while it runs one program. Raises UserError where none could be seen."""
    looker = Looker("smaps", scanned=False)
    found: list[_Seen] = []
    failed: dict[int, str] = {}
    before = {pid: identity(pid) for pid in who.processes}
    hint = None
    for pid, (started, _) in before.items():
        try:
            found.append(_Seen(pid, int(started or b"0"), looker.look(pid)))
        except GoneError as error:
            failed[pid] = str(error)
        except DeniedError as error:
            failed[pid] = str(error)
            hint = hint or error.hint or (_AS_ROOT if os.geteuid() else _CONTAINER)
    scanned = _scan(found, host, failed) if exact and found else None
    for one in list(found):
        if one.pid in failed or identity(one.pid) != before[one.pid]:
            failed.setdefault(one.pid, "it has ended, or become another program, while it was looked at")
            found.remove(one)
    if not found:
        pid, why = next(iter(failed.items()))
        raise UserError(f"{who.name}: {pid} cannot be looked at: {why}", hint=hint or _GONE)
    notes = []
    if failed:
        pid, why = next(iter(failed.items()))
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        notes.append(f"not looked at: {pid} ({why}){more}")
    return found, notes, scanned


def _scan(found: Sequence[_Seen], host: Host, failed: dict[int, str]) -> float:
    """Have the probe scan all processes in one call, which finds common pages; return the seconds of its scans."""
    shown_as = [living(host, one.pid) or one.pid for one in found]
    words = [word for pid in shown_as for word in ("--pid", str(pid))]
    if len(found) > 1:
        words.append("--once")
    took = 0
    for one, event in zip(found, probe.ask_all("folios", *words), strict=True):
        if isinstance(event, probe.MappedFolios):
            one.folios = event
            took += event.scan_ns
        elif isinstance(event, probe.Error):
            failed[one.pid] = event.message
    return took / 1e9


def _process(one: _Seen, parts: Sequence[BackedPart], base: int) -> ProcessInspected:
    found = whole_of(part.cells for part in parts)
    return ProcessInspected(
        pid=one.pid,
        started=one.started,
        command=one.look.command,
        uid=one.look.uid,
        bytes=found.total(),
        large=large(found, base),
        thp_disabled=one.look.thp_disabled,
        allocator=one.look.allocator.name,
        tunable=tunable(one.look.environment or {}),
    )
