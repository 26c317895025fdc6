"""Tables of what was compared: effects with their intervals, how far they reach, and the ledger of alpha.

A change that was judged has its interval; any other is a change of medians, with the number of attempts.
"""

from __future__ import annotations

from collections.abc import Mapping

from hugewise.analysis.changes import Change, Values, alone, changes, emulated_away
from hugewise.model.reason import Known
from hugewise.model.results import CellResult, Comparison, Results
from hugewise.model.trial import Attempt
from hugewise.quantity import parse_size
from hugewise.report import numbers
from hugewise.report.document import Table, table
from hugewise.report.numbers import NOTHING
from hugewise.report.reasons import in_words
from hugewise.report.sentences import better_direction, change_of, effect_of, marked, tier_name


def effects_table(cell: CellResult) -> Table:
    """Return a row per comparison: verdict, change and ratio with interval, confidence, p, blocks, and more."""
    early = any(comparison.corrected is not None for comparison in cell.comparisons)
    head = [
        *("policy", "verdict", "change (interval)", *(["corrected for stopping early"] if early else [])),
        *("ratio (interval)", "confidence", "p", "blocks", "still possible"),
    ]

    def row(one: Comparison) -> list[object]:
        return [
            one.arm,
            marked(one.verdict),
            effect_of(one),
            *([_corrected(one)] if early else []),
            numbers.ratio(one.ratio, one.low, one.high),
            numbers.percent(one.confidence),
            NOTHING if one.p is None else "<0.0001" if one.p < 0.0001 else f"{one.p:.2g}",
            _counted(one),
            _possible(one),
        ]

    caption = f"{cell.metric.name}: ratios are policy/{cell.baseline} ({better_direction(cell.metric)})"
    return table(caption, head, [row(comparison) for comparison in cell.comparisons], 2, swatch=True)


def _corrected(comparison: Comparison) -> str:
    return (
        NOTHING
        if comparison.corrected is None
        else f"about {numbers.like(comparison.corrected, comparison.ratio, comparison.low, comparison.high)}"
    )


def _possible(comparison: Comparison) -> str:
    unknown = comparison.verdict == "undecided" and not numbers.bounded(comparison.change)
    return "no bound yet" if unknown else numbers.largest(comparison.change)


def _counted(comparison: Comparison) -> str:
    if comparison.n_all > comparison.n:
        usable = f"{comparison.n} usable of {comparison.n_all}"
        return usable if comparison.final else f"{usable}, {comparison.planned} planned, provisional"
    return str(comparison.n) if comparison.final else f"{comparison.n} of {comparison.planned}, provisional"


def reach_table(cell: CellResult) -> Table | None:
    """Per comparison how far the claim reaches: each tier with its interval, or why the data cannot carry it."""
    tiers = [(comparison.arm, tier) for comparison in cell.comparisons for tier in comparison.tiers]
    shown = [change_of(one.ratio, one.low, one.high) if one.supported else NOTHING for _, one in tiers]
    rows = [
        (arm, tier_name(one.name), text, in_words(one.reason)) for (arm, one), text in zip(tiers, shown, strict=True)
    ]
    caption = "how far it reaches: each tier with its interval"
    return table(caption, ("policy", "tier", "change (interval)", "why"), rows, 4, swatch=True) if rows else None


def alpha_table(results: Results) -> Table | None:
    """Return the ledger of alpha: the share that each end point of each comparison has, and what its test has spent."""
    rows = [
        [
            cell.cell,
            comparison.arm,
            f"{comparison.estimand}, of {comparison.metric}" if cell.also else comparison.estimand,
            f"{comparison.alpha:.3g}",
            numbers.given(comparison.alpha_spent, ".3g"),
            comparison.n,
            comparison.planned,
        ]
        for cell in results.cells
        for comparison in cell.judged
        if comparison.alpha is not None
    ]
    head = ("cell", "policy", "end point", "share of alpha", "spent so far", "pairs", "declared budget")
    whole = (
        f"ledger of alpha: {1 - results.confidence:.3g} in all, shared equally by {len(rows)} before the first block"
    )
    return table(whole, head, rows, 3) if rows else None


