"""Which figures a report holds: each with its key, its words and its specification."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hugewise.model.results import Results
from hugewise.report.figures.bars import bars
from hugewise.report.figures.coverage import coverage
from hugewise.report.figures.distribution import distribution
from hugewise.report.figures.effects import effects, overview
from hugewise.report.figures.factors import groups, numeric
from hugewise.report.figures.histogram import histogram
from hugewise.report.figures.lines import lines
from hugewise.report.figures.means import means
from hugewise.report.figures.theme import Spec, colours
from hugewise.report.figures.time_order import time_order
from hugewise.report.figures.within import within
from hugewise.report.names import file_name
from hugewise.report.numbers import percent
from hugewise.report.sentences import printable

__all__ = ["Drawing", "across", "drawings"]


class Drawing(NamedTuple):
    """A figure. `key` is `overview`, `NUMBER-KIND` of a cell counted from 1, or `across-NUMBER-KIND` of cells
    that differ in their parameters; `stem` names its files.
    """

    key: str
    stem: str
    text: str
    spec: Spec


def drawings(results: Results) -> Iterator[Drawing]:
    """All figures of the run, in the order of the report; a figure without data is left out."""
    palette = colours(results)
    level = percent(results.confidence)
    whole = overview(results, palette)
    if whole:
        yield Drawing("overview", "overview", "Every effect of the run with its interval and the margin band.", whole)
    yield from across(results)
    for number, cell in enumerate(results.cells, 1):
        metric, name = printable(cell.metric.name), printable(cell.cell)
        base = printable(cell.baseline)
        found = {
            "means": (means(cell, palette, results.confidence), f"Mean {metric} of each policy with {level} intervals"),
            "distribution": (distribution(results, cell, palette), f"{metric} of every attempt, by policy"),
            "histogram": (
                histogram(results, cell, palette),
                f"How the attempts' {metric} is spread, by policy, with each mean",
            ),
            "effects": (
                effects(cell, palette, results.margin),
                f"Change of {metric} against {base}, with intervals and the band of ±{percent(results.margin)}",
            ),
            "coverage": (coverage(cell), "Share of the named memory by page size, by policy"),
            "time-order": (
                time_order(results, cell, palette),
                f"{metric} of every attempt against its start time, as deviation from its policy's median",
            ),
            "within": (
                within(results, cell, palette),
                "Throughput in each second of the measured part: median of the attempts and quartiles, by policy",
            ),
        }
        for kind, (spec, text) in found.items():
            if spec:
                yield Drawing(f"{number}-{kind}", f"{file_name(number, cell.cell)}_{kind}", f"{text} ({name}).", spec)


def across(results: Results) -> Iterator[Drawing]:
    """The figures over the levels of the study's factors: lines for each numeric one, and grouped bars."""
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
                yield Drawing(key, f"{key}_{file_name(number, group.label)}", f"{text} ({label}).", spec)
