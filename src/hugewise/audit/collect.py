"""From the files of a host to its facts. Only this host itself is asked what no file says.

What sets pages when a host boots, from files: sysctl.d, tmpfiles.d, profiles of tuned.

Sources: sysctl.d(5), tmpfiles.d(5), tuned.conf(5).

What the kernel says of itself: THP at every size, hugetlb pools, limits of cgroups, its command line.

Sources: transhuge.rst, hugetlbpage.rst, cgroup-v2.rst, cgroup-v1/hugetlb.rst, kernel-parameters.txt of Linux.

The virtual machines of a host: the XML that libvirt keeps of them, and what of the kernel is about them.

libvirt is not asked: the files of its system daemon are read. That of a machine that runs says what it has now, and
stands before the one by which it is started the next time.

Sources: libvirt, "Directory locations"; Documentation/admin-guide/mm/ksm.rst and hw-vuln/multihit.rst of Linux.

What of a host's settings is a run's of hugewise: by root's journal, which everybody may read.

Such a run adds pages to pools and gives them back at its end. Whoever audits the host meanwhile is to be told of the
run, and not that its pages are idle, or lost at the next boot.
"""

from __future__ import annotations

import ctypes
import fnmatch
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from hugewise.audit import running, servers, systemd
from hugewise.audit.facts import HostFacts, HugePool, HugetlbGroup, MemoryGroup, OwnRun, Placed
from hugewise.audit.root import Root
from hugewise.audit.running import shown_value
from hugewise.audit.systemd import directives, words
from hugewise.errors import UserError
from hugewise.host.journal import JOURNAL, ledger_of
from hugewise.host.ledger import Share
from hugewise.machine import domain
from hugewise.machine.fingerprint import machine_id
from hugewise.machine.proc import Mount, mounts, start_time
from hugewise.model.guest import Domain
from hugewise.model.pages import HUGETLB, THP, sizes_in

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
_THP = "/sys/kernel/mm/transparent_hugepage"


def _files(root: Root, kind: str) -> list[str]:
    """The files of a kind in the order in which they are read; of one name the one that decides."""
    chosen: dict[str, str] = {}
    for folder in (each.format(kind) for each in _FOLDERS):
        for name in root.names(folder):
            if name.endswith(".conf"):
                chosen.setdefault(name, f"{folder}/{name}")
    return [path for _, path in sorted(chosen.items()) if root.target(path) != "/dev/null"]


def sysctl_values(root: Root) -> dict[str, Placed]:
    """Sysctls about huge pages by name, the last word of all files; /etc/sysctl.conf is read last (procps)."""
    found = {}
    for path in dict.fromkeys([*_files(root, "sysctl.d"), "/etc/sysctl.conf"]):
        for line, text in _lines(root.text(path)):
            key, equals, value = text.partition("=")
            name = key.strip().removeprefix("-").strip()
            name = name.replace("/", ".") if "/" in name and "." not in name.partition("/")[0] else name
            if equals and _KEY.fullmatch(name):
                found[name] = Placed(shown_value(name), shown_value(value.strip()), f"{path}:{line}")
    return found


def tmpfiles_values(root: Root, known: Iterable[str]) -> dict[str, Placed]:
    """What lines of type `w` write below /sys/kernel/mm, by path; `known` are those that a pattern may mean.

    A sysctl that is so written is here by its path below /proc/sys.
    """
    paths = list(known)
    found = {}
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
                found[each] = Placed(shown_value(each), value, f"{path}:{line}")
    return found


def boot_scripts(root: Root) -> tuple[str, ...]:
    """Knobs that rc.local, /etc/sysfs.conf and files of sysfs.d write: with what is not looked at."""
    found: list[str] = []
    for path in ("/etc/rc.local", "/etc/rc.d/rc.local"):
        for _, text in _lines(root.text(path)):
            found += _PATHS.findall(text)
    more = [f"/etc/sysfs.d/{name}" for name in root.names("/etc/sysfs.d") if name.endswith(".conf")]
    for path in ("/etc/sysfs.conf", *more):
        for _, text in _lines(root.text(path)):
            found += _PATHS.findall(f"/sys/{text.lstrip('/')}")
    return tuple(dict.fromkeys(found))


