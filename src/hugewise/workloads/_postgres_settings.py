"""The settings of a PostgreSQL server: those of the published experiment, what a short run needs, what is given. Pure.

Sources: PostgreSQL documentation; "Benchmark PostgreSQL With Linux HugePages" (Percona, 2018), sizes scaled with
shared_buffers.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

__all__ = ["between_checkpoints", "calm", "settings"]

# Of the published experiment, for its shared_buffers of 64 GB. Memory and WAL shrink with shared_buffers, down to the
# server's own minimum; costs, times and switches are as published.
_PUBLISHED_BUFFERS = 64 << 30
_SCALED = {
    "work_mem": (1 << 30, 64 << 10),
    "maintenance_work_mem": (2 << 30, 1 << 20),
    "effective_cache_size": (200 << 30, 8 << 10),
    "max_wal_size": (100 << 30, 64 << 20),
    "min_wal_size": (1 << 30, 32 << 20),
    # Its default there. Unscaled, every backend would go on touching parts of it for the first time: seen, 9 backends,
    # 1% of the resident pages in 10 s.
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

# What belongs to the treatment, the placement or the proof; a study cannot change it.
_OURS = frozenset(
    {
        "data_directory",
        "dynamic_shared_memory_type",
        "huge_page_size",
        "huge_pages",
        "listen_addresses",
        "max_connections",
        "port",
        "shared_buffers",
        "shared_memory_type",
        "unix_socket_directories",
    }
)


def between_checkpoints(seconds: float) -> dict[str, str]:
    """Settings of a run so short that no checkpoint comes in it by time: it shall be as long after one. Empty for a
    longer run.

    After a checkpoint the first change of every page logs the page whole, and a server that was just started has had
    one. Seen, TPC-B over 0.6 GB by 9 clients: half of the throughput at first, and 25 to 53% more in the last third of
    10 s than in the first, as ever fewer pages are left; without the images there is no such rise. Sources: PostgreSQL
    documentation, full_page_writes, and "WAL Configuration".
    """
    return {"full_page_writes": "off"} if seconds < _CHECKPOINTS_S else {}


def calm(wal: int, shared_buffers: int) -> dict[str, str]:
    """Settings under which nothing comes by the server's own clock, nor because of `wal` bytes of log."""
    published = _SCALED["max_wal_size"][0] * shared_buffers // _PUBLISHED_BUFFERS
    return {
        "autovacuum": "off",
        "checkpoint_timeout": "1d",  # the longest there is
        # A checkpoint begins before it is full: at 1/(1 + checkpoint_completion_target) of it.
        "max_wal_size": f"{max(1 << 30, 2 * wal, published) >> 10}kB",
        "log_checkpoints": "on",
        **between_checkpoints(0),
    }


def settings(
    shared_buffers: int, connections: int, given: str = "", chosen: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The server's settings, sizes scaled with `shared_buffers` bytes; what is `chosen` goes before that, and what is
    `given`, such as `wal_compression=off`, before all.

    Raises ValueError when `given` is not a list of NAME=VALUE, or names what belongs to the treatment.
    """
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
