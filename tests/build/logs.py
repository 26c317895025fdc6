"""Logs of runs written anew, as if all had been so from the beginning; and those of before there was a running hash."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hugewise.store.log import sealed

Records = list[dict[str, Any]]


def lines(run: Path) -> list[bytes]:
    """The lines of its log."""
    return (run / "run.jsonl").read_bytes().splitlines(keepends=True)


def write_lines(run: Path, of: list[bytes]) -> None:
    """Have these lines in its log and nothing else."""
    (run / "run.jsonl").write_bytes(b"".join(of))


def rewritten(run: Path, change: Callable[[Records], Records] = lambda records: records) -> Records:
    """Write the log of `run` with its records changed, and with the hashes that they and the files beside it have."""
    records: Records = [{k: v for k, v in json.loads(line).items() if k != "chain"} for line in lines(run)]
    records = change(records)
    if (guests := run / "guests.json").exists():
        records[0]["guests"] = hashlib.sha256(guests.read_bytes()).hexdigest()
    if records[0].get("study_json"):
        records[0]["study_json"] = hashlib.sha256((run / "study.json").read_bytes()).hexdigest()
    head, told = records[0]["seed_hash"], []
    for record in records:
        if record["record"] == "stored":
            kept = run / "attempts" / record["attempt"] / "attempt.json"
            record["digest"] = hashlib.sha256(kept.read_bytes()).hexdigest() if kept.exists() else record["digest"]
        line, head = sealed(json.dumps(record, separators=(",", ":")).encode(), head)
        told.append(line + b"\n")
    write_lines(run, told)
    return records


def of_before(run: Path) -> None:
    """Make it a run of before there was a running hash."""
    new = ("chain", "up", "guests", "settings", "study_json")
    records = [json.loads(line) for line in lines(run)]
    records[0]["format"] = 1
    kept = [record for record in records if record["record"] not in ("stored", "lost")]
    told = [{k: v for k, v in r.items() if k not in new or (k == "settings" and r["record"] == "opened")} for r in kept]
    write_lines(run, [json.dumps(record, separators=(",", ":")).encode() + b"\n" for record in told])
