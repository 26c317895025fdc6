"""The open comparisons of a run as lines of text: each with its estimate, its interval, and a bar that closes.

The intervals are those of the verdicts, by inversion of the sequential test (`hugewise.stats.inversion`): the chance
that one ever loses its effect is bounded over all looks together, so that nobody who watches is misled by watching.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from hugewise.report import numbers
from hugewise.session.progress import OpenComparison
from hugewise.visible import printable

__all__ = ["Intervals", "bar"]

_LEAST, _MOST = 12, 32  # cells of a name
_WIDTH = 21  # of a bar, so that there is a middle
_FAR = math.log(2)  # the first intervals can reach to 1e36
_HEAD = "open: change against the baseline, intervals that hold whenever one looks"


class _Marks(NamedTuple):
    known: str
    none: str
    covered: str
    at: str
    below: str
    above: str


_DRAWN = _Marks(known="━", none="│", covered="┿", at="●", below="◂", above="▸")
_ASCII = _Marks(known="=", none="|", covered="+", at="o", below="<", above=">")


class Intervals:
    """What is open, by cell; `lines` shows it."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        self._marks = _ASCII if ascii_only else _DRAWN
        self._open: dict[str, tuple[OpenComparison, ...]] = {}
        self._latest: dict[str, None] = {}  # of the cells, the last one last
        self._reach: dict[tuple[str, str, str], float] = {}

    def see(self, cell: str, found: Iterable[OpenComparison]) -> None:
        """These are open in the cell now. A bar's frame is its first interval, at most half to twice as much."""
        self._open[cell] = tuple(found)
        self._latest.pop(cell, None)
        self._latest[cell] = None
        for one in self._open[cell]:
            ends = [abs(math.log(end)) for end in (one.low, one.high) if end is not None and 0 < end < math.inf]
            if one.low is not None and one.high is not None and ends:
                self._reach.setdefault((cell, one.arm, one.metric), min(max(*ends, 1e-6), _FAR))

    def lines(self, width: int, height: int) -> list[str]:
        """At most so many lines of so many cells: whole cells of the plan, those that were measured last."""
        left, kept = height - 1, set[str]()
        for cell in reversed(self._latest):
            needed = len({one.metric for one in self._open[cell]}) + len(self._open[cell])
            if needed <= left:
                kept.add(cell)
                left -= needed
        lines = [
            line
            for cell, every in self._open.items()
            if cell in kept
            for metric in dict.fromkeys(one.metric for one in every)
            for line in self._of(cell, [one for one in every if one.metric == metric], width)
        ]
        return [set_cell_size(line, width).rstrip() for line in (_HEAD, *lines)] if lines else []

    def _of(self, cell: str, found: Sequence[OpenComparison], width: int) -> list[str]:
        """Those of one metric."""
        names = [printable(one.arm) for one in found]
        # Estimate and interval have 27 cells as a rule, of 80; who has more cells has them for names.
        least = max(_LEAST, min(_MOST, width - _WIDTH - 32))
        room = min(least, max(map(cell_len, names)))
        rows = [
            f"  {set_cell_size(name, room)} {self._bar(cell, one)}  {numbers.effect(one.ratio, one.low, one.high)}"
            for name, one in zip(names, found, strict=True)
        ]
        return [f"{printable(cell)}: {printable(found[0].metric)} against {printable(found[0].baseline)}", *rows]

    def _bar(self, cell: str, one: OpenComparison) -> str:
        return bar(one.ratio, one.low, one.high, self._reach.get((cell, one.arm, one.metric)), self._marks)


def bar(ratio: float | None, low: float | None, high: float | None, reach: float | None, marks: _Marks = _DRAWN) -> str:
    """An interval of arm/baseline about "no change", which stands in the middle, on a logarithmic scale.

    `reach`: the log-ratio at both ends of the bar; None: not known yet. An end that is not bounded, or beyond, is an
    arrow.
    """
    middle = _WIDTH // 2

    def shift(end: float | None, unknown: float) -> float:
        """From the middle, in halves of the bar."""
        if end is None or reach is None:
            return unknown
        return math.log(end) / reach if 0 < end < math.inf else math.copysign(math.inf, end - 1)

    def place(shifted: float) -> int:
        return round(middle + max(-1.0, min(1.0, shifted)) * middle)

    below, above = shift(low, -math.inf), shift(high, math.inf)
    first, last = place(below), place(above)
    cells = [marks.known if first <= at <= last else " " for at in range(_WIDTH)]
    excludes = (low is not None and low > 1) or (high is not None and high < 1)
    cells[middle] = marks.none if excludes or not first <= middle <= last else marks.covered
    if below < -1 - 1e-9:
        cells[0] = marks.below
    if above > 1 + 1e-9:
        cells[-1] = marks.above
    if ratio is not None and reach is not None:
        cells[place(shift(ratio, 0.0))] = marks.at
    return "".join(cells)
