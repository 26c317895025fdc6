"""Remarks of every report: earlier runs, and comparisons that had too little time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from hugewise.analysis.budget import more_time
from hugewise.analysis.earlier import WithEarlier, together
from hugewise.model.results import DECIDED, DIRECTIONS, CellResult, Comparison, EarlierComparison, Results, Verdict
from hugewise.report import numbers
from hugewise.stats.power import least_pairs
from hugewise.visible import printable

_NAMED = 3  # comparisons of a run that are named in a line


def earlier(results: Results, most: int | None = 5) -> str:
    """Return the earlier runs, the comparisons that they share, and their results; at most `most` runs by name."""
    known, shared = results.earlier, results.earlier_shared
    if known is None:
        return "Whether this study had earlier runs on this host was not recorded."
    folders = "1 folder" if results.earlier_unread == 1 else f"{results.earlier_unread} folders"
    unread = f" Beside them {folders} cannot be read." if results.earlier_unread else ""
    if not known:
        lacking = f", and {folders} in it cannot be read" if results.earlier_unread else ""
        if shared is None:
            parts = "; runs of a part of it were not looked for"
            return f"No earlier run of this study on this host is in this results folder{lacking}{parts}."
        return f"No earlier run with any of these comparisons on this host is in this results folder{lacking}."
    every = {(cell.cell, comparison.arm, comparison.metric) for cell in results.cells for comparison in cell.judged}
    told = [_told(one, (shared or {}).get(one, ()), len(every), whole=most is None) for one in known[:most]]
    more = (
        ""
        if most is None or len(known) <= most
        else f" and {len(known) - most} more (all in the report's table of the run)"
    )
    runs = "1 earlier run" if len(known) == 1 else f"{len(known)} earlier runs"
    of = "of this study" if shared is None else "with the same comparisons"
    named = f"{runs} {of} on this host: {', '.join(told)}{more}. Publish all of them, not a chosen one.{unread}"
    return " ".join((named, *with_earlier(results)))


def with_earlier(results: Results) -> Iterator[str]:
    """Yield a sentence for each comparison that the earlier runs with this one decide otherwise than this one alone."""
    alone = {
        (cell.cell, one.arm, one.metric): one.verdict
        for cell in results.cells
        for one in (*cell.comparisons, *cell.declared)
    }
    for key, every in together(results).items():
        if alone[key] != every.verdict and (alone[key] in DECIDED or every.verdict in DIRECTIONS):
            cell, arm, metric = map(printable, key)
            yield f"{arm} on {cell} by {metric}, with {of_all_runs(every, alone[key])}."


def of_all_runs(every: WithEarlier, alone: Verdict) -> str:
    """Return all runs together beside this one: `1 earlier run ...: all together undecided, this run alone better`."""
    runs = "1 earlier run" if len(every.runs) == 1 else f"{len(every.runs)} earlier runs"
    more = f" and {len(every.runs) - _NAMED} more" if every.runs[_NAMED:] else ""
    named = f"{', '.join(map(printable, every.runs[:_NAMED]))}{more}"
    evidence = f"evidence {numbers.times(every.e_value)} of {numbers.times(every.needed)}"
    own = "" if every.verdict == alone else f", by this run alone {alone}"
    return f"{runs} of the same question ({named}): all together {every.verdict} ({evidence}){own}"


def _told(run: str, shared: Sequence[EarlierComparison], every: int, *, whole: bool) -> str:
    if not shared:  # of a version that looked for the whole study
        return printable(run)
    if whole:
        return (
            f"{printable(run)} ({'; '.join(f'{_name(comparison)}: {_outcome([comparison])}' for comparison in shared)})"
        )
    if len(shared) == every:
        what = "all comparisons" if every > 1 else _name(shared[0])
    else:
        more = f" and {len(shared) - _NAMED} more" if len(shared) > _NAMED else ""
        what = f"{', '.join(map(_name, shared[:_NAMED]))}{more}"
    return f"{printable(run)} ({what}: {_outcome(shared)})"


def _name(comparison: EarlierComparison) -> str:
    return printable(f"{comparison.arm} on {comparison.cell} by {comparison.metric}")


def _outcome(shared: Iterable[EarlierComparison]) -> str:
    """`9 to 11 pairs, 2 better and 4 undecided`."""
    pairs = sorted({comparison.pairs for comparison in shared if comparison.pairs is not None})
    verdicts = Counter(
        "no verdict" if comparison.verdict == "none" else comparison.verdict
        for comparison in shared
        if comparison.verdict
    )
    if not pairs or not verdicts:
        return "it has no report"
    count = f"{pairs[0]} to {pairs[-1]} pairs" if len(pairs) > 1 else f"{pairs[0]} pair{'' if pairs == [1] else 's'}"
    if len(verdicts) == 1:
        return f"{count}, {next(iter(verdicts))}"
    return f"{count}, {', '.join(f'{n} {verdict}' for verdict, n in verdicts.items())}"


def control_of(cell: CellResult) -> str | None:
    """Return the comparison of each arm with itself in a sentence; None where blocks had one copy of each arm."""
    control = cell.control
    if control is None:
        return None
    many = f"{control.n} pair{'' if control.n == 1 else 's'}"
    return f"each policy against itself {numbers.effect(control.ratio, control.low, control.high)}, {many}"


def differing_controls(results: Results) -> Iterator[str]:
    """Yield a sentence for each cell whose arms the test calls different from themselves."""
    for cell in results.cells:
        if cell.control is not None and cell.control.different:
            chance = numbers.percent(1 - cell.control.confidence)
            yield (
                f"Do not rely on {printable(cell.cell)}: the control differs ({control_of(cell)}). Chance alone does "
                f"this in at most {chance} of such cells. Look for what else ran, and measure again."
            )


_WITH_VERDICTS = ("sequential", "fixed-n")


def time_short(results: Results) -> Iterator[str]:
    """Yield a sentence, where the time was up before comparisons had the pairs that a verdict takes at least."""
    time = results.options.get("budget", {}).get("time")
    every = [
        (cell.cell, comparison)
        for cell in results.cells
        for comparison in (*cell.comparisons, *cell.declared)
        if comparison.method in _WITH_VERDICTS and cell.metric_named(comparison.metric).better != "neutral"
    ]
    cell_copies = {cell.cell: cell.copies for cell in results.cells}
    short = [(cell, one, least) for cell, one in every if (least := _least(one, cell_copies[cell])) is not None]
    if results.state != "time is up" or not time or not short:
        return
    fewest, done = min(least for *_, least in short), max(one.n_all for _, one, _ in short)
    if done >= fewest:
        return  # what is lacking is not time
    several = f"{done} pair{'' if done == 1 else 's'}"
    if len(short) == len(every):
        cure = f": {more_time(time * fewest / done, asked=bool(results.command))}" if done else ""
        yield f"The time was up after {several} of each comparison, and a verdict takes at least {fewest}{cure}."
        return
    names = dict.fromkeys(f"{one.arm} on {cell}" for cell, one, _ in short)
    named = printable(", ".join([*names][:_NAMED])) + (
        f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    )
    yield f"The time had no room for a verdict on {named}: {several} at most, and a verdict takes at least {fewest}."


def _least(comparison: Comparison, copies: int) -> int | None:
    if comparison.verdict != "undecided":
        return None
    if comparison.method == "fixed-n":
        return None if comparison.final else comparison.planned
    least = None if comparison.alpha is None else least_pairs(comparison.alpha, comparison.planned, copies)
    return least if least is not None and comparison.n < least else None
