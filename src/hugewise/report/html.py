"""The report as one HTML file that needs nothing else: no script, no address, figures as SVG inside.

Escaping and the policy that lets nothing else in: `hugewise.report.page`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hugewise.figures.theme import colours
from hugewise.report import allocations, beside, changes, guests, numbers, page, programs, tables, within
from hugewise.report.deployments import deployed
from hugewise.report.drawings import across
from hugewise.report.sentences import (
    LEGEND_TITLE,
    SYMBOLS,
    earlier,
    findings,
    legend,
    metric_line,
    run_line,
    sentence,
    winners,
)
from hugewise.results import Results

__all__ = ["html"]


def html(results: Results, figures: Mapping[str, str]) -> str:
    """The page. `figures`: key of `report.drawings` -> SVG made by `images.inline`."""
    verdicts: Counter[str] = Counter(one.verdict for cell in results.cells for one in cell.comparisons)
    return page.render(
        "template.html.jinja",
        figures,
        results=results,
        palette=colours(results),
        symbols=SYMBOLS,
        verdicts=[(verdict, verdicts[verdict]) for verdict in SYMBOLS if verdicts[verdict]],
        deployed=list(deployed(winners(results))),
        sentence=sentence,
        findings=findings,
        legend_title=LEGEND_TITLE,
        legend=legend(results),
        earlier=earlier(results),
        metric_line=metric_line,
        run_line=run_line(results),
        numbers=numbers,
        tables=tables,
        changes=changes,
        allocations=allocations,
        guests=guests,
        beside=beside,
        within=within,
        over_programs=programs.programs_table(results),
        across=[(drawing.key, drawing.text) for drawing in across(results) if drawing.key in figures],
    )
