"""A run's attempts and metrics for other programs: a row for each attempt and metric, as Parquet, CSV or OpenMetrics.

One query makes the rows of all three, so that they say the same. A value that is not there is null (an empty field in
CSV, no sample in OpenMetrics), with its reason in `absent`. The verdict of a comparison stands in the rows of its
arm's judged metric.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from hugewise.analysis import analysis
from hugewise.analysis.changes import known_metrics
from hugewise.errors import StorageError, UserError
from hugewise.files import drafted
from hugewise.model.metric import Metric
from hugewise.model.results import CellResult, Comparison, Results
from hugewise.model.workload import Hearing
from hugewise.report import openmetrics
from hugewise.report.csv import field
from hugewise.report.write import held_folder
from hugewise.store.folder import RunFolder
from hugewise.store.tables import tables_of

if TYPE_CHECKING:
    import duckdb

__all__ = ["FORMATS", "export"]

_AT_ONCE = 5_000
_EVERY = ("wall_s", "cpu_s", "peak_bytes", "pool_bytes")
_ROWS = """
create table rows as
with observed as (
  select *, unnest(list_distinct(map_keys(metrics) || map_keys(absent) || ['wall_s', 'cpu_s', 'peak_bytes',
    'pool_bytes'])) as metric
  from (select row_number() over () as place, * exclude (knobs, series, facts, pressure, covariates) from attempts)
)
select $study as study, o.run, $state as run_state, $host as host, $kernel as kernel, o.cell, u.workload, o.arm,
  o.baseline, o.policy, o.mechanism, o.session, o.block, b.state as block_state, o."order", o.slot, o.number, o.state,
  o.reason, o.started, o.ended, o.delivery.delivered as delivered, o.delivery.share as delivered_share, o.metric,
  u.unit, u.better, coalesce(u.judged, false) as judged,
  case when map_contains(o.metrics, o.metric) then o.metrics[o.metric] when o.metric = 'wall_s' then o.wall_s
    when o.metric = 'cpu_s' then o.cpu_s when o.metric = 'peak_bytes' then o.peak_bytes
    when o.metric = 'pool_bytes' then o.pool_bytes end as value,
  o.absent[o.metric] as absent, v.verdict, v.ratio, v.low, v.high, v.confidence, o.place
