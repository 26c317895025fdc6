"""The rows of an export: an attempt and a metric each, made for some attempts at a time, and one for each verdict.

All formats take them from here, so that they say the same; some ten thousand rows are in memory at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hugewise.analysis.changes import known_metrics
from hugewise.model.metric import Metric
from hugewise.model.results import CellResult, Comparison, Results
from hugewise.model.workload import Hearing
from hugewise.store.records import Run
from hugewise.store.tables import have_attempts, have_blocks

if TYPE_CHECKING:
    import duckdb

__all__ = ["ORDERED", "VERDICTS", "metrics_of", "prepared", "rows"]

_AT_ONCE = 250  # attempts: some 10,000 rows
_EVERY = ("wall_s", "cpu_s", "peak_bytes", "pool_bytes")
_ROWS = """
create or replace table rows as
with observed as (
  select *, unnest(list_distinct(map_keys(metrics) || map_keys(absent) || ['wall_s', 'cpu_s', 'peak_bytes',
    'pool_bytes'])) as metric
  from (select rowid as place, * exclude (knobs, series, facts, pressure, covariates) from attempts)
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
left join verdicts v on v.cell = o.cell and v.arm = o.arm and v.metric = o.metric and not v.end_point
left join blocks b on b.block = o.block
"""
ORDERED = "select * exclude (place) from rows order by place, metric"
"""The rows of the attempts that are there."""
VERDICTS = "select * from verdicts order by all"
"""Every comparison and end point of the run, judged or not."""

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


def prepared(connection: duckdb.DuckDBPyConnection, run: Run, results: Results) -> None:
    """Have the tables that `rows` needs, and `verdicts`. Rows come in order, as what makes them has one thread."""
    connection.execute("set threads = 1")
    connection.execute(
        "create table units (cell text, workload text, metric text, unit text, better text, judged bool)"
    )
    columns = ", ".join(f"{name} {kind}" for name, kind in _VERDICT.items())
    connection.execute(f"create table verdicts ({columns})")
    _insert(connection, "units", [row for cell in results.cells for row in _units(cell)])
    _insert(connection, "verdicts", [row for cell in results.cells for row in _verdicts(results, cell)])
    have_blocks(connection, run)


def rows(connection: duckdb.DuckDBPyConnection, run: Run, results: Results) -> Iterator[int]:
    """Have the table `rows` of some attempts after others, in their order; how many rows it has each time."""
    kernel = results.host.get("kernel")
    about = {
        "study": results.study,
        "state": results.state,
        "host": _text(results.host.get("name")),
        "kernel": _text(kernel.get("release")) if isinstance(kernel, Mapping) else None,
    }
    for first in range(0, max(len(run.attempts), 1), _AT_ONCE):
        have_attempts(connection, run.attempts[first : first + _AT_ONCE])
        connection.execute(_ROWS, about)
        (count,) = connection.execute("select count(*) from rows").fetchone() or (0,)
        yield int(count)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _insert(connection: duckdb.DuckDBPyConnection, table: str, several: Sequence[Sequence[Any]]) -> None:
    if several:
        holes = ", ".join("?" * len(several[0]))
        connection.executemany(f"insert into {table} values ({holes})", several)  # noqa: S608  (two fixed names)


def _units(cell: CellResult) -> Iterator[tuple[Any, ...]]:
    for metric in metrics_of(cell).values():
        yield cell.cell, cell.workload, metric.name, metric.unit, metric.better, metric.name == cell.metric.name


def metrics_of(cell: CellResult) -> dict[str, Metric]:
    """What the cell's workload measures, by name, with what every attempt has."""
    from hugewise.workloads import discover  # noqa: PLC0415  (loads every workload)

    found = dict(known_metrics(cell.workload))
    workload = discover().get(cell.workload)
    if isinstance(workload, Hearing):
        with contextlib.suppress(ValueError):  # of a version that wrote them in another way
            found |= {metric.name: metric for metric in workload.named(cell.parameters)}
    for name in _EVERY:
        found.setdefault(name, Metric(name, "bytes" if name.endswith("_bytes") else "s", "neutral", ""))
    return found | {cell.metric.name: cell.metric}


def _verdicts(results: Results, cell: CellResult) -> Iterator[tuple[Any, ...]]:
    def row(one: Comparison, *, end_point: bool) -> tuple[Any, ...]:
        about = (results.study, results.run, results.state, cell.cell, cell.workload)
        said = tuple(getattr(one, name) for name in tuple(_VERDICT)[len(about) + 3 :])
        metric = cell.metric_named(one.metric)
        return *about, metric.unit, metric.better, end_point, *said

    yield from (row(one, end_point=False) for one in (*cell.comparisons, *cell.declared))
    yield from (row(one, end_point=True) for one in cell.end_points)
