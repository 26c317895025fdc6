"""The results of a run that goes on, again and again: what was read and judged before is not read and judged again.

A log only grows, and its running hash proves what it had: a method that has seen a block needs to see the next one
alone. Attempts are as they were read first, until the run has ended: then all of it is read anew, so that the page that
stays is that of `hugewise report`. What is told of the whole (`analysis.results_of`) is made anew each time.
"""

from __future__ import annotations

from pathlib import Path

from hugewise.analysis.analysis import Judging, results_of
from hugewise.model.results import Results
from hugewise.store.folder import RunFolder
from hugewise.store.records import Run

__all__ = ["Followed"]


class Followed:
    """The run in `folder`, read again when `results` is asked for. With `salvage` all of it is, each time."""

    def __init__(self, folder: Path, *, salvage: bool = False) -> None:
        self._folder, self._salvage = RunFolder(folder), salvage
        self._run: Run | None = None
        self._judging: Judging | None = None

    def results(self) -> Results:
        """What `analysis.analyze` finds now. Raises RunError; what was there before is kept."""
        before, run = self._run, self._folder.read(self._run, salvage=self._salvage)
        if before is not None and run is not before and run.closed is not None:
            run = self._folder.read(salvage=self._salvage)
        judging, self._judging = self._judging, None  # one that was broken off has seen nobody knows what
        if judging is None or before is None or not run.goes_on_from(before):
            judging = Judging(run)
        found = judging.found(run.blocks)
        self._run, self._judging = run, judging
        return results_of(run, found)
