"""A run that is followed: at every record the results that a reading of the whole finds, without reading it anew."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hugewise.analysis.analysis import Followed, Judging, analyze
from hugewise.errors import RunError
from hugewise.model.trial import Block
from hugewise.stats.method import Decision
from hugewise.stats.sequential import Sequential
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

    def counted(self: RunFolder, files: list[Path], most: int) -> dict[str, bytes]:
        read.extend(file.parent.name for file in files)
        return records(self, files, most)

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


def test_another_run_in_its_place_is_read_and_judged_anew(tmp_path: Path) -> None:
    """Attempts of the same names, in a log of as many bytes."""
    first, other = (write_run(tmp_path / name, the_study(), normal(0.03, 9, mean=0.02), seed=7) for name in "ab")
    second = write_run(tmp_path / "c", the_study(), normal(0.03, 9, mean=-0.3), seed=7)
    followed = Followed(first)
    followed.results()
    for place in (other, second):
        shutil.rmtree(first)
        shutil.copytree(place, first)
        assert followed.results() == analyze(first)
    (cell,) = followed.results().cells
    assert cell.comparisons[0].ratio is not None
    assert cell.comparisons[0].ratio < 0.8


def test_each_method_sees_each_block_once(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    observe = Sequential.observe

    def counted(self: Sequential, block: Block) -> Decision:
        seen.append(block.number)
        return observe(self, block)

    followed = Followed(tmp_path / "run")
    for _ in replayed(whole, tmp_path / "run"):
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(Sequential, "observe", counted)
            followed.results()
    assert seen == list(range(1, 13))


def test_a_look_that_was_broken_off_is_none(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory was short in the middle of a block: what its method has seen, nobody knows."""
    followed = Followed(tmp_path / "run")
    failed: list[Block] = []
    observe = Sequential.observe

    def failing(self: Sequential, block: Block) -> Decision:
        found = observe(self, block)
        if block.number == 10 and not failed:
            failed.append(block)
            raise MemoryError
        return found

    for _ in replayed(whole, tmp_path / "run"):
        monkeypatch.setattr(Sequential, "observe", failing)
        try:
            found = followed.results()
        except MemoryError:
            continue
        monkeypatch.setattr(Sequential, "observe", observe)
        assert found == analyze(tmp_path / "run")
    assert len(failed) == 1


def test_when_it_has_ended_all_of_it_is_read_again(whole: Path, tmp_path: Path) -> None:
    """An attempt that was changed after it was read is found: the page that stays is that of `hugewise report`."""
    rewritten(whole, lambda records: [*records, {"record": "closed", "t": 1e6, "state": "finished", "seed": "00" * 16}])
    followed, changed = Followed(tmp_path / "run"), False
    with pytest.raises(RunError, match=r"attempt\.json is not what was stored: it was changed"):
        for record in replayed(whole, tmp_path / "run"):
            if changed and record["record"] == "closed":
                with pytest.raises(RunError, match="it was changed"):
                    analyze(tmp_path / "run")
            followed.results()
            if record["record"] == "stored" and not changed:
                stored = tmp_path / "run" / "attempts" / record["attempt"] / "attempt.json"
                stored.write_bytes(stored.read_bytes() + b" ")
                changed = True
    assert changed


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


def test_a_run_of_before_there_was_a_running_hash_is_read_whole(tmp_path: Path) -> None:
    grow = growing(tmp_path / "run")
    followed = Followed(tmp_path / "run")
    assert followed.results() == analyze(tmp_path / "run")
    grow()
    assert followed.results() == analyze(tmp_path / "run")
