"""A run's attempts and verdicts for other programs, as Parquet, CSV or OpenMetrics.

Every format has the rows of `rows`, one for each attempt and metric, some ten thousand in memory at once. A value that
is not there is null (an empty field in CSV, no sample in OpenMetrics), with its reason in `absent`. The verdict of a
comparison stands in the rows of its arm's judged metric; every verdict, those of end points too, is in a second file
beside the first, but for OpenMetrics, whose one file has both.

OpenMetrics (github.com/prometheus/OpenMetrics, specification 1.0) has a family for each metric,
`hugewise_attempt_NAME`, of type gauge, and a sample for each attempt with the time at which it ended. Values are as
they were measured, so the unit is a label; UNIT is there where the name ends with it, as the format wants.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from hugewise.analysis import analysis
from hugewise.analysis.changes import known_metrics
from hugewise.errors import StorageError, UserError
from hugewise.files import drafted
from hugewise.model.metric import Metric
from hugewise.model.results import VERDICTS, CellResult, Comparison, Results
from hugewise.model.workload import OutputParser
from hugewise.report.data_files import field
from hugewise.report.reasons import values
from hugewise.report.write import held_folder
from hugewise.store.folder import RunFolder
from hugewise.store.records import Run
from hugewise.store.tables import have_attempts, have_blocks
from hugewise.visible import printable

if TYPE_CHECKING:
    import duckdb


_ROWS_AT_ONCE = 250  # attempts: some 10,000 rows
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
VERDICT_ROWS = "select * from verdicts order by all"
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
        "host": _as_text(results.host.get("name")),
        "kernel": _as_text(kernel.get("release")) if isinstance(kernel, Mapping) else None,
    }
    for first in range(0, max(len(run.attempts), 1), _ROWS_AT_ONCE):
        have_attempts(connection, run.attempts[first : first + _ROWS_AT_ONCE])
        connection.execute(_ROWS, about)
        (count,) = connection.execute("select count(*) from rows").fetchone() or (0,)
        yield int(count)


def _as_text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _insert(connection: duckdb.DuckDBPyConnection, table: str, several: Sequence[Sequence[Any]]) -> None:
    if several:
        holes = ", ".join("?" * len(several[0]))
        connection.executemany(f"insert into {table} values ({holes})", several)  # noqa: S608  (two fixed names)


def _units(cell: CellResult) -> Iterator[tuple[Any, ...]]:
    for metric in metrics_of(cell).values():
        yield cell.cell, cell.workload, metric.name, metric.unit, metric.better, metric.name == cell.metric.name


def metrics_of(cell: CellResult) -> dict[str, Metric]:
    """Return the metrics of the cell's workload, by name, with those of every attempt."""
    from hugewise.workloads import discover  # noqa: PLC0415  (loads every workload)

    found = dict(known_metrics(cell.workload))
    workload = discover().get(cell.workload)
    if isinstance(workload, OutputParser):
        with contextlib.suppress(ValueError):  # of a version that wrote them in another way
            found |= {metric.name: metric for metric in workload.named(cell.parameters)}
    for name in _EVERY:
        found.setdefault(name, Metric(name, "bytes" if name.endswith("_bytes") else "s", "neutral", ""))
    return found | {cell.metric.name: cell.metric}


def _verdicts(results: Results, cell: CellResult) -> Iterator[tuple[Any, ...]]:
    def row(one: Comparison, *, end_point: bool) -> tuple[Any, ...]:
        about = (results.study, results.run, results.state, cell.cell, cell.workload)
        said = values(one, tuple(_VERDICT)[len(about) + 3 :])
        metric = cell.metric_named(one.metric)
        return *about, metric.unit, metric.better, end_point, *said

    yield from (row(comparison, end_point=False) for comparison in (*cell.comparisons, *cell.declared))
    yield from (row(comparison, end_point=True) for comparison in cell.end_points)


_UNFIT = re.compile(r"[^a-zA-Z0-9_]")
_KNOWN_UNITS = ("bytes",)


class AttemptSample(NamedTuple):
    """A value of an attempt; `ended` is UTC epoch seconds."""

    run: str
    cell: str
    arm: str
    policy: str
    block: int
    number: int
    state: str
    metric: str
    unit: str | None
    value: float
    ended: float


