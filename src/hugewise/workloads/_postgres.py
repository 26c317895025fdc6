"""PostgreSQL as a system under test: its programs, how a cluster is made, served and warmed up, how large its pool is.

shared_buffers is a shared anonymous mapping: `enabled` of transparent huge pages never touches it, `shmem_enabled`
does, and pages of a pool come by huge_pages = on (never `try`, which takes base pages without a word when the pool is
short). The pool is sized by the server itself, for the very settings that it will run with (`settings`): those of the
published experiment, what a short run needs, what is given.

Page tables are a process's own: what another connection has read, or pg_prewarm loaded, a backend still faults in page
by page when it first comes to it. So each backend touches, once and by itself and before the clock, what the database
fills of the buffers.

Sources: PostgreSQL documentation, "Linux Huge Pages", "Resource Consumption", pg_buffercache, pageinspect, "CREATE
TRIGGER" (WHEN) and `set_config`; "Benchmark PostgreSQL With Linux HugePages" (Percona, 2018), sizes scaled with
shared_buffers.
"""

from __future__ import annotations

import math
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import msgspec

from hugewise import beneath, unprivileged
from hugewise.deployment import configuration as configuration_
from hugewise.errors import HugewiseError, UserError
from hugewise.machine import programs
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Places, RemoteEndpoint, Server, Step, Write
from hugewise.model.workload import Configuration, Missing
from hugewise.quantity import format_size
from hugewise.workloads import _staged

PACKAGE = "postgresql"
SUPERUSER = "postgres"

_MINIMUM = 15  # the first with shared_memory_size_in_huge_pages
_USUAL = Path("/usr/lib/postgresql")
_VERSION = re.compile(r"\(PostgreSQL\) (\d+)(\S*)")

_PORT = "5432"  # in the socket's name; on a network nothing listens but for clients elsewhere


class PostgresPrograms(msgspec.Struct, frozen=True):
    """A folder with PostgreSQL's programs, and their version, such as 15 and `15.18`."""

    folder: str
    major: int
    version: str

    def program(self, name: str) -> str:
        return f"{self.folder}/{name}"


def find(folder: str = "") -> PostgresPrograms | None:
    """Return the installation in `folder`; else the newest of PATH and Debian's folders, by `postgres`. None: none."""
    on_path = programs.which("postgres")
    usual = programs.matching(f"{_USUAL}/*/bin/postgres")
    folders = [Path(folder)] if folder else [Path(each).parent for each in usual]
    if not folder and on_path is not None:
        folders.append(Path(on_path).resolve().parent if programs.place() is None else Path(on_path).parent)
    installations = [one for each in folders if (one := _installed(each)) is not None]
    return max(installations, key=lambda one: one.major, default=None)


def _installed(folder: Path) -> PostgresPrograms | None:
    program = folder / "postgres"
    if not programs.executable(str(program)):
        return None
    if programs.place() is not None:  # another machine's server cannot be asked, but Debian's folder has its version
        major = folder.parent.name
        version = programs.installed(f"postgresql-{major}") or major
        return PostgresPrograms(str(folder), int(major), version) if major.isdigit() else None
    match = _VERSION.search(_staged.program_output(str(program), "--version") or "")
    return PostgresPrograms(str(folder), int(match[1]), match[1] + match[2]) if match else None


def missing(folder: str = "", wanted: tuple[str, ...] = (), extensions: tuple[str, ...] = ()) -> tuple[Missing, ...]:
    """Return what is missing of PostgreSQL: a server new enough, the named programs beside it, and extensions."""
    installation = find(folder)
    if installation is None:
        if folder and programs.executable(f"{folder}/postgres"):
            return (Missing(f"{folder}/postgres does not say that it is PostgreSQL{unprivileged.as_whom()}"),)
        where = f"in {folder}" if folder else "on PATH or in /usr/lib/postgresql/*/bin"
        return (Missing(f"postgres: no such program {where}", None if folder else PACKAGE),)
    if installation.major < _MINIMUM:
        return (Missing(f"PostgreSQL {installation.version} is too old: {_MINIMUM} or later is needed", PACKAGE),)
    every = ("initdb", "psql", "pg_isready", *wanted)
    absent = [name for name in every if not programs.executable(installation.program(name))]
    if absent:
        return tuple(Missing(f"{name}: no such program in {installation.folder}", PACKAGE) for name in absent)
    lacking = [name for name in extensions if not _has_extension(installation, name)]
    return tuple(
        Missing(f"PostgreSQL {installation.version} has no extension {name}", f"{PACKAGE}-contrib") for name in lacking
    )


