"""The tool itself: a promise that is broken is seen, whichever it is, and what was done is not done again."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hugewise.host import journal
from tests.requirements import need, need_program, need_root
from tests.state import changed, page_state
from tools.torture import torture as cases
from tools.torture.findings import Draws, TortureRecord, at_most, show, summarise
from tools.torture.subject import THIS
from tools.torture.torture import KINDS, TortureOptions

ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).with_name("fake.py")
PLACE = Path(f"/dev/shm/hugewise-fake-{os.getpid()}")

# Also of a fake the page state before and after is compared: nobody else may turn it meanwhile.
alone = pytest.mark.whole


def call(results: Path, *words: str, timeout: float = 250) -> tuple[int, Any, str]:
    """Its exit status, its report, and what it said while it went on."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.torture", "--results", str(results), "--json", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env=os.environ | {"HUGEWISE_FAKE": str(PLACE)},
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def faked(results: Path, broken: str, *words: str) -> tuple[int, Any, str]:
    """Torture the fake one, with servers, as far as it has any."""
    fake = f"{sys.executable} -IS {FAKE} {broken}"
    return call(results, "--kinds", "host", "--kills", "6", "--faults", "0", "--hugewise", fake, *words)


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    if PLACE.exists():
        PLACE.rmdir()


@alone
def test_a_hugewise_that_keeps_its_promises_passes(tmp_path: Path) -> None:
    status, report, said = faked(tmp_path, "none")
    assert status == 0, said
    total = report["total"]
    assert (total["done"], total["kills"], total["differing"]) == (6, 6, 0)
    assert (total["lost"], total["repeated"], total["broken"]) == (0, 0, 0)
    assert total["resumed"] >= 1 and total["kept"] >= 1
    assert total["at_most"] == pytest.approx(1 - 0.05 ** (1 / 6))
    assert not list((tmp_path / "torture-1" / "broken").iterdir())


@alone
@pytest.mark.parametrize(
    ("broken", "counted", "said"),
    [
        pytest.param("folder", "differing", "folder {place}: was not there, is there", marks=pytest.mark.soak),
        pytest.param("process", "differing", "(sleep): was not there, is lives", marks=pytest.mark.soak),
        # gone, and made again
        pytest.param("lost", "lost", "b1-base-1 is not what it was", marks=pytest.mark.soak),
        pytest.param("changed", "lost", "is not what it was", marks=pytest.mark.soak),
        ("repeated", "repeated", "block 1 has 2 attempts of base"),
        pytest.param("unfinished", "broken", "the run has not ended", marks=pytest.mark.soak),
    ],
)
def test_a_promise_that_is_broken_is_seen(tmp_path: Path, broken: str, counted: str, said: str) -> None:
    said = said.replace("{place}", str(PLACE))
    status, report, told = faked(tmp_path, broken)
    assert status == 1
    if broken in ("process", "folder"):  # an untouched run leaves it already: nothing else is tried
        assert report is None
        assert said in told
        return
    assert report["total"][counted] > 0
    assert said in json.dumps(report["faults"])
    name = next(iter(report["faults"]))
    assert (tmp_path / "torture-1" / "broken" / name / "study.toml").exists()
    assert (tmp_path / "torture-1" / "cases" / f"{name}.json").exists()


@pytest.mark.parametrize(
    ("broken", "ends", "why"),
    [
        ("status", 1, "restore: exit status 3"),
        ("traceback", 1, "restore: exit status 0: Traceback"),
        ("locked", 2, "torture needs it for itself"),
    ],
)
def test_nothing_begins_where_the_machine_cannot_be_put_back(tmp_path: Path, broken: str, ends: int, why: str) -> None:
    status, report, said = faked(tmp_path, broken)
    assert (status, report) == (ends, None)
    assert why in said and "cure:" in said


@alone
def test_one_that_is_broken_off_goes_on_with_what_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "torture-1" / "cases"
    status, _, said = faked(tmp_path, "none", "--now", "1")
    assert status == 0, said
    (first,) = folder.iterdir()
    kept = first.read_bytes()
    status, report, _ = faked(tmp_path, "none", "--now", "1")
    assert (status, report["total"]["done"], report["total"]["planned"]) == (0, 2, 6)
    assert first.read_bytes() == kept
    assert faked(tmp_path, "none", "--kills", "3")[1]["total"]["done"] == 3
    assert first.read_bytes() == kept


@alone
def test_a_case_is_done_again_by_its_name(tmp_path: Path) -> None:
    status, one, said = faked(tmp_path, "lost", "--case", "host-003")
    assert one["name"] == "host-003", said
    assert one["kills"] == 1
    assert status == (1 if one["lost"] else 0)


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (["--kinds", "fire"], "choose from host"),
        (["--case", "fire-1"], "write KIND-NUMBER"),
        (["--time", "soon"], "write for example --time 30m"),
        (["--soak", "soon"], "write for example --soak 30m"),
    ],
)
def test_what_cannot_be_done_is_said_with_its_cure(tmp_path: Path, words: list[str], cure: str) -> None:
    status, _, said = call(tmp_path, *words)
    assert status == 2
    assert cure in said


