"""Attempts and blocks made by hand, for tests that need some."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hugewise.model.coin import commitment
from hugewise.model.pages import PageTarget
from hugewise.model.trial import Attempt, Block, Delivery
from hugewise.store.folder import RunFolder
from hugewise.store.records import Opened
from hugewise.study.load import parse
from hugewise.study.study import Study

__all__ = ["STUDY", "attempt", "begun", "block", "delivery", "opened"]

STUDY = parse('format = 1\nname = "s"\npolicies = ["base", "thp"]\n[[workload]]\nname = "chase"\n', "s.toml")


def delivery(delivered: bool | None = True, **changes: Any) -> Delivery:
    made = Delivery(
        target=PageTarget("thp", 2 << 20),
        delivered=delivered,
        share=1.0,
        coverage={"anon:2097152": 2 << 20},
        proof="ranges",
        source="kpageflags",
    )
    return msgspec.structs.replace(made, **changes)


def attempt(arm: str, value: float | None, *, number: int = 0, cell: str = "chase", **changes: Any) -> Attempt:
    """An accepted attempt of block `number` with metric `ns_per_load` = `value`."""
    metrics: Mapping[str, float | None] = {"ns_per_load": value, "wall_s": 0.5, "cycles": None}
    made = Attempt(
        run="r",
        session=1,
        block=number,
        cell=cell,
        arm=arm,
        baseline=arm == "base",
        policy=arm,
        mechanism="system",
        order=0 if arm == "base" else 1,
        slot=0,
        number=1,
        state="accepted",
        reason=None,
        started=1000.0 + number,
        ended=1000.5 + number,
        wall_s=0.5,
        cpu_s=0.5,
        overhead_s=0.1,
        steal_s=0.0,
        pressure={"cpu": 0.0},
        boot_id="b",
        delivery=delivery(),
        knobs={"/k": "v"},
        metrics=metrics,
        absent={"cycles": "not supported"},
        disturbances=(),
        environment_pad=16,
        peak_bytes=1 << 20,
        pool_bytes=0,
        exit_code=0,
        signal=None,
    )
    return msgspec.structs.replace(made, **changes)


def block(number: int, values: Mapping[str, float | None], *, cell: str = "chase", **changes: Any) -> Block:
    """A complete block with an accepted attempt for each arm."""
    attempts = tuple(attempt(arm, value, number=number, cell=cell) for arm, value in values.items())
    made = Block(number=number, cell=cell, state="complete", reason=None, attempts=attempts)
    return msgspec.structs.replace(made, **changes)


def opened(run: str, **changes: Any) -> Opened:
    """The first record of the run of that name: of a study `s` without cells."""
    made = Opened(
        t=1000.0,
        run=run,
        study="s",
        digest="",
        seed_hash="",
        mechanism="system",
        boot_id="b",
        host={},
        versions={},
        settings={},
        cells=(),
        left_out=(),
    )
    return msgspec.structs.replace(made, **changes)


def begun(results: Path, of: Study = STUDY, *, seed: bytes = bytes(16), **changes: Any) -> RunFolder:
    """The folder of a run of the study `of`, with nothing but its first record."""
    folder = RunFolder.create(results, of.name, study_json=msgspec.json.encode(of), study_toml=None, seed=seed)
    known = {"study": of.name, "digest": of.digest, "seed_hash": commitment(seed)}
    folder.append(opened(folder.run, **known | changes))
    return folder
