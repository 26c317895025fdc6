"""Recordings within the attempts of a cell: tails, stalls, facts, and ageing of the memory.

None of it changes a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from hugewise.model import pages
from hugewise.model.over_time import ArmStall
from hugewise.model.results import CellResult, Fact, FactDifference, Steadiness
from hugewise.quantity import readable_size
from hugewise.report import numbers
from hugewise.report.document import Line, Table, table
from hugewise.report.numbers import NOTHING, percent
from hugewise.visible import printable

_NAMES = {"p50_us": "p50", "p90_us": "p90", "p99_us": "p99", "p999_us": "p99.9", "p9999_us": "p99.99"}
_SHOWN = 3  # stalls of an arm in the table; report.json has five


def tail_table(cell: CellResult) -> Table | None:
    """Return a row for each quantile and arm: medians of the attempts' quantiles, and the paired ratio."""
    if not cell.tail:
        return None
    rows = [
        (
            quantile.arm,
            _NAMES.get(quantile.metric, quantile.metric),
            _time(quantile.baseline_us),
            _time(quantile.median_us),
            NOTHING if quantile.ratio is None else numbers.point(quantile.ratio, quantile.low, quantile.high),
            NOTHING
            if quantile.ratio is None
            else numbers.interval(quantile.ratio, quantile.low, quantile.high) or "unbounded",
            quantile.n,
        )
        for quantile in cell.tail
    ]
    confidence = percent(cell.tail[0].confidence)
    caption = (
        f"the tail: medians of the attempts' own quantiles, and the change within pairs with its {confidence} "
        "interval; requests are never pooled, each interval holds by itself, and nothing is judged by them"
    )
    head = ("policy", "quantile", cell.baseline, "with the policy", "change", f"{confidence} interval", "pairs")
    return table(caption, head, rows, 2, swatch=True)


def stalls_table(cell: CellResult) -> Table | None:
    """Return the slowest operations of each arm, and what was unusual in their seconds."""
    shown = [one for arm in cell.arms for one in [stall for stall in cell.stalls if stall.arm == arm.arm][:_SHOWN]]
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


def _fell_together(stall: ArmStall) -> str:
    if stall.stall.from_s is None or stall.stall.to_s is None:
        return f"{NOTHING} (the machine's counters were not read)"
    if not stall.unusual:
        return "nothing that was counted was unusual"
    said = [_WORDS[name](stall.stall.events[name]) for name in stall.unusual if name in _WORDS]
    return ", ".join(said) if said else "nothing that was counted was unusual"


def sampler_line(cell: CellResult) -> Line | None:
    """Return the share of the workload's CPU time that reading the counters took."""
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


_LONGEST = 80  # characters of a fact that are shown; report.json has the whole
_HASH = 12  # characters that tell a hash
_MOST = 3  # values of an arm that are named
_HEXADECIMAL = set("0123456789abcdef")


def common(cell: CellResult) -> str:
    """Return `The same in every attempt: data SHA-256 1791…, storage /dev/shm (tmpfs).`; empty where nothing is."""
    texts = [f"{_called(name)} {_shown(name, value)}" for name, value in cell.facts.items()]
    return f"The same in every attempt: {', '.join(texts)}." if texts else ""


def remarks(cell: CellResult) -> Iterator[str]:
    """Warnings on the cell: arms whose throughput had not settled, and facts that differ although they should not."""
    for steadiness in cell.steadiness:
        if steadiness.settled is False:
            yield f"Throughput of {printable(steadiness.arm)} {_moved(steadiness)}: it had not settled."
    for difference in cell.differing:
        yield _difference(difference)


def _moved(steadiness: Steadiness) -> str:
    of = f"median of {steadiness.n} attempt{'' if steadiness.n == 1 else 's'}"
    if steadiness.change is None:
        return f"rose from nothing within the measured part ({of})"
    percent = abs(steadiness.change) * 100
    size = f"{percent:,.0f}%" if percent >= 100 else f"{percent:.3g}%"
    word = "rose" if steadiness.change > 0 else "fell"
    return f"{word} by {size} within the measured part (last third of its seconds against the first; {of})"


def _difference(difference: FactDifference) -> str:
    several = [f"{printable(arm)} {_values(values)}" for arm, values in difference.values.items()]
    within = any(len(values) > 1 for values in difference.values.values())
    where = "attempts" if within else "arms"
    name = _upper(_called(difference.name))
    return f"{name} differs between {where}, which should have it in common: {', '.join(several)}."


def _values(values: tuple[Fact | None, ...]) -> str:
    shown = ["none" if value is None else _text(value) for value in values[:_MOST]]
    more = [f"{len(values) - _MOST} more"] if len(values) > _MOST else []
    return " and ".join([*shown, *more])


_UPPER_CASE: Mapping[str, str] = {"sha256": "SHA-256", "cpu": "CPU", "wal": "WAL", "mib": "MiB", "rss": "RSS"}


def _called(name: str) -> str:
    """`data_sha256` as `data SHA-256`."""
    return " ".join(_UPPER_CASE.get(word, word) for word in printable(name).split("_"))


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _shown(name: str, value: Fact) -> str:
    return numbers.size(value) if name.endswith("bytes") and not isinstance(value, str) else _text(value)


def _text(value: Fact) -> str:
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:,.10g}"
    text = printable(value)
    if len(text) >= 2 * _HASH and set(text) <= _HEXADECIMAL:
        return f"{text[:_HASH]}…"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def ageing_remarks(cell: CellResult) -> Iterator[str]:
    """Yield remarks beside the verdicts of a cell whose memory has aged."""
    if pages.fragmented(cell.memory_age) and cell.aged:
        share, most = (max(getattr(ageing, name) for ageing in cell.aged) for name in ("huge_share", "huge_bytes"))
        yield (
            f"Its memory was fragmented before every attempt: at most {numbers.share(share)} of what was free"
            f" ({readable_size(most)}) could become a huge page at once."
        )
    if not pages.pressed(cell.memory_age):
        return
    limit = "" if cell.memory is None else f" of {readable_size(cell.memory)}"
    texts = [
        f"{printable(ageing.arm)} {readable_size(ageing.swapped)}" for ageing in cell.aged if ageing.swapped is not None
    ]
    yield (
        f"Its programs had a limit{limit}, and swap: {', '.join(texts) or 'nothing is known of what'}"
        f"{'' if not texts else ' were'} swapped out and in on the whole host meanwhile (medians)."
    )
    if still := [printable(ageing.arm) for ageing in cell.aged if ageing.swapped == 0]:
        yield f"Nothing was swapped under {', '.join(still)}: the limit was no pressure there."


def ageing_table(cell: CellResult) -> Table | None:
    """Per arm: what of the free memory could become a huge page when its attempts began, and what was swapped."""
    if cell.memory_age == "fresh" or not cell.aged:
        return None
    delivered = {arm.arm: arm.delivered_share for arm in cell.arms}
    rows = [
        [
            *(ageing.arm, ageing.n, numbers.share(ageing.huge_share), readable_size(ageing.huge_bytes), ageing.pinned),
            *(
                "–" if ageing.swapped is None else readable_size(ageing.swapped),
                numbers.share(delivered.get(ageing.arm)),
            ),
        ]
        for ageing in cell.aged
    ]
    head = ["policy", "attempts", "free in huge blocks (most)", "that is", "pinned pages", "swapped", "delivered"]
    return table(f"memory that has aged: {cell.memory_age}", head, rows, swatch=True)
