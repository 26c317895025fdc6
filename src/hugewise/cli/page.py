"""`--page FILE` of `hugewise run` and `hugewise report RUN`: a run joins a page of results, and the overview beside it
is made again.
"""

from __future__ import annotations

from pathlib import Path

from hugewise.errors import StorageError, UserError
from hugewise.files import alone_in, made_folder
from hugewise.report import cell_list, result_overview, result_page
from hugewise.store.folder import RunFolder
from hugewise.study import load
from hugewise.study.study import Study
from hugewise.study.workload import SMALL
from hugewise.visible import printable, say


def main(page: Path, run: Path, *, alone: bool) -> None:
    """Write data, page, figures and overview, and name them. Raises UserError, RunError, StorageError."""
    if not alone:
        raise UserError("--page goes with no other option: a page is of whole runs", hint="leave the others out")
    check(page)
    join(page, run)


def check(page: Path, study: Study | None = None) -> None:
    """What can be known before hours are measured: that a page can be there, and is of that study, and that the list
    of what is measured first is right. Raises UserError, StudyError, RunError.
    """
    if page.suffix != ".parquet":
        raise UserError(f"--page {page}: its data are a Parquet file", hint=f"name it {page.with_suffix('.parquet')}")
    result_overview.check(page.parent)
    if study is None:
        return
    whole, listed = _shipped(study.name, study.scale), cell_list.beside(page)
    if whole is not None and listed is not None:
        cell_list.of_study(listed, whole)
    if page.exists():
        of = result_page.read(page).runs[0].results
        scale = of.options.get("scale", SMALL)
        if (of.study, scale) != (study.name, study.scale):
            run = f"the run is of {study.name} at {study.scale}"
            raise UserError(
                f"--page {page}: it is of {of.study} at the scale {scale}, and {run}",
                hint="name a page for each study and scale",
            )


def join(page: Path, run: Path) -> None:
    """Add the run, and write page and overview; one process at a time, so that none loses what another has added."""
    try:
        made_folder(page.parent)
        with alone_in(page.parent):
            written = result_page.add(page, run, _whole(run), cell_list.beside(page))
            written += result_overview.write(page.parent)
    except OSError as error:
        raise StorageError(f"{error.filename or page}: {error.strerror or error}") from error
    for path in written:
        say(f"  {printable(str(path))}")


def _whole(run: Path) -> Study | None:
    """The study as it comes with hugewise, where the run is of it or a pilot of it. Raises UserError, RunError."""
    folder = RunFolder(run)
    measured = folder.study(folder.opened())
    return _shipped(measured.name, measured.scale)


def _shipped(name: str, scale: str) -> Study | None:
    """The study of that name, or that pilots of that name are of, at the scale. Raises UserError where it has none."""
    path = load.shipped_study(Path(name)) or load.shipped_study(Path(name.removesuffix("-pilot")))
    return None if path is None else load.load(path, scale)
