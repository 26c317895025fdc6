"""Which page sizes back processes that run: `hugewise inspect`. One look; nothing of them is changed or stopped.

As root the scan of page tables by the probe, with smaps for what the rules say of each mapping; else smaps alone.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from hugewise.errors import UserError
from hugewise.inspection.allocator import tunable
from hugewise.inspection.backing import large, shown, whole_of
from hugewise.inspection.inspected import Inspection, KindBacked, ProcessInspected, SampleBounds, SizeBacked
from hugewise.inspection.kernel_counts import kernel_statistics
from hugewise.inspection.look import DeniedError, GoneError, Look, Looker, account, command, identity
from hugewise.inspection.parts import BackedPart, kinds, leave_out_again, parts_of
from hugewise.inspection.rules import rules_of
from hugewise.inspection.subject import Inspected
from hugewise.inspection.targets import charged
from hugewise.inspection.why import together
from hugewise.machine import probe
from hugewise.machine.proc import living
from hugewise.model.host import Host
from hugewise.model.pages import page_flags_readable

__all__ = ["BLOCKS", "CONFIDENCE", "SampleDraw", "inspect"]

BLOCKS = 512
"""Blocks of a sample: what has one size is then known to within 1.2% at 99% where all that were drawn are alike."""
CONFIDENCE = 0.99
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
_SAMPLED = (
    "a sample reads no smaps, which walks every page: why memory is in base pages is not said; call it without --sample"
)


class SampleDraw(msgspec.Struct, frozen=True):
    """Look at so many blocks of each process alone, drawn by `seed`."""

    blocks: int
    seed: int


class _Seen(msgspec.Struct):
    """A process: what smaps said (None: it was not asked), what the probe found (None: an ordinary user has none)."""

    pid: int
    started: int
    look: Look | None
    folios: probe.MappedFolios | None = None


def inspect(who: Inspected, host: Host, *, group: str | None = None, sampling: SampleDraw | None = None) -> Inspection:
    """Look at these processes once. Raises UserError where there is nothing to look at, or it is not allowed."""
    began = time.monotonic()
    exact = host.privileged() and page_flags_readable()
    if sampling is not None and not exact:
        raise UserError("--sample: an ordinary user sees no page tables to draw from", hint=_AS_ROOT)
    rules = rules_of(host)
    statistics = kernel_statistics(host, rules)
    found, notes, scanned = _look_at(who, host, exact=exact, sampling=sampling)
    sample = None if sampling is None else _estimated(found, sampling, rules.base)
    bounds = None if sample is None else sample[0]
    parts = [parts_of(one.pid, one.look, one.folios, rules, statistics) for one in found]
    every = [part for mine in parts for part in mine]
    if not exact:
        leave_out_again([one.look for one in found if one.look is not None], parts)
        notes.append(_BY_SMAPS)
    if len(found) > 1 and sampling is None:
        notes.append(_ONCE if exact else _SHARED_BY_SMAPS)
    if sampling is not None:
        notes.append(_SAMPLED)
    if not rules_of(host).same(rules):
        notes.append("the rules changed while it was looked at: what is said of them may not hold")
    whole = whole_of(part.once for part in every)
    sizes = shown(whole) if sample is None else sample[1]
    nodes: Counter[int] = Counter()
    for part in every:
        nodes.update(part.told.nodes or {})
    return Inspection(
        subject=who.name,
        taken=time.time(),
        source="kpageflags" if exact else "smaps",
        once=len(found) > 1 and exact and sampling is None,
        base=rules.base,
        sampled=bounds,
        bytes=sum(one.bytes for one in sizes),
        large=sum(one.bytes for one in sizes if one.size != rules.base) if bounds else large(whole, rules.base),
        swapped=None if bounds else sum(part.told.swapped for part in every),
        sizes=sizes,
        kinds=tuple(kinds(every, rules.base)) if sample is None else sample[2],
        nodes=dict(sorted(nodes.items())) if nodes and bounds is None else None,
        lost=tuple(together(part.told.lost for part in every if part.told.lost is not None)),
        processes=tuple(_process(one, mine, rules.base) for one, mine in zip(found, parts, strict=True)),
        mappings=() if bounds else tuple(sorted((part.told for part in every), key=lambda told: -told.bytes)),
        statistics=statistics,
        group=None if group is None else charged(group, host),
        rules=tuple(rules.lines()),
        notes=(*who.notes, *notes),
        look_s=time.monotonic() - began,
        scan_s=scanned,
    )


def _estimated(
    found: Sequence[_Seen], sampling: SampleDraw, base: int
) -> tuple[SampleBounds, tuple[SizeBacked, ...], tuple[KindBacked, ...]] | None:
    """What a sample says of all; None where all of each process was looked at."""
    from hugewise.inspection import bounds  # noqa: PLC0415  (numpy is slow to load)

    folios = [one.folios for one in found if one.folios is not None]
    told = bounds.bounds_of(folios, sampling.seed, CONFIDENCE)
    if told is None:
        return None
    return told, bounds.estimated(folios, CONFIDENCE), bounds.estimated_kinds(folios, CONFIDENCE, base)


def _look_at(
    who: Inspected, host: Host, *, exact: bool, sampling: SampleDraw | None
) -> tuple[list[_Seen], list[str], float | None]:
    """Those that could be looked at, all of it at the same program. Raises UserError where none could."""
    looker = Looker("smaps", scanned=False)
    found: list[_Seen] = []
    failed: dict[int, str] = {}
    before = {pid: identity(pid) for pid in who.processes}
    hint = None
    for pid, (started, _) in before.items():
        try:
            look = looker.look(pid) if sampling is None else None
            found.append(_Seen(pid, int(started or b"0"), look))
        except GoneError as error:
            failed[pid] = str(error)
        except DeniedError as error:
            failed[pid] = str(error)
            hint = hint or error.hint or (_AS_ROOT if os.geteuid() else _CONTAINER)
    scanned = _scan(found, host, failed, sampling) if exact and found else None
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


def _scan(found: Sequence[_Seen], host: Host, failed: dict[int, str], sampling: SampleDraw | None) -> float:
    """Have the probe look at all of them in one call, so that it knows their common pages. Seconds of its scans."""
    shown_as = [living(host, one.pid) or one.pid for one in found]
    words = [word for pid in shown_as for word in ("--pid", str(pid))]
    if sampling is not None:
        words += ["--sample", str(sampling.blocks), "--seed", str(sampling.seed)]
    elif len(found) > 1:
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
    """Of a sample, the memory in its blocks over the share of blocks that was drawn."""
    found = whole_of(part.cells for part in parts)
    sampled = one.folios.sampled if one.folios is not None else None
    scale = sampled.population / len(sampled.drawn) if sampled is not None else 1
    larger = large(found, base)
    return ProcessInspected(
        pid=one.pid,
        started=one.started,
        command=one.look.command if one.look is not None else command(one.pid),
        uid=one.look.uid if one.look is not None else account(one.pid),
        bytes=round(found.total() * scale),
        large=None if larger is None else round(larger * scale),
        thp_disabled=one.look.thp_disabled if one.look is not None else None,
        allocator=one.look.allocator.name if one.look is not None else None,
        tunable=tunable(one.look.environment or {}) if one.look is not None else None,
    )
