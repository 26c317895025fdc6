"""Servers whose own settings ask for pages that they do not get."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hugewise.audit.demand import OFF, ON, PageNeed, amount, jvm_need, mysql_need, postgresql_need, refused
from hugewise.audit.facts import HostFacts, HugePool, ServerConfig, ServerKind
from hugewise.audit.rules import Hit, rule
from hugewise.quantity import format_size, readable_size

_VERSION = re.compile(r"(?:1\.)?(\d{1,4})(?:\.(\d{1,4}))?(?:[._](\d{1,4}))?")
# First releases with the fix; of 11 the fix came after 11.0.31, and 8 had none in September 2026.
_STACKS_FIXED = {17: (0, 9), 21: (0, 1), 11: (0, 32)}


def _of(facts: HostFacts, kind: ServerKind) -> Iterator[ServerConfig]:
    return (server for server in facts.servers if server.kind == kind)


def _needs(need: PageNeed, pool: HugePool | None) -> str:
    there = "no such pool" if pool is None else f"the pool has {pool.total}, {pool.available} to be had"
    return f"needs {need.said} pages of {format_size(need.size)}; {there}"


@rule("postgresql-fell-back")
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in _of(facts, "postgresql"):
        need = postgresql_need(facts, each)
        pool = facts.pool(need.size)
        trying = each.value("huge_pages", "try") == "try"
        if each.pid and trying and each.shared and not each.shared_huge and pool is not None and pool.total:
            yield Hit(f"{each.what}: {_needs(need, pool)}", each.unit)


@rule("postgresql-will-not-start")
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


@rule("postgresql-need-within-margin")
def _(facts: HostFacts) -> Iterator[Hit]:
    for each, need in _insisting(facts):
        if facts.short(need.size, need.high) and not facts.short(need.size, need.low):
            yield _pool_hit(facts, each, need)


@rule("postgresql-over-group-limit")
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


@rule("postgresql-page-size")
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in _of(facts, "postgresql"):
        size = amount(each.value("huge_page_size", "0"), 1 << 10)
        if size and facts.pool(size) is None and facts.short(size):
            said = f"huge_page_size = {each.value('huge_page_size')} ({each.where('huge_page_size')})"
            yield Hit(f"{each.what}: {said}", each.unit)


@rule("server-value-refused")
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in facts.servers:
        for key in refused(each):
            yield Hit(f"{each.what}: {key} = {each.settings[key].value} ({each.where(key)})", each.unit)


@rule("mysql-large-pages-short")
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in _of(facts, "mysql"):
        need = mysql_need(facts, each)
        if need is not None and facts.short(need.size, need.pages, need.held):
            pool = facts.pool(need.size)
            yield Hit(f"{each.what} ({each.where('large_pages')}): {_needs(need, pool)}", each.unit)


@rule("redis-thp-fork")
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in _of(facts, "redis"):
        if each.value("disable-thp", "yes") == "no" and facts.top == "always" and facts.thp_possible:
            yield Hit(f"{each.what}: disable-thp no ({each.where('disable-thp')}) while enabled = always", each.unit)


@rule("memcached-large-pages-off")
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in _of(facts, "memcached"):
        if "large-pages" in each.settings and facts.thp_off:
            yield Hit(f"{each.what}: -L ({each.where('large-pages')}) while enabled = {facts.top}", each.unit)


@rule("jvm-large-pages-short")
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


@rule("jvm-thp-off")
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in _of(facts, "jvm"):
        if each.value("UseTransparentHugePages") == "on" and facts.thp_off:
            said = f"-XX:+UseTransparentHugePages ({each.where('UseTransparentHugePages')})"
            yield Hit(f"{each.what}: {said} while enabled = {facts.top}", each.unit)


@rule("jvm-thread-stacks")
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


@rule("mongodb-before-8-with-thp")
def _(facts: HostFacts) -> Iterator[Hit]:
    for each, major in _mongodb(facts):
        if major < 8 and facts.top != "never" and facts.thp_possible:
            yield Hit(f"{each.what}: version {each.version} while enabled = {facts.top}", each.unit)


@rule("mongodb-8-without-thp")
def _(facts: HostFacts) -> Iterator[Hit]:
    for each, major in _mongodb(facts):
        if major >= 8 and facts.top in ("madvise", "never"):
            yield Hit(f"{each.what}: version {each.version} while enabled = {facts.top}", each.unit)
