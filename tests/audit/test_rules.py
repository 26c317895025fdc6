"""Every rule on a host that has its fault, and silent on one just beside it: from the files to the printed text."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from hugewise.audit import collect
from hugewise.audit.root import Root
from hugewise.audit.rules import discover
from hugewise.host.ledger import JournalClosed, JournalRecord, PoolReturn
from tests.audit.conftest import Audit
from tests.build.trees import KERNEL, Tree

Change = Callable[[Tree], None]

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


def boot(words: str) -> Change:
    return lambda tree: tree.boot(words)


def pool(kib: int = 2048, total: int = 0, **given: int) -> Change:
    return lambda tree: tree.pool(kib, total, **given)


def run(pages: int, *records: JournalRecord, **given: int | str) -> Change:
    return lambda tree: tree.run(pages, *records, **given)  # type: ignore[arg-type]


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


SAME = "<currentMemory unit='GiB'>1</currentMemory>"
HUGE_2M = "<memoryBacking><hugepages><page size='2048'/></hugepages></memoryBacking>"
SHARED = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>"
SHARED_HUGE = (
    "<memoryBacking><hugepages><page size='2048'/></hugepages><source type='memfd'/><access mode='shared'/>"
    "</memoryBacking>"
)
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
    "pymalloc-hugepages-fork": (
        program("python3.15", environ={"PYTHON_PYMALLOC_HUGEPAGES": "1"}),
        program("python3.15", environ={"PYTHON_PYMALLOC_HUGEPAGES": "0"}),
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
    "tuned-profile-missing": (tuned(profile="gone"), tuned()),
    "thp-lost-at-boot": (
        knob("enabled", "always"),
        both(knob("enabled", "always"), service(f'ExecStartPre=sh -c "echo always > {THP}/enabled"', name="turn")),
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


def test_every_rule_has_its_two_hosts() -> None:
    assert CASES.keys() == discover().keys()
    assert len(CASES) >= 20


def test_a_host_without_faults_has_none(audit: Audit) -> None:
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
        ("MALLOC_CONF=thp:never", False),
        ("MIMALLOC_ALLOW_THP=2", True),
        ("MIMALLOC_ALLOW_THP=1", False),
    ],
)
def test_which_allocators_advise(variable: str, advises: bool, tree: Tree, audit: Audit) -> None:
    key, _, value = variable.partition("=")
    tree.process(200, "app", environ={key: value})
    assert ("advising-allocator-stalls" in audit("--traps")[1]) == advises


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
    tree.put("/proc/77/stat", f"77 (python3) S {'0 ' * 18}4242 0 0\n")
    assert "are of the run demo (process 77)" in audit("--traps")[1]


def test_a_journal_of_another_version_is_told(tree: Tree, audit: Audit) -> None:
    both(pool(total=512, free=500), run(500, before=12), asked(12))(tree)
    tree.put("/var/lib/hugewise/journal.jsonl", b'{"type":"of tomorrow"}\n')
    told = " ".join(audit()[1].split())
    assert "/var/lib/hugewise/journal.jsonl: line 1: not a record of this version" in told
    assert "pool-stranded" in told


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
        ("boot-hugepages-pairs", boot("hugepagesz=16G hugepages=1"), True),
        ("boot-hugepages-pairs", boot("hugepagesz=x hugepages=1"), True),
        ("mysql-large-pages-short", both(LARGE, pool(total=1024, free=1024)), False),
        ("mysql-large-pages-short", both(LARGE, pool(total=1023, free=1023)), True),
        ("mysql-large-pages-short", both(LARGE, boot("default_hugepagesz=16G")), True),
        ("postgresql-will-not-start", both(postgres("on", None), pool(total=512, free=512)), False),
        ("postgresql-will-not-start", both(postgres("on", None), pool(total=511, free=511)), True),
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
