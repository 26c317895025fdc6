"""`hugewise audit` as it is called: services that are named, JSON, exit statuses, what is shown."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from hugewise.audit.audit import AuditReport
from hugewise.audit.inventory import CLAIMS
from hugewise.audit.rules import discover
from hugewise.model.pages import PageSizes
from hugewise.policies import discover as policies
from tests.audit.conftest import Audit
from tests.build.trees import Tree
from tools import reference


def test_every_rule_and_claim_is_in_the_reference() -> None:
    written = reference.text("audit")
    assert all(f"#### `{rule}` (" in written for rule in discover())
    assert all(f"| `{claim.id}` |" in written for claim in CLAIMS)


def test_rules_are_whole_and_their_ids_stable() -> None:
    rules = discover()
    assert len({rule.title for rule in rules.values()}) == len(rules) == 76
    for rule in rules.values():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.id)
        assert rule.why.endswith(".") and not rule.title.endswith(".") and not rule.cure.endswith(".")
        assert rule.sources and all(
            re.match(r"https?://|Linux|systemd|libvirt: |QEMU: |[a-z.-]+\(\d\)", source) for source in rule.sources
        )


def test_claims_name_policies_that_there_are() -> None:
    sizes = PageSizes(
        base=4096, pmd=2 << 20, mthp=(1 << 16,), hugetlb=(2 << 20, 1 << 30, 32 << 20, 512 << 20, 16 << 30)
    )
    named = {name for claim in CLAIMS for name in (*claim.better, *claim.worse)}
    assert named <= policies(sizes).keys()
    assert all(claim.sources and not {*claim.better} & {*claim.worse} for claim in CLAIMS)


def test_json_is_the_documented_structure(tree: Tree, audit: Audit) -> None:
    tree.knob("defrag", "always")
    status, said = audit("--json")
    report = msgspec.json.decode(said, type=AuditReport, strict=True)
    assert (status, report.format, report.systemd, report.glibc) == (3, 2, 260, "2.36")
    assert [trap.rule for trap in report.traps] == ["thp-lost-at-boot", "defrag-always"]


@pytest.mark.parametrize(
    ("turned", "more", "status"),
    [
        (("shrink_underused", "1"), (), 0),  # a note
        (("defrag", "always"), (), 3),
        (("defrag", "always"), ("--exit-zero",), 0),
        (("defrag", "always"), ("--json", "--traps"), 3),
    ],
)
def test_the_exit_status_is_by_the_gravest(
    tree: Tree, audit: Audit, turned: tuple[str, str], more: tuple[str, ...], status: int
) -> None:
    tree.knob(*turned)
    assert audit(*more)[0] == status


def test_everything_in_force_is_shown_with_its_place(tree: Tree, audit: Audit) -> None:
    tree.put("/etc/sysctl.d/60-pages.conf", "vm.nr_hugepages=4\n# vm.nr_hugepages=9\n")
    tree.put("/usr/lib/sysctl.d/60-pages.conf", "vm.nr_hugepages=7\n")
    tree.put("/etc/tmpfiles.d/t.conf", "w /sys/kernel/mm/transparent_hugepage/hugepages-*kB/enabled - - - - never\n")
    tree.put("/etc/tuned/active_profile", "mine\n")
    tree.put("/usr/lib/tuned/profiles/base/tuned.conf", "[vm]\ntransparent_hugepages=always\n")
    tree.put(
        "/etc/tuned/profiles/mine/tuned.conf",
        "[main]\ninclude=base\n[sysfs]\n/sys/kernel/mm/transparent_hugepage/defrag=defer\n",
    )
    tree.put("/etc/rc.local", "echo 1 > /sys/kernel/mm/transparent_hugepage/khugepaged/defrag\n")
    tree.pool(2048, 4, free=3, reserved=1, surplus=1, overcommit=2)
    tree.boot("transparent_hugepage=madvise hugepagesz=2M hugepages=4 secret=x")
    tree.put("/sys/fs/cgroup/a.slice/hugetlb.2MB.max", "4194304\n")
    tree.put("/sys/fs/cgroup/a.slice/hugetlb.2MB.rsvd.max", "max\n")
    report = json.loads(audit("--json")[1])
    shown = {(one["section"], one["name"]): (one["value"], one["where"]) for one in report["settings"]}
    thp = "/sys/kernel/mm/transparent_hugepage"
    assert shown["transparent huge pages", "anonymous, 64k"] == ("never", "")
    assert shown["khugepaged", "max_ptes_none"] == ("511", "")
    assert shown["hugetlb pools", "2m"] == (
        "4 pages: 3 free, 1 reserved, 1 surplus, 2 stranded (4 MiB); may grow by 2",
        "boot: 4, sysctl.d: 4",
    )
    assert shown["sysctl.d", "vm.nr_hugepages"] == ("4", "/etc/sysctl.d/60-pages.conf:1")
    assert shown["tmpfiles.d", f"{thp}/hugepages-64kB/enabled"] == ("never", "/etc/tmpfiles.d/t.conf:1")
    assert shown["tuned (mine)", f"{thp}/enabled"] == ("always", "/usr/lib/tuned/profiles/base/tuned.conf:2")
    assert shown["tuned (mine)", f"{thp}/defrag"] == ("defer", "/etc/tuned/profiles/mine/tuned.conf:4")
    assert shown["scripts at boot", f"{thp}/khugepaged/defrag"] == ("1", "/etc/rc.local")
    assert shown["kernel command line", "transparent_hugepage"] == ("madvise", "")
    assert ("kernel command line", "secret") not in shown
    assert shown["cgroup limits on hugetlb pages", "/a.slice, 2m"] == (
        "limit 4 MiB, of reservations none",
        "cgroup version 2",
    )


def test_limits_of_cgroups_of_version_1(tree: Tree, audit: Audit) -> None:
    tree.put("/proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup/hugetlb rw - cgroup cgroup rw,hugetlb\n")
    folder = "/sys/fs/cgroup/hugetlb/docker/x"
    tree.put(f"{folder}/hugetlb.1GB.limit_in_bytes", "1073741824\n")
    tree.put(f"{folder}/hugetlb.1GB.rsvd.limit_in_bytes", "9223372036854771712\n")
    tree.put(f"{folder}/hugetlb.2MB.limit_in_bytes", "9223372036854771712\n")
    assert "/docker/x: pages of 1g: limit 1 GiB, of reservations: no limit" in " ".join(audit()[1].split())


def test_a_service_alone_with_what_is_the_hosts(tree: Tree, audit: Audit) -> None:
    tree.service("db", "ExecStart=/usr/bin/app", "MemoryTHP=always")
    tree.service("other", "ExecStart=/usr/bin/app", "MemoryTHP=never")
    tree.link("/etc/systemd/system/mydb.service", "db.service")
    tree.knob("defrag", "always")
    for name in ("db", "db.service", "mydb"):
        said = audit("--unit", name)[1]
        assert "db.service: MemoryTHP=always" in said and "other.service" not in said and "defrag = always" in said
    said = audit("--unit", "db", "--unit", "other")[1]
    assert "db.service: MemoryTHP" in said and "other.service: MemoryTHP" in said
    assert "nothing of pages" in audit("--unit", "app")[1]
    tree.link("/etc/systemd/system/masked.service", "/dev/null")
    assert "masked" in audit("--unit", "masked")[1]


def test_an_instance_of_a_template(tree: Tree, audit: Audit) -> None:
    tree.put("/etc/systemd/system/pg@.service", "[Service]\nExecStart=/usr/bin/app\nMemoryTHP=always\n")
    tree.process(200, "app", unit="pg@15-main.service")
    assert "pg@15-main.service: MemoryTHP=always" in audit("--unit", "pg@15-main")[1]
    assert audit("--unit", "pg@other")[0] == 3  # of its template: it does not run


@pytest.mark.parametrize(
    ("unit", "cure"),
    [
        ("ap", "one of these? app.service"),
        ("app.socket", "only services are audited"),
        ("\x1b[2J", "cure: "),
        ("", ""),
    ],
)
def test_a_service_that_is_not_there(tree: Tree, audit: Audit, unit: str, cure: str) -> None:
    status, said = audit("--unit", unit)
    assert status == 2
    assert "there is no such service here" in said and cure in said and "\x1b" not in said


def test_a_folder_that_is_no_host(tree: Tree, audit: Audit, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder, said in ((tmp_path / "empty", "it holds no host"), (tmp_path / "none", "no such folder")):
        status, told = audit("--root", str(folder))
        assert status == 2 and said in told and "cure: " in told
    assert audit("--root", str(tree.path / "etc/machine-id"))[0] == 2


def test_this_host(audit: Audit) -> None:
    """Whatever is set here, it is told, as text and as JSON."""
    status, said = audit("--root", "/", "--json", "--exit-zero")
    assert status == 0
    report = msgspec.json.decode(said.partition("\nhugewise: ")[0], type=AuditReport)
    assert report.root == "/" and any(setting.name == "enabled" for setting in report.settings)
    assert "\n" in audit("--root", "/", "--exit-zero")[1]


def shown(audit: Audit) -> dict[tuple[str, str], str]:
    """The values in force by section and name."""
    return {(load["section"], load["name"]): load["value"] for load in json.loads(audit("--json")[1])["settings"]}


def test_of_files_only_what_is_about_pages_is_shown(tree: Tree, audit: Audit) -> None:
    tree.put("/etc/sysctl.d/a.conf", "vm.swappiness = 1\nvm.nr_hugepages\n-vm.nr_overcommit_hugepages = 3\n")
    tree.put(
        "/etc/tmpfiles.d/a.conf", "w /proc/sys/vm/swappiness - - - - 1\nw /sys/kernel/mm/ksm/run - - - - 1\nd /x\n"
    )
    tree.put("/etc/tuned/active_profile", "mine\n")
    tree.put("/etc/tuned/mine/tuned.conf", "[cpu]\ncmdline=transparent_hugepage=never\n")
    found = shown(audit)
    assert [key for key in found if key[0] in ("sysctl.d", "tmpfiles.d")] == [
        ("sysctl.d", "vm.nr_overcommit_hugepages")
    ]
    assert found["tuned", "profile"] == "mine: nothing about pages"
    tree.put("/etc/tuned/mine/tuned.conf", "[bootloader]\ncmdline_x=+transparent_hugepage=never a=b\n[vm]\nx=${y}\n")
    assert shown(audit)["tuned (mine)", "boot:transparent_hugepage"] == "never"


@pytest.mark.parametrize(
    ("mode", "environ", "words"),
    [
        ("madvise", {}, "THP where it is advised"),
        ("madvise", {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, "THP where it is advised, and malloc advises; "),
        ("always", {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, "THP wherever it fits (always); GLIBC_TUNABLES"),
        ("never", {}, "base pages"),
    ],
)
def test_the_pages_of_a_program_in_words(
    tree: Tree, audit: Audit, mode: str, environ: dict[str, str], words: str
) -> None:
    tree.knob("enabled", mode)
    tree.process(100, "app", unit="app.service", environ=environ)
    assert shown(audit)["programs that run", "app"].startswith(words)
    tree.process(100, "app", unit="app.service", environ=environ, secure=True)
    assert "malloc advises" not in shown(audit)["programs that run", "app"]


def test_the_pages_of_a_program_on_mthp_and_hugetlb(tree: Tree, audit: Audit) -> None:
    tree.knob("hugepages-64kB/enabled", "always")
    assert shown(audit)["programs that run", "app"] == "mTHP: mthp-64k"
    tree.pool(2048, 8)
    tree.process(200, "postgres", maps=("/anon_hugepage (deleted)=4194304",))
    assert shown(audit)["programs that run", "postgres"] == "hugetlb pages for its shared memory"


def test_what_makers_say_of_a_program_that_runs(tree: Tree, audit: Audit) -> None:
    tree.process(200, "redis-server")
    assert shown(audit)["what their makers say", "redis-server"].startswith("transparent huge pages cost redis latency")
