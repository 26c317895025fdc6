"""Where a gain comes from, as far as it can be told: page faults, or page walks and caches. Pure.

Fewer faults save time in the kernel, shorter page walks and fewer cache misses save time in the program: so of the CPU
time that is saved (or lost) the kernel's part is the faults' share. It is an interval by itself at 95%, by inversion of
the exact test on `system - share * all` over pairs of the same blocks (Fieller's way to a ratio), and told in words
only where the pairs show it. It is an explanation, and no part of any verdict. System calls of the program's own are
in the kernel's part too: they are the same in both arms, and fall out of the difference.

Where the processor's counters were read, page walks are told by themselves. Stalls are events of the whole machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Literal

import msgspec

from hugewise.model.trial import Attempt
from hugewise.report import numbers
from hugewise.stats import inversion

__all__ = ["CauseTold", "GainCauses", "causes", "explained"]

CauseTold = Literal["faults", "walks", "both", "not told apart"]

_ALPHA = 0.05
_CLEAR = 0.5  # of the whole: an interval of the share that is wider tells nothing
_WALKS = ("dtlb_walk_steps", "dtlb_load_misses")


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
    if not known:
        why = "the kernel's part of its CPU time was not counted"
        return _untold(seen, why, "a control group of its own (as root), which counts it")
    budget = max(planned, len(known))
    whole = [all_ for _, all_ in known]
    typical, ends = inversion.point(whole), inversion.interval(whole, _ALPHA, budget, resolution=_fine(whole))
    if not (ends[0] > 0 or ends[1] < 0):
        return _untold(seen, "its CPU time is not seen to differ", f"more pairs than {len(known)}", saved=typical)
    if not ends[0] <= typical <= ends[1]:
        why = "what it saves drifts: the runs share no one difference"
        return _untold(seen, why, "runs without other work beside them", saved=typical)
    weights = [all_ / typical for all_ in whole]
    of_kernel = [value for value, _ in known]
    low, high = (end / typical for end in inversion.interval(of_kernel, _ALPHA, budget, _fine(whole), weights=weights))
    low, high = sorted((low, high))
    share = inversion.point(of_kernel, weights) / typical
    found = msgspec.structs.replace(seen, saved=typical, share=share, low=_end(low), high=_end(high))
    if not (math.isfinite(low) and math.isfinite(high)):
        return _untold(
            found, f"{len(known)} pairs do not bound the kernel's share of it", f"more than {len(known)} pairs"
        )
    if low > _CLEAR:
        return msgspec.structs.replace(found, told="faults")
    if high < _CLEAR:
        return msgspec.structs.replace(found, told="walks")
    if high - low <= _CLEAR:
        return msgspec.structs.replace(found, told="both")
    wanted = math.ceil(len(known) * ((high - low) / _CLEAR) ** 2)  # an interval shrinks as their root
    return _untold(found, f"the kernel's share of it is {_percents(low, high)}", f"some {wanted} pairs")


def _untold(found: GainCauses, why: str, would: str, **more: float) -> GainCauses:
    """What cannot be told apart, with what would tell: page walks tell by themselves, where they are counted."""
    counted = "" if found.walk_metric else ", or a processor whose counters of page walks can be read"
    return msgspec.structs.replace(found, why=why, would=f"{would}{counted}", **more)


def _fine(values: Sequence[float]) -> float:
    """A resolution for an interval of such values."""
    return max(1e-9, 1e-3 * max(map(abs, values)))


def _end(value: float) -> float | None:
    return value if math.isfinite(value) else None


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
