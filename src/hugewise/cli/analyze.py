"""`hugewise analyze`: from the options of the command line to the analysis and its report."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hugewise.errors import HugewiseError, UserError
from hugewise.external.analyze import analyze
from hugewise.external.compare import AnalysisPlan
from hugewise.external.reader import Ask
from hugewise.quantity import parse_share
from hugewise.report.document import brief
from hugewise.report.external import report, write
from hugewise.report.terminal import show


def run(files: Sequence[Path], options: Mapping[str, Any]) -> None:
    """Analyse, write the report, show what is brief. Raises UserError."""
    results = analyze(
        files,
        arms=options["arms"],
        ask=Ask(**{name: options[name] for name in Ask.__dataclass_fields__}),
        plan=_plan(options),
        format_=options["format_"],
    )
    folder = options["output"]
    if folder is None:
        now = datetime.datetime.now(datetime.UTC)
        folder = options["results"] / f"analyze-{now:%Y%m%d-%H%M%S}"
    told = report(results)
    try:
        paths = write(results, told, folder)
    except HugewiseError:
        show(brief(told))  # the result is not lost with the report
        raise
    show(brief(told), paths["html"])


def _plan(options: Mapping[str, Any]) -> AnalysisPlan:
    confidence = options["confidence"]
    if not 0.5 <= confidence < 1:
        raise UserError(f"--confidence {confidence}: not between 0.5 and 1", hint="write 0.99 for 99%")
    try:
        margin = parse_share(options["margin"])
    except ValueError as error:
        raise UserError(f"--margin {options['margin']}: {error}", hint="write for example 0.5%") from None
    if not margin > 0:
        raise UserError(f"--margin {options['margin']}: nothing is equivalent within 0", hint="write for example 0.5%")
    if options["budget"] is not None and not options["randomised"]:
        raise UserError("--budget belongs to --randomised", hint="a budget of pairs is spent by the sequential test")
    return AnalysisPlan(
        confidence=confidence,
        margin=margin,
        baseline=options["baseline"],
        randomised=options["randomised"],
        budget=options["budget"],
        metrics=tuple(options["metrics"]),
    )
