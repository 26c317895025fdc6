"""The processes of a host that have to do with page settings, from /proc: what they were started with, what they map.

Of a process's environment only known variables are kept, of its command line nothing but what a reader of a server's
options takes. One that ends meanwhile is passed over. Source: proc(5), getauxval(3).
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import PurePosixPath

import msgspec

from hugewise.audit import known
from hugewise.audit.facts import RunningProcess, ServerKind
from hugewise.audit.root import Root
from hugewise.machine import units
from hugewise.machine.maps import mappings
from hugewise.machine.patience import Patience, StuckError
from hugewise.machine.proc import AT_BASE, AT_SECURE, auxiliary, fields, living, variables

__all__ = ["Seen", "processes"]

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
_PATIENCE_S = 10.0  # for a file of a process; of the next one that cannot be read, a second
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
    """Those that are servers, have a known variable, belong to a service, are large, or have THP turned off."""
    pids = sorted(int(name) for name in root.names("/proc") if name.isascii() and name.isdigit() and len(name) < 10)
    reader = _Reader(root)
    found = (_process(root, pid, reader) for pid in pids[:_MOST_PROCESSES])
    return [each for each in found if each is not None]


class _Reader:
    """Reads what processes decide themselves (their words, variables and mappings): so much of each account and of all
    accounts together, but for root's and those of services. Nobody keeps an audit busy with processes of their own.
    """

    def __init__(self, root: Root) -> None:
        self.root = root
        self.above = units.top(root.text("/proc/1/cgroup", 1 << 16) or "")
        self._read: Counter[str] = Counter()
        self._patience = Patience(_PATIENCE_S)

    def data(self, path: str, most: int, of: str | None) -> bytes | None:
        """The first so many bytes; nothing where too much was read `of` the account (None: one without a limit)."""
        if of is not None and (self._read[of] >= _MOST_OF_ONE or self._read[""] >= _MOST_OF_ALL):
            self.root.tell(f"processes of {of}", "they have too much to read: not all of it was looked at")
            return None
        try:
            found = self._patience.of(lambda: self.root.data(path, most, whole=False))
        except StuckError as error:
            self.root.tell(path, str(error))
            return None
        if of is not None and found:
            self._read[of] += len(found)
            self._read[""] += len(found)
        return found


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
    kind = known.server_kind(argv[0].partition(" ")[0] if argv else "", name, program)
    raw = reader.data(f"{folder}/environ", _MOST_ENVIRONMENT, of) or b""
    environment = known.environment((key, value, f"environment of {pid}") for key, value in variables(raw))
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
        name=known.shown_value(name),
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
    )
    parent = said.get("PPid", "0")
    return Seen(process, kind, tuple(argv) if kind else (), int(parent) if parent.isdecimal() else 0, contained, of)


def _kib(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d{1,15}) kB", text or "", re.ASCII)
    return int(match[1]) << 10 if match else None


def _words(raw: bytes | None) -> list[str]:
    return [] if not raw else raw.decode("utf-8", "replace").rstrip("\0").split("\0")


def _group(text: str, above: str) -> tuple[str, str | None, bool]:
    """The cgroup that limits hugetlb pages, the service, and whether it looks like a container's."""
    paths = {parts[1]: parts[2] for line in text.split("\n") if len(parts := line.split(":", 2)) == 3}
    hugetlb = next((path for names, path in paths.items() if "hugetlb" in names.split(",")), None)
    unit = units.service(text, above)
    if unit is not None and _SERVICE.fullmatch(unit) is None:
        unit = None
    contained = any(_CONTAINED.search(path.removeprefix(above)) for path in paths.values())
    return hugetlb or paths.get("", ""), unit, contained


def _auxiliary(raw: bytes | None) -> tuple[bool | None, bool | None]:
    """AT_SECURE, and whether there is no interpreter; None for a process of another word length."""
    if not raw:
        return None, None
    found = auxiliary(raw)
    if AT_SECURE not in found:
        return None, None
    return found[AT_SECURE] == 1, found.get(AT_BASE, 0) == 0


def _mapped(maps: str) -> tuple[frozenset[str], int, bool]:
    """Known libraries, and the largest shared anonymous mapping."""
    libraries = set()
    largest, name = 0, ""
    for each in mappings(maps):
        if each.shared and each.size > largest and (_SHARED.fullmatch(each.name) or _HUGE.match(each.name)):
            largest, name = each.size, each.name
        if each.name.startswith("/"):
            file = PurePosixPath(each.name).name
            libraries |= {kind for begin, kind in _LIBRARIES.items() if file.startswith(begin)}
    return frozenset(libraries), largest, _HUGE.match(name) is not None
