"""Calibrations: streams of pairs that are drawn, and the records that a calibration writes."""

import math
import random
from typing import Any

import msgspec

from hugewise.analysis.calibration import (
    Agreement,
    Calibrated,
    CalibrationRecord,
    Stream,
    calibration_key,
    identity,
    relabelled,
    stream,
)
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment

BASE = Treatment(policy="base", mechanism="system", target=PageTarget("base", 4096))
THP = Treatment(policy="thp", mechanism="system", target=PageTarget("thp", 2 << 20), advice="huge")
KEY = calibration_key("chase", {"bytes": 1 << 20}, "ns_per_load")
NOW = 1_000_000.0


def noise(n: int, seed: int, *, sd: float = 0.02, shift: float = 0.0, drift: float = 0.0) -> Stream:
    """A stream of n pairs in which `drift` is common to a pair."""
    coins = random.Random(seed)  # noqa: S311
    first, second, in_time = [], [], []
    level = 0.0
    for _ in range(n):
        level += coins.gauss(0, drift)
        a, b = (math.exp(level + coins.gauss(0, sd)) for _ in range(2))
        b *= math.exp(shift)
        first.append(a)
        second.append(b)
        in_time += [a, b] if coins.random() < 0.5 else [b, a]
    return stream("sequential", first, second, in_time, 0.5)


def calibrated(**changes: Any) -> Calibrated:
    found = Calibrated(
        key=KEY,
        cell="chase",
        metric="ns_per_load",
        policy="base",
        streams=(noise(20, 1),),
        relabelled=relabelled(noise(20, 1).differences, 1),
        purchases=(),
        agreements=(),
        passed=True,
        reason="fine",
    )
    return msgspec.structs.replace(found, **changes)


def agreed(**changes: Any) -> Agreement:
    found = Agreement(
        arm="any name",
        treatment=identity(THP),
        baseline=identity(BASE),
        sequential=-0.1,
        duet=-0.1,
        low=-0.01,
        high=None,
        within=0.05,
        correlation_sequential=0.5,
        correlation_duet=0.8,
        agrees=True,
        reason="they agree",
    )
    return msgspec.structs.replace(found, **changes)


def record(*cells: Calibrated, **changes: Any) -> CalibrationRecord:
    found = CalibrationRecord(
        made=NOW - 3600,
        host="h",
        machine="m",
        kernel="6.18",
        versions={},
        study="s",
        seed="ab" * 16,
        planted=0.0,
        runs=(),
        cells=cells or (calibrated(),),
    )
    return msgspec.structs.replace(found, **changes)
