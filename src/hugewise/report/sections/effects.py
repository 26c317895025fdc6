"""Tables of what was compared: effects with their intervals, how far they reach, and the ledger of alpha.

Changes in percent against the first arm, and counters of two arms side by side. What has an interval shows it; what was
not judged is a change of medians, and says how many attempts it is of. Counters are means, with their change within
pairs, and their spread in a row below, as `perf stat` lists them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from hugewise.analysis.changes import Change, Values, changes, emulated_away, known_metrics, value_of
from hugewise.model.results import CellResult, Comparison, Results
from hugewise.model.trial import Attempt
from hugewise.report import numbers
from hugewise.report.document import Table, table
from hugewise.report.numbers import NOTHING
from hugewise.report.reasons import in_words
from hugewise.report.sentences import better_direction, change_of, effect_of, marked, tier_name
from hugewise.stats.paired import Constant, paired
from hugewise.stats.pairs import log_ratio


def effects_table(cell: CellResult) -> Table:
    """Per comparison: verdict, change and ratio with interval, confidence, p, blocks, largest effect still possible;
    the change corrected for stopping early where any comparison has one.
    """
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
    """Return the blocks that estimate and interval are of, and how many there are beside them."""
    if comparison.n_all > comparison.n:
        usable = f"{comparison.n} usable of {comparison.n_all}"
        return usable if comparison.final else f"{usable}, {comparison.planned} planned, provisional"
    return str(comparison.n) if comparison.final else f"{comparison.n} of {comparison.planned}, provisional"


def spread_table(cell: CellResult) -> Table | None:
    """Per comparison whether the arm's values are spread differently from the baseline's, by an exact test."""
    rows = [
        [
            comparison.arm,
            comparison.spread.shown or "no difference shown",
            NOTHING if comparison.spread.ratio is None else f"{numbers.times(comparison.spread.ratio)} times",
            numbers.given(comparison.spread.pairs, ""),
            f"{comparison.spread.alpha:.3g}",
        ]
        for comparison in cell.comparisons
        if comparison.spread is not None
    ]
    head = ("policy", "spread", "against the baseline's", "shown at pair", "error rate")
    caption = (
        "spread of the values, by an exact test of the same coins with an error rate of its own; ratios are of "
        "interquartile ranges of the logarithms"
    )
    return table(caption, head, rows, 2, swatch=True) if rows else None


def reach_table(cell: CellResult) -> Table | None:
    """Per comparison how far the claim reaches: each tier with its interval, or why the data cannot carry it."""
    tiers = [(comparison.arm, tier) for comparison in cell.comparisons for tier in comparison.tiers]
    shown = [change_of(one.ratio, one.low, one.high) if one.supported else NOTHING for _, one in tiers]
    rows = [
        (arm, tier_name(one.name), text, in_words(one.reason)) for (arm, one), text in zip(tiers, shown, strict=True)
    ]
    caption = "how far it reaches: each tier with its interval"
    return table(caption, ("policy", "tier", "change (interval)", "why"), rows, 4, swatch=True) if rows else None


def end_points_table(cell: CellResult) -> Table | None:
    """Return the end points that the study declared beside the typical ratio, judged on the same pairs."""
    rows = [
        (
            comparison.arm,
            comparison.estimand,
            marked(comparison.verdict),
            effect_of(comparison),
            in_words(comparison.reason),
        )
        for comparison in cell.end_points
    ]
    head = ("policy", "end point", "verdict", "change (interval)", "why")
    return table("other end points, on the same pairs", head, rows, 5, swatch=True) if rows else None


def declared_table(cell: CellResult) -> Table | None:
    """Return the metrics that the study declared beside the cell's own, judged on the same attempts."""
    rows = [
        (
            *(comparison.arm, comparison.metric, better_direction(cell.metric_named(comparison.metric))),
            *(marked(comparison.verdict), effect_of(comparison), in_words(comparison.reason)),
        )
        for comparison in cell.declared
    ]
    head = ("policy", "metric", "direction", "verdict", "change (interval)", "why")
    caption = "other metrics that were declared before the run, judged on the same attempts"
    return table(caption, head, rows, 5, swatch=True) if rows else None


