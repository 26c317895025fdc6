"""Steps of a session with the host played: what they open is closed, whatever fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hugewise.errors import StorageError
from hugewise.host import journal
from hugewise.host.knob import read_knobs
from hugewise.model.pages import THP
from hugewise.plan import memory
from hugewise.plan.plan import Plan
from hugewise.session import feasibility, steps
from hugewise.session.session import discard_unbegun
from hugewise.session.steps import Session
from tests.build.hosts import FakeHost, Unheld

ENABLED = f"{THP}/enabled"


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session of root's whose plan wants ten pages of a pool; `walked` are its steps."""
    monkeypatch.setattr(journal, "JOURNAL", tmp_path / "hugewise" / "journal.jsonl")
    monkeypatch.setattr(memory, "pool_pages", lambda *_, **__: {(2 << 20, None): 10})
    monkeypatch.setattr(memory, "without_short_pools", lambda plan, *_, **__: plan)
    monkeypatch.setattr(feasibility, "fitting", lambda plan, *_: (plan, ()))
    monkeypatch.setattr(feasibility, "with_room", lambda plan, *_: plan)
    study, folder, host = SimpleNamespace(guest=None), SimpleNamespace(path=tmp_path), FakeHost()
    walked: list[str] = []
    made: Any = Session(
        cast(Any, study), cast(Any, folder), b"", Plan((), ()), None, lambda _: None, walked.append,
        cast(Any, Unheld(host)), host=host,
    )  # fmt: skip
    made.walked = walked
    return cast(Session, made)


def opened(session: Session, remove: Callable[[], object] = lambda: None) -> dict[str, str]:
    """The session with a knob turned and a pool filled; return the knobs as they were before."""
    before = read_knobs(session.host)
    session.begin()
    session.hold_settings()
    session.fill_pools()
    session.remove_at_close("remove_cgroups", remove)
    assert session.settings.apply({ENABLED: "always"}) == []
    assert session.pools == {2 << 20: 10}
    assert read_knobs(session.host) != before
    return before


def test_knobs_and_pools_are_as_they_were_when_a_session_ends(session: Session) -> None:
    removed: list[str] = []
    before = opened(session, lambda: removed.append("group"))
    steps.close(session.closing)
    assert removed == ["group"]
    assert read_knobs(session.host) == before
    assert cast(Any, session).walked == ["remove_cgroups", "empty_pools", "restore", "end_journal"]
    assert journal.recover(session.host, journal.JOURNAL).run is None, "the journal is closed"


def test_what_cannot_be_removed_delays_no_restore_and_is_left_to_the_next_call(session: Session) -> None:
    def remove() -> None:
        raise StorageError("a group stays")

    before = opened(session, remove)
    with pytest.raises(StorageError, match="a group stays"):
        steps.close(session.closing)
    assert read_knobs(session.host) == before
    assert journal.recover(session.host, journal.JOURNAL).run is not None, "the journal was left open"


def test_the_host_is_held_to_the_end_of_the_session(session: Session) -> None:
    held: list[bool] = []

    class Lock(Unheld):
        def __enter__(self) -> Unheld:
            held.append(True)
            return self

        def __exit__(self, *_: object) -> None:
            held.append(False)

    session.host_lock = cast(Any, Lock(session.host))
    session.lock()
    assert held == [True]
    steps.close(session.closing)
    assert held == [True, False]


def test_the_folder_of_a_run_that_began_stays_and_that_of_a_refused_one_goes(tmp_path: Path) -> None:
    begun, refused, alone = tmp_path / "s" / "1", tmp_path / "s" / "2", tmp_path / "t" / "1"
    for folder in (begun, refused, alone):
        folder.mkdir(parents=True)
        (folder / "seed").touch()
    (begun / "run.jsonl").touch()
    for folder in (begun, refused, alone):
        discard_unbegun(folder)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        *("s", "s/1", "s/1/run.jsonl", "s/1/seed")
    ]
