"""What a run says while it runs. The conductor emits these events; whoever shows them knows nothing else of it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

__all__ = ["AttemptStarted", "BlockEnded", "Event", "Interrupted", "Listener", "Message", "OpenComparison", "Started"]


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
    """A block was closed; `left_s` is the estimate of what remains, in seconds, from blocks that were measured: of
    `unmeasured` cells none was yet, and theirs may take another time. `comparisons` finds the open ones of its cell
    that have an interval while they are open: to ask takes milliseconds each, so that only who shows them asks.
    """

    block: int
    cell: str
    state: str
    closed: int
    blocks: int
    left_s: float
    unmeasured: int = 0
    comparisons: Callable[[], tuple[OpenComparison, ...]] = tuple


class Message(msgspec.Struct, frozen=True):
    """A line for the reader: a phase of the run, a pool granted in part, a disturbance."""

    text: str


class Interrupted(Message, frozen=True):
    """The run in `folder` was interrupted, and can go on. Whoever has several runs says how all of it goes on."""

    folder: str


Event = Started | AttemptStarted | BlockEnded | Message
Listener = Callable[[Event], None]
