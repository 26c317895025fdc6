"""hugewise: which page size should this workload run with, on this machine, and how sure are we?

    study = hugewise.load("studies/demo.toml")
    results = hugewise.run(study)                 # a `Results`: verdicts, effects, arms, attempts
    hugewise.write_reports(results)               # report.html and its companions, in the run's folder
    hugewise.tables(results.folder)               # DuckDB connection: attempts, observations, coverage, blocks

Errors are `hugewise.errors.HugewiseError`s with a hint; the command line is as thin as this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hugewise.study.load import command_study, load
from hugewise.study.study import Study

if TYPE_CHECKING:
    import duckdb

    from hugewise.model.host import ClientHost
    from hugewise.model.results import Results
    from hugewise.plan.plan import Plan
    from hugewise.session.progress import Event

__all__ = ["Study", "command_study", "load", "make_plan", "open_results", "resume", "run", "tables", "write_reports"]

# Imports inside functions: a verb or a script pays only for what it uses (scipy alone takes a second).
# ruff: noqa: PLC0415


def make_plan(study: Study, *, results: Path | str = "results", client: ClientHost | None = None) -> Plan:
    """What of `study` can run on this machine as this user, and what is left out and why. Raises StudyError.

    `results` is the folder whose calibrations decide where the study leaves the design to them; `client` the host that
    the clients of its servers are on.
    """
    from hugewise.session import clients, identity

    return identity.planned(clients.placed(study, client), Path(results))


def run(
    study: Study,
    *,
    results: Path | str = "results",
    seed: bytes | None = None,
    listener: Callable[[Event], None] = lambda _: None,
    anyway: bool = False,
    client: ClientHost | None = None,
    command: Sequence[str] = (),
) -> Results:
    """Run `study` in a new folder below `results` and return what it found. An interrupt ends it cleanly: what was
    accepted is in the results, whose state says `interrupted`. `anyway`: as root, beside another account's run.
    `client`: the host that the clients of its servers are on. `command`: the command line that asked for the run, which
    is kept with it. Raises HugewiseError.
    """
    from hugewise.session import session

    folder = session.run(
        study, Path(results), seed=seed, listener=listener, anyway=anyway, client=client, command=command
    )
    return open_results(folder.path)


def resume(folder: Path | str, *, listener: Callable[[Event], None] = lambda _: None, anyway: bool = False) -> Results:
    """Continue the interrupted run in `folder`. Raises HugewiseError."""
    from hugewise.session import session

    return open_results(session.resume(Path(folder), listener=listener, anyway=anyway).path)


def open_results(folder: Path | str, *, salvage: bool = False, expect: str | None = None) -> Results:
    """What the run in `folder` has found so far; with `salvage` without what is damaged, which is told. `expect` is
    the last running hash that it must have. Raises RunError.
    """
    from hugewise.analysis import analysis

    return analysis.analyze(Path(folder), salvage=salvage, expect=expect)


def write_reports(results: Results) -> dict[str, Path]:
    """Write report.html, .md, .json, CSV and figures into the run's folder; returns their paths.

    Raises StorageError, and UserError to root where the folder is another account's.
    """
    from hugewise.report.write import write

    return write(results, Path(results.folder))


def tables(folder: Path | str) -> duckdb.DuckDBPyConnection:
    """The run's attempts as DuckDB views: attempts, observations, coverage, blocks. Raises RunError."""
    from hugewise.store import tables as store

    return store.tables(Path(folder))
