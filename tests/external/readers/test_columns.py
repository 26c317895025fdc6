"""CSV and Parquet: columns by name, arms, labels, and mistakes by row."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

from hugewise.external.analyze import recognise
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
    found = columns.read(path, Ask(value="time 's'", arm_column="policy", order="t"))
    assert [one.arm for one in found] == ["x0", "x1", "x2", "x3"]
    assert found[3].values.tolist() == [4.5]
    assert known(found[1].order)[0] - known(found[0].order)[0] == 1.0


def test_a_single_column(tmp_path: Path) -> None:
    (found,) = columns.read(write(tmp_path, "latency_us\n5\n7\n"), Ask())
    assert found.arm is None and found.values.tolist() == [5.0, 7.0] and found.metric.unit == "us"


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
