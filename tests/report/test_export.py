"""`hugewise export`: three formats that say the same, whole or not at all, and never over what is there."""

from __future__ import annotations

import csv
import importlib.util
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


def test_a_value_that_is_not_there_is_null_everywhere(run: Path, tmp_path: Path) -> None:
    for ending in ("parquet", "csv", "prom"):
        assert called(run, tmp_path / f"out.{ending}").exit_code == 0
    lacking = [row for row in rows(tmp_path / "out.parquet") if row[3] is None]
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        told = list(csv.DictReader(file))
    assert len(told) == len(rows(tmp_path / "out.parquet"))
    assert sum(row["value"] == "" for row in told) == len(lacking)
    values = [line for line in (tmp_path / "out.prom").read_text().splitlines() if line.startswith("hugewise_attempt_")]
    assert len(values) == len(told) - len(lacking)


def test_csv_says_the_same_numbers(run: Path, tmp_path: Path) -> None:
    for ending in ("parquet", "csv"):
        called(run, tmp_path / f"out.{ending}")
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        told = {(r["arm"], int(r["block"]), r["metric"]): r["value"] for r in csv.DictReader(file)}
    for arm, block, metric, value, *_ in rows(tmp_path / "out.parquet"):
        assert told[arm, block, metric] == ("" if value is None else repr(value))


def test_openmetrics_is_read_by_prometheus(run: Path, tmp_path: Path) -> None:
    need(importlib.util.find_spec("prometheus_client") is not None, "prometheus-client")
    parser: Any = importlib.import_module("prometheus_client.openmetrics.parser")
    called(run, tmp_path / "out.prom")
    families = {one.name: one for one in parser.text_string_to_metric_families((tmp_path / "out.prom").read_text())}
    samples = families["hugewise_attempt_ns_per_load"].samples
    assert len(samples) == 36
    assert {one.labels["unit"] for one in samples} == {"ns"}
    assert {int(one.labels["block"]) for one in samples} == set(range(1, 13))
    verdicts = families["hugewise_verdict"].samples
    said = {one.labels["arm"]: one.labels["hugewise_verdict"] for one in verdicts if one.value}
    assert said == {"thp": "better", "mthp": "better"}
    assert families["hugewise_run"].samples[0].labels["host"] == 'a"b\\'


def test_openmetrics_ends_as_it_must_and_repeats_no_series(run: Path, tmp_path: Path) -> None:
    called(run, tmp_path / "out.prom")
    lines = (tmp_path / "out.prom").read_text().splitlines()
    assert lines[-1] == "# EOF"
    series = [line.rpartition("} ")[0] for line in lines if not line.startswith("#")]
    assert len(series) == len(set(series))
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))


@pytest.fixture
def before(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mine.csv"
    path.write_text("mine")
    yield path
    assert {each.name for each in tmp_path.iterdir()} - {"mine.verdicts.csv"} == {"mine.csv"}


def test_what_is_there_is_replaced_only_when_asked(run: Path, before: Path) -> None:
    done = called(run, before)
    assert isinstance(done.exception, UserError) and "--force" in (done.exception.hint or "")
    assert before.read_text() == "mine"
    assert called(run, before, "--force").exit_code == 0
    assert before.read_text().startswith("study,")


def test_a_file_that_comes_meanwhile_is_left(run: Path, before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "lexists", lambda _: False)
    assert isinstance(called(run, before).exception, UserError)
    assert before.read_text() == "mine"
    assert not before.with_name("mine.verdicts.csv").exists()


def test_a_disk_that_is_full_leaves_nothing(run: Path, before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "FORMATS", {".csv": full})
    done = called(run, before, "--force")
    assert isinstance(done.exception, StorageError) and "No space left" in done.exception.message
    assert before.read_text() == "mine"
    assert not before.with_name("mine.verdicts.csv").exists()


def test_a_link_is_replaced_and_not_followed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "out.csv").symlink_to(tmp_path / "theirs")
    assert isinstance(called(run, tmp_path / "out.csv").exception, UserError)
    assert called(run, tmp_path / "out.csv", "--force").exit_code == 0
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert not (tmp_path / "out.csv").is_symlink()


