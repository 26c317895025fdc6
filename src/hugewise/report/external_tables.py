"""The tables of `hugewise analyze`, as text."""

from __future__ import annotations

from hugewise.external.compare import effective
from hugewise.external.types import MetricResults
from hugewise.report import numbers
from hugewise.report.document import Table, table
from hugewise.report.numbers import NOTHING, Scale
from hugewise.stats.classical import Figures

__all__ = ["figures_table", "margins_table", "medians_table", "outliers_table", "quantiles_table", "unit_of"]


def unit_of(metric: MetricResults) -> Scale:
    """The unit in which the values of a metric are shown."""
    return numbers.scale(metric.metric.unit, [arm.figures.mean for arm in metric.arms])


def figures_table(metric: MetricResults, unit: Scale) -> Table:
    """Location, spread and shape of each arm."""
    head = ("arm", "n", "mean", "margin", "sd", "median", "min", "max", "max/min", "skewness", "excess kurtosis")
    level = numbers.percent(metric.arms[0].figures.confidence)

    def row(arm: str, one: Figures) -> list[str]:
        margin = one.margin
        return [
            *(arm, f"{one.n:,}", unit.number(one.mean, margin)),
            NOTHING if margin is None else f"±{unit.number(margin, margin)}",
            *(unit.number(value, margin) for value in (one.sd, one.median, one.min, one.max)),
            numbers.given(one.spread, ".3g"),
            *(numbers.given(value, "+.2f") for value in (one.skewness, one.kurtosis)),
        ]

    caption = f"successful runs, in {unit.unit or 'their own unit'}; margin of error at {level}, as if independent"
    return table(caption, head, [row(arm.arm, arm.figures) for arm in metric.arms], turned=True)


def margins_table(metric: MetricResults, unit: Scale) -> Table:
    """Margins of error at several confidences, and what dependence leaves of them."""
    levels = list(metric.arms[0].figures.margins)
    worth_head = ("effective n", "honest margin", "runs", "failed", "missing")
    head = ("arm", *(numbers.percent(float(level)) for level in levels), *worth_head)
    rows = []
    for arm in metric.arms:
        shown, worth = arm.figures, effective(arm)
        honest = None if shown.margin is None or worth <= 1 else shown.margin * (shown.n / worth) ** 0.5
        known = arm.order_known and shown.n >= 50
        rows.append(
            (
                arm.arm,
                *(unit.number(shown.margins.get(level), shown.margins.get(level)) for level in levels),
                f"{worth:,.0f}" if known else "not known",
                NOTHING if honest is None or not known else unit.number(honest, honest),
                *(numbers.given(count, ",") for count in (arm.runs, arm.failed, arm.missing)),
            )
        )
    return table("margin of error by confidence; what the order in time makes of it", head, rows, turned=True)


def quantiles_table(metric: MetricResults, unit: Scale) -> Table:
    """Quantiles of each arm."""
    probabilities = list(metric.arms[0].figures.quantiles)
    rows = [
        (arm.arm, *(unit.number(arm.figures.quantiles[p], arm.figures.margin) for p in probabilities))
        for arm in metric.arms
    ]
    return table("quantiles", ("arm", *(numbers.percent(float(p)) for p in probabilities)), rows)


def outliers_table(metric: MetricResults, unit: Scale) -> Table:
    """What lies beyond 3 and 6 standard deviations, and the figures without it."""
    head = ["arm, beyond", "below", "above", "normal has", "share of variance"]
    head += [f"{name} without" for name in ("mean", "sd", "margin")]
    rows = [
        (
            *(f"{arm.arm}, {one.k} sd", f"{one.below:,}", f"{one.above:,}", f"{one.expected:,.2g}"),
            numbers.share(one.variance_share),
            *(unit.number(value, one.margin) for value in (one.mean, one.sd, one.margin)),
        )
        for arm in metric.arms
        for one in arm.figures.beyond
    ]
    return table("values far from the mean", head, rows)


def medians_table(metric: MetricResults, unit: Scale) -> Table:
    """What medians of a few runs would be."""
    rows = [
        (
            f"{arm.arm}, median of {one.k}",
            unit.number(one.mean, arm.figures.margin),
            unit.number(one.sd, arm.figures.margin),
            f"{unit.number(one.low, arm.figures.margin)} to {unit.number(one.high, arm.figures.margin)}",
        )
        for arm in metric.arms
        for one in arm.figures.medians
    ]
    return table("the median of a few runs", ("", "mean", "sd", "95% of such medians"), rows)
