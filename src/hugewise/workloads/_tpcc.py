"""TPC-C on PostgreSQL and MariaDB: go-tpc's commands and output, and the servers' settings. Pure.

go-tpc 1.0 with `--output json --interval 1s` prints a list of rows for each second, then those of the whole run, then
the rates; with `--count` each thread makes as many transactions, whatever kinds they are.

Source: go-tpc 1.0.12.
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
from hugewise.workloads import _mariadb, _postgres
from hugewise.workloads._staged import Values, float_value, integer

DATABASE = USER = "tpcc"


def go_tpc_path() -> str | None:
    """Return the path of go-tpc: beside this Python, where `make go-tpc` builds it, or on PATH."""
    beside = str(Path(sys.executable).parent / "go-tpc")
    return beside if programs.executable(beside) else programs.which("go-tpc")


def missing() -> tuple[Missing, ...]:
    """Return the client, where it is not there."""
    if go_tpc_path() is not None:
        return ()
    return (Missing("go-tpc: not beside hugewise and not on PATH; build it with `make go-tpc` (needs go)"),)


def client_command(values: Values, places: Places, act: str, seconds: int = 0, *, count: int = 0) -> tuple[str, ...]:
    """Return the command line of an act, `prepare` or `run`; a run ends after so many seconds, or transactions."""
    maria = values["server"] == "mariadb"
    far = places.far
    # The driver for MariaDB cannot be told of a socket. The one for PostgreSQL takes the last of its sorted hosts: a
    # folder sorts after a dot.
    where: tuple[str, ...] = (
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
    return Step(name="prepare", argv=client_command(values, places, "prepare"), timeout=86_400)


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
    yield _mariadb.server(installation, places, None, integer(values, "buffers"), log=LOG, port=places.ports[0])
    yield _prepare(values, places)
    tables = ", ".join(f"{DATABASE}.{table}" for table in _TABLES)
    yield _mariadb.sql(installation, places, "analyze", f"ANALYZE TABLE {tables}", timeout=86_400)


def serve_mariadb(treatment: Treatment, values: Values, places: Places) -> tuple[Server, tuple[Step, ...]]:
    """MariaDB under a treatment, and what makes it touch its memory before the clock."""
    installation = _mariadb.installed(str(values["folder"]))
    size, keep = integer(values, "buffers"), values["keep_thp"] is True
    server = _mariadb.server(installation, places, treatment, size, log=LOG, keep=keep, port=places.ports[0])
    return server, (
        _mariadb.redo_touched(installation, places, DATABASE, LOG),
        _mariadb.warmed(installation, places, DATABASE, _TABLES),
    )


# -- PostgreSQL

_LOAD = {"autovacuum": "off", "huge_pages": "off", "max_wal_size": "4GB", "maintenance_work_mem": "256MB"}
_EVERY = "SELECT sum(pg_prewarm(oid::regclass)) FROM pg_class WHERE relkind IN ('r', 'i') AND relnamespace = 2200"


def postgres_settings(values: Values) -> dict[str, str]:
    """Return PostgreSQL's settings, except those of pages."""
    buffers, connections, given = integer(values, "buffers"), integer(values, "connections"), str(values["settings"])
    chosen = _postgres.without_page_images(float_value(values, "duration"))
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
    clients = integer(values, "connections")
    statements = (_EVERY, *_postgres.at_the_first_update("district", clients, grows(values)))
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

    series        transactions in each of its seconds
    average_ms    None: it tells that of its whole run alone, or there was no new order
    quantiles_ms  empty where the measured part is not its whole run, of which alone it tells them
    """

    seconds: float
    transactions: int
    new_orders: int
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
