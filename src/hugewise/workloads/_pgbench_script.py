"""The scripts that pgbench runs for each client, and how it is given a share of work of which it does no more. Pure.

A client's first transaction is its warm-up: it touches all of shared_buffers that the database fills, in that client's
own backend, as page tables are a process's own. With a share of work its second one waits until it may begin, and when
it has done its share it says so and idles, attached, until it is ended: its pages are still to be proven.

Sources: PostgreSQL documentation, pgbench (`\\if`, `\\set`, `\\sleep`) and "System Administration Functions"
(pg_stat_file); transactions are pgbench's own (`tpcb-like`, `select-only`), or those of mode `analytic`.

Tables and queries of pgbench's mode `analytic`: few long queries over much of the data, instead of many short ones.

Five queries after TPC-H, over tables after its: a scan with sums (Q1), a join of three tables (Q3), a test of existence
by an index (Q4), a selective scan (Q6), and a join with a table that is looked up (Q14). It is no TPC-H, and no result
of it: values are hashes of their keys, the same in all data that are made; amounts are whole cents; parameters are
those of TPC-H's validation. Each query is a transaction, and clients go through them in turn.

A query is one backend's: with parallel workers, which come and go, the pages of what is measured could not be proven.
Nor is it compiled, which takes longer than some of the queries.

Sources: TPC-H revision 3.0.1, sections 1.4, 2.4 and 4.2.3; PostgreSQL documentation, "Query Planning".
"""

from __future__ import annotations

import re

from hugewise.model.procedure import Places, Quota, Write
from hugewise.workloads._postgres import TOUCH

# Measured: pg_database_size of PostgreSQL 15 at scale 2 (14.83 MB each) and 40, vacuumed.
BYTES_PER_SCALE = 14_724_000

WORK_MEM = 64 << 20
"""Bytes that a query may take for each of its hash tables or sorts, before it writes files."""

SETTINGS = {"max_parallel_workers_per_gather": "0", "jit": "off", "work_mem": f"{WORK_MEM >> 10}kB"}

NAMES = (
    *("analytic_customers", "analytic_customers_pkey", "analytic_parts", "analytic_parts_pkey"),
    *("analytic_orders", "analytic_orders_pkey", "analytic_items", "analytic_items_pkey"),
)

_ROWS = {"customers": 2_000, "parts": 2_500, "orders": 20_000}  # of a scale of 1; an order has four items
# A value of so many that a key has, the same everywhere and always.
_PICK = (
    "CREATE FUNCTION pick(key bigint, seed bigint, among bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS"
    " 'SELECT ((hashint8extended(key, seed) % among) + among) % among'"
)
_TABLES = {
    "customers": "SELECT id, pick(id, 1, 5)::int AS segment, pick(id, 2, 25)::int AS nation,"
    " rpad('', 120, 'c') AS text FROM generate_series(1, {customers}) AS id",
    "parts": "SELECT id, pick(id, 3, 150)::int AS kind, pick(id, 4, 25)::int AS brand,"
    " rpad('', 90, 'p') AS text FROM generate_series(1, {parts}) AS id",
    "orders": "SELECT id, 1 + pick(id, 5, {customers}) AS customer, DATE '1992-01-01' + pick(id, 6, 2406)::int AS day,"
    " pick(id, 7, 5)::int AS priority, rpad('', 60, 'o') AS text FROM generate_series(1, {orders}) AS id",
    "items": "SELECT o.id AS order_id, n AS number, 1 + pick(o.id * 8 + n, 8, {parts}) AS part,"
    " 1 + pick(o.id * 8 + n, 9, 50)::int AS quantity, 90000 + pick(o.id * 8 + n, 10, 10000000) AS price,"
    " pick(o.id * 8 + n, 11, 11)::int AS discount, pick(o.id * 8 + n, 12, 3)::int AS flag,"
    " o.day + 1 + pick(o.id * 8 + n, 13, 121)::int AS shipped, rpad('', 40, 'i') AS text"
    " FROM analytic_orders o, generate_series(1, 4) AS n ORDER BY o.id, n",
}

