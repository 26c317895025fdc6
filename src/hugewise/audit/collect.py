"""Facts of a host, from its files. Only on this host itself, calls answer what no file tells.

libvirt is not asked: the files of its system daemon are read, that of a running machine first. Pages and knobs of a run
of hugewise under way are told, and the settings judged that the host will have afterwards.

Sources: sysctl.d(5), tmpfiles.d(5), tuned.conf(5); transhuge.rst, hugetlbpage.rst, ksm.rst, multihit.rst,
cgroup-v2.rst, cgroup-v1/hugetlb.rst and kernel-parameters.txt of the Linux kernel; libvirt, "Directory locations".
"""

from __future__ import annotations

import ctypes
import fnmatch
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import msgspec

from hugewise.audit import boot, running, servers, shell, systemd
from hugewise.audit.facts import (
    COMMAND_LINE,
    BootLine,
    Hidden,
    HostFacts,
    HugePool,
    HugetlbGroup,
    MemoryGroup,
    OwnRun,
    Placed,
)
from hugewise.audit.root import Root
from hugewise.audit.running import shown_value
from hugewise.audit.systemd import directives, words
from hugewise.errors import UserError
from hugewise.host.journal import JOURNAL, ledger_of
from hugewise.host.ledger import Share
from hugewise.machine import domain
from hugewise.machine.proc import Mount, meminfo, mounts, start_time
from hugewise.model.guest import Domain
from hugewise.model.host import number_in
from hugewise.model.pages import HUGETLB, REPORTING, THP, reported_order, sizes_in

_FOLDERS = ("/etc/{}", "/run/{}", "/usr/local/lib/{}", "/usr/lib/{}", "/lib/{}")
_KEY = re.compile(r"vm\.(?:nr_hugepages(?:_mempolicy)?|nr_overcommit_hugepages|hugetlb_shm_group)|.*huge_?page.*")
_PAGES = re.compile(
    r"/sys/kernel/mm/(?:transparent_hugepage|hugepages)/\S{1,200}|/sys/fs/cgroup/(?:\S{0,200}/)?[^/\s]{0,60}huge[^/\s]{1,60}"
    r"|/sys/devices/system/node/[\w*?\[\]-]{1,40}/hugepages/\S{1,100}"
)
_PATHS = re.compile(r"(?:/sys/kernel/mm/|/sys/devices/system/node/)[\w./*?\[\]-]{1,200}|\bvm\.nr_hugepages\b")
_SYSCTL = "/proc/sys/"
_MOST_INCLUDED = 16
_VM = {"transparent_hugepages": "enabled", "transparent_hugepage": "enabled", "transparent_hugepage.defrag": "defrag"}
_VARIABLE = re.compile(r"\$\{(\w{1,64})\}")


def _files(root: Root, kind: str) -> list[str]:
    """Return the files of a kind in the order of reading; of several with one name, the one that decides."""
    chosen: dict[str, str] = {}
    for folder in (each.format(kind) for each in _FOLDERS):
        for name in root.names(folder):
            if name.endswith(".conf"):
                chosen.setdefault(name, f"{folder}/{name}")
    return [path for _, path in sorted(chosen.items()) if root.target(path) != "/dev/null"]


def sysctl_values(root: Root) -> dict[str, Placed]:
    """Sysctls about huge pages by name, the last word of all files; /etc/sysctl.conf is read last (procps)."""
    values = {}
    for path in dict.fromkeys([*_files(root, "sysctl.d"), "/etc/sysctl.conf"]):
        for line, text in _lines(root.text(path)):
            key, equals, value = text.partition("=")
            name = key.strip().removeprefix("-").strip()
            name = name.replace("/", ".") if "/" in name and "." not in name.partition("/")[0] else name
            if equals and _KEY.fullmatch(name):
                values[name] = Placed(shown_value(name), shown_value(value.strip()), f"{path}:{line}")
    return values


