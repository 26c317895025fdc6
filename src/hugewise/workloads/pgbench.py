"""PostgreSQL under pgbench: TPC-B (read and write), look-ups alone, or long queries, over the database's size and the
number of clients.

The database is made once with pgbench's own tables, and the same bytes are laid out for every attempt. Every client's
first transaction touches all of shared_buffers that the database fills, in that client's own backend: page tables are
a process's own, so that a warm-up over another connection would leave the faults to the measured part.

What writes makes its data grow, and a faster arm more so. With `transactions` every attempt does as many, however long
that takes: the data of all arms grow alike, and nothing that comes by the server's own clock (checkpoints, vacuum)
falls into one of them by chance.

Sources: PostgreSQL documentation, pgbench, pg_prewarm, and "WAL Configuration"; the scripts: see `_pgbench_script`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from hugewise.model.metric import Metric
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Act, Data, Outputs, Places, Procedure, Reading, Window
from hugewise.model.workload import Configuration, Launch, Missing, Parameter
from hugewise.reading import figure, whole
from hugewise.workloads import _outputs, _pgbench_script, _postgres
from hugewise.workloads._outputs import QUANTILES, UNTIMED, MeasuredPart, measured
from hugewise.workloads._pgbench_script import MODES
from hugewise.workloads._postgres import EXTENSIONS
from hugewise.workloads._staged import StagedWorkload, Values, float_value, integer

_DATABASE = "pgbench"
# A row for each page is left free: else the first update of a page moves its row to a new page at the end and adds to
# the index, and later ones do not, so that transactions change while they are measured (seen over 10 s: 4% and then 25%
# of the updates stayed on their page; with this room all of them).
_FILL_FACTOR = 98
# Measured so: pg_database_size of PostgreSQL 15 at scale 46, vacuumed; the published text says about 16 MB.
_BYTES_PER_SCALE = 15_905_400
_BYTES_OF_EMPTY = 7_892_000

# For a client's private memory beside shared_buffers: 5 to 9 MiB seen (caches of the catalogue, prepared statements).
_BYTES_PER_CLIENT = 16 << 20
_HASHES = 4  # of an analytic query at a time: two, each of hash_mem_multiplier (2 by default) times work_mem

# The clients stay attached after the measured part, while pages are proven, and then end. Measured: 0.027 s for the
# page tables of a GiB of base pages, of every process; twice that. The proof comes first, so that more than a minute is
# not needed.
_LOOKING = 2 * 0.027 / 2**30
_LEAST_TAIL, _LONGEST_TAIL = 2.0, 60.0

# Of a share of work: no time ends it but the attempt's own. A page is written whole when it is first changed after a
# checkpoint, of which a transaction changes five at the most; the room is for twice as much.
_DAY = 86_400
_WAL_PER_TRANSACTION = 2 * 5 * 8192
_WAL_SEEN = 4096  # seen: 2,476 bytes over the first 3,000 transactions at scale 4, most of them such pages

_TABLES = ("pgbench_accounts", "pgbench_accounts_pkey", "pgbench_tellers", "pgbench_branches")

_CHECKPOINT = re.compile(r"LOG: +checkpoint starting:")
_LOG = re.compile(r"transactions\.\d+(\.\d+)?")
_CONNECTED = re.compile(r"^initial connection time = ([\d.]+) ms$", re.MULTILINE)
_FAILED = re.compile(r"^number of failed transactions: (\d+)", re.MULTILINE)
_THREADS = re.compile(r"^number of threads: (\d+)$", re.MULTILINE)


def _analyses(values: Values) -> bool:
    """Whether it has tables and queries of another kind than pgbench's own."""
    return values["mode"] == "analytic"


def _bytes_per_scale(values: Values) -> int:
    return _pgbench_script.BYTES_PER_SCALE if _analyses(values) else _BYTES_PER_SCALE


def _scale(values: Values) -> int:
    """The scale factor: as given, or by the size that the database shall have."""
    if given := integer(values, "scale"):
        return given
    wanted = float_value(values, "database_share") * integer(values, "shared_buffers")
    return max(1, round((wanted - _BYTES_OF_EMPTY) / _bytes_per_scale(values)))


def _clients(values: Values) -> int:
    return integer(values, "clients")


def _share(values: Values) -> int:
    """Transactions that each client does, where work is given and no time; else 0. Of queries that differ all, as often
    as each other.
    """
    kinds = len(_pgbench_script.QUERIES) if _analyses(values) else 1
    return kinds * math.ceil(integer(values, "transactions") / (kinds * max(1, _clients(values))))


