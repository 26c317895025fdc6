"""`hugewise export RUN --to FILE`: every attempt and metric for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from hugewise.cli import options

__all__ = ["export"]


@click.command(short_help="Attempts and verdicts as Parquet, CSV or OpenMetrics.")
@options.RUN
@click.option(
    "--to",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The file; its ending says how: .parquet, .csv, .prom (OpenMetrics).",
)
@click.option("--force", is_flag=True, help="Replace FILE where it is there already.")
def export(run_: Path, to: Path, *, force: bool) -> None:
    """Write a row for each attempt and metric of the run in the folder RUN.

    With cell, arm, block, unit and verdict; what has no value is null. Beside a FILE.parquet or FILE.csv is
    FILE.verdicts.parquet or .csv, a row for each comparison and end point. Files are written whole or not at all, and
    the run stays as it is: also one that is being measured.
    """
    from hugewise.report.export import export as write  # noqa: PLC0415  (each verb pays only for what it uses)
    from hugewise.visible import printable, say  # noqa: PLC0415

    done = write(run_, to, force=force)
    say(f"{done.rows} rows in {printable(to)}")
    if done.verdicts is not None:
        say(f"{done.comparisons} verdicts in {printable(done.verdicts)}")