@pytest.mark.parametrize("name", ["out.xlsx", "out", ".csv", "folder.csv", "/dev/stdout"])
def test_other_names_are_refused(run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.csv").mkdir()
    for more in ((), ("--force",)):
        assert isinstance(called(run, tmp_path / name, *more).exception, UserError)


def test_a_folder_that_others_can_change_is_not_written_in_by_root(run: Path, tmp_path: Path) -> None:
    need(os.geteuid() == 0, "root")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert isinstance(called(run, tmp_path / "open" / "out.csv").exception, UserError)
    assert not list((tmp_path / "open").iterdir())


def test_hostile_names_run_no_formula_and_break_no_line(tmp_path: Path) -> None:
    from tests.analysis.test_forecast import cell

    run = a_run(tmp_path / "r", 1, cells=(cell('=cmd|"x"\n# EOF', "+thp"),))
    for ending in ("csv", "prom", "parquet"):
        assert called(run, tmp_path / f"o.{ending}").exit_code == 0
    with (tmp_path / "o.csv").open(newline="", encoding="utf-8") as file:
        assert {row["cell"] for row in csv.DictReader(file)} == {'\'=cmd|"x" # EOF'}
    assert (tmp_path / "o.prom").read_text().count("\n# EOF") == 1


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_every_verdict_is_in_a_second_file(run: Path, tmp_path: Path, ending: str) -> None:
    done = called(run, tmp_path / f"out.{ending}")
    assert "2 verdicts in" in done.output.replace("\n", " ")
    told = duckdb.sql(
        f"select arm, end_point, verdict, n, ratio, low, high, unit, run from '{tmp_path}/out.verdicts.{ending}'"  # noqa: S608
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
        read = RunFolder(run).read()
        whole = replace(results, cells=(replace(cell, end_points=(beyond,)),))
        export.prepared(connection, read, whole)
        found = connection.execute("select end_point, estimand, ratio from verdicts order by all").fetchall()
        counts = sum(export.rows(connection, read, whole))
    assert [row for row in found if row[0]] == [(True, "ratio of means", 0.5)]
    assert len(found) == 3
    assert called(run, tmp_path / "out.csv").output.startswith(f"{counts} rows")


@pytest.mark.parametrize("ending", ["parquet", "csv", "prom"])
def test_pieces_make_the_same_file_in_the_same_order(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    called(run, tmp_path / f"whole.{ending}")
    monkeypatch.setattr(export, "_ROWS_AT_ONCE", 5)  # 36 attempts
    monkeypatch.setattr(export, "_PIECES", 3)
    called(run, tmp_path / f"pieces.{ending}")
    if ending == "parquet":
        whole, pieces = (
            duckdb.sql(f"select * from '{tmp_path / name}.parquet'").fetchall()  # noqa: S608
            for name in ("whole", "pieces")
        )
        assert whole == pieces
        order = [(row[12], row[16], row[23]) for row in whole]  # block, number, metric
        assert [row[2] for row in order[:3]] == sorted(row[2] for row in order[:3])
    else:
        whole_text, pieces_text = ((tmp_path / f"{name}.{ending}").read_text() for name in ("whole", "pieces"))
        assert whole_text == pieces_text


def test_a_second_file_that_is_there_is_replaced_only_when_asked(run: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "out.verdicts.csv"
    theirs.write_text("theirs")
    assert isinstance(called(run, tmp_path / "out.csv").exception, UserError)
    assert theirs.read_text() == "theirs"
    assert not (tmp_path / "out.csv").exists()
    assert called(run, tmp_path / "out.csv", "--force").exit_code == 0
    assert theirs.read_text().startswith("study,")
