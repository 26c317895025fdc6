"""A run's attempts and metrics for other programs: a row for each attempt and metric, as Parquet, CSV or OpenMetrics.

The rows are those of `export_rows`, some thousand at a time, so that a large run takes no more memory than reading it.
A value that is not there is null (an empty field in CSV, no sample in OpenMetrics), with its reason in `absent`. The
verdict of a comparison stands in the rows of its arm's judged metric; all of them, end points too, are in a second file
beside the first, but for OpenMetrics, which has them in the same.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from hugewise.analysis import analysis
from hugewise.errors import StorageError, UserError
from hugewise.files import drafted
from hugewise.model.results import Results
from hugewise.report import openmetrics
from hugewise.report.csv import field
from hugewise.report.export_rows import ORDERED, VERDICTS, metrics_of, prepared, rows
from hugewise.report.write import held_folder
from hugewise.store.folder import RunFolder
from hugewise.store.records import Run

if TYPE_CHECKING:
    import duckdb

__all__ = ["FORMATS", "Exported", "export"]

_AT_ONCE = 5_000
_GROUP = 20_480  # rows that are in memory before they are written
_PIECES = 64  # files in memory, each with a number of its own, until they are made one


class Exported(NamedTuple):
    """What was written: rows of attempts, and the file with the verdicts, where there is one, with how many it has."""

    rows: int
    verdicts: Path | None = None
    comparisons: int = 0


class Source(NamedTuple):
    """What a format is written from."""

    connection: duckdb.DuckDBPyConnection
    run: Run
    results: Results

    def rows(self) -> Iterator[int]:
        """As `export_rows.rows`."""
        return rows(self.connection, self.run, self.results)


def export(run: Path, to: Path, *, force: bool = False) -> Exported:
    """Write the run in the folder `run` to the file `to`, whole or not at all, and its verdicts beside it.

    The ending chooses the format: see `FORMATS`. Raises RunError, StorageError, and UserError where a file is there
    already (unless `force`), has another ending, or lies, for root, where another account could lead it elsewhere.
    """
    write = FORMATS.get(to.suffix)
    if write is None:
        known = ", ".join(FORMATS)
        raise UserError(f"--to {to}: not a format that is known", hint=f"end the name of the file in one of: {known}")
    tell = _VERDICTS.get(to.suffix)
    beside = None if tell is None else to.with_name(f"{to.stem}.verdicts{to.suffix}")
    for path in filter(None, (to, beside)):
        if os.path.lexists(path) and not (force and path.is_file()):
            cure = "name another file, or have it replaced: --force" if path.is_file() else "name another file"
            raise UserError(f"--to {path}: it is there already", hint=cure)
    read = RunFolder(run).read()
    results = analysis.results_of(read)
    import duckdb  # noqa: PLC0415  (150 ms that only its users should pay)

    try:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(duckdb.connect())
            held = stack.enter_context(held_folder(to.absolute().parent, "the export"))
            source = Source(connection, read, results)
            prepared(connection, read, results)
            its = held.status()
            owner = (its.st_uid, its.st_gid) if os.geteuid() == 0 and its.st_uid != 0 else None

            def drafts(path: Path) -> BinaryIO:
                place = Path(f"/proc/self/fd/{held.fileno()}", path.name)
                return stack.enter_context(drafted(place, owner=owner, over=force))

            second = None if beside is None else drafts(beside)  # it is kept where the first was
            file = drafts(to)
            count = write(source, file)
            told = 0 if tell is None or second is None else tell(source, second)
    except FileExistsError:
        raise UserError(f"--to {to}: it is there already", hint="have it replaced: --force") from None
    except (OSError, duckdb.IOException) as error:
        why = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise StorageError(f"cannot write {to}: {why}", hint="free some space, or name another file") from None
    return Exported(count, beside, told)


def _parquet(source: Source, file: BinaryIO) -> int:
    """Pieces in memory, which are a hundredth of their rows, and one file of them."""
    count, pieces = 0, []
    try:
        for more in source.rows():
            count += more
            pieces.append(_copied(source, ORDERED, os.memfd_create("piece")))
            if len(pieces) == _PIECES:
                whole = _copied(source, _all_of(pieces), os.memfd_create("pieces"))
                _close(pieces)
                pieces = [whole]
        _copied(source, _all_of(pieces), file.fileno())
    finally:
        _close(pieces)
    return count


def _all_of(pieces: Sequence[int]) -> str:
    names = ", ".join(f"'/proc/self/fd/{piece}'" for piece in pieces)
    return f"select * from read_parquet([{names}])"  # noqa: S608  (numbers)


def _close(pieces: Sequence[int]) -> None:
    for piece in pieces:
        os.close(piece)


def _copied(source: Source, query: str, descriptor: int) -> int:
    """Write what the query yields as Parquet; the file's descriptor."""
    source.connection.execute(
        f"copy ({query}) to '/proc/self/fd/{descriptor}' (format parquet, compression zstd, use_tmp_file false,"
        f" row_group_size {_GROUP})"
    )
    return descriptor