def alpha_table(results: Results) -> Table | None:
    """The ledger of alpha: the share that each end point of each comparison has, and what its test has spent."""
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
    return table(whole, head, rows, 3, titled=True) if rows else None


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


# As the mail of 2009 lists them for its two kernels; what only guests are asked for stands behind.
_COUNTERS: Mapping[str, str] = {
    "cpu_s": "task clock",
    "cpu_migrations": "CPU migrations",
    "context_switches": "context switches",
    "page_faults": "page faults",
    "cycles": "CPU cycles",
    "instructions": "instructions",
    "cache_references": "cache references",
    "cache_misses": "cache misses",
    "dtlb_load_misses": "dTLB load misses",
    "wall_s": "time elapsed",
}
_OF_GUESTS: Mapping[str, str] = {
    "lifetime_faults": "page faults, set-up included",
    "charged_peak_bytes": "peak memory charged, page cache included",
    "peak_bytes": "peak memory of the largest process",
    "footprint_bytes": "memory at the proof",
}
_OF_MAPPING_CALLS = ("mmap-perf", "lat-mmap")  # the workloads that are listed so


def changes_table(results: Results, cell: CellResult, values: Values | None = None) -> Table | None:
    """Every metric of the cell, a row each: the baseline's median, and the change of every other arm in percent."""
    untold = emulated_away(_accepted(results, cell))
    found = [
        change
        for change in changes(cell, values or Values.of(cell, results.attempts))
        if change.metric not in untold or change.verdict is not None
    ]
    rows: dict[tuple[str, str], dict[str, Change]] = {}
    for one in found:
        rows.setdefault((one.metric, one.estimand), {})[one.arm] = one
    arms = [arm.arm for arm in cell.arms if arm.arm != cell.baseline]
    if not rows or not arms:
        return None
    head = ["metric", f"{cell.baseline} (median)", *arms]
    body = [
        [_called(several), _baseline(several), *(_change(several.get(arm), several) for arm in arms)]
        for several in rows.values()
    ]
    caption = f"change against {cell.baseline} in percent; with its interval where it was judged, else of medians"
    return table(caption, head, body, 2, metrics=True)


def counters_table(results: Results, cell: CellResult) -> Table | None:
    """Counters side by side, for the workloads of mapping calls and for cells whose arms ran in guests.

    An arm a column: its mean with the change within pairs and the interval of that, and in a row below the spread of
    its runs (standard deviation / mean) and their number. Guests with the same seed would repeat each other: such runs
    count once.
    """
    mine = _accepted(results, cell)
    in_guests = any(one.guest for one in mine)
    if cell.workload not in _OF_MAPPING_CALLS and not in_guests:
        return None
    untold = emulated_away(mine)
    units = known_metrics(cell.workload)
    names = {**_COUNTERS, **_OF_GUESTS} if in_guests else _COUNTERS
    arms = [cell.baseline, *(arm.arm for arm in cell.arms if arm.arm != cell.baseline)]
    rows: list[list[str]] = []
    for name, words in names.items():
        values = {arm: _values(mine, arm, name) for arm in arms}
        if name in untold or (in_guests and not any(values.values())):
            continue
        unit = units[name].unit if name in units else ""
        reason = next((one.absent[name] for one in mine if one.arm == cell.baseline and name in one.absent), "")
        told = _mean(values[cell.baseline], unit) or f"{NOTHING} ({reason or 'not recorded'})"
        changed = (
            _changed(_mean(values[arm], unit), _log_ratios(mine, arm, cell.baseline, name), results.confidence)
            for arm in arms[1:]
        )
        rows.append([words, told, *changed])
        if any(values.values()):
            rows.append([f"{words}: spread", *(_spread(values[arm]) for arm in arms)])
    caption = (
        "counters side by side: mean of the accepted attempts, with the change within pairs of a block (geometric "
        f"mean) and its {numbers.percent(results.confidence)} t interval by itself; below, the spread of the runs "
        "(standard deviation / mean) and n. These changes are not judged"
    )
    return table(caption, ["counter", *arms], rows)


