"""Every reader reads what its tool really wrote, and refuses what it cannot use by file, place and cure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hugewise.external.analyze import load, recognise
from hugewise.external.reader import Ask, DataError, Series
from hugewise.external.readers import discover
from tests import golden

DATA = Path(__file__).parent / "data"
READERS = discover()

FORMATS = {
    "hyperfine.json": "hyperfine",
    "hyperfine-parameters.json": "hyperfine",
    "hyperfine-failures.json": "hyperfine",
    "perf-stat.csv": "perf-stat",
    "perf-stat-repeat.csv": "perf-stat",
    "perf-stat-append.csv": "perf-stat",
    "perf-stat-interval.csv": "perf-stat",
    "perf-stat-interval.json": "perf-stat",
    "perf-stat-cpus-interval.csv": "perf-stat",
    "perf-stat.json": "perf-stat",
    "perf-stat-cpus.json": "perf-stat",
    "pgbench-transactions.log": "pgbench",
    "pgbench-rate.log": "pgbench",
    "pgbench-aggregated.log": "pgbench",
    "pgbench-summaries.txt": "pgbench",
    "sysbench-memory.txt": "sysbench",
    "sysbench-cpu.txt": "sysbench",
    "memtier.json": "memtier",
    "memtier-all-runs.json": "memtier",
    "go-base.txt": "go-benchmark",
    "go-gcoff.txt": "go-benchmark",
    "benchstat.txt": "go-benchmark",
}


def told(name: str) -> str:
    """What is read of a file, a line for each of its series, or why it is refused."""
    try:
        found = recognise(DATA / name, READERS).read(DATA / name, Ask())
    except DataError as error:
        return f"refused: {error.message.replace(f'{DATA}/', '')}\n  cure: {error.hint}\n"
    return "".join(map(described, found))


def described(one: Series) -> str:
    values = " ".join(f"{value:.10g}" for value in one.values[:6])
    rows = {"run": one.run, "order": one.order, "failed": one.failed}
    marks = [f"  {name}: {' '.join(map(str, row[:6].tolist()))}" for name, row in rows.items() if row is not None]
    lines = [
        f"{one.arm}, {one.metric.name} in {one.metric.unit}, {one.metric.better} is better{', primary' * one.primary}",
        f"  {len(one.values)} values: {values}",
        *marks,
        *(f"  note: {note}" for note in one.notes),
    ]
    return "\n".join(lines) + "\n"


def test_what_is_read_of_every_file_here() -> None:
    golden.same("\n".join(f"== {name}\n{told(name)}" for name in FORMATS), golden.GOLDEN / "readers.txt")


def test_every_file_here_is_recognised_by_its_content_alone() -> None:
    files = {path.name for path in DATA.iterdir()} - {"README.md"}
    assert files == FORMATS.keys()
    for name, expected in FORMATS.items():
        assert expected == recognise(DATA / name, READERS).NAME, name


def test_every_file_here_is_explained() -> None:
    page = (DATA / "README.md").read_text()
    for name in FORMATS:
        assert name in page or f"{Path(name).stem}.csv, {Path(name).suffix}" in page, name


def test_pgbench_transactions_that_were_skipped_are_failures(tmp_path: Path) -> None:
    path = tmp_path / "log"  # constructed: a rate limit with a latency limit
    path.write_text("0 1 1529 0 1795206221 853314 5\n0 2 skipped 0 1795206221 853379 9\n")
    (found,) = READERS["pgbench"].read(path, Ask())
    assert found.failed is not None and found.failed.tolist() == [False, True]
    assert found.values[0] == 1529.0 and np.isnan(found.values[1])


def test_memtier_without_the_single_runs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mean.json"
    path.write_text('{"configuration": {"data_size": 32}, "AGGREGATED AVERAGE RESULTS (3 runs)": {}}')
    with pytest.raises(DataError, match="only the best, the worst and the mean") as caught:
        recognise(path, READERS).read(path, Ask())
    assert "--print-all-runs" in str(caught.value.hint)


def test_what_nobody_knows_and_what_is_empty_is_refused(tmp_path: Path) -> None:
    for content, message in ((b"hello\n", "format is not known"), (b"", "empty"), (b"\x00\xff" * 50, "not known")):
        path = tmp_path / "x"
        path.write_bytes(content)
        with pytest.raises(DataError, match=message) as caught:
            recognise(path, READERS)
        assert caught.value.hint
    with pytest.raises(DataError, match="No such file"):
        recognise(tmp_path / "absent", READERS)
    with pytest.raises(DataError, match="a folder"):
        recognise(tmp_path, READERS)


@pytest.mark.parametrize(
    ("reader", "content", "where"),
    [
        ("hyperfine", '{"results": [{"command": "a", "times": [1.0, null]}]}', r"results\[0\]\.times\[1\]"),
        ("hyperfine", '{"results": [{"command": "a"}]}', r"results\[0\]: no times"),
        ("hyperfine", '{"results":\n[{"command": ', "line 2"),
        ("perf-stat", "1,,faults,1,100.00,,\nrubbish\n", "line 2: no counter"),
        ("pgbench", "0 1 1529 0 1795206221 853314\n0 2 55 0\n", "line 2: no transaction"),
        (
            "go-benchmark",
            "BenchmarkX 10 1 ns/op\nBenchmarkX 10 y ns/op\n",
            "line 2: .*'ns/op' is 'y', not a number",
        ),
        ("sysbench", "sysbench 1.0.20\nGeneral statistics:\n", "none of its figures"),
        ("memtier", '{"configuration": {"data_size": 1}, "ALL STATS": {}}', "ALL STATS.Totals: no totals"),
    ],
)
def test_mistakes_are_named_by_their_place(tmp_path: Path, reader: str, content: str, where: str) -> None:
    path = tmp_path / "broken"
    path.write_text(content)
    with pytest.raises(DataError, match=where) as caught:
        READERS[reader].read(path, Ask())
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_arms_are_named_by_the_user_by_the_file_or_not_at_all() -> None:
    files = [DATA / "go-base.txt", DATA / "go-gcoff.txt"]
    assert {one.arm for one in load(files, Ask())["go-benchmark"]} == {"go-base", "go-gcoff"}
    assert {one.arm for one in load(files, Ask(), arms=["a", "b"])["go-benchmark"]} == {"a", "b"}
    assert {one.arm for one in load(files, Ask(), arms=["a", "a"])["go-benchmark"]} == {"a"}
    assert {one.arm for one in load([DATA / "hyperfine.json"], Ask(), arms=["x", "y"])["hyperfine"]} == {"x", "y"}


def test_arms_that_would_be_confused_are_refused() -> None:
    from hugewise.errors import UserError

    twice = [DATA / "hyperfine.json", DATA / "hyperfine.json"]
    with pytest.raises(UserError, match="would both be the arm"):
        load(twice, Ask())
    with pytest.raises(UserError, match="--arm is given 3 times"):
        load([DATA / "hyperfine.json"], Ask(), arms=["a", "b", "c"])
    with pytest.raises(UserError, match="no such format"):
        load([DATA / "hyperfine.json"], Ask(), name="spice")


def test_runs_of_several_files_stay_apart() -> None:
    files = [DATA / "sysbench-memory.txt", DATA / "sysbench-cpu.txt"]
    found = load(files, Ask(), arms=["a", "a"])["sysbench"]
    runs = [one.run.tolist() for one in found if one.metric.name == "total_time_s" and one.run is not None]
    assert runs == [[0, 1, 2], [3]]