def tuned_profiles(root: Root, known: Iterable[str]) -> tuple[dict[str, Placed], tuple[str, ...], tuple[str, ...]]:
    """What the active profiles of tuned set: paths and sysctls with their values; the profiles; those that are nowhere.
    `known` are the paths that a pattern may mean.

    Files of the kernel are here by their paths, sysctls by their names, words of the command line as `boot:NAME`.
    """
    active = tuple((root.text("/etc/tuned/active_profile", 4096) or "").split())[:_MOST_INCLUDED]
    found: dict[str, Placed] = {}
    lost: list[str] = []
    for name in active:
        _profile(root, name, found, lost, [])
    paths = list(known)
    for pattern in [key for key in found if "*" in key or "?" in key]:
        for each in fnmatch.filter(paths, pattern):
            found.setdefault(each, Placed(each, found[pattern].value, found[pattern].where))
        if fnmatch.filter(paths, pattern):
            del found[pattern]
    return found, tuple(map(shown_value, active)), tuple(map(shown_value, lost))


def _profile(root: Root, name: str, found: dict[str, Placed], lost: list[str], above: list[str]) -> None:
    if name in above or len(above) > _MOST_INCLUDED or re.fullmatch(r"[\w.+-]{1,100}", name) is None or name == "..":
        return
    places = [f"{top}/{name}/tuned.conf" for top in ("/etc/tuned/profiles", "/etc/tuned")]
    places += [f"{top}/{name}/tuned.conf" for top in ("/usr/lib/tuned/profiles", "/usr/lib/tuned")]
    for path in places:
        text = root.text(path)
        if text is not None:
            break
        if root.there(path) is not False:
            return  # which profile it is, is not to be seen
    else:
        lost.append(name)
        return
    read = list(directives(text))
    for each in read:
        if (each.section, each.key) == ("main", "include"):
            for included in re.split(r"[\s,;]+", each.value):
                _profile(root, included.strip("-"), found, lost, [*above, name])
    for each in read:
        value = each.value.strip("\"'")
        where = f"{path}:{each.line}"
        if "${" in value:  # a variable of the profile: what it comes to is not known here
            continue
        for key, meant in _meant(each.section, each.key, value):
            found[key] = Placed(shown_value(key), shown_value(meant), where)


def _meant(section: str, key: str, value: str) -> Iterator[tuple[str, str]]:
    """What an assignment of a profile sets."""
    if section == "vm" and key in _VM:
        yield f"{_THP}/{_VM[key]}", value
    elif (section == "sysfs" and _PAGES.fullmatch(key)) or (section == "sysctl" and _KEY.fullmatch(key)):
        yield key, value
    elif section == "bootloader" and key.startswith("cmdline"):
        for word in value.split():
            name, equals, said = word.lstrip("+").partition("=")  # `+` adds to what is inherited
            if equals and re.fullmatch(r"transparent_hugepage|hugepagesz?|default_hugepagesz", name):
                yield f"boot:{name}", said


