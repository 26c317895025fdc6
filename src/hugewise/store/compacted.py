"""The attempts of a run that has ended, in one Parquet file: each record as it was, beside columns to choose it by."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hugewise import reading
from hugewise.errors import RunError, StorageError, UserError
from hugewise.files import storing, sync

__all__ = ["read", "write"]

_ROWS = """
select name, cast(record ->> '$.block' as integer) as block, record ->> '$.cell' as cell, record ->> '$.arm' as arm,
  cast(record ->> '$.number' as integer) as number, record ->> '$.state' as state, record
from given
"""
_ROW = 100  # bytes in memory beside its texts
_ASKED = f"""
count(*), count(distinct name) filter (name is not null and record is not null),
max(strlen(name) + strlen(record)),
sum(strlen(name) + strlen(record) + {_ROW})
"""
_MOST = 1 << 30  # bytes of all records: one of a small workload has 2 KB, so those of 400,000 attempts
_CONFIG: dict[str, str | bool | int | float | list[str]] = {"memory_limit": "2GiB", "temp_directory": ""}
_SHOWN = 100
_AT_ONCE = 2_000


def write(path: Path, records: Mapping[str, str], *, most: int | None = None) -> None:
    """Keep `records` by the names of their folders; the file is there whole or not at all. Raises StorageError.

    `most`: bytes that the file may have; else UserError, and what was there stays.
    """
    import duckdb  # noqa: PLC0415  (150 ms that only its users should pay)
    import numpy as np  # noqa: PLC0415

    draft = path.with_name(f".{path.name}")
    with storing(str(path)):
        try:
            with duckdb.connect() as connection:
                columns = {"name": list(records), "record": list(records.values())}
                connection.register("given", {name: np.array(each, dtype=object) for name, each in columns.items()})
                connection.sql(_ROWS).write_parquet(str(draft), compression="zstd")
            if most is not None and (size := draft.stat().st_size) > most:
                raise UserError(
                    f"{path} would have {size:,} bytes, more than {most:,}", hint="keep fewer attempts in it"
                )
            sync(draft)
            draft.replace(path)
            sync(path.parent)
        except duckdb.Error as error:
            raise StorageError(f"cannot write {path}: {_first_line(error)}") from None
        finally:
            draft.unlink(missing_ok=True)


def read(path: Path) -> dict[str, bytes]:
    """The records by the names of their folders; none where there is no such file. Raises OSError, and RunError.

    Kilobytes of Parquet can hold gigabytes of text, so what it would be is asked before any of it is taken.
    """
    if not os.path.lexists(path):
        return {}
    try:
        with reading.opened(path) as file:
            if os.fstat(file.fileno()).st_size > reading.MOST:
                raise _unreadable(path, f"larger than {reading.MOST:,} bytes")
            return _records(path, file.fileno())
    except reading.UnreadableError as error:
        raise _unreadable(path, str(error)) from None


def _records(path: Path, descriptor: int) -> dict[str, bytes]:
    import duckdb  # noqa: PLC0415

    try:
        with duckdb.connect(config=_CONFIG) as connection:
            # By its number: a name is a pattern to DuckDB.
            table = connection.read_parquet(f"/proc/self/fd/{descriptor}").project("name, record")
            for column, kind in zip(table.columns, map(str, table.types), strict=True):
                if kind != "VARCHAR":
                    raise _unreadable(path, f"its column {column} is of {kind[:_SHOWN]}, not of texts")
            rows, names, most, total = table.aggregate(_ASKED).fetchone() or (0, 0, 0, 0)
            if rows != names:
                raise _unreadable(path, "an attempt has no name, no record, or a name that another has")
            if (most or 0) > reading.MOST_JSON or (total or 0) > _MOST:
                raise _unreadable(path, f"{rows:,} attempts of {total:,} bytes, the largest of {most:,}, are too much")
            found: dict[str, bytes] = {}
            while some := table.fetchmany(_AT_ONCE):  # all at once would be there twice
                found.update((name, record.encode()) for name, record in some)
            return found
    except duckdb.Error as error:
        raise _unreadable(path, _first_line(error)) from None


def _unreadable(path: Path, why: str) -> RunError:
    return RunError(
        f"{path} cannot be read: {why}",
        hint="put a copy of it back; or, where every folder in attempts/ still has its attempt.json, remove it",
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
