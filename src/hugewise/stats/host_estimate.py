"""What a host's method hands to its fleet: the estimate of the typical ratio, with all that pooling asks of it."""

from __future__ import annotations

import math
from statistics import stdev

from hugewise.stats.fixed import FixedN
from hugewise.stats.method import Method
from hugewise.stats.notworse import NotWorse
from hugewise.stats.pooling import HostEstimate
from hugewise.stats.sequential import Sequential
from hugewise.stats.spread import scale

__all__ = ["estimate_of"]


def estimate_of(method: Method, *, refused: str = "") -> HostEstimate | str:
    """The estimate after all that the method has seen, or why there is none, in words.

    `refused`: why the comparison has no verdict, where it has none. That is by proofs of its pages, by starts that
    failed and by absent values, never by the estimate.
    """
    if refused:
        return refused
    if isinstance(method, Sequential):
        return _sequential(method)
    if isinstance(method, FixedN):
        ratios = [one.log_ratio for one in method.pairs.usable if one.log_ratio is not None]
        if method.pairs.failures:
            return f"attempts failed in {method.pairs.failures} pairs"
        if len(ratios) < 2:
            return f"{len(ratios)} pairs show no spread"
        centre, count = math.fsum(ratios) / len(ratios), len(ratios)
        return HostEstimate(centre, stdev(ratios), count, 1.0, method.planned, crossed=False, stops=False)
    return f"the method {method.name} estimates nothing that is claimed"


def _sequential(method: Sequential) -> HostEstimate | str:
    values, pairs = method.usable.pairs, len(method.pairs.usable)
    if not pairs:
        return "it has no usable pair"
    centre, deviation = values.centre(), scale(values.values)
    if not math.isfinite(centre):
        return f"attempts failed in {method.pairs.failures} of {pairs} pairs: there is no ratio"
    if deviation is None:
        return f"{pairs} pairs do not show how far they spread"
    return HostEstimate(
        centre,
        deviation,
        min(pairs, method.planned),  # beyond are blocks that replaced others
        method.alpha,
        method.planned,
        crossed=method.usable.test.crossed_at is not None,
        stops=not isinstance(method, NotWorse) and method.width is None,
    )
