"""The published figures of an entry in one form, whichever form its source gives them in: nothing is computed."""

from __future__ import annotations

import math

import msgspec

from hugewise.published import Published, Sample

__all__ = ["PublishedFigure", "figures"]


class PublishedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One published figure, whichever form it is given in."""

    quantity: str
    unit: str
    arm: str
    baseline: str
    percent: float | None
    arm_sample: Sample | None = None
    baseline_sample: Sample | None = None
    confidence: float | None = None
    statistic: str


def figures(published: Published, entry: str) -> list[PublishedFigure]:
    """Every published figure of an entry, in the source's order: quantity by quantity, arm by arm."""
    source, found = published.source, []
    runs = f"{source.statistic} of {source.runs} runs" if source.runs is not None and source.statistic else ""
    for table in published.tables:
        if table.name == entry:
            found += [
                PublishedFigure(
                    quantity=quantity, unit="", arm=arm, baseline=table.arms[0], percent=percent, statistic=runs
                )
                for quantity, percents in table.changes.items()
                for arm, percent in list(zip(table.arms, percents, strict=True))[1:]
            ]
    for counters in published.counters:
        if counters.name == entry:
            found += [
                PublishedFigure(
                    quantity=one.name,
                    unit=one.unit,
                    arm=counters.arms[1],
                    baseline=counters.arms[0],
                    percent=one.change_percent,
                    arm_sample=Sample(mean=one.values[1]),
                    baseline_sample=Sample(mean=one.values[0]),
                    statistic=counters.statistic,
                )
                for one in counters.counter
            ]
    for benchmark in published.benchmarks:
        if benchmark.name == entry:
            (baseline, first), (arm, second) = benchmark.pair
            found.append(
                PublishedFigure(
                    quantity=benchmark.metric,
                    unit=benchmark.unit,
                    arm=arm,
                    baseline=baseline,
                    # Sources print the size of an effect and call it faster or slower: the means have the sign.
                    percent=math.copysign(benchmark.published_effect_percent, second.mean - first.mean),
                    arm_sample=second,
                    baseline_sample=first,
                    confidence=benchmark.confidence,
                    statistic="means",
                )
            )
    return found