def tmpfiles_values(root: Root, known: Iterable[str]) -> dict[str, Placed]:
    """Return the values that lines of type `w` write below /sys/kernel/mm, by path; `known` are the paths that a
    pattern may match.

    A sysctl that is so written is here by its path below /proc/sys.
    """
    paths = list(known)
    values = {}
    for path in _files(root, "tmpfiles.d"):
        for line, text in _lines(root.text(path)):
            fields = words(text)
            if len(fields) < 7 or not fields[0].startswith("w"):
                continue
            wanted, value = fields[1], shown_value(" ".join(fields[6:]))
            huge = wanted.startswith(_SYSCTL) and _KEY.fullmatch(wanted.removeprefix(_SYSCTL).replace("/", "."))
            if not huge and not _PAGES.fullmatch(wanted):
                continue
            for each in [one for one in paths if fnmatch.fnmatchcase(one, wanted)] or [wanted]:
                values[each] = Placed(shown_value(each), value, f"{path}:{line}")
    return values


def boot_scripts(root: Root) -> tuple[tuple[str, ...], tuple[Placed, ...]]:
    """Knobs that rc.local, /etc/sysfs.conf and files of sysfs.d name, and those whose value is known."""
    named: list[str] = []
    found: dict[str, Placed] = {}
    for path in ("/etc/rc.local", "/etc/rc.d/rc.local", "/etc/init.d/boot.local"):
        text = root.text(path) or ""
        for _, line in _lines(text):
            named += _PATHS.findall(line)
        for one in systemd.knobs_written(shell.commands(text, {})):
            named.append(one.path)
            if one.value:
                found[one.path] = Placed(one.path, shown_value(one.value), path)
    more = [f"/etc/sysfs.d/{name}" for name in root.names("/etc/sysfs.d") if name.endswith(".conf")]
    for path in ("/etc/sysfs.conf", *more):
        for number, text in _lines(root.text(path)):
            knobs = _PATHS.findall(f"/sys/{text.lstrip('/')}")
            named += knobs
            value = text.partition("=")[2].strip()
            for knob in knobs if value else ():
                found[knob] = Placed(knob, shown_value(value), f"{path}:{number}")
    return tuple(dict.fromkeys(named)), tuple(found.values())


class TunedProfiles(msgspec.Struct, frozen=True):
    """Settings of tuned's active profiles, words for the command line, and the profiles, found and not found."""

    values: Mapping[str, Placed]
    boot: tuple[BootLine, ...]
    names: tuple[str, ...]
    lost: tuple[str, ...]


def tuned_profiles(root: Root, known: Iterable[str]) -> TunedProfiles:
    """Return the settings of the active profiles; `known` are the paths that a pattern may match.

    Files of the kernel are here by their paths, sysctls by their names.
    """
    active = tuple((root.text("/etc/tuned/active_profile", 4096) or "").split())[:_MOST_INCLUDED]
    reading = _Tuned(root)
    for name in active:
        reading.profile(name, ())
    found = reading.found
    paths = list(known)
    for pattern in [key for key in found if "*" in key or "?" in key]:
        for each in fnmatch.filter(paths, pattern):
            found.setdefault(each, Placed(each, found[pattern].value, found[pattern].where))
        if fnmatch.filter(paths, pattern):
            del found[pattern]
    lines = tuple(line for line in reading.boot_lines() if line.words)
    return TunedProfiles(found, lines, tuple(map(shown_value, active)), tuple(map(shown_value, reading.lost)))


