"""CSV (comma, semicolon or tab) and Parquet files: one row for each measurement, its parts in named columns.

Read by DuckDB. Labels (arms, blocks, sessions, slots) are compared as text, so that `1` in one file is `1` in another.
"""

from __future__ import annotations

import contextlib
import csv
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hugewise.external.reader import Ask, DataError, Labels, Series, head_of
from hugewise.model.metric import Direction, Metric
from hugewise.reading import UnreadableError, figure, shown
from hugewise.stats.method import Numbers

NAME = "columns"
DESCRIPTION = "CSV or Parquet with one row a measurement (--value COLUMN, --arm-column, --block, --order, --session)"

_PARQUET = b"PAR1"
_MOST_ROWS = 50_000_000
_ALONE = re.compile(r'"?[A-Za-z_][\w ()/.%-]*"?')
_DELIMITERS = ",;\t"
_PARTS = ("block", "order", "session", "slot", "run")


def recognises(head: bytes) -> bool:
    """Parquet's magic, or a header of names above rows of as many fields with a number among them."""
    return head.startswith(_PARQUET) or _delimiter(head) is not None


def read(path: Path, ask: Ask) -> list[Series]:
    """One series for each arm of the file, in the order of its rows."""
    head = head_of(path)
    with _table(path, head) as (connection, names):
        return _series(connection, names, path, ask)


def _delimiter(head: bytes) -> str | None:
    rows = head.decode("utf-8-sig", "replace").splitlines()[:2]
    if len(rows) < 2:
        return None
    for delimiter in _DELIMITERS:
        header, first = (_split(row, delimiter) for row in rows)
        if len(header) < 2 or any(not name.strip() or _is_number(name) for name in header):
            continue
        if len(first) == len(header) and any(map(_is_number, first)):
            return delimiter
    name, number = (row.strip() for row in rows)
    return "," if _ALONE.fullmatch(name) is not None and _is_number(number) else None


def _split(row: str, delimiter: str) -> list[str]:
    """The fields of a row; none of what is no CSV."""
    try:
        return next(csv.reader([row], delimiter=delimiter), [])
    except csv.Error:
        return []


def _is_number(field: str) -> bool:
    try:
        figure(field)
    except UnreadableError:
        return False
    return True


@contextlib.contextmanager
def _table(path: Path, head: bytes) -> Iterator[tuple[Any, Mapping[str, str]]]:
    """A connection with the view `data`, and its columns: name -> type. Raises DataError."""
    import duckdb  # noqa: PLC0415  (only readers of tables need it)

    place = re.sub(r"([*?\[])", r"[\1]", str(path))  # never a pattern
    with duckdb.connect(config={"preserve_insertion_order": True}) as connection:
        connection.execute("set enable_progress_bar = false")
        try:
            if head.startswith(_PARQUET):
                relation = connection.read_parquet(place)
            else:
                relation = _csv(connection, place, head, path)
            connection.register("data", relation)
            (rows,) = connection.execute("select count(*) from data").fetchone() or (0,)
            if rows > _MOST_ROWS:
                raise DataError(f"{rows:,} rows are too many", file=path, hint=f"give {_MOST_ROWS:,} at most")
            yield connection, dict(zip(relation.columns, map(str, relation.types), strict=True))
        except duckdb.Error as error:
            raise _refused(error, path) from error


def _csv(connection: Any, place: str, head: bytes, path: Path) -> Any:
    """Told everything, so that nothing is guessed: a guess would skip the rows that do not fit it."""
    delimiter = _delimiter(head) or ","
    first = head.decode("utf-8-sig", "replace").split("\n", 1)[0].rstrip("\r")
    header = _split(first, delimiter)
    if not header or len(set(header)) < len(header):
        raise DataError("no header with a name of its own for each column", file=path, where="line 1", hint="add one")
    return connection.read_csv(
        place,
        auto_detect=False,
        header=True,
        columns=dict.fromkeys(header, "VARCHAR"),
        sep=delimiter,
        quotechar='"',
        escapechar='"',
        null_padding=False,
    )


def _refused(error: Exception, path: Path) -> DataError:
    text = str(error)
    line = re.search(r"Line: (\d+)", text)
    fault = next((row for row in text.splitlines() if row.startswith("Expected Number")), text.splitlines()[0])
    return DataError(
        fault,
        file=path,
        where=f"line {line[1]}" if line else None,
        hint="every row needs as many fields as the header, with the same separator",
    )


def _series(connection: Any, names: Mapping[str, str], path: Path, ask: Ask) -> list[Series]:
    value = ask.value or _only_numeric(connection, names, path)
    for part in ("value", "arm_column", *_PARTS):
        column = value if part == "value" else getattr(ask, part)
        if column is not None and column not in names:
            option = part.replace("_", "-")
            raise DataError(f"no column {column!r} (--{option})", file=path, hint=f"columns: {', '.join(names)}")
    values = _numbers(connection, value, path)
    arm = ask.arm_column or ("arm" if "arm" in names and value != "arm" else None)
    parts: dict[str, Any] = {}
    for part in _PARTS:
        if (column := getattr(ask, part)) is not None:
            parts[part] = (
                _order(connection, column, names[column], path) if part == "order" else _coded(connection, column, path)
            )
    unit = ask.unit or _unit(value)
    better: Direction = "lower" if unit in {"s", "ms", "us", "ns"} else "neutral"
    metric = Metric(value, unit, ask.better or better, f"column {value}")
    if arm is None:
        return [Series(None, metric, values, str(path), **parts)]
    codes, labels = _arms(connection, arm, path)
    found = []
    for code, label in enumerate(labels):
        mine = codes == code
        own = {part: whole[mine] for part, whole in parts.items()}
        found.append(Series(label, metric, values[mine], str(path), own_arm=True, **own))
    return found


