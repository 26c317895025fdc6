"""MariaDB as a system under test: where its programs are, how data are made and served, how large its pool is.

The policy is about InnoDB's buffer pool, a private anonymous mapping. Pages of a pool come by --large-pages, which
takes base pages with a word in the log when the pool is short: the proof tells. Since 10.6.17 and 10.11.7 the server
switches transparent huge pages off for itself at its start, before it has read any page, and has no option against it:
only the head of each extent of 8 MiB, which it has written by then, is huge. `keep` runs it so that it cannot.

Sources: MariaDB documentation, "Memory Allocation" (large pages) and "InnoDB System Variables"; mariadbd.cc and
my_largepage.c of 10.11 (the largest page size that is no larger than what is asked for comes first).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec

from hugewise import unprivileged
from hugewise.deployment.configuration import mariadb
from hugewise.errors import HugewiseError, UserError
from hugewise.machine import probe, programs
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Act, Places, RemoteEndpoint, Server, Step, Write
from hugewise.model.workload import Configuration, Missing
from hugewise.reading import whole
from hugewise.workloads import _staged
from hugewise.workloads._micro import whole_pages

PACKAGE = "mariadb-server"
SUPERUSER = "root"

_VERSION = re.compile(r"Ver ([\d.]+)-MariaDB")

# Other memory mapped in large pages, beside the buffer pool; measured with 10.11.19. The log buffers are mapped so
# where the log itself cannot be mapped: on a disk, not on tmpfs.
_KEY_CACHES = (8 << 20, 8 << 20)  # of MyISAM and Aria, which the system tables use
_LOG_BUFFERS = (16 << 20, 16 << 20)


class MariadbPrograms(msgspec.Struct, frozen=True):
    """The programs of MariaDB, and the server's version, such as 10.11.19."""

    server: str
    install: str
    client: str
    version: str


def find(folder: str = "") -> MariadbPrograms | Missing:
    """Return the installation whose server is in `folder`; else the one on PATH or in the usual folders."""
    paths = {}
    for name in ("mariadbd", "mariadb-install-db", "mariadb"):
        beside = f"{folder}/{name}" if folder else ""
        path = beside if beside and programs.executable(beside) else _staged.find(name)
        if path is None or (folder and name == "mariadbd" and path != beside):
            where = f" in {folder}" if folder and name == "mariadbd" else ""
            return Missing(f"{name}: no such program{where}", None if where else PACKAGE)
        paths[name] = path
    version = programs.installed("mariadb-server-core") or _version(paths["mariadbd"])
    if isinstance(version, Missing):
        return version
    return MariadbPrograms(paths["mariadbd"], paths["mariadb-install-db"], paths["mariadb"], version)


@lru_cache
def _version(program: str) -> str | Missing:
    try:
        done = unprivileged.run((program, "--no-defaults", "--version"))
    except HugewiseError as error:
        return Missing(f"{program} does not say its version: {error}")
    if done.status != 0:
        return Missing(f"{program} does not say its version: {done.why}")
    text = done.stdout
    match = _VERSION.search(text)
    return Missing(f"{program} is no MariaDB: {text.strip()[:200]!r}", PACKAGE) if match is None else match[1]


def missing(folder: str = "") -> tuple[Missing, ...]:
    """Return MariaDB as missing, or nothing."""
    path = find(folder)
    return (path,) if isinstance(path, Missing) else ()


def installed(folder: str = "") -> MariadbPrograms:
    """Return the installation that `missing` saw. Raises UserError when there is none any more."""
    path = find(folder)
    if isinstance(path, Missing):
        raise UserError(path.reason, hint=f"apt install {PACKAGE}")
    return path


def configuration(treatment: Treatment) -> Configuration:
    """Return MariaDB's configuration: whether its buffer pool uses a pool. No setting refuses transparent pages."""
    return {}, (mariadb(large=treatment.target.kind == "hugetlb"),)


def advice_refused(treatment: Treatment) -> str | None:
    """Return why a treatment that reaches memory by madvise is refused, or None."""
    if treatment.advice == "huge" and treatment.target.kind in ("thp", "mthp"):
        return "MariaDB never calls madvise(MADV_HUGEPAGE): advised huge pages do not reach its buffer pool"
    return None


def pool(treatment: Treatment, buffer_pool: int) -> int:
    """Return bytes of hugetlb pages that the server maps: a mapping smaller than a page is made of smaller pages."""
    page = treatment.target.size
    return sum(whole_pages(size, page) for size in (buffer_pool, *_KEY_CACHES, *_LOG_BUFFERS) if size >= page)


_SAID = re.compile(r"^([a-z][a-z0-9-]*)\s+(\d{1,18})$", re.MULTILINE)
_MAPPED = ("innodb-buffer-pool-size", "key-buffer-size", "aria-pagecache-buffer-size", *("innodb-log-buffer-size",) * 2)
SIZED = r"(?:no-|print-)?defaults[\w-]*|innodb[_-]buffer[_-]pool[_-]size|[\w-]+[_-]buffer[_-]size"
"""Pattern of MariaDB's options that decide how much it maps in large pages."""


