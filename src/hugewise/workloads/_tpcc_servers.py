"""The servers of TPC-C: how the warehouses are loaded into each, and how it serves them under a treatment. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hugewise.model.policy import Treatment
from hugewise.model.scene import Act, Places, Server, Step, Write
from hugewise.workloads import _mariadb, _postgres, _postgres_settings, _postgres_warm, _tpcc_client
from hugewise.workloads._parameters import Values, integer, number
from hugewise.workloads._tpcc_client import DATABASE, USER

__all__ = [
    "BYTES_PER_WAREHOUSE",
    "LOG",
    "grows",
    "guards",
    "mariadb_recipe",
    "postgres_recipe",
    "postgres_settings",
    "serve_mariadb",
    "serve_postgres",
]

_TABLES = ("warehouse", "district", "customer", "history", "new_order", "orders", "order_line", "item", "stock")
_SYSBENCH_NAMES = {"new_order": "new_orders"}

# Measured: a warehouse takes 107 MB in InnoDB and 105 MB in PostgreSQL, indexes included.
BYTES_PER_WAREHOUSE = 110_000_000
"""Bytes of a database."""
LOG = 512 << 20
"""Bytes of MariaDB's redo log, which holds what an attempt writes: some 10 kB for each new order."""


def grows(values: Values) -> int:
    """Bytes that a run may add."""
    return integer(values, "warehouses") * BYTES_PER_WAREHOUSE // 4


def guards(values: Values, places: Places) -> tuple[Write, ...]:
    """What the server knows clients elsewhere by. go-tpc takes a password for MariaDB by its command line alone."""
    if places.far is None:
        return ()
    if values["server"] == "mariadb":
        return _mariadb.guards(places.far, DATABASE, password=False)
    return _postgres.guards(places.far)


def _prepare(values: Values, places: Places) -> Step:
    argv, cwd = _tpcc_client.command(values, places, "prepare"), str(values["sysbench_tpcc"]) or None
    return Step(name="prepare", argv=argv, cwd=cwd, timeout=86_400)


def _names(values: Values) -> list[str]:
    if values["sysbench_tpcc"]:
        return [f"{_SYSBENCH_NAMES.get(table, table)}1" for table in _TABLES]
    return list(_TABLES)


# -- MariaDB


def mariadb_recipe(values: Values, places: Places) -> Iterable[Act]:
    """The warehouses loaded into a new MariaDB."""
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
    """What PostgreSQL is told, pages apart."""
    buffers, connections, given = integer(values, "buffers"), integer(values, "connections"), str(values["settings"])
    chosen = _postgres_settings.between_checkpoints(number(values, "duration"))
    return _postgres_settings.settings(buffers, connections, given, chosen)


def postgres_recipe(values: Values, places: Places) -> Iterable[Act]:
    """The warehouses loaded into a new PostgreSQL."""
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
    statements = (_EVERY, *_postgres_warm.at_the_first_update(district, clients, grows(values)))
    warm = _postgres.psql(installation, places, "prewarm", *statements, database=DATABASE, timeout=86_400)
    role = () if places.far is None else (_postgres.far_role(installation, places),)
    return _postgres.server(installation, places, chosen), (*role, warm)
