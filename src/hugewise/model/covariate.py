"""What may be measured of the host before an attempt and taken out of the differences between arms. Pure.

How they are measured is said in `hugewise.attempt.covariates`, what is done with them in `hugewise.stats.covariate`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

__all__ = ["COVARIATES", "Covariate", "difference"]


class Covariate(msgspec.Struct, frozen=True):
    """`scale`: whether a pair's difference is log(arm) - log(baseline), or arm - baseline where 0 is a usual value."""

    unit: str
    scale: Literal["log", "plain"]
    description: str


COVARIATES: Mapping[str, Covariate] = {
    "canary": Covariate("s", "log", "wall time of a fixed loop of integer arithmetic, about 1 ms"),
    "load_before": Covariate("1", "plain", "the load average of one minute"),
}


def difference(name: str, arm: Mapping[str, float], baseline: Mapping[str, float]) -> float | None:
    """The pair's difference on the covariate's own scale, arm minus baseline; None where a side has no such value.

    The scale belongs to the covariate and not to the pair: one coefficient is fitted over all pairs. Swapped labels
    change the sign and nothing else. Raises KeyError on an unknown name.
    """
    over, under = arm.get(name), baseline.get(name)
    if over is None or under is None or not (math.isfinite(over) and math.isfinite(under)):
        return None
    if COVARIATES[name].scale == "plain":
        return over - under
    return math.log(over) - math.log(under) if over > 0 and under > 0 else None
