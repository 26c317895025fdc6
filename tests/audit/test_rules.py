"""Every rule on a host that has its fault, and silent on one just beside it: from the files to the printed text."""

import errno
import json
import re
import shutil
from collections.abc import Callable

import pytest

from hugewise.audit import collect
from hugewise.audit.root import Root
from hugewise.audit.rules import discover
from hugewise.host.ledger import Intent, JournalClosed, JournalRecord, KnobTurn, PoolReturn, Turned
from tests.audit.conftest import Audit
from tests.build.hosts import stat_text
from tests.build.trees import KERNEL, Tree

Change = Callable[[Tree], None]
GRUB_MORE = 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX transparent_hugepage=never"\n'

THP = "/sys/kernel/mm/transparent_hugepage"
REPORTING = "/sys/module/page_reporting/parameters/page_reporting"
TUNABLE = "glibc.malloc.hugetlb"
LIB = "/usr/lib/x86_64-linux-gnu"
GROUP = "/sys/fs/cgroup/system.slice/db.service"
ADVISED = {"GLIBC_TUNABLES": f"{TUNABLE}=1"}
POOLED = {"GLIBC_TUNABLES": f"{TUNABLE}=2"}
TMPFILES = "/etc/tmpfiles.d/pages.conf"


def both(*changes: Change) -> Change:
    def change(tree: Tree) -> None:
        for each in changes:
            each(tree)

    return change


def knob(name: str, value: str) -> Change:
    return lambda tree: tree.knob(name, value)


def put(path: str, text: str) -> Change:
    return lambda tree: tree.put(path, text)


def kept(name: str, value: str) -> Change:
    """A knob turned, and a line of tmpfiles.d that keeps it so."""
    return both(
        knob(name, value), put(f"/etc/tmpfiles.d/{name.replace('/', '-')}.conf", f"w {THP}/{name} - - - - {value}\n")
    )


def program(name: str, **given: object) -> Change:
    return lambda tree: tree.process(200, name, **given)  # type: ignore[arg-type]


def service(*lines: str, name: str = "app") -> Change:
    return lambda tree: tree.service(name, "ExecStart=/usr/bin/app", *lines)


def turning(mode: str, name: str, *lines: str) -> Change:
    """A service that writes a mode to `enabled`."""
    return service(f"ExecStartPre=/bin/sh -c 'echo {mode} | tee {THP}/enabled >/dev/null'", *lines, name=name)


def boot(words: str) -> Change:
    return lambda tree: tree.boot(words)


def pool(kib: int = 2048, total: int = 0, **given: int) -> Change:
    return lambda tree: tree.pool(kib, total, **given)


def run(pages: int, *records: JournalRecord, **given: int | str) -> Change:
    return lambda tree: tree.run(pages, *records, **given)  # type: ignore[arg-type]


def turned(name: str, before: str, wrote: str) -> tuple[JournalRecord, ...]:
    """Records of a run that has turned a knob."""
    return Intent((KnobTurn(f"{THP}/{name}", before, wrote),)), Turned()


def grub(words: str, mode: str = "") -> Change:
    """What /etc/default/grub asks for; `mode`: transparent_hugepage= of the running kernel."""
    asks = put("/etc/default/grub", f'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX="{words}"\n')
    return both(asks, boot(f"transparent_hugepage={mode}"), kept("enabled", mode)) if mode else asks


def asked(pages: int) -> Change:
    return put("/etc/sysctl.d/50-pages.conf", f"vm.nr_hugepages = {pages}\n")


def tuned(*lines: str, profile: str = "mine") -> Change:
    return both(
        put("/etc/tuned/active_profile", f"{profile}\n"),
        put("/etc/tuned/mine/tuned.conf", "\n".join(("[main]", "summary=mine", *lines)) + "\n"),
    )


def postgres(huge: str, shared: str | None, *, settings: str = "", unit: str | None = None) -> Change:
    """PostgreSQL that runs, or that has files alone (`shared` None)."""
    data = "/var/lib/postgresql/15/main"
    files = put(f"{data}/postgresql.conf", f"shared_buffers = 1GB\nhuge_pages = {huge}  # as advised\n{settings}")
    if shared is None:
        return both(
            put("/etc/postgresql/15/main/postgresql.conf", f"huge_pages = {huge}\nshared_buffers=1GB\n{settings}")
        )
    argv = ["/usr/lib/postgresql/15/bin/postgres", "-D", data]
    return both(
        files,
        lambda tree: tree.process(
            300, "postgres", exe=argv[0], argv=argv, unit=unit, maps=(f"{LIB}/libc.so.6", f"{shared}={1 << 30}")
        ),
    )


def sized(shared: str) -> Change:
    """PostgreSQL at rest with so large shared buffers."""
    return put("/etc/postgresql/15/main/postgresql.conf", f"huge_pages = on\nshared_buffers = {shared}\n")


REFUSED_SIZES = (
    *("24 GB", "1.5GB", "'1.5 gb'", "1.5", "24g", "24G", "24K", "24kb", "24kB", "24KB", "1e3", "1e3kB", "8"),
    *("-5", "''", "512B", "010", "10%", "24GB x", "'24'GB", "128MB; x"),
)
TAKEN_SIZES = ("24GB", "'24 GB'", "'1.5GB'", "'1e3kB'", "0x30000", "0x30000kB", "'24GB ' # x", "16", "24GB#x", "+64MB")


SAME = "<currentMemory unit='GiB'>1</currentMemory>"
HUGE_2M = "<memoryBacking><hugepages><page size='2048'/></hugepages></memoryBacking>"
SHARED = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>"
ON_FILE = "<memoryBacking><access mode='shared'/></memoryBacking>"
SHARED_HUGE = (
    "<memoryBacking><hugepages><page size='2048'/></hugepages><source type='memfd'/><access mode='shared'/>"
    "</memoryBacking>"
)
CELL = "<cpu><numa><cell id='0' cpus='0' memory='1' unit='GiB'/></numa></cpu>"
PLUGGED = "<memory model='{}'><target><size unit='GiB'>8</size></target></memory>"
BALLOON = "<memballoon model='virtio' {}/>"
HOSTDEV = "<hostdev mode='subsystem' type='pci'><source/></hostdev>"
VIRTIOFS = "<filesystem type='mount'><driver type='virtiofs'/></filesystem>"


def domain(about: str, devices: str = "", memory: str = "1024", folder: str = "/etc/libvirt/qemu") -> Change:
    """A virtual machine of libvirt's: what its domain says, and its devices."""
    text = f"<domain type='kvm'><name>vm</name><memory unit='MiB'>{memory}</memory>{about}"
    return put(f"{folder}/vm.xml", f"{text}<devices>{devices}</devices></domain>")


