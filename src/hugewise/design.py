"""The randomisation: which arm runs when, as a pure function of (run seed, block number).

Two arms are compared within a block of adjacent trials, in an order made by a coin (randomised complete blocks:
R. A. Fisher, The Design of Experiments, 1935; for computer measurements: Abedi and Brecht, ICPE 2017). The seed is
committed to by its hash in a run's first record and revealed in its last, so that anyone can make every order again
and see that none was chosen after the fact.

The coin of block k: 64-bit words from SHA-256("hugewise/order/1" || seed || k || counter) for counter 0, 1, ...,
k and the counter as 8 bytes big-endian, each digest read as four big-endian words. A number below n is a word modulo n;
words in the last, incomplete multiple of n are thrown away, so that there is no modulo bias. Drawn in this order: the
permutation of the sorted arms (Durstenfeld 1964, CACM algorithm 235: for i from n-1 down to 1, swap item i with item
number "below i+1"), then for each trial its slot and its pad.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence

from hugewise.trial import Trial

__all__ = ["commitment", "new_seed", "next_cell", "order"]

_DOMAIN = b"hugewise/order/1"
_WORDS = 1 << 64


def new_seed() -> bytes:
    """16 fresh bytes from the operating system: the only impure function here."""
    return secrets.token_bytes(16)


def commitment(seed: bytes) -> str:
    """SHA-256 of the seed in hex: published before the first block, it binds the run to its seed."""
    return hashlib.sha256(seed).hexdigest()


def order(
    seed: bytes, block: int, arms: Sequence[str], slots: int = 1, pad_max: int = 4096, *, cell: str = ""
) -> tuple[Trial, ...]:
    """The trials of block `block` in the order in which they run.

    It depends on the seed, the block's number, the set of arms (not their order), and nothing else: no other block,
    no measurement. `slots` is the number of places to run in, drawn for each trial; `pad_max` the largest number of
    bytes added to a trial's environment. Raises ValueError for repeated arms or limits out of range.
    """
    if len(set(arms)) != len(arms):
        raise ValueError(f"an arm stands twice in a block: {arms}")
    if slots < 1 or pad_max < 0:
        raise ValueError("a block needs at least one slot and a pad of at least 0 bytes")
    words = _words(seed, block)
    shuffled = sorted(arms)
    for last in range(len(shuffled) - 1, 0, -1):
        other = _below(words, last + 1)
        shuffled[last], shuffled[other] = shuffled[other], shuffled[last]
    return tuple(
        Trial(
            block=block,
            cell=cell,
            arm=arm,
            order=position,
            slot=_below(words, slots),
            environment_pad=_below(words, pad_max + 1),
        )
        for position, arm in enumerate(shuffled)
    )


def next_cell(cells: Sequence[str], closed: Mapping[str, int]) -> str | None:
    """The open cell that the next block belongs to: the one with the fewest closed complete blocks.

    Ties go by the order of `cells`, the plan's; so cells are interleaved block by block. None when no cell is open.
    """
    return min(cells, key=lambda cell: closed.get(cell, 0), default=None)


def _words(seed: bytes, block: int) -> Iterator[int]:
    counter = 0
    while True:
        digest = hashlib.sha256(_DOMAIN + seed + block.to_bytes(8) + counter.to_bytes(8)).digest()
        for start in range(0, len(digest), 8):
            yield int.from_bytes(digest[start : start + 8])
        counter += 1


def _below(words: Iterator[int], n: int) -> int:
    """A number from 0 to n-1, each as probable as the others."""
    limit = _WORDS - _WORDS % n
    return next(word for word in words if word < limit) % n
