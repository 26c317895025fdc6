"""Runs with servers that are killed: no server, no folder, no setting outlives them, and the run is resumed whole."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

import hugewise
from hugewise.attempt import runner
from hugewise.attempt.service import ServiceDriver
from hugewise.host import journal
from hugewise.session import steps
from hugewise.store.folder import RunFolder
from tests.drive import drive, only_run
from tests.requirements import need_program, need_root
from tests.servers.trying import alongside
from tests.state import run_folders
from tests.wait import until

pytestmark = pytest.mark.usefixtures("unchanged")

STUDY = """
format = 1
name = "killed"
policies = ["base", "thp"]
confidence = 0.9

[budget]
blocks = 2

[between]
settle = "0ms"

[[workload]]
name = "redis"
timeout = "120s"
delivery = { share = 0.0 }
parameters = { keys = 20000, duration = "200ms", lead = "0s" }
"""
# Those in which a staged workload has something that could be left behind.
STEPS = [
    "make_scratch",
    "prepare",
    *(step.__name__ for step in runner.STEPS[runner.STEPS.index(runner.supply) :]),
    "remove_scratch",
    "remove_cgroups",
]


def a_study(folder: Path) -> Path:
    path = folder / "killed.toml"
    path.write_text(STUDY)
    return path


def servers(run: str) -> list[int]:
    """Processes whose command line names the folder of an attempt."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if run.encode() in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("step", ["serve", *(pytest.param(s, marks=pytest.mark.soak) for s in STEPS if s != "serve")])
def test_killed_at_any_step_nothing_is_left_and_the_run_goes_on(tmp_path: Path, step: str) -> None:
    need_root()
    need_program("redis-server", "redis-server")
    before = run_folders(Path("/dev/shm"))
    nth = "3" if step in [each.__name__ for each in runner.STEPS] else "1"
    killed = drive("run", a_study(tmp_path), tmp_path / "results", "--at", step, "--nth", nth, "--do", "kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    journal.restore()
    assert run_folders(Path("/dev/shm")) <= before
    folder = only_run(tmp_path / "results")
    until(lambda: not servers("/dev/shm/hugewise-"), "no server is left")
    if not (folder / "run.jsonl").exists():
        assert step in [each.__name__ for each in steps.OPENING]
        return
    if not (folder / "seed").exists():
        assert step not in [each.__name__ for each in runner.STEPS]
        return
    kept = {(a.block, a.arm): a.started for a in RunFolder(folder).read().attempts}
    results = hugewise.resume(folder)
    counted = [a for a in results.attempts if a.state == "accepted"]
    assert Counter(a.arm for a in counted) == {"base": 2, "thp": 2}
    assert all({(a.block, a.arm): a.started for a in counted}[each] == started for each, started in kept.items())
    assert run_folders(Path("/dev/shm")) <= before


def test_a_server_that_is_killed_in_the_measured_part_fails_its_attempt_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_root()
    need_program("redis-server", "redis-server")
    killed: list[int] = []

    def kill(play: ServiceDriver) -> None:
        if not killed:
            killed.extend(play.procedure_runner.tested.processes())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    alongside(monkeypatch, kill)
    results = hugewise.run(hugewise.load(a_study(tmp_path)), results=tmp_path / "results")
    assert killed
    assert (results.state, Counter(attempt.state for attempt in results.attempts)["failed"]) == ("finished", 1)
    (failed,) = (one for one in results.attempts if one.state == "failed")
    assert "ended during the attempt (signal 9)" in (failed.reason or "")
    assert not failed.metrics
