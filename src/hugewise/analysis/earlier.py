"""Which runs of a study this host has seen before: a reader who is shown one of several should know of all.

Whoever runs a study until it comes out as wished, and shows that run, has no error rate. So every run names those that
were begun before it, also the ones that were broken off.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from hugewise.analysis.comparability import comparable, unlike
from hugewise.errors import UserError
from hugewise.store.folder import RunFolder
from hugewise.store.records import Opened
from hugewise.study.study import Study

__all__ = ["earlier_runs", "of_study"]


def earlier_runs(study: Study, opened: Opened, results: Path) -> tuple[str, ...]:
    """The runs below the folder `results` that measure what `study` does, on the host of the run that begins with
    `opened`: their folders as `STUDY/RUN`, the newest first.

    A run counts from its first record on.
    """
    return tuple(
        folder.path.relative_to(results).as_posix()
        for first, folder in of_study(study, results)
        if first.run != opened.run and unlike(first, opened) is None
    )


def of_study(study: Study, results: Path) -> list[tuple[Opened, RunFolder]]:
    """The runs and pilots below `results` that measure what `study` does, on any host, the newest first.

    Folders that cannot be read are passed over. Of each only the first record and the study are read, so that long runs
    cost no more than short ones.
    """
    found = []
    for path in results.glob("*/*/run.jsonl"):
        folder = RunFolder(path.parent)
        with suppress(UserError):
            first = folder.opened()
            if comparable(study, folder.study(first)) is None:
                found.append((first, folder))
    return sorted(found, key=lambda each: (each[0].t, each[1].path), reverse=True)
