"""What became of the cells that were to be measured first, over all runs of a page. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hugewise.analysis.forecast import Row
from hugewise.model.results import Comparison, Results, Verdict
from hugewise.plan.plan import EVERY
from hugewise.report import remarks, unmeasured
from hugewise.report.cell_list import First
from hugewise.report.document import Line, Section, table
from hugewise.report.numbers import NOTHING
from hugewise.report.sentences import SYMBOLS
from hugewise.report.unmeasured import Unmeasured

TITLE = "What was to be measured first"
_DECIDED = {"better", "worse", "equivalent"}

Key = tuple[str, str, str]
"""A cell, an arm and a metric."""


def first_cells(
    listed: Sequence[First],
    runs: Sequence[Results],
    together: Mapping[Key, Verdict],
    planned: Mapping[Key, Row],
    others: Sequence[Unmeasured],
) -> Iterator[Section]:
    """The section, where anything is listed.

    runs      the newest first
    together  what they say together, where several have a comparison
    planned   what a verdict takes
    others    the cells that none was asked for
    """
    if not listed:
        return
    not_run = {one.cell: one for one in others}
    rows = [
        (first.cell, arm, ", ".join(first.claims) or NOTHING, *told)
        for first in listed
        for arm in first.arms
        for told in _told(first, arm, runs, together, planned, not_run.get(first.cell))
    ]
    least = max(first.pairs for first in listed)
    head = (
        "cell",
        "policy",
        "for the published",
        "metric",
        "pairs of all runs",
        f"{least} pairs",
        "verdict, or what it needs",
    )
    said = f"A cell for each published claim came first, in this order; each was to have {least} pairs at least."
    yield Section(TITLE, (Line(said), table("the list", head, rows, 4)))


def _told(  # noqa: PLR0917
    first: First,
    arm: str,
    runs: Sequence[Results],
    together: Mapping[Key, Verdict],
    planned: Mapping[Key, Row],
    other: Unmeasured | None,
) -> Iterator[tuple[str, str, str, str]]:
    """Of each metric: its name, pairs, whether they are enough, and the verdict or what it needs."""
    every = [one for run in runs for one in _compared(run, first.cell, arm)]
    if not every:
        yield NOTHING, "0", "no", f"not run: {_why_not(first.cell, arm, runs, planned, other)}"
    for metric in dict.fromkeys(one.metric for one in every):
        found, key = [one for one in every if one.metric == metric], (first.cell, arm, metric)
        pairs = sum(one.n for one in found)
        enough = "yes" if pairs >= first.pairs else _fewer(first.cell, pairs, runs, found)
        yield metric, f"{pairs:,}", enough, _verdict(found, together.get(key), planned.get(key))


def _fewer(cell: str, pairs: int, runs: Sequence[Results], found: Sequence[Comparison]) -> str:
    """Fewer are no run that ended early where one decided before, or is judged once, after its planned blocks."""
    for run in runs:
        blocks = (run.options.get("budget") or {}).get("blocks")
        if run.options.get("method") == "fixed-n" and blocks == pairs and any(one.cell == cell for one in run.cells):
            return f"no: {pairs:,} were planned"
    return f"decided after {pairs:,}" if any(one.verdict in _DECIDED for one in found) else "no"


def _compared(run: Results, cell: str, arm: str) -> Iterator[Comparison]:
    for one in run.cells:
        if one.cell == cell:
            yield from (each for each in (*one.comparisons, *one.declared) if each.arm == arm)


def _verdict(found: Sequence[Comparison], together: Verdict | None, row: Row | None) -> str:
    """The verdict of all runs, of one of them, or what it takes. Runs that disagree have none."""
    if together in _DECIDED:
        return _word(together)
    words = list(dict.fromkeys(one.verdict for one in found if one.verdict in _DECIDED))
    if len(words) > 1:
        return f"the runs disagree: {', '.join(words)}"
    if words:
        return _word(words[0])
    newest = found[0]
    if newest.verdict == "none" and newest.reason:
        return f"{_word(newest.verdict)}: {newest.reason}"
    return f"{_word(newest.verdict)}; pairs: {remarks.pairs(row)}; time: {remarks.hours(row)}"


def _word(verdict: Verdict) -> str:
    return f"{SYMBOLS[verdict]} {verdict}"


def _why_not(cell: str, arm: str, runs: Sequence[Results], planned: Mapping[Key, Row], other: Unmeasured | None) -> str:
    """The reason that a run had for leaving it out, or what it would take by a neighbour."""
    if other is not None:
        like = unmeasured.like(other)
        return like if other.neighbour is None else _as_noisy(like, unmeasured.pairs(other), unmeasured.hours(other))
    for left in (left for run in runs for left in run.left_out):
        if left.cell in {cell, EVERY} and left.policy in {arm, EVERY}:
            return left.reason
    near = [row for (name, *_), row in planned.items() if name == cell and row.needed is not None and row.seconds]
    if near:
        row = max(near, key=lambda row: (row.needed or 0) * (row.seconds or 0.0))
        return _as_noisy(f"{row.arm} there", remarks.pairs(row), remarks.hours(row))
    return "no run was asked for it, and its cell has no forecast"


def _as_noisy(like: str, pairs: str, hours: str) -> str:
    return f"if as noisy as {like}: {pairs} pairs, {hours}"