@alone
def test_a_torture_of_another_kernel_is_not_continued(tmp_path: Path) -> None:
    assert faked(tmp_path, "none", "--now", "0")[0] == 0
    path = tmp_path / "torture-1" / "torture.json"
    path.write_text(path.read_text().replace(os.uname().release, "1.2.3"))
    status, _, said = faked(tmp_path, "none")
    assert status == 2
    assert "another kernel (1.2.3" in said


def test_root_tortures_nothing_where_another_account_decides(tmp_path: Path) -> None:
    need_root()
    os.chown(tmp_path, 65534, 65534)
    status, _, said = faked(tmp_path, "none")
    assert status == 2
    assert "belongs to the account 65534" in said
    assert not list(tmp_path.iterdir())


def test_the_numbers_of_cases_are_those_that_were_asked_for(tmp_path: Path) -> None:
    options = TortureOptions(tmp_path)
    numbers = cases._numbers(options)
    assert (numbers["host"], numbers["pool"], numbers["guest"]) == (140, 40, 20)
    assert sum(numbers[name] for name, kind in KINDS.items() if not kind.kills) == options.faults
    assert all(numbers[name] for name in KINDS)
    plan = cases._plan(options)
    assert len(plan) == len(set(plan)) == 270
    assert sum(name.startswith("host") for name in plan[:135]) in range(68, 73)  # the kinds evenly among each other


def test_what_is_drawn_depends_on_the_case_alone() -> None:
    one, two = Draws(1, "host-001"), Draws(1, "host-001")
    assert one.share("moment") == two.share("moment")
    assert one.share("moment") != one.share("recovery")
    assert one.share("moment") != Draws(2, "host-001").share("moment")
    shares = [Draws(1, f"host-{n:03}").share("moment") for n in range(1000)]
    assert 0.45 < sum(shares) / len(shares) < 0.55
    assert min(shares) < 0.01 and max(shares) > 0.99


def test_the_bound_is_exact() -> None:
    assert at_most(0, 200) == pytest.approx(0.01487, abs=1e-5)  # 3/200, about
    assert at_most(1, 200) == pytest.approx(0.02350, abs=1e-4)
    assert at_most(2, 2) == 1.0
    assert at_most(0, 0) is None


@alone
@pytest.mark.soak
def test_a_short_torture_of_this_hugewise(tmp_path: Path) -> None:
    """Killed with a server and as its pool changes, and without room: everything is put back, nothing is lost."""
    need_root()
    need_program("redis-server", "redis-server")
    before = page_state()
    status, report, said = call(
        tmp_path, "--kills", "3", "--faults", "1", "--kinds", "host,pool,disk", "--seed", "11", "--time", "25s"
    )
    assert status == 0, (said, report)
    total = report["total"]
    assert total["done"] >= 2, said
    assert total["kills"] >= 1
    assert (total["differing"], total["lost"], total["repeated"], total["broken"]) == (0, 0, 0, 0)
    assert changed(before) == {}


def test_where_nothing_can_be_tested_no_promise_held(capsys: pytest.CaptureFixture[str]) -> None:
    begun = TortureRecord(
        seed=1,
        machine="m",
        kernel="6",
        version="0",
        cpus=2,
        root=True,
        left_out={"host": "an untouched run: exit status 1"},
    )
    report = summarise(begun, {"host": 6}, {}, {})
    assert not report.passed
    show(report)
    assert "NOTHING was tested" in capsys.readouterr().out


@alone
@pytest.mark.soak
def test_a_hugewise_that_leaves_a_knob_turned_is_seen(tmp_path: Path) -> None:
    """This one, but that a knob is turned a little whenever it has put the machine back."""
    need_root()
    knob = Path("/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan")
    need(knob.exists(), f"a kernel with {knob}")
    had = knob.read_text()
    planted = tmp_path / "hugewise"
    real = " ".join(f"'{word}'" for word in THIS)
    planted.write_text(
        f'#!/bin/sh\n{real} "$@"\ns=$?\n'
        f'[ -e {tmp_path}/now ] && [ "$1" = restore ] && echo $(($(cat {knob}) - 1)) > {knob}\nexit $s\n'
    )
    planted.chmod(0o755)
    words = ("--kills", "1", "--faults", "0", "--kinds", "pool", "--hugewise", str(planted))
    try:
        assert call(tmp_path, *words, "--now", "0")[0] == 0
        (tmp_path / "now").touch()
        status, report, said = call(tmp_path, *words)
        assert status == 1
        assert f"setting {knob}: was" in (said if report is None else json.dumps(report["faults"]))
    finally:
        knob.write_text(had)
        journal.restore()
