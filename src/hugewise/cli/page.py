"""`hugewise report RUN --page FILE`: a run joins a page of results, and the overview beside it is made again."""

from __future__ import annotations

from pathlib import Path

from hugewise.errors import UserError
from hugewise.report import result_overview, result_page
from hugewise.visible import printable, say

__all__ = ["main"]


def main(page: Path, run: Path, *, alone: bool) -> None:
    """Write data, page, figures and overview, and name them. Raises UserError, RunError, StorageError."""
    if not alone:
        raise UserError("--page goes with no other option: a page is of whole runs", hint="leave the others out")
    if page.suffix != ".parquet":
        raise UserError(f"--page {page}: its data are a Parquet file", hint=f"name it {page.with_suffix('.parquet')}")
    result_overview.check(page.parent)
    written = result_page.add(page, run)
    for path in (*written, *result_overview.write(page.parent)):
        say(f"  {printable(str(path))}")
