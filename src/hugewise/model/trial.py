"""Trials, their random order, and attempts and blocks as they are stored.

    planned -> running -> accepted                the attempt counts
                       -> failed                  the workload failed or timed out: counts, as the worst
                       -> rejected                hugewise or the host failed before the timed region, or a
                                                  guest's emulator: retried
                       -> abandoned               its block was disturbed or closed incomplete: kept, counts in no pair

An attempt's folder is written beside its place and renamed into it, so that it is there whole or not at all.

Which arm runs when is a pure function of run seed and block number. Arms are compared within a block of adjacent
trials, in an order made by a coin (randomised complete blocks: R. A. Fisher, The Design of Experiments, 1935; for
computer measurements: Abedi and Brecht, ICPE 2017). A run's first record commits to the seed by its hash and the last
reveals it, so that anyone can make every order again.

The coin of block k: 64-bit words from SHA-256("hugewise/order/1" || seed || k || counter) for counter 0, 1, ...,
k and the counter as 8 bytes big-endian, each digest read as four big-endian words. A number below n is a word modulo n;
words in the last, incomplete multiple of n are thrown away, so that there is no modulo bias. Drawn in this order: the
permutation of the sorted arms (Durstenfeld 1964, CACM algorithm 235: for i from n-1 down to 1, swap item i with item
number "below i+1"), then the slots, then the pads.

A cell may have each arm twice in a block (copies): then its labels are drawn, `thp` and `thp#2`. Both are the same arm;
the number says which attempt of the other arm makes a pair with it.

A slot is a place to run in (a CPU). Where there are at least as many slots as arms, the slots are permuted in the same
way, and the trial at position i gets the i-th. Else each trial's slot is "below the number of slots", drawn together
with its pad. Both are drawn after the arms' order and without a look at it, so that no arm belongs to a slot.

The coins of those who take turns (`draw_turns`) come from the same construction with the domain "hugewise/turns/2";
which arms take part in a block that has no room for all (`draw_some`: the first of a permutation) with
"hugewise/some/1".
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec

from hugewise.model.host import EpochSeconds
from hugewise.model.over_time import SamplerUse, Stall
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Mechanism
from hugewise.model.workload import Proof

AttemptState = Literal["accepted", "failed", "rejected", "abandoned"]
BlockState = Literal["complete", "incomplete", "disturbed"]

# What a verdict on an arm speaks of:
#   setting   the effect of turning the knobs, whatever pages came of it (intention to treat)
#   backing   the effect of the promised pages: attempts that did not get them do not count
Judged = Literal["setting", "backing"]


class Trial(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A planned run of one arm in one block. `order` counts from 0 within the block, `copy` from 1."""

    block: int
    cell: str
    arm: str
    order: int
    slot: int
    environment_pad: int  # bytes added to the environment: stack layout is a known confounder
    copy: int = 1

    @property
    def label(self) -> str:
        """Name of the trial within its block."""
        return label(self.arm, self.copy)


def label(arm: str, copy: int) -> str:
    """Return the name of an arm's copy within a block: the arm's own, and `ARM#2`."""
    return arm if copy == 1 else f"{arm}#{copy}"


def labels(arms: Iterable[str], copies: int) -> list[str]:
    """Return the labels of a block that has so many copies of each of these arms."""
    return [label(arm, copy) for arm in arms for copy in range(1, copies + 1)]


def arm_of(labelled: str) -> str:
    """Return the arm that a label names."""
    return labelled.partition("#")[0]


def copy_of(labelled: str) -> int:
    """Return the copy that a label names."""
    return int(labelled.partition("#")[2] or 1)


class DeliveryThreshold(msgspec.Struct, frozen=True):
    """Least share at the promised size; largest share above the base size where base pages are promised.

    A share of 0 demands nothing: the setting is judged (intention to treat).
    """

    share: float
    base_above: float

    def of(self, judged: Judged) -> DeliveryThreshold:
        return self if judged == "backing" else DeliveryThreshold(0.0, self.base_above)


