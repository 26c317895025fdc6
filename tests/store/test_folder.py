from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from hugewise.errors import RunError, StorageError
from hugewise.store.folder import RunFolder
from hugewise.store.records import BlockClosed, BlockOpened, Closed, KnobSet, Resumed
from hugewise.store.tables import tables
from tests.build.logs import rewritten
from tests.build.trials import attempt, begun

SEED = bytes(range(16))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return begun(tmp_path, seed=SEED, t=100.0)


def put(folder: RunFolder, block: int, arm: str, value: float = 1.0) -> None:
    folder.accept(folder.draft(f"b{block:05d}-{arm}"), attempt(arm, value, block=block))


def test_each_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    one, two = begun(tmp_path), begun(tmp_path)
    assert one.path != two.path
    assert one.path.parent == two.path.parent == tmp_path / "s"


def test_the_seed_is_secret_until_the_last_record(folder: RunFolder) -> None:
    path = folder.path / "seed"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert folder.seed(folder.read()) == SEED
    assert SEED.hex() not in (folder.path / "run.jsonl").read_text()
    folder.append(Closed(t=200.0, state="finished", seed=SEED.hex()))
    assert SEED.hex() in (folder.path / "run.jsonl").read_text()
    with pytest.raises(RunError, match="has ended"):
        folder.seed(folder.read())


def test_a_run_killed_between_its_last_record_and_the_seeds_removal_has_ended(folder: RunFolder) -> None:
    folder.append(Closed(t=200.0, state="time is up", seed=SEED.hex()))
    (folder.path / "seed").write_text(SEED.hex())
    with pytest.raises(RunError, match="has ended"):
        folder.seed(folder.read())


def test_a_run_has_its_name_from_within_its_folder_too(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.path)
    assert RunFolder(Path()).run == folder.run


def test_a_record_that_is_gone_is_a_clear_error(folder: RunFolder) -> None:
    folder.append(BlockClosed(t=102.0, block=1, state="complete"))
    with pytest.raises(RunError, match="block 1 is closed and was never opened"):
        folder.read()


def test_a_draft_is_no_attempt_until_it_is_accepted(folder: RunFolder) -> None:
    draft = folder.draft("b00001-thp")
    (draft / "events.jsonl").write_text("{}\n")
    assert folder.read().attempts == ()
    folder.accept(draft, attempt("thp", 1.0, block=1))
    assert [each.arm for each in folder.read().attempts] == ["thp"]
    left = folder.draft("b00002-thp")
    folder.discard_drafts(folder.read())
    assert not left.exists()
    assert len(folder.read().attempts) == 1


def test_a_torn_record_is_passed_over_and_the_next_one_is_whole(folder: RunFolder) -> None:
    with (folder.path / "run.jsonl").open("ab") as file:
        file.write(b'{"record":"block_op')
    assert len(folder.read().records) == 1
    folder.append(BlockOpened(t=101.0, block=1, cell="chase", session=1, arms=["base", "thp"]))
    assert len(folder.read().records) == 2


def test_blocks_and_the_one_left_open(folder: RunFolder) -> None:
    for number, state in ((1, "complete"), (2, "incomplete")):
        folder.append(BlockOpened(t=101.0, block=number, cell="chase", session=1, arms=["base", "thp"]))
        put(folder, number, "base")
        if state == "complete":
            put(folder, number, "thp")
        folder.append(BlockClosed(t=102.0, block=number, state=state))  # type: ignore[arg-type]
    assert folder.read().left_open is None
    folder.append(BlockOpened(t=103.0, block=3, cell="chase", session=1, arms=["thp", "base"]))
    put(folder, 3, "thp")
    left = folder.read().left_open
    assert left is not None
    assert left.opened.block == 3
    assert [each.arm for each in left.attempts] == ["thp"]
    complete, incomplete = folder.read().blocks
    assert [each.state for each in complete.attempts] == ["accepted", "accepted"]
    assert [each.state for each in incomplete.attempts] == ["abandoned"]


def test_pauses_do_not_count_as_active(folder: RunFolder) -> None:
    folder.append(BlockOpened(t=130.0, block=1, cell="chase", session=1, arms=[]))
    folder.append(Resumed(t=1000.0, session=2, boot_id="b"))
    folder.append(BlockClosed(t=1010.0, block=1, state="incomplete"))
    assert folder.read().active_seconds == 40.0


