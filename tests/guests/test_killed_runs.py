"""Runs in guests that are killed or interrupted: no guest, server, mount, interface, folder or pool page outlives them,
and they go on.
"""

import os
import pwd
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import hugewise
from hugewise.attempt import runner
from hugewise.guests import nfs
from hugewise.host import journal, network
from hugewise.session import steps
from hugewise.store.folder import RunFolder
from tests.build import known
from tests.drive import drive, only_run, words
from tests.guests import runs
from tests.state import changed, page_state
from tests.wait import until

# A step is told of before it happens: `record` comes after the guests' mounts were made. A guest lives at `launch` and
# `leave`, and every attempt but the last is stored at `board`.
STEPS = ["make_guests", "record", "board", "launch", "leave", "end_guests"]


def check_whole(folder: Path) -> None:
    """Every arm in each block once; what was there before is as it was."""
    kept = {(a.block, a.arm): a.started for a in RunFolder(folder).read().attempts}
    results = hugewise.resume(folder)
    assert results.state == "finished"
    counted = {(a.block, a.arm): a for a in results.attempts if a.state == "accepted"}
    assert Counter(arm for _, arm in counted) == {"small": 2, "huge": 2}
    assert {key: counted[key].started for key in kept} == kept
    for (_, arm), attempt in counted.items():
        assert attempt.metrics["page_faults"] == runs.BYTES // (4096 if arm == "small" else 2 << 20)
        assert attempt.guest["backing_share"] == 1.0


def test_the_steps_are_steps() -> None:
    opening, attempted = ([step.__name__ for step in each] for each in (steps.OPENING, runner.STEPS))
    assert {*STEPS} <= {*opening, *attempted, *steps.CLOSING}
    assert opening.index("make_guests") < opening.index("reach_clients") < opening.index("record")
    assert attempted.index("board") < attempted.index("launch") < attempted.index("leave")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.soak
def test_killed_at_a_step_nothing_is_left_and_the_run_goes_on(
    tmp_path: Path, nothing_left: set[str], step: str
) -> None:
    state = page_state()
    attempted = step in [each.__name__ for each in runner.STEPS]
    study = runs.write(tmp_path, runs.POOLED)
    nth = "4" if attempted else "1"
    killed = drive("run", study, tmp_path / "results", "--at", step, "--nth", nth, "--do", "kill")
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    assert runs.ended(nothing_left) == set()  # nobody has cleaned up yet: QEMU dies with its parent
    journal.restore()
    assert runs.not_as(state) == {}
    assert runs.left() - nothing_left == set()
    folder = only_run(tmp_path / "results")
    if attempted:
        check_whole(folder)
    elif step in steps.CLOSING:
        assert hugewise.open_results(folder).state == "finished"


def hold(folder: Path, study: str, step: str, nth: int) -> subprocess.Popen[str]:
    """A run that waits at a step, in a session of its own, as a shell's job."""
    command = words("run", runs.write(folder, study), folder / "results")
    command += ["--at", step, "--nth", str(nth), "--do", "hold"] if step else []
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )


def owned(pid: int) -> Counter[str]:
    """The programs that live for the run of that process, and how many of each."""
    said = (process.split(" of ") for process in runs.processes().values())
    return Counter(program for program, folder in said if folder == f"hugewise-{pid}")


@pytest.mark.soak
def test_killed_while_a_guest_boots(tmp_path: Path, nothing_left: set[str]) -> None:
    state = page_state()
    with hold(tmp_path, runs.POOLED, "", 0) as run:
        until(lambda: owned(run.pid), "a guest of the run lives", seen=run.poll)
        assert run.poll() is None
        run.kill()
    assert runs.ended(nothing_left) == set()
    journal.restore()
    assert runs.not_as(state) == {}
    check_whole(only_run(tmp_path / "results"))


@pytest.mark.parametrize("resumed", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_killed_while_two_guests_and_the_nfs_server_live(tmp_path: Path, nothing_left: set[str], resumed: bool) -> None:
    runs.need_none([*network.missing(pwd.getpwnam("nobody").pw_uid), *nfs.missing()])
    state = page_state()
    with hold(tmp_path, runs.TOGETHER, "launch", 1) as run:
        assert known(run.stdout).readline() == "holding\n"
        assert owned(run.pid) == {"qemu-system-x86_64": 2, "ganesha.nfsd": 1}
        links = {path.name for path in Path("/sys/class/net").glob(f"hw-*-{run.pid}")}
        assert links == {f"hw-{name}-{run.pid}" for name in ("br", "t0", "t1")}
        assert "2048kB/nr_hugepages" in "".join(changed(state))
        run.kill()
    assert runs.ended(nothing_left) == set()
    journal.restore()
    assert runs.not_as(state) == {}
    assert runs.left() - nothing_left == set()
    if resumed:
        check_whole(only_run(tmp_path / "results"))


@pytest.mark.parametrize("step", ["board", "leave"])
@pytest.mark.soak
def test_an_interrupt_of_the_whole_process_group_ends_it_cleanly(
    tmp_path: Path, nothing_left: set[str], step: str
) -> None:
    """Ctrl-C reaches every process of the terminal's job; guests are ended by hugewise alone."""
    state = page_state()
    with hold(tmp_path, runs.POOLED, step, 2) as run:
        assert known(run.stdout).readline() == "holding\n"
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(60) == 0
    assert runs.left() - nothing_left == set()
    assert runs.not_as(state) == {}
    folder = only_run(tmp_path / "results")
    assert hugewise.open_results(folder).state == "interrupted"
    assert len(RunFolder(folder).read().attempts) == 1
    check_whole(folder)