def database_bytes(values: Values) -> int:
    """About how large the database is, by what one scale factor was measured to take."""
    return _BYTES_OF_EMPTY + _scale(values) * _bytes_per_scale(values)


def lead(values: Values, cpus: int) -> float:
    """Seconds before the measured part: as given, or enough for every client to touch what the database fills."""
    if given := float_value(values, "lead"):
        return given
    return _postgres.lead(_mapped(values), cpus)


def _mapped(values: Values) -> int:
    """Bytes that all clients' backends together have mapped of shared_buffers, each counted by itself."""
    filled = min(database_bytes(values), integer(values, "shared_buffers"))
    return integer(values, "clients") * filled


def _tail(values: Values) -> float:
    """Seconds for which the clients stay after the measured part."""
    return min(_LONGEST_TAIL, _LEAST_TAIL + _mapped(values) * _LOOKING)


class Pgbench(StagedWorkload):
    """A server of its own for every attempt, on a unix socket; the policy is about shared_buffers."""

    name = "pgbench"
    description = "PostgreSQL under pgbench: TPC-B (read and write), look-ups alone, or analytic queries"
    clients = True
    choices = (("mode", MODES), ("protocol", ("simple", "extended", "prepared")))
    least = (("clients", 1), ("scale", 0), ("seed", 0), ("duration", 1), ("lead", 0), ("transactions", 0))
    positive = ("database_share",)
    parameters = (
        Parameter("mode", "text", "tpcb", "tpcb (read and write), select-only, or analytic (five queries after TPC-H)"),
        Parameter("database_share", "number", 0.75, "size of the database, in shared_buffers"),
        Parameter("scale", "integer", 0, "pgbench's scale factor, about 15 MB each; 0: by database_share"),
        Parameter("shared_buffers", "size", "1536m", "the server's buffers, which the policy is about"),
        Parameter("clients", "integer", 4, "connections, each with a backend of its own"),
        Parameter("duration", "duration", "10s", "length of the measured part"),
        Parameter(
            "transactions",
            "integer",
            0,
            "so many over all clients, in place of `duration`: data that are written grow alike; 0: for `duration`",
        ),
        Parameter("lead", "duration", 0, "time before it, in which clients warm up; 0: by their number and the size"),
        Parameter("protocol", "text", "simple", "how pgbench sends queries: simple, extended or prepared"),
        Parameter("settings", "text", "", "settings of the server beside the published ones: 'NAME=VALUE ...'"),
        Parameter("seed", "integer", 1, "of pgbench's random numbers"),
        Parameter("postgres", "text", "", "the folder of PostgreSQL's programs (default: the newest here)"),
    )
    metrics = (
        Metric("tps", "transactions/s", "higher", "transactions a second, without the time to connect"),
        Metric("tps_connecting", "transactions/s", "higher", "the same with the time to connect"),
        Metric("latency_p50_ms", "ms", "lower", "median time of a transaction"),
        Metric("latency_p95_ms", "ms", "lower", "95th percentile of the time of a transaction"),
        Metric("latency_p99_ms", "ms", "lower", "99th percentile of the time of a transaction"),
        Metric("server_cpu_us", "us", "lower", "CPU time of the server for each transaction, user and system"),
        Metric("wal_bytes", "bytes", "neutral", "write-ahead log for each transaction, warm-up and tail included"),
    )
    delivered_share = 0.9

    def refuses(self, treatment: Treatment, values: Values) -> str | None:
        """Values that cannot be. Every treatment can be taken, though `thp` reaches no shared memory."""
        if (reason := super().refuses(treatment, values)) is not None:
            return reason
        try:
            self._settings(values)
        except ValueError as error:
            return f"settings: {error}"
        return None

    def turns_refused(self, values: Values) -> str | None:
        """An arm that is faster must not have changed its data more."""
        if values["mode"] == "tpcb" and not integer(values, "transactions"):
            return (
                "in mode = 'tpcb' the data grow with every transaction, more so under the faster arm: give all arms the"
                " same work (transactions = N, in place of a duration)"
            )
        return None

    def missing(self, values: Values) -> tuple[Missing, ...]:
        """A server, pgbench, and the extensions that load, list and read buffers."""
        return _postgres.missing(str(values["postgres"]), ("pgbench",), EXTENSIONS)

    def memory(self, treatment: Treatment, values: Values) -> int:
        """The buffers with what the server keeps of them (6% seen), and every backend's own."""
        own = _BYTES_PER_CLIENT + (_HASHES * _pgbench_script.WORK_MEM if _analyses(values) else 0)
        return integer(values, "shared_buffers") * 106 // 100 + integer(values, "clients") * own

    def pooled(self, treatment: Treatment, values: Values) -> int:
        """The whole shared memory, as the server itself says."""
        return _postgres.segment(str(values["postgres"]), self._settings(values), treatment.target.size)

    def _settings(self, values: Values) -> dict[str, str]:
        buffers, given = integer(values, "shared_buffers"), str(values["settings"])
        work = _share(values) * _clients(values)
        chosen = _postgres.between_checkpoints(float_value(values, "duration"))
        chosen |= _postgres.calm(work * _WAL_PER_TRANSACTION, buffers) if work else {}
        chosen |= _pgbench_script.SETTINGS if _analyses(values) else {}
        return _postgres.settings(buffers, _clients(values), given, chosen)

    def configuration(self, treatment: Treatment, values: Values) -> Configuration:
        """The server's own settings."""
        return _postgres.configuration(treatment)

    def data(self, values: Values) -> Data:
        """The tables at the scale, vacuumed and frozen, with the extensions of the warm-up; cleanly stopped.

        Nothing in them is random: pgbench's first state of the bank is all zeros, and of other tables hashes.
        """
        installation = _postgres.installed(str(values["postgres"]))
        scale, analyses = _scale(values), _analyses(values)

        def recipe(places: Places) -> Iterable[Act]:
            yield _postgres.initdb(installation, places)
            yield _postgres.server(installation, places, _MAKING, keep=True)
            yield _postgres.psql(installation, places, "create", f"CREATE DATABASE {_DATABASE}")
            if analyses:
                made = _pgbench_script.statements(scale)
                yield _postgres.psql(installation, places, "tables", *made, database=_DATABASE, timeout=86400)
            else:
                own = ("-i", "-q", "-I", "dtgvp", "-F", str(_FILL_FACTOR), "-s", str(scale), _DATABASE)
                yield _postgres.run(installation, places, "pgbench", *own, timeout=86400)
            statements = [f"CREATE EXTENSION {name}" for name in EXTENSIONS]
            yield _postgres.psql(
                installation,
                places,
                "rest",
                *(*statements, "VACUUM (FREEZE, ANALYZE)", "CHECKPOINT"),
                database=_DATABASE,
                timeout=86400,
            )

        key: dict[str, str | int | float | bool] = {"scale": scale, "postgres": installation.version, "made": 2}
        key |= {"tables": "analytic"} if analyses else {}
        # The WAL of making them stays behind, up to its own limit.
        grows = _share(values) * _clients(values) * _WAL_SEEN if values["mode"] == "tpcb" else 0
        return Data(name="pgbench", key=key, recipe=recipe, bytes=database_bytes(values) + (128 << 20) + grows)

    def parted_refused(self, values: Values) -> str | None:
        """Nothing is against it."""
        return None

    def far_ports(self, values: Values, places: Places) -> int:
        """The server's."""
        return 1

    def far_programs(self, values: Values) -> tuple[str, ...]:
        """The client alone."""
        return ("pgbench",)

    def exposed(self, values: Values) -> str | None:
        """It has a password."""
        return None

    def procedure(self, treatment: Treatment, values: Values, places: Places) -> Procedure:
        """The server under the treatment; pgbench beside it until the pages are proven."""
        installation = _postgres.installed(str(values["postgres"]))
        mode, duration = str(values["mode"]), float_value(values, "duration")
        before = lead(values, len(places.sut))
        clients, share = _clients(values), _share(values)
        chosen = {**self._settings(values), **_postgres.paging(treatment)}
        threads = min(clients, len(places.client) or 1)
        far, here = places.far, _postgres.client(installation, places, "pgbench")
        where, environment = ((), {}) if far is None else _postgres.far_client(far)
        folder = places.data if far is None else far.folder
        argv = (
            *(here if far is None else (far.program("pgbench"), *where)),
            "--no-vacuum",
            f"--client={clients}",
            f"--jobs={threads}",
            f"--time={_DAY if share else math.ceil(before + duration + _tail(values) + places.idle)}",
            f"--protocol={values['protocol']}",
            f"--scale={_scale(values)}",
            f"--random-seed={values['seed']}",
            *_pgbench_script.variables(mode, share, folder),
            "--log",
            f"--log-prefix={places.run if far is None else folder}/transactions",
            _DATABASE,
        )
        facts = "SELECT pg_database_size(current_database()), pg_current_wal_insert_lsn() - '0/0'"
        tables = _pgbench_script.NAMES if _analyses(values) else _TABLES
        prewarm = [f"SELECT pg_prewarm('{name}')" for name in tables]
        return Procedure(
            before=(_pgbench_script.script(mode, share, places), *(() if far is None else _postgres.guards(far))),
            servers=(_postgres.server(installation, places, chosen),),
            warm=(
                *(() if far is None else (_postgres.far_role(installation, places),)),
                _postgres.psql(installation, places, "prewarm", *prewarm, database=_DATABASE, timeout=3600),
                _postgres.psql(installation, places, "begun", facts, database=_DATABASE),
            ),
            timed=Launch(argv=argv, proof="live", environment=environment),
            window=Window(before, 0.0 if share else duration, _pgbench_script.quota(share, clients)),
            enough="ALRM",  # by which pgbench tells itself that its time is over
            after=(_postgres.psql(installation, places, "ended", facts, database=_DATABASE),),
        )

    def read(self, outputs: Outputs, values: Values) -> Reading:
        """Rates and latencies of the measured part, from the log of every transaction."""
        said = outputs.stdout()
        connected, failed, threads = _CONNECTED.search(said), _FAILED.search(said), _THREADS.search(said)
        if connected is None or failed is None or threads is None:
            raise ValueError(f"pgbench's summary is not as expected: {said[-300:]!r}")
        seen = measured(outputs.files(_LOG), outputs.begin, outputs.end, outputs.parts, _share(values))
        size, begun = _bare(outputs.stdout("begun"))
        grown, ended = _bare(outputs.stdout("ended"))
        metrics: dict[str, float | None] = {
            "tps": seen.transactions / seen.seconds,
            "tps_connecting": seen.transactions / (seen.seconds + figure(connected[1], "the connection time") / 1e3),
            "server_cpu_us": _outputs.cpu_us(outputs, seen.between),
            "wal_bytes": (ended - begun) / max(1, seen.regular),
        }
        names = [f"latency_p{round(quantile * 100)}_ms" for quantile in QUANTILES]
        absent = {} if seen.latency_ms else dict.fromkeys(names, UNTIMED)
        metrics |= dict(zip(names, seen.latency_ms or (None,) * len(names), strict=True))
        if metrics["server_cpu_us"] is None:
            absent["server_cpu_us"] = "the server's CPU time was not counted"
        wrong = whole(failed[1], "the failed transactions")
        asked = integer(values, "clients")
        problem = f"{wrong} transactions failed" if wrong else None
        if seen.clients != asked:
            problem = f"{seen.clients} of {asked} clients made any transaction"
        grows: dict[str, int] = {}
        if values["mode"] == "tpcb":
            began = len(_CHECKPOINT.findall(outputs.stderr("postgres")))
            grows = {
                "transactions_made": seen.regular,
                "database_grew_bytes": grown - size,
                "wal_grew_bytes": ended - begun,
                "checkpoints": began,
            }
        marks = tuple(_marks(outputs, seen, whole(threads[1], "the threads", low=1)))
        if _share(values) and grows.get("checkpoints"):
            marks += (f"{grows['checkpoints']} checkpoints began while the server ran: raise max_wal_size (settings)",)
        return Reading(
            metrics=metrics,
            absent=absent,
            series=seen.series,
            facts={
                "database_bytes": size,
                "scale": _scale(values),
                "transactions": seen.transactions,
                "warmed_up_before_s": round(seen.warmed_s, 3),
                **grows,
            },
            problem=problem,
            marks=marks,
            of_time=("warmed_up_before_s", *marks),
        )


def _bare(said: str) -> tuple[int, int]:
    """The size of the database and the position in its WAL, as psql prints them."""
    match = re.fullmatch(r"(\d+)\|(\d+)", said.strip())
    if match is None:
        raise ValueError(f"psql's answer is not as expected: {said[:200]!r}")
    return whole(match[1], "the database's size"), whole(match[2], "the position in its WAL")


def _marks(outputs: Outputs, seen: MeasuredPart, threads: int) -> Iterable[str]:
    """Why the measured part is not what it should be: the steady state of a warm server."""
    if seen.warmed_s < 0:
        yield f"the last client was still warming up {-seen.warmed_s:.1f} s into the measured part: raise lead"
    if _outputs.saturated(outputs, threads):
        yield "the client was saturated: pgbench used all of its CPU time"


# For making the data: nothing in the background, and little WAL, which is copied with them.
_MAKING = {
    "autovacuum": "off",
    "huge_pages": "off",
    "shared_buffers": "256MB",
    "maintenance_work_mem": "256MB",
    "max_wal_size": "64MB",
    "min_wal_size": "32MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}

WORKLOAD = Pgbench()
