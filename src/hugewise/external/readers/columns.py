"""CSV (comma, semicolon or tab) and Parquet files: one row for each measurement, its parts in named columns.

Read by DuckDB. Labels (arms, blocks, sessions, slots) are compared as text, so that `1` in one file is `1` in another.
"""

from __future__ import annotations

import contextlib
import csv
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hugewise.external.reader import Ask, DataError, Labels, Series, head_of, unit_and_direction
from hugewise.external.readers import google_benchmark
from hugewise.model.metric import Metric
from hugewise.reading import UnreadableError, figure, shown
from hugewise.stats.method import Numbers

NAME = "columns"

_PARQUET = b"PAR1"
_MOST_ROWS = 50_000_000
_ROWS, _FOR_A_BYTE = 100_000, 100  # that a file can have: some, and of each byte; a few bytes of Parquet tell billions
_MOST_TEXT = 256 << 20  # bytes of a column whose fields are as long as its longest: numpy has all of that length
_NO_FIELD = re.compile(r"\[|STRUCT|MAP|UNION|BLOB")
_ALONE = re.compile(r'"?[A-Za-z_][\w ()\[\]/.%-]*"?')
_COMMA = (
    "write numbers with a decimal point and without separators of thousands, as 1234.5: which of the two a comma is "
    "cannot be told (export in the locale C, or replace the commas)"
)
_DELIMITERS = ",;\t"
# A decimal comma, or separators of thousands: known for what it is, and refused.
_GROUPED = re.compile(r"[+-]?\d[\d., '\u2019\u00a0\u202f]*")
_OF_ARMS = {"policy", "variant", "config", "configuration", "setting", "treatment", "condition"}  # that name an arm
_KINDS = _OF_ARMS | {
    "name", "benchmark", "test", "case", "workload", "query", "operation", "op", "metric", "event", "counter",
    "statistic", "stat", "aggregate", "percentile", "quantile", "threads", "clients", "connections",
    "concurrency", "success", "ok", "passed", "failed", "error", "exitcode", "exitstatus", "returncode", "retcode",
    "rc", "responsecode", "status", "phase", "stage", "metricname", "benchmarkname", "testname",
}  # fmt: skip
_UNITS = {"unit", "units", "timeunit"}
_TOTALS = re.compile(
    r"(n_|num_)?(iter(ation)?s?|loops|rep(eat|etition)?s|n|op(eration)?s|count)(_?count)?", re.IGNORECASE
)
_AGGREGATES = (
    "mean",
    "average",
    "avg",
    "median",
    "stddev",
    "stdev",
    "std",
    "geomean",
    "total",
    "overall",
    "aggregated",
)
_CHANGES = re.compile(r"delta|diff|change|gain|offset|skew|drift|saved|error", re.IGNORECASE)
_PARTS = ("block", "order", "session", "slot", "run")


def recognises(head: bytes) -> bool:
    """Parquet's magic, or a header of names above rows of as many fields with a number among them."""
    if google_benchmark.recognises(head):
        return False
    return head.startswith(_PARQUET) or _delimiter(head) is not None


def read(path: Path, ask: Ask) -> list[Series]:
    """Return one series for each arm of the file, in the order of its rows."""
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
        numbers = sum(map(_is_number, first))
        if len(first) == len(header) and numbers:
            return delimiter
        if delimiter == "," and len(first) > len(header) and numbers > 1:  # a decimal comma makes two fields
            return delimiter
    name, number = (row.strip() for row in rows)
    return "," if _ALONE.fullmatch(name) is not None and _is_number(number) else None


def _split(row: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([row], delimiter=delimiter), [])
    except csv.Error:
        return []


def _is_number(field: str) -> bool:
    try:
        figure(field)
    except UnreadableError:
        return _GROUPED.fullmatch(field.strip()) is not None
    return True


@contextlib.contextmanager
def _table(path: Path, head: bytes) -> Iterator[tuple[Any, Mapping[str, str]]]:
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
            most = min(_MOST_ROWS, _ROWS + _FOR_A_BYTE * path.stat().st_size)
            if rows > most:
                raise DataError(f"{rows:,} rows are too many", file=path, hint=f"give {most:,} at most")
            yield connection, dict(zip(relation.columns, map(str, relation.types), strict=True))
        except duckdb.Error as error:
            raise _refused(error, path) from error


def _csv(connection: Any, place: str, head: bytes, path: Path) -> Any:
    # every option is given: a guess would skip the rows that do not fit it
    delimiter = _delimiter(head) or ","
    first = head.decode("utf-8-sig", "replace").split("\n", 1)[0].rstrip("\r")
    header = [name.strip() for name in _split(first, delimiter)]
    if not header or len(set(header)) < len(header) or any(map(_is_number, header)):
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
        hint="every row needs as many fields as the header, with the same separator; a decimal comma is one too",
    )


