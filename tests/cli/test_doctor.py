"""`hugewise doctor`: of this host, of other machines, and of guests."""

import io
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from hugewise.audit.audit import TrapFound
from hugewise.audit.rules import SEVERITIES
from hugewise.cli import doctor, guest_study
from hugewise.cli.doctor import Facts, Report, examine, render
from hugewise.errors import HugewiseError, UserError
from hugewise.guests import counted, debian, hypervisor, image, kernels, nfs, resources
from hugewise.guests.domain_study import StudyRequest, remark
from hugewise.guests.hypervisor import NoKvm
from hugewise.guests.kernels import build
from hugewise.host import network
from hugewise.machine import noise
from hugewise.model.guest import Backing
from hugewise.model.host import Check
from hugewise.model.pages import HUGETLB, THP
from hugewise.model.results import LeftOut
from hugewise.model.workload import Missing
from hugewise.plan.plan import Plan
from hugewise.session import feasibility
from hugewise.study.study import Study
from hugewise.study.tables import PolicyUse
from tests.attempt.test_disturbances import FILES as NOISE_FILES
from tests.build import studies
from tests.build.guests import kernel
from tests.build.hosts import FakeHost, Files
from tests.build.studies import study_of
from tests.guests.test_domain_study import DB1, POOLS

MEMORY = "MemTotal: 25165824 kB\nMemAvailable: 25165824 kB\nHugepagesize: 2048 kB\n"
FILES = {
    **NOISE_FILES,
    f"{THP}/hpage_pmd_size": "2097152",
    f"{THP}/enabled": "always [madvise] never",
    f"{THP}/defrag": "always defer defer+madvise [madvise] never",
    f"{THP}/hugepages-64kB/enabled": "always inherit madvise [never]",
    f"{HUGETLB}/hugepages-2048kB/nr_hugepages": "8",
    f"{HUGETLB}/hugepages-2048kB/free_hugepages": "6",
}
SNAPSHOT = noise.snapshot(Files(FILES))
MISSING = "not offered by this processor or its hypervisor"


FACTS = Facts(
    counters={"task-clock": None, "cycles": MISSING, "dTLB-loads": MISSING},
    page_flags=True,
    hierarchies=("2",),
    cgroup_problem=None,
    journal=None,
    before=SNAPSHOT,
    after=msgspec.structs.replace(SNAPSHOT, monotonic_s=SNAPSHOT.monotonic_s + 1),
)


def checked(host: Files | None = None, **changed: Any) -> dict[str, Check]:
    report = examine(host or Files(FILES, root=True), msgspec.structs.replace(FACTS, **changed))
    return {f"{check.section}/{check.name}": check for check in report.checks}


def text(report: Report, width: int = 80, *, crop: bool = True) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(render(report), crop=crop)
    return out.getvalue()


def test_pages_are_what_the_files_say_and_a_kernel_without_them_is_told_how_to_get_some() -> None:
    found = checked()
    assert found["pages/THP"].finding == "2m (enabled=madvise, defrag=madvise, shmem_enabled=unknown)"
    assert found["pages/mTHP"].finding == "64k"
    assert found["pages/hugetlb 2m"].finding == "pool of 8 pages, 6 free"
    bare = checked(Files({"/proc/stat": FILES["/proc/stat"]}, root=True))
    for name in ("THP", "mTHP", "hugetlb"):
        assert bare[f"pages/{name}"].state == "missing"
        assert bare[f"pages/{name}"].cure


def test_counters_are_grouped_by_the_reason_why_they_are_null() -> None:
    found = checked()
    assert found["counters/available"].finding == "task-clock"
    assert found["counters/null"].state == "limited"
    assert found["counters/null"].finding == f"cycles, dTLB-loads: {MISSING}"
    assert "pmu=on" in (found["counters/null"].cure or "")
    closed = checked(counters={"cycles": "not permitted: kernel.perf_event_paranoid is 3 and this user lacks it"})
    assert closed["counters/null"].cure == "sudo sysctl kernel.perf_event_paranoid=1"
    no_probe = HugewiseError("hugewise-probe not found", hint="build it: make setup")
    absent = checked(counters=no_probe)["counters/all"]
    assert (absent.state, absent.cure) == ("missing", "build it: make setup")


