"""doctor: every finding from facts, a cure for what is missing, and output that fits 80 columns."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from hugewise.cli import doctor
from hugewise.cli.doctor import Facts, Report, examine, render
from hugewise.errors import HugewiseError
from hugewise.machine import noise, probe
from hugewise.model.host import Check
from hugewise.model.pages import HUGETLB, THP
from hugewise.model.results import LeftOut
from hugewise.plan.plan import Plan
from tests.attempt.test_disturbances import FILES as NOISE_FILES
from tests.build.hosts import Files

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
CPU = probe.Cpu("AMD", "EPYC", [probe.Tlb(1, "data", [4096, 2097152], 96, 0)], None)
FACTS = Facts(
    cpu=CPU,
    counters={"task-clock": None, "cycles": MISSING, "dTLB-loads": MISSING},
    programs={"cc": "/usr/bin/cc", "perf": None},
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


def test_pages_are_what_the_files_say() -> None:
    found = checked()
    assert found["pages/THP"].finding == "2m (enabled=madvise, defrag=madvise, shmem_enabled=unknown)"
    assert found["pages/mTHP"].finding == "64k"
    assert found["pages/hugetlb 2m"].finding == "pool of 8 pages, 6 free"


def test_a_kernel_without_huge_pages_is_told_how_to_get_some() -> None:
    found = checked(Files({"/proc/stat": FILES["/proc/stat"]}, root=True))
    for name in ("THP", "mTHP", "hugetlb"):
        assert found[f"pages/{name}"].state == "missing"
        assert found[f"pages/{name}"].cure


def test_tlb_reach_is_entries_times_page_and_silence_is_said() -> None:
    finding = checked()["TLB/L1 data"].finding
    assert finding == "96 entries, fully associative; reaches 384 KiB in 4k, 192 MiB in 2m pages"
    gigantic = Files({**FILES, f"{HUGETLB}/hugepages-1048576kB/nr_hugepages": "0"}, root=True)
    unneeded = "nothing that is measured needs it"
    silent = checked(gigantic)["TLB/not stated"]
    assert (silent.state, silent.finding) == ("ok", f"how many entries hold pages of 1g; {unneeded}")
    unknown = checked(cpu=probe.Cpu("Arm", "N1", [], "this architecture has no CPUID"))["TLB/sizes"]
    assert (unknown.state, unknown.finding) == ("ok", f"not stated: this architecture has no CPUID; {unneeded}")


def test_sizes_that_a_hypervisor_states_are_no_trouble() -> None:
    reason = "in a virtual machine: the hypervisor may have altered what CPUID states"
    found = checked(cpu=msgspec.structs.replace(CPU, reason=reason))
    assert {check.state for check in found.values() if check.section == "TLB"} == {"ok"}
    assert found["TLB/as stated"].finding.startswith(f"{reason}; nothing that is measured needs it")


def test_counters_are_grouped_by_the_reason_why_they_are_null() -> None:
    found = checked()
    assert found["counters/available"].finding == "task-clock"
    assert found["counters/null"].state == "limited"
    assert found["counters/null"].finding == f"cycles, dTLB-loads: {MISSING}"
    assert "pmu=on" in (found["counters/null"].cure or "")
    closed = checked(counters={"cycles": "not permitted: kernel.perf_event_paranoid is 3 and this user lacks it"})
    assert closed["counters/null"].cure == "sudo sysctl kernel.perf_event_paranoid=1"


def test_a_missing_probe_is_a_finding_with_its_cure() -> None:
    error = HugewiseError("hugewise-probe not found", hint="build it: make setup")
    found = checked(cpu=error, counters=error)
    for name in ("TLB/sizes", "counters/all"):
        assert (found[name].state, found[name].cure) == ("missing", "build it: make setup")


def test_an_ordinary_user_is_told_what_root_would_add() -> None:
    found = checked(Files(FILES), page_flags=False, cgroup_problem=HugewiseError("cannot", hint="systemd-run ..."))
    assert found["privileges/root"].state == "limited"
    assert "unproven" in found["privileges/page proof"].finding
    assert found["privileges/page proof"].cure == "sudo hugewise ..."
    assert found["privileges/cgroup"].cure == "systemd-run ..."
    assert checked(page_flags=False)["privileges/page proof"].cure == "give the container CAP_SYS_ADMIN"


def test_a_policy_that_only_root_can_have_says_so() -> None:
    found = checked(Files(FILES))
    assert found["policies/mthp-64k"].state == "missing"
    assert checked(Files(FILES, knobs=True))["policies/mthp-64k"].cure == "sudo hugewise run ..."
    assert (
        checked(Files(FILES, knobs=True))["policies/base"].finding == "prctl(PR_SET_THP_DISABLE, all) in the workload"
    )


def test_each_missing_program_names_its_package() -> None:
    found = checked()
    assert found["programs/perf"].cure == "sudo apt install linux-perf"
    assert found["programs/cc"].state == "ok"


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
    assert any(line.strip().startswith("cure: sudo apt install linux-perf") for line in lines)
    decoded = msgspec.json.decode(msgspec.json.encode(report), type=Report)
    assert decoded == report


def test_a_study_says_what_is_left_out_and_why() -> None:
    plan = Plan((), (LeftOut("*", "hugetlb-1g", "needs root"), LeftOut("chase", "*", "nothing to compare")))
    report = examine(Files(FILES, root=True), FACTS, plan)
    assert report.cells == ()
    shown = text(report)
    assert "left out  hugetlb-1g: needs root" in shown
    assert "left out  chase: nothing to compare" in shown


def test_what_a_study_needs_is_installed_by_one_line() -> None:
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
    assert examine(Files(FILES, root=True), debian, Plan((), left_out)).install == line
    assert examine(Files(FILES, root=True), FACTS, Plan((), left_out)).install == (
        "with this system's package manager, what Debian calls postgresql, postgresql-contrib, redis-server"
    )
    assert (
        examine(Files(FILES, root=True), debian, Plan((), (LeftOut("*", "hugetlb-1g", "needs root"),))).install is None
    )


def test_the_line_that_installs_is_never_broken() -> None:
    packages = tuple(f"package-{n:02d}" for n in range(30))
    report = examine(
        Files(FILES, root=True), msgspec.structs.replace(FACTS, apt=True), Plan((), (LeftOut("a", "*", "b", packages),))
    )
    assert f"  apt install {' '.join(packages)}" in text(report, crop=False).splitlines()


def test_this_machine_can_be_examined(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(None, as_json=True) == 0
    report = msgspec.json.decode(capsys.readouterr().out, type=Report)
    names = {check.section for check in report.checks}
    assert {"pages", "TLB", "counters", "privileges", "programs", "host"} <= names
    assert all(check.finding for check in report.checks)