def _lines(text: str | None) -> Iterator[tuple[int, str]]:
    for number, line in enumerate((text or "").split("\n"), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith(("#", ";")):
            yield number, stripped


_MOST_GROUPS = 4096
_MOST_ORDER = 20
_DEEPEST = 12
_CHOSEN = re.compile(r"\[([\w+]{1,32})\]")
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_ABOUT_PAGES = re.compile(
    r"(?:transparent_hugepage\w{0,12}|thp_anon|thp_shmem|(?:default_)?hugepagesz|hugepages|hugetlb_\w{1,20})=[\w.,:;+-]{0,200}"
)
_LIMIT_1 = re.compile(r"hugetlb\.(\d{1,6})([KMG])B\.limit_in_bytes")
_LIMIT_2 = re.compile(r"hugetlb\.(\d{1,6})([KMG])B\.max")
_SHIFT = {"K": 10, "M": 20, "G": 30}
_UNLIMITED = 1 << 62  # version 1 says so by its largest counter, a little below 2 to the 63rd
_MOST_CONFIG = 4 << 20
_CONFIG = re.compile(rb"^CONFIG_TRANSPARENT_HUGEPAGE_(ALWAYS|MADVISE|NEVER)=y$", re.MULTILINE)


def thp_settings(root: Root) -> dict[str, str]:
    """Path below `transparent_hugepage` -> its value; of `always [madvise] never` the chosen word."""
    found = {}
    for name in root.names(THP):
        inner = root.listed(f"{THP}/{name}") if name == "khugepaged" or name.startswith("hugepages-") else None
        for key in [name] if inner is None else [f"{name}/{each}" for each in inner if each != "stats"]:
            said = root.text(f"{THP}/{key}", 4096)
            if said is not None:
                chosen = _CHOSEN.search(said)
                found[key] = chosen[1] if chosen else said.strip()[:64]
    return found


def reported_order(root: Root) -> int | None:
    """The smallest order of free pages that are reported to the hypervisor; None where nobody is told of any."""
    said = (root.text("/sys/module/page_reporting/parameters/page_reporting_order", 64) or "").strip()
    return int(said) if said.isdecimal() and int(said) <= _MOST_ORDER else None  # -1, as unsigned, until there is one


def collapses_below_pmd(root: Root) -> bool:
    """Whether khugepaged can collapse to sizes below the PMD's: their statistics tell."""
    sizes = sizes_in(root, THP)
    return any(
        root.status(f"{THP}/hugepages-{size >> 10}kB/stats/collapse_exceed_none_pte") is not None for size in sizes[:-1]
    )


def hugetlb_pools(root: Root, own: Mapping[int, int]) -> tuple[HugePool, ...]:
    """The pools of hugetlb pages of each size that the kernel has; `own`: pages of a run of hugewise, by size."""
    found = []
    for size in filter(None, sizes_in(root, HUGETLB)):
        folder = f"{HUGETLB}/hugepages-{size >> 10}kB"
        names = ("nr_hugepages", "free_hugepages", "resv_hugepages", "surplus_hugepages", "nr_overcommit_hugepages")
        total, free, reserved, surplus, overcommit = (_number(root.text(f"{folder}/{name}", 64)) for name in names)
        if total is not None and free is not None:
            found.append(
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
    return tuple(found)


def _number(text: str | None) -> int | None:
    found = None if text is None else _NUMBER.fullmatch(text.strip())
    return None if found is None else int(found[0])


def _limit(text: str | None) -> int | None:
    """Bytes; None for no limit (`max`, or the largest counter)."""
    number = _number(text)
    return None if number is None or number >= _UNLIMITED else number


def limited_groups(root: Root) -> tuple[tuple[HugetlbGroup, ...], tuple[MemoryGroup, ...]]:
    """The cgroups that limit hugetlb pages, and those of version 2 that limit memory."""
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
    except ValueError:  # of a host that is a folder, and was written by hand
        root.tell("/proc/self/mountinfo", "it is not as proc(5) says")
        return []


def _below(root: Root, point: str) -> Iterator[tuple[str, list[str]]]:
    """Each cgroup of a hierarchy below its mount, with the names of its files."""
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
        limit = _limit(root.text(f"{folder}/{name}", 64))
        reserving = name.replace(".max", ".rsvd.max").replace(".limit_in", ".rsvd.limit_in")
        reserved = _limit(root.text(f"{folder}/{reserving}", 64))
        if limit is not None or reserved is not None:
            size = int(match[1]) << _SHIFT[match[2]]
            yield HugetlbGroup(group=group, size=size, version=version, limit=limit, reserved_limit=reserved)


def _memory(root: Root, folder: str, group: str) -> Iterator[MemoryGroup]:
    limit = _limit(root.text(f"{folder}/memory.max", 64))
    if limit is None:
        return
    huge = re.search(r"^anon_thp (\d{1,18})$", root.text(f"{folder}/memory.stat") or "", re.MULTILINE)
    swap = _limit(root.text(f"{folder}/memory.swap.max", 64))
    yield MemoryGroup(group=group, limit=limit, swap_limit=swap, anon_thp=int(huge[1]) if huge else 0)


def boot_parameters(root: Root) -> tuple[str, ...]:
    """What of the kernel's command line is about pages, in its order."""
    return tuple(word for word in (root.text("/proc/cmdline", 1 << 16) or "").split() if _ABOUT_PAGES.fullmatch(word))


def kernel_config(root: Root, release: str) -> str | None:
    """The THP mode that the kernel was built with: always, madvise or never; None where that is not kept."""
    packed = root.data("/proc/config.gz")
    plain = b"" if packed is None else _unpacked(packed)
    if not plain and "/" not in release:
        plain = root.data(f"/boot/config-{release}") or b""
    found = _CONFIG.search(plain)
    return found[1].decode().lower() if found else None


def _unpacked(packed: bytes) -> bytes:
    try:
        return zlib.decompressobj(31).decompress(packed, _MOST_CONFIG)
    except zlib.error:
        return b""


_LIVE, _KEPT = "/run/libvirt/qemu", "/etc/libvirt/qemu"
_MOST_BYTES, _MOST_DOMAINS = 1 << 20, 1000
_KVM, _KSM = "/sys/module/kvm/parameters", "/sys/kernel/mm/ksm"


@dataclass(frozen=True)
class Machines:
    """What was found; see `facts.HostFacts`."""

    domains: tuple[Domain, ...]
    running: frozenset[str]
    kvm: Mapping[str, str]
    ksm: Mapping[str, str]


def virtual_machines(root: Root) -> Machines:
    """All that can be read of them; a file that is no domain is told, and left out."""
    found: dict[str, Domain] = {}
    running = set[str]()
    for folder in (_LIVE, _KEPT):
        names = [name for name in root.names(folder) if name.endswith(".xml")]
        for name in names[:_MOST_DOMAINS]:
            one = _domain(root, f"{folder}/{name}")
            if one is not None and one.name not in found:
                found[one.name] = one
                running |= {one.name} if folder == _LIVE else set()
    return Machines(
        domains=tuple(found.values()),
        running=frozenset(running),
        kvm=_values(root, _KVM, ("nx_huge_pages", "tdp_mmu")),
        ksm=_values(root, _KSM, ("run", "pages_shared", "pages_sharing")),
    )


def about(root: Root, domain: Domain, *, running: bool = False) -> HostFacts:
    """What the rules of virtual machines know of one domain on the host below `root`, without what they do not ask."""
    names = frozenset({domain.name}) if running else frozenset()
    return msgspec.structs.replace(of_host(root), domains=(domain,), running=names)


def of_host(root: Root) -> HostFacts:
    """What they know of all domains on the host, and what of it could not be read."""
    found = virtual_machines(root)
    return HostFacts(
        thp=thp_settings(root),
        pools=hugetlb_pools(root, {}),
        memory_groups=limited_groups(root)[1],
        boot=boot_parameters(root),
        domains=found.domains,
        running=found.running,
        kvm=found.kvm,
        ksm=found.ksm,
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


def _values(root: Root, folder: str, names: tuple[str, ...]) -> dict[str, str]:
    said = {name: root.text(f"{folder}/{name}", 64) for name in names}
    return {name: text.strip() for name, text in said.items() if text is not None}


_MOST = 64 << 20  # bytes of a journal
_POOL = re.compile(r"/hugepages-(\d{1,12})kB/nr_hugepages$")


def own_run(root: Root) -> tuple[OwnRun | None, dict[int, int]]:
    """The run that has settings of this host turned, and the pages that it has added, by their size in bytes; no run
    where the journal is closed, of another boot, or not to be read (which is noted).
    """
    data = root.data(str(JOURNAL), _MOST)
    if data is None:
        return None, {}
    try:
        ledger = ledger_of(data, JOURNAL)
    except UserError as error:
        root.tell(str(JOURNAL), error.message.removeprefix(f"{JOURNAL}, "))
        return None, {}
    owner = ledger.owner
    boot = (root.text("/proc/sys/kernel/random/boot_id", 256) or "").strip()
    if owner is None or ledger.closed or owner.boot_id != boot:
        return None, {}
    added: dict[int, int] = {}
    for path, share in ledger.pools.items():
        if (match := _POOL.search(path)) is not None:
            size = int(match[1]) << 10
            added[size] = added.get(size, 0) + _own(share)
    alive = start_time(root, owner.pid) == owner.pid_start
    return OwnRun(name=owner.run, pid=owner.pid, alive=alive), added


def _own(share: Share) -> int:
    """Pages of it that are still the run's."""
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
    """All that can be read; `instances` are services of templates that are wanted though they do not run.

    Raises UserError where there is no host.
    """
    if root.listed("/proc") is None and root.listed("/sys") is None and root.listed("/etc") is None:
        raise UserError(
            f"--root {root.folder}: it holds no host: no /etc, no /proc, no /sys",
            hint="name the folder that has them, or leave it out",
        )
    here = root.folder == Path("/")
    kernel = (root.text("/proc/sys/kernel/osrelease", 256) or "").strip()
    thp = thp_settings(root)
    run, added = own_run(root)
    pools = hugetlb_pools(root, added)
    hugetlb_groups, memory_groups = limited_groups(root)
    paths = systemd.service_files(root)
    others = systemd.service_aliases(root, paths)
    seen = running.processes(root)
    named = {*instances, *(each.process.unit for each in seen if each.process.unit)} - paths.keys() - others.keys()
    also: dict[str, list[str]] = {}
    for other, real in others.items():
        also.setdefault(real, []).append(other)
    loaded = [
        systemd.load_service(root, name, path, also.get(name, ()))
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
    found = virtual_machines(root)
    return HostFacts(
        kernel=kernel,
        machine=machine_id(root),
        architecture=(root.text("/proc/sys/kernel/arch", 256) or (os.uname().machine if here else "")).strip(),
        base_page=os.sysconf("SC_PAGE_SIZE") if here else 4096,
        systemd=_systemd(root),
        glibc=_glibc(root),
        except_advised=except_advised(root),
        config=kernel_config(root, kernel),
        collapses=collapses_below_pmd(root),
        reported=reported_order(root),
        swap=_swap(root),
        thp=thp,
        pools=pools,
        hugetlb_groups=hugetlb_groups,
        memory_groups=memory_groups,
        boot=boot_parameters(root),
        sysctl=sysctl_values(root),
        tmpfiles=tmpfiles_values(root, known),
        tuned=profile[0],
        scripts=boot_scripts(root),
        profile=profile[1],
        lost_profiles=profile[2],
        units=tuple(each.config for each in loaded),
        aliases=others,
        defaults=systemd.defaults(root),
        processes=tuple(each.process for each in seen),
        servers=servers.find_servers(root, seen, loaded),
        preloads=_preloads(root, loaded),
        run=run,
        domains=found.domains,
        running=found.running,
        kvm=found.kvm,
        ksm=found.ksm,
        unread=root.unread(),
    )


def except_advised(root: Root) -> bool | None:
    """Whether prctl takes PR_THP_DISABLE_EXCEPT_ADVISED: tried on this process, and taken back at once.

    None for another host, and where THP is disabled for this process already: it would have to be set again.
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
    """Of the C library's file: it says its version in words."""
    for folder in (*_multiarch(root, "/usr/lib"), *_multiarch(root, "/lib"), *_LIBC_PLACES):
        data = root.data(f"{folder}/libc.so.6", _MOST_LIBC)
        if data is not None and (match := _GLIBC.search(data)) is not None:
            return int(match[1]), int(match[2])
    return None


def _systemd(root: Root) -> int | None:
    """Of the name of systemd's own library."""
    for folder in (*_LIBRARIES, *(f"{each}/systemd" for each in _multiarch(root, "/usr/lib"))):
        for name in root.names(folder):
            if match := _SYSTEMD.fullmatch(name):
                return int(match[1])
    return None


def _swap(root: Root) -> int:
    """Bytes of swap."""
    match = re.search(r"^SwapTotal:\s{1,20}(\d{1,15}) kB$", root.text("/proc/meminfo", 1 << 16) or "", re.MULTILINE)
    return int(match[1]) << 10 if match else 0


def _preloads(root: Root, loaded: list[systemd.LoadedUnit]) -> dict[str, bool]:
    """Whether the files that units preload are there; those without a path are the loader's affair."""
    said = [one.value for unit in loaded for one in unit.config.environment if one.key == "LD_PRELOAD"]
    files = [each for value in said for each in re.split(r"[ :]+", value) if PurePosixPath(each).is_absolute()]
    plain = [each for each in files if "$" not in each and "%" not in each]
    found = {each: root.there(each) for each in plain[:_MOST_PRELOADS]}
    return {each: is_there for each, is_there in found.items() if is_there is not None}
