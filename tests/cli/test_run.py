"""`hugewise run` and `hugewise resume`."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hugewise
from hugewise.machine import probe
from hugewise.model.results import Results
from hugewise.store.folder import HEAD, TAIL, RunFolder
from tests.build.logs import rewritten
from tests.cli.conftest import HUGEWISE, SEED, Call, tiny
from tests.drive import only_run
from tests.requirements import need_program, need_root
from tests.state import changed, page_state
from tests.wait import has_ended, until


def test_results_that_cannot_be_written(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, out, err = call("run", tiny(tmp_path), "--results", tmp_path / "file" / "below")
    assert (status, out) == (1, "")
    assert f"cannot write the run's folder {tmp_path}/file/below" in err
    assert "--results" in err


def test_what_a_run_shows(finished: Path) -> None:
    shown = (finished.parents[2] / "shown.txt").read_text(encoding="utf-8")
    assert re.fullmatch(r"\w+: \d of \d comparisons? decided in \d[^()]*s \(finished\)", shown.splitlines()[0])
    assert "\x1b" not in shown
    assert shown.rstrip().endswith("report.html")
    assert all(len(line) <= 80 for line in shown.splitlines() if not line.startswith("Report: "))
    assert SEED in (finished / "run.jsonl").read_text().splitlines()[-1]
    opened = json.loads((finished / "run.jsonl").read_text().splitlines()[0])
    assert opened["command"][:2] == ["hugewise", "run"]
    assert opened["command"][opened["command"].index("--seed") + 1] == "SEED"
    assert hugewise.open_results(finished).command == tuple(opened["command"])


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
        except OSError:
            continue
        if words in wanted and not has_ended(int(path.name)):
            found.append(int(path.name))
    return found


@pytest.mark.usefixtures("unchanged")
def test_a_command_that_fails_is_said_to_fail(call: Call, tmp_path: Path) -> None:
    results, out = measured(call, tmp_path, command=["sh", "-c", "exit 3"], policies="base,thp")
    assert {attempt.state for attempt in results.attempts} == {"failed"}
    assert re.search(r"Failed: 4 attempts of (base|thp) on command: exit status 3 \(and 1 more, in the report\)", out)
    told = Path(results.folder, "report.md").read_text(encoding="utf-8")
    assert all(re.search(rf"\| {arm} .*exit status 3", told) for arm in ("base", "thp"))


@pytest.mark.usefixtures("unchanged")
def test_a_command_that_takes_too_long_is_killed(call: Call, tmp_path: Path) -> None:
    results, out = measured(call, tmp_path, "--timeout", "1s", command=["sleep", "471199"])
    assert "timed out" in out
    assert {attempt.state for attempt in results.attempts} == {"failed"}
    assert sleeping("471199") == []


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "command", [["yes"], [sys.executable, "-c", "import os; os.ftruncate(1, 1 << 43)"]], ids=["endless", "sparse"]
)
def test_output_without_end_is_an_attempt_that_failed(call: Call, tmp_path: Path, command: list[str]) -> None:
    """`yes` wrote 591 MB in half a second; 8 TiB that are not there were read as root."""
    results, out = measured(call, tmp_path, command=command)
    reason = f"its stdout has more than {probe.MOST_SAID} bytes, the most that is kept"
    assert {(attempt.state, attempt.reason) for attempt in results.attempts} == {("failed", reason)}
    assert reason in " ".join(out.split())
    folders = sorted(Path(results.folder).glob("attempts/b*"))
    kept = [(path / "stdout").read_bytes() for path in folders]
    left_out = b"\n[hugewise left out %d bytes here]\n" % (probe.MOST_SAID - HEAD - TAIL)
    assert [(len(told), told[HEAD:][: len(left_out)]) for told in kept] == [(HEAD + len(left_out) + TAIL, left_out)] * 4


@pytest.mark.usefixtures("unchanged")
def test_a_programs_path_is_taken_as_it_is_written(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.sh").write_text("#!/bin/sh\nhead -c 3000000 /dev/zero\n")
    (tmp_path / "here.sh").chmod(0o755)
    results, _ = measured(call, tmp_path / "results", command=["./here.sh"])
    assert {attempt.state for attempt in results.attempts} == {"accepted"}
    attempts = sorted(Path(results.folder).glob("attempts/b*"))
    assert [(path / "stdout").stat().st_size for path in attempts] == [3_000_000] * 4
    assert {stat.S_IMODE((path / "spec.json").stat().st_mode) for path in attempts} == {0o600}
    assert results.question == "Which pages for: ./here.sh"
    assert results.question in Path(results.folder, "report.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("unchanged")
def test_children_that_leave_early_are_proven_by_a_twin(call: Call, tmp_path: Path) -> None:
    results, _ = measured(call, tmp_path, command=["sh", "-c", "/bin/true; /bin/true; exit 0"], policies="base,thp")
    assert {attempt.delivery.proof for attempt in results.attempts} == {"twin"}
    assert all(list(Path(results.folder).glob(f"attempts/b*{arm}*/twin.jsonl")) for arm in ("base", "thp"))


@pytest.mark.usefixtures("unchanged")
def test_a_child_that_becomes_a_daemon_is_killed(call: Call, tmp_path: Path) -> None:
    need_program("setsid", "util-linux")
    # It ends when its daemon is there.
    daemon = """setsid sh -c 'sleep 471198 & : > "$0"; exec sleep 471197' "$0" &"""
    code = f'rm -f "$0"; {daemon} until [ -e "$0" ]; do :; done'
    results, _ = measured(call, tmp_path, command=["sh", "-c", code, str(tmp_path / "there")])
    assert {attempt.state for attempt in results.attempts} == {"accepted"}
    assert sleeping("471197", "471198") == []


@pytest.mark.usefixtures("unchanged")
def test_proof_by_counters_and_another_metric(call: Call, tmp_path: Path) -> None:
    need_root()
    results, out = measured(
        call, tmp_path, "--proof", "counters", "--metric", "cpu_s", "--share", "0",
        command=["true"], policies="base,thp",
    )  # fmt: skip
    assert "Change of cpu_s against base." in " ".join(out.split())
    assert {attempt.delivery.source for attempt in results.attempts} == {"counters"}
    assert results.cells[0].comparisons[0].verdict != "none"


@pytest.mark.usefixtures("unchanged")
def test_whom_a_command_and_a_micro_workload_run_as(
    finished: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_root()
    specs = [json.loads(path.read_text()) for path in finished.glob("attempts/b*/spec.json")]
    assert {(spec["uid"], spec["gid"]) for spec in specs} == {(65534, 65534)}
    assert not any("SECRET" in spec["env"] for spec in specs)
    path = tmp_path / "who.toml"
    path.write_text(
        'format = 1\nname = "who"\npolicies = ["base", "as-is"]\nbudget = { blocks = 2 }\n'
        '[[workload]]\nname = "command"\nuser = "nobody"\nparameters = { argv = ["id", "-u"] }\n'
    )
    monkeypatch.setenv("SECRET_TOKEN", "the caller's")
    status, _, err = call("run", path, "--results", tmp_path / "results")
    assert status == 0, err
    told = [found.read_text() for found in (tmp_path / "results").glob("*/*/attempts/b*/spec.json")]
    assert told and not any("SECRET" in each for each in told)
    outputs = {found.read_text() for found in (tmp_path / "results").glob("*/*/attempts/b*/stdout")}
    assert outputs == {"65534\n"}


@pytest.mark.usefixtures("unchanged")
def test_a_command_of_another_account_does_not_begin_where_that_cannot_go(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root entered the folder for it: `nobody` was in a folder below /root, and went on from there."""
    need_root()
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (tmp_path / "who.toml").write_text(
        'format = 1\nname = "who"\npolicies = ["base", "as-is"]\nbudget = { blocks = 2 }\n'
        '[[workload]]\nname = "command"\nuser = "nobody"\nparameters = { argv = ["ls", ".."] }\n'
    )
    monkeypatch.chdir(private)
    status, _, err = call("run", tmp_path / "who.toml", "--results", tmp_path / "results")
    assert status == 2
    assert f"the command is to run in {private} as nobody, who cannot enter /" in err
    assert 'user = "..."' in err
    assert list((tmp_path / "results").glob("*/*/attempts/b*")) == []


