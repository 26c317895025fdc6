"""Whether the arms of a comparison did the same work, where a time is judged that speaks of all of it. Pure.

A command, or a load of a service, that does less work under an arm is sooner done, and nothing of that is the pages'.
How much was done only it can say itself, by a value `operations`: the bytes that went through a server's sockets are
not kept once these are closed, and its CPU time is what the pages change. So without that value it is said that nobody
knows. Where it says it and the arms differ by more than chance, that is said; where they differ by more than the
margin, there is no verdict on such a time: one for each operation, or a rate, has one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median

import msgspec

from hugewise.model.metric import OPERATIONS, WALL_US
from hugewise.model.results import Comparison
from hugewise.model.trial import Block
from hugewise.stats import signflip
from hugewise.store.records import CellRecord

__all__ = ["with_work"]

_COUNTING = ("command", "service")  # workloads that can be told a value
_FOR_EACH = (WALL_US.name, "server_cpu_us")
_ALPHA = 0.01
_LEAST = 0.001  # operations: none at all has a logarithm too


def with_work(one: Comparison, cell: CellRecord, blocks: Sequence[Block], margin: float) -> Comparison:
    """The comparison with what is known of the work behind it; without its verdict where the arms' work differs by more
    than the `margin` (a share). `blocks` are the cell's.
    """
    named = _named(cell)
    if cell.workload not in _COUNTING or one.metric in _FOR_EACH or one.metric in named:
        return one
    if OPERATIONS not in named:
        return one if cell.workload == "command" or one.n == 0 else _unknown(one)
    pairs = list(_pairs(one, blocks))
    if len(pairs) < 2 or not _differ(pairs):
        return one
    ratio = math.exp(median(math.log(arm / base) for arm, base in pairs))
    percent = 100 * abs(ratio - 1)
    less = f"{percent:.{0 if percent >= 10 else 1}f}% {'less' if ratio < 1 else 'more'} work"
    said = f"under {one.arm} it did {less} than under {one.baseline} ({OPERATIONS}, {len(pairs)} pairs)"
    if abs(ratio - 1) <= margin:
        return msgspec.structs.replace(one, warnings=(*one.warnings, said))
    cure = f"judge the time for each operation (metric {WALL_US.name}), or have it do a fixed work"
    reason = "; ".join(part for part in (f"withheld: {said}: {cure}", one.reason) if part)
    return msgspec.structs.replace(one, verdict="none", reason=reason, reach=None)


def _unknown(one: Comparison) -> Comparison:
    cure = f"have its output counted: --value '{OPERATIONS},neutral=regex:PATTERN'"
    told = f"whether the load did as much work under both is not known, only how long it took ({cure})"
    return msgspec.structs.replace(one, warnings=(*one.warnings, told))


def _named(cell: CellRecord) -> set[str]:
    """The names of the values that its output is read for."""
    given = cell.values.get("values", ())
    return {str(each).partition(",")[0].strip() for each in (given if isinstance(given, list | tuple) else ())}


def _pairs(one: Comparison, blocks: Sequence[Block]) -> Iterator[tuple[float, float]]:
    """Operations of the arm and of the baseline in each block that has both."""
    for block in blocks:
        sides = [
            [
                max(work, _LEAST)
                for attempt in block.attempts
                if attempt.arm == name
                and attempt.state == "accepted"
                and (work := attempt.metrics.get(OPERATIONS)) is not None
            ]
            for name in (one.arm, one.baseline)
        ]
        if all(sides):
            yield fmean(sides[0]), fmean(sides[1])


def _differ(pairs: Sequence[tuple[float, float]]) -> bool:
    """By more than chance: by the exact test of the pairs' signs; and where each side does ever the same, at once."""
    if all(len(set(side)) == 1 for side in zip(*pairs, strict=True)):
        return pairs[0][0] != pairs[0][1]
    differences = [math.log(arm / base) for arm, base in pairs]
    return signflip.run(differences, _ALPHA, len(differences)).sign != 0
