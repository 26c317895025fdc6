"""The attempts of a run that has ended, in one Parquet file: each record as it was, beside columns to choose it by."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hugewise import reading
from hugewise.errors import RunError, StorageError
from hugewise.files import storing, sync

__all__ = ["read", "write"]

_ROWS = """
select name, cast(record ->> '$.block' as integer) as block, record ->> '$.cell' as cell, record ->> '$.arm' as arm,
  cast(record ->> '$.number' as integer) as number, record ->> '$.state' as state, record
from given
"""


def write(path: Path, records: Mapping[str, str]) -> None:
    """Keep `records` by the names of their folders; the file is there whole or not at all. Raises StorageError."""
    import duckdb  # noqa: PLC0415  (150 ms that only its users should pay)
    import numpy as np  # noqa: PLC0415

    draft = path.with_name(f".{path.name}")
    with storing(str(path)):
        try:
            with duckdb.connect() as connection:
                columns = {"name": list(records), "record": list(records.values())}
                connection.register("given", {name: np.array(each, dtype=object) for name, each in columns.items()})
                connection.sql(_ROWS).write_parquet(str(draft), compression="zstd")
            sync(draft)
            draft.replace(path)
            sync(path.parent)
        except duckdb.Error as error:
            raise StorageError(f"cannot write {path}: {_first_line(error)}") from None
        finally:
            draft.unlink(missing_ok=True)


def read(path: Path) -> dict[str, bytes]:
    """The records by the names of their folders; none where there is no such file. Raises OSError, and RunError."""
    if not os.path.lexists(path):
        return {}
    import duckdb  # noqa: PLC0415

    try:
        # By its number: a name is a pattern to DuckDB.
        with reading.opened(path) as file, duckdb.connect() as connection:
            found = connection.read_parquet(f"/proc/self/fd/{file.fileno()}").project("name, record").fetchall()
    except (duckdb.Error, reading.UnreadableError) as error:
        raise RunError(
            f"{path} cannot be read: {_first_line(error)}",
            hint="put a copy of it back; or, where every folder in attempts/ still has its attempt.json, remove it",
        ) from None
    return {name: record.encode() for name, record in found}


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
