"""MariaDB under sysbench, reading only: OLTP transactions, look-ups by key, or ranges, from a hot buffer pool.

The tables are made once by sysbench, from a fixed seed. Every page of every index is read before the measured part.

Where attempts take turns, a Lua script before the test logs every transaction, since sysbench's own report cannot tell
parts of a run apart. Ends and times are kept in memory and written at the end, one file a thread in pgbench's form
(`_outputs`). The script ends the test when a file is there.

Sources: sysbench 1.0, oltp_common.lua and src/lua (`event`, which ends its thread by anything but nil or false,
`thread_done`, `sysbench.tid`); LuaJIT, ffi; the published read-only runs (LPC 2024), without sizes or a version.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from importlib import resources

from hugewise.model.metric import Metric
from hugewise.model.policy import Treatment
from hugewise.model.procedure import (
    Act,
    Data,
    Outputs,
    Places,
    Procedure,
    Reading,
    RemoteEndpoint,
    Step,
    Window,
    Write,
    counted,
)
from hugewise.model.workload import Configuration, Launch, Missing, Parameter
from hugewise.workloads import _mariadb, _outputs
from hugewise.workloads._outputs import QUANTILES, UNTIMED, OltpRun, measured
from hugewise.workloads._staged import PartedWorkload, Values, float_value, integer

LOGS = re.compile(r"transactions\.\d+")

_NAME, _ENOUGH = "logged.lua", "enough"


def script_text() -> Write:
    """Return the script, to be written below the data."""
    return Write(_NAME, resources.files(__package__).joinpath(_NAME).read_text(encoding="utf-8"))


def script_path(places: Places) -> str:
    """Return the path of the script that sysbench runs in place of a test."""
    return f"{places.data}/{_NAME}"


def script_environment(test: str, places: Places) -> dict[str, str]:
    """Return the script's environment: the test that it stands for, the path of its logs, and the file that ends it."""
    return {
        "HUGEWISE_TEST": test,
        "HUGEWISE_LOG": f"{places.run}/transactions",
        "HUGEWISE_ENOUGH": f"{places.data}/{_ENOUGH}",
    }


_DATABASE = "sbtest"
_TESTS = {
    "read-only": ("oltp_read_only",),
    "point-select": ("oltp_point_select",),
    "range": ("oltp_read_only", "--point_selects=0"),
}

# Measured with MariaDB 10.11: 306,184,192 bytes for 1.25 million rows with their secondary index; the redo log, the
# undo log of making them, and the system tables take 180 MB.
_BYTES_PER_ROW = 245
_BYTES_OF_EMPTY = 180_000_000

_SATURATED = "the client was saturated: sysbench used all of its CPU time"
_WARMING_S = 2  # seconds of the queries, after all pages have been read
_LEAD_S = 1.0  # in turns: the clients connect and prepare their statements
_TAIL_S = 5.0  # in turns: the pages are proven. Measured: 0.027 s for each GiB of base pages
_LEAST_READS = 0.001  # pages from storage for each transaction, above which the pool was not hot
# Memory beside the buffer pool: 25 to 45 MiB seen with 4 connections.
_BYTES_BESIDE = 64 << 20


def data_bytes(values: Values) -> int:
    """About how large the tables with their indexes are."""
    return integer(values, "tables") * integer(values, "table_size") * _BYTES_PER_ROW


