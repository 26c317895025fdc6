"""`hugewise report RUN`: its reports written again, or files to deploy; and `hugewise export RUN --to FILE`."""

from __future__ import annotations

from pathlib import Path

import click

from hugewise.cli import options, request
from hugewise.errors import HugewiseError, UserError
from hugewise.visible import printable, say


@click.command(short_help="Write the reports of RUN again, or the files to deploy.")
@options.RUN
@click.option("--expect", metavar="HASH", help="The last hash of the records that you noted: refuse any other.")
@click.option(
    "--output",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the files that deploy each cell's best policy into this new folder; apply nothing.",
)
@click.option("--unit", metavar="NAME", help="With --output: the systemd service that the files are for.")
@click.option(
    "--serve", "served", is_flag=True, help="Serve the report to a browser on this host while the run goes on."
)
@click.option("--port", type=click.IntRange(1, 65535), help="With --serve: the port (default: a free one).")
def report(
    run_: Path,
    *,
    expect: str | None,
    output: Path | None,
    unit: str | None,
    served: bool,
    port: int | None,
) -> None:
    """Write the reports of the run in the folder RUN again, and show its verdicts.

    With --output, write the files to deploy instead. With --serve, serve the report at an address of this host until
    Ctrl-C. Neither changes the run's folder.
    """
    import hugewise  # noqa: PLC0415
    from hugewise.report.summary import summary  # noqa: PLC0415
    from hugewise.report.terminal import show  # noqa: PLC0415

    if unit is not None and output is None:
        raise UserError(f"--unit {unit}: there are no files for it", hint="name a folder for them: --output FOLDER")
    if port is not None and not served:
        raise UserError(f"--port {port}: nothing is served", hint="with --serve there is: --serve --port 8000")
    if served:
        from hugewise.analysis.analysis import Followed  # noqa: PLC0415

        if expect is not None or output is not None:
            raise UserError("--serve goes with --port alone", hint="leave the others out")
        followed = Followed(run_)
        from hugewise.cli.serve import serve  # noqa: PLC0415

        serve(run_, port, lambda _: followed.results())
        return
    results = hugewise.open_results(run_, expect=expect)
    if output is not None:
        from hugewise.report.deployed import write_files  # noqa: PLC0415

        written = write_files(results, output, unit, start=request.start_of(unit))
        show(summary(results))
        say(f"\nFiles to deploy (nothing was applied; see {output / 'README.md'}):")
        for line in written:
            say(f"  {printable(line)}")
        return
    try:
        paths = hugewise.write_reports(results)
    except HugewiseError:
        show(summary(results))  # a run that belongs to somebody else can be read all the same
        raise
    show(summary(results), paths["html"])


@click.command(short_help="Export attempts and verdicts as Parquet.")
@options.RUN
@click.option(
    "--to",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The file; its name ends in .parquet.",
)
@click.option("--force", is_flag=True, help="Replace an existing FILE.")
def export(run_: Path, to: Path, *, force: bool) -> None:
    """Write a row for each attempt and metric of the run in the folder RUN.

    A row has cell, arm, block, unit and verdict; a missing value is null. Beside FILE.parquet,
    FILE.verdicts.parquet has a row for each comparison and end point. The run is not changed, and can still be going
    on.
    """
    from hugewise.report.export import export as write  # noqa: PLC0415  (each verb pays only for what it uses)

    done = write(run_, to, force=force)
    say(f"{done.rows} rows in {printable(to)}")
    say(f"{done.comparisons} verdicts in {printable(done.verdicts)}")
