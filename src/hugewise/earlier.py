"""Which runs of a study this host has seen before: a reader who is shown one of several should know of all.

Whoever runs a study until it comes out as wished, and shows that run, has no error rate. So every run names those that
were begun before it, also the ones that were broken off.
"""

from __future__ import annotations

from pathlib import Path

from hugewise.comparability import comparable, unlike
from hugewise.errors import UserError
from hugewise.runlog import Opened, RunFolder
from hugewise.study import Study

__all__ = ["earlier_runs"]


def earlier_runs(study: Study, opened: Opened, results: Path) -> tuple[str, ...]:
    """The runs below the folder `results` that measure what `study` does, on the host of the run that begins with
    `opened`: their folders as `STUDY/RUN`, the newest first.

    A run counts from its first record on. Folders that cannot be read are passed over. Of each only the first record
    and the study are read, so that long runs cost no more than short ones.
    """
    found = []
    for path in results.glob("*/*/run.jsonl"):
        folder = RunFolder(path.parent)
        try:
            first = folder.opened()
            if first.run == opened.run or unlike(first, opened) is not None:
                continue
            if comparable(study, folder.study()) is None:
                found.append((first.t, path.parent.relative_to(results).as_posix()))
        except UserError:
            continue
    return tuple(run for _, run in sorted(found, reverse=True))
