"""The studies that are tortured, as a user would write them: short, and with everything that a run can turn or make."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["guest", "host", "pool", "servers", "small", "stopping", "write"]

_HEAD = """\
format = 1
name = "{name}"
policies = {policies}
confidence = 0.9

[budget]
blocks = {blocks}

[between]
settle = "0ms"
"""
_SERVED = """
[[workload]]
name = "{name}"
policies = {policies}
timeout = "{timeout}"
delivery = {{ share = 0.0 }}
parameters = {{ keys = 2000, duration = "{duration}", lead = "0s"{more} }}
"""
_CHASE = """
[[workload]]
name = "chase"
policies = ["base", "thp", "hugetlb-2m"]
timeout = "30s"
parameters = { bytes = "8m", loads = 20000 }
"""
_COMMAND = """
[[workload]]
name = "command"
timeout = "30s"
delivery = {{ share = 0.0 }}
parameters = {{ argv = ["true"], pool_bytes = "{pool}m" }}
"""
_GUEST = """
[guest]
arch = "x86-64"
accelerator = "tcg"
memory = "256m"

[[kernel]]
name = "debian"
package = "linux-image-cloud-amd64"

[[workload]]
name = "fault"
timeout = "60s"
parameters = { bytes = "16m", rounds = 1 }
"""
_BACKED = """[
    { name = "small", from = "base", backing = { pages = "hugetlb-2m", source = "file" } },
    { name = "huge", from = "thp", backing = { pages = "hugetlb-2m", source = "file" } },
]"""
_PLAIN = '[{ name = "small", from = "base", backing = "base" }, { name = "huge", from = "thp", backing = "base" }]'
# Of each its workload, a policy that it has beside base and thp, and more parameters.
_SERVERS = {
    "redis-server": ("redis", ', "mthp-64k"', ""),
    "memcached": ("memcached", ', "hugetlb-2m"', ', memory = "64m"'),
}


def _head(name: str, policies: str, blocks: int = 2) -> str:
    return _HEAD.format(name=name, policies=policies, blocks=blocks)


def servers() -> list[str]:
    """The servers that are installed, of those that can be tortured; the one that starts faster first."""
    return [name for name in _SERVERS if shutil.which(name) is not None]


def small(blocks: int = 2) -> str:
    """No server: the shortest run that turns knobs, has a pool and attempts."""
    return _head("small", '["base", "thp", "hugetlb-2m"]', blocks) + _CHASE


def host(*, timeout: str = "30s", duration: str = "100ms") -> str:
    """A server, and a workload without one: knobs, a pool, cgroups, private folders."""
    return _head("host", '["base", "thp", "mthp-64k", "hugetlb-2m"]') + _served(timeout, duration) + _CHASE


def stopping() -> str:
    """A server with so much time in its measured part that it can be stopped there, and little patience."""
    return _head("stopping", '["base", "thp"]') + _served("6s", "1s", few=True)


def _served(timeout: str, duration: str, *, few: bool = False) -> str:
    """The workload of the first server that is installed; none where none is. `few`: under base and thp alone."""
    for server in servers():
        name, third, more = _SERVERS[server]
        policies = f'["base", "thp"{"" if few else third}]'
        return _SERVED.format(name=name, policies=policies, timeout=timeout, duration=duration, more=more)
    return ""


def pool(mib: int) -> str:
    """A pool of so many MiB, and nothing else that takes time."""
    return _head("pool", '["base", "hugetlb-2m"]') + _COMMAND.format(pool=mib)


def guest(*, root: bool) -> str:
    """Four short boots under emulation; as root with memory from a pool, on a hugetlbfs of the session's own."""
    return _head("guest", _BACKED if root else _PLAIN) + _GUEST


def write(folder: Path, text: str) -> Path:
    """The study as a file there."""
    path = folder / "study.toml"
    path.write_text(text)
    return path
