"""Whole runs on the real kernel: what is measured, what is proven, and that everything is put back."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

import hugewise
from hugewise.attempt import runner
from hugewise.errors import LockedError
from hugewise.host import journal
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import HostLock
from hugewise.model.pages import THP
from hugewise.model.results import Results
from hugewise.report.reasons import in_words
from hugewise.session import identity, session, steps
from hugewise.store.folder import RunFolder
from hugewise.store.records import BlockOpened
from tests.drive import drive, words
from tests.requirements import need, need_program, need_root
from tests.state import changed, page_state

pytestmark = pytest.mark.usefixtures("unchanged")

SMALL = """
format = 1
name = "small"
policies = [{policies}]
confidence = 0.9

[budget]
blocks = {blocks}

[between]
settle = "0ms"

[[workload]]
name = "chase"
timeout = "30s"
parameters = {{ bytes = "8m", loads = 20000 }}
"""


def small(folder: Path, *policies: str, blocks: int = 2) -> Path:
    path = folder / "small.toml"
    names = ", ".join(f'"{name}"' for name in policies or ("base", "thp", "hugetlb-2m"))
    path.write_text(SMALL.format(policies=names, blocks=blocks))
    return path


def only_run(results: Path) -> Path:
    (path,) = (results / "small").iterdir()
    return path


def check_whole(results: Results, blocks: int = 2) -> None:
    """Every arm once in each complete block, nothing twice, everything delivered."""
    assert results.state == "finished"
    counted = [a for a in results.attempts if a.state == "accepted"]
    (cell,) = results.cells
    assert Counter(a.arm for a in counted) == {arm.arm: blocks for arm in cell.arms}
    assert len({(a.block, a.arm) for a in counted}) == len(counted)
    assert all(a.delivery.delivered for a in counted), [a.delivery for a in counted]


def test_a_run_measures_proves_and_restores(tmp_path: Path) -> None:
    need_root()
    loaded = hugewise.load(small(tmp_path, "base", "thp", "mthp-64k", "hugetlb-2m"))
    results = hugewise.run(loaded, results=tmp_path / "results", seed=bytes(16))
    check_whole(results)
    for arm in results.cells[0].arms:
        assert arm.delivered_share is not None
        assert arm.delivered_share >= 0.95
        assert "kpageflags" in arm.proof
    assert results.seed == bytes(16).hex()
    for attempt in results.attempts:
        assert attempt.overhead_s is not None and attempt.overhead_s > 0
        assert attempt.knobs[f"{THP}/enabled"] == ("always" if attempt.arm == "thp" else "never")
        assert attempt.metrics["ns_per_load"] is not None


def test_a_second_run_is_a_run_of_its_own_with_a_seed_of_its_own(tmp_path: Path) -> None:
    loaded = hugewise.load(small(tmp_path, "base", "thp"))
    one = hugewise.run(loaded, results=tmp_path / "results")
    two = hugewise.run(loaded, results=tmp_path / "results")
    assert one.folder != two.folder
    assert one.seed != two.seed
    assert len(two.attempts) == len(one.attempts)


STEPS = [step.__name__ for step in (*steps.OPENING, *runner.STEPS)] + list(steps.CLOSING)
HELD = {"lock", "fill_pools", "make_cgroups", "apply", "launch", "restore"}
"""A step for each thing that must be put back: the lock, the pool, groups, knobs, an attempt, the journal."""


def test_the_closing_steps_are_all_of_them(tmp_path: Path) -> None:
    """The list that the kill test is made from is the one that a run walks."""
    need_root()
    walked: list[str] = []
    session.run(hugewise.load(small(tmp_path)), tmp_path / "results", on_step=walked.append)
    assert set(walked) == set(STEPS)
    assert tuple(walked[-len(steps.CLOSING) :]) == steps.CLOSING


@pytest.mark.parametrize("step", [pytest.param(step, marks=[] if step in HELD else pytest.mark.soak) for step in STEPS])
def test_killed_at_any_step_it_is_restored_and_resumed(tmp_path: Path, step: str) -> None:
    need_root()
    before = page_state()
    nth = "3" if step in [each.__name__ for each in runner.STEPS] else "1"
    killed = drive("run", small(tmp_path), tmp_path / "results", "--at", step, "--nth", nth, "--do", "kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    journal.restore()
    assert changed(before) == {}
    folder = only_run(tmp_path / "results")
    if not (folder / "run.jsonl").exists():
        assert steps.OPENING.index(getattr(steps.Session, step)) <= steps.OPENING.index(
            steps.Session.record
        )  # killed before the first record
        return
    kept = {(a.block, a.arm): a.started for a in RunFolder(folder).read().attempts}
    if not (folder / "seed").exists():
        check_whole(hugewise.open_results(folder))
        return
    results = hugewise.resume(folder)
    check_whole(results)
    again = {(a.block, a.arm): a.started for a in results.attempts}
    assert kept.items() <= again.items()  # none lost, none made again


def test_interrupted_it_restores_and_can_be_resumed(tmp_path: Path) -> None:
    before = page_state()
    path = small(tmp_path, "base", "thp")
    ended = drive("run", path, tmp_path / "results", "--at", "launch", "--nth", "2", "--do", "interrupt")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert changed(before) == {}
    folder = only_run(tmp_path / "results")
    broken = hugewise.open_results(folder)
    assert broken.state == "interrupted"
    assert broken.seed is None
    assert all(comparison.verdict == "undecided" for cell in broken.cells for comparison in cell.comparisons)
    check_whole(hugewise.resume(folder))


def test_an_interrupt_just_before_the_closing_is_raised_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    block, pending = signal.pthread_sigmask, [KeyboardInterrupt()]
    closed: list[str] = []

    def late(how: int, signals: set[signal.Signals]) -> None:
        block(how, signals)
        if pending:
            raise pending.pop()

    monkeypatch.setattr(signal, "pthread_sigmask", late)
    stack = ExitStack()
    stack.callback(closed.append, "restore")
    with pytest.raises(KeyboardInterrupt):
        steps.close(stack)
    assert closed == ["restore"]
    assert signal.SIGINT not in block(signal.SIG_BLOCK, ())


def test_a_command_runs_in_the_folder_of_its_first_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").touch()
    monkeypatch.chdir(tmp_path / "here")

    def interrupt(step: str) -> None:
        if step == "launch":
            raise KeyboardInterrupt

    chosen = hugewise.command_study(["base", "as-is"], ["cat", "file"], blocks=2)
    folder = session.run(chosen, tmp_path / "results", on_step=interrupt)
    monkeypatch.chdir(tmp_path)
    results = hugewise.resume(folder.path)
    assert {attempt.state for attempt in results.attempts} == {"accepted"}


def test_what_changed_between_sessions_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drive(
        "run", small(tmp_path, "base", "thp"), tmp_path / "results", "--at", "launch", "--nth", "2", "--do", "interrupt"
    )
    here = identity.versions()
    monkeypatch.setattr(identity, "versions", lambda: here | {"hugewise-probe": "99"})
    results = hugewise.resume(only_run(tmp_path / "results"))
    assert any("session 2: hugewise-probe is 99, it was" in said for said in results.disturbances)


def test_a_block_broken_off_too_long_ago_is_replaced(tmp_path: Path) -> None:
    path = small(tmp_path, "base", "thp")
    path.write_text(path.read_text().replace("format = 1", 'format = 1\nwindow = "1s"'))
    drive("run", path, tmp_path / "results", "--at", "launch", "--nth", "2", "--do", "interrupt")
    time.sleep(1.1)
    results = hugewise.resume(only_run(tmp_path / "results"))
    check_whole(results)
    assert results.blocks_incomplete == 1
    assert [a.state for a in results.attempts if a.block == 1] == ["abandoned"]
    opened = [r for r in RunFolder(Path(results.folder)).read().records if isinstance(r, BlockOpened)]
    assert [record.block for record in opened] == [1, 2, 3]


def test_an_account_in_another_network_namespace_sees_the_run_of_root(tmp_path: Path) -> None:
    """The socket that accounts share is not there; root's journal is."""
    need_root()
    command = words("run", small(tmp_path, "base", "thp"), tmp_path / "results", "--at", "launch", "--do", "hold")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "holding\n"
            told, tell = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    ctypes.CDLL(None).unshare(0x40000000)  # CLONE_NEWNET
                    os.setresuid(65534, 65534, 65534)
                    with HostLock(LocalHost()):
                        journal.close(LocalHost())
                except LockedError as error:
                    os.write(tell, str(error.pid).encode())
                finally:
                    os._exit(0)
            os.close(tell)
            os.waitpid(child, 0)
            assert os.read(told, 32) == str(holder.pid).encode()
            os.close(told)
        finally:
            holder.send_signal(signal.SIGINT)
            holder.wait(60)


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        (f"{THP}/enabled", "always"),
        pytest.param(f"{THP}/hugepages-64kB/enabled", "madvise", marks=pytest.mark.soak),
        pytest.param(f"{THP}/khugepaged/pages_to_scan", "4095", marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("step", ["apply", "recheck"])
def test_a_knob_that_somebody_turns_disturbs_its_block_and_is_left_to_them(
    tmp_path: Path, knob: str, value: str, step: str
) -> None:
    need_root()
    need(Path(knob).exists(), f"a kernel with {knob}")
    original = Path(knob).read_text()
    try:
        done = drive(
            "run",
            small(tmp_path, "base", "mthp-64k"),
            tmp_path / "results",
            "--at",
            step,
            "--nth",
            "2",
            "--do",
            f"write={knob}={value}",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        results = hugewise.open_results(only_run(tmp_path / "results"))
        check_whole(results)
        assert results.blocks_disturbed == 1
        stored = RunFolder(Path(results.folder)).read().attempts
        assert ("abandoned" in [attempt.state for attempt in stored]) == (step == "recheck")
        assert any(knob in said and value in said for said in results.disturbances)
        chosen = Path(knob).read_text().strip()
        assert value in (chosen, *[word.strip("[]") for word in chosen.split() if word.startswith("[")])
    finally:
        word = next((w.strip("[]") for w in original.split() if w.startswith("[")), original.strip())
        Path(knob).write_text(word)


def test_a_pool_that_is_taken_away_ends_the_run_by_name(tmp_path: Path) -> None:
    need_root()
    pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    need(Path(pool).exists(), "2 MiB hugetlb pages")
    before = page_state()
    done = drive(
        "run",
        small(tmp_path, "base", "hugetlb-2m"),
        tmp_path / "results",
        "--at",
        "apply",
        "--nth",
        "2",
        "--do",
        f"write={pool}=0",
    )
    assert done.returncode == 1
    assert "nr_hugepages" in done.stdout
    assert "hugewise resume" in done.stdout
    assert changed(before) == {}
    check_whole(hugewise.resume(only_run(tmp_path / "results")))


def test_a_program_that_disables_thp_for_itself_gets_no_verdict_but_the_reason(tmp_path: Path) -> None:
    need_root()
    code = "import ctypes; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0); b = bytearray(64 << 20)"
    chosen = hugewise.command_study(["base", "thp"], [sys.executable, "-c", code], blocks=2)
    results = hugewise.run(chosen, results=tmp_path / "results")
    (comparison,) = results.cells[0].comparisons
    assert comparison.verdict == "none"
    assert "disabled THP for itself" in in_words(comparison.reason)
    assert comparison.n == 0
    assert comparison.n_all == 4, "one block of two copies may lack its pages"


def test_a_full_disk_is_said_and_what_was_accepted_is_kept(tmp_path: Path) -> None:
    need_root()
    need_program("mount", "mount")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", str(disk)], check=True)
    try:
        done = drive("run", small(tmp_path, "base", "thp", blocks=50), disk)
        assert done.returncode == 1
        assert "StorageError: cannot write" in done.stdout
        results = hugewise.open_results(only_run(disk))
        assert any(a.state == "accepted" for a in results.attempts)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_new_session_begins_after_its_pairs_and_everything_is_set_up_again(tmp_path: Path) -> None:
    path = small(tmp_path, "base", "thp", blocks=4)
    path.write_text(path.read_text().replace("[between]", "[sessions]\npairs = 2\n\n[between]"))
    walked: list[str] = []

    def walk(step: str) -> None:
        walked.append(step)
        if walked.count("lock") == 2 and step == "lock":  # between the two sessions no other run begins
            with pytest.raises(LockedError):
                HostLock(LocalHost()).__enter__()

    folder = session.run(hugewise.load(path), tmp_path / "results", on_step=walk)
    results = hugewise.open_results(folder.path)
    check_whole(results, blocks=4)
    assert Counter(a.session for a in results.attempts) == {1: 4, 2: 4}
    assert walked.count("lock") == walked.count("unlock") == 2


def test_a_run_that_is_refused_before_its_first_record_leaves_no_folder(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path / "results", "s", study_json=b"{}", study_toml=None, seed=bytes(16))
    session.discard_unbegun(made.path)
    assert list((tmp_path / "results").iterdir()) == []
    one, two = (RunFolder.create(tmp_path, "s", study_json=b"{}", study_toml=None, seed=bytes(16)) for _ in range(2))
    session.discard_unbegun(two.path)
    assert list((tmp_path / "s").iterdir()) == [one.path]
    (one.path / "run.jsonl").touch()  # it has begun, and can be reported
    session.discard_unbegun(one.path)
    assert one.path.is_dir()