def mapped(program: str, options: Sequence[str], page: int) -> int:
    """Return the bytes that the server says it maps in pages of `page` bytes. Raises UserError."""
    try:
        done = unprivileged.run((program, *options, "--verbose", "--help"))
    except HugewiseError as error:
        raise UserError(error.message, hint=error.hint) from None
    sizes_of = {name: int(size) for name, size in _SAID.findall(done.stdout)}
    if done.status != 0 or "innodb-buffer-pool-size" not in sizes_of:
        raise UserError(f"{program} does not say how large its buffer pool is: {done.why}", hint="name it with --pool")
    return sum(whole_pages(size, page) for size in (sizes_of.get(name, 0) for name in _MAPPED) if size >= page)


def install(installation: MariadbPrograms, places: Places, *statements: str) -> Iterator[Act]:
    """Make an empty server's data, and let its first start carry out `statements`.

    Its superuser has no password and is known on the socket only, which lies in a folder of the account's own.
    """
    argv = (
        installation.install,
        "--no-defaults",
        f"--datadir={_folder(places)}",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--skip-name-resolve",
    )
    yield Step(name="install", argv=argv)
    local = ("DELETE FROM mysql.global_priv WHERE User = 'root' AND Host <> 'localhost'", "FLUSH PRIVILEGES")
    yield Write(_FIRST, "".join(f"{statement};\n" for statement in (*local, *statements)))


_FIRST = "first.sql"
# For making the data: as fast as safe; a clean end merges and purges all that is pending.
_MAKING = (
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=0",
    "--innodb-fast-shutdown=0",
    "--innodb-sort-buffer-size=64M",
    "--max-allowed-packet=64M",
)


def _probe() -> str:
    return probe.find() if programs.place() is None else programs.which("hugewise-probe") or "hugewise-probe"


def _folder(places: Places) -> str:
    return f"{places.data}/mariadb"


def socket(places: Places) -> str:
    """Return the path of the server's socket."""
    return f"{places.run}/mariadb.sock"


def server(
    installation: MariadbPrograms,
    places: Places,
    treatment: Treatment | None,
    buffer_pool: int,
    *,
    log: int = 96 << 20,
    keep: bool = False,
    port: int | None = None,
) -> Server:
    """Return the server, on a unix socket, and on `port` of the loopback where a client cannot use sockets; for clients
    elsewhere on the address that they know (`guards` come before).

    treatment    None: data are made
    buffer_pool  bytes
    log          bytes of the redo log; the same when data are made and when they are used
    keep         it cannot switch transparent huge pages off for itself
    """
    pages = treatment is not None and treatment.target.kind == "hugetlb"
    argv = [
        *((_probe(), "keep-thp") if keep and treatment is not None else ()),
        *(installation.server, "--no-defaults", f"--datadir={_folder(places)}", f"--socket={socket(places)}"),
        *(f"--pid-file={places.run}/mariadb.pid", f"--tmpdir={places.run}", f"--secure-file-priv={places.run}"),
        *_listens(places, port),
        "--skip-name-resolve",
        f"--innodb-buffer-pool-size={buffer_pool}",
        # Without it newer servers reserve 8 TiB of addresses beside the pool.
        f"--loose-innodb-buffer-pool-size-max={buffer_pool}",
        f"--key-buffer-size={_KEY_CACHES[0]}",
        f"--aria-pagecache-buffer-size={_KEY_CACHES[1]}",
        f"--innodb-log-buffer-size={_LOG_BUFFERS[0]}",
        f"--innodb-log-file-size={log}",
        # tmpfs has no asynchronous reads, and the kernel's limit on them would decide elsewhere.
        "--innodb-use-native-aio=0",
        # The pool is warmed by reading: contents that another run left must not count.
        "--innodb-buffer-pool-dump-at-shutdown=0",
        "--innodb-buffer-pool-load-at-startup=0",
        "--innodb-stats-auto-recalc=0",
        "--performance-schema=0",
        *(("--large-pages",) if pages else ()),
        # An attempt's data are thrown away: dirty pages need not be written.
        *(_MAKING if treatment is None else ("--innodb-fast-shutdown=2",)),
        *((f"--init-file={places.data}/{_FIRST}",) if treatment is None else ()),
        *((f"--init-file={places.data}/{_FAR}",) if treatment is not None and places.far is not None else ()),
    ]
    return Server(
        name="mariadbd",
        argv=tuple(argv),
        ready=sql(installation, places, "ready", "SELECT 1"),
        # The policy is about the buffer pool; glibc's malloc would take pages of the pool as well.
        environment={"GLIBC_TUNABLES": ""} if pages else {},
        named="large",
    )


def _listens(places: Places, port: int | None) -> tuple[str, ...]:
    if places.far is not None:
        return (f"--bind-address={places.far.address}", f"--port={places.far.ports[0]}")
    return ("--skip-networking",) if port is None else ("--bind-address=127.0.0.1", f"--port={port}")


