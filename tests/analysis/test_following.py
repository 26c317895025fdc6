"""A run that is followed: at every record the results that a reading of the whole finds, without reading it anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hugewise.analysis.analysis import Judging, analyze
from hugewise.analysis.following import Followed
from hugewise.errors import RunError
from hugewise.store.folder import RunFolder
from tests.analysis.test_forecast import normal, the_study, write_run
from tests.build.growing import growing
from tests.build.logs import lines, rewritten


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A run of twelve blocks in two sessions, in which an attempt fails."""
    differences = [*normal(0.03, 9, mean=0.02), None, 0.01, 0.03]
    return write_run(tmp_path / "whole", the_study(), differences, sessions=2)


def replayed(whole: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Make that run in `folder` record by record, each of which is given: its attempts come as they came."""
    shutil.copytree(whole, folder, ignore=shutil.ignore_patterns("attempts", "run.jsonl"))
    (folder / "attempts").mkdir()
    for line in lines(whole):
        record = json.loads(line)
        if record["record"] == "stored":
            shutil.copytree(whole / "attempts" / record["attempt"], folder / "attempts" / record["attempt"])
        with (folder / "run.jsonl").open("ab") as log:
            log.write(line)
        yield record


def test_at_every_record_it_finds_what_a_reading_of_the_whole_does(whole: Path, tmp_path: Path) -> None:
    followed, looks = Followed(tmp_path / "run"), 0
    for _ in replayed(whole, tmp_path / "run"):
        assert followed.results() == analyze(tmp_path / "run")
        looks += 1
    assert looks > 60


def test_no_attempt_is_read_again(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    records = RunFolder._attempt_records

    def counted(self: RunFolder, files: list[Path]) -> dict[str, bytes]:
        read.extend(file.parent.name for file in files)
        return records(self, files)

    monkeypatch.setattr(RunFolder, "_attempt_records", counted)
    followed, there = Followed(tmp_path / "run"), []
    for record in replayed(whole, tmp_path / "run"):
        there += [record["attempt"]] if record["record"] == "stored" else []
        followed.results()
    assert read == there
    assert len(there) == 24


def test_what_a_method_says_in_between_changes_nothing(tmp_path: Path) -> None:
    run = RunFolder(write_run(tmp_path, the_study(end_points=["mean", "p99"]), normal(0.03, 60, mean=0.02))).read()
    judging = Judging(run)
    for blocks in (1, 9, 10, 31, 32, 60, 60):
        found = [comparison for _, comparison in judging.found(run.blocks[:blocks])]
        assert found == [comparison for _, comparison in Judging(run).found(run.blocks[:blocks])]


def test_a_log_that_is_another_one_is_read_and_judged_anew(whole: Path) -> None:
    followed = Followed(whole)
    followed.results()
    rewritten(whole, lambda records: [{**record, "t": record["t"] + 1e6} for record in records])
    assert followed.results() == analyze(whole)


def test_where_it_cannot_be_read_it_can_later(whole: Path, tmp_path: Path) -> None:
    growing = replayed(whole, tmp_path / "run")
    followed = Followed(tmp_path / "run")
    for record in growing:
        if record["record"] == "stored":
            break
        followed.results()
    (attempt,) = (tmp_path / "run" / "attempts").iterdir()
    attempt.rename(tmp_path / "away")
    with pytest.raises(RunError, match="is gone"):
        followed.results()
    (tmp_path / "away").rename(attempt)
    assert followed.results() == analyze(tmp_path / "run")


def test_salvaging_reads_all_of_it_each_time(whole: Path) -> None:
    followed = Followed(whole, salvage=True)
    assert followed.results() == analyze(whole, salvage=True)
    shutil.rmtree(sorted((whole / "attempts").iterdir())[0])
    found = followed.results()
    assert found == analyze(whole, salvage=True)
    assert found.integrity is not None
    assert found.integrity.state == "salvaged"


def test_a_run_of_before_there_was_a_running_hash_is_read_whole(tmp_path: Path) -> None:
    grow = growing(tmp_path / "run")
    followed = Followed(tmp_path / "run")
    assert followed.results() == analyze(tmp_path / "run")
    grow()
    assert followed.results() == analyze(tmp_path / "run")
