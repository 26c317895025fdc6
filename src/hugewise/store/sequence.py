"""What the records of a log say one after the other, together with the attempts: the blocks. Pure.

A record that cannot stand where it does is an error that names its line. Salvaging passes it over, and closes what its
loss leaves open as incomplete. A block whose opening is lost is lost with it, so what is left is no base of a verdict:
a salvaged run has none (`analysis`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from hugewise.model.trial import Attempt, Block
from hugewise.store.records import (
    AttemptStored,
    Begun,
    BlockClosed,
    BlockOpened,
    Closed,
    Lost,
    OpenBlock,
    Opened,
    Record,
    Resumed,
    Run,
    Unstarted,
)

__all__ = ["Found", "in_blocks", "read_before"]

_DAMAGED = "its records are damaged"


@dataclass
class Found:
    """The closed blocks in order, the one that is still open, and what cannot be: the line and what is wrong with it.

    Line 0 is none of them: an attempt that is gone.
    """

    closed: list[Block] = field(default_factory=list)
    left_open: OpenBlock | None = None
    problems: list[tuple[int, str]] = field(default_factory=list)


def in_blocks(records: Sequence[tuple[int, Record]], attempts: Sequence[Attempt]) -> Found:
    """What the records, each with its line, and the attempts make."""
    made: dict[int, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        made[attempt.block].append(attempt)
    found, last, ended = Found(), 0, False
    for line, record in records:
        wrong = _wrong(record, found.left_open, last, first=line == 1, ended=ended)
        if wrong is not None:
            found.problems.append((line, wrong))
            if not isinstance(record, BlockOpened) or record.block <= last:
                continue
            if found.left_open is not None:
                _damaged(found, found.left_open)
        block = found.left_open
        ended = ended or isinstance(record, Closed)
        if isinstance(record, BlockOpened):
            last = record.block
            found.left_open = block = OpenBlock(record, made[last])
        elif isinstance(record, BlockClosed) and block is not None:
            _close(found, block, record)
        elif isinstance(record, Resumed) and block is not None:
            block.paused = True
        elif isinstance(record, Begun | Unstarted | Lost) and block is not None:
            block.tried.append(record)
        if block is not None and isinstance(record, BlockOpened | AttemptStored) and record.up is not None:
            block.up = record.up
    return found


def read_before(records: Sequence[Record], known: Run) -> dict[str, Attempt]:
    """The attempts of `known` by the names of their folders, where these records of the same log go on from its own."""
    if not known.chained or known.left_out or tuple(records[: len(known.records)]) != known.records:
        return {}
    names = dict.fromkeys(record.attempt for record in known.records if isinstance(record, AttemptStored))
    return dict(zip(names, known.attempts, strict=True))


def _wrong(record: Record, block: OpenBlock | None, last: int, *, first: bool, ended: bool) -> str | None:
    """Why the record cannot come after those before it; None where it can."""
    number = None if block is None else block.opened.block
    if ended:
        return "nothing comes after the last record"
    match record:
        case Opened() if not first:
            return "a run begins once"
        case BlockOpened() if number is not None:
            return f"block {record.block} is opened and block {number} was never closed"
        case BlockOpened() if record.block != last + 1:
            return f"block {record.block} is opened after block {last}"
        case BlockClosed() if record.block != number:
            return f"block {record.block} is closed and was never opened"
        case Begun() | Unstarted() | Lost() if record.block != number:
            return f"an attempt of block {record.block}, which is not open"
        case Closed() if number is not None:
            return f"the run ends and block {number} was never closed"
        case _:
            return None


def _close(found: Found, block: OpenBlock, end: BlockClosed) -> None:
    closed = block.closed(end)
    there = {attempt.arm for attempt in closed.attempts}
    gone = sorted(set(closed.arms) - there - set(closed.unstarted) - set(closed.lost))
    if end.state == "complete" and gone:
        found.problems.append((0, f"block {end.block} is complete, but its attempt of {gone[0]} is gone"))
        _damaged(found, block)
        return
    found.closed.append(closed)
    found.left_open = None


def _damaged(found: Found, block: OpenBlock) -> None:
    opened = block.opened
    end = BlockClosed(t=opened.t, block=opened.block, state="incomplete", reason=_DAMAGED)
    found.closed.append(msgspec.structs.replace(block.closed(end), seconds=None))
    found.left_open = None
