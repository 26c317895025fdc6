"""Attempts of a run that has ended lie in one file, and are lost at no moment on the way there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from hugewise import files
from hugewise.errors import RunError, StorageError
from hugewise.model.trial import Attempt
from hugewise.store import folder as compacted
from hugewise.store.folder import RunFolder
from hugewise.store.tables import tables
from tests.build.trials import attempt, begun


class Killed(BaseException):
    """What nothing handles."""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run with attempts, in a place whose name would be a pattern to DuckDB."""
    made = begun(tmp_path / "it's [a]*")
    for number in range(1, 4):
        for arm in ("thp", "base"):  # begun at the same moment
            draft = made.draft(f"b{number:05d}-{arm}")
            if number == 2:
                (draft / "stdout").write_text("said")
            made.accept(draft, attempt(arm, 0.1 + number, block=number, facts={"é": '"', "n": 1 << 40}))
    return made


def put(folder: RunFolder, number: int) -> Attempt:
    made = attempt("thp", 1.0, block=number)
    folder.accept(folder.draft(f"b{number:05d}-thp"), made)
    return made


def test_attempts_are_the_same_from_one_file(folder: RunFolder) -> None:
    before = folder.read().attempts
    bytes_before = {path.parent.name: path.read_bytes() for path in folder.attempt_files()}
    with tables(folder.path) as store:
        rows = store.sql("select * from attempts order by all").fetchall()
    folder.compact()
    assert folder.attempt_files() == []
    assert compacted.read_compacted(folder.path / "attempts.parquet") == bytes_before
    assert folder.read().attempts == before
    with tables(folder.path) as store:
        assert store.sql("select * from attempts order by all").fetchall() == rows
    left = sorted(str(path.relative_to(folder.path / "attempts")) for path in folder.path.glob("attempts/*/*"))
    assert left == ["b00002-base/stdout", "b00002-thp/stdout"]
    assert sorted(path.name for path in (folder.path / "attempts").iterdir()) == ["b00002-base", "b00002-thp"]
    folder.compact()
    assert folder.read().attempts == before


def test_the_file_can_be_asked_by_others(folder: RunFolder) -> None:
    folder.compact()
    with (folder.path / "attempts.parquet").open("rb") as file, duckdb.connect() as connection:
        rows = connection.read_parquet(f"/proc/self/fd/{file.fileno()}")
        found = rows.project("name, block, cell, arm, number, state, record ->> '$.policy'").fetchall()
    assert found[0] == ("b00001-base", 1, "chase", "base", 1, "accepted", "base")
    assert len(found) == 6


def test_attempts_in_folders_of_their_own_are_read_beside_it(folder: RunFolder) -> None:
    folder.compact()
    before = folder.read().attempts
    more = put(folder, 9)
    assert folder.read().attempts == (*before, more)
    folder.compact()
    assert folder.attempt_files() == []
    assert folder.read().attempts == (*before, more)


MOMENTS = [("sync", 1), ("sync", 2), ("replace", 1), *(("unlink", nth) for nth in range(2, 8)), ("rmdir", 2)]


@pytest.mark.parametrize(("call", "nth"), MOMENTS, ids=str)
def test_killed_at_any_moment_every_attempt_is_there(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, call: str, nth: int
) -> None:
    before = folder.read().attempts
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
            folder.compact()
    assert folder.read().attempts == before
    if not (folder.path / "attempts.parquet").exists():
        (folder.path / ".attempts.parquet").write_bytes(b"half")  # of a process that no handler could clean up after
        assert folder.read().attempts == before
    folder.compact()
    assert folder.attempt_files() == []
    assert folder.read().attempts == before
    assert not (folder.path / ".attempts.parquet").exists()


