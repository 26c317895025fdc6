"""CSV and Parquet: columns by name, arms, labels, and mistakes by row."""

from pathlib import Path

import duckdb
import numpy as np
import pytest

from hugewise.external.analyze import analyze, recognise
from hugewise.external.reader import Ask, DataError
from hugewise.external.readers import columns, discover
from tests.build import known

TABLE = "block,at,arm,wall_s\n1,10,base,2.0\n1,11,thp,1.5\n2,12,thp,1.6\n2,13,base,\n"


def write(tmp_path: Path, text: str, name: str = "data.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_arms_blocks_order_and_missing_values(tmp_path: Path) -> None:
    path = write(tmp_path, TABLE)
    assert recognise(path, discover()) is columns or recognise(path, discover()).NAME == "columns"
    base, thp = columns.read(path, Ask(value="wall_s", block="block", order="at"))
    assert (base.arm, thp.arm) == ("base", "thp")
    assert base.values[0] == 2.0 and np.isnan(base.values[1])
    assert thp.values.tolist() == [1.5, 1.6]
    assert thp.block is not None and thp.block.tolist() == [1, 2]
    assert thp.order is not None and thp.order.tolist() == [11.0, 12.0]
    assert (base.metric.unit, base.metric.better) == ("s", "lower")


@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators(tmp_path: Path, separator: str) -> None:
    path = write(tmp_path, TABLE.replace(",", separator))
    assert [one.arm for one in columns.read(path, Ask(value="wall_s"))] == ["base", "thp"]


def test_parquet_times_and_odd_names(tmp_path: Path) -> None:
    path = tmp_path / "a[1]*.parquet"
    duckdb.sql(
        "select 'x' || i as policy, i * 1.5 as \"time 's'\", timestamp '2026-01-01' + i * interval 1 second as t "
        "from range(4) r(i)"
    ).write_parquet(str(path))
    series = columns.read(path, Ask(value="time 's'", arm_column="policy", order="t"))
    assert [one.arm for one in series] == ["x0", "x1", "x2", "x3"]
    assert series[3].values.tolist() == [4.5]
    assert known(series[1].order)[0] - known(series[0].order)[0] == 1.0


def test_a_single_column(tmp_path: Path) -> None:
    (series,) = columns.read(write(tmp_path, "latency_us\n5\n7\n"), Ask())
    assert series.arm is None and series.values.tolist() == [5.0, 7.0] and series.metric.unit == "us"


def test_labels_that_are_no_numbers_are_the_same_in_every_file(tmp_path: Path) -> None:
    first, second = (
        columns.read(write(tmp_path, text, name), Ask(value="v", session="s"))[0].session
        for name, text in (("a.csv", "s,v\nmon,1\ntue,2\n"), ("b.csv", "s,v\ntue,1\nwed,2\n"))
    )
    assert first is not None and second is not None
    assert first[1] == second[0] and len({*first.tolist(), *second.tolist()}) == 3


@pytest.mark.parametrize(
    ("text", "ask", "message"),
    [
        (TABLE, Ask(value="wall"), r"no column 'wall' \(--value\)"),
        (TABLE.replace("1.6", "fast"), Ask(value="wall_s"), r"row 3 \(line 4\): wall_s is 'fast'"),
        (TABLE.replace("1.6", "inf"), Ask(value="wall_s"), r"row 3 \(line 4\): wall_s is 'inf'"),
        (TABLE.replace("thp,1.6", ",1.6"), Ask(value="wall_s"), "arm is empty"),
        (TABLE.replace("2,12", ",12"), Ask(value="wall_s", block="block"), r"row 3 \(line 4\): block needs a value"),
        (TABLE.replace("2,12", "2,noon"), Ask(value="wall_s", order="at"), r"row 3 \(line 4\): at is neither"),
        ("a,b\n1,2\n", Ask(), "which column holds"),
        ("arm,v\nx,1\ny,2,3\n", Ask(value="v"), "line 3"),
    ],
)
def test_mistakes_name_the_row_and_the_cure(tmp_path: Path, text: str, ask: Ask, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        columns.read(write(tmp_path, text), ask)
    assert "data.csv" in caught.value.message and caught.value.hint


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ("select 1.5 as v from range(5000000)", "5,000,000 rows are too many"),
        (
            "select 1.5 as v, repeat('a', 1000000) as arm from range(300)",
            "arm has a field of 1,000,000 bytes, too long for 300 rows",
        ),
        ("select [1.5] as v from range(3)", "not of numbers or texts"),
    ],
)
def test_a_few_bytes_that_tell_much_are_refused(tmp_path: Path, rows: str, why: str) -> None:
    path = tmp_path / "x.parquet"
    duckdb.sql(rows).write_parquet(str(path), compression="zstd")
    assert path.stat().st_size < 20_000
    with pytest.raises(DataError, match=why):
        columns.read(path, Ask(value="v"))


def test_a_long_label_takes_no_memory_for_each_row(tmp_path: Path) -> None:
    text = "v,session\n" + f"1,{'a' * 100_000}\n" + "2,b\n" * 5000
    with pytest.raises(DataError, match="session has a field of 100,000 bytes"):
        columns.read(write(tmp_path, text), Ask(value="v", session="session"))


def test_spaces_around_names_and_arms_are_no_part_of_them(tmp_path: Path) -> None:
    series = columns.read(write(tmp_path, "latency_us, arm\n5, base\n7, thp\n"), Ask())
    assert [(one.arm, one.values.tolist()) for one in series] == [("base", [5.0]), ("thp", [7.0])]