class _Tuned:
    """Reading of profiles: the later word of a key decides."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.found: dict[str, Placed] = {}
        self.lost: list[str] = []
        self.variables: dict[str, str] = {}
        self.command_lines: dict[str, tuple[str, str]] = {}

    def profile(self, name: str, above: tuple[str, ...]) -> None:
        if (
            name in above
            or len(above) > _MOST_INCLUDED
            or re.fullmatch(r"[\w.+-]{1,100}", name) is None
            or name == ".."
        ):
            return
        places = [f"{top}/{name}/tuned.conf" for top in ("/etc/tuned/profiles", "/etc/tuned")]
        places += [f"{top}/{name}/tuned.conf" for top in ("/usr/lib/tuned/profiles", "/usr/lib/tuned")]
        for path in places:
            text = self.root.text(path)
            if text is not None:
                break
            if self.root.there(path) is not False:
                return  # which profile it is, is not to be seen
        else:
            self.lost.append(name)
            return
        read = list(directives(text))
        for each in read:
            if (each.section, each.key) == ("main", "include"):
                for included in re.split(r"[\s,;]+", each.value):
                    self.profile(included.strip("-"), (*above, name))
        for each in read:
            if each.section == "variables":
                self.variable(each.key, each.value)
        for each in read:
            self.take(each.section, each.key, each.value.strip("\"'"), f"{path}:{each.line}")

    def variable(self, key: str, value: str) -> None:
        """Return a variable of the profile, or a file of them."""
        if key != "include":
            self.variables[key] = self.resolved(value.strip("\"'"))
            return
        for each in directives(self.root.text(value) or ""):
            if each.section in ("", "variables"):
                self.variables[each.key] = self.resolved(each.value.strip("\"'"))

    def resolved(self, value: str) -> str:
        return _VARIABLE.sub(lambda match: self.variables.get(match[1], match[0]), value[: 1 << 14])[: 1 << 14]

    def take(self, section: str, key: str, value: str, where: str) -> None:
        """Return an assignment, where it is about pages."""
        wanted = section in ("vm", "sysfs", "sysctl") or (section == "bootloader" and key.startswith("cmdline"))
        value = self.resolved(value) if wanted else value
        if section == "bootloader" and wanted:
            self.command_lines[key] = (value, where)
            return
        path = f"{THP}/{_VM[key]}" if section == "vm" and key in _VM else ""
        own = (section == "sysfs" and _PAGES.fullmatch(key)) or (section == "sysctl" and _KEY.fullmatch(key))
        name = path or (key if own else "")
        if name and "${" in value:
            self.root.tell(where, f"{shown_value(key)} has a function of tuned: what it comes to is not known")
        elif name:
            self.found[name] = Placed(shown_value(name), shown_value(value), where)

    def boot_lines(self) -> Iterator[BootLine]:
        """Yield the words of each option whose name begins with cmdline: `+` adds what follows, `-` takes it away."""
        removed = set[str]()
        for value, where in self.command_lines.values():
            given = list(boot.words_of(value.lstrip("+&")))
            removed |= {word.removeprefix("-") for word in given if word.startswith("-")}
            kept = boot.about_pages(word.lstrip("+") for word in given if not word.startswith("-"))
            if any("${" in word for word in given) or "${" in value:
                self.root.tell(where, "its words for the kernel have a function of tuned: not all of them are known")
            yield BootLine(by="tuned", where=where, words=tuple(word for word in kept if word not in removed))


def _lines(text: str | None) -> Iterator[tuple[int, str]]:
    for number, line in enumerate((text or "").split("\n"), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith(("#", ";")):
            yield number, stripped


_MOST_GROUPS = 4096
_DEEPEST = 12
_CHOSEN = re.compile(r"\[([\w+]{1,32})\]")
_COUNTS = re.compile(r"^(HugePages_\w{1,8}|Hugepagesize):\s{1,20}(\d{1,12})(?: kB)?$", re.MULTILINE)
_LIMIT_1 = re.compile(r"hugetlb\.(\d{1,6})([KMG])B\.limit_in_bytes")
_LIMIT_2 = re.compile(r"hugetlb\.(\d{1,6})([KMG])B\.max")
_SHIFT = {"K": 10, "M": 20, "G": 30}
_MOST_CONFIG = 4 << 20
_CONFIG = re.compile(rb"^CONFIG_TRANSPARENT_HUGEPAGE_(ALWAYS|MADVISE|NEVER)=y$", re.MULTILINE)


def thp_settings(root: Root) -> dict[str, str]:
    """Path below `transparent_hugepage` -> its value; of `always [madvise] never` the chosen word."""
    settings = {}
    for name in root.names(THP):
        inner = root.listed(f"{THP}/{name}") if name == "khugepaged" or name.startswith("hugepages-") else None
        for key in [name] if inner is None else [f"{name}/{each}" for each in inner if each != "stats"]:
            text = root.text(f"{THP}/{key}", 4096)
            if text is not None:
                chosen = _CHOSEN.search(text)
                settings[key] = chosen[1] if chosen else text.strip()[:64]
    return settings


def collapses_below_pmd(root: Root) -> bool:
    """Return whether khugepaged can collapse to sizes below the PMD's, which their statistics show."""
    sizes = sizes_in(root, THP)
    return any(
        root.status(f"{THP}/hugepages-{size >> 10}kB/stats/collapse_exceed_none_pte") is not None for size in sizes[:-1]
    )