def _has_extension(installation: PostgresPrograms, name: str) -> bool:
    # where pg_config is missing, the server will tell
    if programs.place() is not None:
        return True
    share = _staged.program_output(installation.program("pg_config"), "--sharedir")
    return share is None or Path(share, "extension", f"{name}.control").exists()


def installed(folder: str = "") -> PostgresPrograms:
    """Return the installation that `missing` saw. Raises UserError when there is none any more."""
    installation = find(folder)
    if installation is None:
        raise UserError("postgres: no such program", hint=f"apt install {PACKAGE}")
    return installation


def paging(treatment: Treatment) -> dict[str, str]:
    """Return the settings by which the treatment reaches shared_buffers."""
    if treatment.target.kind == "hugetlb":
        wanted = "try" if treatment.surplus else "on"
        return {"huge_pages": wanted, "huge_page_size": f"{treatment.target.size >> 10}kB"}
    return {"huge_pages": "off"}


def configuration(treatment: Treatment) -> Configuration:
    """Return the paging settings as a file; the processes need no variables."""
    return {}, (configuration_.postgresql(paging(treatment)),)


def segment(folder: str, chosen: Mapping[str, str], page: int) -> int:
    """Return bytes of shared memory under the settings, in whole pages of `page`, as a small cluster says."""
    if programs.place() is not None:
        raise UserError(
            "PostgreSQL's pool in a guest is not known before it runs: its server is asked on the host alone",
            hint="take transparent huge pages for PostgreSQL in a guest",
        )
    return _pages(folder, tuple(sorted(chosen.items())), page) * page


@lru_cache
def _pages(folder: str, chosen: tuple[tuple[str, str], ...], page: int) -> int:
    installation = installed(folder)
    with _private() as private:
        data = f"{private}/cluster"
        _ask((installation.program("initdb"), *_INITDB, "-D", data))
        options = [word for name, value in chosen for word in ("-c", f"{name}={value}")]
        answer = _ask(
            (
                installation.program("postgres"),
                *("-D", data, "-C", "shared_memory_size_in_huge_pages"),
                *(*options, "-c", f"huge_page_size={page >> 10}kB"),
            )
        ).strip()
    if not answer.isdigit():
        raise UserError(f"PostgreSQL does not say how many pages of {format_size(page)} it needs, but: {answer!r}")
    return int(answer)


@contextmanager
def _private() -> Iterator[str]:
    # PostgreSQL's programs refuse to run as root.
    who = unprivileged.account()
    # $TMPDIR may belong to an account, which could replace root's folder by a link.
    path = tempfile.mkdtemp(prefix="hugewise-", dir=None if who is None else "/tmp")  # noqa: S108  (mkdtemp(3))
    try:
        if who is not None:
            with beneath.DirFd.open(Path(path)) as made:
                made.hand_over(who.pw_uid, who.pw_gid)
        yield path
    finally:
        beneath.discard(Path(path))


def _ask(argv: tuple[str, ...]) -> str:
    try:
        done = unprivileged.run(argv, timeout=120)
    except HugewiseError as error:
        raise UserError(error.message, hint=error.hint) from None
    if done.status != 0:
        raise UserError(f"{argv[0]} failed: {done.why}")
    return done.stdout


_INITDB = ("-U", SUPERUSER, "--auth=trust", "--no-sync", "--locale=C", "--encoding=UTF8", "--no-instructions")


def initdb(installation: PostgresPrograms, places: Places) -> Step:
    """Make an empty cluster in `places.data`."""
    argv = (installation.program("initdb"), *_INITDB, "-D", _cluster(places))
    return Step(name="initdb", argv=argv)


