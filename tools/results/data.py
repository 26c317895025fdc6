"""The data of a page of results, in one Parquet file: the runs with their attempts, and what is told beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.analysis.forecast import Forecast
from hugewise.errors import RunError
from hugewise.model.results import Results
from hugewise.model.trial import Attempt
from hugewise.stats.evidence import RunEvidence
from hugewise.store import folder
from tools.results.forecasts import UnmeasuredCell

_RUN, _PILOT, _UNMEASURED = "run-", "pilot-", "unmeasured"
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
    """The runs, the newest first; the cells of their study that none of them was asked to measure; and pilots of the
    study, of which only the forecast is told: none is judged with the runs.
    """

    runs: tuple[PageRun, ...]
    unmeasured: tuple[UnmeasuredCell, ...] = ()
    pilots: tuple[PageRun, ...] = ()


_RUNS = msgspec.json.Decoder(PageRun)
_CELLS = msgspec.json.Decoder(tuple[UnmeasuredCell, ...])


def read(path: Path) -> PageData:
    """Return the data of a page. Raises RunError where they cannot be read."""
    try:
        found = folder.read_compacted(path, _MOST_RUNS)
        runs, pilots = (
            [reading.decoded(_RUNS, text) for name, text in found.items() if name.startswith(kind)]
            for kind in (_RUN, _PILOT)
        )
        others = reading.decoded(_CELLS, found.get(_UNMEASURED, b"[]"))
    except (OSError, reading.UnreadableError) as error:
        raise RunError(f"{path} cannot be read: {error}", hint="put a copy of it back") from None
    if not runs:
        raise RunError(f"{path} holds no run", hint="hugewise report RUN --page FILE makes a page's data")
    for kind in (runs, pilots):
        kind.sort(key=lambda one: one.results.started, reverse=True)
    return PageData(runs=tuple(runs), unmeasured=others, pilots=tuple(pilots))


def records(data: PageData) -> dict[str, str]:
    """Return the records that `read` reads, by name."""
    found = {f"{_RUN}{run.results.run}": msgspec.json.encode(run).decode() for run in data.runs}
    found |= {f"{_PILOT}{pilot.results.run}": msgspec.json.encode(pilot).decode() for pilot in data.pilots}
    if data.unmeasured:
        found[_UNMEASURED] = msgspec.json.encode(data.unmeasured).decode()
    return found


def slim(results: Results) -> Results:
    """Return the results without what no page tells: a host's paths, and the settings of every attempt."""

    def slim(attempt: Attempt) -> Attempt:
        return msgspec.structs.replace(attempt, knobs={}, pressure={}, laid={}, covariates={})

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
