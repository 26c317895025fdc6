"""The report as Markdown (GitHub flavour): the same order as in HTML; figures are linked as files."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping

from hugewise.report import allocations, beside, changes, guests, programs, tables, within
from hugewise.report.deployments import deployed
from hugewise.report.markdown_text import captioned, escape, paragraphs, rows
from hugewise.report.sentences import (
    LEGEND_TITLE,
    SYMBOLS,
    earlier,
    findings,
    legend,
    metric_line,
    printable,
    run_line,
    sentence,
    winners,
)
from hugewise.results import CellResult, Results

__all__ = ["markdown"]


def markdown(results: Results, figures: Mapping[str, tuple[str, str]]) -> str:
    """The report's text. `figures`: key -> (path relative to the report, description), see `report.drawings`."""
    return "\n".join(_lines(results, figures)) + "\n"


def _lines(results: Results, figures: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    yield f"# {escape(results.study)}: {escape(results.question)}"
    yield ""
    yield f"Run `{printable(results.run).replace('`', '')}`, {escape(run_line(results))}."
    yield from paragraphs([earlier(results)])
    yield from ("", "## Verdicts")
    for number, cell in enumerate(results.cells, 1):
        yield from ("", f"### {number}. {escape(cell.cell)}", "", escape(metric_line(cell.metric)), "")
        for comparison in cell.comparisons:
            peak, pool = tables.memory_of(cell, comparison)
            yield (
                f"- **{SYMBOLS[comparison.verdict]} {comparison.verdict}**: "
                f"{escape(sentence(comparison, cell.metric, results.margin))} "
                f"Peak memory {peak}; pool reserved {pool}."
            )
            for finding in findings(comparison):
                told = escape(finding.text)
                yield f"  - **Finding**: {f'**{told}**' if finding.leads else told}"
        for remark in within.remarks(cell):
            yield from ("", f"**Note**: {escape(remark)}")
    if lines := legend(results):
        yield from ("", f"### {LEGEND_TITLE}", "")
        yield from (f"- {escape(line)}" for line in lines)
    yield from _figure(figures, "overview")
    if (over := programs.programs_table(results)) is not None:
        yield from captioned(over)
    yield from ("", "## Settings of the winning policies")
    yield from _deployments(results)
    yield from ("", "## Left out", "")
    yield from rows(tables.left_out_table(results)) if results.left_out else ("Nothing.",)
    yield from _guests(results)
    yield from _beside(results)
    over_levels = [key for key in figures if key.startswith("across-")]
    if over_levels:
        yield from ("", "## Over the levels of the factors")
    for key in over_levels:
        yield from _figure(figures, key)
    for number, cell in enumerate(results.cells, 1):
        yield from _cell(results, number, cell, figures)
    yield from ("", "## Failures and disturbances", "")
    yield from (f"- {escape(one)}" for one in results.disturbances)
    yield ""
    yield from rows(tables.failures_table(results))
    if (ledger := tables.alpha_table(results)) is not None:
        yield from ("", f"## {escape(ledger.caption.capitalize())}", "")
        yield from rows(ledger)
    yield from ("", "## Run and host")
    for table in (
        tables.run_table(results),
        tables.facts("host", results.host),
        tables.facts("page settings before the run", results.settings),
        tables.facts("versions", results.versions),
        tables.facts("study options as used", results.options),
    ):
        yield from ("", f"### {table.caption.capitalize()}", "")
        yield from rows(table)


def _guests(results: Results) -> Iterator[str]:
    if results.guests is None:
        return
    yield from ("", f"## {guests.TITLE}")
    yield from paragraphs(guests.introduction(results.guests))
    for table in filter(None, (guests.arms_table(results.guests), guests.kernels_table(results.guests))):
        yield from captioned(table)
    for line, table in guests.differences(results.guests):
        # Collapsed where Markdown is rendered as on GitHub.
        yield from ("", f"<details><summary>{html.escape(line)}</summary>")
        yield from captioned(table)
        yield from ("", "</details>")
    for line in guests.remarks(results.guests):
        yield from ("", f"**Note**: {escape(line)}")


def _beside(results: Results) -> Iterator[str]:
    if results.beside is None:
        return
    yield from ("", f"## {beside.TITLE}")
    yield from paragraphs(beside.introduction(results.beside))
    for table in beside.tables(results.beside):
        yield from captioned(table)
    yield from paragraphs(beside.remarks(results.beside))


def _cell(results: Results, number: int, cell: CellResult, figures: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    yield from ("", f"## {number}. {escape(cell.cell)}", "", f"Workload {escape(cell.workload)}.")
    if common := within.common(cell):
        yield from ("", escape(common))
    for key, found in (
        ("means", (tables.statistics_table(cell, results.confidence),)),
        ("distribution", ()),
        ("histogram", ()),
        (
            "effects",
            (
                tables.effects_table(cell),
                tables.reach_table(cell),
                tables.spread_table(cell),
                tables.end_points_table(cell),
                tables.sensitivity_table(cell),
                changes.changes_table(results, cell),
                changes.counters_table(results, cell),
                allocations.allocations_table(results, cell),
            ),
        ),
        ("coverage", (tables.coverage_table(cell), tables.proof_table(cell))),
        ("time-order", ()),
        ("within", (tables.blocks_table(results, cell), tables.metrics_table(results, cell))),
    ):
        yield from _figure(figures, f"{number}-{key}")
        for table in filter(None, found):
            yield from captioned(table)
    yield ""
    yield from rows(tables.facts("parameters", cell.parameters))


def _figure(figures: Mapping[str, tuple[str, str]], key: str) -> Iterator[str]:
    if key in figures:
        path, text = figures[key]
        yield from ("", f"![{escape(text)}]({path})")


def _deployments(results: Results) -> Iterator[str]:
    some = False
    for one in deployed(winners(results)):
        some = True
        known = f"no commands are known; what it did: {one.treatment}"
        note = one.deployment.note if one.deployment is not None else known
        yield from ("", f"**{escape(one.arm)}**, for {escape(one.places)}: {escape(note)}")
        if one.deployment is None:
            continue
        for title, lines in (("now", one.deployment.now), ("at boot", one.deployment.boot)):
            if lines:
                yield from ("", f"{title}:", "")
                yield from (f"    {printable(line)}" for line in lines)
    if not some:
        yield from ("", "No policy was better than its baseline.")
