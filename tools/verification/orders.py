"""The coins: the revealed seed of a run gives the order of each of its blocks again, and was bound before the first.

Order, slots and added environment are made again here from the description in `model.trial`, by code that
shares nothing with the one that made them. Without a run, those under fresh seeds are compared, and the coin is looked
at.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from hugewise.errors import UserError
from hugewise.model.design import at_once
from hugewise.model.trial import draw_order
from hugewise.store.folder import RunFolder
from hugewise.store.records import BlockOpened
from tools.verification.candidate import CheckResult, Task
from tools.verification.generators import generator

_T = TypeVar("_T")


class Drawn(NamedTuple):
    """Random choices for an arm: its place in its block (from 0), its slot, and the bytes added to its environment."""

    order: int
    slot: int
    pad: int


def places(seed: bytes, block: int, arms: Sequence[str], slots: int = 1, pad_max: int = 4096) -> dict[str, Drawn]:
    """Return each arm's place in a block, in the order in which they run."""
    words = _words(seed, block)
    names = _permutation(words, sorted(arms))
    own = _permutation(words, list(range(slots))) if slots > 1 and slots >= len(names) else None
    found = {}
    for position, name in enumerate(names):
        slot = _below(words, slots) if own is None else own[position]
        found[name] = Drawn(position, slot, _below(words, pad_max + 1))
    return found


def of_run(path: Path) -> Sequence[CheckResult]:
    """Check an ended run's blocks against its revealed seed. Raises UserError, RunError."""
    run = RunFolder(path).read()
    if run.closed is None:
        raise UserError(
            f"{path} has not ended: its seed is not revealed yet", hint=f"finish it: hugewise resume {path}"
        )
    seed, study, attempts = bytes.fromhex(run.closed.seed), run.study, run.attempts
    slots, pad_max = max(1, len(study.design.slots)), study.environment_pad
    blocks = {record.block: record for record in run.records if isinstance(record, BlockOpened)}
    expected = {number: places(seed, number, block.arms, slots, pad_max) for number, block in blocks.items()}
    other = early = 0
    starts: dict[int, dict[str, float]] = {}
    for attempt in attempts:
        place = expected.get(attempt.block, {}).get(attempt.label)
        other += place != Drawn(attempt.order, attempt.slot, attempt.environment_pad)
        early += attempt.block not in blocks or attempt.started < blocks[attempt.block].t
        starts.setdefault(attempt.block, {}).setdefault(attempt.label, attempt.started)
    turned = 0
    if not at_once(study.design.first):
        for number, began in starts.items():
            times = [began[arm] for arm in expected.get(number, {}) if arm in began]
            turned += times != sorted(times)
    kept = "it is" if hashlib.sha256(seed).hexdigest() == run.opened.seed_hash else "it is not"
    return [
        _finding("run: the seed's hash is that of its first record", kept, "it is"),
        _finding("run: attempts not in the seed's place", f"{other} of {len(attempts)}", f"0 of {len(attempts)}"),
        _finding("run: blocks in another order of time", f"{turned} of {len(starts)}", f"0 of {len(starts)}"),
        _finding("run: attempts before their block began", f"{early} of {len(attempts)}", f"0 of {len(attempts)}"),
    ]


def of_design(seed: int, blocks: int = 2000) -> Sequence[CheckResult]:
    """Check the orders of `trial.draw_order` against the description, and the share of blocks that an arm begins."""
    random = generator(seed, "orders")
    other = first = 0
    for block in range(1, blocks + 1):
        run_seed = random.bytes(16)
        arms = ["a", "b", "c", "d", "e"][: 2 + block % 4]
        slots = 1 + block % 3
        made = {
            trial.arm: Drawn(trial.order, trial.slot, trial.environment_pad)
            for trial in draw_order(run_seed, block, arms, slots)
        }
        other += made != places(run_seed, block, arms, slots)
        first += draw_order(run_seed, block, ["a", "b"])[0].arm == "a"
    away = abs(first - blocks / 2) / (blocks / 4) ** 0.5
    seen = f"{first} of {blocks} ({away:.1f} standard errors away)"
    return [
        _finding("orders other than the description's", f"{other} of {blocks}", f"0 of {blocks}"),
        CheckResult("coins", "how often the first of two arms comes first", seen, "within 4", away <= 4),
    ]


def tasks(seed: int, run: Path | None) -> list[Task]:
    """Return one task, and one more for a given run."""
    found = [Task("coins", of_design, (seed,))]
    if run is not None:
        found.append(Task(f"coins of {run}", of_run, (run,)))
    return found


def _words(seed: bytes, block: int) -> Iterator[int]:
    for counter in itertools.count():
        text = b"hugewise/order/1" + seed + block.to_bytes(8, "big") + counter.to_bytes(8, "big")
        yield from struct.unpack(">4Q", hashlib.sha256(text).digest())


def _below(words: Iterator[int], n: int) -> int:
    word = next(words)
    while word >= 2**64 // n * n:
        word = next(words)
    return word % n


def _permutation(words: Iterator[int], items: list[_T]) -> list[_T]:
    for many in range(len(items), 1, -1):
        chosen = _below(words, many)
        items[chosen], items[many - 1] = items[many - 1], items[chosen]
    return items


def _finding(case: str, seen: str, required: str) -> CheckResult:
    return CheckResult("coins", case, seen, required, seen == required)
