"""Events of a run for display. The conductor emits them; displays know nothing else of the conductor."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Started(msgspec.Struct, frozen=True):
    """The run begins (or goes on): how many blocks are planned and closed, the time budget in seconds, and how many of
    the `judged` comparisons are decided.
    """

    run: str
    folder: str
    blocks: int
    closed: int
    time: float | None
    decided: int = 0
    judged: int = 0


class AttemptStarted(msgspec.Struct, frozen=True):
    """An arm's turn in a block."""

    block: int
    cell: str
    arm: str


class OpenComparison(msgspec.Struct, frozen=True):
    """A comparison that is not decided yet: arm/baseline as estimated, and its interval, which holds whenever one looks
    (an end that is None: not bounded yet).
    """

    arm: str
    baseline: str
    metric: str
    ratio: float | None
    low: float | None
    high: float | None


class BlockEnded(msgspec.Struct, frozen=True):
    """A block was closed.

    closed, blocks   blocks that count by now, and in all as planned
    left_s           estimate of the seconds that remain, from the blocks that were measured
    unmeasured       cells without a measured block yet: their blocks may take another time than the estimate has
    decided, judged  comparisons of the run that are decided by now, and all that get a verdict
    comparisons      finds the open comparisons of the cell that have an interval while they are open; a call takes
                     milliseconds for each
    """

    block: int
    cell: str
    state: str
    closed: int
    blocks: int
    left_s: float
    unmeasured: int = 0
    decided: int = 0
    judged: int = 0
    comparisons: Callable[[], tuple[OpenComparison, ...]] = tuple


class Message(msgspec.Struct, frozen=True):
    """A line for the reader: a phase of the run, a pool granted in part, a disturbance."""

    text: str


class BudgetMessage(Message, frozen=True):
    """A line about the verdicts that the run's time has room for. A caller with several runs reports that for all."""


class Interrupted(Message, frozen=True):
    """The run in `folder` was interrupted, and can go on. Whoever has several runs says how all of it goes on."""

    folder: str


Event = Started | AttemptStarted | BlockEnded | Message
Listener = Callable[[Event], None]
