"""Which open comparisons the time of a run has room for, from the total time of its blocks and their counts alone.

A comparison has no verdict before a number of pairs that follows from its share of the error rate (`stats.power`).
Where the time has no room for so many pairs of every open comparison, the last ones of the study wait until the others
are decided. Which ones wait never hangs on the times of a single arm, or on their spread: the time of a block is the
same whichever label each of its attempts has, so that the coin's test of each comparison stays exact. A comparison that
waits keeps its share of the error rate, and is undecided unless its turn comes again.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hugewise.analysis.budget import more_time
from hugewise.model.trial import Block
from hugewise.plan.plan import Cell
from hugewise.quantity import format_duration
from hugewise.stats.fixed import FixedN
from hugewise.stats.method import Method
from hugewise.stats.power import least_pairs
from hugewise.stats.sequential import Sequential
from hugewise.study.study import Study

__all__ = ["BudgetCheck", "Open"]

_SETTLED = 3  # blocks of each cell after which the time of a block is known
_SLOW = 1.25  # times the usual time of a block: first blocks start programs and fill caches
_UNKNOWN = 2.0  # the same while the blocks of a cell are not measured, and taken for those of the others
_SPARE = 1  # pairs beyond the least: the scores of real data can take one more
_RECENT = 5  # blocks of a cell that its time is known from


class Open(NamedTuple):
    """A comparison without a verdict: `arm` against the baseline of `cell`, which have `pairs` complete pairs."""

    cell: Cell
    arm: str
    pairs: int


class _Took(NamedTuple):
    seconds: float
    attempts: int


@dataclass
class BudgetCheck:
    """Takes in every closed block. `asked`: whether a command line began the run, so that its options are the cure."""

    study: Study
    methods: Sequence[Method]
    asked: bool
    _took: defaultdict[str, deque[_Took]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=_RECENT)))
    _told: bool = False

    def observe(self, block: Block) -> None:
        """Take in the time of a complete block."""
        if block.state == "complete" and block.seconds is not None and block.attempts:
            self._took[block.cell].append(_Took(block.seconds, len(block.arms) or len({a.arm for a in block.attempts})))

    def measured(self, cell: Cell) -> bool:
        """Tell whether a block of this cell has been timed."""
        return cell.id in self._took

    def seconds(self, cell: Cell, arms: int) -> float:
        """Estimate the seconds of a block with the baseline and `arms` arms, from the last blocks of the cell, or of
        all cells while the cell has none; 0.0 before any block.
        """
        known = self._took.get(cell.id) or [one for several in self._took.values() for one in several]
        if not known:
            return 0.0
        total = sum(one.seconds for one in known)
        if cell.together:  # all arms run at once
            return total / len(known)
        attempts = 1 + arms if cell.at_most is None else min(1 + arms, cell.at_most)
        return total / sum(one.attempts for one in known) * attempts

    def waiting(self, comparisons: Sequence[Open], left: float) -> tuple[Open, ...]:
        """Those of the open `comparisons`, in the order of the study, that wait as the `left` seconds have no room for
        verdicts on all; from the end. None where there is room for all, or for none.
        """
        if self.study.method != "sequential" or self.study.budget.time is None or self.least() is None:
            return ()
        kept, room = [*comparisons], left * self._doubt(comparisons)
        while kept and self._needed(kept) > room:
            kept.pop()
        return tuple(comparisons[len(kept) :]) if kept else ()

    def least(self) -> int | None:
        """The fewest pairs after which any comparison is decided; None where that is not known, or never."""
        if self.study.method not in ("sequential", "fixed-n"):
            return None
        every = [
            least_pairs(method.alpha, method.planned) if isinstance(method, Sequential) else method.planned
            for method in self.methods
            if isinstance(method, Sequential | FixedN) and method.contrast.metric.better != "neutral"
        ]
        return min((one for one in every if one is not None), default=None)

    def told(self, comparisons: Sequence[Open], late: Sequence[Open], left: float) -> str | None:
        """A line, once, with the time that would do: which of the open `comparisons` wait (`late`), or that the `left`
        seconds suffice for none. None where there is room for all.
        """
        least, time = self.least(), self.study.budget.time
        if time is None or least is None or self._told or not comparisons:
            return None
        if late:
            self._told = True
            names = ", ".join(f"{one[0].cell.id} ({', '.join(each.arm for each in one)})" for one in _by_cell(late))
            return (
                f"the time of {format_duration(time)} has no room for verdicts on all comparisons: {names}"
                f" {'waits' if len(late) == 1 else 'wait'} until the others are decided"
                f" (for all: {more_time(time - left + self._needed(comparisons), asked=self.asked)})"
            )
        first = comparisons if self.study.method == "fixed-n" else comparisons[:1]
        if not any(self.measured(one.cell) for one in first) or self._needed(first, 0) <= left * self._doubt(
            comparisons
        ):
            return None
        self._told = True
        round_, done = self._round(comparisons), max(one.pairs for one in comparisons)
        pairs = done + int(left / round_)
        several = f"{pairs} pair{'' if pairs == 1 else 's'}"
        needed = time - left + (least - done) * round_
        fits = f"about {several} of each comparison fit into the time of {format_duration(time)}"
        return f"{fits}, and a verdict takes at least {least}: {more_time(needed, asked=self.asked)}"

    def _doubt(self, comparisons: Sequence[Open]) -> float:
        """By how much the time of a block may turn out shorter than the first ones say."""
        fewest = min((len(self._took.get(one.cell.id, ())) for one in comparisons), default=0)
        return _UNKNOWN if fewest == 0 else _SLOW if fewest < _SETTLED else 1.0

    def _round(self, comparisons: Sequence[Open]) -> float:
        """Seconds of one block of each cell that has some of these comparisons."""
        return sum(self.seconds(several[0].cell, len(several)) for several in _by_cell(comparisons))

    def _needed(self, comparisons: Sequence[Open], spare: int = _SPARE) -> float:
        """Seconds until each of these comparisons has the pairs that a verdict takes."""
        least = self.least()
        assert least is not None
        total = 0.0
        for several in _by_cell(comparisons):
            cell = several[0].cell
            arms = len(several) + sum(arm.name in self.study.unjudged for arm in cell.arms)
            pairs = max(0, least + spare - min(one.pairs for one in several))
            share = 1.0 if cell.at_most is None else max(1.0, arms / (cell.at_most - 1))  # blocks that a pair takes
            total += pairs * share * self.seconds(cell, arms)
        return total


def _by_cell(comparisons: Sequence[Open]) -> list[list[Open]]:
    found: dict[str, list[Open]] = {}
    for one in comparisons:
        found.setdefault(one.cell.id, []).append(one)
    return list(found.values())