# Runs that are ended

# Its first call waits to be ended; every later one is quick.
_SLOW_ONCE = 'test -e "$0" || { : > "$0"; sleep 471196 & sleep 471195; }'


@contextmanager
def started(results: Path, marker: Path) -> Iterator[subprocess.Popen[str]]:
    """`hugewise run` on a command that is in its first attempt. It does not outlive the test. What is prepared does not
    take turns, so that nothing runs before.
    """
    policies = "base,thp" if os.geteuid() == 0 else "base,as-is"
    command = [
        *HUGEWISE,
        "run",
        "--policy",
        policies,
        "--blocks",
        "2",
        "--time",
        "1h",
        "--prepare",
        "true",
        "--results",
        str(results),
        "--",
    ]
    process = subprocess.Popen(
        [*command, "sh", "-c", _SLOW_ONCE, str(marker)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: sleeping("471195") or process.poll() is not None, "its first attempt is under way")
        assert process.poll() is None, process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(each, marks=pytest.mark.soak) for each in (signal.SIGINT, signal.SIGHUP))],
)
@pytest.mark.usefixtures("unchanged")
def test_a_signal_ends_a_run_in_good_order(call: Call, tmp_path: Path, number: signal.Signals) -> None:
    before = page_state()
    with started(tmp_path / "results", tmp_path / "marker") as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert changed(before) == {}
    assert sleeping("471195", "471196") == []
    assert "Traceback" not in err
    folder = only_run(tmp_path / "results")
    assert f"interrupted; to go on: hugewise resume {folder}" in err
    assert "(interrupted)" in out.splitlines()[0]
    assert f"Last hash: {RunFolder(folder).read().hash}" in out.splitlines()
    if number == signal.SIGTERM:
        assert (folder / "report.html").exists()
        assert call("report", folder)[0] == 0
        status, out, err = call("resume", folder)
        assert status == 0, err
        assert_finished(folder, out)


