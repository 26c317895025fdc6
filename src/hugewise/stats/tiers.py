"""The tiers of a claim: how far it reaches (`model.results.Tier`), and what the usable pairs say at that reach.

The verdict is made within the comparison's share of alpha. The intervals of the campaign average and of what lies
beyond these sessions are made with an error of the same size each, of their own: outside the study's split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hugewise.model.results import Reach, Tier
from hugewise.stats import sessions
from hugewise.stats.campaign import Campaign
from hugewise.stats.pairs import Pair, ratio_of

__all__ = ["average", "beyond"]


def average(campaign: Campaign, *, failures: int) -> Tier:
    """The campaign average of the log-ratio: as a ratio, one of geometric means."""
    found = None if failures else campaign.interval()
    if found is None:
        return _unsupported("campaign average", _FAILED if failures else campaign.reason())
    reason = f"geometric mean; asymptotic, by the design's coins; {_own_error(campaign.alpha)}"
    return _tier("campaign average", campaign.mean, found, reason)


def beyond(pairs: Sequence[Pair], alpha: float) -> Tier:
    """The mean over sessions like these, from the mean log-ratio of each."""
    by_session: dict[int, list[float]] = {}
    for pair in pairs:
        if pair.log_ratio is not None:
            by_session.setdefault(pair.session, []).append(pair.log_ratio)
    means = [math.fsum(values) / len(values) for values in by_session.values()]
    found = sessions.interval(means, alpha)
    if found is None:
        return _unsupported("beyond these sessions", sessions.reason(means, alpha))
    reason = f"over {len(means)} session means; {_own_error(alpha)}"
    return _tier("beyond these sessions", math.fsum(means) / len(means), found, reason)


_FAILED = "attempts failed, and a failure has no ratio"


def _own_error(alpha: float) -> str:
    return f"with an error of {alpha:.3g} of its own, outside the study's"


def _tier(name: Reach, centre: float, found: tuple[float, float], reason: str) -> Tier:
    low, high = found
    return Tier(
        name=name, supported=True, ratio=ratio_of(centre), low=ratio_of(low), high=ratio_of(high), reason=reason
    )


def _unsupported(name: Reach, reason: str | None) -> Tier:
    return Tier(name=name, supported=False, ratio=None, low=None, high=None, reason=reason or "no interval is known")