def sensitivity_table(cell: CellResult) -> Table:
    """Per comparison: the estimate without and with the blocks of undelivered treatment, failures, and the method."""
    late = any(comparison.unstarted_arm or comparison.unstarted_baseline for comparison in cell.comparisons)
    head = [
        *("policy", "method", "without undelivered blocks", "with them", "failures", "failures of the baseline"),
        *(("could not be started", "baseline could not") if late else ()),
    ]
    rows = [
        [
            *(comparison.arm, comparison.method),
            *(
                f"{numbers.ratio(value)} ({n} blocks)"
                for value, n in ((comparison.ratio, comparison.n), (comparison.ratio_all, comparison.n_all))
            ),
            *(comparison.failures_arm, comparison.failures_baseline),
            *((comparison.unstarted_arm, comparison.unstarted_baseline) if late else ()),
        ]
        for comparison in cell.comparisons
    ]
    return table("the estimated ratio without and with undelivered blocks", head, rows, 2, swatch=True)


def changes_table(results: Results, cell: CellResult) -> Table | None:
    """Return a row per metric: the baseline's median, and each arm's change in percent, or its median."""
    untold = emulated_away(cell, _accepted(results, cell))
    arms = [arm.arm for arm in cell.arms if arm.arm != cell.baseline]
    found = [
        change
        for change in (changes if arms else alone)(cell, Values.of(cell, results.attempts))
        if change.metric not in untold or change.verdict is not None
    ]
    rows: dict[tuple[str, str], dict[str, Change]] = {}
    for one in found:
        rows.setdefault((one.metric, one.estimand), {})[one.arm] = one
    if not rows:
        return None
    head = ["metric", f"{cell.baseline} (median)", *arms]
    body = [
        [_called(several), _baseline(several), *(_change(several.get(arm), several) for arm in arms)]
        for several in rows.values()
    ]
    caption = f"change against {cell.baseline} in percent; with its interval where it was judged, else of medians"
    return table(caption if arms else f"medians of {cell.baseline}", head, body, 2 if arms else 1)


def _accepted(results: Results, cell: CellResult) -> list[Attempt]:
    return [attempt for attempt in results.attempts if attempt.cell == cell.cell and attempt.state == "accepted"]


def _called(several: Mapping[str, Change]) -> str:
    one = next(iter(several.values()))
    return one.metric if one.verdict is None else f"{one.metric}: {one.estimand}"


def _baseline(several: Mapping[str, Change]) -> str:
    one = next(iter(several.values()))
    if one.value_baseline is None:
        reason = next((each.reason for each in several.values() if each.ratio is None and each.reason), "")
        return f"{NOTHING} ({in_words(reason)})" if reason and one.verdict is None else NOTHING
    known = [value for each in several.values() for value in (each.value, each.value_baseline)]
    text = numbers.scale(one.unit, [one.value_baseline or next(filter(None, known), None)]).text(one.value_baseline)
    return text if one.verdict is not None else f"{text}, n {one.n_baseline}"


def _change(change: Change | None, several: Mapping[str, Change]) -> str:
    if change is None:
        return NOTHING
    if change.verdict is None:
        if change.ratio is not None:
            return f"{_percent(change)}, n {change.n}"
        if change.value is not None and change.reason != Known("zero"):
            return f"{_median(change)}, n {change.n}"
        told = any(each.value_baseline is None for each in several.values())  # the reason stands with the baseline
        return NOTHING if told else f"{NOTHING} ({in_words(change.reason)})"
    n = f"n {change.n}"
    setting = (
        f", of the setting ({numbers.share(change.delivered_share)} delivered)" if change.judged == "setting" else ""
    )
    return f"{marked(change.verdict)}: {effect_of(change)}, {n}{setting}"


def _median(change: Change) -> str:
    text = numbers.scale(change.unit, [change.value]).text(change.value, 0.0)
    _, pages, size = change.metric.partition("allocations_")
    return f"{text} ({numbers.size((change.value or 0) * parse_size(size))})" if pages else text


def _percent(change: Change | None) -> str:
    return NOTHING if change is None else numbers.change(change.ratio, places=2 if _small(change.ratio) else 1)


def _small(ratio: float | None) -> bool:
    return ratio is not None and abs(ratio - 1) < 0.1