QUERIES = (
    # Q1: pricing summary
    "SELECT flag, count(*), sum(quantity), sum(price), sum(price * (100 - discount)), avg(price) FROM analytic_items"
    " WHERE shipped <= DATE '1998-09-02' GROUP BY flag ORDER BY flag;",
    # Q3: shipping priority
    "SELECT o.id, sum(i.price * (100 - i.discount)) AS revenue, o.day FROM analytic_customers c"
    " JOIN analytic_orders o ON o.customer = c.id JOIN analytic_items i ON i.order_id = o.id"
    " WHERE c.segment = 1 AND o.day < DATE '1995-03-15' AND i.shipped > DATE '1995-03-15'"
    " GROUP BY o.id, o.day ORDER BY revenue DESC, o.id LIMIT 10;",
    # Q4: order priority checking
    "SELECT o.priority, count(*) FROM analytic_orders o WHERE o.day >= DATE '1993-07-01' AND o.day < DATE '1993-10-01'"
    " AND EXISTS (SELECT FROM analytic_items i WHERE i.order_id = o.id AND i.shipped > o.day + 60)"
    " GROUP BY o.priority ORDER BY o.priority;",
    # Q6: forecasting revenue change
    "SELECT sum(price * discount) FROM analytic_items WHERE shipped >= DATE '1994-01-01'"
    " AND shipped < DATE '1995-01-01' AND discount BETWEEN 5 AND 7 AND quantity < 24;",
    # Q14: promotion effect
    "SELECT sum(CASE WHEN p.kind < 25 THEN i.price * (100 - i.discount) END), sum(i.price * (100 - i.discount))"
    " FROM analytic_items i JOIN analytic_parts p ON p.id = i.part"
    " WHERE i.shipped >= DATE '1995-09-01' AND i.shipped < DATE '1995-10-01';",
)


def _script() -> str:
    """The next of the queries: `query` counts them in each client."""
    branches = [f"\\{'elif' if number else 'if'} :query = {number}\n{query}\n" for number, query in enumerate(QUERIES)]
    return f"\\set query (:query + 1) % {len(QUERIES)}\n{''.join(branches)}\\endif\n"


ANALYTIC_SCRIPT = _script()


def statements(scale: int) -> tuple[str, ...]:
    """SQL that makes the tables, each statement in a transaction of its own. A `scale` of 1 has 20,000 orders."""
    rows = {name: scale * each for name, each in _ROWS.items()}
    keys = {"customers": "id", "parts": "id", "orders": "id", "items": "order_id, number"}
    return (
        _PICK,
        *(f"CREATE TABLE analytic_{name} AS {query.format(**rows)}" for name, query in _TABLES.items()),
        *(f"ALTER TABLE analytic_{name} ADD PRIMARY KEY ({key})" for name, key in keys.items()),
    )


_WARM = f"""\
\\if :warmed = 0
{TOUCH};
\\set warmed 1
"""
# By the server, as pgbench itself sees no files. Its clients hold no snapshot while they idle at the end: it would keep
# old rows alive that others still have to pass.
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
MODES = {
    "tpcb": """\
\\set aid random(1, 100000 * :scale)
\\set bid random(1, 1 * :scale)
\\set tid random(1, 10 * :scale)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
""",
    "select-only": """\
\\set aid random(1, 100000 * :scale)
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
""",
    "analytic": ANALYTIC_SCRIPT,
}

_BEGIN, _DONE = "begin", "done."


def script(mode: str, share: int, places: Places) -> Write:
    """What each client runs again and again, to be written below the data. `share`: of how many transactions it does no
    more; 0: until its time is over.
    """
    if not share:
        return Write(_name(mode), f"{_WARM}\\else\n{MODES[mode]}\\endif\n", far=True)
    files = {"begin": _quoted(f"{places.data}/{_BEGIN}"), "done": _quoted(f"{places.run}/{_DONE}")}
    return Write(_name(mode), f"{_WARM}{_WAIT.format(**files)}\\else\n{_LESS}{MODES[mode]}\\endif\n", far=True)


def variables(mode: str, share: int, folder: str) -> tuple[str, ...]:
    """Options of pgbench that give it the script in `folder`, and what that begins with."""
    left = (f"--define=share={share}", f"--define=left={share + 1}") if share else ()
    turn = ("--define=query=0",) if mode == "analytic" else ()
    return ("--define=warmed=0", *turn, *left, f"--file={folder}/{_name(mode)}")


def quota(share: int, clients: int) -> Quota | None:
    """How the clients are told to begin, and tell that they are through."""
    return Quota(Write(_BEGIN, ""), re.compile(rf"{re.escape(_DONE)}\d+"), clients) if share else None


def _name(mode: str) -> str:
    return f"{mode}.sql"


def _quoted(path: str) -> str:
    """Within quotes of SQL, and no variable of pgbench's."""
    return path.replace("'", "''")
