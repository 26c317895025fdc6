"""`hugewise report RUN --page FILE`: a run joins a page of results, and the overview beside it is made again."""

from __future__ import annotations

from pathlib import Path

from hugewise.errors import UserError
from hugewise.report import cell_list, result_overview, result_page
from hugewise.store.folder import RunFolder
from hugewise.study import load, shipped
from hugewise.study.study import Study
from hugewise.visible import printable, say

__all__ = ["main"]


def main(page: Path, run: Path, *, alone: bool) -> None:
    """Write data, page, figures and overview, and name them. Raises UserError, RunError, StorageError."""
    if not alone:
        raise UserError("--page goes with no other option: a page is of whole runs", hint="leave the others out")
    if page.suffix != ".parquet":
        raise UserError(f"--page {page}: its data are a Parquet file", hint=f"name it {page.with_suffix('.parquet')}")
    result_overview.check(page.parent)
    written = result_page.add(page, run, _whole(run), cell_list.beside(page))
    for path in (*written, *result_overview.write(page.parent)):
        say(f"  {printable(str(path))}")


def _whole(run: Path) -> Study | None:
    """The study as it comes with hugewise, at the run's scale, where the run is of it. Raises UserError, RunError."""
    folder = RunFolder(run)
    measured = folder.study(folder.opened())
    path = shipped.named(Path(measured.name))
    if path is None:
        return None
    return load.load(path, measured.scale)