def hugetlb_pools(root: Root, own: Mapping[int, int]) -> tuple[HugePool, ...]:
    """Return the kernel's pools of hugetlb pages by size; `own`: pages of a run of hugewise, by size."""
    pools = []
    for size in filter(None, sizes_in(root, HUGETLB)):
        folder = f"{HUGETLB}/hugepages-{size >> 10}kB"
        names = ("nr_hugepages", "free_hugepages", "resv_hugepages", "surplus_hugepages", "nr_overcommit_hugepages")
        total, free, reserved, surplus, overcommit = (number_in(root.text(f"{folder}/{name}", 64)) for name in names)
        if total is not None and free is not None:
            pools.append(
                HugePool(
                    size=size,
                    total=total,
                    free=free,
                    reserved=reserved or 0,
                    surplus=surplus or 0,
                    overcommit=overcommit or 0,
                    own=min(total, own.get(size, 0)),
                )
            )
    return tuple(pools) or _default_pool(root)


def _default_pool(root: Root) -> tuple[HugePool, ...]:
    """Return the pool of the default size by /proc/meminfo, where there is no sysfs: a captured host often has that
    alone.
    """
    said = {key: int(value) for key, value in _COUNTS.findall(root.text("/proc/meminfo", 1 << 16) or "")}
    size = said.get("Hugepagesize", 0) << 10
    if not size or "HugePages_Total" not in said or size & (size - 1):
        return ()
    total, free = said["HugePages_Total"], said.get("HugePages_Free", 0)
    reserved, surplus = said.get("HugePages_Rsvd", 0), said.get("HugePages_Surp", 0)
    return (HugePool(size=size, total=total, free=free, reserved=reserved, surplus=surplus, overcommit=0),)


def limited_groups(root: Root) -> tuple[tuple[HugetlbGroup, ...], tuple[MemoryGroup, ...]]:
    """Return the cgroups that limit hugetlb pages, and those of version 2 that limit memory."""
    hugetlb: list[HugetlbGroup] = []
    memory: list[MemoryGroup] = []
    for mount in _mounts(root):
        first = mount.kind == "cgroup" and "hugetlb" in mount.options.split(",")
        if not first and mount.kind != "cgroup2":
            continue
        for group, names in _below(root, mount.point):
            folder = f"{mount.point}{group}"
            hugetlb += _hugetlb(root, folder, group or "/", names, 1 if first else 2)
            if not first and "memory.max" in names:
                memory += _memory(root, folder, group or "/")
    return tuple(hugetlb), tuple(memory)


def _mounts(root: Root) -> list[Mount]:
    try:
        return list(mounts(root.text("/proc/self/mountinfo") or ""))
    except ValueError:  # a host given as a folder, with a file written by hand
        root.tell("/proc/self/mountinfo", "it is not as proc(5) says")
        return []