def assert_finished(folder: Path, out: str) -> None:
    """With both blocks complete, as the report has it."""
    assert "(finished)" in out.splitlines()[0]
    assert "Finished: 2 blocks complete, 0 incomplete" in (folder / "report.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("unchanged")
def test_killed_in_the_middle_nothing_goes_on_and_everything_can_be_put_back(call: Call, tmp_path: Path) -> None:
    before = page_state()
    with started(tmp_path / "results", tmp_path / "marker") as process:
        process.kill()
        process.wait(60)
        # By themselves they would sleep for five days.
        left = partial(sleeping, "471195", "471196")
        until(lambda: not left(), "processes of the killed run end", seen=left)
    if os.geteuid() == 0:
        assert changed(before) != {}
        status, out, _ = call("restore")
        assert status == 0
        assert "put back what the killed run" in out
    assert changed(before) == {}
    status, out, err = call("restore")
    assert (status, out.startswith("nothing to restore"), err) == (0, True, "")
    folder = only_run(tmp_path / "results")
    status, out, err = call("resume", folder)
    assert status == 0, err
    assert_finished(folder, out)


@pytest.mark.usefixtures("unchanged")
def test_a_second_run_is_told_who_holds_the_host(call: Call, tmp_path: Path) -> None:
    with started(tmp_path / "results", tmp_path / "marker") as process:
        try:
            for verb in (["run", str(tiny(tmp_path)), "--results", str(tmp_path / "other")], ["restore"]):
                status, _, err = call(*verb)
                assert status == 2
                assert f"another hugewise run holds this host (pid {process.pid}, of " in err
                assert re.search(r", about (1 h 00|59) min( \d\d s)? left\): .* --time 1h", err)
                assert f"kill {process.pid}" in err
            assert list((tmp_path / "other").rglob("*")) == []  # refused, and nothing of it is left
            waiting = [*HUGEWISE, "run", str(tiny(tmp_path)), "--results", str(tmp_path / "other"), "--wait"]
            with subprocess.Popen(waiting, stderr=subprocess.PIPE, text=True) as waits:
                assert waits.stderr is not None
                waiting_for = "waiting for its end (Ctrl-C stops waiting): another hugewise run holds this host"
                assert any(line.startswith(waiting_for) for line in waits.stderr)
                waits.send_signal(signal.SIGINT)
                assert waits.stderr.read().strip() == "hugewise: interrupted"
            assert waits.returncode == 130
        finally:
            process.terminate()
            process.communicate(timeout=60)


def unfinished(run: Path) -> list[dict[str, Any]]:
    """Make a finished run what it was before its last record; returns its records."""
    (run / "seed").write_text(SEED)
    return rewritten(run, lambda records: records[:-1])


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
        # Of a run that has ended it is known where its attempts were.
        ("attempts.parquet", _remove, {"report": "attempts.parquet", "resume": "attempts/b00001-0-"}),
    ],
    ids=lambda damage: f"{damage[0].rpartition('/')[2]}-{damage[1].__name__[1:]}",
)
@pytest.mark.usefixtures("unchanged")
def test_a_damaged_run_is_refused_by_name(
    call: Call, copy: Path, verb: str, damage: tuple[str, Callable[[Path], None], str | dict[str, str]]
) -> None:
    file, harm, message = damage
    if verb == "resume":  # as it was before its last record
        unfinished(copy)
    (harmed,) = copy.glob(file)
    harm(harmed)
    status, out, err = call(verb, copy)
    assert (status, out) == (2, "")
    assert (message if isinstance(message, str) else message[verb]) in err
    assert "cure: " in err


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
    unfinished(copy)
    rewritten(copy, lambda records: [records[0] | change, *records[1:]])
    status, out, err = call("resume", copy)
    assert (status, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("kernel", "said"),
    [({"release": "1.2.3"}, "1.2.3"), ([], "None"), (None, "None"), ("6.1", "None"), (7, "None")],
)
@pytest.mark.usefixtures("unchanged")
def test_a_run_under_another_kernel_is_not_resumed(call: Call, copy: Path, kernel: object, said: str) -> None:
    first, *others = unfinished(copy)
    first["host"]["kernel"] = kernel
    rewritten(copy, lambda _: [first, *others])
    status, _, err = call("resume", copy)
    assert status == 2
    assert f"was begun under the kernel {said}" in err


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
    assert "(finished)" in out.splitlines()[0]
    assert "Finished: 2 blocks complete, 0 incomplete" in (copy / "report.md").read_text(encoding="utf-8")
    assert (copy / "attempts.parquet").read_bytes() == before
    assert not [*copy.glob("attempts/*/attempt.json")]