def _accepted(results: Results, cell: CellResult) -> list[Attempt]:
    return [attempt for attempt in results.attempts if attempt.cell == cell.cell and attempt.state == "accepted"]


def _values(attempts: Sequence[Attempt], arm: str, name: str) -> list[float]:
    """Return the arm's values, of guests with the same seed the first one."""
    found: dict[object, float] = {}
    for attempt in attempts:
        value = value_of(attempt, name)
        if attempt.arm == arm and value is not None and math.isfinite(value):
            found.setdefault(_origin(attempt), value)
    return list(found.values())


def _origin(attempt: Attempt) -> object:
    # attempts of one guest seed repeat each other; attempts on the host do not
    return attempt.guest.get("guest_seed", (attempt.block, attempt.number))


def _log_ratios(attempts: Sequence[Attempt], arm: str, baseline: str, name: str) -> list[float]:
    """log(arm / baseline) of each block in which both have the counter, and count something; guests with the same seeds
    once.
    """
    sides: dict[int, dict[str, tuple[object, float]]] = {}
    for attempt in attempts:
        value = value_of(attempt, name)
        if attempt.arm in (arm, baseline) and value is not None and 0 < value < math.inf:
            sides.setdefault(attempt.block, {}).setdefault(attempt.arm, (_origin(attempt), value))
    found: dict[object, float] = {}
    for both in sides.values():
        if len(both) == 2:
            (first, value), (second, against) = both[arm], both[baseline]
            found.setdefault((first, second), log_ratio(value, against))
    return list(found.values())


def _changed(mean: str, log_ratios: Sequence[float], confidence: float) -> str:
    """`2.134 s, −0.5% (−0.8% to −0.2%)`; of one pair without an interval, and of none the mean alone."""
    told = paired(log_ratios)
    if not mean or told is None:
        return mean or NOTHING
    if isinstance(told, Constant):
        ratio = _exp(told.centre)
        return f"{mean}, {numbers.effect(ratio, None, None, told.n) if told.n > 1 else numbers.exact(ratio)}"
    low, high = told.interval(1 - confidence)
    return f"{mean}, {numbers.effect(_exp(told.centre), _exp(low), _exp(high))}"


def _exp(log: float) -> float:
    # with two pairs the t interval may exceed all numbers
    return math.exp(log) if log < 700 else math.inf


def _mean(values: Sequence[float], unit: str) -> str:
    """`2,161,280,486`; empty of none."""
    if not values:
        return ""
    mean = fmean(values)
    if unit in {"s", "ms", "us", "ns"}:
        return numbers.scale(unit, [mean]).text(mean)
    if unit == "bytes":
        return numbers.size(mean)
    return f"{mean:,.0f}" if mean >= 1000 or mean.is_integer() else f"{mean:,.4g}"


def _spread(values: Sequence[float]) -> str:
    """`± 0.01%, n 10`."""
    if not values:
        return NOTHING
    mean, n = fmean(values), f"n {len(values)}"
    if len(values) < 2 or mean <= 0:
        return n
    spread = stdev(values) / mean * 100
    return f"± {'0' if spread == 0 else f'{spread:.2g}'}%, {n}"


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
        told = any(each.value_baseline is None for each in several.values())  # the reason stands with the baseline
        return NOTHING if told else f"{NOTHING} ({in_words(change.reason)})"
    n = f"n {change.n}"
    setting = (
        f", of the setting ({numbers.share(change.delivered_share)} delivered)" if change.judged == "setting" else ""
    )
    return f"{marked(change.verdict)}: {effect_of(change)}, {n}{setting}"


def _percent(change: Change | None) -> str:
    return NOTHING if change is None else numbers.change(change.ratio, places=2 if _small(change.ratio) else 1)


def _small(ratio: float | None) -> bool:
    return ratio is not None and abs(ratio - 1) < 0.1
