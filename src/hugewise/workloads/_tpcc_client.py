"""The clients of TPC-C: where they are, and how they are told of a server, a time, or a number of transactions.

Sources: go-tpc 1.0.12 (`--count`: each thread makes as many, whatever kinds they are), sysbench-tpcc.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from hugewise.machine import programs
from hugewise.model.scene import Places
from hugewise.model.workload import Missing
from hugewise.workloads import _mariadb, _postgres, _program
from hugewise.workloads._parameters import Values

__all__ = ["DATABASE", "USER", "command", "environment", "go_tpc", "missing"]

DATABASE = USER = "tpcc"


def go_tpc() -> str | None:
    """The path of go-tpc: beside this Python, where `make go-tpc` builds it, or on PATH."""
    beside = str(Path(sys.executable).parent / "go-tpc")
    return beside if programs.executable(beside) else programs.which("go-tpc")


def missing(values: Values) -> Iterable[Missing]:
    """The client, where it is not there."""
    if folder := str(values["sysbench_tpcc"]):
        if not Path(folder).is_absolute():
            yield Missing(f"sysbench_tpcc = {folder!r} must be an absolute path")
        elif not (Path(folder) / "tpcc.lua").is_file():
            yield Missing(f"sysbench_tpcc = {folder!r} has no tpcc.lua")
        yield from _program.not_on_path([("sysbench", "sysbench")])
    elif go_tpc() is None:
        yield Missing("go-tpc: not beside hugewise and not on PATH; build it with `make go-tpc` (needs go)")


def command(values: Values, places: Places, act: str, seconds: int = 0, *, count: int = 0) -> tuple[str, ...]:
    """The command line of an act, `prepare` or `run`; a run ends after so many seconds, or transactions."""
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
        *((go_tpc() or "go-tpc") if far is None else far.program("go-tpc"), "tpcc", act, *where, f"--db={DATABASE}"),
        *(f"--warehouses={values['warehouses']}", f"--threads={values['connections']}"),
        *(("--no-check",) if act == "prepare" else shown),
    )


def environment(values: Values, places: Places) -> Mapping[str, str]:
    """What the client finds in its environment: where the password is, if it is elsewhere and its server has one."""
    if places.far is None or values["server"] == "mariadb":
        return {}
    return _postgres.far_client(places.far)[1]


_SOCKET = "sslmode=disable&host="
