"""One pair: what an arm and its baseline took in the same block."""

from __future__ import annotations

import math

import msgspec

__all__ = ["Pair"]


class Pair(msgspec.Struct, frozen=True, gc=False):
    """`log_ratio` is log(arm) - log(baseline), None when a side failed; so is that side's value.

    covariate  the difference of the named covariate, arm minus baseline (`covariate.difference`); None without one
    lost       what it would have been is not known: see `against`
    """

    block: int
    session: int
    log_ratio: float | None
    arm: float | None
    baseline: float | None
    arm_failed: bool
    baseline_failed: bool
    covariate: float | None = None
    lost: bool = False

    def difference(self, *, higher_is_better: bool) -> float:
        """The log-ratio, with a failure as the worst: infinitely far on the bad side; 0 where both failed."""
        if self.log_ratio is not None:
            return self.log_ratio
        bad = -1 if higher_is_better else 1
        sign = bad * (self.arm_failed - self.baseline_failed)
        return math.inf * sign if sign else 0.0
