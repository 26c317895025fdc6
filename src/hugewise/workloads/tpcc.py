"""TPC-C on PostgreSQL or MariaDB, by go-tpc.

The warehouses are loaded once and the same bytes are laid out for every attempt: the database grows by every run.
go-tpc takes its random numbers from the clock, so that data made anew differ in their content (not in size), and no two
runs ask for the same orders.

What it writes makes the data grow, and a faster arm more so. With `transactions` go-tpc does as many in every attempt,
however long that takes; it leaves then, which only MariaDB's pages outlive.

MariaDB is one process, whose pages are all touched before the clients come. PostgreSQL's clients have a process each,
with page tables of its own. The clients have no hook for a warm-up of each, but the server has: a trigger, by which a
backend touches what the database fills of the buffers before its first update of a district, within `lead`.

Sources: TPC-C revision 5.11 (mix of transactions; the keying and thinking times are left out, as the client does by
default, so that rates are no TPC results); the sources of go-tpc 1.0.12.
"""

from __future__ import annotations

import math

from hugewise.model.metric import Metric
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Data, Outputs, Places, Procedure, Reading, Step, Window
from hugewise.model.workload import Configuration, Launch, Missing, Parameter
from hugewise.reading import whole
from hugewise.workloads import _mariadb, _outputs, _postgres, _tpcc
from hugewise.workloads._postgres import EXTENSIONS
from hugewise.workloads._staged import PartedWorkload, Values, float_value, integer
from hugewise.workloads._tpcc import (
    BYTES_PER_WAREHOUSE,
    LOG,
    grows,
    guards,
    mariadb_recipe,
    postgres_recipe,
    postgres_settings,
    serve_mariadb,
    serve_postgres,
)

_GO_TPC = "1.0.12"
_BYTES_OF_EMPTY = 100_000_000
_BYTES_BESIDE = 128 << 20

_WARM_UP = 0.1  # share of the work
_OF_ALL = "the client tells it of its whole run alone, warm-up included: give it work (transactions = N, on MariaDB)"
_SATURATED = "the client was saturated: it used all of its CPU time"
_SETTLING = 10  # seconds of MariaDB's lead
_LEAD = "lead"
_TAIL = 4  # seconds for which the clients stay after the measured part, while pages are proven
_MANY_ERRORS = 0.05


