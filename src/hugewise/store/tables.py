"""A run's attempts as tables: in DuckDB, made in memory each time.

Views: `attempts` (a row each), `observations` (attempt, metric, value), `coverage` (attempt, page, bytes), `samples`
(attempt, second of its measured part counted from 1, throughput in work a second), `facts` (attempt, name, text, and
value where it is a number), `blocks`. The files stay the truth: nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hugewise.model.trial import Attempt
from hugewise.store.folder import RunFolder
from hugewise.store.records import Run

if TYPE_CHECKING:
    import duckdb


_FILES = resources.files(__package__)
_COLUMNS = msgspec.toml.decode(_FILES.joinpath("columns.toml").read_bytes(), type=dict[str, dict[str, str]])


def tables(folder: Path) -> duckdb.DuckDBPyConnection:
    """Return an in-memory DuckDB connection with the run's views. Raises RunError when `folder` is no run."""
    return tables_of(RunFolder(folder).read())


def connected() -> duckdb.DuckDBPyConnection:
    """Return a database in memory. It writes nothing where memory is short: its own folder for that would lie in the
    current one, which may be another account's.
    """
    import duckdb  # noqa: PLC0415  (150 ms that only its users should pay)

    return duckdb.connect(config={"temp_directory": ""})


def tables_of(run: Run) -> duckdb.DuckDBPyConnection:
    """Return the tables of a run that was read."""
    connection = connected()
    have_blocks(connection, run)
    have_attempts(connection, run.attempts)
    connection.execute(_FILES.joinpath("views.sql").read_text(encoding="utf-8"))
    return connection


def have_blocks(connection: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Have the table `blocks`."""
    rows = [{"block": one.number, "cell": one.cell, "state": one.state, "reason": one.reason} for one in run.blocks]
    _from_json(connection, "blocks", _COLUMNS["blocks"], rows)


def have_attempts(connection: duckdb.DuckDBPyConnection, attempts: Sequence[Attempt]) -> None:
    """Have the table `attempts` with these, in this order, in place of the one that there was."""
    rows = [{name: getattr(attempt, name) for name in _COLUMNS["attempts"]} for attempt in attempts]
    _from_json(connection, "attempts", _COLUMNS["attempts"], rows)


def _from_json(
    connection: duckdb.DuckDBPyConnection, table: str, columns: Mapping[str, str], rows: Sequence[Mapping[str, object]]
) -> None:
    import numpy as np  # noqa: PLC0415

    row = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
    texts = [msgspec.json.encode(row).decode() for row in rows]
    connection.register("stored", {"record": np.array(texts, dtype=object)})
    connection.execute(
        f"create or replace table {table} as"  # noqa: S608  (two fixed names)
        f" select unnest(cast(cast(record as json) as struct({row}))) from stored"
    )
    connection.unregister("stored")
