"""Cells that differ in their parameters alone: the metric over the levels of the study's factors."""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.model.results import Results
from hugewise.report.document import Figure, Section
from hugewise.report.figures.bars import bars
from hugewise.report.figures.factors import groups, numeric
from hugewise.report.figures.lines import lines
from hugewise.report.figures.theme import colours
from hugewise.report.names import file_name
from hugewise.visible import printable

__all__ = ["levels"]


def levels(results: Results) -> Iterator[Section]:
    """Where there are such cells: lines for each numeric factor, and grouped bars."""
    if found := tuple(_figures(results)):
        yield Section("Over the levels of the factors", found, key="levels", nav="Over the levels")


def _figures(results: Results) -> Iterator[Figure]:
    palette = colours(results)
    for number, group in enumerate(groups(results.cells), 1):
        metric, label = printable(group.cells[0].metric.name), printable(group.label)
        found = {
            f"lines-{name}": (
                lines(group, name, palette, results.confidence),
                f"Mean {metric} over {printable(name)}, a line for each policy; a line joins means, and claims nothing "
                "between them",
            )
            for name in group.varied
            if numeric(group, name)
        }
        found["bars"] = (
            bars(group, palette, results.confidence),
            f"Mean {metric} at every level of {', '.join(map(printable, group.varied))}, in the legend's order",
        )
        for kind, (spec, text) in found.items():
            if spec:
                key = f"across-{number}-{file_name(number, kind).partition('-')[2]}"
                yield Figure(key, f"{key}_{file_name(number, group.label)}", f"{text} ({label}).", spec)