def test_an_ordinary_user_is_told_what_root_would_add() -> None:
    found = checked(Files(FILES), page_flags=False, cgroup_problem=HugewiseError("cannot", hint="systemd-run ..."))
    assert found["privileges/root"].state == "limited"
    assert "unproven" in found["privileges/page proof"].finding
    assert found["privileges/page proof"].cure == "sudo hugewise ..."
    assert found["privileges/cgroup"].cure == "systemd-run ..."
    assert checked(page_flags=False)["privileges/page proof"].cure == "give the container CAP_SYS_ADMIN"
    assert found["policies/mthp-64k"].state == "missing"
    with_knobs = checked(Files(FILES, knobs=True))
    assert with_knobs["policies/mthp-64k"].cure == "sudo hugewise run ..."
    assert with_knobs["policies/base"].finding == "prctl(PR_SET_THP_DISABLE, all) in the workload"


def test_the_host_now() -> None:
    busy = msgspec.structs.replace(FACTS.after, load=7.0, steal_s=SNAPSHOT.steal_s + 0.4)
    found = checked(after=busy)
    assert found["host/load"].state == "limited"
    assert found["host/steal"].finding == "20.0% of CPU time given to other guests now"
    assert found["host/huge pages in use"].finding == "1 MiB anon in 64k, 4 MiB hugetlb in 2m"
    assert checked()["host/steal"].state == "ok"


def test_the_report_fits_80_columns_and_is_json() -> None:
    report = examine(Files(FILES, root=True), FACTS)
    lines = text(report).splitlines()
    assert max(map(len, lines)) <= 80
    decoded = msgspec.json.decode(msgspec.json.encode(report), type=Report)
    assert decoded == report


def test_a_study_says_what_is_left_out_and_why() -> None:
    plan = Plan((), (LeftOut("*", "hugetlb-1g", "needs root"), LeftOut("chase", "*", "nothing to compare")))
    report = examine(Files(FILES, root=True), FACTS, plan)
    assert report.cells == ()
    shown = text(report)
    assert "left out  hugetlb-1g: needs root" in shown
    assert "left out  chase: nothing to compare" in shown


def test_what_a_study_needs_is_installed_by_one_line_which_is_never_broken() -> None:
    left_out = (
        LeftOut("redis", "*", "redis-server is missing", ("redis-server",)),
        LeftOut("pgbench scale=1", "*", "no PostgreSQL", ("postgresql", "postgresql-contrib")),
        LeftOut("pgbench scale=9", "*", "no PostgreSQL", ("postgresql", "postgresql-contrib")),
    )
    line = "apt install postgresql postgresql-contrib redis-server"
    debian = msgspec.structs.replace(FACTS, apt=True)
    report = examine(Files(FILES), debian, Plan((), left_out))
    assert (report.packages, report.install) == (("postgresql", "postgresql-contrib", "redis-server"), f"sudo {line}")
    assert f"to install what it lacks\n  sudo {line}\n" in text(report)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
    root = Files(FILES, root=True)
    assert examine(root, debian, Plan((), left_out)).install == line
    assert examine(root, FACTS, Plan((), left_out)).install == (
        "with this system's package manager, what Debian calls postgresql, postgresql-contrib, redis-server"
    )
    assert examine(root, debian, Plan((), (LeftOut("*", "hugetlb-1g", "needs root"),))).install is None
    packages = tuple(f"package-{n:02d}" for n in range(30))
    report = examine(root, debian, Plan((), (LeftOut("a", "*", "b", packages),)))
    assert f"  apt install {' '.join(packages)}" in text(report, crop=False).splitlines()


