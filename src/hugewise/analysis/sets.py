"""The geometric mean of an effect over the programs of a set, as SPEC reports one. Pure.

A set is a workload whose `program` names what one of its cells runs: all cells that differ in nothing else. With ratios
r_1 .. r_n of an arm to the baseline, one for each program, the overall effect is their geometric mean: each program
weighs the same, and it does not matter which arm is the baseline.

The interval. Where each r_i lies in [low_i, high_i] with probability at least 1 - a_i, all of them do with at least
1 - sum a_i, whatever their dependence (Boole's inequality), and then their geometric mean lies between the geometric
means of the ends. So it needs no assumption beyond those of the programs' own intervals; it is wider than one made for
the mean alone would be. The levels a_i must have been fixed before the data: those of the method `sequential` are;
those of `fixed-n` are chosen by Holm's procedure, and no interval is given.

Source: P. J. Fleming and J. J. Wallace, How not to lie with statistics, CACM 29:218 (1986).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from statistics import geometric_mean

import msgspec

from hugewise.model.results import CellResult, Comparison

__all__ = ["PROGRAM", "Overall", "overall"]

# The parameter whose levels are the programs of a set, and the workloads that have it.
PROGRAM = "program"
_SETS = ("integer-set", "speccpu")


class Overall(msgspec.Struct, frozen=True, kw_only=True):
    """One arm against the baseline over all programs of a set. Ratios are arm/baseline.

    name        of the set: that of its cells without the program
    programs    those in the mean
    lacking     those that cannot take the policy: a mean without them is one of another set than that of other arms
    low, high   None at an end that is not bounded for one of the programs
    confidence  of the interval: at least this; None without one
    reason      why there is no mean, or no interval
    """

    name: str
    workload: str
    arm: str
    baseline: str
    metric: str
    programs: tuple[str, ...]
    lacking: tuple[str, ...]
    ratio: float | None
    low: float | None
    high: float | None
    confidence: float | None
    reason: str = ""


def overall(cells: Iterable[CellResult]) -> tuple[Overall, ...]:
    """For each set among the cells with at least two programs, each arm's mean, in the order of the cells.

    It is over the programs that can take the policy; while one of those has no estimate, there is no mean.
    """
    sets: dict[tuple[str, str], list[CellResult]] = {}
    for cell in cells:
        if cell.workload in _SETS and PROGRAM in cell.parameters:
            # A cell's name has its label and what else is varied; one set's cells have the same constants.
            sets.setdefault((cell.workload, _name(cell)), []).append(cell)
    found = []
    for (_, name), members in sets.items():
        if len(members) > 1:
            arms = dict.fromkeys(one.arm for cell in members for one in cell.comparisons)
            found += [_of_arm(name, arm, members) for arm in arms]
    return tuple(found)


def _name(cell: CellResult) -> str:
    return re.sub(rf"[- ]?{PROGRAM}={re.escape(str(cell.parameters[PROGRAM]))}", "", cell.cell)


def _of_arm(name: str, arm: str, cells: Sequence[CellResult]) -> Overall:
    by_program = {
        str(cell.parameters[PROGRAM]): next((one for one in cell.comparisons if one.arm == arm), None) for cell in cells
    }
    taking = {program: one for program, one in by_program.items() if one is not None}
    unknown = [program for program, one in taking.items() if not one.ratio]
    ratio = low = high = confidence = None
    if unknown:
        reason = f"no estimate for {', '.join(unknown)}"
    else:
        ratio = geometric_mean([one.ratio for one in taking.values() if one.ratio])
        low, high, confidence, reason = _interval(list(taking.values()))
    return Overall(
        name=name,
        workload=cells[0].workload,
        arm=arm,
        baseline=cells[0].baseline,
        metric=cells[0].metric.name,
        programs=tuple(taking),
        lacking=tuple(program for program in by_program if program not in taking),
        ratio=ratio,
        low=low,
        high=high,
        confidence=confidence,
        reason=reason,
    )


def _interval(comparisons: Sequence[Comparison]) -> tuple[float | None, float | None, float | None, str]:
    """The ends, what they hold with, and why there are none."""
    if any(one.method not in ("sequential", "exact") for one in comparisons):
        return None, None, None, "an interval needs the method sequential: levels that were fixed before the data"
    low = _mean_of([one.low for one in comparisons])
    high = _mean_of([one.high for one in comparisons])
    if low is None and high is None:
        return None, None, None, "the interval of a program is not bounded yet"
    confidence = 1 - math.fsum(1 - one.confidence for one in comparisons)
    if confidence <= 0:
        return None, None, None, "the programs' intervals together hold with no confidence"
    return low, high, confidence, ""


def _mean_of(known: Sequence[float | None]) -> float | None:
    """The geometric mean of the programs' ends on one side; None where one of them is not bounded there."""
    bounds = [end for end in known if end is not None and 0 < end < math.inf]
    return geometric_mean(bounds) if len(bounds) == len(known) else None
