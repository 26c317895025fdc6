"""What a run says while it runs. The conductor emits these events; whoever shows them knows nothing else of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import msgspec
from rich.progress import BarColumn, Progress, TextColumn

from hugewise.console import TextConsole
from hugewise.quantity import format_duration

__all__ = ["AttemptStarted", "BlockEnded", "Event", "Interrupted", "Listener", "Message", "Started", "shown"]


class Started(msgspec.Struct, frozen=True):
    """The run begins (or goes on): how many blocks are planned and closed, and the time budget in seconds."""

    run: str
    folder: str
    blocks: int
    closed: int
    time: float | None


class AttemptStarted(msgspec.Struct, frozen=True):
    """An arm's turn in a block."""

    block: int
    cell: str
    arm: str


class BlockEnded(msgspec.Struct, frozen=True):
    """A block was closed; `left_s` is the estimate of what remains, in seconds, from blocks that were measured: of
    `unmeasured` cells none was yet, and theirs may take another time.
    """

    block: int
    cell: str
    state: str
    closed: int
    blocks: int
    left_s: float
    unmeasured: int = 0


class Message(msgspec.Struct, frozen=True):
    """A line for the reader: a phase of the run, a pool granted in part, a disturbance."""

    text: str


class Interrupted(Message, frozen=True):
    """The run in `folder` was interrupted, and can go on. Whoever has several runs says how all of it goes on."""

    folder: str


Event = Started | AttemptStarted | BlockEnded | Message
Listener = Callable[[Event], None]

# Without a terminal a line is printed at most this often, so that a log stays readable.
_EVERY_S = 10.0


@contextmanager
def shown(stream: TextIO) -> Iterator[Listener]:
    """Show a run on `stream`: a live bar on a terminal, a line now and then elsewhere."""
    console = TextConsole(stream)
    if console.is_terminal:
        bar = Progress(
            TextColumn("{task.fields[what]:<36.36}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:.0f}/{task.total:.0f} blocks", markup=False),
            TextColumn("{task.fields[left]:>14.14}", markup=False),
            console=console,
            transient=True,
            # Redrawing competes with the measurement for a processor: twice a second is enough.
            refresh_per_second=2,
        )
        task = bar.add_task("run", total=1, what="", left="")

        def live(event: Event) -> None:
            match event:
                case Started():
                    bar.console.print(f"run {event.run} in {event.folder}", soft_wrap=True)
                    bar.update(task, total=max(event.blocks, 1), completed=event.closed)
                case AttemptStarted():
                    bar.update(task, what=f"{event.cell}: {event.arm}")
                case BlockEnded():
                    left = f"{format_duration(event.left_s)}{'+' if event.unmeasured else ''} left"
                    bar.update(task, completed=event.closed, total=max(event.blocks, 1), left=left)
                case Message():
                    bar.console.print(event.text, soft_wrap=True)

        with bar:
            yield live
        return
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

    yield lines


def _open(event: BlockEnded) -> str:
    """That the estimate knows nothing yet of some cells."""
    if not event.unmeasured:
        return ""
    return f" if {event.unmeasured} cell{'' if event.unmeasured == 1 else 's'} not begun take as long as the others"
