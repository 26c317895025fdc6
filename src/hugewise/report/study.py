"""The report of a run of a study: which sections it has."""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.model.results import Results
from hugewise.report.document import Block, Document, Folded, Line, Note, Ran
from hugewise.report.earlier import earlier
from hugewise.report.figures.theme import colours
from hugewise.report.numbers import when
from hugewise.report.sections import answer, beside, guests
from hugewise.report.sections.cell import cell
from hugewise.report.sections.levels import levels
from hugewise.report.sections.reading import reading
from hugewise.report.sections.run import left_out, run, trouble
from hugewise.report.sections.settings import settings
from hugewise.report.sentences import records, run_line
from hugewise.report.time_short import time_short

__all__ = ["report"]


def report(results: Results) -> Document:
    """Everything, for a page or a file."""
    return Document(
        title=f"{results.study}: {results.question}",
        lead=(
            Ran(results.run, when(results.started), run_line(results)),
            *(Note(said) for said in time_short(results)),
            Line(earlier(results), quiet=True),
            *_records(results),
        ),
        sections=(
            answer.answer(results),
            *settings(results),
            *left_out(results),
            *guests.guests(results.guests),
            *beside.beside(results.beside, colours(results)),
            *levels(results),
            *(cell(results, number, one) for number, one in enumerate(results.cells, 1)),
            trouble(results),
            run(results),
            reading(results),
        ),
        top=tuple(answer.top(results)),
        about=results.study,
        page=results.study,
        heading=results.question or results.study,
        tally=answer.tally(results),
        files="report.json, attempts.csv, comparisons.csv and figures/",
        colours=colours(results),
    )


def _records(results: Results) -> Iterator[Block]:
    """Whether they are what was written: behind a line where nothing is amiss."""
    said = tuple(Line(one, quiet=True) for one in records(results))
    whole = results.integrity is not None and results.integrity.state in ("consistent", "unaltered")
    if said and whole and results.state not in ("running", "interrupted"):
        yield Folded("The run's records are whole", said, long=True)
    else:
        yield from said