def _series(connection: Any, names: Mapping[str, str], path: Path, ask: Ask) -> list[Series]:
    value = ask.value or _only_numeric(connection, names, path)
    for part in ("value", "arm_column", *_PARTS):
        column = value if part == "value" else getattr(ask, part)
        if column is not None and column not in names:
            option = part.replace("_", "-")
            raise DataError(f"no column {column!r} (--{option})", file=path, hint=f"columns: {', '.join(names)}")
    named = [getattr(ask, part) for part in _PARTS] + [ask.arm_column or ("arm" if "arm" in names else None)]
    _limited(connection, names, [value, *filter(None, named)], path)
    values = _numbers(connection, value, path)
    arm = ask.arm_column or ("arm" if "arm" in names and value != "arm" else None)
    parts: dict[str, Any] = {}
    for part in _PARTS:
        if (column := getattr(ask, part)) is not None:
            parts[part] = (
                _order(connection, column, names[column], path) if part == "order" else _coded(connection, column, path)
            )
    used = {value, arm, *(getattr(ask, part) for part in _PARTS)}
    kinds = _UNITS if ask.block is not None else _KINDS | _UNITS  # pairs of one query differ in nothing else
    settings = _one_kind(connection, [name for name in names if name not in used and _plain(name) in kinds], path)
    _no_totals(connection, value, [name for name in names if name not in used], path)
    settings = {name: kind for name, kind in settings.items() if _plain(name) not in _OF_ARMS}
    _no_aggregates(connection, [name for name in names if name not in (value, ask.order)], used - {arm}, arm, path)
    unit, better = unit_and_direction(ask.unit or value)
    if better != "neutral" and not _CHANGES.search(value) and (values < 0).any():
        row = int(np.flatnonzero(values < 0)[0]) + 1
        raise DataError(
            f"{shown(value)} is {values[row - 1]:g}, which no time or rate can be",
            file=path,
            where=f"row {row} (line {row + 1})",
            hint="leave the field empty where a run has no value, such as one that failed",
        )
    metric = Metric(value, ask.unit or unit, ask.better or better, f"column {value}")
    if arm is None:
        return [Series(None, metric, values, str(path), settings=settings, **parts)]
    codes, labels = _arms(connection, arm, path)
    series = []
    for code, label in enumerate(labels):
        mine = codes == code
        own = {part: whole[mine] for part, whole in parts.items()}
        series.append(Series(label, metric, values[mine], str(path), own_arm=True, settings=settings, **own))
    return series


def _limited(connection: Any, names: Mapping[str, str], columns: Sequence[str], path: Path) -> None:
    for name in columns:
        if _NO_FIELD.search(names[name]):
            raise DataError(
                f"{name} is of {shown(names[name])}, not of numbers or texts", file=path, hint="name another"
            )
        if names[name] == "VARCHAR":
            query = f"select count(*), max(strlen({_quoted(name)})) from data"  # noqa: S608  (quoted)
            rows, longest = connection.execute(query).fetchone()
            if rows * (longest or 0) > _MOST_TEXT:
                said = f"{name} has a field of {longest:,} bytes, too long for {rows:,} rows"
                raise DataError(said, file=path, hint="shorten its texts")


def _only_numeric(connection: Any, names: Mapping[str, str], path: Path) -> str:
    labels = {"arm", "block", "order", "session", "slot", "run", "pair"}
    numeric = []
    for name in names:
        rows = connection.execute(
            f"select cast({_quoted(name)} as varchar) from data where {_quoted(name)} is not null limit 1000"  # noqa: S608
        ).fetchall()
        if rows and name.lower() not in labels and all(_is_number(row[0]) for row in rows):
            numeric.append(name)
    if len(numeric) != 1:
        raise DataError(
            "which column holds the measurements?",
            file=path,
            hint=f"say it with --value; columns of numbers: {', '.join(numeric) or 'none'}",
        )
    return numeric[0]


def _plain(name: str) -> str:
    return re.sub(r"[ _.-]", "", name.lower())


