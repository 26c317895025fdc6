"""The command line as a user meets it: help, listings, errors, exit statuses, runs that end in every way.

HUGEWISE_WRITE_GOLDEN=1 writes the golden files below tests/golden/cli anew.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hugewise
from hugewise.cli import list as listing
from hugewise.cli import main
from hugewise.model.results import Results
from hugewise.session import feasibility
from tests.fake_host import FakeHost
from tests.requirements import need, need_program, need_root
from tests.state import changed, page_state

GOLDEN = Path(__file__).parents[1] / "golden" / "cli"
HUGEWISE = [sys.executable, "-c", "from hugewise.cli.main import main; main()"]
SEED = "000102030405060708090a0b0c0d0e0f"
TINY = """
format = 1
name = "tiny"
question = "Größe [bold]?[/nope] 漢字 <script>alert(1)</script> :smile:"
policies = {policies}

[budget]
blocks = 2

[between]
settle = "0ms"

[[workload]]
name = "chase"
timeout = "30s"
parameters = {{ bytes = "8m", loads = 20000 }}
"""

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """`hugewise` with these arguments in this process: its exit status, stdout and stderr at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def called(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hugewise", *map(str, arguments)])
        status: object = 0
        try:
            main.main()
        except SystemExit as ended:
            status = ended.code or 0
        said = capsys.readouterr()
        assert isinstance(status, int)
        return status, said.out, said.err

    yield called
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """A machine of root's with 16k, 64k and 2m transparent pages and a pool of 2m pages."""
    host = FakeHost(capacity={2 << 20: 1000})
    for module in (feasibility, listing):
        monkeypatch.setattr(module, "LocalHost", lambda: host)
    return host


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_golden(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("HUGEWISE_WRITE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert all(
        len(line) <= 80 for line in text.splitlines() if "example orders" not in line and "left out:" not in line
    )


def tiny(folder: Path, *policies: str) -> Path:
    path = folder / "tiny.toml"
    path.write_text(TINY.format(policies=list(policies or ("base", "thp"))), encoding="utf-8")
    return path


def only_run(results: Path) -> Path:
    (path,) = results.glob("*/*")
    return path


# Help and listings


@pytest.mark.parametrize(
    "verb",
    ["", "run", "resume", "report", "doctor", "list", "restore", "combine", "guest", "guest cache", "guest kernel"],
)
def test_help(call: Call, verb: str) -> None:
    status, out, err = call(*verb.split(), "--help")
    assert (status, err) == (0, "")
    check_golden("-".join(("help", *verb.split())), out)


@pytest.mark.parametrize("what", ["policies", "workloads", "metrics"])
def test_list(call: Call, fake: FakeHost, what: str) -> None:
    status, out, err = call("list", what)
    assert (status, err) == (0, "")
    check_golden(f"list-{what}", "\n".join(line.rstrip() for line in out.splitlines()) + "\n")


def test_list_policies_says_what_a_user_lacks(call: Call, fake: FakeHost) -> None:
    fake.root = False
    _, out, _ = call("list", "policies")
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "process" in lines["base"]
    assert "no:" in lines["mthp-64k"]


def test_list_studies_shows_those_here_and_those_that_come_along(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").mkdir()
    tiny(tmp_path / "studies")
    (tmp_path / "studies" / "broken.toml").write_text("format = 7")
    status, out, _ = call("list", "studies")
    assert status == 0
    assert "studies/tiny.toml" in out
    assert "[bold]?[/nope]" in out
    assert "cannot be read" in out
    assert "demo.toml" in out


def test_dry_run(call: Call, fake: FakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny(tmp_path, "base", "thp", "mthp-64k", "mthp-32k", "hugetlb-2m", "hugetlb-1g")
    monkeypatch.chdir(tmp_path)
    status, out, err = call("run", path, "--dry-run", "--seed", SEED)
    assert (status, err) == (0, "")
    check_golden("dry-run", "\n".join(line.rstrip() for line in out.splitlines()) + "\n")
    assert fake.writes == []
    assert [each.name for each in tmp_path.iterdir()] == ["tiny.toml"]


def test_dry_runs_differ_without_a_seed(call: Call, fake: FakeHost, tmp_path: Path) -> None:
    assert call("run", tiny(tmp_path), "--dry-run") != call("run", tiny(tmp_path), "--dry-run")


def test_a_study_is_planned_at_the_scale_that_is_named(call: Call, fake: FakeHost, tmp_path: Path) -> None:
    path = tiny(tmp_path)
    with path.open("a") as file:
        file.write('[workload.scales]\npublished = { bytes = ["1m", "64g"] }\n')
    status, out, _ = call("run", path, "--dry-run", "--scale", "published")
    assert status == 0
    assert "chase-bytes=1m" in out
    status, _, err = call("doctor", path, "--scale", "publish")
    assert status == 2
    assert "has no scale 'publish'" in err
    assert "scales that it has: small, published" in err
    for asked in (["doctor"], ["plan"], ["run", "--policy", "base,thp", "--", "true"]):
        status, _, err = call(asked[0], "--scale", "published", *asked[1:])
        assert status == 2
        assert "there is no study that it is a scale of" in err


def test_a_dry_run_of_what_cannot_run_says_why(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeHost(thp=False, capacity={})
    monkeypatch.setattr(feasibility, "LocalHost", lambda: host)
    status, out, _ = call("run", tiny(tmp_path), "--dry-run")
    assert status == 0
    assert "left out: thp: the kernel has no transparent huge pages" in out
    assert "left out: chase: only base is left to run" in out
    assert out.endswith("nothing of it can run here\n")


def test_version(call: Call) -> None:
    status, out, _ = call("--version")
    assert status == 0
    assert "0.1.0" in out


# What cannot be done: exit 2, one line that says what, one that says the cure


COMMAND = ("--policy", "base,thp", "--")
ERRORS: list[tuple[Sequence[str], str, str]] = [
    (["run"], "name one study, or policies and a command", "cure: hugewise run studies/demo.toml"),
    (["run", "a.toml", "b.toml"], "name one study", "--policy base,thp -- COMMAND"),
    (["run", "nothing.toml"], "nothing.toml: no such file", "hugewise list studies"),
    (["run", "."], ".: Is a directory", "cure:"),
    (["run", "bad.toml"], "bad.toml: is not TOML", "toml.io"),
    (["run", "wrong.toml"], "wrong.toml: blocks = 3: unknown key", "cure:"),
    (["run", "--policy", "base,tph", "--", "true"], "policies[2] = 'tph': is not a policy", "did you mean thp?"),
    (["run", "--policy", "base", "--", "true"], "needs at least 2", "cure:"),
    (["run", "--policy", "base,base", "--", "true"], "'base': stands twice", "remove one"),
    (["run", "--policy", "base,,thp", "--", "true"], "policies[2] = '': is not a name", "cure:"),
    (["run", "--policy", "base,thp"], "no command to measure", "--policy base,thp -- COMMAND"),
    (["run", *COMMAND, ""], "names no program", "cure:"),
    (["run", *COMMAND, "no-such-program"], "no-such-program: no such program on PATH", "hugewise doctor"),
    (["run", "--metric", "ns", *COMMAND, "true"], "metric = 'ns': is not a metric of command", "metrics: charged"),
    (["run", "--pool", "x", *COMMAND, "true"], "pool_bytes = 'x': not a size", "cure:"),
    (["run", "--share", "2", *COMMAND, "true"], "share = '2'", "cure:"),
    (["run", "--timeout", "0s", *COMMAND, "true"], "timeout = '0s'", "cure:"),
    (["run", "--policy", "base,hugetlb-2m", "--", "true"], "set pool_bytes (or --pool SIZE)", "hugewise doctor"),
    (["run", "tiny.toml", "--metric", "wall_s"], "--metric belongs to --policy", "in a study file"),
    (["run", "tiny.toml", "--pool", "1g"], "--pool belongs to --policy", "in a study file"),
    (["run", "tiny.toml", "--seed", "xyz"], "--seed xyz: not 32 hexadecimal digits", "leave it out"),
    (["run", "tiny.toml", "--seed", "00"], "--seed 00: not 32 hexadecimal digits", "leave it out"),
    (["run", "tiny.toml", "--blocks", "1"], "blocks = 1: is out of range", "2 to 100000"),
    (["run", "tiny.toml", "--blocks", "-5"], "blocks = -5: is out of range", "2 to 100000"),
    (["run", "tiny.toml", "--time", "soon"], "time = 'soon': not a duration", "cure:"),
    (["run", "tiny.toml", "--time", "0s"], "time = '0s'", "cure:"),
    (["resume", "nowhere"], "nowhere is not a run's folder", "cure:"),
    (["resume", "tiny.toml"], "tiny.toml is not a run's folder", "cure:"),
    (["report", "nowhere"], "nowhere is not a run's folder", "cure:"),
    (["report", "."], ". is not a run's folder", "cure:"),
    (["doctor", "nothing.toml"], "nothing.toml: no such file", "cure:"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: " ".join(error[0]))
def test_what_cannot_be_done_is_said_with_its_cure(
    call: Call, fake: FakeHost, here: Path, error: tuple[Sequence[str], str, str]
) -> None:
    arguments, message, cure = error
    tiny(here)
    (here / "bad.toml").write_text("format = ")
    (here / "wrong.toml").write_text('format = 1\nname = "w"\nblocks = 3\n')
    status, out, err = call(*arguments)
    assert (status, out) == (2, "")
    first, second = err.splitlines()
    assert first.startswith("hugewise: ")
    assert message in first
    assert second.startswith("  cure: ")
    assert cure in second
    assert fake.writes == []
    assert not (here / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["walk"], "No such command 'walk'"),
        (["run", "--bogus"], "No such option '--bogus'"),
        (["run", "x.toml", "--blocks", "many"], "'many' is not a valid integer"),
        (["run", "--proof", "faith", "--policy", "base,thp", "--", "true"], "'faith' is not one of"),
        (["resume"], "Missing argument 'RUN'"),
        (["list", "kernels"], "'kernels' is not one of"),
        (["run", "x.toml", "--results", "file"], "is a file"),
    ],
)
def test_usage_errors(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    status, out, err = call(*arguments)
    assert (status, out) == (2, "")
    assert "Usage: hugewise" in err
    assert message in err


def test_results_that_cannot_be_written(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, out, err = call("run", tiny(tmp_path), "--results", tmp_path / "file" / "below")
    assert (status, out) == (1, "")
    assert f"cannot write the run's folder {tmp_path}/file/below" in err
    assert "--results" in err


def test_output_that_nobody_takes_is_no_traceback() -> None:
    need(Path("/dev/full").exists(), "/dev/full")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*HUGEWISE, "list", "metrics"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("hugewise: ")
    assert "No space left on device" in done.stderr
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*HUGEWISE, "list", "metrics"], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


# Runs that end


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of the tiny study, with its reports, and what was shown in `shown.txt`."""
    folder = tmp_path_factory.mktemp("finished")
    command = [*HUGEWISE, "run", str(tiny(folder)), "--results", str(folder / "漢字 [x]"), "--seed", SEED]
    plain = {**os.environ, "COLUMNS": "80", "TERM": "dumb", "SECRET": "of the caller"}
    plain.pop("HOME", None)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=plain, cwd="/")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "漢字 [x]" in done.stderr
    run = only_run(folder / "漢字 [x]")
    (folder / "shown.txt").write_text(done.stdout, encoding="utf-8")
    return run


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def test_what_a_run_shows(finished: Path) -> None:
    shown = (finished.parents[2] / "shown.txt").read_text(encoding="utf-8")
    assert "Größe [bold]?[/nope] 漢字 <script>alert(1)</script> :smile:" in " ".join(shown.split())
    assert "2 blocks complete, 0 incomplete, 0 disturbed" in shown
    assert "\x1b" not in shown
    assert shown.rstrip().endswith("report.html")
    assert all(len(line) <= 80 for line in shown.splitlines() if not line.startswith("Report: "))
    assert SEED in (finished / "run.jsonl").read_text().splitlines()[-1]


def test_texts_of_a_study_are_escaped_in_its_reports(finished: Path) -> None:
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script" not in (finished / "report.md").read_text(encoding="utf-8").replace("\\<", "")


def test_a_report_can_be_made_again_and_is_the_same(call: Call, copy: Path) -> None:
    written = {path.name: path.read_bytes() for path in copy.iterdir() if path.suffix == ".csv"}
    first = call("report", copy)
    assert first[0] == 0
    assert first == call("report", copy)
    assert len(written) == 2
    assert {name: (copy / name).read_bytes() for name in written} == written


def test_a_finished_run_is_not_resumed(call: Call, finished: Path) -> None:
    status, _, err = call("resume", finished)
    assert status == 2
    assert "has ended: its seed is revealed" in err


def _remove(path: Path) -> None:
    path.unlink()


def _spoil(path: Path) -> None:
    path.write_text("{garbage")


def _edit(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert '"margin":0.005' in text
    path.write_text(text.replace('"margin":0.005', '"margin":0.4'), encoding="utf-8")


def _tear_first(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


@pytest.mark.parametrize("verb", ["report", "resume"])
@pytest.mark.parametrize(
    "damage",
    [
        ("study.json", _remove, "study.json: No such file"),
        ("study.json", _spoil, "study.json cannot be read"),
        ("study.json", _edit, "study.json was changed since the run began"),
        ("run.jsonl", _remove, "is not a run's folder"),
        ("run.jsonl", _tear_first, "has no first record"),
        ("attempts.parquet", _spoil, "attempts.parquet cannot be read"),
        ("attempts.parquet", _remove, "block 1 is complete, but its attempt of"),
    ],
    ids=lambda damage: f"{damage[0].rpartition('/')[2]}-{damage[1].__name__[1:]}",
)
@pytest.mark.usefixtures("unchanged")
def test_a_damaged_run_is_refused_by_name(
    call: Call, copy: Path, verb: str, damage: tuple[str, Callable[[Path], None], str]
) -> None:
    file, harm, message = damage
    if verb == "resume":  # as it was before its last record
        unfinished(copy)
    (harmed,) = copy.glob(file)
    harm(harmed)
    status, out, err = call(verb, copy)
    assert (status, out) == (2, "")
    assert message in err
    assert "cure: " in err


def unfinished(run: Path) -> list[dict[str, Any]]:
    """Make a finished run what it was before its last record; returns its records."""
    lines = (run / "run.jsonl").read_bytes().splitlines()[:-1]
    (run / "run.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (run / "seed").write_text(SEED)
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mechanism": "process" if os.geteuid() == 0 else "system"}, "its policies work by another mechanism"),
        ({"host": {"name": "elsewhere", "machine": "0123"}}, "was begun on another machine (elsewhere)"),
        ({"cells": []}, "no longer offers the same policies to the same workloads"),
        ({"format": "x"}, "has no first record"),
    ],
    ids=["user", "machine", "offer", "format"],
)
@pytest.mark.usefixtures("unchanged")
def test_a_run_of_another_user_or_machine_is_not_resumed(
    call: Call, copy: Path, change: dict[str, Any], message: str
) -> None:
    first, *others = unfinished(copy)
    lines = [json.dumps(record) for record in (first | change, *others)]
    (copy / "run.jsonl").write_text("\n".join(lines) + "\n")
    status, out, err = call("resume", copy)
    assert (status, out) == (2, "")
    assert message in err


@pytest.mark.usefixtures("unchanged")
def test_a_run_under_another_kernel_is_not_resumed(call: Call, copy: Path) -> None:
    first, *others = unfinished(copy)
    first["host"]["kernel"]["release"] = "1.2.3"
    (copy / "run.jsonl").write_text("\n".join(json.dumps(record) for record in (first, *others)) + "\n")
    status, _, err = call("resume", copy)
    assert status == 2
    assert "was begun under the kernel 1.2.3" in err


@pytest.mark.parametrize("text", ["", "zz", "ff" * 16, SEED + "\n0"])
def test_a_seed_that_is_not_the_runs_is_refused(call: Call, copy: Path, text: str) -> None:
    unfinished(copy)
    (copy / "seed").write_text(text)
    status, _, err = call("resume", copy)
    assert status == 2
    assert "is not the seed that the run began with" in err


@pytest.mark.usefixtures("unchanged")
def test_only_what_is_missing_is_made_again(call: Call, copy: Path) -> None:
    unfinished(copy)
    before = (copy / "attempts.parquet").read_bytes()
    status, out, err = call("resume", copy)
    assert status == 0, err
    assert "Finished: 2 blocks complete" in out
    assert (copy / "attempts.parquet").read_bytes() == before
    assert not [*copy.glob("attempts/*/attempt.json")]


def test_verdicts_are_shown_where_the_report_cannot_be_written(call: Call, copy: Path) -> None:
    shutil.rmtree(copy / "figures")
    (copy / "figures").write_text("in the way")
    status, out, err = call("report", copy)
    assert status == 1
    assert "2 blocks complete" in out
    assert "Report: " not in out
    assert "the report cannot be written" in err


def test_a_working_directory_that_is_gone_is_said(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    code = f"import os; os.chdir({str(tmp_path / 'gone')!r}); os.rmdir({str(tmp_path / 'gone')!r}); import sys; "
    code += "sys.argv = ['hugewise', 'list', 'studies']; sys.path.pop(0); from hugewise.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the working directory was removed" in done.stderr


def test_a_torn_last_line_is_passed_over(call: Call, copy: Path) -> None:
    lines = (copy / "run.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "run.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    status, out, _ = call("report", copy)
    assert status == 0
    assert "Interrupted: 2 blocks complete" in out


# Commands


def measured(
    call: Call, results: Path, *options: str, command: Sequence[str], policies: str = "base,as-is"
) -> tuple[Results, str]:
    status, out, err = call(
        "run", "--policy", policies, "--blocks", "2", "--results", results, *options, "--", *command
    )
    assert status == 0, err
    return hugewise.open_results(only_run(results)), out


def sleeping(*seconds: str) -> list[int]:
    """Processes, not yet dead, that are `sleep` with one of these arguments."""
    wanted = {f"sleep\0{each}\0".encode() for each in seconds}
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if words in wanted and state not in "ZX":
            found.append(int(path.name))
    return found


@pytest.mark.usefixtures("unchanged")
def test_a_command_that_fails_is_said_to_fail(call: Call, tmp_path: Path) -> None:
    results, out = measured(call, tmp_path, command=["sh", "-c", "exit 3"], policies="base,thp")
    assert {attempt.state for attempt in results.attempts} == {"failed"}
    assert "base on command: 2 attempts: exit status 3" in out
    assert "thp on command: 2 attempts: exit status 3" in out


@pytest.mark.usefixtures("unchanged")
def test_a_command_that_takes_too_long_is_killed(call: Call, tmp_path: Path) -> None:
    results, out = measured(call, tmp_path, "--timeout", "1s", command=["sleep", "471199"])
    assert "timed out" in out
    assert {attempt.state for attempt in results.attempts} == {"failed"}
    assert sleeping("471199") == []


@pytest.mark.usefixtures("unchanged")
def test_a_programs_path_is_taken_as_it_is_written(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.sh").write_text("#!/bin/sh\nhead -c 3000000 /dev/zero\n")
    (tmp_path / "here.sh").chmod(0o755)
    results, out = measured(call, tmp_path / "results", command=["./here.sh"])
    assert {attempt.state for attempt in results.attempts} == {"accepted"}
    attempts = sorted(Path(results.folder).glob("attempts/b*"))
    assert [(path / "stdout").stat().st_size for path in attempts] == [3_000_000] * 4
    assert {stat.S_IMODE((path / "spec.json").stat().st_mode) for path in attempts} == {0o600}
    assert "Which pages for: ./here.sh" in out


@pytest.mark.usefixtures("unchanged")
def test_children_that_leave_early_are_proven_by_a_twin(call: Call, tmp_path: Path) -> None:
    results, _ = measured(call, tmp_path, command=["sh", "-c", "/bin/true; /bin/true; exit 0"], policies="base,thp")
    assert {attempt.delivery.proof for attempt in results.attempts} == {"twin"}
    assert all(list(Path(results.folder).glob(f"attempts/b*{arm}*/twin.jsonl")) for arm in ("base", "thp"))


@pytest.mark.usefixtures("unchanged")
def test_a_child_that_becomes_a_daemon_is_killed(call: Call, tmp_path: Path) -> None:
    need_program("setsid", "util-linux")
    code = "setsid sh -c 'sleep 471198 & exec sleep 471197' & sleep 0.1"
    results, _ = measured(call, tmp_path, command=["sh", "-c", code])
    assert {attempt.state for attempt in results.attempts} == {"accepted"}
    assert sleeping("471197", "471198") == []


@pytest.mark.usefixtures("unchanged")
def test_proof_by_counters_and_another_metric(call: Call, tmp_path: Path) -> None:
    need_root()
    results, out = measured(
        call, tmp_path, "--proof", "counters", "--metric", "cpu_s", "--share", "0",
        command=["true"], policies="base,thp",
    )  # fmt: skip
    assert "cpu_s in" in out
    assert {attempt.delivery.source for attempt in results.attempts} == {"counters"}
    assert results.cells[0].comparisons[0].verdict != "none"


@pytest.mark.usefixtures("unchanged")
def test_whom_a_command_and_a_micro_workload_run_as(finished: Path, tmp_path: Path, call: Call) -> None:
    need_root()
    specs = [json.loads(path.read_text()) for path in finished.glob("attempts/b*/spec.json")]
    assert {(spec["uid"], spec["gid"]) for spec in specs} == {(65534, 65534)}
    assert not any("SECRET" in spec["env"] for spec in specs)
    path = tmp_path / "who.toml"
    path.write_text(
        'format = 1\nname = "who"\npolicies = ["base", "as-is"]\nbudget = { blocks = 2 }\n'
        '[[workload]]\nname = "command"\nuser = "nobody"\nparameters = { argv = ["id", "-u"] }\n'
    )
    status, _, err = call("run", path, "--results", tmp_path / "results")
    assert status == 0, err
    outputs = {found.read_text() for found in (tmp_path / "results").glob("*/*/attempts/b*/stdout")}
    assert outputs == {"65534\n"}


# Runs that are ended

# Its first call waits to be ended; every later one is quick.
_SLOW_ONCE = 'test -e "$0" || { : > "$0"; sleep 471196 & sleep 471195; }'


@contextmanager
def started(results: Path, marker: Path) -> Iterator[subprocess.Popen[str]]:
    """`hugewise run` on a command that is in its first attempt. It does not outlive the test."""
    policies = "base,thp" if os.geteuid() == 0 else "base,as-is"
    command = [*HUGEWISE, "run", "--policy", policies, "--blocks", "2", "--results", str(results), "--"]
    process = subprocess.Popen(
        [*command, "sh", "-c", _SLOW_ONCE, str(marker)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: len(sleeping("471195")) > 0 or process.poll() is not None, 30)
        assert process.poll() is None, process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()


def until(true: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not (holds := true()) and time.monotonic() < end:
        time.sleep(0.02)
    return holds


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("unchanged")
def test_a_signal_ends_a_run_in_good_order(call: Call, tmp_path: Path, number: signal.Signals) -> None:
    before = page_state()
    with started(tmp_path / "results", tmp_path / "marker") as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert changed(before) == {}
    assert sleeping("471195", "471196") == []
    assert "Traceback" not in err
    folder = only_run(tmp_path / "results")
    assert f"interrupted; to go on: hugewise resume {folder}" in err
    assert "Interrupted: 0 blocks complete" in out
    if number == signal.SIGTERM:
        assert (folder / "report.html").exists()
        assert call("report", folder)[0] == 0
        status, out, err = call("resume", folder)
        assert status == 0, err
        assert "Finished: 2 blocks complete, 0 incomplete" in out


@pytest.mark.usefixtures("unchanged")
def test_killed_in_the_middle_nothing_goes_on_and_everything_can_be_put_back(call: Call, tmp_path: Path) -> None:
    before = page_state()
    with started(tmp_path / "results", tmp_path / "marker") as process:
        process.kill()
        process.wait(10)
        assert until(lambda: sleeping("471195", "471196") == [], 1.0), "processes of the killed run go on"
    if os.geteuid() == 0:
        assert changed(before) != {}
        status, out, _ = call("restore")
        assert status == 0
        assert "put back what the killed run" in out
    assert changed(before) == {}
    assert call("restore") == (0, "nothing to restore\n", "")
    status, out, err = call("resume", only_run(tmp_path / "results"))
    assert status == 0, err
    assert "Finished: 2 blocks complete, 0 incomplete" in out


@pytest.mark.usefixtures("unchanged")
def test_a_second_run_is_told_who_holds_the_host(call: Call, tmp_path: Path) -> None:
    with started(tmp_path / "results", tmp_path / "marker") as process:
        try:
            for verb in (["run", str(tiny(tmp_path)), "--results", str(tmp_path / "other")], ["restore"]):
                status, _, err = call(*verb)
                assert status == 2
                assert f"another hugewise run holds this host (pid {process.pid})" in err
                assert f"kill {process.pid}" in err
        finally:
            process.terminate()
            process.communicate(timeout=20)
