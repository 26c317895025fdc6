"""What hugewise would have needed for a published comparison, and what its layout could not show.

From means, deviations and numbers of samples alone. How far two paired measurements move together cannot be got from
the figures of each arm, so pairs are given for *assumed* correlations. The deviation of a pair's log-ratio is then
sqrt(c1^2 + c2^2 - 2 rho c1 c2), c = sd/mean; the power is that of `stats.power` for normal differences.
"""

from __future__ import annotations

import math

import msgspec

from hugewise.published import Benchmark, Published, Sample
from hugewise.stats import assurance, power

__all__ = ["ASSUMED", "Assumed", "Replanned", "Reread", "replan"]

ASSUMED = (0.0, 0.5, 0.8, 0.95)
"""Within-pair correlations that are assumed in turn."""

_CONFIDENCE = 0.99
_BUDGET = 2_000
_LARGE = 100  # fewer samples than this declare no budget

_CANNOT = {
    "fixed slots": "each arm kept a place of its own to the end: what differs between the places (memory, CPUs, what"
    " runs beside them) cannot be told from the effect of the pages, however many samples there are",
    "one after the other": "the arms ran at different times: drift between the times cannot be told from the effect of"
    " the pages, and the margin of error holds only for samples that do not hang together, which is not shown",
}


class Assumed(msgspec.Struct, frozen=True, kw_only=True):
    """For one assumed correlation: deviation of a pair's log-ratio, pairs after which half (`median`) and nine of ten
    campaigns have a verdict, and the hours of the latter with one attempt at a time. None: not within the budget.
    """

    correlation: float
    sd: float
    median: int | None
    pairs: int | None
    hours: float | None


class Replanned(msgspec.Struct, frozen=True, kw_only=True):
    """One published comparison. `change` is arm/baseline - 1; `margin` the published margin of error of the difference
    of both means, as a share of the baseline's mean; `hours` what the published samples took; `budget` the declared
    pairs that the forecast assumes: the published number of samples, where it is a large one.
    """

    name: str
    metric: str
    unit: str
    schedule: str
    baseline: str
    arm: str
    baseline_sample: Sample
    arm_sample: Sample
    confidence: float
    budget: int
    change: float
    margin: float | None
    least: int | None
    hours: float | None
    assumed: tuple[Assumed, ...]
    cannot: str
    remarks: tuple[str, ...]


class Reread(msgspec.Struct, frozen=True, kw_only=True):
    """One source. Empty `comparisons` where it gives too few figures; `missing` says which."""

    format: int = 1
    name: str
    title: str
    publisher: str
    date: str
    missing: tuple[str, ...]
    remarks: tuple[str, ...]
    comparisons: tuple[Replanned, ...]


def replan(published: Published) -> Reread:
    """The forecast for every comparison of a source that gives a mean for both arms and a deviation for one."""
    source = published.source
    remarks = []
    if source.runs is not None:
        least = 2 * 0.5**source.runs
        remarks.append(
            f"{source.statistic or 'summary'} of {source.runs} runs: had they been pairs in random order that all"
            f" agree, chance alone would do as much in {least:.3g} of such studies"
        )
    return Reread(
        name=published.name,
        title=source.title,
        publisher=source.publisher,
        date=source.date,
        missing=source.missing,
        remarks=tuple(remarks),
        comparisons=tuple(_benchmark(one) for one in published.benchmarks),
    )


def _benchmark(one: Benchmark) -> Replanned:
    (baseline, first), (arm, second) = one.pair
    variations, remarks = _variations(first, second, baseline, arm)
    confidence = one.confidence or _CONFIDENCE
    if one.confidence is None:
        remarks.append(f"no confidence is published: {_CONFIDENCE:.0%} is taken")
    known = min((sample.n for sample in (first, second) if sample.n), default=0)
    budget = known if known >= _LARGE else _BUDGET
    if budget != known:
        remarks.append(f"a budget of {_BUDGET:,} pairs is taken, as in a study")
    timed = one.unit == "s" and one.metric == "wall time"
    if not timed:
        remarks.append("hours are unknown: it is not published how long a sample takes")
    alpha = 1 - confidence
    seconds = first.mean + second.mean if timed else None
    effect = abs(math.log(second.mean / first.mean))
    margins = [sample.margin_of_error for sample in (first, second) if sample.margin_of_error is not None]
    at_once = one.layout == "fixed slots"
    together = max(first.mean, second.mean) if at_once else first.mean + second.mean
    return Replanned(
        name=one.name,
        metric=one.metric,
        unit=one.unit,
        schedule=one.schedule,
        baseline=baseline,
        arm=arm,
        baseline_sample=first,
        arm_sample=second,
        confidence=confidence,
        budget=budget,
        change=second.mean / first.mean - 1,
        margin=math.hypot(*margins) / first.mean if len(margins) == 2 else None,
        least=power.least_pairs(alpha, budget),
        hours=known * together / 3600 if timed and known else None,
        assumed=tuple(_assumed(rho, variations, effect, alpha, budget, seconds) for rho in ASSUMED),
        cannot=_CANNOT[one.layout],
        remarks=tuple(remarks),
    )


def _variations(first: Sample, second: Sample, baseline: str, arm: str) -> tuple[tuple[float, float], list[str]]:
    """sd/mean of both; where only one is published, it is taken for the other too."""
    known = [sample.sd / sample.mean if sample.sd is not None else None for sample in (first, second)]
    found = next((value for value in known if value is not None), None)
    if found is None:
        raise ValueError(f"neither {baseline} nor {arm} has a standard deviation")
    remarks = [
        f"no deviation of {name} is published: that of the other arm is taken"
        for name, value in zip((baseline, arm), known, strict=True)
        if value is None
    ]
    one, other = (found if value is None else value for value in known)
    return (one, other), remarks


def _assumed(  # noqa: PLR0917
    rho: float, variations: tuple[float, float], effect: float, alpha: float, budget: int, seconds: float | None
) -> Assumed:
    one, other = variations
    sd = math.sqrt(one**2 + other**2 - 2 * rho * one * other)
    median = assurance.pairs_needed(effect / sd, assurance.KNOWN, alpha, chance=0.5, budget=budget)
    pairs = assurance.pairs_needed(effect / sd, assurance.KNOWN, alpha, chance=0.9, budget=budget)
    hours = None if pairs is None or seconds is None else pairs * seconds / 3600
    return Assumed(correlation=rho, sd=sd, median=median, pairs=pairs, hours=hours)