from observed o
left join units u on u.cell = o.cell and u.metric = o.metric
left join verdicts v on v.cell = o.cell and v.arm = o.arm and v.metric = o.metric
left join blocks b on b.block = o.block
"""
_ORDERED = "select * exclude (place) from rows order by place, metric"


def export(run: Path, to: Path, *, force: bool = False) -> int:
    """Write the run in the folder `run` to the file `to`, whole or not at all; how many rows that are.

    The ending chooses the format: see `FORMATS`. Raises RunError, StorageError, and UserError where the file is there
    already (unless `force`), has another ending, or lies, for root, where another account could lead it elsewhere.
    """
    write = FORMATS.get(to.suffix)
    if write is None:
        known = ", ".join(FORMATS)
        raise UserError(f"--to {to}: not a format that is known", hint=f"end the name of the file in one of: {known}")
    if os.path.lexists(to) and not (force and to.is_file()):
        cure = "name another file, or have it replaced: --force" if to.is_file() else "name another file"
        raise UserError(f"--to {to}: it is there already", hint=cure)
    read = RunFolder(run).read()
    results = analysis.results_of(read)
    import duckdb  # noqa: PLC0415  (150 ms that only its users should pay)

    try:
        with tables_of(read) as connection, held_folder(to.absolute().parent, "the export") as held:
            count = _prepared(connection, results)
            its = held.status()
            owner = (its.st_uid, its.st_gid) if os.geteuid() == 0 and its.st_uid != 0 else None
            place = Path(f"/proc/self/fd/{held.fileno()}", to.name)
            with drafted(place, owner=owner, over=force) as file:
                write(connection, results, file)
    except FileExistsError:
        raise UserError(f"--to {to}: it is there already", hint="have it replaced: --force") from None
    except (OSError, duckdb.IOException) as error:
        why = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise StorageError(f"cannot write {to}: {why}", hint="free some space, or name another file") from None
    return count


def _prepared(connection: duckdb.DuckDBPyConnection, results: Results) -> int:
    """Have the table `rows`; how many there are."""
    connection.execute(
        "create table units (cell text, workload text, metric text, unit text, better text, judged bool)"
    )
    connection.execute(
        "create table verdicts (cell text, arm text, metric text, verdict text, ratio double, low double, high double,"
        " confidence double)"
    )
    _insert(connection, "units", [row for cell in results.cells for row in _units(cell)])
    _insert(connection, "verdicts", [_verdict(cell, one) for cell in results.cells for one in cell.comparisons])
    kernel = results.host.get("kernel")
    connection.execute(
        _ROWS,
        {
            "study": results.study,
            "state": results.state,
            "host": _text(results.host.get("name")),
            "kernel": _text(kernel.get("release")) if isinstance(kernel, Mapping) else None,
        },
    )
    (count,) = connection.execute("select count(*) from rows").fetchone() or (0,)
    return int(count)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Sequence[Any]]) -> None:
    if rows:
        holes = ", ".join("?" * len(rows[0]))
        connection.executemany(f"insert into {table} values ({holes})", rows)  # noqa: S608  (two fixed names)


def _units(cell: CellResult) -> Iterator[tuple[Any, ...]]:
    for metric in _metrics(cell).values():
        yield cell.cell, cell.workload, metric.name, metric.unit, metric.better, metric.name == cell.metric.name


def _metrics(cell: CellResult) -> dict[str, Metric]:
    from hugewise.workloads import discover  # noqa: PLC0415  (loads every workload)

    found = dict(known_metrics(cell.workload))
    workload = discover().get(cell.workload)
    if isinstance(workload, Hearing):
        with contextlib.suppress(ValueError):  # of a version that wrote them in another way
            found |= {metric.name: metric for metric in workload.named(cell.parameters)}
    for name in _EVERY:
        found.setdefault(name, Metric(name, "bytes" if name.endswith("_bytes") else "s", "neutral", ""))
    return found | {cell.metric.name: cell.metric}


def _verdict(cell: CellResult, one: Comparison) -> tuple[Any, ...]:
    return cell.cell, one.arm, one.metric, one.verdict, one.ratio, one.low, one.high, one.confidence


def _parquet(connection: duckdb.DuckDBPyConnection, results: Results, file: BinaryIO) -> None:
    del results
    connection.execute(
        f"copy ({_ORDERED}) to '/proc/self/fd/{file.fileno()}' (format parquet, compression zstd, use_tmp_file false)"
    )


def _csv(connection: duckdb.DuckDBPyConnection, results: Results, file: BinaryIO) -> None:
    del results
    found = connection.execute(_ORDERED)
    assert found.description is not None
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow([name for name, *_ in found.description])
    while some := found.fetchmany(_AT_ONCE):
        writer.writerows([value if type(value) is float else field(value) for value in row] for row in some)
    text.flush()
    text.detach()  # the file is closed by who opened it


def _openmetrics(connection: duckdb.DuckDBPyConnection, results: Results, file: BinaryIO) -> None:
    named = {name: metric for cell in results.cells for name, metric in _metrics(cell).items()}
    names = [name for (name,) in connection.execute("select distinct metric from rows order by metric").fetchall()]

    def samples(several: Sequence[str]) -> Iterator[openmetrics.AttemptSample]:
        found = connection.execute(
            "select run, cell, arm, policy, block, number, state, metric, unit, value, ended from rows"
            " where list_contains($names, metric) and value is not null order by metric, place",
            {"names": list(several)},
        )
        while some := found.fetchmany(_AT_ONCE):
            yield from (openmetrics.AttemptSample(*row) for row in some)

    for line in openmetrics.lines(results, names, {name: one.description for name, one in named.items()}, samples):
        file.write(line.encode())


FORMATS: Mapping[str, Callable[[duckdb.DuckDBPyConnection, Results, BinaryIO], None]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".prom": _openmetrics,
}
"""What writes a file, by its ending."""
