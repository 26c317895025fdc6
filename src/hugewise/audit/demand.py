"""Demand for hugetlb pages: of servers by their settings, of virtual machines by their domains. Pure.

PostgreSQL needs more than shared_buffers: 8 KiB a buffer, and beside each its descriptor, its place in the mapping
table, in the checkpointer's queue and in the list that a checkpoint sorts; then WAL buffers, locks and processes by
max_connections and others. One that runs has a mapping of exactly that size. Of settings alone it is an estimate: `low`
is what a server of any version needs at least, `high` what none was seen to exceed; extensions in
shared_preload_libraries add to it. `postgres -C shared_memory_size_in_huge_pages` (15 and newer) is exact.

Sources: PostgreSQL: src/backend/storage/ipc/ipci.c (CalculateShmemSize), storage/buffer/buf_init.c and buf_table.c,
postmaster/checkpointer.c (CheckpointerShmemSize), storage/lmgr/lock.c, access/transam/xlog.c (XLOGChooseNumBuffers).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from hugewise.audit.facts import HostFacts, ServerConfig, ServerKind
from hugewise.model.guest import Domain
from hugewise.quantity import parse_size

_UNITS = {"": 0, "b": 0, "k": 10, "kb": 10, "m": 20, "mb": 20, "g": 30, "gb": 30, "t": 40, "tb": 40}
_AMOUNT = re.compile(r"(\d{1,15}(?:\.\d{0,15})?|\.\d{1,15})\s*([kmgt]?b?)|(0x[0-9a-f]{1,12})", re.IGNORECASE)
ON = ("1", "on", "true", "yes")
OFF = ("0", "off", "false", "no")
_BLOCK = 8192  # PostgreSQL counts shared_buffers in blocks
_LEAST_BESIDE, _MOSTLY_BESIDE = 132, 172  # bytes beside each buffer
_LEAST_WAL, _MOST_WAL = 64 << 10, 16 << 20
_FIXED = 4 << 20
_LOCK, _BACKEND = 700, 4096  # bytes of a lock with what belongs to it, and of a process
_MARGIN = 1.03
# Settings that decide how much shared memory PostgreSQL has, with their defaults.
POSTGRESQL_SIZES = {
    "max_connections": 100,
    "max_locks_per_transaction": 64,
    "max_prepared_transactions": 0,
    "max_worker_processes": 8,
    "max_wal_senders": 10,
    "autovacuum_max_workers": 3,
    "wal_buffers": -1,
    "min_dynamic_shared_memory": 0,
}
# PostgreSQL knows these units alone, in these letters (utils/misc/guc.c: memory_unit_conversion_table, parse_int).
_POSTGRESQL_AMOUNT = re.compile(
    r"[+-]?(?:0x[\da-fA-F]{1,12}|\d{1,15}(?:\.\d{0,15})?(?:[eE][+-]?\d{1,2})?|\.\d{1,15})\s*(?:B|kB|MB|GB|TB)?"
)
_POSTGRESQL_NUMBER = re.compile(r"[+-]?\d{1,15}(?:\.\d{0,15})?(?:[eE][+-]?\d{1,2})?|[+-]?0x[\da-fA-F]{1,12}")
_POSTGRESQL_AMOUNTS = ("shared_buffers", "huge_page_size", "wal_buffers", "min_dynamic_shared_memory")
_LEAST_BUFFERS = 16
SYNTAX_ERROR = "(the line cannot be parsed)"


class PageNeed(msgspec.Struct, frozen=True, kw_only=True):
    """A program, or a virtual machine, asks for pages of `size` bytes: at least `low` of them, and about `pages`;
    `high` with the margin of an estimate.

    alone    pages of PostgreSQL's shared_buffers without what belongs to them; 0 of others
    held     pages that it holds now
    running  it runs, and so has what it gets
    """

    what: str
    unit: str | None
    size: int
    low: int
    pages: int
    high: int
    alone: int = 0
    held: int = 0
    running: bool = False
    machine: bool = False

    @property
    def said(self) -> str:
        """Number of pages, in words."""
        if not self.alone or self.low == self.high:
            return f"{self.pages}"
        alone = (
            f"shared_buffers alone are {self.alone}, with what belongs to them at least {self.low}, up to {self.high}"
        )
        return f"about {self.pages} (an estimate: {alone})"


def amount(text: str, unit: int = 1) -> int | None:
    """Bytes of a size as databases write it; a bare number counts `unit` bytes each."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        return None
    if match[3] is not None:
        return int(match[3], 16) * unit
    return round(float(match[1]) * (1 << _UNITS[match[2].lower()] if match[2] else unit))


def refused(server: ServerConfig) -> tuple[str, ...]:
    """Return the settings about pages and sizes whose values the server refuses when it starts."""
    return tuple(key for key, setting in server.settings.items() if _refuses(server.kind, key, setting.value))


def _refuses(kind: ServerKind, key: str, value: str) -> bool:
    if value.endswith(SYNTAX_ERROR):
        return True
    if value.startswith("(set"):  # not shown: not known
        return False
    match kind:
        case "postgresql":
            return _postgresql_refuses(key, value)
        case "mysql":  # what follows the letter of the unit is passed over
            return key == "innodb_buffer_pool_size" and re.fullmatch(r"\d+([kmgtpe].*)?", value, re.IGNORECASE) is None
        case "jvm":
            sized = ("Xmx", "Xms", "Xss", "LargePageSizeInBytes")
            return key in sized and re.fullmatch(r"(0x[\da-f]+|\d+)[kmgt]?", value, re.IGNORECASE) is None
    return False


