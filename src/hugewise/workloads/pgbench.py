"""PostgreSQL under pgbench: TPC-B, look-ups alone, or long queries, over the database's size and the number of clients.

The database is made once with pgbench's own tables. Every client's first transaction touches all of shared_buffers that
the database fills, in that client's own backend: page tables are a process's own, so that a warm-up over another
connection would leave the faults to the measured part.

What writes makes its data grow, and a faster arm more so. With `transactions` every attempt does as many, however long
that takes, and nothing comes by the server's own clock (checkpoints, vacuum). A client's second transaction waits until
it may begin; when it has done its share it says so and idles, attached: its pages are still to be proven.

The mode `analytic` has five queries after TPC-H, over tables after its: a scan with sums (Q1), a join of three tables
(Q3), a test of existence by an index (Q4), a selective scan (Q6), and a join with a table that is looked up (Q14). It
is no TPC-H, and no result of it: values are hashes of their keys; amounts are whole cents; parameters are those of
TPC-H's validation. A query is one backend's: the pages of parallel workers, which come and go, could not be proven. Nor
is it compiled, which takes longer than some of the queries.

Sources: PostgreSQL documentation, pgbench ("if", "set", "sleep"), pg_prewarm, "System Administration Functions"
(pg_stat_file), "WAL Configuration" and "Query Planning"; TPC-H revision 3.0.1, sections 1.4, 2.4 and 4.2.3.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from importlib import resources

from hugewise.model.metric import Metric
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Act, Data, Outputs, Places, Procedure, Quota, Reading, Window, Write
from hugewise.model.workload import Configuration, Launch, Missing, Parameter
from hugewise.reading import figure, whole
from hugewise.workloads import _outputs, _postgres
from hugewise.workloads._outputs import QUANTILES, UNTIMED, MeasuredPart, measured
from hugewise.workloads._postgres import EXTENSIONS, TOUCH
from hugewise.workloads._staged import PartedWorkload, Values, float_value, integer

# Measured: pg_database_size of PostgreSQL 15 at scale 2 (14.83 MB each) and 40, vacuumed.
BYTES_PER_SCALE = 14_724_000

WORK_MEM = 64 << 20
"""Bytes that a query may take for each of its hash tables or sorts, before it writes files."""

SETTINGS = {"max_parallel_workers_per_gather": "0", "jit": "off", "work_mem": f"{WORK_MEM >> 10}kB"}

NAMES = (
    *("analytic_customers", "analytic_customers_pkey", "analytic_parts", "analytic_parts_pkey"),
    *("analytic_orders", "analytic_orders_pkey", "analytic_items", "analytic_items_pkey"),
)

_ROWS = {"customers": 2_000, "parts": 2_500, "orders": 20_000}  # rows at scale 1; an order has four items


def _sql(name: str) -> str:
    return resources.files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")


def statements(scale: int) -> tuple[str, ...]:
    """Return the SQL of the tables, each statement in a transaction of its own. A `scale` of 1 has 20,000 orders."""
    rows = {name: scale * each for name, each in _ROWS.items()}
    return tuple(_sql("analytic-tables").format(**rows).removesuffix(";\n").split(";\n"))


_WARM = f"""\
\\if :warmed = 0
{TOUCH};
\\set warmed 1
"""
# Done by the server, as pgbench itself sees no files. Idle clients at the end hold no snapshot: it would keep alive old
# rows that others still have to pass.
_WAIT = """\
\\elif :left = :share + 1
DO $$ BEGIN WHILE (pg_stat_file('{begin}', true)).size IS NULL LOOP PERFORM pg_sleep(0.002); END LOOP; END $$;
\\set left :left - 1
\\elif :left = 0
DO $$ BEGIN EXECUTE format('COPY (SELECT 1) TO %L', '{done}' || pg_backend_pid()); END $$;
\\set left :left - 1
\\elif :left < 0
\\sleep 10 ms
"""
_LESS = "\\set left :left - 1\n"
MODES = {mode: _sql(mode) for mode in ("tpcb", "select-only", "analytic")}
_QUERIES = MODES["analytic"].count(":query = ")

_BEGIN, _DONE = "begin", "done."


def script(mode: str, share: int, places: Places) -> Write:
    """Return the script that each client repeats; `share`: its transactions at most (0: until its time is over)."""
    if not share:
        return Write(_name(mode), f"{_WARM}\\else\n{MODES[mode]}\\endif\n", far=True)
    files = {"begin": _quoted(f"{places.data}/{_BEGIN}"), "done": _quoted(f"{places.run}/{_DONE}")}
    return Write(_name(mode), f"{_WARM}{_WAIT.format(**files)}\\else\n{_LESS}{MODES[mode]}\\endif\n", far=True)


def variables(mode: str, share: int, folder: str) -> tuple[str, ...]:
    """Return options of pgbench that give it the script in `folder`, and what that begins with."""
    left = (f"--define=share={share}", f"--define=left={share + 1}") if share else ()
    turn = ("--define=query=0",) if mode == "analytic" else ()
    return ("--define=warmed=0", *turn, *left, f"--file={folder}/{_name(mode)}")


def quota(share: int, clients: int) -> Quota | None:
    """Return how the clients are told to begin, and how they tell that they are through."""
    return Quota(Write(_BEGIN, ""), re.compile(rf"{re.escape(_DONE)}\d+"), clients) if share else None


def _name(mode: str) -> str:
    return f"{mode}.sql"


def _quoted(path: str) -> str:
    return path.replace("'", "''")


_DATABASE = "pgbench"
# A row for each page is left free: else the first update of a page moves its row to a new page at the end and adds to
# the index, and later ones do not, so that transactions change while they are measured (seen over 10 s: 4% and then 25%
# of the updates stayed on their page; with this room all of them).
_FILL_FACTOR = 98
# Measured so: pg_database_size of PostgreSQL 15 at scale 46, vacuumed; the published text says about 16 MB.
_BYTES_PER_SCALE = 15_905_400
_BYTES_OF_EMPTY = 7_892_000

# A client's private memory beside shared_buffers: 5 to 9 MiB seen (caches of the catalogue, prepared statements).
_BYTES_PER_CLIENT = 16 << 20
_HASHES = 4  # of an analytic query at a time: two, each of hash_mem_multiplier (2 by default) times work_mem

# The clients stay attached after the measured part, while pages are proven, and then end. Measured: 0.027 s for the
# page tables of a GiB of base pages, of every process; twice that. The proof comes first, so that more than a minute is
# not needed.
_LOOKING = 2 * 0.027 / 2**30
_LEAST_TAIL, _LONGEST_TAIL = 2.0, 60.0

# Limits for a share of work: no time ends it but the attempt's own. A page is written whole when it is first changed
# after a checkpoint, of which a transaction changes five at the most; the room is for twice as much.
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
    return values["mode"] == "analytic"


def _bytes_per_scale(values: Values) -> int:
    return BYTES_PER_SCALE if _analyses(values) else _BYTES_PER_SCALE


def _scale(values: Values) -> int:
    if given := integer(values, "scale"):
        return given
    wanted = float_value(values, "database_share") * integer(values, "shared_buffers")
    return max(1, round((wanted - _BYTES_OF_EMPTY) / _bytes_per_scale(values)))


def _clients(values: Values) -> int:
    return integer(values, "clients")


def _share(values: Values) -> int:
    # If queries differ, each is done as often as any other.
    kinds = _QUERIES if _analyses(values) else 1
    return kinds * math.ceil(integer(values, "transactions") / (kinds * max(1, _clients(values))))


def database_bytes(values: Values) -> int:
    """About how large the database is, by what one scale factor was measured to take."""
    return _BYTES_OF_EMPTY + _scale(values) * _bytes_per_scale(values)


def lead(values: Values, cpus: int) -> float:
    """Return seconds before the measured part: as given, or enough for all clients to touch what the database fills."""
    if given := float_value(values, "lead"):
        return given
    return _postgres.lead(_mapped(values), cpus)


def _mapped(values: Values) -> int:
    # All clients' backends map shared_buffers, each counted by itself.
    filled = min(database_bytes(values), integer(values, "shared_buffers"))
    return integer(values, "clients") * filled


def _tail(values: Values) -> float:
    return min(_LONGEST_TAIL, _LEAST_TAIL + _mapped(values) * _LOOKING)


class Pgbench(PartedWorkload):
    """A server of its own for every attempt, on a unix socket; the policy is about shared_buffers."""

    name = "pgbench"
    description = "PostgreSQL under pgbench: TPC-B (read and write), look-ups alone, or analytic queries"
    clients = True
    client_programs = ("pgbench",)
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
        if (reason := super().refuses(treatment, values)) is not None:
            return reason
        try:
            self._settings(values)
        except ValueError as error:
            return f"settings: {error}"
        return None

    def turns_refused(self, values: Values) -> str | None:
        """Return why turns are refused, or None: a faster arm must not have changed its data more."""
        if values["mode"] == "tpcb" and not integer(values, "transactions"):
            return (
                "in mode = 'tpcb' the data grow with every transaction, more so under the faster arm: give all arms the"
                " same work (transactions = N, in place of a duration)"
            )
        return None

    def missing(self, values: Values) -> tuple[Missing, ...]:
        return _postgres.missing(str(values["postgres"]), ("pgbench",), EXTENSIONS)

    def memory(self, treatment: Treatment, values: Values) -> int:
        """Return the buffers with what the server keeps of them (6% seen), and every backend's own."""
        own = _BYTES_PER_CLIENT + (_HASHES * WORK_MEM if _analyses(values) else 0)
        return integer(values, "shared_buffers") * 106 // 100 + integer(values, "clients") * own

    def pooled(self, treatment: Treatment, values: Values) -> int:
        return _postgres.segment(str(values["postgres"]), self._settings(values), treatment.target.size)

    def _settings(self, values: Values) -> dict[str, str]:
        buffers, given = integer(values, "shared_buffers"), str(values["settings"])
        work = _share(values) * _clients(values)
        chosen = _postgres.without_page_images(float_value(values, "duration"))
        chosen |= _postgres.calm(work * _WAL_PER_TRANSACTION, buffers) if work else {}
        chosen |= SETTINGS if _analyses(values) else {}
        return _postgres.settings(buffers, _clients(values), given, chosen)

    def configuration(self, treatment: Treatment, values: Values) -> Configuration:
        return _postgres.configuration(treatment)

    def data(self, values: Values) -> Data:
        """Return the tables at the scale, vacuumed, without random values, and the extensions of the warm-up."""
        installation = _postgres.installed(str(values["postgres"]))
        scale, analyses = _scale(values), _analyses(values)

        def recipe(places: Places) -> Iterable[Act]:
            yield _postgres.initdb(installation, places)
            yield _postgres.server(installation, places, _MAKING, keep=True)
            yield _postgres.psql(installation, places, "create", f"CREATE DATABASE {_DATABASE}")
            if analyses:
                made = statements(scale)
                yield _postgres.psql(installation, places, "tables", *made, database=_DATABASE, timeout=86400)
            else:
                own = ("-i", "-q", "-I", "dtgvp", "-F", str(_FILL_FACTOR), "-s", str(scale), _DATABASE)
                yield _postgres.run(installation, places, "pgbench", *own, timeout=86400)
            extensions = [f"CREATE EXTENSION {name}" for name in EXTENSIONS]
            yield _postgres.psql(
                installation,
                places,
                "rest",
                *(*extensions, "VACUUM (FREEZE, ANALYZE)", "CHECKPOINT"),
                database=_DATABASE,
                timeout=86400,
            )

        key: dict[str, str | int | float | bool] = {"scale": scale, "postgres": installation.version, "made": 2}
        key |= {"tables": "analytic"} if analyses else {}
        # The WAL of making them stays behind, up to its own limit.
        grows = _share(values) * _clients(values) * _WAL_SEEN if values["mode"] == "tpcb" else 0
        return Data(name="pgbench", key=key, recipe=recipe, bytes=database_bytes(values) + (128 << 20) + grows)

    def procedure(self, treatment: Treatment, values: Values, places: Places) -> Procedure:
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
            *variables(mode, share, folder),
            "--log",
            f"--log-prefix={places.run if far is None else folder}/transactions",
            _DATABASE,
        )
        facts = "SELECT pg_database_size(current_database()), pg_current_wal_insert_lsn() - '0/0'"
        tables = NAMES if _analyses(values) else _TABLES
        prewarm = [f"SELECT pg_prewarm('{name}')" for name in tables]
        return Procedure(
            before=(script(mode, share, places), *(() if far is None else _postgres.guards(far))),
            servers=(_postgres.server(installation, places, chosen),),
            warm=(
                *(() if far is None else (_postgres.far_role(installation, places),)),
                _postgres.psql(installation, places, "prewarm", *prewarm, database=_DATABASE, timeout=3600),
                _postgres.psql(installation, places, "begun", facts, database=_DATABASE),
            ),
            timed=Launch(argv=argv, proof="live", environment=environment),
            window=Window(before, 0.0 if share else duration, quota(share, clients)),
            enough="ALRM",  # pgbench's own signal that its time is over
            after=(_postgres.psql(installation, places, "ended", facts, database=_DATABASE),),
        )

    def read(self, outputs: Outputs, values: Values) -> Reading:
        text = outputs.stdout()
        connected, failed, threads = _CONNECTED.search(text), _FAILED.search(text), _THREADS.search(text)
        if connected is None or failed is None or threads is None:
            raise ValueError(f"pgbench's summary is not as expected: {text[-300:]!r}")
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
    match = re.fullmatch(r"(\d+)\|(\d+)", said.strip())
    if match is None:
        raise ValueError(f"psql's answer is not as expected: {said[:200]!r}")
    return whole(match[1], "the database's size"), whole(match[2], "the position in its WAL")


def _marks(outputs: Outputs, seen: MeasuredPart, threads: int) -> Iterable[str]:
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
