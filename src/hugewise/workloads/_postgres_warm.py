"""How every backend of PostgreSQL touches shared_buffers before the clock, and how long that takes. Pure.

Page tables are a process's own: what another connection has read, or pg_prewarm loaded, a backend still faults in page
by page when it first comes to it. So each reads, once and by itself, what the database fills of the buffers.

Sources: PostgreSQL documentation, pg_buffercache, pageinspect, "CREATE TRIGGER" (WHEN), and `set_config`.
"""

from __future__ import annotations

import math

__all__ = ["EXTENSIONS", "TOUCH", "at_the_first_update", "lead"]

EXTENSIONS = ("pg_prewarm", "pg_buffercache", "pageinspect")

TOUCH = (
    "SELECT sum(length(get_raw_page(c.oid::regclass::text, 'main', b.relblocknumber))) FROM pg_buffercache b JOIN"
    " pg_class c ON pg_relation_filenode(c.oid) = b.relfilenode WHERE c.relnamespace = 2200 AND b.relforknumber = 0"
)
"""Read whole all pages of the database that are in the buffers.

get_raw_page copies the page: both 4 KiB halves are touched, and no buffer is replaced. A scan would go round in a ring
of 32 buffers where the database is larger than shared_buffers. 2200 is the schema `public`: all tables and indexes of
the database, and none of the catalogue.
"""

# Measured: a backend of its own CPU touches 627 MB in 0.31 s, base pages; twice that for a busy machine, and some
# seconds for the clients to connect and to leave the caches in their steady state.
_WARMING = 2 * 0.31 / 627e6
_SETTLING = 3.0

_WARM = "hugewise.warm"
_PAGE = 8192
_A_PAGE = "SELECT repeat('x', 8000)"  # of a row
_FREE = "SELECT count(*) - 1000 FROM pg_buffercache WHERE relfilenode IS NULL"  # the rest is for the catalogue


def lead(mapped: int, cpus: int) -> float:
    """Seconds until all backends have touched their buffers on that many CPUs, and the clients have settled.

    mapped  bytes of shared_buffers, counted for each backend by itself
    """
    return float(math.ceil(_SETTLING + mapped * _WARMING / max(1, cpus)))


def at_the_first_update(table: str, clients: int, room: int) -> tuple[str, ...]:
    """Statements after which a backend touches its buffers before it first updates the table: for clients that have no
    hook of their own.

    table    that each of the clients updates
    clients  how many there are
    room     bytes by which the database may grow: so much of what is free of the buffers is touched as well

    What is free is held by a table that the last client drops: the buffers that it leaves are the first to be taken. Of
    that much growth no backend has a fault (seen without it: 600 to 200 a second over 20 s, 6 warehouses of TPC-C).
    Afterwards the trigger is a comparison for each such update, in all arms alike. A warm-up whose transaction is
    rolled back comes once more, as its setting goes too.
    """
    return (
        *(f"CREATE EXTENSION IF NOT EXISTS {name}" for name in EXTENSIONS),
        "CREATE UNLOGGED TABLE filler (page text)",
        "ALTER TABLE filler ALTER page SET STORAGE PLAIN",
        f"INSERT INTO filler {_A_PAGE} FROM generate_series(1, least({room // _PAGE}, ({_FREE})))",
        "CREATE SEQUENCE warmed",
        "CREATE FUNCTION touch_buffers() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" PERFORM {TOUCH.removeprefix('SELECT ')};"
        f" PERFORM set_config('{_WARM}', 'yes', false);"
        f" IF nextval('warmed') = {clients} THEN DROP TABLE filler; END IF; RETURN NULL; END $$",
        f"CREATE TRIGGER touch_buffers BEFORE UPDATE ON {table} FOR EACH STATEMENT"
        f" WHEN (current_setting('{_WARM}', true) IS DISTINCT FROM 'yes') EXECUTE FUNCTION touch_buffers()",
    )
