"""What was found, on the terminal: a table for each check at 80 columns, and a line with the outcome."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hugewise.console import TextConsole
from hugewise.verification.suite import PieceListener, SuiteReport

__all__ = ["progress", "show"]

_MOST = 100


def show(report: SuiteReport, file: TextIO | None = None) -> None:
    """Print the report; at most 100 columns."""
    console = TextConsole(file)
    width = min(console.width, _MOST)
    for check in dict.fromkeys(finding.check for finding in report.findings):
        table = Table(title=check, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, width=width)
        for head, ratio in (("case", 37), ("seen", 20), ("required", 13)):
            table.add_column(head, ratio=ratio, overflow="fold")
        table.add_column(width=4, no_wrap=True)
        for finding in (finding for finding in report.findings if finding.check == check):
            table.add_row(finding.case, finding.seen, finding.required, "ok" if finding.passed else "FAIL")
        console.print(table, width=width)
    failed = sum(not finding.passed for finding in report.findings)
    total = len(report.findings)
    outcome = "all as required" if not failed else f"{failed} NOT as required"
    console.print(f"{total} findings, {outcome} (seed {report.seed}, {report.seconds:.0f} s)", soft_wrap=True)


@contextmanager
def progress(file: TextIO) -> Iterator[PieceListener]:
    """A bar on a terminal; elsewhere a line for every tenth of the work."""
    console = TextConsole(file)
    if not console.is_terminal:

        def tenth(name: str, done: int, of: int) -> None:
            if done * 10 // of > (done - 1) * 10 // of:
                console.print(f"{done} of {of} done, {name} the last", soft_wrap=True)
                file.flush()

        yield tenth
        return
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True) as bar:
        shown = bar.add_task("", total=None)
        yield lambda name, done, of: bar.update(shown, completed=done, total=of, description=name)
