"""TPC-C on PostgreSQL and MariaDB: its two clients, their commands and output, and the servers' settings. Pure.

go-tpc 1.0 with `--output json --interval 1s` prints a list of rows for each second, then those of the whole run, then
the rates; with `--count` each thread makes as many transactions, whatever kinds they are. sysbench-tpcc prints
sysbench's own report, in which all transactions are alike.

Sources: go-tpc 1.0.12, sysbench-tpcc.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hugewise import reading
from hugewise.machine import programs
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Act, Places, Server, Step, Write
from hugewise.model.workload import Missing
from hugewise.reading import UnreadableError, count, figure, number, shown
from hugewise.workloads import _mariadb, _outputs, _postgres, _staged
from hugewise.workloads._staged import Values, float_value, integer

DATABASE = USER = "tpcc"


def go_tpc_path() -> str | None:
    """Return the path of go-tpc: beside this Python, where `make go-tpc` builds it, or on PATH."""
    beside = str(Path(sys.executable).parent / "go-tpc")
    return beside if programs.executable(beside) else programs.which("go-tpc")


def missing(values: Values) -> Iterable[Missing]:
    """Yield the client, where it is not there."""
    if folder := str(values["sysbench_tpcc"]):
        if not Path(folder).is_absolute():
            yield Missing(f"sysbench_tpcc = {folder!r} must be an absolute path")
        elif not (Path(folder) / "tpcc.lua").is_file():
            yield Missing(f"sysbench_tpcc = {folder!r} has no tpcc.lua")
        yield from _staged.not_on_path([("sysbench", "sysbench")])
    elif go_tpc_path() is None:
        yield Missing("go-tpc: not beside hugewise and not on PATH; build it with `make go-tpc` (needs go)")


def client_command(values: Values, places: Places, act: str, seconds: int = 0, *, count: int = 0) -> tuple[str, ...]:
    """Return the command line of an act, `prepare` or `run`; a run ends after so many seconds, or transactions."""
    maria = values["server"] == "mariadb"
    if values["sysbench_tpcc"]:
        where: tuple[str, ...] = (
            ("--db-driver=mysql", f"--mysql-socket={_mariadb.socket(places)}", f"--mysql-user={_mariadb.SUPERUSER}")
            if maria
            else (
                *("--db-driver=pgsql", f"--pgsql-host={places.run}", "--pgsql-port=5432", "--pgsql-user=postgres"),
                # Its default, repeatable read, makes PostgreSQL give up every third transaction.
                "--trx_level=RC",
            )
        )
        database = f"--{'mysql' if maria else 'pgsql'}-db={DATABASE}"
        timed = [] if act == "prepare" else [f"--time={seconds}", "--report-interval=1"]
        return (
            *("sysbench", "./tpcc.lua", *where, database, "--tables=1", f"--scale={values['warehouses']}"),
            *(f"--threads={values['connections']}", f"--rand-seed={values['seed']}", *timed, act),
        )
    far = places.far
    # The driver for MariaDB cannot be told of a socket. The one for PostgreSQL takes the last of its sorted hosts: a
    # folder sorts after a dot.
    where = (
        ("--driver=mysql", "--host=127.0.0.1", f"--port={places.ports[0]}", f"--user={USER}", f"--password={USER}")
        if maria
        else ("--driver=postgres", "--host=.", "--port=5432", "--user=postgres", f"--conn-params={_SOCKET}{places.run}")
    )
    if far is not None:
        who = _mariadb.FAR_USER if maria else _postgres.ROLE
        place = (f"--host={far.address}", f"--port={far.ports[0]}", f"--user={who}")
        where = ("--driver=mysql", *place) if maria else ("--driver=postgres", *place, "--conn-params=sslmode=disable")
    # A run of a given work takes the time that it takes, and the day is the longest.
    bound = (f"--count={count}", "--time=24h") if count else (f"--time={seconds}s",)
    shown = (*bound, "--interval=1s", "--output=json", "--ignore-error")
    return (
        *(
            (go_tpc_path() or "go-tpc") if far is None else far.program("go-tpc"),
            "tpcc",
            act,
            *where,
            f"--db={DATABASE}",
        ),
        *(f"--warehouses={values['warehouses']}", f"--threads={values['connections']}"),
        *(("--no-check",) if act == "prepare" else shown),
    )


def environment(values: Values, places: Places) -> Mapping[str, str]:
    """Return the client's environment: where the password is, if the client is elsewhere and its server has one."""
    if places.far is None or values["server"] == "mariadb":
        return {}
    return _postgres.far_client(places.far)[1]


