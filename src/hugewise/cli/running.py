"""A run that is started or resumed from the command line: shown as it goes on, reported when it has ended."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hugewise.errors import HugewiseError

__all__ = ["reported"]


def reported(start: Callable[[Any], Any], keeper: int | None = None, page: Path | None = None) -> None:
    """Run with a progress display, then show the verdicts; an interrupted run is reported as far as it came.

    keeper  the descriptor of a socket to the keeper of a fleet, which is told as well
    page    the data of a page of results that the run joins, unless it was interrupted
    """
    import hugewise  # noqa: PLC0415  (each verb pays only for what it uses)
    from hugewise.cli import progress  # noqa: PLC0415
    from hugewise.report.summary import summary  # noqa: PLC0415
    from hugewise.report.terminal import show  # noqa: PLC0415
    from hugewise.session import keeping  # noqa: PLC0415
    from hugewise.session.progress import Message  # noqa: PLC0415

    with progress.shown(sys.stderr) as shown:
        listener = shown if keeper is None else keeping.telling(keeper, shown)
        results = start(listener)
        listener(Message("writing the report"))
        try:
            paths = hugewise.write_reports(results)
        except HugewiseError:
            show(summary(results))  # what was found is not lost with the report
            raise
    show(summary(results), paths["html"])
    if results.state == "interrupted":
        sys.exit(130)
    if page is not None:
        from hugewise.cli import page as publishing  # noqa: PLC0415

        publishing.join(page, Path(results.folder))