def _csv(source: Source, file: BinaryIO) -> int:
    count = 0
    for place, more in enumerate(source.rows()):
        count += more
        _written(source, ORDERED, file, head=place == 0)
    return count


def _written(source: Source, query: str, file: BinaryIO, *, head: bool) -> int:
    """Write what the query yields as CSV, below its `head`; how many rows."""
    count = 0
    found = source.connection.execute(query)
    assert found.description is not None
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text)
    if head:
        writer.writerow([name for name, *_ in found.description])
    while some := found.fetchmany(_AT_ONCE):
        writer.writerows([value if type(value) is float else field(value) for value in row] for row in some)
        count += len(some)
    text.flush()
    text.detach()  # the file is closed by who opened it
    return count


def _openmetrics(source: Source, file: BinaryIO) -> int:
    """By metric, as the format wants it: of each attempt what the lines name, once, and every value beside it."""
    connection, results = source.connection, source.results
    count = first = 0
    connection.execute("create table told (place bigint, metric varchar, unit varchar, value double)")
    for more in source.rows():
        count += more
        connection.execute("insert into told select $first + place, metric, unit, value from rows", {"first": first})
        (attempts,) = connection.execute("select count(*) from attempts").fetchone() or (0,)
        first += int(attempts)
    named = {name: metric for cell in results.cells for name, metric in metrics_of(cell).items()}
    names = [name for (name,) in connection.execute("select distinct metric from told order by metric").fetchall()]

    def samples(several: Sequence[str]) -> Iterator[openmetrics.AttemptSample]:
        found = connection.execute(
            "select place, metric, unit, value from told where list_contains($names, metric) and value is not null"
            " order by metric, place",
            {"names": list(several)},
        )
        while some := found.fetchmany(_AT_ONCE):
            for place, metric, unit, value in some:
                one = source.run.attempts[place]
                about = (one.run, one.cell, one.arm, one.policy, one.block, one.number, one.state)
                yield openmetrics.AttemptSample(*about, metric, unit, value, one.ended)

    for line in openmetrics.lines(results, names, {name: one.description for name, one in named.items()}, samples):
        file.write(line.encode())
    return count


def _verdicts_parquet(source: Source, file: BinaryIO) -> int:
    _copied(source, VERDICTS, file.fileno())
    (count,) = source.connection.execute("select count(*) from verdicts").fetchone() or (0,)
    return int(count)


def _verdicts_csv(source: Source, file: BinaryIO) -> int:
    return _written(source, VERDICTS, file, head=True)


FORMATS: Mapping[str, Callable[[Source, BinaryIO], int]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".prom": _openmetrics,
}
"""What writes a file, by its ending."""
_VERDICTS: Mapping[str, Callable[[Source, BinaryIO], int]] = {".parquet": _verdicts_parquet, ".csv": _verdicts_csv}
