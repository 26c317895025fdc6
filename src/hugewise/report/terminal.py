"""The end of a run on the terminal: readable at 80 columns, and without colour.

Plain text where the output is not a terminal: rich then leaves out all escape sequences. Texts of the user never pass
through rich's markup, and control characters are removed from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hugewise.report import beside, guests, numbers, within
from hugewise.report.deployments import deployed
from hugewise.report.sentences import (
    LEGEND_TITLE,
    SYMBOLS,
    better_direction,
    earlier,
    effect_of,
    findings,
    legend,
    printable,
    run_line,
    sentence,
    winners,
)
from hugewise.report.tables import unit_of
from hugewise.results import ArmSummary, CellResult, Comparison, Results

__all__ = ["render", "show", "verdict_lines"]

_STYLES = {"better": "green", "worse": "red", "equivalent": "blue", "undecided": "yellow", "none": "bright_black"}
_MOST = 5  # disturbances shown; all are in the report
_MOST_PUBLISHED = 12  # lines of what was published beside what was measured


def render(results: Results, report: Path | None = None) -> RenderableType:
    """A table per cell, a line per comparison, what was left out, what to set, and the report's path."""
    return Group(*_parts(results, report))


def show(results: Results, paths: Mapping[str, Path] | None = None, console: Console | None = None) -> None:
    """Print `render` at the console's width (at most 100 columns); plain lines where it is no terminal.

    `paths` is what `report.write` returned.
    """
    report = (paths or {}).get("html")
    console = console or Console(highlight=False)
    width = min(console.width, 100)
    if console.is_terminal:
        console.print(render(results, report), width=width, crop=False)
        return
    with console.capture() as captured:
        console.print(render(results, report), width=width, crop=False)
    lines = (line.rstrip() for line in captured.get().splitlines())  # padding to the width is of no use in a file
    console.file.write("\n".join(lines) + "\n")


def verdict_lines(results: Results, cell: CellResult) -> Iterator[Text]:
    """One sentence per comparison of the cell, its verdict first, and a line for each finding beside it."""
    for one in (*cell.comparisons, *cell.end_points):
        text = Text(overflow="fold")
        text.append(SYMBOLS[one.verdict], style=_STYLES[one.verdict])
        said = sentence(one, cell.metric, results.margin)
        text.append(" " + _ascii(f"{one.estimand}: {said}" if one in cell.end_points else said))
        yield text
        for finding in findings(one):
            yield Text(f"+ {_ascii(finding.text)}", style="bold" if finding.leads else "", overflow="fold")


def _ascii(text: str) -> str:
    """Numbers as they can be copied and searched: the typographic minus becomes a hyphen."""
    return printable(text).replace(numbers.MINUS, "-")


def _parts(results: Results, report: Path | None) -> Iterator[RenderableType]:
    yield Text(_ascii(f"{results.study}: {results.question}"), style="bold")
    line = run_line(results)
    yield Text(_ascii(line[0].upper() + line[1:]))
    yield Text(_ascii(earlier(results)), overflow="fold")
    for told in guests.brief(results.guests) if results.guests is not None else ():
        yield Text(_ascii(told[0].upper() + told[1:] if told.startswith("guests ") else f"  {told}"), overflow="fold")
    for number, cell in enumerate(results.cells, 1):
        yield Text()
        yield Text(_ascii(f"{number}. {cell.cell}"), style="bold")
        unit = unit_of(cell).unit
        yield Text(
            _ascii(f"{cell.metric.name} in {unit}, {better_direction(cell.metric)}; change against {cell.baseline}")
        )
        yield _table(cell)
        for text in verdict_lines(results, cell):
            yield Padding(text, (0, 0, 0, 2))
        for remark in within.remarks(cell):
            yield Padding(Text(_ascii(f"note: {remark}"), overflow="fold"), (0, 0, 0, 2))
    yield from _legend(results)
    yield from _published(results)
    yield from _failed(results)
    yield from _left_out(results)
    yield from _disturbances(results)
    yield from _settings(results)
    if report is not None:
        yield Text()
        yield Text(f"Report: {printable(report)}", overflow="ignore", no_wrap=True)


