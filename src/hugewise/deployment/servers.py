"""The configuration of servers that choose their pages themselves.

Sources: PostgreSQL, "Managing Kernel Resources" (huge pages; `try` takes base pages without a word); MariaDB,
"Memory Allocation" (large-pages); redis.conf (disable-thp); memcached(1) (-L).
"""

from __future__ import annotations

from collections.abc import Mapping

from hugewise.deployment.quoting import plain
from hugewise.model.deployment import DeployedFile

__all__ = ["mariadb", "memcached", "postgresql", "redis"]

_POOL = "pages in the pool before it starts: it refuses to start without"


def postgresql(settings: Mapping[str, str]) -> DeployedFile:
    """Settings of PostgreSQL by their names, such as huge_pages = on. Raises ValueError for one that is none."""
    path = "/etc/postgresql/VERSION/main/conf.d/page-sizes.conf"
    again = "systemctl restart postgresql"
    return DeployedFile(
        kind="postgresql",
        path=path,
        content="".join(f"{plain(name)} = {plain(value)}\n" for name, value in settings.items()),
        scope="server",
        apply=(again,),
        undo=(f"rm {path}", again),
        check="psql -c 'SHOW huge_pages' -c 'SHOW shared_memory_size_in_huge_pages'",
        label="read by postgres -C",
        needs=(
            "include_dir = 'conf.d' in postgresql.conf, as Debian has it",
            *((_POOL,) if settings.get("huge_pages") == "on" else ()),
        ),
    )


def mariadb(*, large: bool) -> DeployedFile:
    """Whether MariaDB's buffer pool is made of a pool's pages."""
    path = "/etc/mysql/mariadb.conf.d/60-page-sizes.cnf"
    again = "systemctl restart mariadb"
    return DeployedFile(
        kind="mariadb",
        path=path,
        content=f"[mariadbd]\nlarge-pages = {'ON' if large else 'OFF'}\n",
        scope="server",
        apply=(again,),
        undo=(f"rm {path}", again),
        check="mariadb -e \"SHOW VARIABLES LIKE 'large_pages'\"; grep Huge /proc/meminfo",
        label="read by mariadbd --help --verbose",
        needs=("pages in the pool before it starts: what is short becomes base pages",) if large else (),
    )


def redis(*, disable_thp: bool) -> DeployedFile:
    """Whether redis refuses transparent huge pages for itself, as it does unless it is told."""
    path = "/etc/redis/page-sizes.conf"
    again = "systemctl restart redis-server"
    return DeployedFile(
        kind="redis",
        path=path,
        content=f"disable-thp {'yes' if disable_thp else 'no'}\n",
        scope="server",
        apply=(_ended("/etc/redis/redis.conf"), f"echo 'include {path}' >> /etc/redis/redis.conf", again),
        undo=(f"sed -i '\\|^include {path}$|d' /etc/redis/redis.conf", f"rm {path}", again),
        check="redis-cli CONFIG GET disable-thp",
        label="read by redis-server",
        needs=("redis 6.2 or later, or valkey",),
    )


def memcached() -> DeployedFile:
    """memcached's own large pages: its items in one piece, with advice; a line for Debian's memcached.conf."""
    path = "/etc/memcached.page-sizes.conf"
    again = "systemctl restart memcached"
    return DeployedFile(
        kind="memcached",
        path=path,
        content="-L\n",
        scope="server",
        apply=(_ended("/etc/memcached.conf"), f"cat {path} >> /etc/memcached.conf", again),
        undo=("sed -i '/^-L$/d' /etc/memcached.conf", again),
        check="echo stats settings | nc -q 1 localhost 11211; hugewise verify memcached.service",
        label="read by memcached",
        needs=("transparent_hugepage/enabled not never: memcached refuses -L then",),
    )


def _ended(path: str) -> str:
    """Ends the last line of a file, where that is open: what is appended would become a part of it."""
    return f"sed -i '$a\\' {path}"
