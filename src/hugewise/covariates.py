"""What is measured of the host just before an attempt, for a study that names it as its covariate.

Each is taken before the knobs of the attempt's treatment are turned, so that its own treatment cannot have moved it.
What the attempt before it left behind can be in it: the second arm of a block is measured after the first. A study that
names a covariate therefore washes out before it: a pause, then loops that are thrown away. That makes such a mark
smaller and proves nothing; what is left of it is bounded by `hugewise.stats.covariate`.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from typing import Literal

import msgspec

from hugewise.host import Host

__all__ = ["COVARIATES", "Covariate", "difference", "measure"]

_TURNS = 20_000  # 1.3 ms of one 2.1 GHz core under CPython 3.11
_PAUSE, _DISCARDED = 0.05, 8  # of the wash-out: seconds without work, and loops (some 10 ms) to warm up again


class Covariate(msgspec.Struct, frozen=True):
    """`scale`: whether a pair's difference is log(arm) - log(baseline), or arm - baseline where 0 is a usual value."""

    unit: str
    scale: Literal["log", "plain"]
    description: str


COVARIATES: Mapping[str, Covariate] = {
    "canary": Covariate("s", "log", "wall time of a fixed loop of integer arithmetic, about 1 ms"),
    "load_before": Covariate("1", "plain", "the load average of one minute"),
}


def measure(host: Host, *, wash_out: bool = False) -> dict[str, float]:
    """Every covariate that this host has, by name. Takes about 1.5 ms; allocates no memory worth a page.

    With `wash_out` some 60 ms more, the same before every attempt: short marks of the one before it (a frequency that
    is still low or high, cold caches, work that is left to the kernel) have then passed.
    """
    if wash_out:
        time.sleep(_PAUSE)
        for _ in range(_DISCARDED):
            _canary()
    found = {"canary": _canary()}
    with contextlib.suppress(OSError, ValueError, IndexError):  # then not listed: it is missing, not 0
        found["load_before"] = float(host.read("/proc/loadavg").split()[0])
    return found


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


def _canary() -> float:
    """Seconds of wall time, so that a stolen or shared CPU shows as well as a slow one."""
    state, started = 1, time.perf_counter()
    for _ in range(_TURNS):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
    return time.perf_counter() - started