class Tpcc(PartedWorkload):
    """A server of its own for every attempt; the policy is about shared_buffers, or the buffer pool."""

    name = "tpcc"
    description = "TPC-C on PostgreSQL or MariaDB (go-tpc)"
    ports = 1
    clients = True
    client_programs = ("go-tpc",)
    choices = (("server", ("postgres", "mariadb")),)
    least = (("warehouses", 1), ("connections", 1), ("duration", 1), ("lead", 0), ("transactions", 0))
    parameters = (
        Parameter("server", "text", "postgres", "postgres or mariadb"),
        Parameter("warehouses", "integer", 12, "of about 105 MiB each"),
        Parameter("buffers", "size", "2g", "shared_buffers or the buffer pool, which the policy is about"),
        Parameter("connections", "integer", 4, "clients, each without thinking time"),
        Parameter("duration", "duration", "15s", "length of the measured part"),
        Parameter(
            "lead",
            "duration",
            0,
            "time before it, in which the clients run and warm up; 0: by the server, its clients and the size",
        ),
        Parameter(
            "transactions",
            "integer",
            0,
            "so many over all connections, after a tenth as many to warm up, in place of `duration` and `lead` (by"
            " go-tpc, on MariaDB): data that are written grow alike; 0: for `duration`",
        ),
        Parameter("keep_thp", "flag", False, "keep MariaDB from switching THP off for itself, as it does by default"),
        Parameter("settings", "text", "", "settings of PostgreSQL beside the published ones: 'NAME=VALUE ...'"),
        Parameter("folder", "text", "", "the folder of the server's programs (default: the usual places)"),
    )
    metrics = (
        Metric("tpmc", "orders/min", "higher", "new orders a minute"),
        Metric("tpm_total", "transactions/min", "higher", "transactions of all five kinds a minute"),
        Metric("latency_avg_ms", "ms", "lower", "mean time of a new order (by go-tpc)"),
        Metric("latency_p50_ms", "ms", "lower", "median of it, where `transactions` are given"),
        Metric("latency_p90_ms", "ms", "lower", "90th percentile of it, where `transactions` are given"),
        Metric("latency_p95_ms", "ms", "lower", "95th percentile of it, where `transactions` are given"),
        Metric("latency_p99_ms", "ms", "lower", "99th percentile of it, where `transactions` are given"),
        Metric("server_cpu_us", "us", "lower", "CPU time of the server for each transaction, user and system"),
    )
    delivered_share = 0.9

    def refuses(self, treatment: Treatment, values: Values) -> str | None:
        if (reason := super().refuses(treatment, values)) is not None:
            return reason
        if values["transactions"] and (why := self._uncounted(values)) is not None:
            return why
        if values["server"] == "mariadb":
            if values["settings"]:
                return "settings are PostgreSQL's: MariaDB takes none"
            return _mariadb.advice_refused(treatment)
        if values["keep_thp"]:
            return "keep_thp is for MariaDB: PostgreSQL leaves THP as it is"
        try:
            postgres_settings(values)
        except ValueError as error:
            return f"settings: {error}"
        return None

    def turns_refused(self, values: Values) -> str | None:
        """Return why turns are refused, or None: a faster arm must not have changed its data more."""
        if (why := self._uncounted(values)) is not None:
            return why
        if not values["transactions"]:
            return (
                "the data grow with every transaction, more so under the faster arm: give all arms the same work"
                " (transactions = N, in place of a duration)"
            )
        return None

    def _uncounted(self, values: Values) -> str | None:
        if values["server"] != "mariadb":
            return (
                "go-tpc leaves when it has made its transactions, and PostgreSQL's backends with it, in which alone its"
                ' pages can be proven (server = "mariadb")'
            )
        return None

    def stand_ins(self, values: Values) -> tuple[str, ...]:
        own = values.get("sysbench_tpcc")  # of a run of before
        return () if own else ("go-tpc in place of sysbench-tpcc",)

    def missing(self, values: Values) -> tuple[Missing, ...]:
        folder = str(values["folder"])
        server = (
            _mariadb.missing(folder) if values["server"] == "mariadb" else _postgres.missing(folder, (), EXTENSIONS)
        )
        return (*server, *_tpcc.missing())

    def memory(self, treatment: Treatment, values: Values) -> int:
        return max(_filled(values), self.pool(treatment, values)) + _BYTES_BESIDE

    def pooled(self, treatment: Treatment, values: Values) -> int:
        if values["server"] == "mariadb":
            return _mariadb.pool(treatment, integer(values, "buffers"))
        return _postgres.segment(str(values["folder"]), postgres_settings(values), treatment.target.size)

    def configuration(self, treatment: Treatment, values: Values) -> Configuration:
        if values["server"] == "mariadb":
            return _mariadb.configuration(treatment)
        return _postgres.configuration(treatment)

    def data(self, values: Values) -> Data:
        maria = values["server"] == "mariadb"
        key: dict[str, str | int | float | bool] = {
            "server": str(values["server"]),
            "version": (_mariadb if maria else _postgres).installed(str(values["folder"])).version,
            "warehouses": integer(values, "warehouses"),
            "made": 1,
            "client": f"go-tpc {_GO_TPC}",
        }
        return Data(
            name=f"tpcc-{values['server']}",
            key=key,
            recipe=lambda places: mariadb_recipe(values, places) if maria else postgres_recipe(values, places),
            bytes=integer(values, "warehouses") * BYTES_PER_WAREHOUSE + _BYTES_OF_EMPTY + LOG,
        )

    def unprotected_access(self, values: Values) -> str | None:
        """MariaDB knows go-tpc by its address, as that would tell a password on its command line."""
        if values["server"] != "mariadb":
            return None
        return (
            "go-tpc takes MariaDB's password by its command line alone: whoever is on the client's host has the tables"
        )

    def procedure(self, treatment: Treatment, values: Values, places: Places) -> Procedure:
        if values["transactions"]:
            return _given(treatment, values, places)
        lead, length = _lead(values, len(places.sut)), _length(values)
        serve = serve_mariadb if values["server"] == "mariadb" else serve_postgres
        server, warm = serve(treatment, values, places)
        return Procedure(
            before=guards(values, places),
            servers=(server,),
            warm=(
                *warm,
                Step(name="cpus", argv=("nproc",), far=True),
                Step(name=_LEAD, argv=("echo", str(lead))),  # for the reader of the client's seconds
            ),
            timed=Launch(
                argv=_tpcc.client_command(values, places, "run", lead + length + _TAIL),
                proof="live",
                environment=_tpcc.environment(values, places),
            ),
            window=Window(lead, length),
        )

    def read(self, outputs: Outputs, values: Values) -> Reading:
        work = _work(values)
        if work:
            seen = _tpcc.go_tpc_whole(outputs.stdout(), _outputs.thawed(outputs))
        else:
            lead, length = whole(outputs.stdout(_LEAD), "the lead"), _length(values)
            seen = _tpcc.go_tpc(outputs.stdout(), lead, length, lead + length + _TAIL)
        metrics: dict[str, float | None] = dict.fromkeys(metric.name for metric in self.metrics)
        metrics |= {
            "tpmc": seen.new_orders * 60 / seen.seconds,
            "tpm_total": seen.transactions * 60 / seen.seconds,
            "latency_avg_ms": seen.average_ms,
            "server_cpu_us": _outputs.cpu_us(outputs, seen.transactions),
            **{f"latency_{name}_ms": value for name, value in seen.quantiles_ms.items()},
        }
        absent = {name: _OF_ALL for name, value in metrics.items() if value is None and name.startswith("latency_")}
        if _outputs.in_turns(outputs):
            timed = [name for name in metrics if name.startswith("latency_")]
            metrics |= dict.fromkeys(timed)
            absent |= dict.fromkeys(timed, "the client's clock goes on while it is frozen")
        if metrics["server_cpu_us"] is None:
            absent["server_cpu_us"] = "the server's CPU time was not counted"
        problem, grown = None, {}
        if work:
            grown, problem = _grown(outputs), _other_work(seen, work)
        if not seen.new_orders:
            problem = f"no new order was made{f': {seen.error}' if seen.error else ''}"
        marks = []
        if seen.errors > _MANY_ERRORS * seen.transactions:
            marks.append(f"{seen.errors} transactions failed in the client's whole run: {seen.error}")
        if _outputs.saturated(outputs, _outputs.processors(outputs)):
            marks.append(_SATURATED)
        return Reading(
            metrics=metrics,
            absent=absent,
            series=seen.series,
            facts={"transactions": seen.transactions, "failed": seen.errors, "server": str(values["server"]), **grown},
            problem=problem,
            marks=tuple(marks),
            of_time=(_SATURATED,),
        )


