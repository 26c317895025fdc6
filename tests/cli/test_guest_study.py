"""`hugewise guest study` asks this host what it has room for, and says where a domain is of another host."""

import tomllib

import msgspec
import pytest
from click.testing import CliRunner

from hugewise.cli import guest_study
from hugewise.cli.main import cli
from hugewise.errors import UserError
from hugewise.guests.domain_study import StudyRequest
from tests.build.studies import KnobFiles
from tests.guests.test_domain_study import DB1, GIB, OFFER, POOLS, THP

MEMORY = "MemTotal: {} kB\nMemAvailable: {} kB\nHugepagesize: 2048 kB\n"
LOAD = StudyRequest(load=("app",), packages=("app",))
RATE = "rate,higher,1/s=regex:([0-9.]+) per s"
OTHERS = {
    "/proc/400/cmdline": "\0".join(("/usr/bin/kvm", "-id", "100", "-m", "2048", "")),
    "/proc/400/status": f"VmRSS:\t {GIB >> 10} kB\n",
}


def written(total: int, free: int, **files: str) -> tuple[list[str], str]:
    """Arms, and the text, of the domain's study on a host of root's with so much memory: the domain has 2 GiB."""
    told = {**POOLS, f"{THP}/enabled": "[madvise]", f"{THP}/shmem_enabled": "[never]"}
    host = KnobFiles({**told, "/proc/meminfo": MEMORY.format(total >> 10, free >> 10), **files})
    text, _ = guest_study.write(DB1.read_bytes(), "db1.xml", StudyRequest(workload="fault"), host)
    return [use["name"] for use in tomllib.loads(text)["policies"]], text


def test_a_pool_leaves_the_host_what_a_run_would_leave_it() -> None:
    """What a run refuses is not offered as an arm: a tenth stays free, and what other machines may still take."""
    arms, _ = written(24 * GIB, 8 * GIB)
    assert arms == ["domain", "ram-4k", "ram-2m", "ram-1g"]
    arms, text = written(24 * GIB, 4 * GIB)
    assert arms == ["domain", "ram-4k"]
    said = "it needs 1024 pages of 2m, and 0 are free in the pool; 4 GiB of this host are free, and 2.4 GiB are left"
    assert f"# Not on this host: {said} to it in any case" in text
    assert written(24 * GIB, 5 * GIB)[0] == ["domain", "ram-4k", "ram-2m", "ram-1g"]
    arms, text = written(24 * GIB, 5 * GIB, **OTHERS)
    assert arms == ["domain", "ram-4k"]
    assert "running virtual machines may still take 1 GiB" in text


@pytest.mark.parametrize(
    ("asked", "judged"),
    [
        (StudyRequest(workload="fault"), "# Judged: ns_per_page under KVM; where guests are emulated: page_faults."),
        (StudyRequest(workload="fault", metric="page_faults"), "# Judged: page_faults."),
        (LOAD, "# Judged: wall_s under KVM; where guests are emulated: page_faults."),
        (
            msgspec.structs.replace(LOAD, values=(RATE,), metric="rate"),
            "# Judged: rate under KVM; where guests are emulated: page_faults.",
        ),
    ],
)
def test_the_file_says_by_what_its_arms_are_judged(asked: StudyRequest, judged: str) -> None:
    host = KnobFiles({**POOLS, "/proc/meminfo": MEMORY.format(24 * GIB >> 10, 8 * GIB >> 10)})
    text, _ = guest_study.write(DB1.read_bytes(), "db1.xml", asked, host)
    assert text.endswith(f"\n{judged}\n")


@pytest.mark.parametrize(
    ("words", "said", "cure"),
    [
        (["--workload", "faultt"], "--workload faultt: is not a workload", "did you mean fault?"),
        (["--workload", "command"], "--workload command: it names no command", "--load"),
        (["--workload", "service"], "and not in guests", "--load"),
        (["--workload", "fault", "--value", RATE], "--value is of a command's output", "--load"),
        (["--workload", "fault", "--metric", "ns_per_pag"], "'ns_per_pag': is not a metric of fault", "ns_per_page"),
        (["--load", "a", "--packages", "app", "--value", "rate"], "names a metric wrongly", "regex:PATTERN"),
    ],
)
def test_what_no_guest_could_run_is_refused_at_once(
    words: list[str], said: str, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect: a study was written, which a run alone refused."""
    monkeypatch.setattr("hugewise.cli.guest_study._offer", lambda *_: OFFER)
    ran = CliRunner().invoke(cli, ["guest", "study", str(DB1), *words])
    assert isinstance(told := ran.exception, UserError)
    assert (told.exit_code, ran.stdout) == (2, "")
    assert said in told.message
    assert told.hint is not None and cure in told.hint
