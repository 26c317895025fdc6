"""Kernel's part of the CPU time that an arm saves: page faults are in the kernel, page walks in the program.

Fewer faults save time in the kernel, shorter page walks and fewer cache misses save time in the program: so of the CPU
time that is saved (or lost) the kernel's part is the faults' share. It is an interval by itself at 95%, by inversion of
the exact test on `system - share * all` over pairs of the same blocks (Fieller's way to a ratio), and told in words
only where the pairs show it. System calls of the program's own are in the kernel's part too: they are the same in both
arms, and fall out of the difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from hugewise.stats import inversion

_ALPHA = 0.05
_CLEAR = 0.5  # of the whole: an interval of the share that is wider tells nothing


class CpuSplit(msgspec.Struct, frozen=True, kw_only=True):
    """Attribution of the difference in CPU time: the kernel's, the program's, both; empty where the pairs do not show
    it.

    saved             seconds a run (negative: lost), None where nothing was counted
    share, low, high  of it the kernel's, beyond 0 and 1 where the two parts differ in sign; an end that the pairs do
                      not bound is None
    why, would        why it is not told, and what would tell it
    """

    told: Literal["faults", "walks", "both", ""] = ""
    saved: float | None = None
    share: float | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""
    would: str = ""


def cpu_split(saved: Sequence[tuple[float, float]], planned: int) -> CpuSplit:
    """The split of pairs (saved in the kernel, saved in all), in seconds, of `planned` that were declared."""
    if not saved:
        why = "the kernel's part of its CPU time was not counted"
        return CpuSplit(why=why, would="a control group of its own (as root), which counts it")
    budget = max(planned, len(saved))
    whole = [all_ for _, all_ in saved]
    typical, ends = inversion.point(whole), inversion.interval(whole, _ALPHA, budget, resolution=_fine(whole))
    if not (ends[0] > 0 or ends[1] < 0):
        return CpuSplit(saved=typical, why="its CPU time is not seen to differ", would=f"more pairs than {len(saved)}")
    if not ends[0] <= typical <= ends[1]:
        why = "what it saves drifts: the runs share no one difference"
        return CpuSplit(saved=typical, why=why, would="runs without other work beside them")
    weights = [all_ / typical for all_ in whole]
    of_kernel = [value for value, _ in saved]
    low, high = (end / typical for end in inversion.interval(of_kernel, _ALPHA, budget, _fine(whole), weights=weights))
    low, high = sorted((low, high))
    share = inversion.point(of_kernel, weights) / typical
    split = CpuSplit(saved=typical, share=share, low=_end(low), high=_end(high))
    if not (math.isfinite(low) and math.isfinite(high)):
        why = f"{len(saved)} pairs do not bound the kernel's share of it"
        return msgspec.structs.replace(split, why=why, would=f"more than {len(saved)} pairs")
    if low > _CLEAR:
        return msgspec.structs.replace(split, told="faults")
    if high < _CLEAR:
        return msgspec.structs.replace(split, told="walks")
    if high - low <= _CLEAR:
        return msgspec.structs.replace(split, told="both")
    wanted = math.ceil(len(saved) * ((high - low) / _CLEAR) ** 2)  # an interval shrinks as their root
    why = f"the kernel's share of it is {100 * max(low, 0.0):.0f}% to {100 * min(high, 1.0):.0f}%"
    return msgspec.structs.replace(split, why=why, would=f"some {wanted} pairs")


def _fine(values: Sequence[float]) -> float:
    """Return a resolution for an interval of such values."""
    return max(1e-9, 1e-3 * max(map(abs, values)))


def _end(value: float) -> float | None:
    return value if math.isfinite(value) else None
