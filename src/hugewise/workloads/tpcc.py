"""TPC-C on PostgreSQL, by go-tpc.

The warehouses are loaded once and the same bytes are laid out for every attempt: the database grows by every run.
go-tpc takes its random numbers from the clock, so that data made anew differ in their content (not in size), and no two
runs ask for the same orders. With `--output json --interval 1s` it prints a list of rows for each second, then those of
the whole run, then the rates.

PostgreSQL's clients have a process each, with page tables of its own. The clients have no hook for a warm-up of each,
but the server has: a trigger, by which a backend touches what the database fills of the buffers before its first update
of a district, within `lead`.

Sources: TPC-C revision 5.11 (mix of transactions; the keying and thinking times are left out, as the client does by
default, so that rates are no TPC results); the sources of go-tpc 1.0.12.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from hugewise import reading
from hugewise.machine import programs
from hugewise.model.metric import Metric
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Act, Data, Outputs, Places, Procedure, Reading, Step, Window
from hugewise.model.workload import Configuration, Launch, Missing, Parameter
from hugewise.reading import UnreadableError, count, figure, number, shown, whole
from hugewise.workloads import _outputs, _postgres
from hugewise.workloads._postgres import EXTENSIONS
from hugewise.workloads._staged import PartedWorkload, Values, float_value, integer

DATABASE = "tpcc"

# Measured: a warehouse takes 105 MB, indexes included.
_BYTES_PER_WAREHOUSE = 110_000_000
_BYTES_OF_EMPTY = 640_000_000
_BYTES_BESIDE = 128 << 20
_GO_TPC = "1.0.12"
_SATURATED = "the client was saturated: it used all of its CPU time"
_LEAD = "lead"
_TAIL = 4  # seconds for which the clients stay after the measured part, while pages are proven
_MANY_ERRORS = 0.05

_LOAD = {"autovacuum": "off", "huge_pages": "off", "max_wal_size": "4GB", "maintenance_work_mem": "256MB"}
_EVERY = "SELECT sum(pg_prewarm(oid::regclass)) FROM pg_class WHERE relkind IN ('r', 'i') AND relnamespace = 2200"


def go_tpc_path() -> str | None:
    """Return the path of go-tpc: beside this Python, where `make go-tpc` builds it, or on PATH."""
    beside = str(Path(sys.executable).parent / "go-tpc")
    return beside if programs.executable(beside) else programs.which("go-tpc")


def _client_command(values: Values, places: Places, act: str, *options: str) -> tuple[str, ...]:
    # The driver takes the last of its sorted hosts: a folder sorts after a dot.
    far = places.far
    where: tuple[str, ...] = (
        *("--host=.", "--port=5432", "--user=postgres", f"--conn-params=sslmode=disable&host={places.run}"),
    )
    if far is not None:
        where = (f"--host={far.address}", f"--port={far.ports[0]}", f"--user={_postgres.ROLE}")
        where = (*where, "--conn-params=sslmode=disable")
    return (
        *((go_tpc_path() or "go-tpc") if far is None else far.program("go-tpc"), "tpcc", act),
        *("--driver=postgres", *where, f"--db={DATABASE}"),
        *(f"--warehouses={values['warehouses']}", f"--threads={values['connections']}"),
        *options,
    )


def _settings(values: Values) -> dict[str, str]:
    # all but those of pages
    buffers, connections, given = integer(values, "buffers"), integer(values, "connections"), str(values["settings"])
    chosen = _postgres.between_checkpoints(float_value(values, "duration"))
    return _postgres.settings(buffers, connections, given, chosen)


class Tpcc(PartedWorkload):
    """A server of its own for every attempt; the policy is about shared_buffers."""

    name = "tpcc"
    description = "TPC-C on PostgreSQL (go-tpc)"
    clients = True
    client_programs = ("go-tpc",)
    least = (("warehouses", 1), ("connections", 1), ("duration", 1), ("lead", 0))
    parameters = (
        Parameter("warehouses", "integer", 12, "of about 105 MiB each"),
        Parameter("buffers", "size", "2g", "shared_buffers, which the policy is about"),
        Parameter("connections", "integer", 4, "clients, each without thinking time"),
        Parameter("duration", "duration", "15s", "length of the measured part"),
        Parameter(
            "lead",
            "duration",
            0,
            "time before it, in which the clients run and warm up; 0: by the clients and the size",
        ),
        Parameter("settings", "text", "", "settings of the server beside the published ones: 'NAME=VALUE ...'"),
        Parameter("folder", "text", "", "the folder of the server's programs (default: the usual places)"),
    )
    metrics = (
        Metric("tpmc", "orders/min", "higher", "new orders a minute"),
        Metric("tpm_total", "transactions/min", "higher", "transactions of all five kinds a minute"),
        Metric("latency_avg_ms", "ms", "lower", "mean time of a new order"),
        Metric("server_cpu_us", "us", "lower", "CPU time of the server for each transaction, user and system"),
    )
    delivered_share = 0.9

    def refuses(self, treatment: Treatment, values: Values) -> str | None:
        if (reason := super().refuses(treatment, values)) is not None:
            return reason
        try:
            _settings(values)
        except ValueError as error:
            return f"settings: {error}"
        return None

    def stand_ins(self, values: Values) -> tuple[str, ...]:
        own = values.get("sysbench_tpcc")  # of a run of before
        return () if own else ("go-tpc in place of sysbench-tpcc",)

    def missing(self, values: Values) -> tuple[Missing, ...]:
        server = _postgres.missing(str(values["folder"]), (), EXTENSIONS)
        if go_tpc_path() is not None:
            return server
        why = "go-tpc: not beside hugewise and not on PATH; build it with `make go-tpc` (needs go)"
        return (*server, Missing(why))

    def memory(self, treatment: Treatment, values: Values) -> int:
        return max(_filled(values), self.pool(treatment, values)) + _BYTES_BESIDE

    def pooled(self, treatment: Treatment, values: Values) -> int:
        return _postgres.segment(str(values["folder"]), _settings(values), treatment.target.size)

    def configuration(self, treatment: Treatment, values: Values) -> Configuration:
        return _postgres.configuration(treatment)

    def data(self, values: Values) -> Data:
        installation = _postgres.installed(str(values["folder"]))

        def recipe(places: Places) -> Iterable[Act]:
            yield _postgres.initdb(installation, places)
            load = {**_LOAD, "shared_buffers": _settings(values)["shared_buffers"], "synchronous_commit": "off"}
            yield _postgres.server(installation, places, load, keep=True)
            yield _postgres.psql(installation, places, "create", f"CREATE DATABASE {DATABASE}")
            argv = _client_command(values, places, "prepare", "--no-check")
            yield Step(name="prepare", argv=argv, timeout=86_400)
            statements = ("CREATE EXTENSION pg_prewarm", "VACUUM (FREEZE, ANALYZE)", "CHECKPOINT")
            yield _postgres.psql(installation, places, "rest", *statements, database=DATABASE, timeout=86_400)

        key: dict[str, str | int | float | bool] = {
            "server": "postgres",
            "version": installation.version,
            "warehouses": integer(values, "warehouses"),
            "made": 1,
            "client": f"go-tpc {_GO_TPC}",
        }
        size = integer(values, "warehouses") * _BYTES_PER_WAREHOUSE + _BYTES_OF_EMPTY
        return Data(name="tpcc-postgres", key=key, recipe=recipe, bytes=size)

    def procedure(self, treatment: Treatment, values: Values, places: Places) -> Procedure:
        installation, far = _postgres.installed(str(values["folder"])), places.far
        lead, length = _lead(values, len(places.sut)), _length(values)
        chosen = {**_settings(values), **_postgres.paging(treatment)}
        statements = (
            _EVERY,
            *_postgres.at_the_first_update("district", integer(values, "connections"), _grows(values)),
        )
        shown_ = ("--interval=1s", "--output=json", "--ignore-error")
        return Procedure(
            before=() if far is None else _postgres.guards(far),
            servers=(_postgres.server(installation, places, chosen),),
            warm=(
                *(() if far is None else (_postgres.far_role(installation, places),)),
                _postgres.psql(installation, places, "prewarm", *statements, database=DATABASE, timeout=86_400),
                Step(name="cpus", argv=("nproc",), far=True),
                Step(name=_LEAD, argv=("echo", str(lead))),  # for the reader of the client's seconds
            ),
            timed=Launch(
                argv=_client_command(values, places, "run", f"--time={lead + length + _TAIL}s", *shown_),
                proof="live",
                environment={} if far is None else _postgres.far_client(far)[1],
            ),
            window=Window(lead, length),
        )

    def read(self, outputs: Outputs, values: Values) -> Reading:
        lead, length = whole(outputs.stdout(_LEAD), "the lead"), _length(values)
        seen = go_tpc(outputs.stdout(), lead, length, lead + length + _TAIL)
        cpu_us = _outputs.cpu_us(outputs, seen.transactions)
        why = "no new order was made"
        marks = []
        if seen.errors > _MANY_ERRORS * seen.transactions:
            marks.append(f"{seen.errors} transactions failed in the client's whole run: {seen.error}")
        if _outputs.saturated(outputs, _outputs.processors(outputs)):
            marks.append(_SATURATED)
        return Reading(
            metrics={
                "tpmc": seen.new_orders * 60 / seen.seconds,
                "tpm_total": seen.transactions * 60 / seen.seconds,
                "latency_avg_ms": seen.average_ms,
                "server_cpu_us": cpu_us,
            },
            absent={
                **({} if seen.new_orders else {"latency_avg_ms": why}),
                **({} if cpu_us is not None else {"server_cpu_us": "the server's CPU time was not counted"}),
            },
            series=seen.series,
            facts={"transactions": seen.transactions, "failed": seen.errors, "server": "postgres"},
            problem=None if seen.new_orders else f"{why}{f': {seen.error}' if seen.error else ''}",
            marks=tuple(marks),
            of_time=(_SATURATED,),
        )


def _lead(values: Values, cpus: int) -> int:
    # Enough for every backend to touch what the warehouses fill; whole seconds, as the client reports them.
    if given := float_value(values, "lead"):
        return math.ceil(given)
    return math.ceil(_postgres.lead(integer(values, "connections") * _filled(values), cpus))


def _grows(values: Values) -> int:
    # bytes that a run may add
    return integer(values, "warehouses") * _BYTES_PER_WAREHOUSE // 4


def _filled(values: Values) -> int:
    return min(integer(values, "buffers"), integer(values, "warehouses") * _BYTES_PER_WAREHOUSE + _grows(values))


def _length(values: Values) -> int:
    return math.ceil(float_value(values, "duration"))


_Rows = dict[str, dict[str, Any]]
"""Rows by operation."""
_A_SECOND_MS = 900  # latencies are kept to one digit
_FAILED = re.compile(r"execute run failed, err (.*)")


class MeasuredTransactions(msgspec.Struct, frozen=True, kw_only=True):
    """The measured part: counts in it, milliseconds of a new order in it.

    series      transactions in each of its seconds
    average_ms  None: there was no new order
    """

    seconds: float
    transactions: int
    new_orders: int
    average_ms: float | None
    series: tuple[float, ...]
    errors: int
    error: str | None


def go_tpc(said: str, lead: int, length: int, whole: int) -> MeasuredTransactions:
    """Parse go-tpc's JSON of a run of `whole` seconds. Raises ValueError when a second or the summary is not there."""
    tables = [found for line in said.splitlines() if (found := _rows(line)) is not None]
    told = [{row["Operation"]: row for row in rows} for rows in tables if _prefix(rows) == "[Current]"]
    part = _every_second(told, _summary(said, tables), lead, length, whole)[lead : lead + length]
    if len(part) < length:
        raise ValueError(f"go-tpc told of {len(told)} seconds, not of the {lead + length} asked for")
    series = [_made(rows) for rows in part]
    orders = [rows["NEW_ORDER"] for rows in part if "NEW_ORDER" in rows]
    new_orders = sum(map(_count, orders))
    spent = sum(_number(row, "Sum(ms)") for row in orders)
    failed = _FAILED.search(said)
    return MeasuredTransactions(
        seconds=length,
        transactions=sum(series),
        new_orders=new_orders,
        average_ms=spent / new_orders if new_orders else None,
        series=tuple(map(float, series)),
        errors=len(_FAILED.findall(said)),
        error=failed[1][:200] if failed else None,
    )