_SOCKET = "sslmode=disable&host="

_TABLES = ("warehouse", "district", "customer", "history", "new_order", "orders", "order_line", "item", "stock")
_SYSBENCH_NAMES = {"new_order": "new_orders"}

# Measured: a warehouse takes 107 MB in InnoDB and 105 MB in PostgreSQL, indexes included.
BYTES_PER_WAREHOUSE = 110_000_000
"""Bytes of a database."""
LOG = 512 << 20
"""Bytes of MariaDB's redo log, which holds what an attempt writes: some 10 kB for each new order."""


def grows(values: Values) -> int:
    """Return the bytes that a run may add."""
    return integer(values, "warehouses") * BYTES_PER_WAREHOUSE // 4


def guards(values: Values, places: Places) -> tuple[Write, ...]:
    """Return the files that authenticate clients elsewhere; go-tpc takes MariaDB's password as a word alone."""
    if places.far is None:
        return ()
    if values["server"] == "mariadb":
        return _mariadb.guards(places.far, DATABASE, password=False)
    return _postgres.guards(places.far)


def _prepare(values: Values, places: Places) -> Step:
    argv, cwd = client_command(values, places, "prepare"), str(values["sysbench_tpcc"]) or None
    return Step(name="prepare", argv=argv, cwd=cwd, timeout=86_400)


def _names(values: Values) -> list[str]:
    if values["sysbench_tpcc"]:
        return [f"{_SYSBENCH_NAMES.get(table, table)}1" for table in _TABLES]
    return list(_TABLES)


# -- MariaDB


def mariadb_recipe(values: Values, places: Places) -> Iterable[Act]:
    """Yield the acts that load the warehouses into a new MariaDB."""
    installation = _mariadb.installed(str(values["folder"]))
    yield from _mariadb.install(
        installation,
        places,
        f"CREATE DATABASE {DATABASE}",
        f"CREATE USER {USER}@127.0.0.1 IDENTIFIED BY '{USER}'",
        f"GRANT ALL ON {DATABASE}.* TO {USER}@127.0.0.1",
    )
    port = None if values["sysbench_tpcc"] else places.ports[0]
    yield _mariadb.server(installation, places, None, integer(values, "buffers"), log=LOG, port=port)
    yield _prepare(values, places)
    tables = ", ".join(f"{DATABASE}.{table}" for table in _names(values))
    yield _mariadb.sql(installation, places, "analyze", f"ANALYZE TABLE {tables}", timeout=86_400)


def serve_mariadb(treatment: Treatment, values: Values, places: Places) -> tuple[Server, tuple[Step, ...]]:
    """MariaDB under a treatment, and what makes it touch its memory before the clock."""
    installation = _mariadb.installed(str(values["folder"]))
    port = None if values["sysbench_tpcc"] else places.ports[0]
    size, keep = integer(values, "buffers"), values["keep_thp"] is True
    server = _mariadb.server(installation, places, treatment, size, log=LOG, keep=keep, port=port)
    return server, (
        _mariadb.redo_touched(installation, places, DATABASE, LOG),
        _mariadb.warmed(installation, places, DATABASE, _names(values)),
    )


# -- PostgreSQL

_LOAD = {"autovacuum": "off", "huge_pages": "off", "max_wal_size": "4GB", "maintenance_work_mem": "256MB"}
_EVERY = "SELECT sum(pg_prewarm(oid::regclass)) FROM pg_class WHERE relkind IN ('r', 'i') AND relnamespace = 2200"


def postgres_settings(values: Values) -> dict[str, str]:
    """Return PostgreSQL's settings, except those of pages."""
    buffers, connections, given = integer(values, "buffers"), integer(values, "connections"), str(values["settings"])
    chosen = _postgres.between_checkpoints(float_value(values, "duration"))
    return _postgres.settings(buffers, connections, given, chosen)


