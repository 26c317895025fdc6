"""Ended runs that were never measured: a recorded attempt again and again, under a log with its hash chain."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hugewise.model.metric import COMMON
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Deployment, Treatment
from hugewise.model.trial import Attempt, DeliveryThreshold, commitment
from hugewise.model.workload import ParameterValue
from hugewise.store.folder import RunFolder
from hugewise.store.log import sealed
from hugewise.store.records import (
    ArmRecord,
    AttemptStored,
    Begun,
    BlockClosed,
    BlockOpened,
    CellRecord,
    Closed,
    KnobSet,
    Opened,
    Record,
)
from hugewise.study.study import Study

RECORDED = Path(__file__).parent / "recorded"
ATTEMPT = msgspec.json.decode((RECORDED / "attempt.json").read_bytes(), type=Attempt)


def cell(name: str, arms: Sequence[str], values: Mapping[str, ParameterValue]) -> CellRecord:
    """Return a cell of the chase with these arms, the first of which is the baseline."""

    def arm(of: str) -> ArmRecord:
        treatment = Treatment(policy=of, mechanism="system", target=PageTarget("any", 4096))
        return ArmRecord(of, treatment, 0, Deployment(note=""))

    return CellRecord(
        id=name,
        workload="chase",
        values=values,
        metric=COMMON[0],
        baseline=arms[0],
        delivery=DeliveryThreshold(0.95, 0.01),
        arms=tuple(map(arm, arms)),
    )


def template(arm: str, baseline: str, order: int) -> dict[str, Any]:
    """Return the record of the attempt as one of `arm`, to be changed and written as JSON."""
    changes: dict[str, Any] = {"arm": arm, "baseline": arm == baseline, "policy": arm, "order": order, "knobs": {}}
    made = msgspec.structs.replace(ATTEMPT, **changes, knobs_as="all", state="accepted")
    told: dict[str, Any] = json.loads(msgspec.json.encode(made))
    return told


def knobs() -> bytes:
    """Return the record of the knobs that all attempts had."""
    return msgspec.json.encode(KnobSet(t=0.0, id="all", values=ATTEMPT.knobs))


def events(block: int, of: str, texts: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield the records of a complete block of the cell `of` with these attempts by arm, in this order; beside each the
    name of the attempt that it stores, or nothing.
    """
    arms = tuple(texts)
    records: list[tuple[str, Record]] = [("", BlockOpened(t=block, block=block, cell=of, session=1, arms=arms))]
    for order, (arm, text) in enumerate(texts.items()):
        name = f"b{block:05d}-{order}-{arm}-1"
        digest = hashlib.sha256(text.encode()).hexdigest()
        records += [
            ("", Begun(t=block, block=block, arms=[arm], number=1)),
            (name, AttemptStored(t=block, attempt=name, digest=digest)),
        ]
    records.append(("", BlockClosed(t=block, block=block, state="complete")))
    for name, record in records:
        yield name, msgspec.json.encode(record)


def ended(
    place: Path, of: Study, *, seed: bytes, host: str, cells: tuple[CellRecord, ...], bodies: Sequence[bytes]
) -> RunFolder:
    """Return the folder of a run of the study with these records within; its attempts are not there."""
    folder = RunFolder.create(place, of.name, study_json=msgspec.json.encode(of), study_toml=None, seed=seed)
    known: dict[str, Any] = {"host": {"name": host}, "versions": {}, "settings": {}, "left_out": ()}
    known |= {"run": folder.run, "study": of.name, "digest": of.digest, "seed_hash": commitment(seed)}
    folder.append(Opened(t=0.0, mechanism="system", boot_id=ATTEMPT.boot_id, cells=cells, **known))
    head = RunFolder(folder.path).read().hash or ""
    lines = []
    for body in (*bodies, msgspec.json.encode(Closed(t=len(bodies), state="finished", seed=seed.hex()))):
        line, head = sealed(body, head)
        lines.append(line)
    with (folder.path / "run.jsonl").open("ab") as log:
        log.write(b"\n".join(lines) + b"\n")
    return folder
