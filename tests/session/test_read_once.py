"""A run's log and its attempts are parsed once for a result, and once for a session that goes on with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from hugewise.analysis import analysis, combining, forecast
from hugewise.errors import RunError, StorageError
from hugewise.host.knob import Settings
from hugewise.plan.plan import Plan
from hugewise.session import identity, progress, session, steps
from hugewise.session.conductor import Conductor
from hugewise.session.steps import Session
from hugewise.store import folder
from hugewise.store.folder import RunFolder
from hugewise.store.records import BlockClosed, BlockOpened, Closed, Run
from hugewise.study.guest import GuestUse
from tests.analysis.test_combining import a_run
from tests.analysis.test_forecast import cell, normal, the_study, write_run
from tests.build.hosts import FakeHost, Unheld
from tests.build.trials import attempt
from tests.opened_files import opened_files


def files(run: Path) -> dict[Path, int]:
    """What a run is read from, each once."""
    return {run / "run.jsonl": 1, run / "study.json": 1} | dict.fromkeys(run.glob("attempts/*/attempt.json"), 1)


@pytest.fixture(autouse=True)
def asked_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether somebody holds a log is asked of the log, of which nothing is read for that."""
    monkeypatch.setattr(analysis, "going_on", lambda _: False)


def read_of(opened: dict[Path, list[str]], run: Path) -> dict[Path, int]:
    beside = {"seed", "guests.json"}
    return {path: len(modes) for path, modes in opened.items() if run in path.parents and path.name not in beside}


def test_an_analysis_and_a_forecast_read_a_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = the_study()
    run = write_run(tmp_path, of, normal(0.02, 12))
    for look in (analysis.analyze, lambda path: forecast.forecast(of, [path])):
        with monkeypatch.context() as meanwhile:
            opened = opened_files(meanwhile)
            look(run)
            assert read_of(opened, run) == files(run)


def test_runs_that_are_combined_are_read_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [a_run(tmp_path, seed) for seed in (1, 2)]
    opened = opened_files(monkeypatch)
    combining.answer(runs)
    for run in runs:
        assert read_of(opened, run) == files(run)


@pytest.fixture
def broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run with a block that is open, and sessions that turn nothing."""
    folder = RunFolder(write_run(tmp_path, the_study(), normal(0.02, 3), cells=(cell("chase", "thp"),)))
    folder.append(BlockOpened(t=200.0, block=4, cell="chase", session=1, arms=["base", "thp"]))
    folder.accept(folder.draft("b4-thp"), attempt("thp", 1.0, block=4))

    def begin(self: Session) -> None:
        self.settings = Settings(FakeHost(), None)

    monkeypatch.setattr(steps, "OPENING", (Session.lock, begin, Session.record))
    monkeypatch.setattr(session, "HostLock", Unheld)
    monkeypatch.setattr(identity, "check_host", lambda path, opened, host: None)
    cells = folder.opened().cells
    monkeypatch.setattr(identity, "cell_records", lambda plan, kind, deployment: cells)
    monkeypatch.setattr(session, "make_plan", lambda study, guests, in_turns: Plan((), ()))
    return folder


def test_a_resumed_run_is_read_once(broken_off: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = files(broken_off.path)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(RunFolder, "compact", lambda folder: None)  # when it has ended, each is read once more
        opened = opened_files(meanwhile)
        session.resume(broken_off.path)
        assert read_of(opened, broken_off.path) == expected
    run = broken_off.read()
    assert run.closed is not None
    assert (run.sessions, run.blocks[-1].state, run.blocks[-1].reason) == (
        *(2, "incomplete"),
        "its cell is no longer part of the plan",
    )


def test_attempts_of_a_run_that_has_ended_are_compacted(broken_off: RunFolder) -> None:
    before = broken_off.read().attempts
    session.resume(broken_off.path)
    assert (broken_off.path / "attempts.parquet").exists()
    assert broken_off.attempt_files() == []
    assert broken_off.read().attempts == before


def test_attempts_that_cannot_be_compacted_stay(broken_off: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, records: object) -> None:
        raise StorageError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(folder, "write_compacted", full)
    before = broken_off.read().attempts
    said: list[progress.Event] = []
    session.resume(broken_off.path, listener=said.append)
    why = f"cannot write {broken_off.path}/attempts.parquet: No space left on device"
    assert progress.Message(f"the attempts stay in their folders: {why}") in said
    run = broken_off.read()
    assert (run.attempts, run.closed is not None) == (before, True)


def test_a_run_that_was_interrupted_is_not_compacted(broken_off: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Conductor, "conduct", interrupted)
    session.resume(broken_off.path)
    assert not (broken_off.path / "attempts.parquet").exists()
    assert len(broken_off.attempt_files()) == len(broken_off.read().attempts)


def test_what_another_process_added_until_the_lock_was_had_is_read(
    broken_off: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended_meanwhile(self: Unheld) -> Unheld:
        if broken_off.read().closed is None:
            broken_off.append(BlockClosed(t=300.0, block=4, state="incomplete"))
            broken_off.append(Closed(t=300.0, state="finished", seed=bytes(16).hex()))
        return self

    monkeypatch.setattr(Unheld, "__enter__", ended_meanwhile)
    with pytest.raises(RunError, match="has ended: its seed is revealed"):
        session.resume(broken_off.path)


def test_an_attempt_that_was_added_is_seen_without_a_record(broken_off: RunFolder) -> None:
    known = broken_off.read()
    assert broken_off.read(known) is known
    broken_off.accept(broken_off.draft("b4-base"), attempt("base", 1.0, block=4))
    again = broken_off.read(known)
    assert again.left_open is not None
    assert {one.arm for one in again.left_open.attempts} == {"thp", "base"}


def test_a_run_whose_study_has_keys_that_are_gone_is_read_and_not_resumed(tmp_path: Path) -> None:
    """Attempts of now would not be like those before."""
    study = the_study()
    between = replace(study.between, compact=True, drop_caches=True)
    sampling, guest = replace(study.sampling, idle=20.0), GuestUse(resident=True)
    old = replace(study, covariate="canary", between=between, sampling=sampling, guest=guest)
    folder = RunFolder(write_run(tmp_path, old, normal(0.02, 3), cells=(cell("chase", "thp"),)))
    assert folder.read().study == old
    names = "resident of [guest], covariate, compact of [between], drop_caches of [between], idle of [sampling]"
    with pytest.raises(RunError, match=re.escape(f"its study has {names}, which this version does not offer")):
        session.resume(folder.path)


def test_a_moved_run_looks_for_no_earlier_runs_and_keeps_nothing_elsewhere(
    broken_off: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []
    monkeypatch.setattr(session, "_hold", lambda held: looked.append((held.results, held.kept_below)))
    monkeypatch.setattr(Run, "opened", property(lambda run: replace(run.records[0], earlier=())))
    session.resume(broken_off.path)
    results = broken_off.path.parents[1]
    moved = broken_off.path.rename(results.parent / "moved")
    session.resume(moved)
    assert looked == [(results, results), (None, moved)]
