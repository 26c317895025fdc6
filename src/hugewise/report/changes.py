"""The table of changes in percent against the first arm, and counters of two arms side by side.

Both are tables and no pictures: so were those of the studies that they are drawn after. What has an interval shows it;
what was not judged is a change of medians, and says how many attempts it is of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hugewise.changes import Change, changes
from hugewise.report import numbers
from hugewise.report.numbers import NOTHING
from hugewise.report.sentences import SYMBOLS, printable
from hugewise.report.tables import Table
from hugewise.results import CellResult, Results

__all__ = ["changes_table", "counters_table"]

# As the mail of 2009 lists them for its two kernels.
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
_OF_MAPPING_CALLS = ("mmap-perf", "lat-mmap")  # the workloads that are listed so


def changes_table(results: Results, cell: CellResult) -> Table | None:
    """Every metric of the cell, a row each: the baseline's median, and the change of every other arm in percent."""
    found = changes(cell, results.attempts)
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
    return _table(caption, head, body)


def counters_table(results: Results, cell: CellResult) -> Table | None:
    """Counters side by side for the workloads of mapping calls: each arm's median, and its change."""
    if cell.workload not in _OF_MAPPING_CALLS:
        return None
    found = {(one.metric, one.arm): one for one in reversed(changes(cell, results.attempts))}
    arms = [arm.arm for arm in cell.arms if arm.arm != cell.baseline]
    head = ["counter", cell.baseline, *(entry for arm in arms for entry in (arm, "change"))]
    rows = []
    for name, words in _COUNTERS.items():
        several = [found.get((name, arm)) for arm in arms]
        base = next((one for one in several if one is not None), None)
        row = [words, _value(base, base.value_baseline if base is not None else None)]
        for one in several:
            told = base is None or base.value_baseline is None  # the reason stands with the baseline
            value = (
                NOTHING
                if told and (one is None or one.value is None)
                else _value(one, None if one is None else one.value)
            )
            row += [value, _percent(one)]
        rows.append(row)
    return _table("counters side by side: medians of the accepted attempts", head, rows)


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
    effect = numbers.effect(one.ratio, one.low, one.high)
    n = f"n {one.n}"
    setting = f", of the setting ({numbers.share(one.delivered_share)} delivered)" if one.judged == "setting" else ""
    return f"{SYMBOLS[one.verdict]} {one.verdict}: {effect}, {n}{setting}"


def _percent(one: Change | None) -> str:
    return NOTHING if one is None else numbers.change(one.ratio, places=2 if _small(one.ratio) else 1)


def _small(ratio: float | None) -> bool:
    return ratio is not None and abs(ratio - 1) < 0.1


def _value(one: Change | None, value: float | None) -> str:
    if one is None:
        return f"{NOTHING} (not recorded)"
    if value is None:
        return f"{NOTHING} ({one.reason})" if one.reason else NOTHING
    if one.unit in {"s", "ms", "us", "ns"}:
        return numbers.scale(one.unit, [value]).text(value)
    return f"{value:,.0f}" if value >= 1000 or value.is_integer() else f"{value:,.4g}"


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    cleaned = tuple(tuple(printable(entry) for entry in row) for row in rows)
    return Table(printable(caption), tuple(printable(entry) for entry in head), cleaned, 2)