def _other_work(seen: _tpcc.MeasuredTransactions, work: int) -> str | None:
    if seen.transactions + seen.errors < work:
        return f"{seen.transactions} transactions were made of {work}"
    if seen.errors > _MANY_ERRORS * seen.transactions:
        return f"{seen.errors} transactions failed of {work}, so that it did other work: {seen.error}"
    return None


def _work(values: Values, part: float = 1) -> int:
    connections = integer(values, "connections")
    return math.ceil(integer(values, "transactions") * part / max(1, connections)) * connections


def _given(treatment: Treatment, values: Values, places: Places) -> Procedure:
    # the client does a tenth of its work to warm up, then all of it, and leaves
    installation = _mariadb.installed(str(values["folder"]))
    server, warm = serve_mariadb(treatment, values, places)
    before, work = _work(values, _WARM_UP), _work(values)
    return Procedure(
        before=guards(values, places),
        servers=(server,),
        warm=(
            *warm,
            Step(
                name="warm-up", argv=_tpcc.client_command(values, places, "run", count=before), timeout=3600.0, far=True
            ),
            Step(name="cpus", argv=("nproc",), far=True),
            _mariadb.size(installation, places, "begun"),
        ),
        timed=Launch(argv=_tpcc.client_command(values, places, "run", count=work), proof="live"),
        after=(_mariadb.size(installation, places, "ended"),),
    )


def _grown(outputs: Outputs) -> dict[str, str | int | float]:
    (tables, log), (larger, longer) = (_mariadb.sizes(outputs.stdout(name)) for name in ("begun", "ended"))
    return {"database_bytes": tables, "database_grew_bytes": larger - tables, "redo_grew_bytes": longer - log}


def _lead(values: Values, cpus: int) -> int:
    # Enough for every backend of PostgreSQL to touch what the warehouses fill, and for one process alone to settle;
    # whole seconds, as clients report them.
    if given := float_value(values, "lead"):
        return math.ceil(given)
    if values["server"] == "mariadb":
        return _SETTLING
    return math.ceil(_postgres.lead(integer(values, "connections") * _filled(values), cpus))


def _filled(values: Values) -> int:
    return min(integer(values, "buffers"), integer(values, "warehouses") * BYTES_PER_WAREHOUSE + grows(values))


def _length(values: Values) -> int:
    return math.ceil(float_value(values, "duration"))


WORKLOAD = Tpcc()