def openmetrics_lines(
    results: Results,
    metrics: Iterable[str],
    help_: Mapping[str, str],
    samples: Callable[[Sequence[str]], Iterator[AttemptSample]],
) -> Iterator[str]:
    """Yield the text by lines. `samples` gives those of the metrics that share a family."""
    kernel = results.host.get("kernel")
    about = {
        "run": results.run,
        "study": results.study,
        "state": results.state,
        "host": str(results.host.get("name") or ""),
        "kernel": str(kernel.get("release") or "") if isinstance(kernel, Mapping) else "",
    }
    yield from _head("hugewise_run", "info", "the run that all of this is of")
    yield f"hugewise_run_info{_labels(about)} 1\n"
    yield from _verdict_samples(results)
    families: dict[str, list[str]] = {}
    for name in metrics:
        families.setdefault(f"hugewise_attempt_{_UNFIT.sub('_', name)}", []).append(name)
    for family, several in families.items():
        unit = next((unit for unit in _KNOWN_UNITS if family.endswith(f"_{unit}")), "")
        yield from _head(family, "gauge", help_.get(several[0], ""), unit)
        for one in samples(several):
            named = {name: getattr(one, name) for name in ("run", "cell", "arm", "policy", "block", "number", "state")}
            told = _labels({**named, "metric": one.metric, "unit": one.unit or ""})
            yield f"{family}{told} {one.value!r} {one.ended:.3f}\n"
    yield "# EOF\n"


def _verdict_samples(results: Results) -> Iterator[str]:
    found = [
        (
            _about(results, cell.cell, comparison.arm, comparison.baseline, comparison.metric, comparison.estimand),
            comparison,
        )
        for cell in results.cells
        for comparison in cell.judged
    ]
    yield from _head("hugewise_verdict", "stateset", "what the run says of an arm against its baseline")
    for about, one in found:
        for state in VERDICTS:
            yield f"hugewise_verdict{_labels(about | {'hugewise_verdict': state})} {int(one.verdict == state)}\n"
    for name, what in (("ratio", "arm over baseline"), ("low", "its interval's low end"), ("high", "its high end")):
        yield from _head(f"hugewise_effect_{name}", "gauge", what)
        for about, one in found:
            value = getattr(one, name)
            if value is not None:
                yield f"hugewise_effect_{name}{_labels(about)} {_number(value)}\n"


def _about(results: Results, *named: str) -> dict[str, str]:  # of one comparison
    return dict(zip(("run", "cell", "arm", "baseline", "metric", "estimand"), (results.run, *named), strict=True))


def _number(value: float) -> str:
    return "+Inf" if value == float("inf") else repr(float(value))


def _head(name: str, kind: str, help_: str, unit: str = "") -> Iterator[str]:
    yield f"# TYPE {name} {kind}\n"
    if unit:
        yield f"# UNIT {name} {unit}\n"
    if help_:
        yield f"# HELP {name} {_escaped(help_)}\n"


def _labels(values: Mapping[str, object]) -> str:
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())
    return f"{{{text}}}"


def _escaped(value: object) -> str:
    return printable(value).replace("\\", "\\\\").replace('"', '\\"')


_AT_ONCE = 5_000
_GROUP = 20_480  # rows that are in memory before they are written
_PIECES = 64  # files in memory, each with a number of its own, until they are made one


class Exported(NamedTuple):
    """Result of an export: rows of attempts, and the file with the verdicts, if any, with their number."""

    rows: int
    verdicts: Path | None = None
    comparisons: int = 0


class Source(NamedTuple):
    """Source of an export."""

    connection: duckdb.DuckDBPyConnection
    run: Run
    results: Results

    def rows(self) -> Iterator[int]:
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
    """Write by metric, as the format requires: each attempt's labels once, and every value beside it."""
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

    def samples(several: Sequence[str]) -> Iterator[AttemptSample]:
        found = connection.execute(
            "select place, metric, unit, value from told where list_contains($names, metric) and value is not null"
            " order by metric, place",
            {"names": list(several)},
        )
        while some := found.fetchmany(_AT_ONCE):
            for place, metric, unit, value in some:
                one = source.run.attempts[place]
                about = (one.run, one.cell, one.arm, one.policy, one.block, one.number, one.state)
                yield AttemptSample(*about, metric, unit, value, one.ended)

    for line in openmetrics_lines(results, names, {name: one.description for name, one in named.items()}, samples):
        file.write(line.encode())
    return count


def _verdicts_parquet(source: Source, file: BinaryIO) -> int:
    _copied(source, VERDICT_ROWS, file.fileno())
    (count,) = source.connection.execute("select count(*) from verdicts").fetchone() or (0,)
    return int(count)


def _verdicts_csv(source: Source, file: BinaryIO) -> int:
    return _written(source, VERDICT_ROWS, file, head=True)


FORMATS: Mapping[str, Callable[[Source, BinaryIO], int]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".prom": _openmetrics,
}
"""Writers of files, by ending."""
_VERDICTS: Mapping[str, Callable[[Source, BinaryIO], int]] = {".parquet": _verdicts_parquet, ".csv": _verdicts_csv}
