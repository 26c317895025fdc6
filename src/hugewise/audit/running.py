"""Processes of a host that have to do with page settings, from /proc: how they were started, and their mappings.

Only known variables of a process's environment are kept, and of its command line only what a reader of a server's
options takes: other words may be secrets. A process that ends meanwhile is passed over. Source: proc(5), getauxval(3).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

import msgspec

from hugewise.audit.facts import Placed, RunningProcess, ServerKind
from hugewise.audit.root import Root
from hugewise.machine import proc
from hugewise.machine.proc import (
    AT_BASE,
    AT_SECURE,
    Patience,
    StuckError,
    auxiliary,
    fields,
    living,
    mappings,
    variables,
)

_LONGEST = 256
_PLAIN = re.compile(r"[\w./:,=+@%*$-]{0,256}", re.ASCII)
_AMOUNT = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,15})? {1,4}[A-Za-z]{1,3}")
# A jemalloc that was built with a prefix reads a variable of its own: _RJEM_MALLOC_CONF (Rust), JE_MALLOC_CONF (redis).
_JEMALLOC = re.compile(r"[A-Z0-9_]{0,32}MALLOC_CONF(?:_2_CONF_HARDER)?")
_OPTIONS = re.compile(r"(?: ?\w{1,40}[:=][\w./-]{0,40}(?:,|$)){1,16}", re.ASCII)
_WHOLE = {
    *("LD_PRELOAD", "NUMPY_MADVISE_HUGEPAGE", "PYTHONMALLOC"),
    *("MIMALLOC_ALLOW_THP", "MIMALLOC_ALLOW_LARGE_OS_PAGES", "MIMALLOC_LARGE_OS_PAGES"),
    *("MIMALLOC_RESERVE_HUGE_OS_PAGES", "TCMALLOC_MEMFS_MALLOC_PATH"),
    *("HUGETLB_MORECORE", "HUGETLB_SHM", "HUGETLB_ELFMAP", "HUGETLB_DEFAULT_PAGE_SIZE"),
}
# Only the words about pages are kept of these variables; the rest may be private.
_PARTS = {
    "GLIBC_TUNABLES": (":", re.compile(r"glibc\.malloc\.[a-z_]{1,40}=.*|glibc\.[a-z_.]*huge.*")),
    "GODEBUG": (",", re.compile(r"disablethp=.*")),
    "JAVA_TOOL_OPTIONS": (" ", re.compile(r"-XX:[+-]?(?:Use\w{0,20}(?:LargePages|HugePages)|LargePageSizeInBytes).*")),
    "NODE_OPTIONS": (" ", re.compile(r"--use-largepages(?:=.*)?")),
}
_PARTS |= dict.fromkeys(("JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"), _PARTS["JAVA_TOOL_OPTIONS"])

_KINDS: Mapping[str, ServerKind] = {
    **dict.fromkeys(("postgres", "postmaster"), "postgresql"),
    **dict.fromkeys(("mysqld", "mariadbd"), "mysql"),
    **dict.fromkeys(("redis-server", "valkey-server"), "redis"),
    "memcached": "memcached",
    "java": "jvm",
    "mongod": "mongodb",
}
# Programs that start another program, and their options that take a word of their own.
_WRAPPERS = {
    "env": "uCS", "nice": "n", "ionice": "cnp", "numactl": "iNmCplw", "taskset": "", "chrt": "TPD", "prlimit": "",
    "hugectl": "", "setarch": "", "stdbuf": "ioe", "hugewise-exec": "", "nohup": "", "sudo": "ugCDhprRTtU",
    "runuser": "ugG", "setpriv": "", "timeout": "ks", "gosu": "", "su-exec": "",
}  # fmt: skip
# Of these the first word that is no option is theirs: CPUs, a priority, an architecture, a time, an account.
_POSITIONAL = ("taskset", "chrt", "setarch", "timeout", "gosu", "su-exec")
_LONG = {"--pages", "--membind", "--cpunodebind", "--physcpubind", "--interleave", "--preferred", "--unset", "--chdir"}


def shown_value(value: str) -> str:
    """Return a setting as it may be printed: short and of plain characters, else only that it is there."""
    return value if _PLAIN.fullmatch(value) or _AMOUNT.fullmatch(value) else "(set; not shown)"


def known_environment(pairs: Iterable[tuple[str, str, str]]) -> tuple[Placed, ...]:
    """Return the known variables, from name, value and place; the last of each name counts."""
    found: dict[str, Placed] = {}
    for name, value, where in pairs:
        kept = _kept(name, value)
        if kept is not None:
            found[name] = Placed(name, kept, where)
    return tuple(found.values())


def _kept(name: str, value: str) -> str | None:
    if name == "LD_PRELOAD":  # its files are separated by blanks or colons
        value = ":".join(value[: 1 << 16].split())
    if _JEMALLOC.fullmatch(name):
        return value if _OPTIONS.fullmatch(value) else shown_value(value)
    if name in _WHOLE:
        return shown_value(value)
    if name not in _PARTS:
        return None
    between, pattern = _PARTS[name]
    # Matched by its beginning alone: longer values are not shown, and a pattern may take quadratic time.
    parts = [
        shown_value(part) for part in value[: 1 << 16].split(between) if pattern.fullmatch(part.strip()[:_LONGEST])
    ]
    return between.join(parts)[: 4 * _LONGEST] or None


def server_kind(*names: str) -> ServerKind | None:
    """Return the kind of server that a program is, by the last part of one of its names."""
    found = (_KINDS.get(PurePosixPath(name).name) for name in names)
    return next((kind for kind in found if kind is not None), None)


def wrapped(argv: list[str]) -> tuple[list[str], tuple[str, ...], list[tuple[str, str]]]:
    """Return the command that wrappers such as `env` and `numactl` start at last, their names, and what `env` sets."""
    wrappers: list[str] = []
    assigned: list[tuple[str, str]] = []
    while argv and (name := PurePosixPath(argv[0]).name) in _WRAPPERS:
        rest = list(_without_options(argv[1:], _WRAPPERS[name]))
        while name == "env" and rest and "=" in rest[0]:
            key, _, value = rest.pop(0).partition("=")
            assigned.append((key, value))
        rest = rest[1:] if name in _POSITIONAL and len(rest) > 1 else rest
        if not rest:
            break
        wrappers.append(name)
        argv = rest
    return argv, tuple(wrappers), assigned


def _without_options(argv: list[str], taking: str) -> Iterator[str]:
    """Yield the words from the first one that is no option; `taking` are the letters whose options take a word."""
    at = 0
    while at < len(argv) and argv[at].startswith("-"):
        word = argv[at]
        at += 1
        if word == "--":
            break
        alone = len(word) == 2 and word[1] in taking
        at += 1 if alone or word in _LONG else 0
    yield from argv[at:]


_MOST_PROCESSES = 1 << 16
_MOST_WORDS = 1 << 18
_MOST_ENVIRONMENT = 1 << 20
_MOST_MAPS = 16 << 20
_MOST_OF_ONE, _MOST_OF_ALL = 64 << 20, 512 << 20  # bytes of all these files
_LOOKED_AT = 64 << 20  # bytes of memory from which on a process's allocator is looked for
_LIBRARIES = {
    "libjemalloc": "jemalloc",
    "libtcmalloc": "tcmalloc",
    "libmimalloc": "mimalloc",
    "libhugetlbfs": "libhugetlbfs",
    "libjvm": "jvm",
    "libc.so.6": "glibc",
    "ld-musl": "musl",
    "libc.musl": "musl",
}
_HUGE = re.compile(r"/anon_hugepage|/dev/hugepages|/mnt/huge")
_PATIENCE_S = 10.0  # for a file of a process; one second for each later one that cannot be read
_SHARED = re.compile(r"/dev/zero \(deleted\)|/anon_hugepage \(deleted\)|/SYSV[0-9a-f]+ \(deleted\)")
_SERVICE = re.compile(r"[A-Za-z0-9:_.\\@-]{1,240}\.service")
# The groups that container managers make, not the services that these are themselves (docker.service).
_CONTAINED = re.compile(
    r"/(?:docker|libpod|crio|cri-containerd|nerdctl|machine|systemd-nspawn|libvirt-lxc)-[^/]*\.scope(?:/|$)"
    r"|/(?:docker|libpod_parent|garden|lxc|lxc\.payload[^/]*|lxc\.payload)/|/lxc\.payload"
    r"|/kubepods(?:-[^/]*)?(?:\.slice)?/|/systemd-nspawn@[^/]*\.service/"
)


class Seen(msgspec.Struct, frozen=True):
    """A process, and the command line of one that is a server: for the readers of options alone.

    contained   it runs in a container: the files that it names are not this host's
    of          whose it is, where that is neither root's nor a service's
    """

    process: RunningProcess
    kind: ServerKind | None
    argv: tuple[str, ...]
    parent: int
    contained: bool
    of: str | None


def processes(root: Root) -> list[Seen]:
    """Return processes that are servers or services, have a known variable, are large, or have THP turned off."""
    pids = sorted(int(name) for name in root.names("/proc") if name.isascii() and name.isdigit() and len(name) < 10)
    reader = _Reader(root)
    found = (_process(root, pid, reader) for pid in pids[:_MOST_PROCESSES])
    return [each for each in found if each is not None]


class _Reader:
    """Reads words, variables and mappings of processes, so much of each account, so that none keeps an audit busy."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.above = proc.top(root.text("/proc/1/cgroup", 1 << 16) or "")
        self._read: Counter[str] = Counter()
        self._patience = Patience(_PATIENCE_S)

    def data(self, path: str, most: int, of: str | None) -> bytes | None:
        """Return the first `most` bytes; empty where too much was read `of` the account (None: no limit)."""
        if of is not None and (self._read[of] >= _MOST_OF_ONE or self._read[""] >= _MOST_OF_ALL):
            self.root.tell(f"processes of {of}", "they have too much to read: not all of it was looked at")
            return None
        try:
            content = self._patience.of(lambda: self.root.data(path, most, whole=False))
        except StuckError as error:
            self.root.tell(path, str(error))
            return None
        if of is not None and content:
            self._read[of] += len(content)
            self._read[""] += len(content)
        return content


