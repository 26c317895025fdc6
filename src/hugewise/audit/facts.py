"""What an audit knows of a host, as values: what was read, and nothing that was concluded. Pure.

Sizes are bytes, pools are counted in pages. What could not be read is None or absent, and `HostFacts.unread` says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from hugewise.model.guest import Domain

ServerKind = Literal["postgresql", "mysql", "redis", "memcached", "jvm", "mongodb"]

_SIZE_FOLDER = re.compile(r"hugepages-(\d{1,12})kB/enabled")


class Placed(msgspec.Struct, frozen=True):
    """A setting as somebody wrote it: `where` is the file with its line, or how else it was given."""

    key: str
    value: str
    where: str


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
        """Pages that nobody uses and nobody has reserved: memory that no other use can have. Those of a run are not
        idle, whether its program has taken them yet or not.
        """
        return max(0, self.free - self.reserved - self.own)

    @property
    def available(self) -> int:
        """Pages that a new mapping can get: those and what the pool may grow by."""
        return max(0, self.free - self.reserved) + max(0, self.overcommit - self.surplus)


class OwnRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of hugewise that has turned settings here, and has not put them back: root's journal names it.

    alive   it goes on; else it was killed
    """

    name: str
    pid: int
    alive: bool


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
    """What a unit starts: the program, and what its file says (None: it could not be looked at).

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
    turned       knobs below /sys/kernel/mm that its commands write
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


class RunningProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process: what it was started with, and what the kernel says of it.

    thp_enabled  of its status: False after PR_SET_THP_DISABLE (or a mapping that forbids THP for the whole process)
    secure       AT_SECURE: the loader ignored the environment; static: it has no interpreter
    libraries    names of known allocators and C libraries that it has mapped; None: not looked at, or not allowed to
    shared       bytes of its largest shared anonymous mapping, and whether that is of hugetlb pages
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
        )


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The page settings of a server: of one that runs (`pid`), else of the files in the usual places."""

    kind: ServerKind
    what: str
    pid: int | None = None
    unit: str | None = None
    group: str = ""
    version: str | None = None
    settings: Mapping[str, Placed] = {}
    shared: int = 0
    shared_huge: bool = False

    def value(self, key: str, default: str = "") -> str:
        """A setting in lower case, or what holds without it."""
        found = self.settings.get(key)
        return default if found is None else found.value.lower()

    def where(self, key: str) -> str:
        """Where a setting stands; the server itself where it stands nowhere."""
        found = self.settings.get(key)
        return self.what if found is None else found.where


class Carrier(msgspec.Struct, frozen=True, kw_only=True):
    """Whatever has an environment: a process, or a service that does not run now."""

    what: str
    unit: str | None
    environment: Mapping[str, Placed]
    secure: bool | None
    static: bool | None
    libraries: frozenset[str] | None


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that was read of a host.

    thp            path below /sys/kernel/mm/transparent_hugepage -> value; of a choice the chosen word
    boot           words of the kernel's command line about pages, in their order
    sysctl, tmpfiles, tuned   settings that files hold, the last word of each key: sysctls by name, files by path
    scripts        files below /sys that scripts at boot and sysfs.conf write
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
    kvm            parameters of the module kvm
    ksm            what says whether equal pages are merged, by the file's name
    unread         what could not be read, and why
    """

    kernel: str = ""
    machine: str | None = None
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
    sysctl: Mapping[str, Placed] = {}
    tmpfiles: Mapping[str, Placed] = {}
    tuned: Mapping[str, Placed] = {}
    scripts: tuple[str, ...] = ()
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
    kvm: Mapping[str, str] = {}
    ksm: Mapping[str, str] = {}
    unread: tuple[str, ...] = ()

    @property
    def top(self) -> str:
        """The chosen word of the top-level `enabled`; `never` on a kernel without THP."""
        return self.thp.get("enabled", "never")

    @property
    def pmd(self) -> int:
        """Bytes of a huge page that one entry of a page-table directory maps; 2 MiB where it is not said."""
        said = self.thp.get("hpage_pmd_size", "")
        return (int(said) if said.isascii() and said.isdigit() and len(said) < 16 else 0) or 2 << 20

    @property
    def sizes(self) -> dict[int, str]:
        """What holds for anonymous memory at each THP size in bytes, with `inherit` resolved."""
        found = {int(m[1]) << 10: value for key, value in self.thp.items() if (m := _SIZE_FOLDER.fullmatch(key))}
        if not found and "enabled" in self.thp:
            found = {self.pmd: "inherit"}  # kernels before mTHP have one size, that follows the top level
        return {size: self.top if value == "inherit" else value for size, value in sorted(found.items())}

    @property
    def thp_possible(self) -> bool:
        """Whether any anonymous memory can get huge pages."""
        return any(value != "never" for value in self.sizes.values())

    @property
    def most_none(self) -> int:
        """The largest max_ptes_none, the kernel's default: all pages of a huge page but one."""
        return self.pmd // max(1, self.base_page) - 1

    @property
    def max_ptes_none(self) -> int | None:
        """khugepaged's max_ptes_none."""
        said = self.thp.get("khugepaged/max_ptes_none", "")
        return int(said) if said.isascii() and said.isdigit() and len(said) < 10 else None

    def pool(self, size: int) -> HugePool | None:
        """The pool of pages of so many bytes."""
        return next((pool for pool in self.pools if pool.size == size), None)

    @property
    def default_pool(self) -> HugePool | None:
        """The pool of the default huge page size: `default_hugepagesz=`, else the PMD's size."""
        return self.pool(self.default_huge_size)

    @property
    def default_huge_size(self) -> int:
        """Bytes of the page that vm.nr_hugepages counts."""
        for word in reversed(self.boot):
            key, _, value = word.partition("=")
            if key == "default_hugepagesz" and (found := boot_size(value)):
                return found
        return self.pmd

    def carriers(self) -> Iterator[Carrier]:
        """The processes, and those services that none of them belongs to."""
        yield from (each.carrier for each in self.processes)
        running = {each.unit for each in self.processes}
        for unit in self.units:
            if unit.name not in running and not unit.masked:
                yield Carrier(
                    what=unit.name,
                    unit=unit.name,
                    environment={one.key: one for one in unit.environment},
                    secure=_any(command.setuid for command in unit.commands),
                    static=_any(command.static for command in unit.commands),
                    libraries=None,
                )

    def unit(self, name: str | None) -> UnitConfig | None:
        """The service of that name, also the template that it is an instance of."""
        if name is None:
            return None
        template = re.sub(r"@[^@]*(?=\.service$)", "@", name)
        found = {unit.name: unit for unit in self.units}
        return found.get(name) or found.get(template)


def _any(said: Iterator[bool | None]) -> bool | None:
    """Whether one is so; None where none says so and one does not say."""
    found = list(said)
    return True if True in found else None if None in found or not found else False


def boot_size(text: str) -> int | None:
    """Bytes in a size on the kernel's command line: 2M, 1G, 64K; None where it is none."""
    match = re.fullmatch(r"(\d{1,9})([kKmMgG]?)", text)
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2].lower()] if match else None


def tunables(environment: Mapping[str, Placed]) -> dict[str, str]:
    """The tunables of glibc in GLIBC_TUNABLES, by name, as ld.so reads them: between colons."""
    said = environment.get("GLIBC_TUNABLES")
    pairs = [] if said is None else [part.partition("=") for part in said.value.split(":")]
    return {name: value for name, equals, value in pairs if equals}
