"""A run as it is shown while it runs: on a terminal a bar and intervals that close, elsewhere a line now and then.

The intervals are those of the verdicts, by inversion of the sequential test (`hugewise.stats.inversion`): the chance
that one ever loses its effect is bounded over all looks together, so that nobody who watches is misled by watching.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from hugewise.console import TextConsole
from hugewise.errors import HugewiseError
from hugewise.quantity import format_duration
from hugewise.report import numbers
from hugewise.session.progress import AttemptStarted, BlockEnded, Event, Listener, Message, OpenComparison, Started
from hugewise.visible import printable

_LEAST, _MOST = 12, 32  # cells of a name
_WIDTH = 21  # cells of a bar; odd, so that there is a middle
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
    """Open comparisons by cell, drawn by `lines`."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        self._marks = _ASCII if ascii_only else _DRAWN
        self._open: dict[str, tuple[OpenComparison, ...]] = {}
        self._latest: dict[str, None] = {}  # cells, the latest one last
        self._reach: dict[tuple[str, str, str], float] = {}

    def see(self, cell: str, found: Iterable[OpenComparison]) -> None:
        """Set the open comparisons of a cell. A bar's frame is its first interval, at most half to twice as much."""
        self._open[cell] = tuple(found)
        self._latest.pop(cell, None)
        self._latest[cell] = None
        for one in self._open[cell]:
            ends = [abs(math.log(end)) for end in (one.low, one.high) if end is not None and 0 < end < math.inf]
            if one.low is not None and one.high is not None and ends:
                self._reach.setdefault((cell, one.arm, one.metric), min(max(*ends, 1e-6), _FAR))

    def lines(self, width: int, height: int) -> list[str]:
        """Return at most `height` lines of whole cells in the plan's order, chosen by latest measurement."""
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
        names = [printable(one.arm) for one in found]
        # Estimate and interval usually have 27 cells of 80; wider terminals have more for names.
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
    """Return an interval about "no change" on a logarithmic scale; `reach`: the log-ratio at both ends, if known."""
    middle = _WIDTH // 2

    def shift(end: float | None, unknown: float) -> float:
        """Return the distance from the middle, in halves of the bar."""
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


# Without a terminal a line is printed at most this often, so that a log stays readable.
_EVERY_S = 10.0
# Intervals are found between blocks, when nothing is measured: in no more than this part of the time of the run.
_LOOKING = 0.01


@contextmanager
def show_progress(stream: TextIO) -> Iterator[Listener]:
    """Show a run on `stream`: live on a terminal, a line now and then elsewhere."""
    console = TextConsole(stream)
    if not console.is_terminal:
        yield _lines(console)
        return
    with _Live(console) as live:
        yield live.hear


class _Live(Progress):
    """A bar of the blocks, below the comparisons that are open."""

    def __init__(self, console: TextConsole) -> None:
        self._intervals, self._text = Intervals(ascii_only=console.options.ascii_only), Text()
        self._began, self._looked = time.monotonic(), 0.0
        super().__init__(
            TextColumn("{task.fields[what]:<26.26}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:.0f}/{task.total:.0f} blocks", markup=False),
            TextColumn("{task.fields[decided]}", markup=False),
            TextColumn("{task.fields[left]:>14.14}", markup=False),
            console=console,
            transient=True,
            # Redrawing competes with the measurement for a processor: twice a second is enough.
            refresh_per_second=2,
        )
        self._task = self.add_task("run", total=1, what="", decided="", left="")

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return what is drawn, made anew only after a block."""
        if self._text:
            yield self._text
        yield self.make_tasks_table(self.tasks)

    def hear(self, event: Event) -> None:
        match event:
            case Started():
                self.console.print(f"run {event.run} in {event.folder}", soft_wrap=True)
                self.update(self._task, total=max(event.blocks, 1), completed=event.closed)
            case AttemptStarted():
                self.update(self._task, what=f"{event.cell}: {event.arm}")
            case BlockEnded():
                self._look(event)
                left = f"{format_duration(event.left_s)}{'+' if event.unmeasured else ''} left"
                decided = _decided(event) if event.judged else ""
                total = max(event.blocks, 1)
                self.update(self._task, completed=event.closed, total=total, left=left, decided=decided)
            case Message():
                self.console.print(event.text, soft_wrap=True)

    def _look(self, event: BlockEnded) -> None:
        began = time.monotonic()
        if self._looked > _LOOKING * (began - self._began):
            return  # unchanged; a later block's intervals are no wider
        self._intervals.see(event.cell, event.comparisons())
        size = self.console.size
        self._text = Text("\n".join(self._intervals.lines(size.width, size.height - 4)), no_wrap=True)
        self._looked += time.monotonic() - began


def _lines(console: TextConsole) -> Listener:
    last, tenths = time.monotonic(), 0

    def lines(event: Event) -> None:
        nonlocal last, tenths
        match event:
            case Started():
                console.print(f"run {event.run} in {event.folder}: {_planned(event)}", soft_wrap=True)
            case AttemptStarted() if time.monotonic() - last >= _EVERY_S:  # within a block that takes long
                last = time.monotonic()
                console.print(f"block {event.block} ({event.cell}): {event.arm}", soft_wrap=True)
            case BlockEnded() if event.closed == 1 or time.monotonic() - last >= _EVERY_S or _tenths(event) > tenths:
                last, tenths = time.monotonic(), _tenths(event)
                decided = f" {_decided(event)}," if event.judged else ""
                console.print(
                    f"{event.closed}/{event.blocks} blocks,{decided} about {format_duration(event.left_s)}"
                    f" left{_open(event)} ({event.cell})",
                    soft_wrap=True,
                )
            case Message():
                console.print(event.text, soft_wrap=True)
            case _:
                pass

    return lines


def _planned(event: Started) -> str:
    """Return how long the run may get: the number of its blocks, or its time where it has one."""
    planned = f"{event.blocks} blocks" if event.time is None else format_duration(event.time)
    return f"{_decided(event)}, {planned} planned" if event.judged else f"{planned} planned"


def _decided(event: Started | BlockEnded) -> str:
    return f"{event.decided} of {event.judged} decided"


def _tenths(event: BlockEnded) -> int:
    return 10 * event.closed // max(event.blocks, 1)


def _open(event: BlockEnded) -> str:
    """Return the note that the estimate knows nothing yet of some cells."""
    if not event.unmeasured:
        return ""
    return f" if {event.unmeasured} cell{'' if event.unmeasured == 1 else 's'} not begun take as long as the others"


def reported(start: Callable[[Any], Any]) -> Any:
    """Run with a progress display, show the verdicts and return the results; end with 130 where it was interrupted."""
    import hugewise  # noqa: PLC0415  (each verb pays only for what it uses)
    from hugewise.report.summary import summary  # noqa: PLC0415
    from hugewise.report.terminal import show  # noqa: PLC0415

    with show_progress(sys.stderr) as listener:
        results = start(listener)
        listener(Message("writing the report"))
        try:
            paths = hugewise.write_reports(results)
        except HugewiseError:
            show(summary(results))  # the result is not lost with the report
            raise
    show(summary(results), paths["html"])
    if results.state == "interrupted":
        sys.exit(130)
    return results
