"""The memory that a setting takes: everything that nobody else can have meanwhile. Pure.

What is not known is None, never 0. A total has what is known; where resident memory is not, there is none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from hugewise.model.trial import Attempt
from hugewise.stats import inversion

__all__ = ["FootprintChange", "SettingFootprint", "blocks_of", "footprint", "footprint_change"]

_POOL = "hugetlb:"
_WHILE_HELD = ("ranges", "live")  # proofs that look at memory while it is in use


class SettingFootprint(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of an arm's attempts, at their most.

    resident    what was charged to its cgroup, page cache and page tables with it; where there was none, the resident
                memory of the largest process
    charged     which of the two: page tables are counted in the first, and not known in the second
    pool        huge pages that were reserved for it; 0: none were
    pool_used   of them those that it had; None where its pages were not seen while it had them all: a command is
                looked at when it ends, and has given back by then what it has
    """

    resident: int | None
    charged: bool
    pool: int
    pool_used: int | None

    @property
    def total(self) -> int | None:
        """Resident memory and the pool, used or not: resident memory has no page of a pool."""
        return None if self.resident is None else self.resident + self.pool

    @property
    def unused(self) -> int | None:
        """Of the pool what it never had."""
        return None if self.pool_used is None else max(0, self.pool - self.pool_used)


class FootprintChange(msgspec.Struct, frozen=True, kw_only=True):
    """Total footprint over that of the baseline, of attempts of the same blocks: the typical ratio, and its interval by
    itself at `confidence` (by inversion, as for times); an end is None where the pairs do not bound it.
    """

    ratio: float
    low: float | None
    high: float | None
    confidence: float
    pairs: int


def footprint(attempts: Iterable[Attempt]) -> SettingFootprint:
    """The footprint of these attempts of one arm."""
    seen = list(attempts)
    resident = [one.peak_bytes for one in seen if one.peak_bytes is not None]
    used = [size for one in seen if (size := _used(one)) is not None]
    return SettingFootprint(
        resident=max(resident, default=None),
        charged=bool(seen) and all(one.metrics.get("charged_peak_bytes") is not None for one in seen),
        pool=max((one.pool_bytes for one in seen), default=0),
        pool_used=max(used, default=None),
    )


def _used(one: Attempt) -> int | None:
    """Bytes of pools that it had at its most; None where it was not seen then."""
    if not one.pool_bytes:
        return 0
    if not one.delivery.coverage or one.delivery.proof not in _WHILE_HELD:
        return None
    return sum(size for name, size in one.delivery.coverage.items() if name.startswith(_POOL))


def blocks_of(attempts: Iterable[Attempt], arm: str, baseline: str) -> list[tuple[Attempt, Attempt]]:
    """The accepted attempts of the arm with those of the baseline in the same blocks, in their order."""
    found: defaultdict[int, dict[str, Attempt]] = defaultdict(dict)
    for one in attempts:
        if one.state == "accepted" and one.arm in (arm, baseline):
            found[one.block][one.arm] = one
    return [(two[arm], two[baseline]) for _, two in sorted(found.items()) if len(two) == 2]


def footprint_change(
    pairs: Sequence[tuple[Attempt, Attempt]], planned: int, confidence: float
) -> FootprintChange | None:
    """How much more an arm took than the baseline, over pairs of theirs of `planned` declared ones; None of none."""
    totals = [(footprint([one]).total, footprint([other]).total) for one, other in pairs]
    logs = [round(math.log(mine / theirs), 9) for mine, theirs in totals if mine and theirs]
    if not logs:
        return None
    typical, (low, high) = inversion.point(logs), inversion.interval(logs, 1 - confidence, max(planned, len(logs)))
    if not low <= typical <= high:  # it drifts: the pairs share no one change
        low, high = -math.inf, math.inf
    return FootprintChange(
        ratio=math.exp(typical),
        low=math.exp(low) if math.isfinite(low) else None,
        high=math.exp(high) if math.isfinite(high) else None,
        confidence=confidence,
        pairs=len(logs),
    )