def _process(root: Root, pid: int, reader: _Reader) -> Seen | None:
    alive = living(root, pid)
    folder = f"/proc/{alive}"
    status = None if alive is None else root.text(f"{folder}/status", 1 << 16)
    if status is None or (said := fields(status)).get("VmRSS") is None:
        return None  # ended, or a thread of the kernel
    group, unit, contained = _group(root.text(f"{folder}/cgroup", 1 << 16) or "", reader.above)
    account = said.get("Uid", "0").split()[0]
    of = None if account == "0" or (unit and not unit.startswith("user@")) else f"the account {account}"
    argv = _words(reader.data(f"{folder}/cmdline", _MOST_WORDS, of))
    name = said.get("Name", "")
    exe = (root.target(f"{folder}/exe") or "").removesuffix(" (deleted)")
    program = (exe or (argv[0] if argv else name)).encode("utf-8", "replace").decode()
    kind = server_kind(argv[0].partition(" ")[0] if argv else "", name, program)
    raw = reader.data(f"{folder}/environ", _MOST_ENVIRONMENT, of) or b""
    environment = known_environment((key, value, f"environment of {pid}") for key, value in variables(raw))
    rss = _kib(said.get("VmRSS"))
    off = said.get("THP_enabled") == "0"
    looked_at = kind is not None or bool(environment) or off or (rss or 0) >= _LOOKED_AT
    if not looked_at and unit is None:
        return None
    secure = static = libraries = None
    shared, huge = 0, False
    if looked_at:
        secure, static = _auxiliary(root.data(f"{folder}/auxv", 1 << 14, whole=False))
        maps = (reader.data(f"{folder}/maps", _MOST_MAPS, of) or b"").decode("utf-8", "replace")
        if maps:
            libraries, shared, huge = _mapped(maps)
    process = RunningProcess(
        pid=pid,
        name=shown_value(name),
        program=program,
        unit=unit,
        group=group,
        thp_enabled=None if "THP_enabled" not in said else not off,
        secure=secure,
        static=static,
        libraries=libraries,
        environment=environment,
        rss=rss,
        shared=shared,
        shared_huge=huge,
        hugetlb=_kib(said.get("HugetlbPages")) or 0,
    )
    parent = said.get("PPid", "0")
    return Seen(process, kind, tuple(argv) if kind else (), int(parent) if parent.isdecimal() else 0, contained, of)


