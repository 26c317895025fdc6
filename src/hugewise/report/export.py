"""A run's attempts and verdicts for other programs, as Parquet.

One row for each attempt and metric. A value that is not there is null, with its reason in `absent`. The verdict of a
comparison stands in the rows of its arm's judged metric; every verdict, those of end points too, is in a second file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hugewise.analysis import analysis
from hugewise.analysis.changes import known_metrics
from hugewise.errors import StorageError, UserError
from hugewise.files import drafted
from hugewise.model.metric import Metric
from hugewise.model.results import CellResult, Comparison, Results
from hugewise.model.workload import OutputParser
from hugewise.report.reasons import values
from hugewise.report.write import held_folder
from hugewise.store import tables
from hugewise.store.folder import RunFolder
from hugewise.store.records import Run
from hugewise.store.tables import have_attempts, have_blocks

if TYPE_CHECKING:
    import duckdb


_ROWS_AT_ONCE = 250  # attempts: some 10,000 rows, that memory does not hold all of them twice

_VERDICT = {
    "study": "varchar",
    "run": "varchar",
    "run_state": "varchar",
    "cell": "varchar",
    "workload": "varchar",
    "unit": "varchar",
    "better": "varchar",
    "end_point": "boolean",
    **dict.fromkeys(("arm", "baseline", "metric", "estimand", "method", "verdict"), "varchar"),
    **dict.fromkeys(("n", "planned"), "integer"),
    "final": "boolean",
    **dict.fromkeys(("ratio", "low", "high", "confidence", "alpha", "p", "change", "corrected"), "double"),
    **dict.fromkeys(("judged", "reach", "reason"), "varchar"),
}


def rows_of(connection: duckdb.DuckDBPyConnection, run: Run, results: Results) -> None:
    """Make the tables `rows`, in the order of the attempts, and `verdicts`."""
    connection.execute("set threads = 1")  # which keeps the order
    connection.execute(
        "create table units (cell text, workload text, metric text, unit text, better text, judged bool)"
    )
    columns = ", ".join(f"{name} {kind}" for name, kind in _VERDICT.items())
    connection.execute(f"create table verdicts ({columns})")
    _insert(connection, "units", [row for cell in results.cells for row in _units(cell)])
    _insert(connection, "verdicts", [row for cell in results.cells for row in _verdicts(results, cell)])
    have_blocks(connection, run)
    kernel = results.host.get("kernel")
    about = {
        "study": results.study,
        "state": results.state,
        "host": _as_text(results.host.get("name")),
        "kernel": _as_text(kernel.get("release")) if isinstance(kernel, Mapping) else None,
    }
    rows = resources.files(__package__).joinpath("rows.sql").read_text(encoding="utf-8")
    for first in range(0, max(len(run.attempts), 1), _ROWS_AT_ONCE):
        have_attempts(connection, run.attempts[first : first + _ROWS_AT_ONCE])
        connection.execute(f"{'insert into rows' if first else 'create table rows as'} {rows}", about)


def _as_text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _insert(connection: duckdb.DuckDBPyConnection, table: str, several: Sequence[Sequence[Any]]) -> None:
    if several:
        holes = ", ".join("?" * len(several[0]))
        connection.executemany(f"insert into {table} values ({holes})", several)  # noqa: S608  (two fixed names)


def _units(cell: CellResult) -> Iterator[tuple[Any, ...]]:
    for metric in _metrics_of(cell).values():
        yield cell.cell, cell.workload, metric.name, metric.unit, metric.better, metric.name == cell.metric.name


def _metrics_of(cell: CellResult) -> dict[str, Metric]:
    from hugewise.workloads import discover  # noqa: PLC0415  (loads every workload)

    metrics = dict(known_metrics(cell.workload))
    workload = discover().get(cell.workload)
    if isinstance(workload, OutputParser):
        with contextlib.suppress(ValueError):  # of a version that wrote them in another way
            metrics |= {metric.name: metric for metric in workload.named(cell.parameters)}
    for name in ("wall_s", "cpu_s", "peak_bytes", "pool_bytes"):
        metrics.setdefault(name, Metric(name, "bytes" if name.endswith("_bytes") else "s", "neutral", ""))
    return metrics | {cell.metric.name: cell.metric}


def _verdicts(results: Results, cell: CellResult) -> Iterator[tuple[Any, ...]]:
    def row(comparison: Comparison, *, end_point: bool) -> tuple[Any, ...]:
        about = (results.study, results.run, results.state, cell.cell, cell.workload)
        metric = cell.metric_named(comparison.metric)
        return *about, metric.unit, metric.better, end_point, *values(comparison, tuple(_VERDICT)[len(about) + 3 :])

    yield from (row(comparison, end_point=False) for comparison in (*cell.comparisons, *cell.declared))
    yield from (row(comparison, end_point=True) for comparison in cell.end_points)


class Exported(NamedTuple):
    """Result of an export: rows of attempts, the file with the verdicts, and their number."""

    rows: int
    verdicts: Path
    comparisons: int


def export(run: Path, to: Path, *, force: bool = False) -> Exported:
    """Write the run in the folder `run` to the Parquet file `to`, whole or not at all, and its verdicts beside it.

    Raises RunError, StorageError, and UserError where a file is there already (unless `force`), has another ending, or
    lies, for root, where another account could lead it elsewhere.
    """
    if to.suffix != ".parquet":
        raise UserError(f"--to {to}: not a format that is known", hint="end the name of the file in .parquet")
    beside = to.with_name(f"{to.stem}.verdicts.parquet")
    for path in (to, beside):
        if os.path.lexists(path) and not (force and path.is_file()):
            cure = "name another file, or have it replaced: --force" if path.is_file() else "name another file"
            raise UserError(f"--to {path}: it is there already", hint=cure)
    read = RunFolder(run).read()
    results = analysis.results_of(read)
    import duckdb  # noqa: PLC0415  (150 ms that only its users should pay)

    try:
        with tables.connected() as connection, held_folder(to.absolute().parent, "the export") as held:
            rows_of(connection, read, results)
            its = held.status()
            owner = (its.st_uid, its.st_gid) if os.geteuid() == 0 and its.st_uid != 0 else None
            below = Path(f"/proc/self/fd/{held.fileno()}")
            with (
                drafted(below / beside.name, owner=owner, over=force) as second,  # it is kept where the first was
                drafted(below / to.name, owner=owner, over=force) as first,
            ):
                count = _written(connection, "select * exclude (place) from rows", first.fileno())
                told = _written(connection, "select * from verdicts order by all", second.fileno())
    except FileExistsError:
        raise UserError(f"--to {to}: it is there already", hint="have it replaced: --force") from None
    except duckdb.OutOfMemoryException:
        raise StorageError(f"cannot write {to}: memory is short", hint="export on a host with more memory") from None
    except (OSError, duckdb.IOException) as error:
        why = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise StorageError(f"cannot write {to}: {why}", hint="free some space, or name another file") from None
    return Exported(count, beside, told)


def _written(connection: duckdb.DuckDBPyConnection, query: str, descriptor: int) -> int:
    options = "format parquet, compression zstd, use_tmp_file false"
    told = connection.execute(f"copy ({query}) to '/proc/self/fd/{descriptor}' ({options})").fetchone()
    return int(told[0]) if told else 0