def java(version: str, *options: str) -> Change:
    home = "/usr/lib/jvm/jdk"
    return both(
        put(f"{home}/release", f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n'),
        lambda tree: tree.process(400, "java", exe=f"{home}/bin/java", argv=["java", *options, "-jar", "a.jar"]),
    )


def mongod(version: str) -> Change:
    return both(
        put(
            "/var/lib/dpkg/status",
            f"Package: x\nVersion: 1\n\nPackage: mongodb-org-server\nStatus: ok\nVersion: {version}\n",
        ),
        lambda tree: tree.process(500, "mongod", argv=["/usr/bin/mongod", "--config", "/etc/mongod.conf"]),
    )


def group(**files: str) -> Change:
    return both(*(put(f"{GROUP}/{name.replace('__', '.')}", f"{value}\n") for name, value in files.items()))


SWAP = put("/proc/meminfo", "MemTotal: 8000000 kB\nSwapTotal: 4000000 kB\n")
ALWAYS, NEVER = kept("enabled", "always"), kept("enabled", "never")
NONE_409 = kept("khugepaged/max_ptes_none", "409")
COLLAPSES = put(f"{THP}/hugepages-64kB/stats/collapse_exceed_none_pte", "0\n")
MTHP = kept("hugepages-64kB/enabled", "always")

CASES: dict[str, tuple[Change, Change]] = {
    # transparent huge pages
    "free-pages-reported": (put(f"{REPORTING}_order", "9\n"), put(f"{REPORTING}_order", "4294967295\n")),
    "thp-shrinker-inert": (knob("shrink_underused", "1"), both(knob("shrink_underused", "1"), NONE_409)),
    "max-ptes-none-intermediate": (both(COLLAPSES, MTHP, NONE_409), both(MTHP, NONE_409)),
    "max-ptes-none-advice": (
        program("worker", maps=(f"{LIB}/libtcmalloc_minimal.so.4",)),
        both(program("worker", maps=(f"{LIB}/libtcmalloc_minimal.so.4",)), kept("khugepaged/max_ptes_none", "0")),
    ),
    "defrag-always": (kept("defrag", "always"), kept("defrag", "defer+madvise")),
    "advising-allocator-stalls": (
        both(program("app", environ=ADVISED), kept("defrag", "defer+madvise")),
        both(program("app", environ=ADVISED), kept("defrag", "defer")),
    ),
    "allocator-advice-without-effect": (
        program("app", environ={"MALLOC_CONF": "thp:always"}, thp="0"),
        program("app", environ={"MALLOC_CONF": "thp:always"}),
    ),
    "jemalloc-option-invalid": (
        program("app", environ={"MALLOC_CONF": "thp:allways"}),
        program("app", environ={"MALLOC_CONF": "thp:default,retain:true"}),
    ),
    "thp-top-not-followed": (
        kept("hugepages-2048kB/enabled", "never"),
        both(kept("hugepages-2048kB/enabled", "never"), MTHP),
    ),
    "thp-swap-under-limit": (
        both(SWAP, group(memory__max="1073741824", memory__swap__max="max", memory__stat="anon 5\nanon_thp 4194304")),
        both(SWAP, group(memory__max="1073741824", memory__swap__max="0", memory__stat="anon 5\nanon_thp 4194304")),
    ),
    # allocators and the loader
    "tunable-ignored-secure": (program("ping", environ=ADVISED, secure=True), program("ping", environ=ADVISED)),
    "tunable-ignored-static": (
        both(
            service(f"Environment=GLIBC_TUNABLES={TUNABLE}=1", name="go"),
            lambda t: t.program("/usr/bin/app", static=True),
        ),
        service(f"Environment=GLIBC_TUNABLES={TUNABLE}=1", name="go"),
    ),
    "tunable-other-allocator": (
        program("kv", environ=ADVISED, maps=(f"{LIB}/libjemalloc.so.2", f"{LIB}/libc.so.6")),
        program("kv", environ=ADVISED),
    ),
    "tunable-unknown-to-glibc": (
        both(program("app", environ=ADVISED), lambda t: t.glibc("2.34")),
        both(program("app", environ=ADVISED), lambda t: t.glibc("2.35")),
    ),
    "tunable-without-effect": (both(program("app", environ=ADVISED), ALWAYS), program("app", environ=ADVISED)),
    "tunable-under-memorythp-madvise": (
        both(ALWAYS, service("MemoryTHP=madvise", f"Environment=GLIBC_TUNABLES={TUNABLE}=1", name="db")),
        service("MemoryTHP=madvise", f"Environment=GLIBC_TUNABLES={TUNABLE}=1", name="db"),
    ),
    "tunable-without-pool": (program("app", environ=POOLED), both(program("app", environ=POOLED), pool(overcommit=64))),
    "tunable-malformed": (
        program("app", environ={"GLIBC_TUNABLES": "glibc.malloc.hugepages=1"}),
        program("app", environ={"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}),
    ),
    "glibc-advises-everything": (
        both(put("/proc/sys/kernel/arch", "aarch64\n"), lambda t: t.glibc("2.43")),
        both(put("/proc/sys/kernel/arch", "aarch64\n"), lambda t: t.glibc("2.42")),
    ),
    "preload-ignored": (
        program("trail", environ={"LD_PRELOAD": "/opt/lib.so"}, static=True),
        program("trail", environ={"LD_PRELOAD": "/opt/lib.so"}),
    ),
    "preload-missing": (
        service("Environment=LD_PRELOAD=/opt/libjemalloc.so"),
        both(service("Environment=LD_PRELOAD=/opt/libjemalloc.so"), put("/opt/libjemalloc.so", "")),
    ),
    "libhugetlbfs-morecore": (
        lambda tree: tree.service("heap", "ExecStart=/usr/bin/hugectl --heap /usr/bin/app"),
        lambda tree: tree.service("heap", "ExecStart=/usr/bin/numactl -m 0 /usr/bin/app"),
    ),
    "tcmalloc-without-always": (
        program("worker", maps=(f"{LIB}/libtcmalloc.so.4",)),
        both(program("worker", maps=(f"{LIB}/libtcmalloc.so.4",)), ALWAYS),
    ),
    "program-disables-thp": (
        program("agent", thp="0"),
        both(service("MemoryTHP=disable"), lambda t: t.process(100, "app", unit="app.service", thp="0")),
    ),
    # systemd
    "unit-memorythp-invalid": (service("MemoryTHP=never"), service("MemoryTHP=disable")),
    "unit-memorythp-too-new": (
        both(service("MemoryTHP=disable"), lambda t: t.systemd(252)),
        service("MemoryTHP=disable"),
    ),
    "unit-memorythp-madvise-kernel": (service("MemoryTHP=madvise"), service("MemoryTHP=disable")),
    "cgroup-thp-invented": (
        put(TMPFILES, "w /sys/fs/cgroup/system.slice/memory.huge_pages - - - - never\n"),
        put(TMPFILES, "w /sys/fs/cgroup/system.slice/hugetlb.2MB.max - - - - max\n"),
    ),
    "sysctl-thp-invented": (
        put("/etc/sysctl.d/a.conf", "kernel.mm.transparent_hugepage.enabled = never\n"),
        put("/etc/sysctl.d/a.conf", "vm.nr_overcommit_hugepages = 0\n"),
    ),
    "setting-without-knob": (
        put(TMPFILES, f"w {THP}/hugepages-16kB/enabled - - - - never\n"),
        put(TMPFILES, f"w {THP}/hugepages-64kB/enabled - - - - never\n"),
    ),
    # what is set at boot
    "tuned-tmpfiles-conflict": (
        both(tuned("[vm]", "transparent_hugepages=never"), put(TMPFILES, f"w {THP}/enabled - - - - madvise\n")),
        both(tuned("[vm]", "transparent_hugepages=madvise"), put(TMPFILES, f"w {THP}/enabled - - - - madvise\n")),
    ),
    "services-write-differently": (
        both(turning("never", "old"), turning("always", "new")),
        both(turning("never", "old"), turning("never", "new")),
    ),
    "pool-asked-twice": (
        both(asked(8), tuned("[sysctl]", "vm.nr_hugepages=4"), pool(total=8, free=8)),
        both(asked(8), tuned("[sysctl]", "vm.nr_hugepages=8"), pool(total=8, free=8)),
    ),
    "boot-value-overwritten": (
        both(boot("transparent_hugepage=never"), ALWAYS),
        both(boot("transparent_hugepage=always"), ALWAYS),
    ),
    "setting-not-in-force": (
        put(TMPFILES, f"w {THP}/defrag - - - - defer\n"),
        put(TMPFILES, f"w {THP}/defrag - - - - madvise\n"),
    ),
    "boot-word-unknown": (boot("transparent_hugepages=always"), boot("transparent-hugepage=madvise")),
    "boot-file-not-in-force": (grub("quiet transparent_hugepage=never"), grub("quiet", "never")),
    "tuned-profile-missing": (tuned(profile="gone"), tuned()),
    "thp-lost-at-boot": (
        knob("enabled", "always"),
        both(knob("enabled", "always"), service(f'ExecStartPre=sh -c "echo always > {THP}/enabled"', name="turn")),
    ),
    "knobs-of-a-run": (
        both(knob("enabled", "always"), run(0, *turned("enabled", "madvise", "always"))),
        both(knob("enabled", "madvise"), run(0, *turned("enabled", "madvise", "always"))),
    ),
    "pool-lost-at-boot": (pool(total=8, free=8), both(pool(total=8, free=8), asked(8))),
    # virtual machines
    "vm-ballooned-at-boot": (domain("<currentMemory unit='MiB'>512</currentMemory>"), domain(SAME)),
    "vm-balloon": (domain("", BALLOON.format("")), domain("", "<memballoon model='none'/>")),
    "vm-free-page-reporting": (
        domain("", BALLOON.format("freePageReporting='on'")),
        domain("", BALLOON.format("freePageReporting='off'")),
    ),
    "vm-hotplug": (
        domain("<maxMemory slots='4' unit='GiB'>8</maxMemory>"),
        domain("<maxMemory slots='4' unit='GiB'>1</maxMemory>"),
    ),
    "vm-vfio": (domain("", HOSTDEV), both(domain(HUGE_2M, HOSTDEV), pool(total=512, free=512), asked(512))),
    "vm-shared-memory-not-huge": (domain(SHARED), both(domain(SHARED_HUGE), pool(total=512, free=512), asked(512))),
    "vm-shared-memory-on-file": (domain(ON_FILE), domain(SHARED)),
    "vm-sharer-without-shared-memory": (
        domain("", VIRTIOFS),
        both(domain(SHARED_HUGE, VIRTIOFS), pool(total=512, free=512), asked(512)),
    ),
    "vm-merged": (
        both(domain(SAME), put("/sys/kernel/mm/ksm/run", "1\n")),
        both(domain("<memoryBacking><nosharepages/></memoryBacking>"), put("/sys/kernel/mm/ksm/run", "1\n")),
    ),
    "vm-nx-huge-pages": (
        both(domain(SAME), put("/sys/module/kvm/parameters/nx_huge_pages", "Y\n")),
        put("/sys/module/kvm/parameters/nx_huge_pages", "Y\n"),  # no guests
    ),
    "vm-memory-limit": (
        domain("<memtune><hard_limit unit='GiB'>1</hard_limit></memtune>"),
        domain("<memtune><hard_limit unit='GiB'>2</hard_limit></memtune>"),
    ),
    "vm-not-whole-pages": (domain(SAME, memory="1023"), domain(SAME)),
    "vm-bare-hugepages": (
        both(domain("<memoryBacking><hugepages/></memoryBacking>"), pool(total=512, free=512), asked(512)),
        both(domain(HUGE_2M), pool(total=512, free=512), asked(512)),
    ),
    "vm-pool-too-small": (domain(HUGE_2M), both(domain(HUGE_2M), pool(total=512, free=512), asked(512))),
    # pools
    "pool-stranded": (
        both(asked(512), pool(total=512, free=500, reserved=100)),
        both(asked(512), pool(total=512, free=500, reserved=480)),
    ),
    "pool-smaller-than-asked": (
        both(postgres("try", None), asked(400), pool(total=400, free=400)),
        both(postgres("try", None), asked(600), pool(total=600, free=600)),
    ),
    "pool-of-a-run": (
        both(asked(100), pool(total=612, free=600), run(512, before=100)),
        both(asked(612), pool(total=612, free=0), run(512, JournalClosed("put back"), before=100)),
    ),
    "pool-granted-short": (both(asked(512), pool(total=300, free=0)), both(asked(300), pool(total=300, free=0))),
    "gigantic-pool-after-boot": (
        put(TMPFILES, "w /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages - - - - 4\n"),
        both(
            put(TMPFILES, "w /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages - - - - 4\n"),
            boot("hugetlb_cma=8G"),
        ),
    ),
    "boot-hugepages-pairs": (
        boot("hugepagesz=1G hugepagesz=2M hugepages=8"),
        boot("hugepagesz=1G hugepages=0 hugepagesz=2M hugepages=8"),
    ),
    "cgroup-hugetlb-sigbus": (
        group(hugetlb__2MB__max="2097152", hugetlb__2MB__rsvd__max="max"),
        group(hugetlb__2MB__max="2097152", hugetlb__2MB__rsvd__max="2097152"),
    ),
    # servers
    "postgresql-fell-back": (
        both(postgres("try", "/dev/zero (deleted)"), asked(400), pool(total=400, free=400, reserved=400)),
        both(postgres("try", "/anon_hugepage (deleted)"), asked(600), pool(total=600, free=88)),
    ),
    "postgresql-will-not-start": (
        both(postgres("on", None), asked(400), pool(total=400, free=400)),
        both(postgres("on", None), asked(600), pool(total=600, free=600)),
    ),
    "postgresql-need-within-margin": (
        both(postgres("on", None), asked(540), pool(total=540, free=540)),
        both(postgres("on", None), asked(600), pool(total=600, free=600)),
    ),
    "postgresql-over-group-limit": (
        both(
            postgres("try", "/dev/zero (deleted)", unit="db.service"),
            group(hugetlb__2MB__max="536870912", hugetlb__2MB__rsvd__max="536870912"),
        ),
        both(
            postgres("try", "/dev/zero (deleted)", unit="db.service"),
            group(hugetlb__2MB__max="2147483648", hugetlb__2MB__rsvd__max="2147483648"),
        ),
    ),
    "postgresql-page-size": (
        postgres("try", None, settings="huge_page_size = 32MB\n"),
        postgres("try", None, settings="huge_page_size = 2MB\n"),
    ),
    "server-value-refused": (sized("24gb"), sized("24GB")),
    "mysql-large-pages-short": (
        put("/etc/mysql/my.cnf", "[mysqld]\nlarge-pages\ninnodb_buffer_pool_size = 2G\n"),
        put("/etc/mysql/my.cnf", "[mysql]\nlarge-pages\ninnodb_buffer_pool_size = 2G\n"),
    ),
    "redis-thp-fork": (
        both(ALWAYS, put("/etc/redis/redis.conf", "port 6379\ndisable-thp no\n")),
        both(ALWAYS, put("/etc/redis/redis.conf", "port 6379\ndisable-thp yes\n")),
    ),
    "memcached-large-pages-off": (
        both(NEVER, program("memcached", argv=["/usr/bin/memcached", "-m", "64", "-L"])),
        program("memcached", argv=["/usr/bin/memcached", "-m", "64", "-L"]),
    ),
    "jvm-large-pages-short": (
        java("21.0.4", "-XX:+UseLargePages"),
        java("21.0.4", "-XX:+UseLargePages", "-XX:+UseTransparentHugePages"),
    ),
    "jvm-thp-off": (
        both(NEVER, java("21.0.4", "-XX:+UseTransparentHugePages")),
        java("21.0.4", "-XX:+UseTransparentHugePages"),
    ),
    "jvm-thread-stacks": (both(ALWAYS, java("17.0.8")), both(ALWAYS, java("17.0.9"))),
    "mongodb-before-8-with-thp": (mongod("7.0.14"), mongod("8.0.4")),
    "mongodb-8-without-thp": (mongod("8.0.4"), both(mongod("8.0.4"), ALWAYS)),
}


def test_every_rule_has_its_two_hosts_and_a_host_without_faults_has_none(audit: Audit) -> None:
    assert CASES.keys() == discover().keys()
    assert len(CASES) >= 20
    status, said = audit()
    assert (status, said.splitlines()[-1]) == (0, "no trap found")


@pytest.mark.parametrize("rule", CASES)
def test_a_fault_is_found(rule: str, tree: Tree, audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "except_advised", lambda root: False)
    CASES[rule][0](tree)
    status, said = audit("--traps")
    found = discover()[rule]
    assert f"{found.severity:8} {rule}: {found.title[:20]}" in said
    whole = " ".join(said.split())
    assert found.cure in whole and "source: " in whole
    assert status == (0 if found.severity == "note" and "warning " not in said and "error " not in said else 3)


@pytest.mark.parametrize("rule", CASES)
def test_beside_the_fault_nothing_is_said(rule: str, tree: Tree, audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "except_advised", lambda root: False)
    CASES[rule][1](tree)
    _, said = audit("--traps")
    assert f" {rule}: " not in said


NODE = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"


@pytest.mark.parametrize(
    "at_boot",
    [
        put("/etc/rc.local", f"echo 8 > {NODE}\n"),
        put("/etc/rc.local", "sysctl -w vm.nr_hugepages=8\n"),
        put("/etc/sysfs.d/a.conf", "kernel/mm/hugepages/hugepages-2048kB/nr_hugepages = 8\n"),
        put(TMPFILES, f"w {NODE} - - - - 8\n"),
        put(TMPFILES, "w /proc/sys/vm/nr_hugepages - - - - 8\n"),
        put(TMPFILES, "w! /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages - - - - 8\n"),
        put("/etc/sysctl.conf", "vm/nr_hugepages = 8\n"),
        service(f"ExecStartPre=+/bin/sh -c 'echo 8 > {NODE}'", name="pool"),
        tuned("[sysfs]", f"{NODE}=8"),
        boot("hugepages=8"),
        boot("hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=0:4,1:4"),
    ],
)
def test_a_pool_that_is_made_at_boot_is_not_lost(at_boot: Change, tree: Tree, audit: Audit) -> None:
    both(pool(total=8, free=8), at_boot)(tree)
    assert "pool-lost-at-boot" not in audit("--traps")[1]


@pytest.mark.parametrize(
    "at_boot",
    [
        put(TMPFILES, f"w {THP}/hugepages-*kB/enabled - - - - always\n"),
        tuned("[sysfs]", f"{THP}/hugepages-*kB/enabled=always"),
        boot("thp_anon=64K,2M:always"),
    ],
)
def test_a_pattern_means_the_knobs_that_are_there(at_boot: Change, tree: Tree, audit: Audit) -> None:
    for size in ("64kB", "2048kB"):
        tree.knob(f"hugepages-{size}/enabled", "always")
    at_boot(tree)
    assert audit("--traps") == (0, audit("--traps")[1])


@pytest.mark.parametrize(
    ("variable", "advises"),
    [
        ("MALLOC_CONF=dirty_decay_ms:0,thp:always", True),
        ("MALLOC_CONF=metadata_thp:always", False),
        ("_RJEM_MALLOC_CONF=background_thread:true,thp:always,metadata_thp:auto", True),
        ("JE_MALLOC_CONF=hpa:true", True),
        ("MALLOC_CONF=hpa:false,thp:default", False),
        ("MALLOC_CONF=thp:always,thp:never", False),
        ("MALLOC_CONF=narenas=1,thp:always", False),
        ("MALLOC_CONFIG=thp:always", False),
        ("MALLOC_CONF=thp:never", False),
        ("MIMALLOC_ALLOW_THP=2", True),
        ("MIMALLOC_ALLOW_THP=1", False),
    ],
)
def test_which_allocators_advise(variable: str, advises: bool, tree: Tree, audit: Audit) -> None:
    key, _, value = variable.partition("=")
    tree.process(200, "app", environ={key: value})
    assert ("advising-allocator-stalls" in audit("--traps")[1]) == advises


@pytest.mark.parametrize(
    ("line", "advises"), [("disable-thp yes", False), ("port 1", False), ('disable-thp "no"', True)]
)
def test_redis_that_turns_huge_pages_off_does_not_advise(line: str, advises: bool, tree: Tree, audit: Audit) -> None:
    tree.put("/etc/redis/redis.conf", line)
    tree.service("kv", "ExecStart=/usr/bin/redis-server /etc/redis/redis.conf", "Environment=MALLOC_CONF=thp:always")
    said = audit("--traps")[1]
    assert ("advising-allocator-stalls" in said) == advises
    assert ("allocator-advice-without-effect" in said) != advises


def test_the_kernel_that_can_is_not_accused(tree: Tree, audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    service("MemoryTHP=madvise")(tree)
    monkeypatch.setattr(collect, "except_advised", lambda root: True)
    assert "unit-memorythp-madvise-kernel" not in audit("--traps")[1]
    assert KERNEL in audit()[1]


def test_the_pages_of_a_run_are_said_to_be_its_own(tree: Tree, audit: Audit) -> None:
    both(pool(total=512, free=500), run(500, before=12), asked(12))(tree)
    status, told = audit()
    told = " ".join(told.split())
    assert "500 of 512 pages of 2m are of the run demo, which was killed" in told
    assert "0 stranded; 500 of a run of hugewise" in told
    assert status == 0, "a note is no fault"
    tree.put("/proc/77/stat", stat_text(77, "python3", starttime=4242))
    assert "are of the run demo (process 77)" in audit("--traps")[1]


def test_the_knobs_of_a_run_are_no_settings_of_the_host(tree: Tree, audit: Audit) -> None:
    """They were called turned by hand, with lines of tmpfiles.d as a cure."""
    tree.knob("enabled", "madvise")
    tree.knob("khugepaged/max_ptes_none", "511")
    before = {one["name"]: one["value"] for one in json.loads(audit("--json")[1])["settings"]}
    both(
        knob("enabled", "always"),
        knob("khugepaged/max_ptes_none", "0"),
        run(0, *turned("enabled", "madvise", "always"), *turned("khugepaged/max_ptes_none", "511", "0")),
    )(tree)
    tree.put("/proc/77/stat", stat_text(77, "python3", starttime=4242))
    status, told = audit("--json")
    report = json.loads(told)
    assert (status, [trap["rule"] for trap in report["traps"]]) == (0, ["knobs-of-a-run"])
    assert report["traps"][0]["found"] == (
        "enabled = always (before: madvise), khugepaged/max_ptes_none = 0 (before: 511), by the run demo (process 77)"
    )
    assert {one["name"]: one["value"] for one in report["settings"]} == before


def test_a_knob_that_another_turned_during_a_run_is_the_hosts(tree: Tree, audit: Audit) -> None:
    both(knob("enabled", "always"), run(0, *turned("enabled", "madvise", "never")))(tree)
    report = json.loads(audit("--json")[1])
    assert [trap["rule"] for trap in report["traps"]] == ["thp-lost-at-boot"]


def test_a_journal_of_another_version_is_told(tree: Tree, audit: Audit) -> None:
    both(pool(total=512, free=500), run(500, before=12), asked(12))(tree)
    tree.put("/var/lib/hugewise/journal.jsonl", b'{"type":"of tomorrow"}\n')
    told = " ".join(audit()[1].split())
    assert "/var/lib/hugewise/journal.jsonl: line 1: not a record of this version" in told
    assert "pool-stranded" in told


GRUB = "/etc/default/grub"


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        ({GRUB: "GRUB_CMDLINE_LINUX='a transparent_hugepage=never b'"}, {"transparent_hugepage": "never"}),
        ({GRUB: 'GRUB_CMDLINE_LINUX="hugepages=1"\nGRUB_CMDLINE_LINUX="hugepages=2"  # now\n'}, {"hugepages": "2"}),
        ({GRUB: '# GRUB_CMDLINE_LINUX="hugepages=1"\n'}, {}),
        (
            {GRUB: 'GRUB_CMDLINE_LINUX="hugepages=1"\n', "/etc/default/grub.d/50.cfg": GRUB_MORE},
            {"hugepages": "1", "transparent_hugepage": "never"},
        ),
        ({GRUB: 'GRUB_CMDLINE_LINUX_DEFAULT="quiet \\\n hugepages=3"\n'}, {"hugepages": "3"}),
        (
            {
                "/boot/loader/entries/a.conf": "version 5.14\noptions $kernelopts $tuned_params\n",
                "/boot/grub2/grubenv": "# GRUB Environment Block\nkernelopts=root=/dev/sda hugepages=4\n####\n",
            },
            {"hugepages": "4"},
        ),
    ],
)
def test_files_of_the_boot_loader_are_read(
    files: dict[str, str], shown: dict[str, str], tree: Tree, audit: Audit
) -> None:
    for path, text in files.items():
        tree.put(path, text)
    report = json.loads(audit("--json")[1])
    found = [one for one in report["settings"] if one["section"] == "files of the boot loader"]
    assert {one["name"]: one["value"] for one in found} == shown


def test_of_an_image_files_say_what_it_is_booted_with(tree: Tree, audit: Audit) -> None:
    for path in ("/proc", "/sys"):
        shutil.rmtree(tree.at(path))
    tree.put("/boot/loader/entries/a.conf", ENTRY.format("5.14"))
    tree.put(TMPFILES, f"w {THP}/enabled - - - - always\n")
    tree.put("/etc/mysql/my.cnf", "[mysqld]\nlarge-pages\n")
    tree.service("j", "ExecStart=/usr/bin/java -XX:+UseLargePages -jar a.jar")
    tree.service("k", "ExecStart=/usr/bin/java -XX:+UseTransparentHugePages -jar a.jar")
    status, said = audit()
    whole = " ".join(said.split())
    assert "boot says never (/boot/loader/entries/a.conf:4), tmpfiles.d says always" in whole
    assert "enabled not known: it is not in this folder" in whole
    assert "pools not known: they are not in this folder" in whole
    assert "the words of /boot/loader/entries/a.conf:4 are taken for it" in whole
    assert status == 0, "what is not known is no fault"
    assert "1 note" in said


def test_of_a_capture_without_processes_pages_that_are_held_may_be_the_servers_own(tree: Tree, audit: Audit) -> None:
    """PostgreSQL runs there and holds the pool: that few are free says nothing."""
    both(postgres("on", None), LARGE, asked(1700), pool(total=1700, free=3))(tree)
    assert "postgresql-will-not-start" in audit("--traps")[1], "processes are seen, and none of them holds the pages"
    for process in tree.at("/proc").glob("[0-9]*"):
        shutil.rmtree(process)
    said = " ".join(audit("--traps")[1].split())
    assert "postgresql-will-not-start" not in said and "mysql-large-pages-short" not in said
    assert "who holds pages of pools, is not known" in said


def test_the_folder_of_shared_memory_is_named(tree: Tree, audit: Audit) -> None:
    domain(ON_FILE)(tree)
    said = " ".join(audit("--traps")[1].split())
    assert "a file below /var/lib/libvirt/qemu/ram (libvirt's default), which may be on a disk" in said
    tree.put("/etc/libvirt/qemu.conf", 'memory_backing_dir = "/dev/shm/ram"\n')
    tree.put("/proc/self/mountinfo", "1 1 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:5 / /dev/shm rw - tmpfs tmpfs rw\n")
    said = " ".join(audit("--traps")[1].split())
    assert "below /dev/shm/ram (/etc/libvirt/qemu.conf), on a file system of the kind tmpfs" in said


def test_what_postgresql_needs_is_said_with_its_margin(tree: Tree, audit: Audit) -> None:
    """The request of a server with shared_buffers = 112GB was 123,243,331,584 bytes: 58,767 pages."""
    both(sized("112GB"), asked(57344), pool(total=57344, free=57344))(tree)
    said = " ".join(audit("--traps")[1].split())
    found = re.search(r"alone are 57344, with what belongs to them at least (\d+), up to (\d+)\)", said)
    assert found is not None
    assert 57344 < int(found[1]) <= 58767 <= int(found[2]) < 58767 * 1.05
    assert "pool-stranded" not in said, "a pool that is too small is not to be lowered"


def test_of_a_capture_without_sysfs_meminfo_says_the_default_pool(tree: Tree, audit: Audit) -> None:
    shutil.rmtree(tree.at("/sys/kernel"))
    tree.put(
        "/proc/meminfo",
        "MemTotal: 8000000 kB\nHugePages_Total: 300\nHugePages_Free: 300\nHugePages_Rsvd: 0\n"
        "HugePages_Surp: 0\nHugepagesize: 2048 kB\n",
    )
    both(asked(512), boot("hugepagesz=1G hugepages=2"))(tree)
    whole = " ".join(audit()[1].split())
    assert "300 pages of 2m, asked for 512" in whole
    assert "boot-hugepages-pairs" not in whole, "whether it has 1 GiB pages is not known"


def no_processes(tree: Tree) -> None:
    """A capture that has none."""
    for process in tree.at("/proc").glob("[0-9]*"):
        shutil.rmtree(process)


MORECORE = program("app", environ={"HUGETLB_MORECORE": "yes"})
LARGE = put("/etc/mysql/my.cnf", "[mysqld]\nlarge-pages=1\ninnodb_buffer_pool_size = 2G\n")
LIMITED = {"hugetlb__2MB__max": str(1 << 30), "hugetlb__2MB__rsvd__max": str(1 << 30)}
AT_REST = both(
    lambda tree: tree.service("db", "ExecStart=/usr/bin/postgres -D /data"),
    put("/data/postgresql.conf", "huge_pages=on\nshared_buffers=2GB\n"),
)


def limited(name: str) -> Change:
    """A group that is called like the kernel's own files."""
    return both(
        put(f"/sys/fs/cgroup/{name}/hugetlb.2MB.max", "2097152"), put(f"/sys/fs/cgroup/{name}/cgroup.procs", "")
    )


NODE = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
OURS = both(pool(total=512, free=500), run(512))
GIVEN_BACK = both(pool(total=512, free=500), run(512, PoolReturn(NODE, 512, 0)))
MORE = both(pool(total=512, free=500), run(400))


RC_LOCAL = f"#!/bin/sh\necho always > {THP}/enabled\nexit 0\n"
ENTRY = "title x\nversion {}\nlinux /vmlinuz\noptions root=/dev/sda ro transparent_hugepage=never\n"
MENU = "menuentry 'x' {{\n\tlinux /boot/vmlinuz-{} root=/dev/sda ro transparent_hugepage=never\n}}\n"


def tmpfile(path: str) -> Change:
    return put("/etc/tmpfiles.d/x.conf", f"w {path} - - - - 1\n")


@pytest.mark.parametrize(
    ("rule", "change", "found"),
    [
        ("max-ptes-none-intermediate", both(COLLAPSES, MTHP, kept("khugepaged/max_ptes_none", "0")), False),
        ("max-ptes-none-intermediate", both(COLLAPSES, MTHP), False),
        ("max-ptes-none-intermediate", both(COLLAPSES, NONE_409), False),
        ("max-ptes-none-advice", mongod("7.0.1"), False),
        ("max-ptes-none-advice", mongod("8.0.1"), True),
        ("tunable-malformed", program("app", environ={"GLIBC_TUNABLES": f"{TUNABLE}=thp"}), True),
        ("tunable-malformed", program("app", environ=POOLED), False),
        ("libhugetlbfs-morecore", both(MORECORE, lambda tree: tree.glibc("2.34")), True),
        ("libhugetlbfs-morecore", both(MORECORE, lambda tree: tree.glibc("2.33")), False),
        ("unit-memorythp-too-new", both(service("MemoryTHP=never"), lambda tree: tree.systemd(252)), False),
        ("pool-stranded", both(asked(512), pool(total=512, free=128)), False),
        ("pool-stranded", both(asked(512), pool(total=512, free=129)), True),
        ("pool-stranded", both(asked(31), pool(total=31, free=31)), False),
        ("pool-stranded", both(asked(32), pool(total=32, free=32)), True),
        *((name, OURS, False) for name in ("pool-stranded", "pool-lost-at-boot", "pool-granted-short")),
        *((name, GIVEN_BACK, True) for name in ("pool-stranded", "pool-lost-at-boot")),
        *((name, MORE, True) for name in ("pool-stranded", "pool-lost-at-boot", "pool-of-a-run")),
        ("pool-of-a-run", both(pool(total=512, free=500), run(512, boot="before")), False),
        ("pool-stranded", both(pool(total=512, free=500), run(512, boot="before")), True),
        ("boot-hugepages-pairs", boot("default_hugepagesz=1G hugepages=4"), False),
        ("boot-hugepages-pairs", boot("hugepages=4"), False),
        *(
            ("boot-hugepages-pairs", boot(f"hugepagesz={size} hugepages=1"), False)
            for size in ("1GB", "1g", "1GiB", "1024M", "1073741824", "0x40000000", '"1G"', "2048k", "2MB")
        ),
        *(
            ("boot-hugepages-pairs", boot(f"hugepagesz={size} hugepages=1"), True)
            for size in ("1.5G", "G", "0", "3M", "1 G")
        ),
        ("boot-hugepages-pairs", boot("hugepagesz=2M hugepages=8 hugepagesz=2MB hugepages=9"), True),
        ("boot-hugepages-pairs", boot("hugepagesz=1G hugepages=4G"), True),
        ("boot-hugepages-pairs", boot("-- hugepagesz=x hugepages=1"), False),
        *(
            ("boot-word-unknown", boot(word), True)
            for word in (
                "transparent_hugepage=Never",
                "transparent_hugepage=off",
                "Transparent_hugepage=never",
                "transparent_huge_page=never",
                "hugepagesize=2M",
                "hugepage=8",
                "hugepagez=8",
                "thp=never",
                "thp_anon=64K",
                "transparent_hugepage_shmem=madvise",
            )
        ),
        *(
            ("boot-word-unknown", boot(word), False)
            for word in (
                'transparent_hugepage="madvise"',
                '"transparent_hugepage=madvise"',
                "hugepagesz=2M hugepages=0:1,1:1",
                "thp_anon=16K-64K,128K:inherit;256K:always",
                "thp_shmem=64K:advise",
                "kvm.nx_huge_pages=force",
                "nohugevmalloc",
                "hugetlb_cma=2G",
                "-- transparent_hugepages=never",
            )
        ),
        ("boot-file-not-in-force", tuned("[bootloader]", "cmdline_huge=+hugepagesz=2M hugepages=512"), True),
        (
            "boot-file-not-in-force",
            both(tuned("[bootloader]", "cmdline_a=+hugepagesz=2MB hugepages=8"), boot("hugepages=8")),
            False,
        ),
        ("boot-file-not-in-force", put("/boot/loader/entries/a.conf", ENTRY.format("5.14.0")), False),
        ("boot-file-not-in-force", put("/boot/loader/entries/a.conf", ENTRY.format(KERNEL)), True),
        ("boot-file-not-in-force", put("/boot/loader/entries/0-rescue.conf", ENTRY.format(KERNEL)), False),
        ("boot-file-not-in-force", put("/boot/grub/grub.cfg", MENU.format(KERNEL)), True),
        ("boot-file-not-in-force", put("/boot/grub/grub.cfg", MENU.format("6.1")), False),
        ("boot-file-not-in-force", put("/etc/kernel/cmdline", "ro hugepages=9\n"), True),
        ("boot-hugepages-pairs", boot("hugepagesz=16G hugepages=1"), True),
        ("boot-hugepages-pairs", boot("hugepagesz=x hugepages=1"), True),
        ("mysql-large-pages-short", both(LARGE, pool(total=1024, free=1024)), False),
        ("mysql-large-pages-short", both(LARGE, pool(total=1023, free=1023)), True),
        ("mysql-large-pages-short", both(LARGE, boot("default_hugepagesz=16G")), True),
        ("postgresql-will-not-start", both(postgres("on", None), pool(total=600, free=600)), False),
        # 1 GiB of buffers needs more than 512 pages: at least 528.
        ("postgresql-will-not-start", both(postgres("on", None), pool(total=512, free=512)), True),
        ("postgresql-will-not-start", both(postgres("on", None), pool(total=527, free=527)), True),
        ("postgresql-will-not-start", both(postgres("on", None), pool(total=540, free=540)), False),
        ("postgresql-will-not-start", both(postgres("off", None), pool(total=1, free=1)), False),
        *(
            ("postgresql-will-not-start", both(postgres(huge, None), pool(total=100, free=100)), True)
            for huge in ("'ON'", "yes", "'true'", "1", "On")
        ),
        *(
            ("postgresql-will-not-start", both(sized(size), pool(total=780, free=780)), found)
            for size, found in (
                ("'1.5 GB'", True),
                ("'1.5GB'", True),
                ("1536MB", True),
                ("1572864kB", True),
                ("196608", True),
                ("0x30000", True),
                ("'1.4 GB'", False),
                ("1.4GB  # less", False),
                ("1.5gb", False),
            )
        ),
        (
            "pool-smaller-than-asked",  # a server that cannot start asks for nothing
            both(postgres("try", None, settings="max_connections = 9kB\n"), asked(400), pool(total=400, free=400)),
            False,
        ),
        # As PostgreSQL 15 answered, asked with -C.
        *(("server-value-refused", sized(size), True) for size in REFUSED_SIZES),
        *(("server-value-refused", sized(size), False) for size in TAKEN_SIZES),
        *(
            ("server-value-refused", postgres(huge, None), found)
            for huge, found in (("t", True), ("always", True), ("auto", True), ("'Try'", False), ("1", False))
        ),
        *(
            ("server-value-refused", postgres("on", None, settings=f"{line}\n"), found)
            for line, found in (
                ("max_connections = 100kB", True),
                ("max_connections = 1e2", True),
                ("max_connections = 99.6", False),
                ("huge_page_size = 2M", True),
                ("huge_page_size = 2MB", False),
                ("wal_buffers = -1", False),
                ("max_wal_senders = 'ten'", True),
            )
        ),
        # As MariaDB 10.11 and OpenJDK 17 answered.
        *(
            ("server-value-refused", put("/etc/mysql/my.cnf", f"[mysqld]\ninnodb_buffer_pool_size = {size}\n"), found)
            for size, found in (("1.5G", True), ("0x8000000", True), ("128 M", True), ("1GB", False), ("1g", False))
        ),
        *(
            ("server-value-refused", java("17", f"-Xmx{size}"), found)
            for size, found in (("24gb", True), ("1.5g", True), ("64B", True), ("64m", False), ("0x4000000", False))
        ),
        ("pool-stranded", both(postgres("on", None), pool(total=400, free=400)), False),
        ("pool-stranded", both(postgres("try", None), pool(total=400, free=400)), False),
        ("pool-stranded", both(postgres("off", None), pool(total=400, free=400)), True),
        ("pool-stranded", both(postgres("on", None), pool(total=600, free=600)), False),
        ("pool-stranded", both(postgres("on", None), pool(total=1000, free=1000)), True),
        ("pool-stranded", both(LARGE, pool(total=1024, free=1024)), False),
        ("pool-stranded", both(domain(HUGE_2M), pool(total=512, free=512)), False),
        ("pool-smaller-than-asked", both(postgres("on", None), LARGE, pool(total=1100, free=1100)), True),
        ("pool-smaller-than-asked", both(postgres("on", None), LARGE, pool(total=1700, free=1700)), False),
        ("pool-smaller-than-asked", both(postgres("off", None), LARGE, pool(total=1100, free=1100)), False),
        # Another program holds the pages that the buffer pool would need.
        ("mysql-large-pages-short", both(LARGE, pool(total=2000, free=500)), True),
        *(
            ("mysql-large-pages-short", put("/etc/mysql/my.cnf", f"[mysqld]\n{line}\n"), found)
            for line, found in (
                ("large_pages = '1'  # on", True),
                ("loose-large-pages=ON", True),
                ("enable-large-pages", True),
                ("large-pages\nskip-large-pages", False),
                ("large-pages=OFF", False),
                ("large_pages = ON", True),
            )
        ),
        (
            "postgresql-over-group-limit",
            both(postgres("try", "/dev/zero (deleted)", unit="db.service"), group(**LIMITED)),
            False,
        ),
        ("postgresql-over-group-limit", both(AT_REST, group(**LIMITED)), True),
        *(("cgroup-hugetlb-sigbus", limited(name), True) for name in ("io", "memory-hog.slice", "misc", "cgroup.x")),
        ("cgroup-thp-invented", tmpfile("/sys/fs/cgroup/huge.slice/memory.high"), False),
        ("cgroup-thp-invented", tmpfile("/sys/fs/cgroup/a.slice/hugetlb.2MB.max"), False),
        ("cgroup-thp-invented", tmpfile("/sys/fs/cgroup/hugetlb.slice/memory.huge_pages"), True),
        ("jvm-large-pages-short", both(java("21", "-XX:+UseLargePages", "-Xmx1g"), pool(total=512, free=511)), True),
        ("jvm-large-pages-short", both(java("21", "-XX:+UseLargePages", "-Xmx1g"), pool(total=512, free=512)), False),
        ("jvm-large-pages-short", both(java("21", "-XX:+UseLargePages"), pool(total=1, free=1)), False),
        ("services-write-differently", both(turning("never", "old"), put("/etc/rc.local", RC_LOCAL)), True),
        ("services-write-differently", both(turning("never", "old"), tmpfile(f"{THP}/enabled")), True),
        ("services-write-differently", both(turning("never", "old"), tmpfile(f"{THP}/defrag")), False),
        (
            "services-write-differently",
            both(service("ExecStartPre=sysctl -w vm.nr_hugepages=9", name="pool"), asked(8)),
            True,
        ),
        ("pool-lost-at-boot", both(pool(1048576, 4, free=4), boot("hugepages=4 default_hugepagesz=1GB")), False),
        ("pool-lost-at-boot", both(pool(2048, 4, free=4), boot("hugepages=4 default_hugepagesz=1GB")), True),
        ("vm-pool-too-small", both(domain(HUGE_2M), pool(total=512, free=0)), True),
        ("vm-pool-too-small", both(domain(HUGE_2M), pool(total=512, free=0), no_processes), False),
        ("vm-ballooned-at-boot", domain(SAME, PLUGGED.format("virtio-mem")), False),
        ("vm-ballooned-at-boot", domain(SAME, PLUGGED.format("nvdimm")), False),
        ("vm-ballooned-at-boot", domain(CELL + SAME, PLUGGED.format("dimm")), True),
        ("vm-ballooned-at-boot", domain(CELL + SAME, PLUGGED.format("virtio-mem")), False),
        ("vm-shared-memory-not-huge", domain(ON_FILE), False),
        ("vm-shared-memory-on-file", domain(CELL.replace("id=", "memAccess='shared' id=")), True),
        ("vm-shared-memory-on-file", domain(ON_FILE.replace("<access", "<hugepages/><access")), False),
        ("vm-shared-memory-on-file", domain(ON_FILE.replace("<access", "<source type='file'/><access")), True),
        ("vm-shared-memory-on-file", domain(ON_FILE.replace("shared", "private")), False),
        *(
            ("jemalloc-option-invalid", program("app", environ={name: value}), found)
            for name, value, found in (
                ("_RJEM_MALLOC_CONF", "metadata_thp:true", True),
                ("MALLOC_CONF", "hpa:1", True),
                ("MALLOC_CONF", "narenas:2, thp:always", True),
                ("MALLOC_CONF", "thp=always", True),
                ("MALLOC_CONF", "thp:Always", True),
                ("MALLOC_CONF", "", False),
                ("MALLOC_CONF", "narenas=2", False),
                ("MALLOC_CONF", "thp:always,metadata_thp:auto,hpa:true,abort_conf:true", False),
            )
        ),
        ("jvm-thread-stacks", both(ALWAYS, java("22")), False),
        ("jvm-thread-stacks", both(ALWAYS, java("21")), True),
        ("jvm-thread-stacks", both(ALWAYS, java("21.0.1")), False),
        ("jvm-thread-stacks", both(ALWAYS, java("1.8.0_412")), True),
        ("jvm-thread-stacks", both(ALWAYS, java("11.0.31")), True),
    ],
)
def test_at_the_edge_of_a_rule(rule: str, change: Change, found: bool, tree: Tree, audit: Audit) -> None:
    change(tree)
    assert (f" {rule}: " in audit("--traps")[1]) == found


@pytest.mark.parametrize("rule", ["preload-missing", "tuned-profile-missing"])
def test_what_cannot_be_looked_at_is_not_said_to_be_missing(
    rule: str, tree: Tree, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ordinary user may not enter each folder: that a file is not seen there says nothing."""
    tree.put("/hidden/lib.so", b"")
    service("Environment=LD_PRELOAD=/hidden/lib.so")(tree)
    tree.put("/etc/tuned/active_profile", "mine\n")
    tree.put("/etc/tuned/mine/tuned.conf", "[main]\n")
    found = Root._entered

    def entered(self: Root, descriptor: int, path: str) -> None:
        if path in ("/hidden/lib.so", "/etc/tuned/mine/tuned.conf"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        found(self, descriptor, path)

    monkeypatch.setattr(Root, "_entered", entered)
    said = audit("--traps")[1]
    assert f" {rule}: " not in said and "Permission denied" in said
    monkeypatch.undo()
    tree.at("/hidden/lib.so").unlink()
    tree.at("/etc/tuned/mine/tuned.conf").unlink()
    assert f" {rule}: " in audit("--traps")[1]