def _postgresql_refuses(key: str, value: str) -> bool:
    if key == "huge_pages":
        return value.lower() not in ("try", *ON, *OFF)
    if key not in POSTGRESQL_SIZES and key not in _POSTGRESQL_AMOUNTS:
        return False
    known = _POSTGRESQL_AMOUNT if key in _POSTGRESQL_AMOUNTS else _POSTGRESQL_NUMBER
    if known.fullmatch(value) is None or (value.startswith("-") and key != "wal_buffers"):
        return True
    buffers = amount(value.removeprefix("+"), _BLOCK)
    return key == "shared_buffers" and buffers is not None and buffers < (_LEAST_BUFFERS - 0.5) * _BLOCK


def postgresql_need(facts: HostFacts, server: ServerConfig) -> PageNeed:
    """Return PostgreSQL's need where it has huge pages: exact for a running server, else an estimate."""
    size = amount(server.value("huge_page_size", "0"), 1 << 10) or facts.default_huge_size
    low, typical, high = (server.shared,) * 3 if server.shared else _postgresql_memory(server)
    return PageNeed(
        what=server.what,
        unit=server.unit,
        size=size,
        low=-(-low // size),
        pages=-(-typical // size),
        high=-(-high // size),
        alone=-(-(amount(server.value("shared_buffers", "128MB"), _BLOCK) or 0) // size),
        held=-(-server.shared // size) if server.shared_huge else 0,
        running=server.pid is not None,
    )


def _postgresql_memory(server: ServerConfig) -> tuple[int, int, int]:
    """Bytes of shared memory by its settings: at least, about, and at most."""

    def number(key: str) -> int:
        text = server.value(key)
        return int(text) if re.fullmatch(r"\d{1,9}", text) else POSTGRESQL_SIZES[key]

    buffers = (amount(server.value("shared_buffers", "128MB"), _BLOCK) or 0) // _BLOCK
    wal = amount(server.value("wal_buffers", "-1"), _BLOCK)
    wal = min(_MOST_WAL, max(_LEAST_WAL, buffers // 32 * _BLOCK)) if wal is None else wal
    dynamic = amount(server.value("min_dynamic_shared_memory", "0"), 1 << 20) or 0
    others = number("autovacuum_max_workers") + 1 + number("max_worker_processes") + number("max_wal_senders")
    backends = number("max_connections") + others
    locks = number("max_locks_per_transaction") * (backends + number("max_prepared_transactions"))
    least = buffers * (_BLOCK + _LEAST_BESIDE) + wal + dynamic
    typical = buffers * (_BLOCK + _MOSTLY_BESIDE) + wal + dynamic + _FIXED + locks * _LOCK + backends * _BACKEND
    return least, typical, round(typical * _MARGIN)


def mysql_need(facts: HostFacts, server: ServerConfig) -> PageNeed | None:
    """Return the request of MySQL or MariaDB with large pages: its buffer pool at least."""
    if server.value("large_pages") not in ON:
        return None
    size = facts.default_huge_size
    wanted = amount(server.value("innodb_buffer_pool_size", "128M")) or 0
    return _of_server(server, size, wanted)


def jvm_need(facts: HostFacts, server: ServerConfig) -> PageNeed | None:
    """Return the request of a JVM with large pages: its whole heap, or one page where no heap size is given."""
    if server.value("UseLargePages") != "on" or server.value("UseTransparentHugePages") == "on":
        return None
    size = facts.default_huge_size
    if "LargePageSizeInBytes" in server.settings:
        try:
            size = parse_size(server.value("LargePageSizeInBytes")) or size
        except ValueError:
            return None
    return _of_server(server, size, amount(server.value("Xmx", "0")) or 1)


def _of_server(server: ServerConfig, size: int, wanted: int) -> PageNeed:
    held, running = server.hugetlb // size, server.pid is not None
    return _exactly(-(-wanted // size), what=server.what, unit=server.unit, size=size, held=held, running=running)


def _exactly(pages: int, **more: Any) -> PageNeed:
    return PageNeed(low=pages, pages=pages, high=pages, **more)


def needs(facts: HostFacts) -> Iterator[PageNeed]:
    """Yield all that ask for pages of pools, in the order in which they were found."""
    for server in facts.servers:
        need = None
        match server.kind:
            case "postgresql":
                without = server.value("huge_pages", "try") in OFF or (not server.pid and refused(server))
                need = None if without else postgresql_need(facts, server)
            case "mysql":
                need = mysql_need(facts, server)
            case "jvm":
                need = jvm_need(facts, server)
        if need is not None:
            yield need
    for domain in facts.domains:
        for page, pages in domain_pages(facts, domain).items():
            running = domain.name in facts.running
            what, held = f"the virtual machine {domain.name}", pages if running else 0
            yield _exactly(pages, what=what, unit=None, size=page, held=held, running=running, machine=True)


def domain_pages(facts: HostFacts, domain: Domain) -> dict[int, int]:
    """Return pages of pools that a virtual machine has, by their size in bytes."""
    wanted: dict[int, int] = {}
    for node, memory in domain.nodes:
        if (page := domain.page(node, facts.default_huge_size)) is not None:
            wanted[page] = wanted.get(page, 0) + -(-memory // page)
    return wanted


def waiting(facts: HostFacts, size: int) -> list[PageNeed]:
    """Return the needs of that page size without pages: their programs do not run, or fell back to base pages."""
    return [need for need in needs(facts) if need.size == size and not need.held]
