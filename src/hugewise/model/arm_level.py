"""The level of an arm: what its values were by themselves, whatever they are held against."""

from __future__ import annotations

import msgspec

from hugewise.model.results import ArmSummary

__all__ = ["ArmLevel"]


class ArmLevel(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one arm: in the metric's unit, over its accepted attempts in complete blocks. `low` and `high` are
    the 5% and the 95% quantile.
    """

    arm: str
    n: int
    failed: int
    median: float | None
    low: float | None
    high: float | None
    delivered_share: float | None

    @classmethod
    def of(cls, one: ArmSummary) -> ArmLevel:
        """What the summary has of it."""
        return cls(
            arm=one.arm,
            n=one.n,
            failed=one.failed,
            median=one.median,
            low=one.quantiles.get("0.05"),
            high=one.quantiles.get("0.95"),
            delivered_share=one.delivered_share,
        )