def test_nothing_is_removed_before_the_file_is_on_disk(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    synced, replace, unlink = files.sync, Path.replace, Path.unlink

    def sync(path: Path) -> None:
        done.append(f"sync {path.name}")
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
    folder.compact()
    first = ["sync .attempts.parquet", "replace", f"sync {folder.place.name}", "unlink .attempts.parquet"]
    assert done == [*first, *["unlink attempt.json"] * 6]


def test_an_attempt_that_is_gathered_while_it_is_read_is_there(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, listed = folder.read().attempts, folder.attempt_files()
    RunFolder(folder.path).compact()
    monkeypatch.setattr(folder, "attempt_files", lambda: listed)  # as it was a moment ago
    assert folder.read().attempts == before


@pytest.mark.parametrize("damage", [b"", b"no parquet", b"PAR1" + bytes(100) + b"PAR1"])
def test_a_damaged_file_is_a_clear_error(folder: RunFolder, damage: bytes) -> None:
    folder.compact()
    (folder.path / "attempts.parquet").write_bytes(damage)
    with pytest.raises(RunError, match=r"attempts\.parquet cannot be read") as caught:
        folder.read()
    assert "put a copy of it back" in (caught.value.hint or "")
    (folder.path / "attempts.parquet").unlink()
    (folder.path / "attempts.parquet").mkdir()
    with pytest.raises(RunError, match=r"attempts\.parquet: Is a directory"):
        folder.read()


def test_a_file_of_other_columns_is_a_clear_error(folder: RunFolder) -> None:
    duckdb.sql("select 1 as one").write_parquet(str(folder.path / "attempts.parquet"))
    with pytest.raises(RunError, match=r"attempts\.parquet cannot be read"):
        folder.read()


def replaced_by(folder: RunFolder, query: str) -> Path:
    """The gathered attempts (`{old}`) become what the query says; their file."""
    folder.compact()
    path, old = folder.path / "attempts.parquet", folder.path / "old"
    path.rename(old)
    with old.open("rb") as file, duckdb.connect() as connection:
        connection.read_parquet(f"/proc/self/fd/{file.fileno()}").create_view("old")
        connection.sql(query).write_parquet(str(path), compression="zstd")
    return path


def test_kilobytes_that_would_become_gigabytes_are_refused(folder: RunFolder) -> None:
    rows = "select 'a' || i as name, repeat('x', 1000000) as record from range(1200) as rows(i)"
    path = replaced_by(folder, rows)
    assert path.stat().st_size < 20_000
    # Not by getrusage: it begins with the peak of the process that started this one.
    code = "import sys; from hugewise.cli.main import main\ntry: main(['report', sys.argv[1]])\n"
    code += "finally: print(*(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    command = [sys.executable, "-c", code, str(folder.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 2
    assert f"{path} cannot be read: 1,200 attempts of 1,2" in done.stderr
    assert "put a copy of it back" in done.stderr
    assert int(done.stdout) < 400 << 10


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
def test_records_that_are_no_texts_are_a_clear_error(folder: RunFolder, query: str, why: str) -> None:
    path = replaced_by(folder, query)
    with pytest.raises(RunError, match=why) as caught:
        folder.read()
    assert f"{path} cannot be read" in caught.value.message
    assert "put a copy of it back" in (caught.value.hint or "")


def test_what_is_no_file_of_its_own_is_not_waited_for_and_not_followed(folder: RunFolder) -> None:
    folder.compact()
    path = folder.path / "attempts.parquet"
    path.rename(folder.path / "elsewhere")
    path.symlink_to("elsewhere")
    with pytest.raises(RunError, match=r"attempts\.parquet cannot be read: a link"):
        folder.read()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RunError, match=r"attempts\.parquet cannot be read: not a regular file"):
        folder.read()
    path.unlink()
    with path.open("wb") as file:
        file.truncate((256 << 20) + 1)
    with pytest.raises(RunError, match=r"attempts\.parquet cannot be read: larger than 268,435,456 bytes"):
        folder.read()


def test_a_full_disk_leaves_the_attempts_where_they_are(folder: RunFolder) -> None:
    before = folder.read().attempts
    (folder.path / ".attempts.parquet").mkdir()  # a name that DuckDB cannot write to
    (folder.path / ".attempts.parquet" / "file").touch()
    with pytest.raises(StorageError, match=r"cannot write .*attempts\.parquet"):
        folder.compact()
    assert folder.read().attempts == before
    assert len(folder.attempt_files()) == 6
