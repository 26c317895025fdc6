"""The tail of the latencies, the worst stalls with what fell into their seconds, and what the counters cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hugewise.model.over_time import ArmStall
from hugewise.model.results import CellResult
from hugewise.report import numbers
from hugewise.report.document import Line, Table, table
from hugewise.report.numbers import NOTHING, percent

_NAMES = {"p50_us": "p50", "p90_us": "p90", "p99_us": "p99", "p999_us": "p99.9", "p9999_us": "p99.99"}
_SHOWN = 3  # stalls of an arm in the table; report.json has five


def tail_table(cell: CellResult) -> Table | None:
    """A row for each quantile and arm: medians of the attempts' quantiles, and the paired ratio with its interval."""
    if not cell.tail:
        return None
    rows = [
        (
            one.arm,
            _NAMES.get(one.metric, one.metric),
            _time(one.baseline_us),
            _time(one.median_us),
            NOTHING if one.ratio is None else numbers.point(one.ratio, one.low, one.high),
            NOTHING if one.ratio is None else numbers.interval(one.ratio, one.low, one.high) or "unbounded",
            one.n,
        )
        for one in cell.tail
    ]
    confidence = percent(cell.tail[0].confidence)
    caption = (
        f"the tail: medians of the attempts' own quantiles, and the change within pairs with its {confidence} "
        "interval; requests are never pooled, each interval holds by itself, and nothing is judged by them"
    )
    head = ("policy", "quantile", cell.baseline, "with it", "change", f"{confidence} interval", "pairs")
    return table(caption, head, rows, 2, swatch=True)


def stalls_table(cell: CellResult) -> Table | None:
    """The slowest operations of each arm, and what was unusual in their seconds."""
    shown = [one for arm in cell.arms for one in [each for each in cell.stalls if each.arm == arm.arm][:_SHOWN]]
    if not shown:
        return None
    rows = [
        (
            one.arm,
            f"block {one.block}, {one.stall.at_s:,.1f} s",
            _fell_together(one),
            _time(one.stall.latency_s * 1e6),
            f"{one.stall.operations:,}",
        )
        for one in shown
    ]
    caption = (
        "the worst stalls, of different attempts: the slowest operation, when it was sent (second of the measured "
        "part), how many took at least half as long, and what the whole machine counted between the readings around it "
        "that was more than twice what is usual; other processes' doings are in it, and what fell together need not be "
        "the cause"
    )
    return table(caption, ("policy", "sent at", "in the same seconds", "took", "as slow"), rows, 3, swatch=True)


def _fell_together(one: ArmStall) -> str:
    if one.stall.from_s is None or one.stall.to_s is None:
        return f"{NOTHING} (the machine's counters were not read)"
    if not one.unusual:
        return "nothing that was counted was unusual"
    said = [_WORDS[name](one.stall.events[name]) for name in one.unusual if name in _WORDS]
    return ", ".join(said) if said else "nothing that was counted was unusual"


def idle_table(cell: CellResult) -> Table | None:
    """Memory of idle servers, when khugepaged is done with them, beside their peak."""
    if not cell.idle:
        return None
    rows = [
        (
            one.arm,
            numbers.size(one.peak),
            numbers.size(one.footprint),
            f"{NOTHING} ({one.why})" if one.idle is None else numbers.size(one.idle),
            NOTHING if one.ratio is None else numbers.point(one.ratio, one.low, one.high),
            NOTHING if one.ratio is None else numbers.interval(one.ratio, one.low, one.high) or "unbounded",
            one.n,
        )
        for one in cell.idle
    ]
    caption = (
        "memory of the servers, medians of the attempts: at its most, at the end of the measured part, and idle when "
        "khugepaged has looked at all memory twice; change of the idle memory within pairs, which is not judged"
    )
    return table(caption, ("policy", "peak", "at the end", "idle", "change", "interval", "attempts"), rows, swatch=True)


def sampler_line(cell: CellResult) -> Line | None:
    """What reading the counters took of the workload's CPU time."""
    cost = cell.sampler
    if cost is None:
        return None
    marked = (
        f" In {cost.marked} of {cost.n} it was above 0.5%: they count, and are named among the disturbances."
        if cost.marked
        else ""
    )
    unknown = f" In {cost.unknown} more it is not known." if cost.unknown else ""
    return Line(
        f"Reading the machine's counters over time took {_share(cost.median)} of the workload's CPU time (median of "
        f"{cost.n} attempts; at most {_share(cost.largest)}).{marked}{unknown}",
        quiet=True,
    )


def _share(share: float) -> str:
    return "less than 0.001%" if share < 1e-5 else f"{share * 100:.2g}%"


def _time(us: float | None) -> str:
    return NOTHING if us is None else numbers.scale("us", [us]).text(us)


def _counted(words: str) -> Callable[[float], str]:
    return lambda value: f"{value:,.0f} {words}"


_WORDS: Mapping[str, Callable[[float], str]] = {
    "compaction_stalls": _counted("allocations that waited for compaction"),
    "compaction_pages": _counted("pages scanned by compaction"),
    "huge_faults": _counted("faults with a huge page"),
    "huge_bytes_cleared": lambda value: f"{numbers.size(value)} of huge pages cleared in faults",
    "huge_fallbacks": _counted("faults that fell back to base pages"),
    "collapsed_pages": _counted("huge pages made by khugepaged"),
    "khugepaged_scans": _counted("passes of khugepaged ended"),
    "split_pages": _counted("huge pages or mappings split"),
    "begun": _counted("processes and threads began"),
    "faults": _counted("page faults"),
    "major_faults": _counted("major faults"),
    "swapped_pages": _counted("pages swapped"),
    "reclaim_stalls": _counted("allocations that reclaimed memory"),
    "memory_stalled_s": lambda value: f"{value:.2g} s of waiting for memory",
    "cpu_stalled_s": lambda value: f"{value:.2g} s of waiting for a CPU",
}