def _one_kind(connection: Any, names: list[str], path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        kinds = [
            str(row[0])
            for row in connection.execute(
                f"select distinct {_quoted(name)} as k from data where {_quoted(name)} is not null order by k limit 3"  # noqa: S608
            ).fetchall()
        ]
        if len(kinds) > 1:
            listed = ", ".join(shown(kind) for kind in kinds)
            raise DataError(
                f"the rows are of different kinds: {name} is {listed}{'' if len(kinds) < 3 else ', ...'}",
                file=path,
                where="line 1",
                hint="write all rows in one unit"
                if _plain(name) in _UNITS
                else f"give a file with one {name}, compare them (--arm-column {name}) or pair by it (--block {name})",
            )
        found |= {name.lower(): kind for kind in kinds}
    return found


def _no_aggregates(
    connection: Any, names: list[str], labels: Collection[str | None], arm: str | None, path: Path
) -> None:
    for name in names:
        row = connection.execute(
            "select row, told from (select row, told, count(*) over (partition by told) as alike "  # noqa: S608  (quoted)
            "from (select row_number() over () as row, "
            f"lower(trim(cast({_quoted(name)} as varchar))) as told from data)) "
            "where (told in ? or (? and regexp_full_match(told, 'p[0-9]{2}([.][0-9]+)?'))) and (alike = 1 or ?) "
            "order by row limit 1",
            [list(_AGGREGATES), name not in labels, name != arm],
        ).fetchone()
        if row is not None:
            raise DataError(
                f"{name} is {shown(row[1])}: a row that sums up others is no run",
                file=path,
                where=f"row {row[0]} (line {row[0] + 1})",
                hint="delete such rows in a copy of the file; where it is a name, write another",
            )


def _no_totals(connection: Any, value: str, names: list[str], path: Path) -> None:
    for name in names:
        if not _TOTALS.fullmatch(name):
            continue
        v, k = (f"try_cast({_quoted(column)} as double)" for column in (value, name))
        rows, least, most, slope, r2 = connection.execute(
            f"select count(*), min(k), max(k), regr_slope(ln(v), ln(k)), regr_r2(ln(v), ln(k)) "  # noqa: S608  (quoted)
            f"from (select {v} as v, {k} as k from data) where v > 0 and k > 0"
        ).fetchone()
        if rows > 2 and most >= 2 * least and None not in (slope, r2) and abs(slope - 1) < 0.2 and r2 > 0.9:
            raise DataError(
                f"{shown(value)} grows as {name} does: it is a total over a number of iterations that differs",
                file=path,
                where="line 1",
                hint=f"divide {value} by {name} in each row",
            )


def _numbers(connection: Any, name: str, path: Path) -> Numbers:
    column = _quoted(name)
    rows = connection.execute(f"select try_cast({column} as double) as v from data").fetchnumpy()["v"]  # noqa: S608
    missing = np.ma.getmaskarray(rows).copy()
    values: Numbers = np.ascontiguousarray(np.ma.filled(rows, np.nan), dtype=np.float64)
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
                hint=_COMMA
                if _GROUPED.fullmatch(str(row[1]).strip())
                else "write a number alone, its unit in the column's name; leave the field empty without a value",
            )
    values[missing] = np.nan
    _no_thousands(connection, name, path)
    return values


def _no_thousands(connection: Any, name: str, path: Path) -> None:
    head = head_of(path)
    if head.startswith(_PARQUET) or _delimiter(head) != ";":
        return
    row = connection.execute(
        "with texts as (select row_number() over () as row, trim(v) as v from "  # noqa: S608  (quoted)
        f"(select cast({_quoted(name)} as varchar) as v from data)), "
        "kinds as (select row, v, cast(v as double) as f, "
        "regexp_full_match(v, '[1-9][0-9]{0,2}[.][0-9]{3}') as grouped, "
        "regexp_full_match(v, '[0-9]{1,3}') as plain from texts where v <> '') "
        "select min(row) filter (grouped), min(v) filter (grouped) from kinds "
        "having bool_and(grouped or plain) and min(f) filter (plain) > max(f) filter (grouped)"
    ).fetchone()
    if row is not None:
        raise DataError(
            f"{name} has numbers like {shown(row[1])} beside larger ones without a point: a point between thousands?",
            file=path,
            where=f"row {row[0]} (line {row[0] + 1})",
            hint=_COMMA.replace("a comma", "a point").replace("the commas", "the points"),
        )


def _order(connection: Any, name: str, kind: str, path: Path) -> Numbers:
    if kind.startswith(("TIMESTAMP", "DATE")):
        column = f"epoch(cast({_quoted(name)} as timestamp))"
    elif kind == "VARCHAR":
        text = _quoted(name)
        column = f"coalesce(try_cast({text} as double), epoch(try_cast({text} as timestamp)))"
    else:
        column = f"cast({_quoted(name)} as double)"
    rows = connection.execute(f"select {column} as v from data").fetchnumpy()["v"]  # noqa: S608  (quoted)
    order: Numbers = np.ma.filled(np.ma.asarray(rows, dtype=np.float64), np.nan)
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
    column = f"trim(cast({_quoted(name)} as varchar))"
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
    column = f"cast({_quoted(name)} as varchar)"
    rows = connection.execute(f"select {column} as t, try_cast({column} as bigint) as k from data").fetchnumpy()  # noqa: S608
    texts, whole = rows["t"], rows["k"]
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


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
