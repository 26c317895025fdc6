"""Servers whose own settings ask for pages that they do not get."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hugewise.audit.demand import OFF, ON, PageNeed, amount, jvm_need, mysql_need, postgresql_need, refused
from hugewise.audit.facts import HostFacts, HugePool, ServerConfig, ServerKind
from hugewise.audit.rules import Hit, rule
from hugewise.quantity import format_size, readable_size

_POSTGRESQL = "https://www.postgresql.org/docs/current/kernel-resources.html#LINUX-HUGE-PAGES"
_MYSQL = "https://mariadb.com/docs/server/server-management/variables-and-modes/server-system-variables#large_pages"
_JAVA = "https://docs.oracle.com/en/java/javase/21/docs/specs/man/java.html"
_MONGODB = "https://www.mongodb.com/docs/manual/tutorial/transparent-huge-pages/"
_SHARED = "https://github.com/postgres/postgres/blob/REL_17_STABLE/src/backend/storage/ipc/ipci.c"
_VERSION = re.compile(r"(?:1\.)?(\d{1,4})(?:\.(\d{1,4}))?(?:[._](\d{1,4}))?")
# First releases with the fix; of 11 the fix came after 11.0.31, and 8 had none in September 2026.
_STACKS_FIXED = {17: (0, 9), 21: (0, 1), 11: (0, 32)}


def _of(facts: HostFacts, kind: ServerKind) -> Iterator[ServerConfig]:
    return (server for server in facts.servers if server.kind == kind)


def _needs(need: PageNeed, pool: HugePool | None) -> str:
    there = "no such pool" if pool is None else f"the pool has {pool.total}, {pool.available} to be had"
    return f"needs {need.said} pages of {format_size(need.size)}; {there}"


@rule(
    "postgresql-fell-back",
    "warning",
    "PostgreSQL tried to have huge pages, and runs on base pages",
    why="huge_pages = try, the default, falls back in silence where the pool is short. The pages that were"
    " reserved for it"
    " lie idle then.",
    sources=(_POSTGRESQL, "https://github.com/Tanguille/cluster/issues/4150"),
    cure="reserve what `postgres -D DATA -C shared_memory_size_in_huge_pages` says, restart, and set huge_pages = on",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in _of(facts, "postgresql"):
        need = postgresql_need(facts, each)
        pool = facts.pool(need.size)
        trying = each.value("huge_pages", "try") == "try"
        if each.pid and trying and each.shared and not each.shared_huge and pool is not None and pool.total:
            yield Hit(f"{each.what}: {_needs(need, pool)}", each.unit)


@rule(
    "postgresql-will-not-start",
    "error",
    "PostgreSQL insists on huge pages, and the pool is too small for its next start",
    why="With huge_pages = on it does not start without them. It needs more than shared_buffers: about 2% for what"
    " belongs to each buffer, and more for WAL, locks and connections.",
    sources=(_POSTGRESQL, _SHARED, "https://github.com/autobase-tech/autobase/issues/602"),
    cure="reserve what `postgres -D FOLDER -C shared_memory_size_in_huge_pages` says before it starts (15 and newer,"
    " while it does not run; the folder is that of postgresql.conf); older ones log the bytes of a request that failed",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each, need in _insisting(facts):
        if facts.short(need.size, need.low):
            yield _pool_hit(facts, each, need)


def _insisting(facts: HostFacts) -> Iterator[tuple[ServerConfig, PageNeed]]:
    """Yield each PostgreSQL with huge_pages = on that does not run but could, with its need."""
    for each in _of(facts, "postgresql"):
        if each.value("huge_pages") in ON and not each.pid and not refused(each):
            yield each, postgresql_need(facts, each)


def _pool_hit(facts: HostFacts, server: ServerConfig, need: PageNeed) -> Hit:
    return Hit(f"{server.what} ({server.where('huge_pages')}): {_needs(need, facts.pool(need.size))}", server.unit)


@rule(
    "postgresql-need-within-margin",
    "note",
    "PostgreSQL insists on huge pages, and whether the pool is large enough is within the margin of an estimate",
    why="How much shared memory it has is known exactly by the server alone: extensions in shared_preload_libraries add"
    " to what follows from its settings.",
    sources=(_POSTGRESQL, _SHARED),
    cure="ask it, while it does not run: postgres -D FOLDER -C shared_memory_size_in_huge_pages (15 and newer;"
    " the folder of postgresql.conf)",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each, need in _insisting(facts):
        if facts.short(need.size, need.high) and not facts.short(need.size, need.low):
            yield _pool_hit(facts, each, need)


@rule(
    "postgresql-over-group-limit",
    "error",
    "PostgreSQL needs more huge pages than its cgroup may have",
    why="The pool has them, the group does not: mmap succeeds and the first touch ends in SIGBUS, or it falls back.",
    sources=(_POSTGRESQL, "https://github.com/cloudnative-pg/cloudnative-pg/issues/714"),
    cure="raise the limit (in Kubernetes: resources.limits hugepages-2Mi), or huge_pages = off",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in _of(facts, "postgresql"):
        need = postgresql_need(facts, each)
        if each.value("huge_pages", "try") in OFF:
            continue
        for group in facts.hugetlb_groups:
            inside = f"{each.group}/".startswith(f"{group.group.rstrip('/')}/") if each.group else False
            at_rest = each.unit is not None and not each.pid and group.group.endswith(f"/{each.unit}")
            limits = [limit for limit in (group.limit, group.reserved_limit) if limit is not None]
            if group.size == need.size and (inside or at_rest) and limits and min(limits) < need.low * need.size:
                said = f"{each.what}: needs {need.said} pages of {format_size(need.size)}"
                yield Hit(f"{said}; {group.group} may have {readable_size(min(limits))}", each.unit)


@rule(
    "postgresql-page-size",
    "error",
    "PostgreSQL asks for a size of huge pages that this machine does not have",
    why="huge_page_size must be one of the sizes below /sys/kernel/mm/hugepages.",
    sources=("https://www.postgresql.org/docs/current/runtime-config-resource.html#GUC-HUGE-PAGE-SIZE",),
    cure="huge_page_size = 0 takes the default size",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in _of(facts, "postgresql"):
        size = amount(each.value("huge_page_size", "0"), 1 << 10)
        if size and facts.pool(size) is None and facts.short(size):
            said = f"huge_page_size = {each.value('huge_page_size')} ({each.where('huge_page_size')})"
            yield Hit(f"{each.what}: {said}", each.unit)


@rule(
    "server-value-refused",
    "error",
    "a server refuses a value of its settings: it does not start with it",
    why="PostgreSQL's units are B, kB, MB, GB and TB in these letters: it refuses 24gb and 24G. There a fraction, or a"
    " blank before the unit, needs quotes; huge_pages is on, off or try; shared_buffers is at least 128kB. MySQL and"
    " MariaDB refuse fractions, java also 24GB. A server that runs keeps what it had, and does not start again.",
    sources=(
        "https://www.postgresql.org/docs/current/config-setting.html#CONFIG-SETTING-NAMES-VALUES",
        "https://mariadb.com/docs/server/server-management/variables-and-modes/server-system-variables",
        _JAVA,
    ),
    cure="correct the value: shared_buffers = 24GB or '1.5GB', innodb_buffer_pool_size = 24G, -Xmx24g;"
    " `postgres -D FOLDER -C shared_buffers` says what PostgreSQL reads",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in facts.servers:
        for key in refused(each):
            yield Hit(f"{each.what}: {key} = {each.settings[key].value} ({each.where(key)})", each.unit)


@rule(
    "mysql-large-pages-short",
    "error",
    "MySQL or MariaDB asks for large pages, and the pool cannot hold its buffer pool",
    why="It warns in its log and goes on with base pages; what the pool has stays reserved and idle.",
    sources=(_MYSQL, "https://dev.mysql.com/doc/refman/8.4/en/large-page-support.html"),
    cure="vm.nr_hugepages for innodb_buffer_pool_size and some more, LimitMEMLOCK=infinity, and a restart",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in _of(facts, "mysql"):
        need = mysql_need(facts, each)
        if need is not None and facts.short(need.size, need.pages, need.held):
            pool = facts.pool(need.size)
            yield Hit(f"{each.what} ({each.where('large_pages')}): {_needs(need, pool)}", each.unit)


@rule(
    "redis-thp-fork",
    "warning",
    "redis may have huge pages while it forks to save",
    why="After the fork each first write to a huge page copies all of it: a stall of about 0.25 ms for 2 MiB, and up to"
    " 512 times the memory.",
    sources=(
        "https://redis.io/docs/latest/operate/oss_and_stack/management/optimization/latency/",
        "https://github.com/redis/redis/issues/7381",
    ),
    cure="disable-thp yes, its default; or measure the tail of writes during BGSAVE under both",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in _of(facts, "redis"):
        if each.value("disable-thp", "yes") == "no" and facts.top == "always" and facts.thp_possible:
            yield Hit(f"{each.what}: disable-thp no ({each.where('disable-thp')}) while enabled = always", each.unit)


@rule(
    "memcached-large-pages-off",
    "error",
    "memcached -L asks for huge pages, and the host gives none",
    why="-L looks at the host's setting when memcached starts. Under never it ends with `Cannot enable large pages on"
    " this system`; one that runs already gets no huge pages any more.",
    sources=("memcached(1), -L", "Linux: Documentation/admin-guide/mm/transhuge.rst"),
    cure="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, or take -L out",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in _of(facts, "memcached"):
        if "large-pages" in each.settings and facts.thp_off:
            yield Hit(f"{each.what}: -L ({each.where('large-pages')}) while enabled = {facts.top}", each.unit)


@rule(
    "jvm-large-pages-short",
    "error",
    "a JVM asks for large pages, and the pool has fewer than its heap needs",
    why="-XX:+UseLargePages takes hugetlb pages, for all of the heap that -Xmx allows. Where they cannot be reserved"
    " the JVM warns once and uses base pages; with ZGC it does not start.",
    sources=(_JAVA, "https://wiki.openjdk.org/display/zgc/Main#Main-EnablingLargePagesOnLinux"),
    cure="reserve pages for the heap and some more, or use -XX:+UseTransparentHugePages, which needs none",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in _of(facts, "jvm"):
        need = jvm_need(facts, each)
        if need is None or not facts.short(need.size, need.pages, need.held):
            continue
        pool = facts.pool(need.size)
        there = "no such pool" if pool is None else f"a pool of {pool.total} pages, {pool.available} to be had,"
        said = f"-XX:+UseLargePages ({each.where('UseLargePages')})"
        heap = f"; its heap needs {need.pages} (-Xmx{each.settings['Xmx'].value})" if "Xmx" in each.settings else ""
        zgc = "; with ZGC it does not start" if each.value("UseZGC") == "on" else ""
        yield Hit(f"{each.what}: {said} with {there} of {format_size(need.size)}{heap}{zgc}", each.unit)


@rule(
    "jvm-thp-off",
    "error",
    "a JVM asks for transparent huge pages, and the host gives none",
    why="-XX:+UseTransparentHugePages advises the heap. Under never the JVM warns once and goes on without.",
    sources=(_JAVA,),
    cure="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, or take the option out",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in _of(facts, "jvm"):
        if each.value("UseTransparentHugePages") == "on" and facts.thp_off:
            said = f"-XX:+UseTransparentHugePages ({each.where('UseTransparentHugePages')})"
            yield Hit(f"{each.what}: {said} while enabled = {facts.top}", each.unit)


@rule(
    "jvm-thread-stacks",
    "warning",
    "the thread stacks of this JVM become huge pages under always",
    why="Before the fix of JDK-8312182 stacks of 2 MiB and more are backed whole: 10,020 threads were seen with 13 GB.",
    sources=("https://bugs.openjdk.org/browse/JDK-8312182", "https://github.com/openjdk/jdk/pull/14919"),
    cure="17.0.9, 21.0.1, 22 or newer; else enabled = madvise, or -Xss below the size of a huge page",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in _of(facts, "jvm"):
        match = _VERSION.match(each.version or "")
        if facts.top != "always" or not facts.thp_possible or match is None:
            continue
        major, rest = int(match[1]), (int(match[2] or 0), int(match[3] or 0))
        if major < 22 and (major not in _STACKS_FIXED or rest < _STACKS_FIXED[major]):
            yield Hit(f"{each.what}: version {each.version} while enabled = always", each.unit)


def _mongodb(facts: HostFacts) -> Iterator[tuple[ServerConfig, int]]:
    for each in _of(facts, "mongodb"):
        if match := re.match(r"(\d{1,3})\.", each.version or ""):
            yield each, int(match[1])


@rule(
    "mongodb-before-8-with-thp",
    "note",
    "MongoDB before 8 with huge pages: its makers advise never",
    why="Its allocator of then gives memory back in pieces of a huge page.",
    sources=("https://www.mongodb.com/docs/v7.0/tutorial/transparent-huge-pages/",),
    cure="measure it both ways; for it alone: MemoryTHP=disable, or a launcher with prctl",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each, major in _mongodb(facts):
        if major < 8 and facts.top != "never" and facts.thp_possible:
            yield Hit(f"{each.what}: version {each.version} while enabled = {facts.top}", each.unit)


@rule(
    "mongodb-8-without-thp",
    "note",
    "MongoDB 8 without huge pages: its makers advise always, defer+madvise and max_ptes_none = 0",
    why="From 8.0 on its allocator is laid out for huge pages, and does not advise them.",
    sources=(_MONGODB, "https://github.com/ansible-collections/community.mongodb/issues/695"),
    cure="measure it both ways with your own load",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each, major in _mongodb(facts):
        if major >= 8 and facts.top in ("madvise", "never"):
            yield Hit(f"{each.what}: version {each.version} while enabled = {facts.top}", each.unit)