FAR_USER = "hugewise"
"""The account of clients elsewhere."""
_FAR = "far.sql"


def guards(far: RemoteEndpoint, database: str, *, password: bool = True) -> tuple[Write, ...]:
    """Return the file by which the server knows clients elsewhere, with a password where a file can tell it."""
    known = f" IDENTIFIED BY '{far.password}'" if password else ""
    statements = (
        f"CREATE USER {FAR_USER}@'{far.client}'{known}",
        f"GRANT ALL ON {database}.* TO {FAR_USER}@'{far.client}'",
    )
    return (Write(_FAR, "".join(f"{statement};\n" for statement in statements), private=True),)


def sql(
    installation: MariadbPrograms, places: Places, name: str, *statements: str, timeout: float = 300, expects: str = ""
) -> Step:
    """Return a step that carries out SQL statements and prints bare values, columns parted by tabs."""
    argv = (
        *(installation.client, "--no-defaults", f"--socket={socket(places)}", f"--user={SUPERUSER}"),
        *("--batch", "--skip-column-names", f"--execute={'; '.join(statements)}"),
    )
    return Step(name=name, argv=argv, timeout=timeout, expects=expects or None)


def warmed(installation: MariadbPrograms, places: Places, database: str, tables: Sequence[str]) -> Step:
    """Read every page of every index of the tables. One process serves all connections: its page tables are shared."""
    every = ", ".join(f"{database}.{table}" for table in tables)
    return sql(installation, places, "warm", f"CHECK TABLE {every}", timeout=86_400, expects="status\tOK")


_FILLER = (
    "CREATE TABLE filler (id INT PRIMARY KEY, text VARCHAR(7000) CHARACTER SET latin1) ENGINE=InnoDB",
    "INSERT INTO filler SELECT seq, REPEAT('w', 7000) FROM seq_1_to_2048",
)
# Updates in place log the new and the old row; the old ones are purged at once.
_PURGED = "SET GLOBAL innodb_max_purge_lag_wait = 0"
_REFILLED = (
    *("UPDATE filler SET text = REPEAT('x', 7000)", _PURGED),
    *("UPDATE filler SET text = REPEAT('y', 7000)", _PURGED),
)
_REDO_OF_EACH = 2 * 2048 * 7000


def redo_touched(installation: MariadbPrograms, places: Places, database: str, log: int) -> Step:
    """Write once round the redo log of `log` bytes, by updates of a table that is dropped again.

    On tmpfs the server maps the log, even with --innodb-log-file-mmap=0 (seen in 10.11.19): each of its pages is a
    fault when it is first written.
    """
    rounds = math.ceil(log / (2 * _REDO_OF_EACH)) + 1
    written = (f"USE {database}", *_FILLER, *_REFILLED * rounds, "DROP TABLE filler")
    return sql(installation, places, "redo", *written, timeout=86_400)


_COUNTERS = ("Innodb_buffer_pool_reads", "Innodb_buffer_pool_read_ahead", "Innodb_buffer_pool_bytes_data")


def status(installation: MariadbPrograms, places: Places, name: str) -> Step:
    """Return a step that prints what the buffer pool has read from storage, and holds; see `counters`."""
    names = ", ".join(f"'{each}'" for each in _COUNTERS)
    return sql(installation, places, name, f"SHOW GLOBAL STATUS WHERE Variable_name IN ({names})")


def counters(said: str) -> Mapping[str, int]:
    """Parse the counters of the server's status. Raises ValueError when a counter is not there."""
    found = dict(line.split("\t", 1) for line in said.splitlines() if "\t" in line)
    if lacking := [name for name in _COUNTERS if name not in found]:
        raise ValueError(f"MariaDB's status has no {lacking[0]}: {said[:200]!r}")
    return {name: whole(found[name], f"{name} of MariaDB's status") for name in _COUNTERS}


def size(installation: MariadbPrograms, places: Places, name: str) -> Step:
    """Return a step that prints the bytes of the tables, and those written to the redo log; see `sizes`."""
    tables = "SELECT SUM(FILE_SIZE) FROM information_schema.INNODB_SYS_TABLESPACES"
    return sql(installation, places, name, tables, "SHOW GLOBAL STATUS LIKE 'Innodb_os_log_written'")


def sizes(said: str) -> tuple[int, int]:
    """Return bytes of the tables and of the redo log. Raises ValueError."""
    match = re.fullmatch(r"(\d+)\nInnodb_os_log_written\t(\d+)", said.strip())
    if match is None:
        raise ValueError(f"MariaDB's sizes are not as expected: {said[:200]!r}")
    return whole(match[1], "the size of the tables"), whole(match[2], "the bytes of the redo log")


def read_from_storage(begun: str, ended: str) -> int:
    """Return pages that the buffer pool read between two `status`."""
    before, after = counters(begun), counters(ended)
    return sum(after[name] - before[name] for name in _COUNTERS[:2])
