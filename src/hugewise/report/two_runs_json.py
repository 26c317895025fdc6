"""The reference of `compare --json`, made from the types themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from hugewise.model.two_runs import TwoRuns
from hugewise.report.json import structures


def reference() -> str:
    """docs/reference/compare-json.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# The JSON of hugewise compare"
    yield ""
    yield "Made from the types in `model.two_runs` by `report.two_runs_json`; a test keeps it current."
    yield ""
    yield (
        "`hugewise compare FIRST SECOND --json` prints one [TwoRuns](#tworuns). Its key `format` rises when a meaning "
        "changes; new keys may come without that. A value that is not there is null, never 0. A ratio of one run is "
        "arm/baseline; one of both is the second run's over the first's. [The guide](../guides/runs.md) says what can "
        "be claimed of them."
    )
    yield from structures(TwoRuns)


if __name__ == "__main__":
    sys.stdout.write(reference())
