"""The coins: the revealed seed of a run gives the order of each of its blocks again, and was bound before the first.

The order is made again here from its description (`docs/concepts/blocks.md`), by code that shares nothing with the one
that made it. Without a run, orders under fresh seeds are compared, and the coin's fairness is looked at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from hugewise import design
from hugewise.errors import UserError
from hugewise.runlog import BlockOpened, Closed, RunFolder
from hugewise.verification.finding import Finding, Task
from hugewise.verification.generators import generator

__all__ = ["arms_in_order", "of_design", "of_run", "tasks"]


def arms_in_order(seed: bytes, block: int, arms: Sequence[str]) -> list[str]:
    """The arms of a block in the order in which they run."""
    stream = b"".join(
        hashlib.sha256(b"hugewise/order/1" + seed + block.to_bytes(8, "big") + counter.to_bytes(8, "big")).digest()
        for counter in range(len(arms) + 4)
    )
    numbers = [int.from_bytes(stream[at : at + 8], "big") for at in range(0, len(stream), 8)]
    left = sorted(arms)
    for items in range(len(left), 1, -1):
        while numbers[0] >= 2**64 // items * items:
            numbers.pop(0)
        chosen = numbers.pop(0) % items
        left[chosen], left[items - 1] = left[items - 1], left[chosen]
    return left


def of_run(path: Path) -> Sequence[Finding]:
    """A finished run's blocks against its revealed seed. Raises UserError for a run that has not ended, or RunError."""
    folder = RunFolder(path)
    records = folder.records()
    seed = next((bytes.fromhex(record.seed) for record in records if isinstance(record, Closed)), None)
    if seed is None:
        raise UserError(
            f"{path} has not ended: its seed is not revealed yet", hint=f"finish it: hugewise resume {path}"
        )
    opened = folder.opened()
    blocks = [record for record in records if isinstance(record, BlockOpened)]
    other = sum(list(block.arms) != arms_in_order(seed, block.block, block.arms) for block in blocks)
    began = {(attempt.block, attempt.arm): attempt.started for attempt in reversed(folder.attempts())}
    announced = {block.block: block.t for block in blocks}
    late = sum(start < announced.get(block, float("inf")) for (block, _), start in began.items())
    out_of_order = 0
    for block in blocks:
        starts = [began[block.block, arm] for arm in block.arms if (block.block, arm) in began]
        out_of_order += starts != sorted(starts)
    return [
        _finding("run: the seed's hash is the one in its first record", _matches(seed, opened.seed_hash), "it is"),
        _finding("run: blocks in another order than the seed's", f"{other} of {len(blocks)}", f"0 of {len(blocks)}"),
        _finding(
            "run: blocks whose attempts began in another order",
            f"{out_of_order} of {len(blocks)}",
            f"0 of {len(blocks)}",
        ),
        _finding("run: attempts that began before their block's coin", f"{late} of {len(began)}", f"0 of {len(began)}"),
    ]


def of_design(seed: int, blocks: int = 2000) -> Sequence[Finding]:
    """The orders that `design.order` makes, against the description, and how often the first arm comes first."""
    random = generator(seed, "orders")
    other = first = 0
    for block in range(1, blocks + 1):
        run_seed = random.bytes(16)
        arms = ["a", "b", "c", "d", "e"][: 2 + block % 4]
        made = [trial.arm for trial in design.order(run_seed, block, arms)]
        other += made != arms_in_order(run_seed, block, arms)
        first += design.order(run_seed, block, ["a", "b"])[0].arm == "a"
    away = abs(first - blocks / 2) / (blocks / 4) ** 0.5
    return [
        _finding("orders other than the description's", f"{other} of {blocks}", f"0 of {blocks}"),
        Finding(
            check="coins",
            case="how often the first of two arms comes first",
            seen=f"{first} of {blocks} ({away:.1f} standard errors away)",
            required="within 4",
            passed=away <= 4,
        ),
    ]


def tasks(seed: int, run: Path | None) -> list[Task]:
    """One task, and one more for a given run."""
    found = [Task("coins", of_design, (seed,))]
    if run is not None:
        found.append(Task(f"coins of {run}", of_run, (run,)))
    return found


def _matches(seed: bytes, commitment: str) -> str:
    return "it is" if hashlib.sha256(seed).hexdigest() == commitment else "it is not"


def _finding(case: str, seen: str, required: str) -> Finding:
    return Finding(check="coins", case=case, seen=seen, required=required, passed=seen == required)
