"""The randomisation: which arm runs when, as a pure function of (run seed, block number).

Two arms are compared within a block of adjacent trials, in an order made by a coin (randomised complete blocks:
R. A. Fisher, The Design of Experiments, 1935; for computer measurements: Abedi and Brecht, ICPE 2017). The seed is
committed to by its hash in a run's first record and revealed in its last, so that anyone can make every order again
and see that none was chosen after the fact.

The coin of block k: 64-bit words from SHA-256("hugewise/order/1" || seed || k || counter) for counter 0, 1, ...,
k and the counter as 8 bytes big-endian, each digest read as four big-endian words. A number below n is a word modulo n;
words in the last, incomplete multiple of n are thrown away, so that there is no modulo bias. Drawn in this order: the
permutation of the sorted arms (Durstenfeld 1964, CACM algorithm 235: for i from n-1 down to 1, swap item i with item
number "below i+1"), then the slots, then the pads.

A slot is a place to run in (a CPU). Where there are at least as many slots as arms, all arms get different ones: the
slots are permuted in the same way, and the trial at position i gets the i-th. Else each trial's slot is "below the
number of slots", drawn together with its pad. Both are drawn after the arms' order and without a look at it, so that
exchanging two arms leaves everything else as probable as it was: no arm belongs to a slot.

The coins of those who take turns (`turns`: a crossover's layouts, the arms of a resident block) come from the same
construction with the domain "hugewise/turns/1"; which arms take part in a block that has no room for all (`some`: the
first of a permutation) with "hugewise/some/1".
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from hugewise.model.trial import Trial

_DOMAIN = b"hugewise/order/1"
_TURNS = b"hugewise/turns/1"
_SOME = b"hugewise/some/1"
_WORDS = 1 << 64

_Item = TypeVar("_Item")


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
    no measurement. `slots` is the number of places to run in; `pad_max` the largest number of bytes added to a trial's
    environment. Raises ValueError for repeated arms or limits out of range.
    """
    if len(set(arms)) != len(arms):
        raise ValueError(f"an arm stands twice in a block: {arms}")
    if slots < 1 or pad_max < 0:
        raise ValueError("a block needs at least one slot and a pad of at least 0 bytes")
    words = _words(_DOMAIN, seed, block)
    shuffled = _permuted(words, sorted(arms))
    places = _permuted(words, range(slots)) if slots >= len(shuffled) and slots > 1 else None
    return tuple(
        Trial(
            block=block,
            cell=cell,
            arm=arm,
            order=position,
            slot=_below(words, slots) if places is None else places[position],
            environment_pad=_below(words, pad_max + 1),
        )
        for position, arm in enumerate(shuffled)
    )


def turns(seed: bytes, block: int, layouts: int, rounds: int) -> str:
    """The order in which `layouts` (at most 10) take turns in the crossover of block `block`: a digit a turn.

    Each of the `rounds` rounds is a permutation of all layouts, drawn anew, so that every layout gets as many turns as
    the others and neighbours in time are compared.
    """
    if rounds < 1:
        raise ValueError("a crossover has at least one round")
    return "".join(itertools.islice(turn_rounds(seed, block, layouts), rounds))


def turn_rounds(seed: bytes, block: int, layouts: int) -> Iterator[str]:
    """The rounds of `turns`, one after the other and without end. Raises ValueError."""
    if not 1 <= layouts <= 10:
        raise ValueError(f"1 to 10 take turns, not {layouts}")
    words = _words(_TURNS, seed, block)
    return ("".join(map(str, _permuted(words, range(layouts)))) for _ in itertools.count())


def some(seed: bytes, block: int, arms: Sequence[str], count: int) -> list[str]:
    """Which `count` of the arms take part in block `block`, where not all can at once: each as probable as the others.

    Like `order` it depends on the seed, the block's number and the set of arms alone.
    """
    return _permuted(_words(_SOME, seed, block), sorted(arms))[:count]


def next_cell(cells: Sequence[str], closed: Mapping[str, int]) -> str | None:
    """The open cell that the next block belongs to: the one with the fewest closed complete blocks.

    Ties go by the order of `cells`, the plan's; so cells are interleaved block by block. None when no cell is open.
    """
    return min(cells, key=lambda cell: closed.get(cell, 0), default=None)


def _permuted(words: Iterator[int], items: Iterable[_Item]) -> list[_Item]:
    shuffled = list(items)
    for last in range(len(shuffled) - 1, 0, -1):
        other = _below(words, last + 1)
        shuffled[last], shuffled[other] = shuffled[other], shuffled[last]
    return shuffled


def _words(domain: bytes, seed: bytes, block: int) -> Iterator[int]:
    counter = 0
    while True:
        digest = hashlib.sha256(domain + seed + block.to_bytes(8) + counter.to_bytes(8)).digest()
        for start in range(0, len(digest), 8):
            yield int.from_bytes(digest[start : start + 8])
        counter += 1


def _below(words: Iterator[int], n: int) -> int:
    """A number from 0 to n-1, each as probable as the others."""
    limit = _WORDS - _WORDS % n
    return next(word for word in words if word < limit) % n
