"""`hugewise export`: Parquet, whole or not at all, and never over what is there."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from hugewise.analysis.analysis import analyze
from hugewise.cli.main import cli
from hugewise.errors import StorageError, UserError
from hugewise.report import export
from hugewise.store.folder import RunFolder
from tests.analysis.test_combining import a_run
from tests.build import known
from tests.requirements import need


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that no test changes."""
    return a_run(tmp_path_factory.mktemp("results"), 1, host={"name": 'a"b\\', "kernel": {"release": "6.12"}})


def called(run: Path, to: Path, *more: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(cli, ["export", str(run), "--to", str(to), *more])


def rows(path: Path) -> list[tuple[Any, ...]]:
    return duckdb.sql(
        f"select arm, block, metric, value, absent, unit, verdict from '{path}' order by all"  # noqa: S608
    ).fetchall()


def test_parquet_has_each_attempt_and_metric_with_unit_and_verdict(run: Path, tmp_path: Path) -> None:
    done = called(run, tmp_path / "out.parquet")
    assert done.exit_code == 0, done
    found = rows(tmp_path / "out.parquet")
    assert f"{len(found)} rows in" in done.output.replace("\n", " ")
    judged = [row for row in found if row[2] == "ns_per_load"]
    assert len(judged) == 36  # 12 blocks of three arms
    assert {row[5] for row in judged} == {"ns"}
    assert {(row[0], row[6]) for row in judged} == {("base", None), ("thp", "better"), ("mthp", "better")}
    assert all(row[3] is not None for row in judged)
    assert {row[6] for row in found if row[2] != "ns_per_load"} == {None}


@pytest.fixture
def before(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mine.parquet"
    path.write_text("mine")
    yield path
    assert {each.name for each in tmp_path.iterdir()} - {"mine.verdicts.parquet"} == {"mine.parquet"}


@pytest.mark.parametrize("name", ["out.parquet", "out.verdicts.parquet"])
def test_what_is_there_is_replaced_only_when_asked(run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    done = called(run, tmp_path / "out.parquet")
    assert isinstance(done.exception, UserError) and "--force" in (done.exception.hint or "")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
    assert called(run, tmp_path / "out.parquet", "--force").exit_code == 0
    assert (tmp_path / name).read_bytes().startswith(b"PAR1")


def test_a_file_that_comes_meanwhile_is_left(run: Path, before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "lexists", lambda _: False)
    assert isinstance(called(run, before).exception, UserError)
    assert before.read_text() == "mine"
    assert not before.with_name("mine.verdicts.parquet").exists()


def test_a_disk_that_is_full_leaves_nothing(run: Path, before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "_written", full)
    done = called(run, before, "--force")
    assert isinstance(done.exception, StorageError) and "No space left" in done.exception.message
    assert before.read_text() == "mine"
    assert not before.with_name("mine.verdicts.parquet").exists()


def test_a_link_is_replaced_and_not_followed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "out.parquet").symlink_to(tmp_path / "theirs")
    assert isinstance(called(run, tmp_path / "out.parquet").exception, UserError)
    assert called(run, tmp_path / "out.parquet", "--force").exit_code == 0
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert not (tmp_path / "out.parquet").is_symlink()


@pytest.mark.parametrize("name", ["out.xlsx", "out", "out.csv", ".parquet", "folder.parquet", "/dev/stdout"])
def test_other_names_are_refused(run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.parquet").mkdir()
    for more in ((), ("--force",)):
        assert isinstance(called(run, tmp_path / name, *more).exception, UserError)


def test_a_folder_that_others_can_change_is_not_written_in_by_root(run: Path, tmp_path: Path) -> None:
    need(os.geteuid() == 0, "root")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert isinstance(called(run, tmp_path / "open" / "out.parquet").exception, UserError)
    assert not list((tmp_path / "open").iterdir())


def test_every_verdict_is_in_a_second_file(run: Path, tmp_path: Path) -> None:
    done = called(run, tmp_path / "out.parquet")
    assert "2 verdicts in" in done.output.replace("\n", " ")
    told = duckdb.sql(
        f"select arm, end_point, verdict, n, ratio, low, high, unit, run from '{tmp_path}/out.verdicts.parquet'"  # noqa: S608
    ).fetchall()
    (cell,) = analyze(run).cells
    assert sorted(row[:-2] for row in told) == sorted(
        (one.arm, False, one.verdict, one.n, one.ratio, one.low, one.high) for one in cell.comparisons
    )
    assert {row[-2:] for row in told} == {("ns", analyze(run).run)}


def test_end_points_are_told_as_such_and_change_no_row_of_an_attempt(run: Path, tmp_path: Path) -> None:
    results = analyze(run)
    (cell,) = results.cells
    beyond = replace(cell.comparisons[0], estimand="ratio of means", verdict="undecided", ratio=0.5)
    with duckdb.connect() as connection:
        whole = replace(results, cells=(replace(cell, end_points=(beyond,)),))
        export.rows_of(connection, RunFolder(run).read(), whole)
        found = connection.execute("select end_point, estimand, ratio from verdicts order by all").fetchall()
        (count,) = known(connection.execute("select count(*) from rows").fetchone())
    assert [row for row in found if row[0]] == [(True, "ratio of means", 0.5)]
    assert len(found) == 3
    assert called(run, tmp_path / "out.parquet").output.startswith(f"{count} rows")


def test_attempts_in_pieces_make_the_same_file_in_their_order(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called(run, tmp_path / "whole.parquet")
    monkeypatch.setattr(export, "_ROWS_AT_ONCE", 5)  # 36 attempts
    called(run, tmp_path / "pieces.parquet")
    whole, pieces = (
        duckdb.sql(f"select * from '{tmp_path / name}.parquet'").fetchall()  # noqa: S608
        for name in ("whole", "pieces")
    )
    assert whole == pieces
    keys = [(row[12], row[16], row[23]) for row in whole]  # block, number, metric
    assert [row[0] for row in keys] == sorted(row[0] for row in keys)
    assert [row[2] for row in keys[:3]] == sorted(row[2] for row in keys[:3])
