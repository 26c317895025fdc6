"""The tables of a report, as text: the same in HTML and Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hugewise.analysis.changes import emulated_away
from hugewise.model.metric import COMMON
from hugewise.model.results import ArmSummary, CellResult, Comparison, Results
from hugewise.model.trial import Attempt
from hugewise.quantity import format_duration
from hugewise.report import numbers
from hugewise.report.figures.coverage import kind_label, kind_order
from hugewise.report.figures.points import points
from hugewise.report.numbers import NOTHING, Scale
from hugewise.report.sentences import SYMBOLS, arm_of, better_direction, earlier, effect_of, printable, tier_name

__all__ = [
    "Table",
    "alpha_table",
    "blocks_table",
    "coverage_table",
    "effects_table",
    "end_points_table",
    "facts",
    "failures_table",
    "left_out_table",
    "memory_of",
    "metrics_table",
    "proof_table",
    "reach_table",
    "run_table",
    "sensitivity_table",
    "spread_table",
    "statistics_table",
    "unit_of",
]


class Table(NamedTuple):
    """A caption, a head, and rows; the columns from `numeric` on are aligned to the right."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: int = 1


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]], numeric: int = 1) -> Table:
    cleaned = tuple(tuple(printable(entry) for entry in row) for row in rows)
    return Table(printable(caption), tuple(printable(entry) for entry in head), cleaned, numeric)


def unit_of(cell: CellResult) -> Scale:
    """The unit in which the cell's values are shown."""
    return numbers.scale(cell.metric.unit, [arm.mean for arm in cell.arms])


def memory_of(cell: CellResult, comparison: Comparison) -> tuple[str, str]:
    """Peak memory and pool memory reserved of the arm, each against the baseline's."""
    arm, base = arm_of(cell, comparison.arm), arm_of(cell, comparison.baseline)

    def against(mine: int | None, other: int | None) -> str:
        return f"{numbers.size(mine)} (baseline {numbers.size(other)})"

    return (
        against(arm.peak_bytes if arm else None, base.peak_bytes if base else None),
        against(arm.pool_bytes if arm else None, base.pool_bytes if base else None),
    )


def statistics_table(cell: CellResult, confidence: float) -> Table:
    """Per arm: n, mean and its margin of error, sd, extremes, median, quantiles, the first block."""
    unit = unit_of(cell)
    probabilities = sorted({q for arm in cell.arms for q in arm.quantiles if q != "0.5"}, key=float)
    head = ["policy", "n", "mean", f"± ({numbers.percent(confidence)})", "sd", "min"]
    head += [f"q{float(q) * 100:g}" for q in probabilities if float(q) < 0.5] + ["median"]
    head += [f"q{float(q) * 100:g}" for q in probabilities if float(q) > 0.5] + ["max", "first block"]

    def row(arm: ArmSummary) -> list[object]:
        def show(value: float | None) -> str:
            return unit.number(value, arm.margin)

        low = [show(arm.quantiles.get(q)) for q in probabilities if float(q) < 0.5]
        high = [show(arm.quantiles.get(q)) for q in probabilities if float(q) > 0.5]
        first = show(arm.first)
        if arm.first is not None and arm.median:
            first = f"{first} ({numbers.change(arm.first / arm.median)})"
        return [
            *(arm.arm, arm.n, show(arm.mean), show(arm.margin), show(arm.sd), show(arm.min)),
            *(*low, show(arm.median), *high, show(arm.max), first),
        ]

    caption = (
        f"{cell.metric.name} in {unit.unit} ({better_direction(cell.metric)}); first block: change from the median"
    )
    return _table(caption, head, [row(arm) for arm in cell.arms])


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
            "no bound yet" if one.verdict == "undecided" and one.change is None else numbers.largest(one.change),
        ]

    caption = f"{cell.metric.name}: ratios are policy/{cell.baseline} ({better_direction(cell.metric)})"
    return _table(caption, head, [row(one) for one in cell.comparisons], 2)


def _corrected(one: Comparison) -> str:
    return NOTHING if one.corrected is None else f"about {numbers.like(one.corrected, one.ratio, one.low, one.high)}"


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
            NOTHING if one.spread.pairs is None else one.spread.pairs,
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
    return _table(caption, head, rows, 2) if rows else None