def test_attempts_of_a_block_that_was_killed_count_as_active(folder: RunFolder) -> None:
    folder.append(BlockOpened(t=130.0, block=1, cell="chase", session=1, arms=["base", "thp"]))
    folder.accept(folder.draft("b1-base"), attempt("base", 1.0, block=1, started=130.0, ended=900.0))
    folder.append(Resumed(t=1000.0, session=2, boot_id="b"))
    assert folder.read().active_seconds == 800.0


def test_knobs_are_stored_when_they_change(folder: RunFolder) -> None:
    knobs = [
        {"/k": "always", "/n": "1"},
        {"/n": "1", "/k": "always"},
        {"/k": "never", "/n": "1"},
        {"/k": "always", "/n": "1"},
        {},
    ]
    made = [attempt("thp", 1.0, block=number, knobs=each) for number, each in enumerate(knobs)]
    again = RunFolder(folder.path)  # of a resumed run: it has read the log
    for number, one in enumerate(made):
        where = folder if number < 3 else again
        assert where.read().attempts == tuple(made[:number])
        where.accept(where.draft(f"b{number}"), one)
    run = folder.read()
    assert run.attempts == tuple(made)
    kept = [record for record in run.records if isinstance(record, KnobSet)]
    assert [record.values for record in kept] == [knobs[0], knobs[2], {}]
    assert [record.t for record in kept] == [made[number].ended for number in (0, 2, 4)]
    assert b"always" not in (folder.path / "attempts" / "b0" / "attempt.json").read_bytes()


def test_who_has_not_read_the_log_keeps_knobs_once_more(folder: RunFolder) -> None:
    put(folder, 1, "thp")
    put(RunFolder(folder.path), 2, "thp")
    assert [one.knobs for one in folder.read().attempts] == [{"/k": "v"}] * 2


def test_knobs_of_a_run_that_kept_them_with_each_attempt_are_read(folder: RunFolder) -> None:
    place = folder.accept(folder.draft("b1"), attempt("thp", 1.0, block=1))
    (place / "attempt.json").write_bytes(msgspec.json.encode(attempt("thp", 1.0, block=1, knobs={"/k": "of old"})))
    rewritten(folder.path)
    with tables(folder.path) as store:
        assert store.sql("select knobs['/k'] from attempts").fetchall() == [("of old",)]


def test_knobs_that_are_gone_are_a_clear_error(folder: RunFolder) -> None:
    put(folder, 1, "thp")
    rewritten(folder.path, lambda records: [record for record in records if record["record"] != "knob_set"])
    with pytest.raises(RunError, match="the knobs [0-9a-f]{12} of attempts are gone"):
        folder.read()


def test_errors_name_the_folder_and_the_cure(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run's folder"):
        RunFolder(tmp_path / "nothing").read()
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write") as caught:
        RunFolder.create(tmp_path / "file", "s", study_json=b"{}", study_toml=None, seed=SEED)
    assert "--results" in (caught.value.hint or "")


def test_tables(folder: RunFolder) -> None:
    with tables(folder.path) as empty:
        assert empty.sql("select count(*) from attempts").fetchall() == [(0,)]
    folder.append(BlockOpened(t=101.0, block=1, cell="chase", session=1, arms=["base", "thp"]))
    put(folder, 1, "base", 4.0)
    put(folder, 1, "thp", 2.0)
    folder.append(BlockClosed(t=102.0, block=1, state="complete"))
    with tables(folder.path) as store:
        ratio = store.sql("""
            select t.value / b.value from observations t join observations b using (block, metric)
            where metric = 'ns_per_load' and t.arm = 'thp' and b.arm = 'base'""").fetchall()
        assert ratio == [(0.5,)]
        assert store.sql("select page, sum(bytes) from coverage group by page").fetchall() == [
            ("anon:2097152", 4 << 20)
        ]
        assert store.sql("select state from blocks").fetchall() == [("complete",)]
        assert store.sql("select distinct value from observations where metric = 'cycles'").fetchall() == [(None,)]