def _below(root: Root, point: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each cgroup of a hierarchy below its mount, with the names of its files."""
    left, seen = [""], 0
    while left and seen < _MOST_GROUPS:
        group = left.pop()
        seen += 1
        entries = root.entries(f"{point}{group}") or {}
        yield group, sorted(entries)
        below = sorted((name for name, is_folder in entries.items() if is_folder), reverse=True)
        if group.count("/") < _DEEPEST:
            left += [f"{group}/{name}" for name in below]
        elif below:
            root.tell(point, f"groups that lie more than {_DEEPEST} deep were not looked at")
    if left:
        root.tell(point, f"more than {_MOST_GROUPS:,} groups: the others were not looked at")


def _hugetlb(root: Root, folder: str, group: str, names: list[str], version: int) -> Iterator[HugetlbGroup]:
    for name in names:
        match = (_LIMIT_1 if version == 1 else _LIMIT_2).fullmatch(name)
        if match is None:
            continue
        limit = number_in(root.text(f"{folder}/{name}", 64))
        reserving = name.replace(".max", ".rsvd.max").replace(".limit_in", ".rsvd.limit_in")
        reserved = number_in(root.text(f"{folder}/{reserving}", 64))
        if limit is not None or reserved is not None:
            size = int(match[1]) << _SHIFT[match[2]]
            yield HugetlbGroup(group=group, size=size, version=version, limit=limit, reserved_limit=reserved)


def _memory(root: Root, folder: str, group: str) -> Iterator[MemoryGroup]:
    limit = number_in(root.text(f"{folder}/memory.max", 64))
    if limit is None:
        return
    huge = re.search(r"^anon_thp (\d{1,18})$", root.text(f"{folder}/memory.stat") or "", re.MULTILINE)
    swap = number_in(root.text(f"{folder}/memory.swap.max", 64))
    yield MemoryGroup(group=group, limit=limit, swap_limit=swap, anon_thp=int(huge[1]) if huge else 0)


def boot_parameters(root: Root) -> tuple[str, ...]:
    """Return the words of the kernel's command line that concern pages, in order."""
    return boot.about_pages(boot.words_of(root.text("/proc/cmdline", 1 << 16) or ""))


def kernel_config(root: Root, release: str) -> str | None:
    """Return the THP mode that the kernel was built with: always, madvise or never; None where that is not kept."""
    packed = root.data("/proc/config.gz")
    plain = b"" if packed is None else _unpacked(packed)
    if not plain and "/" not in release:
        plain = root.data(f"/boot/config-{release}") or b""
    match = _CONFIG.search(plain)
    return match[1].decode().lower() if match else None


def _unpacked(packed: bytes) -> bytes:
    try:
        return zlib.decompressobj(31).decompress(packed, _MOST_CONFIG)
    except zlib.error:
        return b""


_LIVE, _KEPT = "/run/libvirt/qemu", "/etc/libvirt/qemu"
_MOST_BYTES, _MOST_DOMAINS = 1 << 20, 1000
_KVM = ("/sys/module/kvm/parameters", "nx_huge_pages", "tdp_mmu")
_KSM = ("/sys/kernel/mm/ksm", "run", "pages_shared", "pages_sharing")


def virtual_machines(root: Root) -> tuple[dict[str, Domain], frozenset[str]]:
    """Return the readable domains by name, and the names of those that run."""
    found: dict[str, Domain] = {}
    running = set[str]()
    for folder in (_LIVE, _KEPT):
        names = [name for name in root.names(folder) if name.endswith(".xml")]
        for name in names[:_MOST_DOMAINS]:
            one = _domain(root, f"{folder}/{name}")
            if one is not None and one.name not in found:
                found[one.name] = one
                running |= {one.name} if folder == _LIVE else set()
    return found, frozenset(running)


_BACKING_DIR = re.compile(r"""^\s*memory_backing_dir\s*=\s*["']([^"'\n]{1,512})["']""", re.MULTILINE)


def backing_dir(root: Root) -> Placed:
    """Return where libvirt keeps files that back memory (qemu.conf); its key is the kind of file system."""
    path = "/etc/libvirt/qemu.conf"
    match = _BACKING_DIR.search(root.text(path) or "")
    folder, where = (match[1], path) if match else ("/var/lib/libvirt/qemu/ram", "libvirt's default")
    above = [mount for mount in _mounts(root) if f"{folder}/".startswith(f"{mount.point.rstrip('/')}/")]
    kind = max(above, key=lambda mount: len(mount.point)).kind if above else ""
    return Placed(shown_value(kind), shown_value(folder), where)


def about(root: Root, domain: Domain, *, running: bool = False) -> HostFacts:
    """Return the facts that the rules of virtual machines need of one domain on the host below `root`."""
    rest = settings_at_rest(root)
    return HostFacts(
        thp=rest.thp,
        pools=hugetlb_pools(root, rest.added),
        run=rest.run,
        memory_groups=limited_groups(root)[1],
        boot=boot_parameters(root),
        domains=(domain,),
        running=frozenset({domain.name}) if running else frozenset(),
        backing_dir=backing_dir(root),
        kvm=_values(root, *_KVM),
        ksm=_values(root, *_KSM),
        unread=root.unread(),
    )


def _domain(root: Root, path: str) -> Domain | None:
    text = root.data(path, _MOST_BYTES)
    if text is None:
        return None
    try:
        return domain.read(domain.parse(text, path), path)
    except UserError as error:
        root.tell(path, error.message)
        return None


def _values(root: Root, folder: str, *names: str) -> dict[str, str]:
    texts = {name: root.text(f"{folder}/{name}", 64) for name in names}
    return {name: text.strip() for name, text in texts.items() if text is not None}


_MOST = 64 << 20  # bytes of a journal
_POOL = re.compile(r"/hugepages-(\d{1,12})kB/nr_hugepages$")


@dataclass(frozen=True)
class SettingsAtRest:
    """Settings when the run in the journal has put all back: THP, and the pages that it added to pools."""

    thp: Mapping[str, str]
    run: OwnRun | None = None
    added: Mapping[int, int] = field(default_factory=dict)


def settings_at_rest(root: Root) -> SettingsAtRest:
    """Return the settings without those of a run of this boot whose journal is open and readable."""
    now = thp_settings(root)
    data = root.data(str(JOURNAL), _MOST)
    if data is None:
        return SettingsAtRest(now)
    try:
        ledger = ledger_of(data, JOURNAL)
    except UserError as error:
        root.tell(str(JOURNAL), error.message.removeprefix(f"{JOURNAL}, "))
        return SettingsAtRest(now)
    owner = ledger.owner
    this_boot = (root.text("/proc/sys/kernel/random/boot_id", 256) or "").strip()
    if owner is None or ledger.closed or owner.boot_id != this_boot:
        return SettingsAtRest(now)
    added: dict[int, int] = {}
    for path, share in ledger.pools.items():
        if (match := _POOL.search(path)) is not None:
            size = int(match[1]) << 10
            added[size] = added.get(size, 0) + _own(share)
    alive = start_time(root, owner.pid) == owner.pid_start
    before = {
        path.removeprefix(f"{THP}/"): original
        for path, (original, ours) in ledger.turned.items()
        if now.get(path.removeprefix(f"{THP}/")) in ours
    }
    turned = {key: now[key] for key, original in before.items() if now[key] != original}
    run = OwnRun(name=owner.run, pid=owner.pid, alive=alive, turned=turned)
    return SettingsAtRest({**now, **before}, run, added)


def _own(share: Share) -> int:
    """Return the pages of the share that are still the run's."""
    if share.returned is not None:
        return max(0, share.returned.wrote - share.before)
    return share.added or 0


_PR_SET_THP_DISABLE, _PR_GET_THP_DISABLE, _EXCEPT_ADVISED = 41, 42, 2
_LIBC_PLACES = ("/usr/lib64", "/lib64", "/usr/lib", "/lib")
_MOST_LIBC = 16 << 20
_GLIBC = re.compile(rb"release version (\d{1,3})\.(\d{1,3})")
_SYSTEMD = re.compile(r"libsystemd-shared-(\d{2,4})\D.*")
_LIBRARIES = ("/usr/lib/systemd", "/lib/systemd", "/usr/lib64/systemd")
_MULTIARCH = re.compile(r"[a-z0-9_]{1,16}-linux-gnu\w{0,10}")
_MOST_PRELOADS = 100


def collect(root: Root, instances: Iterable[str] = ()) -> HostFacts:
    """Collect the readable facts; `instances`: wanted services of templates. Raises UserError for no host."""
    if root.listed("/proc") is None and root.listed("/sys") is None and root.listed("/etc") is None:
        raise UserError(
            f"--root {root.folder}: it holds no host: no /etc, no /proc, no /sys",
            hint="name the folder that has them, or leave it out",
        )
    here = root.folder == Path("/")
    kernel = (root.text("/proc/sys/kernel/osrelease", 256) or "").strip()
    rest = settings_at_rest(root)
    thp, pools = rest.thp, hugetlb_pools(root, rest.added)
    hugetlb_groups, memory_groups = limited_groups(root)
    paths = systemd.service_files(root)
    others = systemd.service_aliases(root, paths)
    seen = running.processes(root)
    named = {*instances, *(each.process.unit for each in seen if each.process.unit)} - paths.keys() - others.keys()
    also: dict[str, list[str]] = {}
    for other, real in others.items():
        also.setdefault(real, []).append(other)
    linked = systemd.wanted(root)
    loaded = [
        systemd.load_service(root, name, path, also.get(name, ()), linked)
        for name, path in sorted(paths.items())
        if name not in others
    ]
    for name in sorted(named):
        template = re.sub(r"@[^@]*(?=\.service$)", "@", name)
        if template in paths:
            loaded.append(systemd.load_service(root, name, paths[template]))
    known = [f"{THP}/{key}" for key in thp]
    known += [f"{HUGETLB}/hugepages-{pool.size >> 10}kB/nr_hugepages" for pool in pools]
    profile = tuned_profiles(root, known)
    domains, domains_that_run = virtual_machines(root)
    lines = boot.boot_lines(root)
    scripts = boot_scripts(root)
    words, boot_from, hidden = _booted(root, lines)
    if not here:
        hidden |= _not_captured(root, thp, pools)
    return HostFacts(
        kernel=kernel,
        architecture=(root.text("/proc/sys/kernel/arch", 256) or (os.uname().machine if here else "")).strip(),
        base_page=os.sysconf("SC_PAGE_SIZE") if here else 4096,
        systemd=_systemd(root),
        glibc=_glibc(root),
        except_advised=except_advised(root),
        config=kernel_config(root, kernel),
        collapses=collapses_below_pmd(root),
        reported=reported_order(root.text(REPORTING, 64)),
        swap=meminfo(root).get("SwapTotal", 0),
        thp=thp,
        pools=pools,
        hugetlb_groups=hugetlb_groups,
        memory_groups=memory_groups,
        boot=words,
        boot_from=boot_from,
        boot_lines=(*lines, *profile.boot),
        hidden=frozenset(hidden),
        sysctl=sysctl_values(root),
        tmpfiles=tmpfiles_values(root, known),
        tuned=profile.values,
        scripts=scripts[0],
        written=scripts[1],
        profile=profile.names,
        lost_profiles=profile.lost,
        units=tuple(each.config for each in loaded),
        aliases=others,
        defaults=systemd.defaults(root),
        processes=tuple(each.process for each in seen),
        servers=servers.find_servers(root, seen, loaded),
        preloads=_preloads(root, loaded),
        run=rest.run,
        domains=tuple(domains.values()),
        running=domains_that_run,
        backing_dir=backing_dir(root),
        kvm=_values(root, *_KVM),
        ksm=_values(root, *_KSM),
        unread=root.unread(),
    )


def _booted(root: Root, lines: Iterable[BootLine]) -> tuple[tuple[str, ...], str, set[Hidden]]:
    """Return the words about pages that the kernel was booted with, and where they stand; of an image those that it is
    booted with the next time.
    """
    if root.text("/proc/cmdline", 1 << 16):
        return boot_parameters(root), COMMAND_LINE, set()
    line = boot.to_be_booted(lines)
    taken = "nothing is known of it" if line is None else f"the words of {line.where} are taken for it"
    root.tell("/proc/cmdline", f"it is not in this folder: {taken}")
    return ((), COMMAND_LINE, {"cmdline"}) if line is None else (line.words, line.where, {"cmdline"})


def _not_captured(root: Root, thp: Mapping[str, str], pools: Sequence[HugePool]) -> set[Hidden]:
    """Return what the folder of another host lacks, and report each."""
    hidden: set[Hidden] = set()
    if not thp:
        hidden.add("thp")
        root.tell(THP, "it is not in this folder: which transparent huge pages are in force is not known")
    if not pools:
        hidden.add("pools")
        root.tell(HUGETLB, "it is not in this folder: how many pages pools have is not known")
    if not any(name.isdecimal() for name in root.names("/proc")):
        hidden.add("processes")
        root.tell("/proc", "no process is in this folder: who runs, and who holds pages of pools, is not known")
    return hidden


def except_advised(root: Root) -> bool | None:
    """Return whether prctl takes PR_THP_DISABLE_EXCEPT_ADVISED: tried on this process, and reverted at once.

    None for another host, and where THP is already disabled for this process: it would have to be set again.
    """
    if root.folder != Path("/"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_GET_THP_DISABLE, 0, 0, 0, 0) != 0:
        return None
    taken = bool(prctl(_PR_SET_THP_DISABLE, 1, _EXCEPT_ADVISED, 0, 0) == 0)
    if taken:
        prctl(_PR_SET_THP_DISABLE, 0, 0, 0, 0)
    return taken


def _multiarch(root: Root, top: str) -> list[str]:
    return [f"{top}/{name}" for name in root.names(top) if _MULTIARCH.fullmatch(name)]


def _glibc(root: Root) -> tuple[int, int] | None:
    for folder in (*_multiarch(root, "/usr/lib"), *_multiarch(root, "/lib"), *_LIBC_PLACES):
        data = root.data(f"{folder}/libc.so.6", _MOST_LIBC)
        if data is not None and (match := _GLIBC.search(data)) is not None:
            return int(match[1]), int(match[2])
    return None


def _systemd(root: Root) -> int | None:
    """Read systemd's version from the name of its own library."""
    for folder in (*_LIBRARIES, *(f"{each}/systemd" for each in _multiarch(root, "/usr/lib"))):
        for name in root.names(folder):
            if match := _SYSTEMD.fullmatch(name):
                return int(match[1])
    return None


def _preloads(root: Root, loaded: list[systemd.LoadedUnit]) -> dict[str, bool]:
    """Return whether the files that units preload exist. The loader looks for those without a path."""
    paths = [one.value for unit in loaded for one in unit.config.environment if one.key == "LD_PRELOAD"]
    files = [each for value in paths for each in re.split(r"[ :]+", value) if PurePosixPath(each).is_absolute()]
    plain = [file for file in files if "$" not in file and "%" not in file]
    existing = {each: root.there(each) for each in plain[:_MOST_PRELOADS]}
    return {each: is_there for each, is_there in existing.items() if is_there is not None}
