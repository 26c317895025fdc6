"""What is stored of a run, read from its files alone, and whether a resumed run lost or repeated some of it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hugewise.store import compacted

__all__ = ["StoredAttempt", "accepted", "missing", "only_run", "resumable", "stored", "whole"]

_RECORD = "attempt.json"


@dataclass(frozen=True)
class StoredAttempt:
    """An attempt that is stored; `digest` is over its record and every other file of its folder."""

    block: int
    arm: str
    state: str
    digest: str


def only_run(results: Path) -> Path | None:
    """The folder of the only run there, beside the data of workloads; None before it was made."""
    found = [path.parent for path in results.glob("*/*/study.json") if path.parent.parent.name != "data"]
    assert len(found) <= 1, found
    return found[0] if found else None


def resumable(run: Path | None) -> bool:
    """Whether the run has begun, by its first record, and has not ended."""
    records = list(_records(run)) if run is not None else []
    return bool(records) and records[0].get("record") == "opened" and not _ended(records)


def _ended(records: list[dict[str, Any]]) -> bool:
    return any(record.get("record") == "closed" for record in records)


def _records(run: Path) -> Iterator[dict[str, Any]]:
    """Its log; what a kill has torn is passed over."""
    with suppress(FileNotFoundError):
        for line in (run / "run.jsonl").read_bytes().split(b"\n"):
            with suppress(ValueError):
                yield json.loads(line)


def stored(run: Path | None) -> dict[str, StoredAttempt]:
    """The attempts by the name of their folder, wherever their records lie."""
    if run is None:
        return {}
    records = {path.parent.name: path.read_bytes() for path in (run / "attempts").glob(f"[!.]*/{_RECORD}")}
    records = compacted.read(run / "attempts.parquet") | records
    found = {}
    for name, record in sorted(records.items()):
        digest = hashlib.sha256(record)
        for path in sorted((run / "attempts" / name).rglob("*")):
            if path.is_file() and path.name != _RECORD:
                digest.update(path.name.encode() + b"\0" + path.read_bytes())
        said = json.loads(record)
        found[name] = StoredAttempt(said["block"], said["arm"], said["state"], digest.hexdigest())
    return found


def accepted(attempts: Mapping[str, StoredAttempt]) -> int:
    """How many of them are accepted."""
    return sum(attempt.state == "accepted" for attempt in attempts.values())


def missing(before: Mapping[str, StoredAttempt], now: Mapping[str, StoredAttempt]) -> list[str]:
    """Attempts that were there `before`, and are gone or changed."""
    lost = [f"{name} is gone" for name in before if name not in now]
    return lost + [f"{name} is not what it was" for name in before if name in now and now[name] != before[name]]


def whole(run: Path, before: Mapping[str, StoredAttempt]) -> tuple[list[str], list[str], list[str]]:
    """What a resumed run lost of what it had `before`, what it made twice, and what else is not as promised."""
    now, records = stored(run), list(_records(run))
    lost = missing(before, now)
    opened = {record["block"]: record for record in records if record.get("record") == "block_opened"}
    closed = {record["block"]: record["state"] for record in records if record.get("record") == "block_closed"}
    lost += [
        f"block {block} was closed as {state}, with accepted attempts in it"
        for block, state in closed.items()
        if state != "complete" and any(one.block == block and one.state == "accepted" for one in now.values())
    ]
    made = Counter((one.block, one.arm) for one in now.values() if one.state in ("accepted", "failed"))
    repeated = [f"block {block} has {n} attempts of {arm}" for (block, arm), n in made.items() if n > 1]
    # Another number of the same block and arm is not another attempt where the first one was accepted.
    other = [
        f"block {block} is complete without an attempt of {arm}"
        for block, state in closed.items()
        if state == "complete"
        for arm in opened[block]["arms"]
        if made[block, arm] == 0
    ]
    if not _ended(records):
        other.append("the run has not ended")
    return lost, repeated, other