def test_this_machine_can_be_examined(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(None, as_json=True) == 0
    report = msgspec.json.decode(capsys.readouterr().out, type=Report)
    names = {check.section for check in report.checks}
    assert {"pages", "counters", "privileges", "host"} <= names
    assert all(check.finding for check in report.checks)


def test_a_finding_has_one_severity_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    traps = [
        TrapFound(rule=f"vm-{severity}", severity=severity, title="t", found="f", why="w.", cure="c", sources=("s",))
        for severity in SEVERITIES
    ]
    monkeypatch.setattr(guest_study, "vm_traps", lambda *_, **__: traps)
    lines = [f"{severity}: f [vm-{severity}]: t; cure: c" for severity in SEVERITIES]
    written, told = guest_study.write(
        DB1.read_bytes(),
        "db1.xml",
        StudyRequest(workload="fault"),
        studies.KnobFiles({**POOLS, "/proc/meminfo": MEMORY}),
    )
    assert [line for line in told if "[vm-" in line] == lines
    assert all(line.startswith(("warning: ", "note: ", "error: ")) for line in told)
    assert all(remark(line) in written for line in lines)


def test_the_settings_of_a_run_under_way_are_not_shown_as_the_hosts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = Files({**FILES, f"{THP}/defrag": "[always] defer defer+madvise madvise never"}, root=True)
    monkeypatch.setattr(doctor, "at_rest", lambda _: rest)
    monkeypatch.setattr(doctor, "gather", lambda _: FACTS)
    assert doctor.main(None, as_json=True) == 0
    assert "enabled=madvise, defrag=always" in capsys.readouterr().out


KERNELS = [{"name": "4k", "package": "linux-image-arm64"}, {"name": "64k", "build": "arm64-64k"}]
QEMU = Missing("no qemu-system-aarch64 for guests of arm64", "qemu-system-arm")
SURVEY = counted.Survey(release="6.12.1", page_size=4096, files={})


def study(**guest: Any) -> Study:
    arms = ["base", {"name": "64k", "from": "base", "kernel": "64k"}]
    used = [{"name": "fault"}]
    return study_of(policies=arms, guest={"arch": "arm64", **guest}, kernel=KERNELS, workload=used)


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A host that has all that guests need, and both kernels; nothing is booted."""
    monkeypatch.setattr(feasibility, "LocalHost", FakeHost)
    monkeypatch.setattr(hypervisor, "missing", lambda *_: None)
    monkeypatch.setattr(hypervisor, "find_qemu", lambda *_: "/usr/bin/qemu-system-aarch64")
    monkeypatch.setattr(hypervisor, "qemu_version", lambda _: "7.2.22")
    monkeypatch.setattr(image, "guest_probe", lambda _: Path("/share/probe-arm64"))
    monkeypatch.setattr(
        hypervisor, "refusal", lambda _: NoKvm("guests of arm64 are emulated on this x86_64 host", "measure on arm64")
    )
    monkeypatch.setattr(kernels, "available", lambda *_: kernel("arm64"))
    monkeypatch.setattr(counted, "find_survey", lambda *_: SURVEY)
    monkeypatch.setattr(image, "missing", lambda: ())
    monkeypatch.setattr(debian, "missing", lambda: ())
    monkeypatch.setattr(build, "missing_tools", lambda _: ())
    return monkeypatch


def of_guests(
    read: Study, *packages: str, beside: tuple[LeftOut, ...] = (), privileged: bool = True
) -> dict[str, Check]:
    found = list(resources.checks(read, packages, beside, privileged=privileged))
    assert {check.section for check in found} == {"its guests"}
    return {check.name: check for check in found}


def test_what_guests_need_is_a_section_of_a_studys_doctor(able: pytest.MonkeyPatch) -> None:
    found = of_guests(study(packages=["gcc"], sources=["lua5.4"]), "redis-server", "gcc")
    assert list(found) == ["QEMU", "agent", "accelerator", "kernel 4k", "kernel 64k", "policies", "image"]
    assert (found["QEMU"].finding, found["agent"].finding) == ("7.2.22", "/share/probe-arm64")
    assert found["kernel 4k"].finding == "6.12.1, base pages of 4k"
    made = "made once, of Debian trixie: gcc redis-server; sources of lua5.4"
    assert found["image"].finding == made
    # Emulation is a limit, and its cure is another host.
    assert found["accelerator"].state == "limited"
    assert "never a time (guests of arm64 are emulated" in found["accelerator"].finding
    report = examine(Files(FILES, root=True), FACTS, guests=found.values())
    lines = text(report).splitlines()
    assert "its guests" in lines
    assert max(map(len, lines)) <= 80
    # The host's own would be taken for the guests'.
    assert not {"policies", "TLB", "counters"} & {check.section for check in report.checks}
    assert "each kernel is asked for its own" in found["policies"].finding


def test_a_host_without_qemu_or_agent_is_told_how_to_get_them(able: pytest.MonkeyPatch) -> None:
    able.setattr(hypervisor, "missing", lambda *_: QEMU)
    able.setattr(image, "guest_probe", lambda _: Missing("no probe for guests of arm64: make guest-probes"))
    found = of_guests(study())
    assert (found["QEMU"].state, found["QEMU"].cure) == ("missing", "apt install qemu-system-arm")
    assert found["agent"].state == "missing"
    assert "make guest-probes" in found["agent"].finding


def without_library(patch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "qemu" or name.startswith("qemu.")]:
        patch.delitem(sys.modules, name)
    patch.setitem(sys.modules, "qemu", None)


def test_without_the_library_for_qemu_all_else_is_told_and_a_run_refused(
    able: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without_library(able)
    path = tmp_path / "s.toml"
    path.write_text(GUESTS)
    able.setenv("COLUMNS", "100")
    assert doctor.main(path, as_json=False) == 1
    said = capsys.readouterr().out
    assert "guests need the Python package qemu.qmp" in said
    assert "cure: pip install 'hugewise[vm]'" in said
    assert all(line in said for line in ("base page", "kernel 4k", "accelerator"))
    for begin in (feasibility.make_plan, lambda of: feasibility.provide(of, print)):
        with pytest.raises(UserError, match="qemu.qmp") as raised:
            begin(study())
        assert raised.value.hint == "pip install 'hugewise[vm]'"


def test_what_guests_lack_is_found_without_the_library() -> None:
    """No other module of the guests needs it when it is loaded."""
    load = "import sys; sys.modules['qemu'] = None; import hugewise.guests.resources, hugewise.guests.boot"
    subprocess.run([sys.executable, "-c", load], check=True)


def test_a_kernel_that_is_not_there_yet_says_what_the_first_run_does(able: pytest.MonkeyPatch) -> None:
    able.setattr(kernels, "available", lambda *_: None)
    able.setattr(build, "missing_tools", lambda _: (Missing("no aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),))
    found = list(resources.checks(study(), (), privileged=True))
    by_name = {name: [check for check in found if check.name == name] for name in ("kernel 4k", "kernel 64k")}
    assert [check.finding for check in by_name["kernel 4k"]] == [
        "linux-image-arm64 of Debian trixie: the first run fetches it"
    ]
    lacking, built = by_name["kernel 64k"]
    assert (lacking.state, lacking.cure) == ("missing", "apt install gcc-aarch64-linux-gnu")
    assert (built.state, built.cure) == ("limited", None)


def test_one_line_installs_all_that_the_guests_of_a_study_lack(able: pytest.MonkeyPatch) -> None:
    able.setattr(hypervisor, "missing", lambda *_: QEMU)
    able.setattr(kernels, "available", lambda *_: None)
    able.setattr(build, "missing_tools", lambda _: (Missing("no bison", "bison"), Missing("no gelf.h", "libelf-dev")))
    able.setattr(nfs, "missing", lambda: (Missing("no NFS server", "nfs-ganesha nfs-ganesha-vfs"),))
    checks = resources.checks(study(network="user", nfs=True), (), privileged=True)
    report = examine(Files(FILES, root=True), msgspec.structs.replace(FACTS, apt=True), guests=checks)
    assert report.packages == ("bison", "libelf-dev", "nfs-ganesha", "nfs-ganesha-vfs", "qemu-system-arm")
    assert report.install == "apt install bison libelf-dev nfs-ganesha nfs-ganesha-vfs qemu-system-arm"
    assert report.install in text(report)
    # What its kernels are built with is not asked for where none is built.
    able.setattr(kernels, "available", lambda *_: kernel("arm64"))
    report = examine(Files(FILES, root=True), FACTS, guests=resources.checks(study(), (), privileged=True))
    assert report.packages == ("qemu-system-arm",)


def test_an_accelerator_that_the_study_insists_on_must_be_there(able: pytest.MonkeyPatch) -> None:
    insists = of_guests(study(accelerator="kvm"))["accelerator"]
    assert insists.state == "missing"
    assert "auto" in (insists.cure or "")
    able.setattr(hypervisor, "refusal", lambda _: None)
    assert of_guests(study())["accelerator"].state == "ok"
    counts = of_guests(study(counting=True))["accelerator"]
    assert (counts.state, counts.finding) == ("ok", "tcg: instructions are counted by emulation")
    assert "as the study says" in of_guests(study(accelerator="tcg"))["accelerator"].finding


@pytest.mark.usefixtures("able")
def test_what_guests_that_count_cannot_have_is_missing() -> None:
    assert "image" not in of_guests(study(counting=True))
    image = of_guests(study(counting=True), "redis-server")["image"]
    assert image.state == "missing"
    assert image.finding == "a counting guest runs micro-workloads alone, and others need redis-server"
    assert image.packages == ()


def test_what_fetches_and_makes_is_asked_for_where_something_is_to_be_made(able: pytest.MonkeyPatch) -> None:
    able.setattr(debian, "missing", lambda: (Missing("no apt-get", "apt"), Missing("no dpkg-deb", "dpkg")))
    able.setattr(image, "missing", lambda: (Missing("no mke2fs", "e2fsprogs"),))
    assert not {"packages", "image"} & of_guests(study()).keys()  # both kernels are here, and no image is wanted
    found = list(resources.checks(study(), ["gcc"], privileged=True))
    assert [(check.name, check.packages) for check in found if check.state == "missing"] == [
        ("packages", ("apt",)),
        ("packages", ("dpkg",)),
        ("image", ("e2fsprogs",)),
    ]
    able.setattr(kernels, "available", lambda use, *_: None if use.build else kernel("arm64"))
    assert of_guests(study())["packages"].cure == "apt install dpkg"  # the source of a kernel that is built


def test_root_is_asked_for_where_the_study_needs_it(able: pytest.MonkeyPatch) -> None:
    able.setattr(network, "missing", lambda _: ())
    able.setattr(nfs, "missing", lambda: ())
    assert "root" not in of_guests(study(network="user"), privileged=False)
    alone = study(network="tap", nfs=True)
    refused = of_guests(alone, privileged=False)["root"]
    assert (refused.state, refused.cure) == ("missing", "sudo hugewise run ...")
    assert refused.finding == 'an ordinary user cannot have network = "tap", nfs = true'
    assert of_guests(alone)["root"].state == "ok"
    pool = PolicyUse(name="shp", source="base", backing=Backing(pages="hugetlb-1g"))
    pools = msgspec.structs.replace(study(memory="1g"), policies=(*study().policies, pool))
    some = of_guests(pools, privileged=False)["root"]
    assert (some.state, "memory from a pool of this host (shp)" in some.finding) == ("limited", True)


def test_what_workloads_lack_on_this_host_is_said_before_a_run_plans(able: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lacks = LeftOut("iperf3", "*", "on this host, where its server is: iperf3: no such program on PATH", ("iperf3",))
    found = of_guests(study(network="user"), "iperf3", beside=(lacks,))["iperf3"]
    assert (found.state, found.cure, found.packages) == ("missing", "apt install iperf3", ("iperf3",))
    used = [{"name": "iperf3", "parameters": {"peer": "host"}}]
    asked = study_of(guest={"arch": "arm64", "network": "user"}, kernel=KERNELS[:1], workload=used)
    able.setattr(counted, "find_survey", lambda *_: None)
    (tmp_path / "iperf3").touch(0o755)
    for path, state in (("/nowhere", ["missing"]), (str(tmp_path), [])):
        able.setenv("PATH", path)
        rows = [check for check in feasibility.guest_checks(asked) if check.name == "iperf3"]
        assert [check.state for check in rows] == state
        assert all("on this host, where its server is" in check.finding for check in rows)


def test_network_and_nfs_are_asked_for_where_the_study_has_them(able: pytest.MonkeyPatch) -> None:
    owners: list[int | None] = []

    def missing(owner: int | None) -> tuple[Missing, ...]:
        owners.append(owner)
        return (Missing("ip: no such program on PATH", "iproute2"),)

    able.setattr(network, "missing", missing)
    able.setattr(nfs, "missing", lambda: (Missing("no NFS server", "nfs-ganesha nfs-ganesha-vfs"),))
    assert not {"network", "NFS server"} & of_guests(study(network="user")).keys()
    found = of_guests(study(network="tap", nfs=True))
    assert found["network"].cure == "apt install iproute2"
    assert found["NFS server"].cure == "apt install nfs-ganesha nfs-ganesha-vfs"
    of_guests(study(network="tap"), privileged=False)
    nobody = pwd.getpwnam("nobody").pw_uid
    assert owners == [nobody, None]  # whom QEMU runs as: as root nobody, else the caller


GUESTS = """
format = 1
name = "s"
policies = ["base", "thp"]
[guest]
arch = "arm64"
[[kernel]]
name = "4k"
package = "linux-image-arm64"
[[workload]]
name = "fault"
"""


def test_doctor_of_a_study_that_lacks_qemu_ends_with_1(
    able: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    able.setattr(feasibility, "make_plan", lambda *_, **__: Plan((), ()))
    path = tmp_path / "s.toml"
    path.write_text(GUESTS)
    able.setenv("COLUMNS", "100")
    assert doctor.main(path, as_json=False) == 0
    capsys.readouterr()
    able.setattr(hypervisor, "missing", lambda *_: QEMU)
    assert doctor.main(path, as_json=False) == 1
    said = capsys.readouterr().out
    assert "its guests" in said
    assert "cure: apt install qemu-system-arm" in said


def test_a_guest_that_a_dry_run_refuses_is_not_accepted(able: pytest.MonkeyPatch) -> None:
    """64 GiB on a host of 23: the same plan says it here."""
    host = Files({"/proc/meminfo": f"MemTotal: {23 << 20} kB\n", f"{THP}/enabled": "always [madvise] never"})
    able.setattr(feasibility, "at_rest", lambda _: host)
    large = study(memory="64g")
    assert feasibility.make_plan(large).cells == ()
    found = [check for check in feasibility.guest_checks(large) if check.state == "missing"]
    assert any("a guest needs 64 GiB, the host has 23 GiB" in check.finding for check in found)
    assert [check for check in feasibility.guest_checks(study(memory="1g")) if check.state == "missing"] == []
