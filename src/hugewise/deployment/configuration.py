"""Settings as files: of the whole host, and of servers that choose their pages themselves.

Sources: tmpfiles.d(5); sysctl.d(5); kernel-parameters.txt, transhuge.rst and hugetlbpage.rst of the Linux kernel;
Debian's grub-mkconfig; tuned.conf(5); PostgreSQL, "Managing Kernel Resources"; MariaDB, "Memory Allocation";
redis.conf; memcached(1).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from hugewise.deployment.quoting import plain
from hugewise.model.policy import UNREAD, DeployedFile
from hugewise.visible import printable

_SIZE, _ANY_SIZE = re.compile(r"hugepages-[0-9]+kB"), "hugepages-*kB"
_NOW = "/usr/local/sbin/page-sizes-now"
_TMPFILES = "/etc/tmpfiles.d/page-sizes.conf"
_SYSCTL = "/etc/sysctl.d/60-page-sizes.conf"
_BOOT = "/etc/default/grub.d/page-sizes.cfg"
_TUNED = "/etc/tuned/page-sizes/tuned.conf"
_BACK = "write back what stood there before, or boot anew"


def now(settings: Mapping[str, str], check: str | None = None) -> DeployedFile:
    """Return a script that sets kernel settings (path -> value) until the next boot. Raises ValueError."""
    lines = list(_commands(settings))
    return DeployedFile(
        kind="script",
        path=_NOW,
        content="\n".join(["#!/bin/sh", "# Page sizes until the next boot; as root.", "set -eu", *lines, ""]),
        scope="host-now",
        apply=(f"sh {_NOW}",),
        undo=(f"rm {_NOW}", f"# {_BACK}"),
        check=check or _shown(settings),
        label="read by sh",
        needs=("root",),
        sets=dict(settings),
    )


def _commands(settings: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each setting; all sizes that are off share one line."""
    off = [path for path, value in settings.items() if value == "never" and _SIZE.search(path)]
    patterns = Counter(_SIZE.sub(_ANY_SIZE, plain(path)) for path in off)
    several = [pattern for pattern, count in patterns.items() if count > 1]
    for pattern in several:
        yield f"for size in {pattern}; do echo never > $size; done"
    for path, value in settings.items():
        if path not in off or _SIZE.sub(_ANY_SIZE, path) not in several:
            yield f"echo {plain(value)} > {plain(path)}"


def tmpfiles(settings: Mapping[str, str]) -> DeployedFile:
    """Return tmpfiles.d lines for the settings, without patterns: these would come last. Raises ValueError."""
    lines = [f"w {plain(path)} - - - - {plain(value)}" for path, value in settings.items()]
    return DeployedFile(
        kind="tmpfiles",
        path=_TMPFILES,
        content="\n".join(["# Type Path Mode User Group Age Argument", *lines, ""]),
        scope="host-boot",
        apply=(f"systemd-tmpfiles --create {_TMPFILES}",),
        undo=(f"rm {_TMPFILES}", f"# {_BACK}"),
        check=_shown(settings),
        label="read by systemd-tmpfiles",
        needs=("root", "systemd; a tuned profile that sets the same is later and wins"),
    )


def sysctl(pages: int) -> DeployedFile:
    """Return a pool of so many pages of the default size, for sysctl.d."""
    return DeployedFile(
        kind="sysctl",
        path=_SYSCTL,
        content=(
            "# Pages of the default size (Hugepagesize in /proc/meminfo): reserved, used or not.\n"
            f"vm.nr_hugepages = {pages}\n"
            "# Or none reserved, and as many made when they are asked for, where memory is whole enough then:\n"
            f"# vm.nr_overcommit_hugepages = {pages}\n"
        ),
        scope="host-boot",
        apply=(f"sysctl --load={_SYSCTL}",),
        undo=(f"rm {_SYSCTL}", f"# {_BACK}"),
        check="sysctl vm.nr_hugepages; grep Huge /proc/meminfo",
        label="read by sysctl",
        needs=("root",),
    )


