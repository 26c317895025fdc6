"""How many hosts of a stratum answer a question, before hours are spent. Pure.

A host that makes n pairs knows its effect to e = deviation / sqrt(n), and hosts differ by tau; so each host's estimate
is one draw with the deviation sqrt(tau^2 + e^2), and the typical effect is tested by Student's t over hosts
(`pooling`). The hosts for a verdict are those of that test at the share of the error rate that one of `family` effects
has (strata times comparisons; Bonferroni, which Holm never needs more than). More pairs on a host help while e is the
larger of the two; after that only more hosts do.

The hosts for the spread are those with which the interval of tau, by Q-profile at 95%, is expected to end at no more
than `factor` times tau: for equal errors its upper end is sqrt((k - 1)(tau^2 + e^2) / c - e^2), c the point of
chi-squared with k - 1 degrees of freedom that 2.5% lie below. Twice takes 9 hosts where tau is far above e, 15 where
they are equal, and ever more below: a spread that is small against each host's error needs longer runs, not more hosts.

tau is a guess: from a pilot on a few hosts, or a range. Where nothing is known the defaults are those of `TAUS`: page
effects of one program on hosts of one class have been seen to differ by a tenth to a half of themselves, which is a
guess to be replaced by the first fleet's own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hugewise.stats import power
from hugewise.stats.heterogeneity import FEWEST

__all__ = ["TAUS", "HostNeed", "hosts_for_spread", "hosts_for_verdict", "need"]

TAUS = (0.1, 0.5)
"""The spread over hosts as a share of the effect, where none is known: from, to."""
MOST = 10_000
"""More hosts than this are not forecast."""
_MOST_SPREAD = 1000
_TAIL = 0.025


class HostNeed(NamedTuple):
    """What a stratum needs for an `effect` (log-ratio) that differs between its hosts by `tau`.

    verdict   hosts with which the typical effect is shown with the chance that was asked for; None beyond `MOST`
    spread    hosts for an interval of tau that ends at twice tau at most; None where tau is too small for it
    next_host hosts from which the next one is spoken of
    hours     host-hours of one host
    """

    effect: float
    tau: float
    verdict: int | None
    spread: int | None
    next_host: int
    hours: float

    @property
    def hosts(self) -> int | None:
        """For all of it."""
        known = [self.verdict, self.next_host, *([] if self.spread is None else [self.spread])]
        return None if self.verdict is None else max(one for one in known if one is not None)


def need(  # noqa: PLR0917
    effect: float, tau: float, deviation: float, pairs: int, level: float, seconds: float, chance: float = 0.9
) -> HostNeed:
    """What a stratum needs where each host makes `pairs` pairs in `seconds` (all of a run, in all).

    `deviation` is that of a pair's log-ratio (`spread.scale` of a pilot), `level` the share of the error rate. Raises
    ValueError on values out of range.
    """
    if pairs < 1 or not deviation >= 0:
        raise ValueError("a host makes a pair at least, and a deviation is not below 0")
    error = deviation / math.sqrt(pairs)
    return HostNeed(
        effect,
        tau,
        hosts_for_verdict(effect, tau, error, level, chance=chance),
        hosts_for_spread(tau, error),
        FEWEST,
        seconds / 3600,
    )


def hosts_for_verdict(effect: float, tau: float, error: float, level: float, *, chance: float = 0.9) -> int | None:
    """Hosts with which Student's t at the two-sided `level` shows the typical effect with this chance; 2 at least.

    None beyond `MOST`, and for an effect of 0. Raises ValueError on a spread or an error below 0, and a level or a
    chance outside (0, 1).
    """
    _check(tau, error)
    if not (0 < level < 1 and 0 < chance < 1):
        raise ValueError("level and chance lie within 0 and 1")
    spread = math.hypot(tau, error)
    if effect == 0:
        return None
    if spread == 0:
        return 2
    return power.first_enough(lambda n: power.student_power(abs(effect) / spread, n, level) >= chance, 2, MOST)


def hosts_for_spread(tau: float, error: float, factor: float = 2.0) -> int | None:
    """Hosts with which the interval of tau is expected to end at `factor` times tau at most.

    None beyond 1,000: the spread is too small against each host's error. Raises ValueError on a spread or an error
    below 0, or a factor of 1 or less.
    """
    from scipy.special import chdtri  # noqa: PLC0415  (slow to load)

    _check(tau, error)
    if not factor > 1:
        raise ValueError("the factor is above 1")
    if tau == 0:
        return None
    most = (factor**2 * tau**2 + error**2) / (tau**2 + error**2)
    return power.first_enough(lambda n: (n - 1) / float(chdtri(n - 1, 1 - _TAIL)) <= most, 3, _MOST_SPREAD)


def _check(tau: float, error: float) -> None:
    if not (tau >= 0 and error >= 0):
        raise ValueError(f"a spread and an error are 0 or more, not {tau} and {error}")
