"""Which of the metrics that a study declared carries a claim on an arm: for pages of results. Pure.

A rate and its cost are two views of the same attempts, judged apart, and on a machine with other work beside one of
them may be decided long before the other. A reader of a page is told which it was, and that the other was not.
"""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.model.results import CellResult, Comparison, Results
from hugewise.report.document import Section, table
from hugewise.report.sentences import SYMBOLS, effect_of

_DECIDED = ("better", "worse", "equivalent")


def carried(results: Results) -> Iterator[Section]:
    """A section, where cells judge more than one metric: of each arm every metric, and those that are decided."""
    rows = [
        (cell.cell, arm, *map(_told, (own, beside)), _carrying((*own, *beside)))
        for cell in results.cells
        if cell.declared
        for arm, own, beside in _by_arm(cell)
    ]
    if rows:
        head = ("cell", "policy", "its metric", "declared beside it", "what carries a claim")
        yield Section("Which metric carries a claim", (table("metrics of the same attempts", head, rows, 5),))


def _by_arm(cell: CellResult) -> Iterator[tuple[str, list[Comparison], list[Comparison]]]:
    for arm in dict.fromkeys(one.arm for one in cell.comparisons):
        yield (
            arm,
            [one for one in cell.comparisons if one.arm == arm],
            [one for one in cell.declared if one.arm == arm],
        )


def _told(several: list[Comparison]) -> str:
    return "; ".join(f"{one.metric} {effect_of(one)}: {SYMBOLS[one.verdict]} {one.verdict}" for one in several)


def _carrying(several: tuple[Comparison, ...]) -> str:
    found = [f"{one.metric} ({one.verdict})" for one in several if one.verdict in _DECIDED]
    return ", ".join(found) or "none of them"