def _cluster(places: Places) -> str:
    # the server insists on a folder of its own that nobody else can read
    return f"{places.data}/cluster"


def server(installation: PostgresPrograms, places: Places, chosen: Mapping[str, str], *, keep: bool = False) -> Server:
    """Return the server with the settings `chosen`; `keep`: its data are kept, so it stops with a checkpoint."""
    far = places.far
    options = {
        "listen_addresses": "" if far is None else far.address,
        **({} if far is None else {"hba_file": f"{places.data}/{_HBA}"}),
        "unix_socket_directories": places.run,
        # Small segments of its own lie with the data, and go with them even if the server is killed.
        "dynamic_shared_memory_type": "mmap",
        **chosen,
    }
    argv = [installation.program("postgres"), "-D", _cluster(places), "-p", _port(places)]
    for name, value in options.items():
        argv += ["-c", f"{name}={value}"]
    ready = Step(name="ready", argv=(installation.program("pg_isready"), *_where(places), "-q", "-t", "5"))
    return Server(
        name="postgres",
        argv=tuple(argv),
        ready=ready,
        # The policy is about shared memory. glibc's malloc of each backend would take pages of the pool as well.
        environment={"GLIBC_TUNABLES": ""} if chosen.get("huge_pages") == "on" else {},
        stop="INT" if keep else "QUIT",
        named="shared",
    )


def _where(places: Places) -> tuple[str, ...]:
    return ("-h", places.run, "-p", _port(places), "-U", SUPERUSER)


def _port(places: Places) -> str:
    return _PORT if places.far is None else str(places.far.ports[0])


ROLE = "hugewise"
"""Role of clients on another host: a superuser, which warming up requires."""
_HBA, _ROLE_FILE, _PASSES = "far_hba.conf", "far_role.sql", "pgpass"


def guards(far: RemoteEndpoint) -> tuple[Write, ...]:
    """Return the files by which the server and its clients elsewhere authenticate: addresses, and the password."""
    size = 128 if ":" in far.client else 32
    role = f"CREATE ROLE {ROLE} SUPERUSER LOGIN PASSWORD '{far.password}';\n"
    return (
        Write(_HBA, f"local all all trust\nhost all {ROLE} {far.client}/{size} scram-sha-256\n", private=True),
        Write(_ROLE_FILE, role, private=True),
        Write(_PASSES, f"*:*:*:{ROLE}:{far.password}\n", far=True, private=True),
    )


def far_role(installation: PostgresPrograms, places: Places) -> Step:
    """Return the account of clients elsewhere; it is thrown away with the data of the attempt."""
    argv = client(
        installation, places, "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", f"{places.data}/{_ROLE_FILE}"
    )
    return Step(name="far-role", argv=argv)


def far_client(far: RemoteEndpoint) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the options and variables with which a client on another host connects; the password is in a file."""
    where = ("-h", far.address, "-p", str(far.ports[0]), "-U", ROLE)
    return where, {"PGPASSFILE": f"{far.folder}/{_PASSES}"}


def client(installation: PostgresPrograms, places: Places, program: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line of a client program that connects to the server."""
    return (installation.program(program), *_where(places), *arguments)


def run(installation: PostgresPrograms, places: Places, program: str, *arguments: str, timeout: float = 300) -> Step:
    """Return a step that runs a client program; it is named after the program."""
    return Step(name=program, argv=client(installation, places, program, *arguments), timeout=timeout)


def psql(
    installation: PostgresPrograms,
    places: Places,
    name: str,
    *statements: str,
    database: str = SUPERUSER,
    timeout: float = 300,
) -> Step:
    """Return a step that runs SQL statements, each in a transaction of its own, and prints bare values."""
    commands = [word for statement in statements for word in ("-c", statement)]
    plain = ("-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", database)
    return Step(name=name, argv=client(installation, places, "psql", *plain, *commands), timeout=timeout)


