"""The evidence of hosts together, by stratum and over all of them: e-values multiply, e-Holm judges. Pure.

What `evidence.combine` does for all runs it does here for the hosts of each stratum, and for all hosts: a comparison
has the two one-sided products (larger, smaller) of each stratum that it was measured in, and of all. Each is an e-value
by the coins alone, whenever each host stopped: the hosts' coins are separate. All of them, over strata, the whole fleet
and all comparisons with their end points, are one family in e-Holm (`evidence.adjusted`), so that *the chance that any
direction is called wrongly in any stratum is at most alpha*. The product over all hosts depends on those of the strata,
which e-Holm allows; where there is one stratum it is not counted twice.

What a direction says: the arm is larger (smaller) on at least one host of the stratum. That it is so on the typical one
and by how much, is said by `pooling`, under a model; that it is so on a host, by the host's own verdict.

A host whose comparison has no e-value (no verdict was possible there) makes its stratum's product, and that over all,
refused as in `evidence`: to leave it out by what happened to it could be a selection. Hosts that were left out before
they measured are not among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hugewise.stats.evidence import Combined, RunEvidence, adjusted, judged, products

__all__ = ["ALL", "over_strata"]

ALL = ""
"""The name of all hosts together."""


def over_strata(sources: Mapping[str, Sequence[RunEvidence]], alpha: float) -> dict[str, tuple[Combined, ...]]:
    """By stratum, and under `ALL` over all, what these hosts' runs say, judged together at level `alpha`.

    A comparison that one host of a stratum alone has is there too. Raises ValueError where two runs have the same
    coins, for an alpha out of range, and for a stratum named `ALL`.
    """
    if ALL in sources:
        raise ValueError("a stratum needs a name")
    groups = dict(sources)
    if len(sources) != 1:
        groups[ALL] = [run for runs in sources.values() for run in runs]
    found = {name: products(runs) for name, runs in groups.items()}
    sides = [side for each in found.values() for one in each for side in one.sides]
    values = adjusted(sides)
    answered: dict[str, tuple[Combined, ...]] = {}
    at = 0
    for name, each in found.items():
        answered[name] = tuple(
            judged(one, (values[at + 2 * place], values[at + 2 * place + 1]), alpha) for place, one in enumerate(each)
        )
        at += 2 * len(each)
    if ALL not in answered:
        (answered[ALL],) = answered.values()
    return answered
