"""What was compared: effects with their intervals, how far they reach, and the ledger of alpha."""

from __future__ import annotations

from hugewise.model.results import CellResult, Comparison, Results
from hugewise.report import numbers
from hugewise.report.document import Table, table
from hugewise.report.numbers import NOTHING
from hugewise.report.sentences import SYMBOLS, better_direction, change_of, effect_of, tier_name


def effects_table(cell: CellResult) -> Table:
    """Per comparison: verdict, change and ratio with interval, confidence, p, blocks, largest effect still possible;
    the change corrected for stopping early where any comparison has one.
    """
    early = any(one.corrected is not None for one in cell.comparisons)
    head = [
        *("policy", "verdict", "change (interval)", *(["corrected for stopping early"] if early else [])),
        *("ratio (interval)", "confidence", "p", "blocks", "still possible"),
    ]

    def row(one: Comparison) -> list[object]:
        return [
            one.arm,
            f"{SYMBOLS[one.verdict]} {one.verdict}",
            effect_of(one),
            *([_corrected(one)] if early else []),
            numbers.ratio(one.ratio, one.low, one.high),
            numbers.percent(one.confidence),
            NOTHING if one.p is None else "<0.0001" if one.p < 0.0001 else f"{one.p:.2g}",
            _counted(one),
            _possible(one),
        ]

    caption = f"{cell.metric.name}: ratios are policy/{cell.baseline} ({better_direction(cell.metric)})"
    return table(caption, head, [row(one) for one in cell.comparisons], 2, swatch=True)


def _corrected(one: Comparison) -> str:
    return NOTHING if one.corrected is None else f"about {numbers.like(one.corrected, one.ratio, one.low, one.high)}"


def _possible(one: Comparison) -> str:
    unknown = one.verdict == "undecided" and not numbers.bounded(one.change)
    return "no bound yet" if unknown else numbers.largest(one.change)


def _counted(one: Comparison) -> str:
    """The blocks that estimate and interval are of, and how many there are beside them."""
    if one.n_all > one.n:
        usable = f"{one.n} usable of {one.n_all}"
        return usable if one.final else f"{usable}, {one.planned} planned, provisional"
    return str(one.n) if one.final else f"{one.n} of {one.planned}, provisional"


def spread_table(cell: CellResult) -> Table | None:
    """Per comparison whether the arm's values are spread differently from the baseline's, by an exact test."""
    rows = [
        [
            one.arm,
            one.spread.shown or "no difference shown",
            NOTHING if one.spread.ratio is None else f"{numbers.times(one.spread.ratio)} times",
            numbers.given(one.spread.pairs, ""),
            f"{one.spread.alpha:.3g}",
        ]
        for one in cell.comparisons
        if one.spread is not None
    ]
    head = ("policy", "spread", "against the baseline's", "shown at pair", "error rate")
    caption = (
        "spread of the values, by an exact test of the same coins with an error rate of its own; ratios are of "
        "interquartile ranges of the logarithms"
    )
    return table(caption, head, rows, 2, swatch=True) if rows else None


def reach_table(cell: CellResult) -> Table | None:
    """Per comparison how far the claim reaches: each tier with its interval, or why the data cannot carry it."""
    tiers = [(one.arm, tier) for one in cell.comparisons for tier in one.tiers]
    shown = [change_of(one.ratio, one.low, one.high) if one.supported else NOTHING for _, one in tiers]
    rows = [(arm, tier_name(one.name), text, one.reason) for (arm, one), text in zip(tiers, shown, strict=True)]
    caption = "how far it reaches: each tier with its interval"
    return table(caption, ("policy", "tier", "change (interval)", "why"), rows, 4, swatch=True) if rows else None


def end_points_table(cell: CellResult) -> Table | None:
    """The end points that the study declared beside the typical ratio, judged on the same pairs."""
    rows = [
        (one.arm, one.estimand, f"{SYMBOLS[one.verdict]} {one.verdict}", effect_of(one), one.reason)
        for one in cell.end_points
    ]
    head = ("policy", "end point", "verdict", "change (interval)", "why")
    return table("other end points, on the same pairs", head, rows, 5, swatch=True) if rows else None


def declared_table(cell: CellResult) -> Table | None:
    """The metrics that the study declared beside the cell's own, judged on the same attempts."""
    rows = [
        (
            *(one.arm, one.metric, better_direction(cell.metric_named(one.metric))),
            *(f"{SYMBOLS[one.verdict]} {one.verdict}", effect_of(one), one.reason),
        )
        for one in cell.declared
    ]
    head = ("policy", "metric", "direction", "verdict", "change (interval)", "why")
    caption = "other metrics that were declared before the run, judged on the same attempts"
    return table(caption, head, rows, 5, swatch=True) if rows else None


def alpha_table(results: Results) -> Table | None:
    """The ledger of alpha: the share that each end point of each comparison has, and what its test has spent."""
    rows = [
        [
            cell.cell,
            one.arm,
            f"{one.estimand}, of {one.metric}" if cell.also else one.estimand,
            f"{one.alpha:.3g}",
            numbers.given(one.alpha_spent, ".3g"),
            one.n,
            one.planned,
        ]
        for cell in results.cells
        for one in cell.judged
        if one.alpha is not None
    ]
    head = ("cell", "policy", "end point", "share of alpha", "spent so far", "pairs", "declared budget")
    whole = (
        f"ledger of alpha: {1 - results.confidence:.3g} in all, shared equally by {len(rows)} before the first block"
    )
    return table(whole, head, rows, 3, titled=True) if rows else None


def sensitivity_table(cell: CellResult) -> Table:
    """Per comparison: the estimate without and with the blocks of undelivered treatment, failures, and the method."""
    late = any(one.unstarted_arm or one.unstarted_baseline for one in cell.comparisons)
    head = [
        *("policy", "method", "without undelivered blocks", "with them", "failures", "failures of the baseline"),
        *(("could not be started", "baseline could not") if late else ()),
    ]
    rows = [
        [
            *(one.arm, one.method),
            *(f"{numbers.ratio(value)} ({n} blocks)" for value, n in ((one.ratio, one.n), (one.ratio_all, one.n_all))),
            *(one.failures_arm, one.failures_baseline),
            *((one.unstarted_arm, one.unstarted_baseline) if late else ()),
        ]
        for one in cell.comparisons
    ]
    return table("the estimated ratio without and with undelivered blocks", head, rows, 2, swatch=True)
