"""Attempts, blocks and what a method makes of them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hugewise.model.metric import Metric
from hugewise.model.pages import PageTarget
from hugewise.model.results import Comparison
from hugewise.model.trial import Attempt, Block, Delivery, commitment
from hugewise.stats.end_points import TailEffect
from hugewise.stats.fixed import FixedN
from hugewise.stats.method import Contrast
from hugewise.store.folder import RunFolder
from hugewise.store.records import Opened
from hugewise.study.load import parse
from hugewise.study.study import Study
from tests.build import known

LOWER = Metric("ns_per_load", "ns", "lower", "time")
HIGHER = Metric("ns_per_load", "1/s", "higher", "rate")
NEUTRAL = Metric("ns_per_load", "1", "neutral", "count")
CONTRAST = Contrast("chase", "thp", "base", LOWER)

STUDY = parse('format = 1\nname = "s"\npolicies = ["base", "thp"]\n[[workload]]\nname = "chase"\n', "s.toml")


def delivery(delivered: bool | None = True, **changes: Any) -> Delivery:
    made = Delivery(
        target=PageTarget("thp", 2 << 20),
        delivered=delivered,
        share=None if delivered is None else 1.0 if delivered else 0.25,
        coverage={"anon:2097152": 2 << 20},
        proof="ranges",
        source="kpageflags",
    )
    return msgspec.structs.replace(made, **changes)


def attempt(arm: str, value: float | None, *, block: int = 0, delivered: bool | None = True, **changes: Any) -> Attempt:
    """An accepted attempt of that block with metric `ns_per_load` = `value`, half a second long."""
    fields: dict[str, Any] = {
        "run": "r",
        "session": 1,
        "block": block,
        "cell": "chase",
        "arm": arm,
        "baseline": arm == "base",
        "policy": arm,
        "mechanism": "system",
        "order": 0 if arm == "base" else 1,
        "slot": 0,
        "number": 1,
        "state": "accepted",
        "reason": None,
        "started": 1000.0 + block,
        "ended": 1000.5 + block,
        "wall_s": 0.5,
        "cpu_s": 0.5,
        "overhead_s": 0.1,
        "steal_s": 0.0,
        "pressure": {"cpu": 0.0},
        "boot_id": "b",
        "delivery": delivery(delivered),
        "knobs": {"/k": "v"},
        "metrics": {"ns_per_load": value, "wall_s": 0.5, "cycles": None},
        "absent": {"cycles": "not supported"} | ({"ns_per_load": "no counter here"} if value is None else {}),
        "disturbances": (),
        "environment_pad": 16,
        "peak_bytes": 1 << 20,
        "pool_bytes": 0,
        "exit_code": 0,
        "signal": None,
    }
    return Attempt(**{**fields, **changes})


def block(number: int, *of: Attempt | Mapping[str, float | None], cell: str = "chase", **changes: Any) -> Block:
    """A complete block of these attempts; of a value for each arm, where they are a mapping."""
    attempts = [
        one
        for each in of
        for one in ([attempt(arm, value, block=number, cell=cell) for arm, value in each.items()]
                    if isinstance(each, Mapping) else [each])
    ]  # fmt: skip
    made = Block(number=number, cell=cell, state="complete", reason=None, attempts=tuple(attempts))
    return msgspec.structs.replace(made, **changes)


def pair(number: int, ratio: float, baseline: float = 100.0) -> Block:
    """A block in which arm/baseline is `ratio`."""
    return block(number, {"thp": baseline * ratio, "base": baseline})


def method(metric: Metric = LOWER, *, proof: bool = True, **more: Any) -> FixedN:
    """The method for thp against base, planned for 12 pairs at 99% with a margin of 5%."""
    settings: dict[str, Any] = {"planned": 12, "confidence": 0.99, "margin": 0.05, **more}
    return FixedN(Contrast("chase", "thp", "base", metric, proof), **settings)


def fed(blocks: Iterable[Block], metric: Metric = LOWER, **more: Any) -> FixedN:
    """A method that has seen `blocks`."""
    made = method(metric, **more)
    for one in blocks:
        made.observe(one)
    return made


def ends(found: Comparison | TailEffect) -> tuple[float, float]:
    """Both ends of an interval, which are there."""
    return known(found.low), known(found.high)


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
    told, clock = msgspec.json.encode(of), changes.pop("clock", None)
    folder = RunFolder.create(results, of.name, study_json=told, study_toml=None, seed=seed, clock=clock)
    facts = {"study": of.name, "digest": of.digest, "seed_hash": commitment(seed), "study_json": folder.study_json()}
    folder.append(opened(folder.run, **facts | changes))
    return folder
