"""The data of a page of results, in one Parquet file: the runs with their attempts, and what is told beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.analysis.forecast import Forecast
from hugewise.errors import RunError
from hugewise.model.metric import NOT_IN_EMULATION
from hugewise.model.reason import Known
from hugewise.model.results import Results
from hugewise.model.trial import Attempt
from hugewise.stats.evidence import RunEvidence
from hugewise.store import folder

_RUN = "run-"
_MOST_RUNS = 10_000
_OF_HOST = ("--results", "--hosts", "--keeper", "--page")
"""Options of a run whose values are files or folders of its host."""


class PageRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run: what it found, with its attempts.

    evidence  what it carries to a combination; null: its method carries none
    forecast  from it, for what it left open; null where none can be had
    derived   a command that measures the same, for a run that did not keep its own; empty where none is known
    """

    results: Results
    evidence: RunEvidence | None = None
    forecast: Forecast | None = None
    derived: str = ""


class PageData(msgspec.Struct, frozen=True, kw_only=True):
    """The runs, the newest first."""

    runs: tuple[PageRun, ...]


_RUNS = msgspec.json.Decoder(PageRun)
_OF_BEFORE, _OF_NOW = (b'"reason":' + msgspec.json.encode(reason) for reason in (NOT_IN_EMULATION, Known("emulated")))
"""A reason as earlier versions stored it, in words, and as it is stored now."""


def read(path: Path) -> PageData:
    """Return the data of a page. Raises RunError where they cannot be read."""
    try:
        found = folder.read_compacted(path, _MOST_RUNS)
        texts = [text.replace(_OF_BEFORE, _OF_NOW) for name, text in found.items() if name.startswith(_RUN)]
        runs = [reading.decoded(_RUNS, text) for text in texts]
    except (OSError, reading.UnreadableError) as error:
        raise RunError(f"{path} cannot be read: {error}", hint="put a copy of it back") from None
    if not runs:
        raise RunError(f"{path} holds no run", hint="python -m tools.results add makes a page's data")
    return PageData(runs=tuple(sorted(runs, key=lambda one: one.results.started, reverse=True)))


def records(data: PageData) -> dict[str, str]:
    """Return the records that `read` reads, by name."""
    return {f"{_RUN}{run.results.run}": msgspec.json.encode(run).decode() for run in data.runs}


def slim(results: Results) -> Results:
    """Return the results without what no page tells: a host's paths, and the settings of every attempt."""

    def slim(attempt: Attempt) -> Attempt:
        return msgspec.structs.replace(attempt, knobs={}, pressure={}, laid={})

    return msgspec.structs.replace(
        results, folder="", command=without_paths(results.command), attempts=tuple(map(slim, results.attempts))
    )


def without_paths(command: Sequence[str]) -> tuple[str, ...]:
    """The command as anybody may read it: of files of that host the name alone, and no folder for results."""
    found, left_out = list[str](), False
    for word in command:
        if not left_out and word.partition("=")[0] not in _OF_HOST:
            found.append(Path(word).name if "/" in word else word)
        left_out = word in _OF_HOST and not left_out
    return tuple(found)


def newest_first(new: PageRun, others: Sequence[PageRun]) -> tuple[PageRun, ...]:
    """Return the runs with the new one in the place of an older copy."""
    runs = [new, *(one for one in others if one.results.run != new.results.run)]
    return tuple(sorted(runs, key=lambda one: one.results.started, reverse=True))