class MysqlReadOnly(PartedWorkload):
    """A server of its own for every attempt, on a unix socket; the policy is about its buffer pool."""

    name = "mysql-ro"
    description = "MariaDB under sysbench, reading only: transactions, look-ups by key, or ranges"
    clients = True
    client_programs = ("sysbench",)
    programs = (("sysbench", "sysbench"),)
    choices = (("test", _TESTS),)
    least = (("tables", 1), ("table_size", 1), ("threads", 1), ("seed", 1), ("duration", 1))
    parameters = (
        Parameter("test", "text", "read-only", "read-only (10 look-ups and 4 ranges), point-select or range"),
        Parameter("tables", "integer", 4, "tables"),
        Parameter("table_size", "integer", 1_250_000, "rows of each, about 245 bytes with their index"),
        Parameter("buffer_pool", "size", "1536m", "the server's buffer pool, which the policy is about"),
        Parameter("threads", "integer", 4, "connections of the client"),
        Parameter("duration", "duration", "10s", "length of the measured part"),
        Parameter("seed", "integer", 1, "of the rows and of the queries"),
        Parameter(
            "keep_thp", "flag", False, "keep the server from switching THP off for itself, as it does by default"
        ),
        Parameter("mariadb", "text", "", "the folder of mariadbd (default: PATH and the usual folders)"),
    )
    metrics = (
        Metric("tps", "transactions/s", "higher", "transactions a second"),
        Metric("qps", "queries/s", "higher", "queries a second"),
        Metric("latency_avg_ms", "ms", "lower", "mean time of a transaction"),
        Metric("latency_p95_ms", "ms", "lower", "95th percentile of the time of a transaction"),
        Metric("server_cpu_us", "us", "lower", "CPU time of the server for each transaction, user and system"),
    )
    delivered_share = 0.9

    def refuses(self, treatment: Treatment, values: Values) -> str | None:
        if (reason := super().refuses(treatment, values)) is not None:
            return reason
        if integer(values, "buffer_pool") < 64 << 20:
            return "buffer_pool must be at least 64m"
        return _mariadb.advice_refused(treatment)

    def turns_refused(self, values: Values) -> str | None:
        """Nothing is against it: the data do not change."""
        return None

    def stand_ins(self, values: Values) -> tuple[str, ...]:
        return ("MariaDB in place of MySQL",)

    def missing(self, values: Values) -> tuple[Missing, ...]:
        return (*_mariadb.missing(str(values["mariadb"])), *super().missing(values))

    def memory(self, treatment: Treatment, values: Values) -> int:
        """Return the part of the buffer pool that the data fill (all of it, from a pool of pages), and the rest."""
        filled = min(integer(values, "buffer_pool"), data_bytes(values))
        return max(filled, self.pool(treatment, values)) + _BYTES_BESIDE

    def pooled(self, treatment: Treatment, values: Values) -> int:
        return _mariadb.pool(treatment, integer(values, "buffer_pool"))

    def configuration(self, treatment: Treatment, values: Values) -> Configuration:
        return _mariadb.configuration(treatment)

    def data(self, values: Values) -> Data:
        installation = _mariadb.installed(str(values["mariadb"]))

        def recipe(places: Places) -> Iterable[Act]:
            yield from _mariadb.install(installation, places, f"CREATE DATABASE {_DATABASE}")
            yield _mariadb.server(installation, places, None, integer(values, "buffer_pool"))
            yield Step(name="prepare", argv=_sysbench(places, values, "prepare"), timeout=86_400)
            tables = ", ".join(f"{_DATABASE}.{table}" for table in _tables(values))
            yield _mariadb.sql(installation, places, "analyze", f"ANALYZE TABLE {tables}", timeout=86_400)

        key: dict[str, str | int | float | bool] = {
            **{name: integer(values, name) for name in ("tables", "table_size", "seed")},
            "mariadb": installation.version,
            "made": 1,
        }
        return Data(name="mysql-ro", key=key, recipe=recipe, bytes=data_bytes(values) + _BYTES_OF_EMPTY)

    def procedure(self, treatment: Treatment, values: Values, places: Places) -> Procedure:
        installation = _mariadb.installed(str(values["mariadb"]))
        size, keep = integer(values, "buffer_pool"), values["keep_thp"] is True
        window, timed = _timed(places, values)
        return Procedure(
            before=(*(() if window is None else (script_text(),)), *_guards(places.far)),
            servers=(_mariadb.server(installation, places, treatment, size, keep=keep),),
            warm=(
                _mariadb.warmed(installation, places, _DATABASE, _tables(values)),
                Step(name="warm-queries", argv=_sysbench(places, values, "run", f"--time={_WARMING_S}"), far=True),
                Step(name="cpus", argv=("nproc",), far=True),
                _mariadb.status(installation, places, "begun"),
            ),
            timed=timed,
            window=window,
            enough=None if window is None else Write(_ENOUGH, ""),
            after=(_mariadb.status(installation, places, "ended"),),
        )

    def read(self, outputs: Outputs, values: Values) -> Reading:
        run = _outputs.read(outputs.stdout())
        done = _logged(outputs, run, integer(values, "threads")) if _outputs.in_turns(outputs) else _whole(outputs, run)
        metrics = dict(done.metrics)
        absent = dict(done.absent)
        if outputs.sut.cpu_s is None:
            absent["server_cpu_us"] = "the server's CPU time was not counted"
        wrong = run.errors + run.reconnects
        problem = f"{run.errors} errors and {run.reconnects} new connections in the measured part" if wrong else None
        problem = problem or done.problem
        if not run.transactions:
            problem = "no transaction was made"
        reads = _mariadb.read_from_storage(outputs.stdout("begun"), outputs.stdout("ended"))
        held = _mariadb.counters(outputs.stdout("ended"))["Innodb_buffer_pool_bytes_data"]
        marks = []
        if reads > _LEAST_READS * run.transactions:
            marks.append(f"{reads} pages were read from storage in the measured part: the buffer pool is too small")
        if _outputs.saturated(outputs, min(_outputs.processors(outputs), integer(values, "threads"))):
            marks.append(_SATURATED)
        return Reading(
            metrics=metrics,
            absent=absent,
            series=done.series,
            facts={
                "mariadb": _mariadb.installed(str(values["mariadb"])).version,
                **done.facts,
                "buffer_pool_bytes_data": held,
                "pages_read_from_storage": reads,
            },
            problem=problem,
            marks=tuple(marks),
            of_time=(_SATURATED,),
        )


