"""The report as one HTML file that needs nothing else: no script, no address, figures as SVG inside.

Every text is escaped by the template engine; only figures (made by `images.inline`) and the style sheet are markup.
A Content-Security-Policy forbids everything but that style sheet, which it names by its hash.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections import Counter
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING

from markupsafe import Markup

from hugewise.figures.theme import colours
from hugewise.report import numbers, tables
from hugewise.report.sentences import SYMBOLS, metric_line, printable, run_line, sentence, winners
from hugewise.results import Results

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["html"]


@functools.cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415  (only when a report is written)

    environment = Environment(
        loader=PackageLoader("hugewise.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printable"] = printable
    return environment.get_template("template.html.jinja")


def html(results: Results, figures: Mapping[str, str]) -> str:
    """The page. `figures`: key of `report.drawings` -> SVG made by `images.inline`."""
    style = resources.files("hugewise.report").joinpath("style.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    verdicts: Counter[str] = Counter(one.verdict for cell in results.cells for one in cell.comparisons)
    return _template().render(
        results=results,
        style=Markup(style),  # noqa: S704  (our own file)
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        figures={key: Markup(svg) for key, svg in figures.items()},  # noqa: S704  (made by images.inline)
        palette=colours(results),
        symbols=SYMBOLS,
        verdicts=[(verdict, verdicts[verdict]) for verdict in SYMBOLS if verdicts[verdict]],
        winners=list(winners(results)),
        sentence=sentence,
        metric_line=metric_line,
        run_line=run_line(results),
        numbers=numbers,
        tables=tables,
    )
