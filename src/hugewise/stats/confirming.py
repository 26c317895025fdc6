"""Whether a fleet's verdict holds on one more host, after a short paired run there. Pure.

What a stratum says of a host that never measured is a *prior*: the interval for the next host, at best. It becomes a
claim about this host when both of these hold:

1. **Its own coins say so.** The short run, of the same arms by the same method, ends in the same verdict. The direction
   was fixed before its first pair, so that of the two-sided error of its confidence only half can confirm: at 90%, the
   chance that a host without any effect confirms a "better" or a "worse" is at most 5%, whatever the fleet has found.
   "Equivalent" is confirmed by "equivalent" alone, which a short run shows only where its noise is small.
2. **It is one of them.** Its corrected estimate y, with its error e, is no stranger to the stratum: y lies within what
   the next host's run would estimate, 95% of N(mu, tau^2 + se^2 + e^2) with Student's t on k - 1 degrees of freedom.
   From one host alone (a run instead of a fleet) tau is not known, and the two estimates are held against their errors:
   equal, as far as they can tell.

A host that confirms the direction and is a stranger is said to be so: the verdict is its own, its size is not the
fleet's. One that ends in the opposite verdict contradicts it. Any other outcome leaves the prior what it was: not to be
shown within a few pairs is no evidence of no effect.

What is claimed after a confirmation: the verdict, on this host, at the short run's confidence; and as its size the
stratum's and the host's estimates put together, each weighed by its precision (the posterior mean under the normal
model; Morris 1983, JASA 78:47), which is closer than either alone where hosts are alike.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from hugewise.model.results import Verdict
from hugewise.stats.heterogeneity import TypicalEffect

__all__ = ["Confirmed", "Own", "Prior", "Transferred", "confirm"]

Confirmed = Literal["confirmed", "confirmed, other size", "contradicted", "prior"]
"""What a short run makes of a prior."""
_LEVEL = 0.05


class Prior(NamedTuple):
    """What is known of hosts like it: the verdict, the typical effect (log-ratio) and the spread over `hosts` hosts.

    tau is None for one host.
    """

    verdict: Verdict
    typical: TypicalEffect
    tau: float | None
    hosts: int


class Own(NamedTuple):
    """What the short run found: its verdict, and its corrected estimate with its error; None where it has none."""

    verdict: Verdict
    estimate: float | None
    error: float | None


class Transferred(NamedTuple):
    """What follows for the host.

    state     see `Confirmed`
    stranger  whether its estimate does not fit the stratum; None where that cannot be told
    centre, error   of the effect on this host, both put together; None for a prior, and for a stranger
    reason    in words
    """

    state: Confirmed
    stranger: bool | None
    centre: float | None
    error: float | None
    reason: str


def confirm(prior: Prior, own: Own) -> Transferred:
    """What the short run on a host says of the stratum's verdict there."""
    if prior.verdict not in ("better", "worse", "equivalent"):
        return Transferred("prior", None, None, None, "there is no verdict that could hold on this host")
    stranger = _stranger(prior, own)
    if own.verdict == prior.verdict:
        if stranger:
            why = "its own run ends in the same verdict; its effect is another than those of the hosts before"
            return Transferred("confirmed, other size", True, own.estimate, own.error, why)
        centre, error = _together(prior, own)
        why = "its own run ends in the same verdict, and its effect fits those of the hosts before"
        return Transferred("confirmed", stranger, centre, error, why)
    if own.verdict in ("better", "worse", "equivalent"):
        return Transferred(
            "contradicted", stranger, own.estimate, own.error, f"its own run ends in {own.verdict}, not {prior.verdict}"
        )
    why = "its own run is undecided" if own.verdict == "undecided" else "its own run allows no verdict"
    if stranger:
        why += ", and its effect is another than those of the hosts before"
    return Transferred("prior", stranger, None, None, f"{why}: what is said of it is what hosts like it have shown")


def _stranger(prior: Prior, own: Own) -> bool | None:
    from scipy.special import stdtrit  # noqa: PLC0415  (slow to load)

    if own.estimate is None or own.error is None:
        return None
    deviation = math.sqrt((prior.tau or 0.0) ** 2 + prior.typical.error**2 + own.error**2)
    freedom = max(1, prior.hosts - 1) if prior.tau is not None else prior.typical.freedom
    return abs(own.estimate - prior.typical.centre) > float(stdtrit(freedom, 1 - _LEVEL / 2)) * deviation


def _together(prior: Prior, own: Own) -> tuple[float | None, float | None]:
    """The posterior mean of the host's effect and its deviation."""
    if own.estimate is None or own.error is None:
        return None, None
    before = (prior.tau or 0.0) ** 2 + prior.typical.error**2
    if before == 0 or own.error == 0:
        return (prior.typical.centre if before == 0 else own.estimate), 0.0
    weight = before / (before + own.error**2)
    centre = weight * own.estimate + (1 - weight) * prior.typical.centre
    return centre, math.sqrt(weight) * own.error
