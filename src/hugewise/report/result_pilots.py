"""Pilots of a page's study, and what they and the runs have forecast. Nothing is judged by a pilot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from hugewise.analysis import analysis
from hugewise.analysis.forecast import forecast, pilot_name
from hugewise.errors import UserError
from hugewise.model.results import Results, Verdict
from hugewise.report.document import Section
from hugewise.report.foretold import Foretelling, foretold
from hugewise.report.result_data import PageData, PageRun, newest_first, slim
from hugewise.store.records import Run
from hugewise.study.load import with_budget
from hugewise.study.workload import SMALL


def pilots_beside(run: Path, found: Run) -> list[Path]:
    """The pilots of the run's study in the same folder of results."""
    folder = run.absolute().parent.parent / pilot_name(found.opened.study)
    return sorted(folder.iterdir()) if folder.is_dir() else []


def with_pilot(data: PageData, path: Path, found: Run) -> PageData:
    """With the forecast that a pilot gives for the page's newest run: its method, and its blocks and time. Raises
    UserError where there is none for it to foretell, or it forecasts nothing.
    """
    if not data.runs:
        raise UserError(
            f"{found.path} is a pilot: nothing is judged by it, and {path} has no run that it could foretell",
            hint="add the run first: a pilot in the same folder of results joins with it",
        )
    newest = data.runs[0].results
    scale = newest.options.get("scale", SMALL)
    if found.study.scale != scale:
        raise UserError(
            f"{found.path} is at the scale {found.study.scale}, and {path} at {scale}",
            hint="name a page for each scale",
        )
    if found.closed is None:
        raise UserError(f"{found.path} has not ended", hint=f"hugewise resume {found.path}")
    budget = newest.options["budget"]
    study = with_budget(found.study, budget["blocks"], budget["time"])
    study = msgspec.structs.replace(study, name=newest.study, method=newest.options["method"])
    results = msgspec.structs.replace(slim(analysis.results_of(found)), attempts=())
    new = PageRun(results=results, forecast=forecast(study, [found.path]))
    return msgspec.structs.replace(data, pilots=newest_first(new, data.pilots))


def foretelling(data: PageData) -> Iterator[Section]:
    """What runs and pilots before them forecast, beside what was found."""
    every = [(one, False) for one in data.runs] + [(one, True) for one in data.pilots]
    every.sort(key=lambda one: one[0].results.started, reverse=True)
    blocks = tuple(
        foretold(
            [
                Foretelling(one.forecast, {} if pilot else _verdicts_of(one.results), pilot)
                for one, pilot in every
                if one.forecast is not None
            ]
        )
    )
    if blocks:
        yield Section("How the forecast came out", blocks)


def _verdicts_of(results: Results) -> dict[tuple[str, str, str], Verdict]:
    return {
        (cell.cell, one.arm, one.metric): one.verdict
        for cell in results.cells
        for one in (*cell.comparisons, *cell.declared)
    }
