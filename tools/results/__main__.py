"""`python -m tools.results`: adds a run to a page of results, and writes the overview of all pages again.

A page is PAGE.parquet (the data), PAGE.md and its figures; overview.md and folklore.md stand beside the pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import hugewise
from hugewise.cli import options, progress, request
from hugewise.cli.main import main
from hugewise.errors import StorageError, UserError
from hugewise.files import alone_in, made_folder, own
from hugewise.study import load
from hugewise.study.study import Study
from hugewise.study.workload import SMALL
from hugewise.visible import printable, say
from tools.results import overview
from tools.results.data import read
from tools.results.page import add as add_run


@click.group()
def cli() -> None:
    """Pages of results, made of runs."""


@cli.command()
@click.argument("page", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("run", type=click.Path(file_okay=False, path_type=Path))
def add(page: Path, run: Path) -> None:
    """Add the run in the folder RUN to the page whose data are the file PAGE (NAME.parquet)."""
    check(page)
    join(page, run)


@cli.command()
@click.argument("page", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("study")
@options.SCALE
@options.ONLY
@options.ARMS
@click.option("--blocks", type=int, help="Blocks per cell, instead of the study's.")
@click.option("--time", "time_", help="Time budget, instead of the study's, such as 4m.")
@options.RESULTS
def measure(page: Path, study: str, results: Path, blocks: int | None, time_: str | None, **part: Any) -> None:
    """Run STUDY, or a part of it, and add the run to the page PAGE (NAME.parquet) when it has ended."""
    request.must_be_study(study, "hugewise run --policy base,thp --")
    chosen = load.with_budget(request.part_of(Path(study), part), blocks, time_)
    check(page, chosen)
    given = {**part, "blocks": blocks, "time": time_, "results": results}
    words = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    call = request.command_line(("run", study, *words))
    found = progress.reported(lambda listener: hugewise.run(chosen, listener=listener, results=results, command=call))
    join(page, Path(found.folder))


def check(page: Path, study: Study | None = None) -> None:
    """Check before hours are measured that a page can be there, and is of that study. Raises UserError, RunError."""
    if page.suffix != ".parquet":
        raise UserError(f"{page}: its data are a Parquet file", hint=f"name it {page.with_suffix('.parquet')}")
    overview.check(page.parent)
    if study is not None and page.exists():
        of = read(page).runs[0].results
        scale = of.options.get("scale", SMALL)
        if (of.study, scale) != (study.name, study.scale):
            run = f"the run is of {study.name} at {study.scale}"
            raise UserError(
                f"{page}: it is of {of.study} at the scale {scale}, and {run}",
                hint="name a page for each study and scale",
            )


def join(page: Path, run: Path) -> None:
    """Add the run, and write page and overview; one process at a time, so that none loses what another has added.

    Raises UserError to root where another account could change where the pages lie.
    """
    try:
        own(page.parent, str(page))
        made_folder(page.parent)
        with alone_in(page.parent):
            written = add_run(page, run)
            written += overview.write(page.parent)
    except OSError as error:
        raise StorageError(f"{error.filename or page}: {error.strerror or error}") from error
    for path in written:
        say(f"  {printable(str(path))}")


if __name__ == "__main__":
    main(command=cli, name="python -m tools.results")
