"""`hugewise report RUN`: its reports written again, files to deploy, a page to publish, or a page that follows it."""

from __future__ import annotations

from pathlib import Path

import click

from hugewise.cli import options
from hugewise.errors import HugewiseError, UserError
from hugewise.visible import printable, say

__all__ = ["report"]


@click.command(short_help="Write the reports of RUN again, or files to deploy.")
@options.RUN
@click.option("--salvage", is_flag=True, help="Leave out what is damaged, and say so in the report.")
@click.option("--expect", metavar="HASH", help="The last hash of its records, as it was noted: refuse another.")
@click.option(
    "--output",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the files to deploy of each cell's best policy into this new folder; nothing is applied.",
)
@click.option("--unit", metavar="NAME", help="With --output: the service of systemd that the files are for.")
@options.PAGE
@click.option("--serve", "served", is_flag=True, help="Show the report to a browser here while the run goes on.")
@click.option("--port", type=click.IntRange(1, 65535), help="With --serve: listen there (default: a free port).")
def report(
    run_: Path,
    *,
    salvage: bool,
    expect: str | None,
    output: Path | None,
    unit: str | None,
    page: Path | None,
    served: bool,
    port: int | None,
) -> None:
    """Write the reports of the run in the folder RUN again, and show its verdicts.

    With --output the files to deploy are written instead, with --page a page to publish, and with --serve the report
    follows a run at an address of this host until Ctrl-C; the run's folder stays as it is.
    """
    import hugewise  # noqa: PLC0415
    from hugewise.report.summary import summary  # noqa: PLC0415
    from hugewise.report.terminal import show  # noqa: PLC0415

    if unit is not None and output is None:
        raise UserError(f"--unit {unit}: there are no files for it", hint="name a folder for them: --output FOLDER")
    if port is not None and not served:
        raise UserError(f"--port {port}: nothing is served", hint="with --serve there is: --serve --port 8000")
    if served:
        from hugewise.analysis.following import Followed  # noqa: PLC0415
        from hugewise.cli.serve import serve  # noqa: PLC0415

        if expect is not None or output is not None or page is not None:
            raise UserError("--serve goes with --salvage and --port alone", hint="leave the others out")
        followed = Followed(run_, salvage=salvage)
        serve(run_, port, lambda _: followed.results())
        return
    if page is not None:
        from hugewise.cli import page as publishing  # noqa: PLC0415

        publishing.main(page, run_, alone=not (salvage or expect or output))
        return
    results = hugewise.open_results(run_, salvage=salvage, expect=expect)
    if output is not None:
        from hugewise.cli.unit_start import of_host  # noqa: PLC0415
        from hugewise.report.deployed import write_files  # noqa: PLC0415

        written = write_files(results, output, unit, start=None if unit is None else of_host(unit))
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