def reach_table(cell: CellResult) -> Table | None:
    """Per comparison how far the claim reaches: each tier with its interval, or why the data cannot carry it."""
    rows = [
        [
            one.arm,
            tier_name(tier.name),
            numbers.effect(tier.ratio, tier.low, tier.high) if tier.supported else NOTHING,
            tier.reason,
        ]
        for one in cell.comparisons
        for tier in one.tiers
    ]
    caption = "how far it reaches: each tier with its interval"
    return _table(caption, ("policy", "tier", "change (interval)", "why"), rows, 4) if rows else None


def end_points_table(cell: CellResult) -> Table | None:
    """The end points that the study declared beside the typical ratio, judged on the same pairs."""
    rows = [
        [
            *(one.arm, one.estimand, f"{SYMBOLS[one.verdict]} {one.verdict}"),
            *(effect_of(one), one.reason),
        ]
        for one in cell.end_points
    ]
    head = ("policy", "end point", "verdict", "change (interval)", "why")
    return _table("other end points, on the same pairs", head, rows, 5) if rows else None


def alpha_table(results: Results) -> Table | None:
    """The ledger of alpha: the share that each end point of each comparison has, and what its test has spent."""
    rows = [
        [cell.cell, one.arm, one.estimand, f"{one.alpha:.3g}", _spent(one), one.n, one.planned]
        for cell in results.cells
        for one in (*cell.comparisons, *cell.end_points)
        if one.alpha is not None
    ]
    head = ("cell", "policy", "end point", "share of alpha", "spent so far", "pairs", "declared budget")
    whole = (
        f"ledger of alpha: {1 - results.confidence:.3g} in all, shared equally by {len(rows)} before the first block"
    )
    return _table(whole, head, rows, 3) if rows else None


def _spent(one: Comparison) -> str:
    return NOTHING if one.alpha_spent is None else f"{one.alpha_spent:.3g}"


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
    return _table("the estimated ratio without and with undelivered blocks", head, rows, 2)


def coverage_table(cell: CellResult) -> Table:
    """Per arm: the share of the named memory by page size."""
    keys = kind_order({key for arm in cell.arms for key in arm.coverage})
    rows = [
        [arm.arm, *(numbers.share(arm.coverage.get(key, 0.0 if arm.coverage else None)) for key in keys)]
        for arm in cell.arms
    ]
    return _table("share of the named memory by page size", ["policy", *map(kind_label, keys)], rows)


def proof_table(cell: CellResult) -> Table:
    """Per arm: what it did, what of it is judged, whether it was delivered, by which proof, failures and memory."""
    head = [
        *("policy", "what it does", "judged", "proof", "at the promised size", "undelivered", "unproven", "failed"),
        *("peak memory", "pool reserved"),
    ]
    rows = [
        [
            *(arm.arm, arm.treatment, arm.judged, arm.proof, numbers.share(arm.delivered_share)),
            *(arm.undelivered, arm.unproven, arm.failed),
            *(numbers.size(arm.peak_bytes), numbers.size(arm.pool_bytes)),
        ]
        for arm in cell.arms
    ]
    return _table("treatment and delivery (attempts undelivered, unproven, failed)", head, rows, 4)


def metrics_table(results: Results, cell: CellResult) -> Table:
    """The median of every other metric by arm; a value that the machine cannot give shows the reason."""
    mine = [a for a in results.attempts if a.cell == cell.cell and a.state == "accepted"]
    untold = emulated_away(mine) | {cell.metric.name}
    names = list(dict.fromkeys(name for a in mine for name in a.metrics if name not in untold))
    units = {metric.name: metric.unit for metric in COMMON}

    def show(name: str, arm: str) -> str:
        of_arm = [a for a in mine if a.arm == arm]
        values = [value for a in of_arm if (value := a.metrics.get(name)) is not None]
        if not values:
            return next((f"{NOTHING} ({a.absent[name]})" for a in of_arm if name in a.absent), NOTHING)
        middle = statistics.median(values)
        return numbers.scale(units.get(name, ""), [middle]).text(middle)

    head = ["metric", *(arm.arm for arm in cell.arms)]
    rows = [[name, *(show(name, arm.arm) for arm in cell.arms)] for name in names]
    return _table("medians of the other metrics", head, rows)


