"""What the runs of a page say together, by their e-values (`analysis.combining`). Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from hugewise.analysis import combining
from hugewise.errors import UserError
from hugewise.model.results import Results
from hugewise.report.document import Line, Section, table
from hugewise.report.numbers import NOTHING
from hugewise.report.result_data import PageData
from hugewise.report.result_runs import DECIDED
from hugewise.report.sentences import effect_of
from hugewise.stats.evidence import TYPICAL, Combined

TOGETHER = "The runs together"
_DIRECTIONS = {"better", "worse"}


def combined_of(data: PageData) -> tuple[Combined, ...]:
    """What several runs say together; nothing of one alone. Raises UserError where they cannot be put together."""
    sources = [one.evidence for one in data.runs if one.evidence is not None]
    return combining.combined(sources, data.runs[0].results.confidence).comparisons if len(sources) > 1 else ()


def together_typical(data: PageData) -> list[Combined]:
    """Of these the typical ratios; none where they cannot be put together, which the section says."""
    with contextlib.suppress(UserError):
        return [one for one in combined_of(data) if one.end_point == TYPICAL]
    return []


def decided_together(data: PageData) -> str:
    """How many comparisons the runs decide together: `1 of 9`; empty where no comparison is in several runs."""
    return _counted(together_typical(data))


def _counted(every: Sequence[Combined]) -> str:
    return f"{sum(one.verdict in _DIRECTIONS for one in every)} of {len(every)}" if every else ""


def together_sentence(data: PageData) -> str:
    """What the runs decide together, beside what each found; empty where no comparison is in several."""
    every = together_typical(data)
    if not every:
        return ""
    named = [one for one in every if one.verdict in _DIRECTIONS]
    told = "; ".join(f"{one.cell}, {one.arm}: {one.metric} {one.verdict}" for one in named)
    of = f"{_counted(every)}{f' ({told})' if told else ''}"
    return f"Of the comparisons that several runs have, these together decide {of}."


def told_together(data: PageData) -> Iterator[Section]:
    """Several runs judged together."""
    try:
        found = combined_of(data)
    except UserError as error:
        yield Section(TOGETHER, (Line(f"They cannot be put together: {error.message}."),))
        return
    if not found:
        return
    rows = [
        (
            *(one.cell, one.arm, one.baseline, one.metric, one.end_point, _changes(one, data)),
            *(_pairs(one), _e(one), one.verdict),
        )
        for one in found
    ]
    head = (
        *("cell", "policy", "baseline", "metric", "end point", "change (interval) by run"),
        *("pairs by run", "e-value, adjusted", "verdict"),
    )
    said = (
        "The e-values say whether and in which direction in at least one of the runs; not how much. By how much stands"
        " run by run, the newest first."
    )
    yield Section(TOGETHER, (Line(said), table("e-values multiplied over runs", head, rows, 6)))


def _changes(one: Combined, data: PageData) -> str:
    """What each run found by itself, and its verdict where it had one."""
    if one.end_point != TYPICAL:
        return NOTHING
    found = {run.results.run: run.results for run in data.runs}
    return "; ".join(_change(one, found.get(part.run)) for part in one.parts)


def _change(one: Combined, results: Results | None) -> str:
    cells = () if results is None else results.cells
    for each in (each for cell in cells if cell.cell == one.cell for each in (*cell.comparisons, *cell.declared)):
        if (each.arm, each.baseline, each.metric) == (one.arm, one.baseline, one.metric):
            return f"{effect_of(each)}{f', {each.verdict}' if each.verdict in DECIDED else ''}"
    return NOTHING


def _pairs(one: Combined) -> str:
    return " + ".join(str(part.pairs) for part in one.parts)


def _e(one: Combined) -> str:
    if one.direction == "refused" or one.adjusted is None:
        return NOTHING
    return f"{one.adjusted:,.0f}" if one.adjusted >= 100 else f"{one.adjusted:.3g}"