# Settings of the published experiment, for its shared_buffers of 64 GB. Memory and WAL shrink with shared_buffers, down
# to the server's own minimum; costs, times and switches are as published.
_PUBLISHED_BUFFERS = 64 << 30
_SCALED = {
    "work_mem": (1 << 30, 64 << 10),
    "maintenance_work_mem": (2 << 30, 1 << 20),
    "effective_cache_size": (200 << 30, 8 << 10),
    "max_wal_size": (100 << 30, 64 << 20),
    "min_wal_size": (1 << 30, 32 << 20),
    # The experiment's default. Unscaled, every backend would go on touching parts of it for the first time: seen, 9
    # backends, 1% of the resident pages in 10 s.
    "wal_buffers": (16 << 20, 256 << 10),
}
_CHECKPOINTS_S = 600
_AS_PUBLISHED = {
    "random_page_cost": "1",
    "seq_page_cost": "1",
    "synchronous_commit": "on",
    "checkpoint_timeout": f"{_CHECKPOINTS_S // 60}min",
    "checkpoint_completion_target": "0.9",
    "autovacuum_vacuum_scale_factor": "0.4",
    "wal_compression": "on",
}

# Settings of the treatment, the placement or the proof; a study cannot change them.
_OURS = frozenset(
    (
        *("data_directory", "dynamic_shared_memory_type", "huge_page_size", "huge_pages", "listen_addresses"),
        *("max_connections", "port", "shared_buffers", "shared_memory_type", "unix_socket_directories"),
    )
)


def without_page_images(seconds: float) -> dict[str, str]:
    """Return settings that give a run shorter than the interval of checkpoints the throughput of long after one.

    Empty for a longer run.

    After a checkpoint the first change of every page logs the page whole, and a server that was just started has had
    one. Seen, TPC-B over 0.6 GB by 9 clients: half of the throughput at first, and 25 to 53% more in the last third of
    10 s than in the first, as ever fewer pages are left; without the images there is no such rise. Sources: PostgreSQL
    documentation, full_page_writes, and "WAL Configuration".
    """
    return {"full_page_writes": "off"} if seconds < _CHECKPOINTS_S else {}


def calm(wal: int, shared_buffers: int) -> dict[str, str]:
    """Return settings under which nothing comes by the server's own clock, nor because of `wal` bytes of log."""
    published = _SCALED["max_wal_size"][0] * shared_buffers // _PUBLISHED_BUFFERS
    return {
        "autovacuum": "off",
        "checkpoint_timeout": "1d",  # the longest there is
        # A checkpoint begins before it is full: at 1/(1 + checkpoint_completion_target) of it.
        "max_wal_size": f"{max(1 << 30, 2 * wal, published) >> 10}kB",
        "log_checkpoints": "on",
        **without_page_images(0),
    }


def settings(
    shared_buffers: int, connections: int, given: str = "", chosen: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the settings, scaled with `shared_buffers`; `chosen`, then `given`, override. Raises ValueError."""
    scaled = {
        name: f"{max(least, size * shared_buffers // _PUBLISHED_BUFFERS) >> 10}kB"
        for name, (size, least) in _SCALED.items()
    }
    own = dict(_pair(word) for word in shlex.split(given))
    return {
        **scaled,
        **_AS_PUBLISHED,
        **(chosen or {}),
        **own,
        "shared_buffers": f"{shared_buffers >> 10}kB",
        "max_connections": str(max(100, connections + 10)),
    }


def _pair(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or re.fullmatch(r"[a-z][a-z0-9_.]*", name) is None:
        raise ValueError(f"{word!r} is not NAME=VALUE of a setting of the server, such as wal_compression=off")
    if name in _OURS:
        raise ValueError(f"{name} belongs to the treatment or to the workload: it cannot be given as a setting")
    return name, value


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
_A_PAGE = "SELECT repeat('x', 8000)"  # part of a row
_FREE = "SELECT count(*) - 1000 FROM pg_buffercache WHERE relfilenode IS NULL"  # the rest is for the catalogue


def lead(mapped: int, cpus: int) -> float:
    """Return seconds until all backends have touched their buffers (`mapped` bytes) and clients have settled."""
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
