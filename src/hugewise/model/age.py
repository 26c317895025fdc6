"""What the memory of a machine has been through before an attempt: a factor of a cell, the same for all its arms.

    fresh                as it is found, or as compaction leaves it
    fragmented           no huge page can be made of what is free: each block has a page that cannot be moved
    pressure             the programs have less memory than they want, and swap
    fragmented+pressure  both

It is no treatment: nobody chooses to have memory that has aged. So what is judged there is the setting, with the share
of pages that it still got beside it; a condition on the pages would choose the attempts that were lucky.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MemoryAge = Literal["fresh", "fragmented", "pressure", "fragmented+pressure"]

# In an order in which each differs in one thing from the next, so that a round over all of them fragments once.
AGES: tuple[MemoryAge, ...] = ("fresh", "pressure", "fragmented+pressure", "fragmented")

MOST_OF_FREE = 0.05
MOST_OF_NEED = 0.1


class FreeMemory(msgspec.Struct, frozen=True):
    """Free memory in bytes, and the part of it in blocks that a huge page (of PMD size) fits into."""

    all: int
    huge: int


def fragmented(age: MemoryAge) -> bool:
    """Whether the free memory is to be in pieces."""
    return age in ("fragmented", "fragmented+pressure")


def pressed(age: MemoryAge) -> bool:
    """Whether the limit of the cell is to make its programs swap."""
    return age in ("pressure", "fragmented+pressure")


def allowed(free: int, need: int) -> int:
    """The most bytes in blocks that a huge page fits into, where `free` bytes are free in all, of memory that counts as
    fragmented for a cell that uses `need` bytes (0: nobody knows).
    """
    most = int(MOST_OF_FREE * free)
    return min(most, int(MOST_OF_NEED * need)) if need else most
