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

# Imports are inside functions, so that a script pays only for what it uses (scipy alone takes a second).
# ruff: noqa: PLC0415


def make_plan(study: Study, *, client: ClientHost | None = None) -> Plan:
    """Plan `study` here: what can run, and what is left out and why (`client`: their host). Raises StudyError."""
    from hugewise.session import clients, identity

    return identity.planned(clients.placed(study, client))


def run(
    study: Study,
    *,
    results: Path | str = "results",
    seed: bytes | None = None,
    listener: Callable[[Event], None] = lambda _: None,
    anyway: bool = False,
    wait: bool = False,
    client: ClientHost | None = None,
    command: Sequence[str] = (),
) -> Results:
    """Run `study` in a new folder below `results` and return what it found. An interrupt ends it cleanly: what was
    accepted is in the results, whose state says `interrupted`. `anyway`: as root, beside another account's run.
    `wait`: until a run that holds the host has ended. `client`: the host that the clients of its servers are on.
    `command`: the command line that asked for the run, which is kept with it. Raises HugewiseError.
    """
    from hugewise.session import session

    lock = session.host_lock(listener, anyway=anyway, wait=wait)
    folder = session.run(study, Path(results), seed=seed, listener=listener, lock=lock, client=client, command=command)
    return open_results(folder.path)


def resume(
    folder: Path | str,
    *,
    listener: Callable[[Event], None] = lambda _: None,
    anyway: bool = False,
    wait: bool = False,
) -> Results:
    """Continue the interrupted run in `folder`; `anyway` and `wait` as in `run`. Raises HugewiseError."""
    from hugewise.session import session

    lock = session.host_lock(listener, anyway=anyway, wait=wait)
    return open_results(session.resume(Path(folder), listener=listener, lock=lock).path)


def open_results(folder: Path | str, *, expect: str | None = None) -> Results:
    """Read what the run in `folder` has found; `expect`: the last running hash that it must have. Raises RunError."""
    from hugewise.analysis import analysis

    return analysis.analyze(Path(folder), expect=expect)


def write_reports(results: Results) -> dict[str, Path]:
    """Write report.html, .md, .json, CSV and figures into the run's folder; returns their paths.

    Raises StorageError, and UserError to root where the folder is another account's.
    """
    from hugewise.report.write import write

    return write(results, Path(results.folder))


def tables(folder: Path | str) -> duckdb.DuckDBPyConnection:
    """Return the run's attempts as DuckDB views: attempts, observations, coverage, blocks. Raises RunError."""
    from hugewise.store import tables as store

    return store.tables(Path(folder))
