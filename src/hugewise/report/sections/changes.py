"""The table of changes in percent against the first arm, and counters of two arms side by side.

Both are tables and no pictures: so were those of the studies that they are drawn after. What has an interval shows it;
what was not judged is a change of medians, and says how many attempts it is of. Counters are means, with their change
within pairs, and their spread in a row below, as `perf stat` lists them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from hugewise.analysis.changes import Change, Values, changes, emulated_away, known_metrics, value_of
from hugewise.model.results import CellResult, Results
from hugewise.model.trial import Attempt
from hugewise.report import numbers
from hugewise.report.document import Table, table
from hugewise.report.numbers import NOTHING
from hugewise.report.sentences import SYMBOLS, effect_of
from hugewise.stats.paired import Constant, paired
from hugewise.stats.pairs import log_ratio

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
    untold = emulated_away(_counted(results, cell))
    found = [
        one
        for one in changes(cell, values or Values.of(cell, results.attempts))
        if one.metric not in untold or one.verdict is not None
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
    mine = _counted(results, cell)
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


def _counted(results: Results, cell: CellResult) -> list[Attempt]:
    return [one for one in results.attempts if one.cell == cell.cell and one.state == "accepted"]


def _values(attempts: Sequence[Attempt], arm: str, name: str) -> list[float]:
    """The arm's values, of guests with the same seed the first one."""
    found: dict[object, float] = {}
    for one in attempts:
        value = value_of(one, name)
        if one.arm == arm and value is not None and math.isfinite(value):
            found.setdefault(_origin(one), value)
    return list(found.values())


def _origin(one: Attempt) -> object:
    """What repeats itself where it is the same: the seed of a guest; of an attempt on the host nothing does."""
    return one.guest.get("guest_seed", (one.block, one.number))


def _log_ratios(attempts: Sequence[Attempt], arm: str, baseline: str, name: str) -> list[float]:
    """log(arm / baseline) of each block in which both have the counter, and count something; guests with the same seeds
    once.
    """
    sides: dict[int, dict[str, tuple[object, float]]] = {}
    for one in attempts:
        value = value_of(one, name)
        if one.arm in (arm, baseline) and value is not None and 0 < value < math.inf:
            sides.setdefault(one.block, {}).setdefault(one.arm, (_origin(one), value))
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
    """Of two pairs the t interval may reach beyond all numbers."""
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
        return f"{NOTHING} ({reason})" if reason and one.verdict is None else NOTHING
    known = [value for each in several.values() for value in (each.value, each.value_baseline)]
    text = numbers.scale(one.unit, [one.value_baseline or next(filter(None, known), None)]).text(one.value_baseline)
    return text if one.verdict is not None else f"{text}, n {one.n_baseline}"


def _change(one: Change | None, several: Mapping[str, Change]) -> str:
    if one is None:
        return NOTHING
    if one.verdict is None:
        if one.ratio is not None:
            return f"{_percent(one)}, n {one.n}"
        told = any(each.value_baseline is None for each in several.values())  # the reason stands with the baseline
        return NOTHING if told else f"{NOTHING} ({one.reason})"
    n = f"n {one.n}"
    setting = f", of the setting ({numbers.share(one.delivered_share)} delivered)" if one.judged == "setting" else ""
    return f"{SYMBOLS[one.verdict]} {one.verdict}: {effect_of(one)}, {n}{setting}"


def _percent(one: Change | None) -> str:
    return NOTHING if one is None else numbers.change(one.ratio, places=2 if _small(one.ratio) else 1)


def _small(ratio: float | None) -> bool:
    return ratio is not None and abs(ratio - 1) < 0.1
