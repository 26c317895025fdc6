"""Facts that an audit reads from a host, without conclusions. Pure.

Sizes are bytes, pools are counted in pages. What could not be read is None or absent, and `HostFacts.unread` says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from hugewise.model.guest import Domain

ServerKind = Literal["postgresql", "mysql", "redis", "memcached", "jvm", "mongodb"]
Hidden = Literal["thp", "pools", "processes", "cmdline"]

COMMAND_LINE = "the kernel's command line"
NOT_KNOWN = "not known"

_SIZE_FOLDER = re.compile(r"hugepages-(\d{1,12})kB/enabled")


class Placed(msgspec.Struct, frozen=True):
    """A setting as somebody wrote it: `where` is the file with its line, or how else it was given."""

    key: str
    value: str
    where: str


class BootLine(msgspec.Struct, frozen=True, kw_only=True):
    """Words about pages that a file asks for on the kernel's command line at boot.

    by       whose file it is: GRUB, boot entry, grub.cfg, boot loader, tuned
    release  the kernel that it is for; None: for all
    """

    by: str
    where: str
    words: tuple[str, ...]
    release: str | None = None


class HugePool(msgspec.Struct, frozen=True, kw_only=True):
    """A hugetlb pool: its page size in bytes, and numbers of pages (hugetlbpage.rst).

    own   of the total those that a run of hugewise has added, and gives back
    """

    size: int
    total: int
    free: int
    reserved: int
    surplus: int
    overcommit: int
    own: int = 0

    @property
    def lasting(self) -> int:
        """Pages that are there when no run is."""
        return max(0, self.total - self.own)

    @property
    def stranded(self) -> int:
        """Pages that nobody uses or has reserved, and that are no run's: memory lost to all other uses."""
        return max(0, self.free - self.reserved - self.own)

    @property
    def available(self) -> int:
        """Pages that a new mapping can get: those and what the pool may grow by."""
        return max(0, self.free - self.reserved) + max(0, self.overcommit - self.surplus)


class OwnRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of hugewise that has turned settings here, and has not put them back: root's journal names it.

    alive   it goes on; else it was killed
    turned  the values that it has given to knobs below transparent_hugepage, by path there
    """

    name: str
    pid: int
    alive: bool
    turned: Mapping[str, str] = {}

    @property
    def told(self) -> str:
        """Name and process of the run."""
        return f"the run {self.name} (process {self.pid})" if self.alive else f"the run {self.name}, which was killed"


class HugetlbGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A cgroup's limits on hugetlb pages of a size, in bytes; None: no limit. `version` of the hierarchy: 1 or 2."""

    group: str
    size: int
    version: int
    limit: int | None
    reserved_limit: int | None


class MemoryGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A cgroup of version 2 with a memory limit: bytes; `swap_limit` None: no limit."""

    group: str
    limit: int
    swap_limit: int | None
    anon_thp: int


class UnitCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Program that a unit starts, and the properties of its file (None: it could not be read).

    setuid   it has a setuid or setgid bit, so that the loader ignores tunables and preloads
    static   it has no interpreter: no loader, no preload, and often no malloc of the system's glibc
    wrappers names of the programs before it that start it: env, hugectl, numactl
    """

    program: str
    where: str
    setuid: bool | None = None
    static: bool | None = None
    wrappers: tuple[str, ...] = ()


class UnitConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A service of systemd as its file and drop-ins say, the last word of each setting.

    memory_thp   MemoryTHP=, as written; environment has the known variables alone
    invented     settings that no version of systemd has, although web pages print them
    turned       knobs below /sys/kernel/mm that its commands name
    writes       those that they write, with the value (empty: it is not known) and the place
    disabled     it is to be wanted by another unit at boot, and no link of this host says so
    """

    name: str
    path: str
    files: tuple[str, ...] = ()
    masked: bool = False
    memory_thp: Placed | None = None
    environment: tuple[Placed, ...] = ()
    commands: tuple[UnitCommand, ...] = ()
    invented: tuple[Placed, ...] = ()
    turned: tuple[str, ...] = ()
    writes: tuple[Placed, ...] = ()
    disabled: bool = False


class RunningProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process: what it was started with, and what the kernel says of it.

    thp_enabled  of its status: False after PR_SET_THP_DISABLE (or a mapping that forbids THP for the whole process)
    secure       AT_SECURE: the loader ignored the environment; static: it has no interpreter
    libraries    names of known allocators and C libraries that it has mapped; None: not looked at, or not allowed to
    shared       bytes of its largest shared anonymous mapping, and whether that is of hugetlb pages
    hugetlb      bytes in pages of pools that it has mapped, as its status says
    """

    pid: int
    name: str
    program: str
    unit: str | None = None
    group: str = ""
    thp_enabled: bool | None = None
    secure: bool | None = None
    static: bool | None = None
    libraries: frozenset[str] | None = None
    environment: tuple[Placed, ...] = ()
    rss: int | None = None
    shared: int = 0
    shared_huge: bool = False
    hugetlb: int = 0

    @property
    def carrier(self) -> Carrier:
        """The process as what has an environment."""
        return Carrier(
            what=f"process {self.pid} ({self.name})",
            unit=self.unit,
            environment={one.key: one for one in self.environment},
            secure=self.secure,
            static=self.static,
            libraries=self.libraries,
            without_thp="THP is disabled for it" if self.thp_enabled is False else "",
        )


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The page settings of a server: of one that runs (`pid`), else of the files in the usual places.

    hugetlb  bytes in pages of pools that it holds now
    """

    kind: ServerKind
    what: str
    pid: int | None = None
    unit: str | None = None
    group: str = ""
    version: str | None = None
    settings: Mapping[str, Placed] = {}
    shared: int = 0
    shared_huge: bool = False
    hugetlb: int = 0

    def value(self, key: str, default: str = "") -> str:
        """Return a setting in lower case, or what holds without it."""
        setting = self.settings.get(key)
        return default if setting is None else setting.value.lower()

    def where(self, key: str) -> str:
        """Return where a setting stands; the server itself where it stands nowhere."""
        setting = self.settings.get(key)
        return self.what if setting is None else setting.where


class Carrier(msgspec.Struct, frozen=True, kw_only=True):
    """Whatever has an environment: a process, or a service that does not run now.

    without_thp  why it has no transparent huge pages, whatever the host says; empty where that is not known
    """

    what: str
    unit: str | None
    environment: Mapping[str, Placed]
    secure: bool | None
    static: bool | None
    libraries: frozenset[str] | None
    without_thp: str = ""

    @property
    def jemalloc(self) -> Iterator[tuple[str, dict[str, str]]]:
        """The variables that a jemalloc reads, with their options; the last word of each."""
        for name, one in self.environment.items():
            if "MALLOC_CONF" in name:
                yield name, jemalloc_options(one.value)


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that were read of a host.

    thp            path below /sys/kernel/mm/transparent_hugepage -> value; of a choice the chosen word
    boot           words of the kernel's command line about pages, in their order; `boot_from` is where they stand
    boot_lines     what files of the boot loader, and tuned, ask for at the next boot
    hidden         what a captured host does not have: thp and pools of sysfs, processes, cmdline
    sysctl, tmpfiles, tuned   settings that files hold, the last word of each key: sysctls by name, files by path
    scripts        files below /sys that scripts at boot and sysfs.conf name
    written        those of them whose value is known
    profile        active profiles of tuned; lost_profiles: those of them that are nowhere
    config         the kernel's own choice of THP when it was built: always, madvise or never
    collapses      khugepaged can collapse to sizes below the PMD's
    reported       the smallest order of free pages that the host of this virtual machine gets back; None: it gets none
    except_advised whether prctl takes PR_THP_DISABLE_EXCEPT_ADVISED; None where it was not tried
    aliases        other names of services -> their own
    defaults       variables that systemd gives every service
    preloads       files named by an LD_PRELOAD of a unit -> whether they are there
    run            a run of hugewise's own that has settings turned now
    domains        virtual machines of libvirt, as it keeps their XML; those that run have their name in `running`
    backing_dir    memory_backing_dir of libvirt: the folder of files that back memory; its key is the kind of file
                   system that it is on, empty where that is not known
    kvm            parameters of the module kvm
    ksm            what says whether equal pages are merged, by the file's name
    unread         what could not be read, and why
    """

    kernel: str = ""
    architecture: str = ""
    base_page: int = 4096
    systemd: int | None = None
    glibc: tuple[int, int] | None = None
    except_advised: bool | None = None
    config: str | None = None
    collapses: bool = False
    reported: int | None = None
    swap: int = 0
    thp: Mapping[str, str] = {}
    pools: tuple[HugePool, ...] = ()
    hugetlb_groups: tuple[HugetlbGroup, ...] = ()
    memory_groups: tuple[MemoryGroup, ...] = ()
    boot: tuple[str, ...] = ()
    boot_from: str = COMMAND_LINE
    boot_lines: tuple[BootLine, ...] = ()
    hidden: frozenset[Hidden] = frozenset()
    sysctl: Mapping[str, Placed] = {}
    tmpfiles: Mapping[str, Placed] = {}
    tuned: Mapping[str, Placed] = {}
    scripts: tuple[str, ...] = ()
    written: tuple[Placed, ...] = ()
    profile: tuple[str, ...] = ()
    lost_profiles: tuple[str, ...] = ()
    units: tuple[UnitConfig, ...] = ()
    aliases: Mapping[str, str] = {}
    defaults: tuple[Placed, ...] = ()
    processes: tuple[RunningProcess, ...] = ()
    servers: tuple[ServerConfig, ...] = ()
    preloads: Mapping[str, bool] = {}
    run: OwnRun | None = None
    domains: tuple[Domain, ...] = ()
    running: frozenset[str] = frozenset()
    backing_dir: Placed = Placed("", "/var/lib/libvirt/qemu/ram", "libvirt's default")
    kvm: Mapping[str, str] = {}
    ksm: Mapping[str, str] = {}
    unread: tuple[str, ...] = ()

    @property
    def top(self) -> str:
        """The chosen word of the top-level `enabled`; `never` without THP, NOT_KNOWN without sysfs."""
        return self.thp.get("enabled", NOT_KNOWN if "thp" in self.hidden else "never")

    @property
    def pmd(self) -> int:
        """Bytes of a huge page that one entry of a page-table directory maps; 2 MiB where it is not said."""
        text = self.thp.get("hpage_pmd_size", "")
        return (int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0) or 2 << 20

    @property
    def sizes(self) -> dict[int, str]:
        """Mode of anonymous memory at each THP size in bytes, with `inherit` resolved."""
        modes = {int(m[1]) << 10: value for key, value in self.thp.items() if (m := _SIZE_FOLDER.fullmatch(key))}
        if not modes and "enabled" in self.thp:
            modes = {self.pmd: "inherit"}  # kernels before mTHP have one size, that follows the top level
        return {size: self.top if value == "inherit" else value for size, value in sorted(modes.items())}

    @property
    def thp_possible(self) -> bool:
        """True if any anonymous memory can get huge pages."""
        return any(value != "never" for value in self.sizes.values())

    @property
    def thp_off(self) -> bool:
        """True if no anonymous memory can get huge pages; False where that is not known."""
        return "thp" not in self.hidden and not self.thp_possible

    @property
    def most_none(self) -> int:
        """The largest max_ptes_none, the kernel's default: all pages of a huge page but one."""
        return self.pmd // max(1, self.base_page) - 1

    @property
    def max_ptes_none(self) -> int | None:
        """khugepaged's max_ptes_none."""
        text = self.thp.get("khugepaged/max_ptes_none", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None

    def pool(self, size: int) -> HugePool | None:
        """Return the pool of pages of so many bytes."""
        return next((pool for pool in self.pools if pool.size == size), None)

    def short(self, size: int, pages: int = 1, own: int = 0) -> bool:
        """Return whether a program that asks for `pages` of that size gets fewer; it holds `own` of them already. False
        where that is not known: a captured host without sysfs shows the default pool, or none.

        On a captured host without processes, the held pages may be those of the program that asks.
        """
        pool = self.pool(size)
        if pool is None:
            return not self.hidden & {"thp", "pools"}
        held = pool.total + pool.overcommit if "processes" in self.hidden else pool.available + own
        return held < pages

    @property
    def default_huge_size(self) -> int:
        """Bytes of the page that vm.nr_hugepages counts: of the first default_hugepagesz= that the kernel takes."""
        for word in self.boot:
            key, _, value = word.partition("=")
            if key == "default_hugepagesz" and (found := boot_size(value)):
                return found
        return self.pmd

    def carriers(self) -> Iterator[Carrier]:
        """Yield the processes, and those services that none of them belongs to."""
        yield from (each.carrier for each in self.processes)
        running = {process.unit for process in self.processes}
        for unit in self.units:
            if unit.name not in running and not unit.masked:
                yield Carrier(
                    what=unit.name,
                    unit=unit.name,
                    environment={one.key: one for one in unit.environment},
                    secure=_any(command.setuid for command in unit.commands),
                    static=_any(command.static for command in unit.commands),
                    libraries=None,
                    without_thp=self._without_thp(unit),
                )

    def _without_thp(self, unit: UnitConfig) -> str:
        if unit.memory_thp is not None and unit.memory_thp.value.lower() == "disable":
            return f"MemoryTHP=disable ({unit.memory_thp.where})"
        for server in self.servers:
            if server.unit == unit.name and server.kind == "redis" and server.value("disable-thp", "yes") == "yes":
                said = server.where("disable-thp") if "disable-thp" in server.settings else "its default"
                return f"disable-thp yes ({said})"
        return ""

    def unit(self, name: str | None) -> UnitConfig | None:
        """Return the service of that name, also the template that it is an instance of."""
        if name is None:
            return None
        template = re.sub(r"@[^@]*(?=\.service$)", "@", name)
        by_name = {unit.name: unit for unit in self.units}
        return by_name.get(name) or by_name.get(template)


def _any(said: Iterator[bool | None]) -> bool | None:
    """Return True if any is true, None if none is but one is unknown, else False."""
    members = list(said)
    return True if True in members else None if None in members or not members else False


_MEMPARSE = re.compile(r"(0[xX][0-9a-fA-F]{1,16}|0[0-7]{0,22}|[1-9][0-9]{0,18})([kKmMgGtTpPeE]?)")


def boot_size(text: str) -> int | None:
    """Bytes in a size on the kernel's command line, as its memparse reads it: 2M, 1G, 1GB, 1024M, 0x200000; what
    follows the letter is passed over. None where it is none, or no power of 2.
    """
    match = _MEMPARSE.match(text)
    if match is None:
        return None
    digits = match[1]
    base = 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" else 10
    size = int(digits, base) << 10 * ("kmgtpe".find(match[2].lower()) + 1 if match[2] else 0)
    return size if 0 < size < 1 << 63 and not size & (size - 1) else None


def jemalloc_options(text: str) -> dict[str, str]:
    """Options of jemalloc as it reads them: between commas; it ends at what is none."""
    found = {}
    for part in text.split(","):
        key, colon, value = part.partition(":")
        if not colon or re.fullmatch(r"\w{1,64}", key, re.ASCII) is None:
            break
        found[key] = value
    return found


def tunables(environment: Mapping[str, Placed]) -> dict[str, str]:
    """Return the tunables of glibc in GLIBC_TUNABLES, by name, as ld.so reads them: between colons."""
    text = environment.get("GLIBC_TUNABLES")
    pairs = [] if text is None else [part.partition("=") for part in text.value.split(":")]
    return {name: value for name, equals, value in pairs if equals}