def _only_numeric(connection: Any, names: Mapping[str, str], path: Path) -> str:
    """The one column of numbers that is not a label by its name."""
    labels = {"arm", "block", "order", "session", "slot", "run", "pair"}
    numeric = []
    for name in names:
        total, number = connection.execute(
            f"select count({_quoted(name)}), count(try_cast({_quoted(name)} as double)) "  # noqa: S608  (quoted)
            "from (select * from data limit 1000)"
        ).fetchone()
        if total and total == number and name.lower() not in labels:
            numeric.append(name)
    if len(numeric) != 1:
        raise DataError(
            "which column holds the measurements?",
            file=path,
            hint=f"say it with --value; columns of numbers: {', '.join(numeric) or 'none'}",
        )
    return numeric[0]


def _numbers(connection: Any, name: str, path: Path) -> Numbers:
    """The column as float64, NaN where it is empty."""
    column = _quoted(name)
    found = connection.execute(f"select try_cast({column} as double) as v from data").fetchnumpy()["v"]  # noqa: S608
    missing = np.ma.getmaskarray(found).copy()
    values: Numbers = np.ascontiguousarray(np.ma.filled(found, np.nan), dtype=np.float64)
    wrong = missing | ~np.isfinite(values)
    if wrong.any():
        row = connection.execute(
            "select row, told from (select row_number() over () as row, "  # noqa: S608  (quoted)
            f"cast({column} as varchar) as told, try_cast({column} as double) as v from data) "
            "where told is not null and trim(told) <> '' and (v is null or not isfinite(v)) order by row limit 1"
        ).fetchone()
        if row is not None:
            raise DataError(
                f"{name} is {shown(row[1])}, not a number",
                file=path,
                where=f"row {row[0]} (line {row[0] + 1})",
                hint="leave the field empty where there is no value",
            )
    values[missing] = np.nan
    return values


def _order(connection: Any, name: str, kind: str, path: Path) -> Numbers:
    """Numbers, or times as seconds since the epoch."""
    if kind.startswith(("TIMESTAMP", "DATE")):
        column = f"epoch(cast({_quoted(name)} as timestamp))"
    elif kind == "VARCHAR":
        text = _quoted(name)
        column = f"coalesce(try_cast({text} as double), epoch(try_cast({text} as timestamp)))"
    else:
        column = f"cast({_quoted(name)} as double)"
    found = connection.execute(f"select {column} as v from data").fetchnumpy()["v"]  # noqa: S608  (quoted)
    order: Numbers = np.ma.filled(np.ma.asarray(found, dtype=np.float64), np.nan)
    if not np.isfinite(order).all():
        row = int(np.flatnonzero(~np.isfinite(order))[0]) + 1
        raise DataError(
            f"{name} is neither a number nor a time",
            file=path,
            where=f"row {row} (line {row + 1})",
            hint="--order needs a number or an ISO time in each row",
        )
    return order


def _arms(connection: Any, name: str, path: Path) -> tuple[Labels, list[str]]:
    """For each row the number of its arm, and the arms in the order of their first rows."""
    column = f"cast({_quoted(name)} as varchar)"
    labels = [
        row[0]
        for row in connection.execute(
            f"select arm from (select {column} as arm, row_number() over () as r from data) "  # noqa: S608  (quoted)
            "group by arm order by min(r)"
        ).fetchmany(1001)
    ]
    if any(label is None or not label.strip() for label in labels):
        raise DataError(f"{name} is empty in some rows", file=path, hint="name the arm in each row")
    if len(labels) > 1000:
        raise DataError(
            f"{name} has more than 1,000 values", file=path, hint="--arm-column is the one that names the arm"
        )
    listed = connection.execute(
        f"select list_position(?::varchar[], {column}) as k from data",  # noqa: S608  (quoted)
        [labels],
    ).fetchnumpy()["k"]
    return np.asarray(np.ma.getdata(listed), dtype=np.int64) - 1, labels


def _coded(connection: Any, name: str, path: Path) -> Labels:
    """A number for each label, the same for the same text in every file: whole numbers stand for themselves."""
    column = f"cast({_quoted(name)} as varchar)"
    found = connection.execute(f"select {column} as t, try_cast({column} as bigint) as k from data").fetchnumpy()  # noqa: S608
    texts, whole = found["t"], found["k"]
    empty = np.ma.getmaskarray(texts)
    if empty.any():
        row = int(np.flatnonzero(empty)[0]) + 1
        raise DataError(
            f"{name} needs a value in each row",
            file=path,
            where=f"row {row} (line {row + 1})",
            hint="fill in the column",
        )
    if not np.ma.getmaskarray(whole).any():
        return np.asarray(np.ma.getdata(whole), dtype=np.int64)
    known, place = np.unique(np.asarray(np.ma.getdata(texts), dtype=str), return_inverse=True)
    # Two hashes of 31 bits: labels of a file that clash are told apart by the check below.
    codes = np.array([(zlib.crc32(b"a" + t.encode()) << 31) ^ zlib.adler32(t.encode()) for t in known], dtype=np.int64)
    if len(set(codes.tolist())) < len(known):
        raise DataError(f"{name} has labels that cannot be told apart", file=path, hint="number them instead")
    return codes[place.reshape(-1)]


def _unit(name: str) -> str:
    """The unit that a column's name ends with: wall_s, latency_us, size_bytes."""
    end = name.rsplit("_", 1)[-1]
    return end if end in {"s", "ms", "us", "ns", "bytes"} else ""


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
