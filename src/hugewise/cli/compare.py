"""`hugewise compare A B`: two runs, two kernels or two hosts, on the terminal or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

# Imports are inside functions: each verb pays only for what it uses.
# ruff: noqa: PLC0415


@click.command(short_help="Compare two runs: kernels, hosts, days.")
@click.argument("first", metavar="FIRST", type=click.Path(path_type=Path))
@click.argument("second", metavar="SECOND", type=click.Path(path_type=Path))
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="Show this metric too, such as 'page_*' (repeatable)."
)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON, with every metric.")
def compare(first: Path, second: Path, metrics: Sequence[str], *, as_json: bool) -> None:
    """Compare two runs: two kernels, two hosts, two days.

    Shows how the runs differed before anything was measured; then, for each comparison that both have, whether its
    effect differs, with an interval. FIRST and SECOND are folders of runs, or of advices (their confirmations).
    """
    from hugewise.analysis.combining import compared
    from hugewise.errors import UserError
    from hugewise.report.reasons import worded
    from hugewise.report.terminal import show
    from hugewise.report.two_runs import report
    from hugewise.visible import say_json

    found = compared(_run_of(first), _run_of(second))
    unknown = [
        name for name in metrics if not any(name in metric.metric for metric in found.others) and not _pattern(name)
    ]
    if unknown:
        known = ", ".join(sorted({metric.metric for metric in found.others})) or "none"
        raise UserError(f"--metric {unknown[0]}: the runs have no such metric in common", hint=f"they have: {known}")
    if as_json:
        say_json(worded(found))
    else:
        show(report(found, metrics))


class _Confirmed(msgspec.Struct):
    """Part of an advice that is read here."""

    confirmation_folder: str = ""
    cwd: str = ""


def _pattern(name: str) -> bool:
    return any(one in name for one in "*?[")


def _run_of(folder: Path) -> Path:
    """Return the run in the folder; for an advice that of its confirmation. Raises UserError where it has none."""
    from hugewise import reading
    from hugewise.advise.advice import RECORD
    from hugewise.errors import UserError

    if (folder / "run.jsonl").exists() or not (folder / RECORD).is_file():
        return folder
    try:
        found = reading.stored(folder / RECORD, _Confirmed)
    except (OSError, reading.UnreadableError) as error:
        raise UserError(f"{folder / RECORD}: no advice: {error}", hint="name the folder of a run") from None
    if not found.confirmation_folder:
        raise UserError(
            f"{folder}: the advice has no confirmation, and a screening claims nothing",
            hint=f"go on with it: hugewise advise --resume {folder}",
        )
    run = Path(found.confirmation_folder)
    return run if run.exists() else Path(found.cwd) / run  # the path is relative to where the advice was asked