def _timed(places: Places, values: Values) -> tuple[Window | None, Launch]:
    # in turns sysbench runs with a log of every transaction, until all arms have had their turns
    duration = float_value(values, "duration")
    if not places.idle:
        options = (f"--time={math.ceil(duration)}", "--report-interval=1")
        return None, Launch(argv=_sysbench(places, values, "run", *options), proof="live")
    seconds = math.ceil(_LEAD_S + duration + _TAIL_S + places.idle)
    test, argv = _TESTS[str(values["test"])][0], _sysbench(places, values, "run", f"--time={seconds}")
    logged = (argv[0], script_path(places), *argv[2:])
    environment = script_environment(test, places)
    return Window(_LEAD_S, duration), Launch(argv=logged, proof="live", environment=environment)


def _whole(outputs: Outputs, run: OltpRun) -> Reading:
    return Reading(
        metrics={
            "tps": run.transactions / run.time_s,
            "qps": run.queries / run.time_s,
            "latency_avg_ms": run.average_ms,
            "latency_p95_ms": run.quantile_ms,
            "server_cpu_us": _outputs.cpu_us(outputs, run.transactions),
        },
        series=run.series,
        facts={"transactions": run.transactions},
    )


def _logged(outputs: Outputs, run: OltpRun, threads: int) -> Reading:
    # all transactions have as many queries
    seen = measured(outputs.files(LOGS), outputs.begin, outputs.end, outputs.parts)
    rate, logged = seen.transactions / counted(outputs.parts), seen.regular + seen.clients  # warm-ups are in it, too
    problem = None
    if seen.clients != threads:
        problem = f"{seen.clients} of {threads} threads made any transaction"
    elif logged != run.transactions:  # sysbench leaves with 0 though a script could not write
        problem = f"the log holds {logged} of {run.transactions} transactions"
    times = ("latency_avg_ms", "latency_p95_ms")
    return Reading(
        metrics={
            "tps": rate,
            "qps": rate * run.queries / max(1, run.transactions),
            "latency_avg_ms": seen.mean_ms,
            "latency_p95_ms": seen.latency_ms[QUANTILES.index(0.95)] if seen.latency_ms else None,
            "server_cpu_us": _outputs.cpu_us(outputs, seen.between),
        },
        absent={} if seen.latency_ms else dict.fromkeys(times, UNTIMED),
        series=seen.series,
        facts={"transactions": seen.transactions},
        problem=problem,
    )


def _tables(values: Values) -> list[str]:
    return [f"sbtest{number}" for number in range(1, integer(values, "tables") + 1)]


_OPTIONS = "sysbench.conf"


def _guards(far: RemoteEndpoint | None) -> tuple[Write, ...]:
    if far is None:
        return ()
    return (
        *_mariadb.guards(far, _DATABASE),
        Write(_OPTIONS, f"mysql-password={far.password}\n", far=True, private=True),
    )


def _where(far: RemoteEndpoint | None, places: Places) -> tuple[str, ...]:
    if far is None:
        return (f"--mysql-socket={_mariadb.socket(places)}", f"--mysql-user={_mariadb.SUPERUSER}")
    return (
        f"--config-file={far.folder}/{_OPTIONS}",
        *(f"--mysql-host={far.address}", f"--mysql-port={far.ports[0]}", f"--mysql-user={_mariadb.FAR_USER}"),
    )


def _sysbench(places: Places, values: Values, command: str, *options: str) -> tuple[str, ...]:
    script, *chosen = _TESTS[str(values["test"])]
    far = places.far
    tables, threads = integer(values, "tables"), integer(values, "threads")
    return (
        *("sysbench" if far is None else far.program("sysbench"), script, "--db-driver=mysql"),
        *(*_where(far, places), f"--mysql-db={_DATABASE}"),
        *(f"--tables={tables}", f"--table-size={values['table_size']}"),
        # Rows are made by one thread for each table; queries fall on all rows alike.
        f"--threads={tables if command == 'prepare' else threads}",
        *(f"--rand-seed={values['seed']}", "--rand-type=uniform"),
        *chosen,
        *options,
        command,
    )


WORKLOAD = MysqlReadOnly()