def boot(words: tuple[str, ...], *, needs: tuple[str, ...] = (), instead: bool = False) -> DeployedFile:
    """Return words for the kernel's command line, as Debian's grub takes them. Raises ValueError."""
    line = " ".join("=".join(map(plain, word.split("=", 1))) for word in words)
    return DeployedFile(
        kind="boot",
        path=_BOOT,
        content=f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {line}"\n',
        scope="host-boot",
        apply=("update-grub", "reboot"),
        undo=(f"rm {_BOOT}", "update-grub", "reboot"),
        check="cat /proc/cmdline",
        label="read by sh, as update-grub does",
        needs=(
            "root",
            "a reboot",
            f"GRUB as Debian has it; elsewhere: grubby --update-kernel=ALL --args='{line}'",
            *needs,
        ),
        instead=instead,
    )


def tuned(settings: Mapping[str, str]) -> DeployedFile:
    """Return a profile of tuned that sets the same. Raises ValueError for a setting that is none."""
    lines = [f"{plain(path)}={plain(value)}" for path, value in settings.items()]
    return DeployedFile(
        kind="tuned",
        path=_TUNED,
        content="\n".join(["[main]", "summary=Page sizes", "", "[sysfs]", *lines, ""]),
        scope="host-boot",
        apply=("tuned-adm profile ACTIVE page-sizes  # ACTIVE: what `tuned-adm active` says",),
        undo=("tuned-adm profile ACTIVE", f"rm -r {_TUNED.rpartition('/')[0]}", f"# {_BACK}"),
        check=f"tuned-adm active; {_shown(settings)}",
        label=UNREAD,
        needs=("root", "tuned; no tmpfiles.d beside it that sets the same (the later one wins)"),
        instead=True,
    )


def _shown(settings: Mapping[str, str]) -> str:
    """Return a command that shows all settings, each size by a pattern."""
    patterns = dict.fromkeys(_SIZE.sub(_ANY_SIZE, plain(path)) for path in settings)
    return f"grep . {' '.join(patterns)}"


_POOL = "pages in the pool before it starts: it refuses to start without"


def postgresql(settings: Mapping[str, str]) -> DeployedFile:
    """Return settings of PostgreSQL by their names, such as huge_pages = on. Raises ValueError for one that is none."""
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
    """Return the file that decides whether MariaDB's buffer pool takes pages of a pool."""
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
    """Return the file that decides whether redis refuses transparent huge pages for itself, as it does by default."""
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
        check="echo stats settings | nc -q 1 localhost 11211; hugewise verify memcached.service --policy thp-advised",
        label="read by memcached",
        needs=("transparent_hugepage/enabled not never: memcached refuses -L then",),
    )


def _ended(path: str) -> str:
    """Return a command that ends the last line of a file, if it is open: an appended line would become a part of it."""
    return f"sed -i '$a\\' {path}"


_LONGEST = 300
_HYPHENS = re.compile(r"-(?=-|$)")  # two of them end a comment of XML


def with_evidence(file: DeployedFile, told: tuple[str, ...]) -> DeployedFile:
    """Return the file with the lines of `told` as comments at its head; whatever stands in them, they stay comments."""
    lines = [_line(line) for line in told]
    if file.kind == "libvirt":
        body = "\n".join(f"  {_HYPHENS.sub('- ', line)}" for line in lines)
        return msgspec.structs.replace(file, content=f"<!--\n{body}\n-->\n{file.content}")
    comments = "".join(f"# {line}\n" for line in lines)
    first, newline, rest = file.content.partition("\n")
    if first.startswith("#!"):
        return msgspec.structs.replace(file, content=f"{first}{newline}{comments}{rest}")
    return msgspec.structs.replace(file, content=comments + file.content)


def _line(text: str) -> str:
    """Return the text as one line; a backslash at its end would continue the line in some formats."""
    line = printable(text)
    if len(line) > _LONGEST:  # keeps whole sentences, the first of which is the verdict
        line = line[: line.rfind(". ", 0, _LONGEST) + 1] or line[:_LONGEST]
    return line.rstrip("\\ ")
