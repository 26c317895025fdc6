"""The results of a run that goes on, again and again: what was read and judged before is not read and judged again.

A log only grows, and what it had is proven by its running hash: attempts that were read before are as they were, and a
method that has seen a block needs to see the next one alone. What is told of the whole (`analysis.results_of`) is made
anew each time.
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
        if self._judging is None or before is None or not run.goes_on_from(before):
            self._judging = Judging(run)
        self._run = run
        return results_of(run, self._judging.found(run.blocks))