class Delivery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Delivery of the pages that the policy promises. `delivered` None: it could not be proven.

    coverage  bytes by `kind:page size`, e.g. {"anon:65536": 1048576, "unproven": 4096}
    share     of the named memory at the promised size (None when nothing could be scanned)
    source    kpageflags, smaps, or counters
    """

    target: PageTarget
    delivered: bool | None
    share: float | None
    coverage: Mapping[str, int]
    proof: Proof
    source: str
    reason: str | None = None


class Attempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One physical try at a trial: the content of `attempt.json`. Seconds; `started` and `ended` are UTC epoch s.

    copy        which of the arm's attempts in its block, from 1, where the cell has several
    overhead_s  of hugewise: from the first step of the attempt to its record, less the time of its command. Null, as
                wall_s and cpu_s are, of an emulated guest: its clock is not this host's
    timed_out   whether its time was over before it had ended; false where nobody told
    series      throughput in each whole second of the measured part, where the workload can say it (work a second)
    facts       what was done besides: hashes of data and work, versions, where the data lay
    begun       what a command began: `forked` processes that went on with a copy of their parent's memory, programs
                that others than the first process `executed`, `threads`; empty where nobody followed it. Of servers
                those that are there when their memory is looked at, how many had children that have `ended`, and of a
                service the `shared_bytes` of the largest shared mapping
    laid        what the layout library did, where it was loaded: sums over `processes` (`attempt.context`)
    aged        what the host's memory was when it began, in studies with aged memory: bytes that were `free` and
                `free_huge` (in blocks that a huge page fits into; `free_huge_after` when its command had ended), pages
                `pinned`, the `seconds` that this took; and `swapped` bytes, out and in, where its cell has pressure
    knobs_as    where it is stored: the record of the run's log that has its knobs, which are empty here; null once
                it was read
    sampled     the machine's counters over time (`samples.json.gz` in its folder); null where they were not read, and
                `unsampled` says why
    stalls      the slowest operations, where a load generator tells them, with what the kernel did in the same seconds
    guest       of an attempt in a guest: its kernel, image, QEMU and accelerator, and what backed its memory
    """

    format: int = 1
    run: str
    session: int
    block: int
    cell: str
    arm: str
    baseline: bool
    policy: str
    mechanism: Mechanism
    order: int
    slot: int
    number: int
    state: AttemptState
    reason: str | None
    started: EpochSeconds
    ended: EpochSeconds
    wall_s: float | None
    cpu_s: float | None
    overhead_s: float | None
    steal_s: float
    pressure: Mapping[str, float | None]
    boot_id: str
    delivery: Delivery
    knobs: Mapping[str, str]
    metrics: Mapping[str, float | None]
    absent: Mapping[str, str]  # why a metric is null
    disturbances: tuple[str, ...]
    environment_pad: int
    peak_bytes: int | None
    pool_bytes: int
    exit_code: int | None
    signal: int | None
    timed_out: bool = False
    series: tuple[float, ...] = ()
    facts: Mapping[str, str | int | float] = {}
    guest: Mapping[str, str | int | float] = {}
    begun: Mapping[str, int] = {}
    laid: Mapping[str, int | str] = {}
    sampled: SamplerUse | None = None
    unsampled: str = ""
    stalls: tuple[Stall, ...] = ()
    aged: Mapping[str, int | float] = {}
    knobs_as: str | None = None
    copy: int = 1

    @property
    def label(self) -> str:
        """Name of the attempt's trial within its block."""
        return label(self.arm, self.copy)

    def value(self, metric: str) -> float | None:
        """Return a metric by its name, the wall time among them; None where it is absent."""
        return self.wall_s if metric == "wall_s" else self.metrics.get(metric)


