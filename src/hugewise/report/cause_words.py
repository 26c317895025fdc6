"""What stands behind a verdict, in one paragraph: each sentence is of a fact that the run has. Pure.

Faults and walks first, then the pages, then how much other pages could still win, then what cannot be seen and why. The
words are those of docs/concepts/counters.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.model.cause import Cause, FaultTime, TlbCost
from hugewise.quantity import format_size
from hugewise.report import numbers

__all__ = ["paragraph"]

_FEW = 0.005  # of all: not worth a word


def paragraph(cause: Cause, verdict: str) -> str:
    """One paragraph; `verdict` is the word that it explains."""
    told = (
        *_split(cause, verdict),
        *_faults(cause),
        *_walks(cause),
        *_pages(cause),
        *_bound(cause),
        *_waits(cause),
        *_unseen(cause),
    )
    return " ".join(told)


def _split(cause: Cause, verdict: str) -> Iterator[str]:
    what = {"better": "gain", "worse": "loss"}.get(verdict, "difference")
    match cause.told, cause.by:
        case "neither", _:
            yield f"Neither page faults nor page walks make a {what}: {cause.why}."
        case "not told apart", _:
            would = f"; it would take {cause.would}" if cause.would else ""
            why = f": {cause.why}" if cause.why else ""
            yield f"Page faults and page walks are not told apart{why}{would}."
        case "walks", "memory touched before":
            took = max((share for share in map(_share, cause.faults, cause.cpu) if share is not None), default=0.0)
            none = f"page faults took at most {_percent(took)} of its time" if took else "it had no page faults"
            yield (
                f"The {what} is in the program itself, where page walks and cache misses are: its memory was touched "
                f"before the clock, and {none}."
            )
        case told, by:
            mostly = {
                "faults": "mostly page faults",
                "walks": "mostly page walks and cache misses, in the program itself",
                "both": "page faults as well as page walks and cache misses",
            }[told]
            spent = numbers.scale("s", [cause.saved]).text(abs(cause.saved or 0.0))
            part = f"of {spent} of CPU time {'saved' if (cause.saved or 0.0) >= 0 else 'lost'} a run"
            part += {"counters": ", by the cycles counted", "cost of a fault": ", by what a fault costs here"}.get(
                by, ""
            )
            whose = "faults are" if by == "cost of a fault" else "the kernel's time is"
            yield f"The {what} is {mostly}: {whose} {_interval(cause)} {part}."


def _interval(cause: Cause) -> str:
    share = "an unknown part" if cause.share is None else _percent(min(max(cause.share, 0.0), 1.0))
    if cause.low is None or cause.high is None or cause.by == "counters":
        return share
    return f"{share} ({_percent(max(cause.low, 0.0))} to {_percent(min(cause.high, 1.0))} at 95%, by itself)"


def _faults(cause: Cause) -> Iterator[str]:
    before, after = cause.faults
    if before.faults is None or after.faults is None or cause.by == "memory touched before":
        return
    if not before.faults and not after.faults:
        yield "There were no page faults."
        return
    counts = f"Page faults a run: {before.faults:,.0f} before, {after.faults:,.0f} after"
    times = [_took(one, cpu) for one, cpu in zip(cause.faults, cause.cpu, strict=True)]
    if all(times):
        yield f"{counts}; they took an estimated {times[0]} before and {times[1]} after."
    else:
        yield f"{counts}."


def _took(faults: FaultTime, cpu: float | None) -> str:
    if faults.typical is None or faults.low is None or faults.high is None:
        return ""
    if faults.faults == 0:
        return "nothing"
    unit = numbers.scale("s", [faults.typical])
    text = unit.text(faults.typical, (faults.high - faults.low) / 2 or None)
    share = _share(faults, cpu)
    return text if share is None else f"{text} (at most {_percent(share)} of its CPU time)"


def _share(faults: FaultTime, cpu: float | None) -> float | None:
    if faults.faults == 0:
        return 0.0
    return None if faults.high is None or not cpu else min(1.0, faults.high / cpu)


def _walks(cause: Cause) -> Iterator[str]:
    for mode, (before, after) in (("user mode", cause.user), ("the kernel", cause.kernel)):
        told = "; ".join(_counted(before, after, cause.bound.walkers))
        if told:
            yield f"In {mode}: {told}."


def _counted(before: TlbCost, after: TlbCost, walkers: int | None) -> Iterator[str]:
    if before.walk_share is not None and after.walk_share is not None:
        yield (
            f"page walks were under way in at most {_percent(min(before.walk_share, 1.0))} of the cycles before, "
            f"{_percent(min(after.walk_share, 1.0))} after"
        )
    if before.busy is not None and after.busy is not None:
        them = f"its {walkers} page walkers were" if walkers != 1 else "its page walker was"
        yield f"{them} busy for {_percent(before.busy)} of the time, then {_percent(after.busy)}"
    elif before.under_way is not None and after.under_way is not None:
        yield f"{before.under_way:.3g} page walks were under way in a cycle, then {after.under_way:.3g}"
    if before.walks_pki is not None and after.walks_pki is not None:
        yield f"{before.walks_pki:,.3g} page walks per 1,000 instructions, then {after.walks_pki:,.3g}"
    elif before.walks and after.walks is not None:
        yield f"page walks changed by {numbers.change(after.walks / before.walks)}"
    if before.stlb_hits and after.stlb_hits is not None:
        yield f"hits of the second level of the TLB changed by {numbers.change(after.stlb_hits / before.stlb_hits)}"


def _pages(cause: Cause) -> Iterator[str]:
    before, after = cause.delivered
    if before is None or after is None:
        return
    large = [f"{_percent(share)} of {format_size(int(size))}" for size, share in _largest(cause) if share >= _FEW]
    what = f": {', '.join(large)}" if len(large) > 1 else ""
    aged = f", in memory that had aged before ({cause.memory_age})" if cause.memory_age else ""
    backed = f"{_percent(after)} of the memory{what}, and {_percent(before)} before{aged}"
    yield f"Pages above the base size backed {backed}."


def _largest(cause: Cause) -> Iterator[tuple[str, float]]:
    yield from sorted(cause.sizes.items(), key=lambda item: -int(item[0]))


def _bound(cause: Cause) -> Iterator[str]:
    found = cause.bound
    if found.upper is None:
        at_most = found.parts.get("kernel")
        of_faults = f", but for page faults: at most {_percent(at_most)}, all its time in the kernel" if at_most else ""
        if found.why:
            why = "" if _is_unseen(cause) else f": {found.why}"
            yield f"How much page sizes could win at most is not known{of_faults}{why}{_won(found.won)}."
        return
    parts = [f"{name} {_percent(share)}" for name, share in found.parts.items() if share >= _FEW]
    constants = "" if found.stlb_cycles is None else f"; {found.stlb_cycles:g} cycles a hit on {found.family}"
    constants += f"; its events have errata: {found.errata}" if found.errata else ""
    listed = f" ({', '.join(parts)}{constants})" if parts else ""
    if found.won is None or found.won <= 0:
        yield f"Page sizes could win at most {_percent(found.upper)} of the baseline's CPU time{listed}."
    elif found.won <= found.upper:
        yield (
            f"What page sizes can win of the baseline's CPU time is between {_percent(found.won)}, which this arm won "
            f"at least, and {_percent(found.upper)} at most{listed}."
        )
    else:
        yield (
            f"Page sizes could win at most {_percent(found.upper)} of the baseline's CPU time{listed}; this arm won at "
            f"least {_percent(found.won)}, so look for another cause as well."
        )


def _won(won: float | None) -> str:
    return f"; this arm won at least {_percent(won)}" if won is not None and won > 0 else ""


def _is_unseen(cause: Cause) -> bool:
    """Whether the reason stands below already."""
    return any(one.why == cause.bound.why for one in cause.unseen)


def _waits(cause: Cause) -> Iterator[str]:
    listed = [
        f"{after:,.0f} {what} a run (before: {before:,.0f})"
        for what, (before, after) in (
            ("waits for compaction", cause.stalls),
            ("faults that fell back to small pages", cause.fallbacks),
        )
        if before is not None and after is not None and (before or after)
    ]
    if listed:
        yield f"Of the whole machine meanwhile: {'; '.join(listed)}."
    if cause.slowest:
        beside = [f"{count} with {what}" for what, count in sorted(cause.slow_with.items(), key=lambda one: -one[1])]
        told = (
            f"fell into seconds with unusually much of this: {'; '.join(beside)}" if beside else "fell into usual ones"
        )
        yield f"Its {cause.slowest} slowest operations {told}."


def _unseen(cause: Cause) -> Iterator[str]:
    if cause.unseen:
        yield f"Not seen: {'; '.join(f'{one.what} ({one.why})' for one in cause.unseen)}."


def _percent(share: float) -> str:
    """`38%`, `0.4%`, `<0.1%`."""
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{100 * share:.1f}%" if share < 0.095 and round(100 * share, 1) % 1 else f"{100 * share:.0f}%"