def blocks_table(results: Results, cell: CellResult) -> Table:
    """The judged value of every attempt that ended, a block a row; what did not count is named."""
    unit = unit_of(cell)
    found: dict[int, dict[str, list[str]]] = {}
    for point in points(results, cell):
        text = numbers.NOTHING if point.value is None else unit.number(point.value)
        if point.state != "counted":
            text = f"{text} ({point.state})"
        found.setdefault(point.block, {}).setdefault(point.arm, []).append(text)
    rows = [
        [block, *("; ".join(arms.get(arm.arm, [numbers.NOTHING])) for arm in cell.arms)]
        for block, arms in sorted(found.items())
    ]
    return _table(f"{cell.metric.name} of each attempt in {unit.unit}", ["block", *(a.arm for a in cell.arms)], rows, 0)


def failures_table(results: Results) -> Table:
    """Every attempt that failed or did not count, with the reason."""
    rows = [(a.cell, a.arm, a.block, a.number, state, why) for a in results.attempts for state, why in _trouble(a)]
    return _table("attempts that failed, were rejected or abandoned, or were not delivered", _FAILURES, rows, 6)


_FAILURES = ("cell", "policy", "block", "attempt", "what", "why")


def _trouble(attempt: Attempt) -> Iterable[tuple[str, str]]:
    if attempt.state == "abandoned":
        yield attempt.state, attempt.reason or "its block was not completed, or disturbed: it counts in no pair"
    elif attempt.state != "accepted":
        how = f"signal {attempt.signal}" if attempt.signal else f"exit {attempt.exit_code}"
        yield attempt.state, attempt.reason or how
    elif attempt.delivery.delivered is False:
        yield (
            "not delivered",
            f"{attempt.delivery.reason or ''} ({numbers.share(attempt.delivery.share)} delivered)".strip(),
        )


def left_out_table(results: Results) -> Table:
    """What the plan left out before anything ran."""
    rows = [(one.what, one.reason) for one in results.left_out]
    return _table("left out before anything ran", ("what", "why"), rows, 2)


def run_table(results: Results) -> Table:
    """The run itself: times, state, blocks, seed."""
    rows = [
        ("run", results.run),
        ("folder", results.folder),
        ("state", results.state),
        ("started", numbers.when(results.started)),
        ("took", format_duration(max(results.ended - results.started, 0.0))),
        ("blocks complete, incomplete, disturbed", _three(results)),
        ("confidence", numbers.percent(results.confidence)),
        ("margin of equivalence", f"±{numbers.percent(results.margin)}"),
        ("mechanism", results.mechanism),
        ("earlier runs", earlier(results, None)),
        ("seed's hash, committed before the first block", results.seed_hash),
        ("seed, revealed at the end", results.seed or "not revealed: the run has not ended"),
    ]
    return _table("the run", ("key", "value"), rows, 2)


def _three(results: Results) -> str:
    return f"{results.blocks_complete}, {results.blocks_incomplete}, {results.blocks_disturbed}"


def facts(caption: str, values: Mapping[str, Any]) -> Table:
    """Nested facts (host, versions, settings, options), a line a leaf: `cpu.model`."""
    return _table(caption, ("key", "value"), list(_leaves("", values)), 2)


def _leaves(prefix: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(f"{prefix}.{key}" if prefix else str(key), inner)
    elif isinstance(value, list | tuple) and any(isinstance(inner, Mapping | list | tuple) for inner in value):
        for number, inner in enumerate(value):
            yield from _leaves(f"{prefix}[{number}]", inner)
    elif isinstance(value, list | tuple):
        yield prefix, ", ".join(str(inner) for inner in value) or NOTHING
    elif isinstance(value, bool):
        yield prefix, "yes" if value else "no"
    elif isinstance(value, int) and prefix.endswith("bytes"):
        yield prefix, f"{numbers.size(value)} ({value:,})"
    else:
        yield prefix, NOTHING if value is None or value == {} else str(value)