class Block(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A closed block: what a statistical method observes. Only `complete` blocks give measurements.

    arms       labels (`label`) of those whose order its coin drew; empty in blocks made by hand, for all that it names
    unstarted  arms that no try could start, with the reason: an arm's own doing, which counts in a block of any state
    late       arms that started after a try of theirs had failed to
    redone     arms whose attempt was under way when hugewise itself ended, and was made anew
    lost       arms with an attempt of which nobody can tell whether its clock ran, with the reason: not made again
    seconds    from its opening to its end; None where a pause lies between
    turns      of arms that take turns, the order that is repeated: digits count `arms`; empty where none was kept
    """

    number: int
    cell: str
    state: BlockState
    reason: str | None
    attempts: tuple[Attempt, ...]
    unstarted: Mapping[str, str] = {}
    late: tuple[str, ...] = ()
    redone: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    lost: Mapping[str, str] = {}
    seconds: float | None = None
    turns: str = ""


def pairs_of(attempts: Iterable[Attempt], arm: str, baseline: str) -> list[tuple[Attempt, Attempt]]:
    """Return the accepted attempts of the arm, each with that of the baseline that makes a pair with it: of one block,
    the last of either label.
    """
    last = {attempt.label: attempt for attempt in attempts if attempt.state == "accepted"}
    mine = (attempt for attempt in last.values() if attempt.arm == arm)
    return [(one, last[other]) for one in mine if (other := label(baseline, one.copy)) in last]


BESIDE = " beside it was rejected: "
"""Mark in the reason of an attempt that is made again because of one that ran with it."""


def at_fault(attempts: Iterable[Attempt]) -> list[str]:
    """Return the labels of what is, or was, to be tried again for a reason of its own."""
    return list(
        dict.fromkeys(one.label for one in attempts if one.state == "rejected" and BESIDE not in (one.reason or ""))
    )


_DOMAIN = b"hugewise/order/1"
_TURNS = b"hugewise/turns/2"
_SOME = b"hugewise/some/1"
_WORDS = 1 << 64

_Item = TypeVar("_Item")


def new_seed() -> bytes:
    """16 fresh bytes from the operating system: the only impure function here."""
    return secrets.token_bytes(16)


def commitment(seed: bytes) -> str:
    """Return SHA-256 of the seed in hex: published before the first block, it binds the run to its seed."""
    return hashlib.sha256(seed).hexdigest()


def draw_order(
    seed: bytes, block: int, arms: Sequence[str], slots: int = 1, pad_max: int = 4096, *, cell: str = ""
) -> tuple[Trial, ...]:
    """Return the trials of block `block` in the order in which they run. `arms`: their labels.

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
            arm=arm_of(arm),
            copy=copy_of(arm),
            order=position,
            slot=_below(words, slots) if places is None else places[position],
            environment_pad=_below(words, pad_max + 1),
        )
        for position, arm in enumerate(shuffled)
    )


def draw_turns(seed: bytes, block: int, places: int) -> str:
    """Return two rounds of turns of the `places` (at most 10) of block `block`: a digit a turn, repeated until the end.

    The first round is drawn. The second has the same order (ABAB: every turn follows another place's) or the reverse
    one (ABBA: of two places each follows itself half of the time), which a coin decides. Raises ValueError.
    """
    if not 1 <= places <= 10:
        raise ValueError(f"1 to 10 take turns, not {places}")
    words = _words(_TURNS, seed, block)
    first = "".join(map(str, _permuted(words, range(places))))
    return first + (first[::-1] if _below(words, 2) else first)


def draw_some(seed: bytes, block: int, arms: Sequence[str], count: int) -> list[str]:
    """Return `count` of the arms that take part in block `block`, where not all can at once: each equally probable.

    Like `draw_order` it depends on the seed, the block's number and the set of arms alone.
    """
    return _permuted(_words(_SOME, seed, block), sorted(arms))[:count]


def next_cell(cells: Sequence[str], closed: Mapping[str, int]) -> str | None:
    """Return the open cell that the next block belongs to: the one with the fewest closed complete blocks.

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
    limit = _WORDS - _WORDS % n
    return next(word for word in words if word < limit) % n