def _every_second(told: list[_Rows], summary: _Rows, lead: int, length: int, whole: int) -> list[_Rows]:
    # go-tpc prints nothing for a second in which no transaction ended. While backends touch their buffers nothing ends
    # for seconds (seen: 5 to 7, 14 warehouses and 9 connections). Connections never rest, so that what ends first after
    # g silent seconds took at least as long.
    if not told:
        raise ValueError("go-tpc told of no second")
    # The last second may be over before it is told; its transactions are then in the summary alone.
    untold = _made(summary) - sum(map(_made, told))
    silent = whole - len(told) - (untold * 2 > _made(told[-1]))
    if silent <= 0:
        return told
    longest = [max(_number(row, "Max(ms)") for row in rows.values()) for rows in told]
    after = [place for place, spent in enumerate(longest) if spent >= _A_SECOND_MS]
    alone = len(after) == 1 and longest[after[0]] >= silent * _A_SECOND_MS
    if not (alone or (after and (after[-1] + silent < lead or after[0] >= lead + length))):
        raise ValueError(f"go-tpc told of {len(told)} seconds of {whole}, and not which the others were")
    return [*told[: after[0]], *({} for _ in range(silent)), *told[after[0] :]]


def _made(rows: _Rows) -> int:
    return sum(_count(row) for name, row in rows.items() if not name.endswith("_ERR"))


def _summary(said: str, tables: list[list[dict[str, Any]]]) -> _Rows:
    whole = [{row["Operation"]: row for row in rows} for rows in tables if _prefix(rows) == "[Summary]"]
    if not whole or "NEW_ORDER" not in whole[-1]:
        raise ValueError(f"go-tpc's summary has no NEW_ORDER: {said.strip()[-300:]!r}")
    return whole[-1]


def _rows(line: str) -> list[dict[str, Any]] | None:
    if not line.startswith("[{"):
        return None
    try:
        row_list = reading.json(line.encode())
    except UnreadableError:
        return None
    return (
        row_list if all(isinstance(row, dict) and isinstance(row.get("Operation"), str) for row in row_list) else None
    )


def _prefix(rows: list[dict[str, Any]]) -> str:
    return str(rows[0].get("Prefix", "")).strip()


def _number(row: dict[str, Any], name: str) -> float:
    told, what = row.get(name), f"{name} in go-tpc's row of {shown(row['Operation'])}"
    return figure(told, what, low=0) if isinstance(told, str) else number(told, what, low=0)


def _count(row: dict[str, Any]) -> int:
    return count(_number(row, "Count"), "Count")


WORKLOAD = Tpcc()