def postgres_recipe(values: Values, places: Places) -> Iterable[Act]:
    """Yield the acts that load the warehouses into a new PostgreSQL."""
    installation = _postgres.installed(str(values["folder"]))
    yield _postgres.initdb(installation, places)
    load = {**_LOAD, "shared_buffers": postgres_settings(values)["shared_buffers"], "synchronous_commit": "off"}
    yield _postgres.server(installation, places, load, keep=True)
    yield _postgres.psql(installation, places, "create", f"CREATE DATABASE {DATABASE}")
    yield _prepare(values, places)
    statements = ("CREATE EXTENSION pg_prewarm", "VACUUM (FREEZE, ANALYZE)", "CHECKPOINT")
    yield _postgres.psql(installation, places, "rest", *statements, database=DATABASE, timeout=86_400)


def serve_postgres(treatment: Treatment, values: Values, places: Places) -> tuple[Server, tuple[Step, ...]]:
    """PostgreSQL under a treatment, and what makes its backends touch their memory before the clock."""
    installation = _postgres.installed(str(values["folder"]))
    chosen = {**postgres_settings(values), **_postgres.paging(treatment)}
    district, clients = _names(values)[_TABLES.index("district")], integer(values, "connections")
    statements = (_EVERY, *_postgres.at_the_first_update(district, clients, grows(values)))
    warm = _postgres.psql(installation, places, "prewarm", *statements, database=DATABASE, timeout=86_400)
    role = () if places.far is None else (_postgres.far_role(installation, places),)
    return _postgres.server(installation, places, chosen), (*role, warm)


# Names of metrics, and go-tpc's names of them.
QUANTILES = {"p50": "50th(ms)", "p90": "90th(ms)", "p95": "95th(ms)", "p99": "99th(ms)"}

_Rows = dict[str, dict[str, Any]]
"""Rows by operation."""
_A_SECOND_MS = 900  # latencies are kept to one digit
_FAILED = re.compile(r"execute run failed, err (.*)")


class MeasuredTransactions(msgspec.Struct, frozen=True, kw_only=True):
    """The measured part: counts in it, milliseconds of a new order in it.

    new_orders    None: the client does not tell the transactions apart
    series        transactions in each of its seconds
    average_ms    None: it tells that of its whole run alone, or there was no new order
    quantiles_ms  empty where the measured part is not its whole run, of which alone it tells them
    """

    seconds: float
    transactions: int
    new_orders: int | None
    average_ms: float | None
    quantiles_ms: dict[str, float]
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
        quantiles_ms={},
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


def go_tpc_whole(said: str, seconds: float) -> MeasuredTransactions:
    """Parse go-tpc's JSON of a whole run, which took `seconds` by its own count. Raises ValueError."""
    tables = [found for line in said.splitlines() if (found := _rows(line)) is not None]
    whole = _summary(said, tables)
    orders, failed = whole["NEW_ORDER"], _FAILED.search(said)
    return MeasuredTransactions(
        seconds=seconds,
        transactions=_made(whole),
        new_orders=_count(orders),
        average_ms=_number(orders, "Sum(ms)") / made if (made := _count(orders)) else None,
        quantiles_ms={name: _number(orders, theirs) for name, theirs in QUANTILES.items()},
        series=(),
        errors=len(_FAILED.findall(said)),
        error=failed[1][:200] if failed else None,
    )


def _summary(said: str, tables: list[list[dict[str, Any]]]) -> _Rows:
    whole = [{row["Operation"]: row for row in rows} for rows in tables if _prefix(rows) == "[Summary]"]
    if not whole or "NEW_ORDER" not in whole[-1]:
        raise ValueError(f"go-tpc's summary has no NEW_ORDER: {said.strip()[-300:]!r}")
    return whole[-1]


def sysbench(said: str, lead: int, length: int) -> MeasuredTransactions:
    """Parse sysbench-tpcc's report. Raises ValueError when a second or the summary is not there."""
    run = _outputs.read(said)
    part = [second.tps for second in run.seconds if lead < second.second <= lead + length]
    if len(part) < length:
        raise ValueError(f"sysbench told of {len(run.seconds)} seconds, not of the {lead + length} asked for")
    return MeasuredTransactions(
        seconds=length,
        transactions=round(sum(part)),
        new_orders=None,
        average_ms=None,
        quantiles_ms={},
        series=tuple(part),
        errors=run.errors,
        error=f"{run.errors} ignored errors" if run.errors else None,
    )


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
