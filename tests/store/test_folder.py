"""The folder of a run: attempts as they are stored, and gathered in one file."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from hugewise import files
from hugewise.errors import RunError, StorageError
from hugewise.model.trial import Attempt
from hugewise.store import folder as compacted
from hugewise.store.folder import RunFolder
from hugewise.store.records import BlockClosed, BlockOpened, Closed, KnobSet, Resumed
from hugewise.store.tables import tables
from tests.build.logs import rewritten
from tests.build.trials import STUDY, attempt, begun

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
    assert re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{8}", one.path.name)


def test_the_results_are_known_only_where_the_run_lies_as_it_was_begun(tmp_path: Path) -> None:
    """Of a run that was moved to /root/RUN, root took the folders of other accounts, in /home, for earlier runs."""
    made = begun(tmp_path / "results", msgspec.structs.replace(STUDY, name="a study"))
    assert made.path.parent.name == "a-study"
    (tmp_path / "link").symlink_to(made.path)
    assert made.results("a study") == RunFolder(tmp_path / "link").results("a study") == tmp_path / "results"
    moved = made.path.rename(tmp_path / "moved")
    assert RunFolder(moved).results("a study") is None


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


def test_of_endless_output_head_and_tail_are_kept(folder: RunFolder) -> None:
    """It was read before, as a whole."""
    draft = folder.draft("b00001-thp")
    most = compacted.HEAD + compacted.TAIL
    said = {"stdout": most, "stderr": most + 100, "redis.stdout": 3 * most, "samples.json.gz": 3 * most}
    for name, size in said.items():
        (draft / name).write_bytes(b"y" * (size - 4) + b"last")
    place = folder.accept(draft, attempt("thp", 1.0, block=1))
    kept = {name: (place / name).read_bytes() for name in said}
    assert {name: len(kept[name]) for name in ("stdout", "samples.json.gz")} == {
        "stdout": most,
        "samples.json.gz": 3 * most,
    }
    for name, left_out in (("stderr", 100), ("redis.stdout", 2 * most)):
        note = b"\n[hugewise left out %d bytes here]\n" % left_out
        assert kept[name][compacted.HEAD :].startswith(note + b"y")
        assert kept[name].endswith(b"last") and len(kept[name]) == most + len(note)


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


@pytest.mark.parametrize("killed", [False, True])
def test_pauses_do_not_count_as_active_and_attempts_of_a_block_that_was_killed_do(
    folder: RunFolder, killed: bool
) -> None:
    folder.append(BlockOpened(t=130.0, block=1, cell="chase", session=1, arms=["base", "thp"]))
    if killed:
        folder.accept(folder.draft("b1-base"), attempt("base", 1.0, block=1, started=130.0, ended=900.0))
    folder.append(Resumed(t=1000.0, session=2, boot_id="b"))
    if not killed:
        folder.append(BlockClosed(t=1010.0, block=1, state="incomplete"))
    assert folder.read().active_seconds == (800.0 if killed else 40.0)


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


class Killed(BaseException):
    """What nothing handles."""


@pytest.fixture
def stored(tmp_path: Path) -> RunFolder:
    """A run with attempts, in a place whose name would be a pattern to DuckDB."""
    made = begun(tmp_path / "it's [a]*")
    for number in range(1, 4):
        for arm in ("thp", "base"):  # begun at the same moment
            draft = made.draft(f"b{number:05d}-{arm}")
            if number == 2:
                (draft / "stdout").write_text("said")
            made.accept(draft, attempt(arm, 0.1 + number, block=number, facts={"é": '"', "n": 1 << 40}))
    return made


def put_attempt(stored: RunFolder, number: int) -> Attempt:
    made = attempt("thp", 1.0, block=number)
    stored.accept(stored.draft(f"b{number:05d}-thp"), made)
    return made


def test_attempts_are_the_same_from_one_file(stored: RunFolder) -> None:
    before = stored.read().attempts
    bytes_before = {path.parent.name: path.read_bytes() for path in stored.attempt_files()}
    with tables(stored.path) as store:
        rows = store.sql("select * from attempts order by all").fetchall()
    stored.compact()
    assert stored.attempt_files() == []
    assert compacted.read_compacted(stored.path / "attempts.parquet") == bytes_before
    assert stored.read().attempts == before
    with tables(stored.path) as store:
        assert store.sql("select * from attempts order by all").fetchall() == rows
    left = sorted(str(path.relative_to(stored.path / "attempts")) for path in stored.path.glob("attempts/*/*"))
    assert left == ["b00002-base/stdout", "b00002-thp/stdout"]
    assert sorted(path.name for path in (stored.path / "attempts").iterdir()) == ["b00002-base", "b00002-thp"]
    stored.compact()
    assert stored.read().attempts == before


def test_the_file_can_be_asked_by_others(stored: RunFolder) -> None:
    stored.compact()
    with (stored.path / "attempts.parquet").open("rb") as file, duckdb.connect() as connection:
        rows = connection.read_parquet(f"/proc/self/fd/{file.fileno()}")
        found = rows.project("name, block, cell, arm, number, state, record ->> '$.policy'").fetchall()
    assert found[0] == ("b00001-base", 1, "chase", "base", 1, "accepted", "base")
    assert len(found) == 6


def test_attempts_in_folders_of_their_own_are_read_beside_it(stored: RunFolder) -> None:
    stored.compact()
    before = stored.read().attempts
    more = put_attempt(stored, 9)
    assert stored.read().attempts == (*before, more)
    stored.compact()
    assert stored.attempt_files() == []
    assert stored.read().attempts == (*before, more)


MOMENTS = [("sync", 1), ("sync", 2), ("replace", 1), *(("unlink", nth) for nth in range(2, 8)), ("rmdir", 2)]


@pytest.mark.parametrize(("call", "nth"), MOMENTS, ids=str)
def test_killed_at_any_moment_every_attempt_is_there(
    stored: RunFolder, monkeypatch: pytest.MonkeyPatch, call: str, nth: int
) -> None:
    before = stored.read().attempts
    where: Any = compacted if call == "sync" else Path
    real, left = getattr(where, call), [nth]

    def killed(*given: Any, **more: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise Killed
        return real(*given, **more)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(where, call, killed)
        with pytest.raises(Killed):
            stored.compact()
    assert stored.read().attempts == before
    if not (stored.path / "attempts.parquet").exists():
        (stored.path / ".attempts.parquet").write_bytes(b"half")  # of a process that no handler could clean up after
        assert stored.read().attempts == before
    stored.compact()
    assert stored.attempt_files() == []
    assert stored.read().attempts == before
    assert not (stored.path / ".attempts.parquet").exists()


def test_nothing_is_removed_before_the_file_is_on_disk(stored: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    synced, replace, unlink = files.sync, Path.replace, Path.unlink

    def sync(path: Path) -> None:
        done.append(f"sync {path.resolve().name}")
        synced(path)

    monkeypatch.setattr(compacted, "sync", sync)

    def replaced(draft: Path, path: Path) -> Path:
        done.append("replace")
        return replace(draft, path)

    def unlinked(path: Path, missing_ok: bool = False) -> None:
        done.append(f"unlink {path.name}")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "replace", replaced)
    monkeypatch.setattr(Path, "unlink", unlinked)
    stored.compact()
    draft = "unlink .attempts.parquet"
    first = [draft, "sync .attempts.parquet", "replace", f"sync {stored.path.name}", draft]
    assert done == [*first, *["unlink attempt.json"] * 6]


def test_an_attempt_that_is_gathered_while_it_is_read_is_there(
    stored: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, listed = stored.read().attempts, stored.attempt_files()
    RunFolder(stored.path).compact()
    monkeypatch.setattr(stored, "attempt_files", lambda: listed)  # as it was a moment ago
    assert stored.read().attempts == before


@pytest.mark.parametrize("damage", [b"", b"no parquet", b"PAR1" + bytes(100) + b"PAR1"])
def test_a_damaged_file_is_a_clear_error(stored: RunFolder, damage: bytes) -> None:
    stored.compact()
    (stored.path / "attempts.parquet").write_bytes(damage)
    with pytest.raises(RunError, match=r"attempts\.parquet cannot be read") as caught:
        stored.read()
    assert "put a copy of it back" in (caught.value.hint or "")
    (stored.path / "attempts.parquet").unlink()
    (stored.path / "attempts.parquet").mkdir()
    with pytest.raises(RunError, match=r"attempts\.parquet: Is a directory"):
        stored.read()


def test_a_file_of_other_columns_is_a_clear_error(stored: RunFolder) -> None:
    duckdb.sql("select 1 as one").write_parquet(str(stored.path / "attempts.parquet"))
    with pytest.raises(RunError, match=r"attempts\.parquet cannot be read"):
        stored.read()


def replaced_by(stored: RunFolder, query: str) -> Path:
    """The gathered attempts (`{old}`) become what the query says; their file."""
    stored.compact()
    path, old = stored.path / "attempts.parquet", stored.path / "old"
    path.rename(old)
    with old.open("rb") as file, duckdb.connect() as connection:
        connection.read_parquet(f"/proc/self/fd/{file.fileno()}").create_view("old")
        connection.sql(query).write_parquet(str(path), compression="zstd")
    return path


def test_kilobytes_that_would_become_gigabytes_are_refused(stored: RunFolder) -> None:
    rows = "select 'a' || i as name, repeat('x', 1000000) as record from range(1200) as rows(i)"
    path = replaced_by(stored, rows)
    assert path.stat().st_size < 20_000
    # Not by getrusage: it begins with the peak of the process that started this one.
    code = "import sys; from hugewise.cli.main import main\ntry: main(['report', sys.argv[1]])\n"
    code += "finally: print(*(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    command = [sys.executable, "-c", code, str(stored.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 2
    assert f"{path} cannot be read: 1,200 attempts of 1,2" in done.stderr
    assert "put a copy of it back" in done.stderr
    assert int(done.stdout) < 400 << 10


def test_more_rows_than_the_log_has_records_for_are_refused_unread(stored: RunFolder) -> None:
    """They take as long as they are many, and hundreds of bytes hold billions."""
    path = replaced_by(stored, "select '' as name, '' as record from range(3000000)")
    assert path.stat().st_size < 20_000
    with pytest.raises(RunError, match=r"3,000,000 attempts, more than the [0-9],[0-9]{3} that there can be"):
        stored.read()


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("select name, null::varchar as record from old", "no record"),
        ("select nullif(name, 'b00001-thp') as name, record from old", "has no name"),
        ("select name, record from old union all select name, '{}' from old", "a name that another has"),
        ("select name, 5 as record from old", "its column record is of INTEGER, not of texts"),
        ("select name, encode(record) as record from old", "its column record is of BLOB"),
        ("select row_number() over () as name, record from old", "its column name is of BIGINT"),
        ("select [name] as name, record from old", r"its column name is of VARCHAR\[\]"),
    ],
)
def test_records_that_are_no_texts_are_a_clear_error(stored: RunFolder, query: str, why: str) -> None:
    path = replaced_by(stored, query)
    with pytest.raises(RunError, match=why) as caught:
        stored.read()
    assert f"{path} cannot be read" in caught.value.message
    assert "put a copy of it back" in (caught.value.hint or "")


def test_what_is_no_file_of_its_own_is_not_waited_for_and_not_followed(stored: RunFolder) -> None:
    stored.compact()
    path = stored.path / "attempts.parquet"
    path.rename(stored.path / "elsewhere")
    path.symlink_to("elsewhere")
    with pytest.raises(RunError, match=r"attempts\.parquet cannot be read: a link"):
        stored.read()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RunError, match=r"attempts\.parquet cannot be read: not a regular file"):
        stored.read()
    path.unlink()
    with path.open("wb") as file:
        file.truncate((256 << 20) + 1)
    with pytest.raises(RunError, match=r"attempts\.parquet cannot be read: larger than 268,435,456 bytes"):
        stored.read()


def test_a_full_disk_leaves_the_attempts_where_they_are(stored: RunFolder) -> None:
    before = stored.read().attempts
    (stored.path / ".attempts.parquet").mkdir()  # a name that DuckDB cannot write to
    (stored.path / ".attempts.parquet" / "file").touch()
    with pytest.raises(StorageError, match=r"cannot write .*attempts\.parquet"):
        stored.compact()
    assert stored.read().attempts == before
    assert len(stored.attempt_files()) == 6
