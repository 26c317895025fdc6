"""A run as it is shown while it runs: on a terminal a bar and intervals that close, elsewhere a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from hugewise.cli.intervals import Intervals
from hugewise.console import TextConsole
from hugewise.quantity import format_duration
from hugewise.session.progress import AttemptStarted, BlockEnded, Event, Listener, Message, Started

__all__ = ["shown"]

# Without a terminal a line is printed at most this often, so that a log stays readable.
_EVERY_S = 10.0
# Intervals are found between blocks, when nothing is measured: in no more than this part of the time of the run.
_LOOKING = 0.01


@contextmanager
def shown(stream: TextIO) -> Iterator[Listener]:
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
            TextColumn("{task.fields[what]:<36.36}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:.0f}/{task.total:.0f} blocks", markup=False),
            TextColumn("{task.fields[left]:>14.14}", markup=False),
            console=console,
            transient=True,
            # Redrawing competes with the measurement for a processor: twice a second is enough.
            refresh_per_second=2,
        )
        self._task = self.add_task("run", total=1, what="", left="")

    def get_renderables(self) -> Iterable[RenderableType]:
        """What is drawn, made anew only after a block."""
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
                self.update(self._task, completed=event.closed, total=max(event.blocks, 1), left=left)
            case Message():
                self.console.print(event.text, soft_wrap=True)

    def _look(self, event: BlockEnded) -> None:
        began = time.monotonic()
        if self._looked > _LOOKING * (began - self._began):
            return  # they are as they were a moment ago; what a later block finds is no wider
        self._intervals.see(event.cell, event.comparisons())
        size = self.console.size
        self._text = Text("\n".join(self._intervals.lines(size.width, size.height - 4)), no_wrap=True)
        self._looked += time.monotonic() - began


def _lines(console: TextConsole) -> Listener:
    last = time.monotonic()

    def lines(event: Event) -> None:
        nonlocal last
        match event:
            case Started():
                console.print(f"run {event.run} in {event.folder}: {event.blocks} blocks planned", soft_wrap=True)
            case AttemptStarted() if time.monotonic() - last >= _EVERY_S:  # within a block that takes long
                last = time.monotonic()
                console.print(f"block {event.block} ({event.cell}): {event.arm}", soft_wrap=True)
            case BlockEnded() if (
                event.closed == 1 or time.monotonic() - last >= _EVERY_S or event.closed == event.blocks
            ):
                last = time.monotonic()
                console.print(
                    f"{event.closed}/{event.blocks} blocks, {format_duration(event.left_s)} left{_open(event)}"
                    f" ({event.cell})",
                    soft_wrap=True,
                )
            case Message():
                console.print(event.text, soft_wrap=True)
            case _:
                pass

    return lines


def _open(event: BlockEnded) -> str:
    """That the estimate knows nothing yet of some cells."""
    if not event.unmeasured:
        return ""
    return f" if {event.unmeasured} cell{'' if event.unmeasured == 1 else 's'} not begun take as long as the others"
