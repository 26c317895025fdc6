"""Cells in which nothing ever succeeds, under any policy: they tell nothing of the policies, and take others' time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from hugewise.model.trial import Block

__all__ = ["Failing"]

_PATIENCE = 3
"""So many blocks of a cell in which every attempt failed mean that it cannot be measured here as it is."""


@dataclass
class Failing:
    """What succeeded in any block of the run, and what failed since its session began: a run that is resumed tries
    again. A cell that has had a success is never given up: an outage ends.
    """

    _succeeded: set[str] = field(default_factory=set)
    _blocks: Counter[str] = field(default_factory=Counter)
    _arms: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # that were tried
    _last: dict[str, str] = field(default_factory=dict)  # failure of each cell
    _given_up: dict[str, str] = field(default_factory=dict)  # cells, each with why
    _least: dict[str, int] = field(default_factory=dict)  # blocks of cells that were tried once more, with those

    def __contains__(self, cell: str) -> bool:
        """Whether the cell is given up."""
        return cell in self._given_up

    def observe(self, block: Block, *, now: bool) -> None:
        """Take a block into account; `now`: it was made in this session, and not read of the run before."""
        counted = [attempt for attempt in block.attempts if attempt.state in {"accepted", "failed"}]
        if any(attempt.state == "accepted" for attempt in counted):
            self._succeeded.add(block.cell)
        if not now or block.state != "complete":
            return
        self._blocks[block.cell] += 1
        for attempt in counted:
            self._arms[block.cell].add(attempt.arm)
            self._last[block.cell] = attempt.reason or "no reason is known"

    def give_up(self, cell: str, arms: Iterable[str]) -> str | None:
        """Why the cell with these arms is given up, where it is: every one of them was tried, and all failed."""
        hopeless = self._blocks[cell] >= self._least.get(cell, _PATIENCE) and {*arms} <= self._arms[cell]
        if not hopeless or cell in self._succeeded:
            return None
        told = f"every attempt failed in the {self._blocks[cell]} blocks of {cell}; the last: {self._last[cell]}"
        self._given_up[cell] = told
        return told

    def again(self) -> bool:
        """Whether the cells that are given up have one more block each, once: what ailed them may be over by now."""
        if self._least or not self._given_up:
            return False
        self._least = {cell: self._blocks[cell] + 1 for cell in self._given_up}
        self._given_up.clear()
        return True

    def told(self) -> str:
        """Each cell that is given up, and why."""
        return "; ".join(self._given_up.values())
