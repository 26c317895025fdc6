"""Where a gain comes from, as far as it can be told: page faults, or page walks and caches. Pure.

The split is that of `stats.cpu_split`. It is an explanation, and no part of any verdict.
Where the processor's counters were read, page walks are told by themselves. Stalls are events of the whole machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Literal

import msgspec

from hugewise.model.trial import Attempt
from hugewise.report import numbers
from hugewise.stats.cpu_split import cpu_split

__all__ = ["CauseTold", "GainCauses", "causes", "explained"]

CauseTold = Literal["faults", "walks", "both", "not told apart"]

_WALKS = ("dtlb_walk_steps", "walk_cycles_user", "walks_user", "dtlb_load_misses")


class GainCauses(msgspec.Struct, frozen=True, kw_only=True):
    """What of an arm differs from the baseline, by pairs of the same blocks. Medians of attempts, None where not known.

    told         what the difference is of; `why` it cannot be told, and what `would` tell
    share        of the difference in CPU time that which is the kernel's, 0 to 1 (beyond, the two parts differ in
                 sign), with its interval; `saved`: whether CPU time was saved, in seconds a run
    faults       page faults of a run: of the baseline, of the arm
    walks        page walks, by the first counter that was read (`walk_metric`)
    stalls       waits for compaction, and faults that fell back to small pages, of the whole machine meanwhile
    """

    told: CauseTold
    why: str = ""
    would: str = ""
    share: float | None = None
    low: float | None = None
    high: float | None = None
    saved: float | None = None
    faults: tuple[float | None, float | None] = (None, None)
    walks: tuple[float | None, float | None] = (None, None)
    walk_metric: str = ""
    stalls: tuple[float | None, float | None] = (None, None)
    fallbacks: tuple[float | None, float | None] = (None, None)


def causes(pairs: Sequence[tuple[Attempt, Attempt]], planned: int) -> GainCauses:
    """What the pairs (arm, baseline) show, of `planned` that were declared."""
    walks = next((name for name in _WALKS if None not in _medians(pairs, name)), "")
    seen = GainCauses(
        told="not told apart",
        faults=_medians(pairs, "page_faults"),
        walks=_medians(pairs, walks) if walks else (None, None),
        walk_metric=walks,
        stalls=_medians(pairs, "compact_stalls"),
        fallbacks=_medians(pairs, "thp_fallbacks"),
    )
    known = [
        (system, system + user)
        for one, other in pairs
        if (system := _less(one, other, "system_s")) is not None and (user := _less(one, other, "user_s")) is not None
    ]
    split = cpu_split(known, planned)
    found = msgspec.structs.replace(seen, saved=split.saved, share=split.share, low=split.low, high=split.high)
    if not split.told:
        return _untold(found, split.why, split.would)
    return msgspec.structs.replace(found, told=split.told)


def _untold(found: GainCauses, why: str, would: str) -> GainCauses:
    """What cannot be told apart, with what would tell: page walks tell by themselves, where they are counted."""
    counted = "" if found.walk_metric else ", or a processor whose counters of page walks can be read"
    return msgspec.structs.replace(found, why=why, would=f"{would}{counted}")


def _less(one: Attempt, other: Attempt, name: str) -> float | None:
    """How much less the arm took than the baseline."""
    mine, theirs = one.metrics.get(name), other.metrics.get(name)
    return None if mine is None or theirs is None else theirs - mine


def _medians(pairs: Sequence[tuple[Attempt, Attempt]], name: str) -> tuple[float | None, float | None]:
    """Of the baseline, and of the arm."""
    mine = [value for one, _ in pairs if (value := one.metrics.get(name)) is not None]
    theirs = [value for _, other in pairs if (value := other.metrics.get(name)) is not None]
    return (median(theirs) if theirs else None, median(mine) if mine else None)


def explained(found: GainCauses) -> Iterator[str]:
    """The causes in sentences, as far as they are known."""
    before, after = found.faults
    faults = "" if before is None or after is None else f" Page faults a run: {before:,.0f} before, {after:,.0f} after."
    if found.saved is None or found.told == "not told apart":
        tells = f". To tell them apart it would take {found.would}" if found.would else ""
        yield f"Cause: faults and page walks are not told apart: {found.why}{tells}.{faults}"
    else:
        what = "saved" if found.saved > 0 else "lost"
        span = f"{_percents(found.low, found.high)} of the CPU time that is {what}" if found.low is not None else ""
        mostly = {
            "faults": "mostly page faults",
            "walks": "mostly page walks and caches, in the program itself",
            "both": "page faults, and page walks and caches",
        }[found.told]
        yield f"Cause: {mostly}; the kernel's time is {span} (at 95%, by itself).{faults}"
    before, after = found.walks
    if before and after is not None:
        yield f"Page walks ({found.walk_metric}): {numbers.change(after / before)}, by medians, without an interval."
    stalls = [
        f"{after:,.0f} {what} a run (before: {before:,.0f})"
        for what, (before, after) in (
            ("waits for compaction", found.stalls),
            ("faults that fell back to small pages", found.fallbacks),
        )
        if before is not None and after is not None and (before or after)
    ]
    if stalls:
        yield f"Stalls, of the whole machine meanwhile: {'; '.join(stalls)}."


def _percents(low: float | None, high: float | None) -> str:
    """An interval of a share in words; what lies beyond all or nothing is that the two parts differ in sign."""
    if low is None or high is None:
        return "not bounded"
    return (
        f"{100 * abs(max(low, 0.0)):.0f}% to {100 * min(high, 1.0):.0f}%"  # of -0.0 too
        if low < 1 and high > 0
        else ("more than all" if low >= 1 else "none")
    )