@pytest.mark.parametrize("column", ["threads", "clients", "stat", "percentile"])
def test_rows_of_a_sweep_are_no_sample(tmp_path: Path, column: str) -> None:
    path = write(tmp_path, f"arm,{column},tps\nbase,1,10\nbase,16,100\nthp,1,11\nthp,16,101\n")
    with pytest.raises(DataError, match=f"different kinds: {column} is '1', '16'"):
        columns.read(path, Ask(value="tps"))


def test_points_between_thousands_are_not_decimal(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 2 \(line 3\): iops has numbers like '1.002'") as error:
        columns.read(write(tmp_path, "arm;iops\nbase;998\nbase;1.002\nthp;1.101\n"), Ask())
    assert "a point" in str(error.value.hint)
    for kept in ("998;1\n1002;1\n", "1;1\n1.002;1\n2.105;1\n", "998.5;1\n1.002;1\n", "0.998;1\n1.002;1\n"):
        (series,) = columns.read(write(tmp_path, f"wall_s;n\n{kept}"), Ask(value="wall_s"))
        assert series.values.tolist() == [float(row.split(";")[0]) for row in kept.splitlines()]


def test_arms_in_a_column_of_another_name_are_not_one_sample(tmp_path: Path) -> None:
    path = write(tmp_path, "policy,tps\nbase,10\nthp,12\n")
    with pytest.raises(DataError, match="different kinds: policy is 'base', 'thp'") as error:
        columns.read(path, Ask())
    assert "--arm-column policy" in str(error.value.hint)
    assert [one.arm for one in columns.read(path, Ask(arm_column="policy"))] == ["base", "thp"]


@pytest.mark.parametrize(
    "word", ["mean", "Average", "avg", "median", "stddev", "geomean", "TOTAL", "Aggregated", "p95", "P99.9"]
)
@pytest.mark.parametrize("column", ["arm", "number"])
def test_a_row_that_sums_up_others_is_no_run(tmp_path: Path, word: str, column: str) -> None:
    path = write(tmp_path, f"{column},wall_s\na,1.0\na,1.2\n {word} ,1.1\n")
    with pytest.raises(DataError, match=r"row 3 \(line 4\): .* sums up others"):
        columns.read(path, Ask())


def test_pairs_and_arms_may_be_called_as_aggregates_are(tmp_path: Path) -> None:
    path = write(tmp_path, "pair,arm,wall_s\np01,std,1.0\np01,thp,1.2\np02,std,1.1\np02,thp,1.3\n")
    std, thp = columns.read(path, Ask(value="wall_s", block="pair"))
    assert (std.arm, std.values.tolist(), thp.arm) == ("std", [1.0, 1.1], "thp")
    with pytest.raises(DataError, match=r"row 1 \(line 2\): pair is 'p01': a row that sums up others"):
        columns.read(path, Ask(value="wall_s"))
    with pytest.raises(DataError, match=r"row 3 \(line 4\): pair is 'mean'"):
        columns.read(write(tmp_path, "pair,wall_s\np01,1.0\np02,1.2\nmean,1.1\n"), Ask(value="wall_s", block="pair"))


@pytest.mark.parametrize("column", ["policy", "variant", "config", "Treatment"])
def test_a_column_that_names_the_arm_is_no_setting_in_which_arms_differ_too(tmp_path: Path, column: str) -> None:
    one, other = (
        write(tmp_path, f"threads,{column},wall_s\n{threads},{arm},1.0\n{threads},{arm},1.2\n", f"{arm}.csv")
        for threads, arm in ((1, "base"), (2, "thp"))
    )
    asked = Ask(value="wall_s")
    (metric,) = analyze([one, other], ask=asked).metrics
    assert [note for arm in metric.arms for note in arm.notes if "differ in" in note] == [
        "The runs of thp have threads '2', those of base '1': the arms differ in threads, too."
    ]
    again = write(tmp_path, f"threads,{column},wall_s\n1,base again,1.0\n1,base again,1.3\n", "again.csv")
    merged = analyze([one, again, other], arms=["base", "base", "thp"], ask=asked)
    assert [arm.figures.n for arm in merged.metrics[0].arms] == [4, 2]


@pytest.mark.parametrize("column", ["success", "exit_code", "status", "responseCode", "Exit code", "rc", "phase"])
def test_runs_that_failed_are_no_runs_like_the_others(tmp_path: Path, column: str) -> None:
    rows = f"number,{column},wall_s\na,x,1.0\na,x,1.2\n"
    assert columns.read(write(tmp_path, rows), Ask(value="wall_s"))[0].values.tolist() == [1.0, 1.2]
    with pytest.raises(DataError, match=f"{column} is"):
        columns.read(write(tmp_path, f"{rows}a,y,0.1\n"), Ask(value="wall_s"))


def test_times_and_rates_are_not_negative(tmp_path: Path) -> None:
    for name in ("wall_s", "ops_per_s"):
        with pytest.raises(DataError, match=r"row 2 \(line 3\): .* is -1, which no time or rate can be"):
            columns.read(write(tmp_path, f"{name}\n1\n-1\n"), Ask())
    for name in ("delta_ms", "score"):
        assert columns.read(write(tmp_path, f"{name}\n1\n-1\n"), Ask())[0].values.tolist() == [1.0, -1.0]


def test_a_file_without_a_header_loses_no_row(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 1: no header"):
        columns.read(write(tmp_path, "98039.22\n98031.22\n"), Ask())