def _kib(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d{1,15}) kB", text or "", re.ASCII)
    return int(match[1]) << 10 if match else None


def _words(raw: bytes | None) -> list[str]:
    return [] if not raw else raw.decode("utf-8", "replace").rstrip("\0").split("\0")


def _group(text: str, above: str) -> tuple[str, str | None, bool]:
    """Return the cgroup that limits hugetlb pages, the service, and whether the cgroup looks like a container's."""
    paths = {parts[1]: parts[2] for line in text.split("\n") if len(parts := line.split(":", 2)) == 3}
    hugetlb = next((path for names, path in paths.items() if "hugetlb" in names.split(",")), None)
    unit = proc.service(text, above)
    if unit is not None and _SERVICE.fullmatch(unit) is None:
        unit = None
    contained = any(_CONTAINED.search(path.removeprefix(above)) for path in paths.values())
    return hugetlb or paths.get("", ""), unit, contained


def _auxiliary(raw: bytes | None) -> tuple[bool | None, bool | None]:
    """Return AT_SECURE, and whether there is no interpreter; None for a process of another word length."""
    if not raw:
        return None, None
    vector = auxiliary(raw)
    if AT_SECURE not in vector:
        return None, None
    return vector[AT_SECURE] == 1, vector.get(AT_BASE, 0) == 0


def _mapped(maps: str) -> tuple[frozenset[str], int, bool]:
    """Return the known libraries, the bytes of the largest shared mapping, and whether that is of huge pages."""
    libraries = set()
    largest, name = 0, ""
    for mapping in mappings(maps):
        if mapping.shared and mapping.size > largest and (_SHARED.fullmatch(mapping.name) or _HUGE.match(mapping.name)):
            largest, name = mapping.size, mapping.name
        if mapping.name.startswith("/"):
            file = PurePosixPath(mapping.name).name
            libraries |= {kind for begin, kind in _LIBRARIES.items() if file.startswith(begin)}
    return frozenset(libraries), largest, _HUGE.match(name) is not None
