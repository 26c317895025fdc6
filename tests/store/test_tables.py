"""Views of what was recorded within attempts: the seconds, and the facts."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.store.folder import RunFolder
from hugewise.store.tables import connected, tables
from tests.build.logs import rewritten
from tests.build.trials import attempt
from tests.store.test_folder import folder

__all__ = ["folder"]


def accept(folder: RunFolder, number: int, arm: str, **changes: Any) -> Path:
    made = attempt(arm, 1.0, block=number, **changes)
    draft = folder.draft(f"b{number:05d}-{arm}")
    folder.accept(draft, made)
    return folder.path / "attempts" / draft.name.removeprefix(".")


def test_a_run_without_attempts_has_the_views(folder: RunFolder) -> None:
    with tables(folder.path) as store:
        for view in ("samples", "facts"):
            assert store.sql(f"select count(*) from {view}").fetchall() == [(0,)]  # noqa: S608  (two fixed names)


def test_samples_are_the_seconds_of_each_attempt(folder: RunFolder) -> None:
    accept(folder, 1, "base", series=(10.0, 11.5, 12.0))
    accept(folder, 1, "thp", series=(20.0,))
    accept(folder, 2, "thp")
    with tables(folder.path) as store:
        found = store.sql("select run, cell, arm, block, number, second, throughput from samples order by arm, second")
        assert found.fetchall() == [
            ("r", "chase", "base", 1, 1, 1, 10.0),
            ("r", "chase", "base", 1, 1, 2, 11.5),
            ("r", "chase", "base", 1, 1, 3, 12.0),
            ("r", "chase", "thp", 1, 1, 1, 20.0),
        ]


def test_facts_are_texts_and_numbers_that_are_told_apart(folder: RunFolder) -> None:
    accept(folder, 1, "base", facts={"storage": 'a "b"', "hash": "123", "scale": 12, "warmed_s": -0.5})
    with tables(folder.path) as store:
        found = store.sql("select name, text, value from facts order by name").fetchall()
    assert found == [
        ("hash", "123", None),  # a text of digits is no number
        ("scale", "12", 12.0),
        ("storage", 'a "b"', None),
        ("warmed_s", "-0.5", -0.5),
    ]


@pytest.mark.parametrize("others", [0, 1])
def test_attempts_of_runs_before_there_were_series_have_none(folder: RunFolder, others: int) -> None:
    place = accept(folder, 1, "base", series=(1.0,), facts={"scale": 1})
    stored = msgspec.json.decode((place / "attempt.json").read_bytes())
    del stored["series"], stored["facts"]
    (place / "attempt.json").write_bytes(msgspec.json.encode(stored))
    rewritten(folder.path)
    folder = RunFolder(folder.path)
    for number in range(others):
        accept(folder, 2 + number, "base", series=(1.0,), facts={"scale": 1})
    with tables(folder.path) as store:
        for view in ("samples", "facts"):
            assert store.sql(f"select count(*) from {view}").fetchall() == [(others,)]  # noqa: S608


def test_where_memory_is_short_nothing_is_written_into_the_current_folder() -> None:
    with connected() as connection:
        assert connection.execute("select current_setting('temp_directory')").fetchone() == ("",)
