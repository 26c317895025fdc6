"""The scripts that pgbench runs for each client, and how it is given a share of work of which it does no more. Pure.

A client's first transaction is its warm-up: it touches all of shared_buffers that the database fills, in that client's
own backend, as page tables are a process's own. With a share of work its second one waits until it may begin, and when
it has done its share it says so and idles, attached, until it is ended: its pages are still to be proven.

Sources: PostgreSQL documentation, pgbench (`\\if`, `\\set`, `\\sleep`) and "System Administration Functions"
(pg_stat_file); transactions are pgbench's own (`tpcb-like`, `select-only`), or `_analytic`'s.
"""

from __future__ import annotations

import re

from hugewise.model.scene import Places, Quota, Write
from hugewise.workloads import _analytic
from hugewise.workloads._postgres_warm import TOUCH

__all__ = ["MODES", "quota", "script", "variables"]

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
    "analytic": _analytic.SCRIPT,
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