def _table(cell: CellResult) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("policy", max_width=14, overflow="fold")
    for name in ("mean", "change (interval)"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for name in ("deliv.", "peak"):
        table.add_column(name, justify="right")
    unit = unit_of(cell)
    compared = {one.arm: one for one in cell.comparisons}
    for arm in cell.arms:
        one = compared.get(arm.arm)
        table.add_row(
            Text(_ascii(arm.arm)),
            Text(_ascii(unit.number(arm.mean, arm.margin))),
            Text(_change(cell, arm.arm, one)),
            _badge(one),
            Text(numbers.share(arm.delivered_share)),
            Text(numbers.size(arm.peak_bytes)),
        )
    return table


def _change(cell: CellResult, arm: str, one: Comparison | None) -> str:
    if one is None:
        return "baseline" if arm == cell.baseline else numbers.NOTHING
    return _ascii(numbers.exact(one.ratio) if one.constant else effect_of(one))


def _badge(one: Comparison | None) -> Text:
    return Text(f"{SYMBOLS[one.verdict]} {one.verdict}", style=_STYLES[one.verdict]) if one else Text()


def _legend(results: Results) -> Iterator[RenderableType]:
    lines = legend(results)
    if lines:
        yield Text()
        yield Text(LEGEND_TITLE, style="bold")
    for line in lines:
        yield Padding(Text(_ascii(line), overflow="fold"), (0, 0, 0, 2))


def _published(results: Results) -> Iterator[RenderableType]:
    """What was judged of the published experiment; its source, figures and words are in the report."""
    if results.beside is None:
        return
    yield Text()
    yield Text(
        _ascii(f"{beside.TITLE} ({results.beside.publisher}, {results.beside.date}; another machine)"), style="bold"
    )
    lines = list(beside.brief(results.beside))
    for line in lines[:_MOST_PUBLISHED]:
        yield Padding(Text(_ascii(line), overflow="fold"), (0, 0, 0, 2))
    if not lines:
        yield Padding(Text("nothing of it was judged here; the report says why"), (0, 0, 0, 2))
    if len(lines) > _MOST_PUBLISHED:
        yield Padding(Text(f"and {len(lines) - _MOST_PUBLISHED} more, in the report"), (0, 0, 0, 2))


def _failed(results: Results) -> Iterator[RenderableType]:
    """Attempts of a workload that failed, counted by the reason: what fails always is a mistake more than a finding."""
    counts = Counter((a.arm, a.cell, printable(a.reason)) for a in results.attempts if a.state == "failed")
    if counts:
        yield Text()
        yield Text("Failed", style="bold")
        for (arm, cell, reason), count in counts.most_common(_MOST):
            times = f"{count} attempt{'' if count == 1 else 's'}"
            yield Padding(Text(_ascii(f"{arm} on {cell}: {times}: {reason}"), overflow="fold"), (0, 0, 0, 2))
        if len(counts) > _MOST:
            yield Padding(Text("and others, in the report"), (0, 0, 0, 2))


def _left_out(results: Results) -> Iterator[RenderableType]:
    if results.left_out:
        yield Text()
        yield Text("Left out", style="bold")
        for one in results.left_out:
            yield Padding(Text(_ascii(f"{one.what}: {one.reason}"), overflow="fold"), (0, 0, 0, 2))


def _disturbances(results: Results) -> Iterator[RenderableType]:
    if results.disturbances:
        yield Text()
        yield Text("Disturbed", style="bold")
        for one in results.disturbances[:_MOST]:
            yield Padding(Text(_ascii(one), overflow="fold"), (0, 0, 0, 2))
        if len(results.disturbances) > _MOST:
            yield Padding(Text(f"and {len(results.disturbances) - _MOST} more, in the report"), (0, 0, 0, 2))


def _settings(results: Results) -> Iterator[RenderableType]:
    best: dict[str, tuple[CellResult, Comparison, ArmSummary]] = {}
    for cell, comparison, arm in winners(results):
        known = best.get(cell.cell)
        if known is None or _distance(comparison) > _distance(known[1]):
            best[cell.cell] = cell, comparison, arm
    found = [(one, one.deployment.now) for one in deployed(best.values()) if one.deployment and one.deployment.now]
    if found:
        yield Text()
        yield Text("To set the best policy of a cell now (at boot: see the report)", style="bold")
    for one, commands in found:
        yield Padding(Text(_ascii(f"{one.arm}, for {one.places}:"), overflow="fold"), (0, 0, 0, 2))
        for command in commands:
            # Never broken: it is there to be copied.
            yield Text(f"    {printable(command)}", overflow="ignore", no_wrap=True)


def _distance(comparison: Comparison) -> float:
    ratio = comparison.ratio
    return 1.0 if ratio is None or ratio <= 0 else max(ratio, 1 / ratio)
