"""Which figures a report holds: each with its key, its words and its specification."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hugewise.figures.coverage import coverage
from hugewise.figures.distribution import distribution
from hugewise.figures.effects import effects, overview
from hugewise.figures.means import means
from hugewise.figures.theme import Spec, colours
from hugewise.figures.time_order import time_order
from hugewise.report.names import file_name
from hugewise.report.numbers import percent
from hugewise.report.sentences import printable
from hugewise.results import Results

__all__ = ["Drawing", "drawings"]


class Drawing(NamedTuple):
    """A figure. `key` is `overview` or `NUMBER-KIND` of a cell counted from 1; `stem` names its files."""

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
    for number, cell in enumerate(results.cells, 1):
        metric, name = printable(cell.metric.name), printable(cell.cell)
        base = printable(cell.baseline)
        found = {
            "means": (means(cell, palette, results.confidence), f"Mean {metric} of each policy with {level} intervals"),
            "distribution": (distribution(results, cell, palette), f"{metric} of every attempt, by policy"),
            "effects": (
                effects(cell, palette, results.margin),
                f"Change of {metric} against {base}, with intervals and the band of ±{percent(results.margin)}",
            ),
            "coverage": (coverage(cell), "Share of the named memory by page size, by policy"),
            "time-order": (
                time_order(results, cell, palette),
                f"{metric} of every attempt against its start time, as deviation from its policy's median",
            ),
        }
        for kind, (spec, text) in found.items():
            if spec:
                yield Drawing(f"{number}-{kind}", f"{file_name(number, cell.cell)}_{kind}", f"{text} ({name}).", spec)
