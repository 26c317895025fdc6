"""Every reader reads what its tool really wrote, and refuses what it cannot use by file, place and cure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hugewise.external.reader import Ask, DataError, Series
from hugewise.external.readers import discover
from hugewise.external.reading import load, recognise
from tests.build import known

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


def read(name: str) -> dict[tuple[str | None, str], Series]:
    path = DATA / name
    return {(one.arm, one.metric.name): one for one in recognise(path, READERS).read(path, Ask())}


def test_every_file_here_is_recognised_by_its_content_alone() -> None:
    files = {path.name for path in DATA.iterdir()} - {"README.md"}
    assert files == FORMATS.keys()
    for name, expected in FORMATS.items():
        assert expected == recognise(DATA / name, READERS).NAME, name


def test_every_file_here_is_explained() -> None:
    page = (DATA / "README.md").read_text()
    for name in FORMATS:
        assert name in page or f"{Path(name).stem}.csv, {Path(name).suffix}" in page, name


def test_hyperfine_has_every_run_in_the_order_of_the_commands() -> None:
    found = read("hyperfine.json")
    base, sleep = found["base", "wall_s"], found["sleep", "wall_s"]
    assert len(base.values) == len(sleep.values) == 12
    assert base.values[0] == 0.0005655640000000001
    assert base.order is not None and sleep.order is not None and base.order.max() < sleep.order.min()
    assert base.failed is None


def test_hyperfine_tells_commands_apart_by_their_parameters_and_keeps_failures() -> None:
    assert [arm for arm, _ in read("hyperfine-parameters.json")] == ["sleep 0.001", "sleep 0.002", "sleep 0.003"]
    (failing,) = read("hyperfine-failures.json").values()
    assert known(failing.failed).tolist() == [False, True, False, True, False, True]


def test_perf_stat_counts_and_times() -> None:
    found = read("perf-stat.csv")
    assert found[None, "duration_time"].primary
    assert found[None, "task-clock"].values.tolist() == [0.58]
    assert found[None, "task-clock"].metric.unit == "ms"
    assert found[None, "page-faults"].values.tolist() == [75.0]


def test_perf_stat_appended_records_are_runs() -> None:
    faults = read("perf-stat-append.csv")[None, "page-faults"]
    assert len(faults.values) == 4
    assert faults.run is not None and faults.run.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["perf-stat-interval.csv", "perf-stat-interval.json"])
def test_perf_stat_intervals_are_of_one_run_and_what_was_not_counted_is_missing(name: str) -> None:
    clock = read(name)[None, "task-clock"]
    assert clock.run is not None and set(clock.run.tolist()) == {0}
    assert np.isnan(clock.values[1])
    assert clock.order is not None and (np.diff(clock.order) > 0).all()
    assert any("cuts one run into intervals" in note for note in clock.notes)


def test_perf_stat_sums_cpus_and_says_what_r_loses() -> None:
    switches = read("perf-stat-cpus-interval.csv")[None, "context-switches"]
    assert switches.values.tolist() == [30.0, 12.0, 10.0, 8.0]
    repeated = read("perf-stat-repeat.csv")
    assert any("only the mean" in note for note in repeated[None, "task-clock"].notes)
    assert np.isnan(repeated[None, "cycles"].values).all()


def test_broken_json_of_perf_is_refused_with_its_line_and_the_way_around() -> None:
    with pytest.raises(DataError, match=r"perf-stat-cpus\.json: line 3: broken JSON") as caught:
        read("perf-stat-cpus.json")
    assert "-x," in str(caught.value.hint)


def test_pgbench_log() -> None:
    (latency,) = read("pgbench-transactions.log").values()
    assert len(latency.values) == 60 and latency.values[0] == 1529.0 and latency.metric.unit == "us"
    assert latency.run is not None and set(latency.run.tolist()) == {0}
    (rated,) = read("pgbench-rate.log").values()
    assert len(rated.values) == 51


def test_pgbench_transactions_that_were_skipped_are_failures(tmp_path: Path) -> None:
    path = tmp_path / "log"  # constructed: a rate limit with a latency limit
    path.write_text("0 1 1529 0 1795206221 853314 5\n0 2 skipped 0 1795206221 853379 9\n")
    (found,) = READERS["pgbench"].read(path, Ask())
    assert found.failed is not None and found.failed.tolist() == [False, True]
    assert found.values[0] == 1529.0 and np.isnan(found.values[1])


def test_pgbench_aggregated_log_is_not_taken_for_transactions() -> None:
    found = read("pgbench-aggregated.log")
    assert found[None, "interval_tps"].values.tolist() == [4396.0, 38118.0, 45745.0]
    assert found[None, "interval_latency_us"].values[0] == pytest.approx(210171 / 4396)


def test_pgbench_summaries_are_runs_and_progress_is_within_them() -> None:
    found = read("pgbench-summaries.txt")
    tps, progress = found[None, "tps"], found[None, "interval_tps"]
    assert tps.primary and not progress.primary
    assert tps.values.tolist() == [18203.883495, 41658.526909]
    assert progress.run is not None and progress.run.tolist() == [1, 1, 1]


def test_sysbench() -> None:
    found = read("sysbench-memory.txt")
    assert len(found[None, "mib_per_s"].values) == 3 and found[None, "mib_per_s"].primary
    assert found[None, "mib_per_s"].metric.better == "higher"
    cpu = read("sysbench-cpu.txt")
    assert cpu[None, "events_per_s"].values.tolist() == [5227.16]
    assert cpu[None, "interval_per_s"].values.tolist() == [5216.88, 5246.11, 5222.63]


def test_memtier() -> None:
    one = read("memtier.json")
    assert one[None, "ops_per_s"].values.tolist() == [40136.84]
    assert one[None, "interval_ops_per_s"].values.tolist() == [37271.0, 43003.0]  # not the rest of a third second
    assert one[None, "latency_average_ms"].values[0] == pytest.approx(3982 / 80276)  # the tool wrote 0
    runs = read("memtier-all-runs.json")
    assert runs[None, "ops_per_s"].values.tolist() == [37175.93, 37910.56, 36164.89]


def test_memtier_without_the_single_runs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mean.json"
    path.write_text('{"configuration": {"data_size": 32}, "AGGREGATED AVERAGE RESULTS (3 runs)": {}}')
    with pytest.raises(DataError, match="only the best, the worst and the mean") as caught:
        recognise(path, READERS).read(path, Ask())
    assert "--print-all-runs" in str(caught.value.hint)


def test_go_benchmarks() -> None:
    found = read("go-base.txt")
    walk = found[None, "Walk/size=1M-2 ns/op"]
    assert walk.values.tolist() == [11356.0, 12034.0, 11325.0, 14216.0, 12748.0, 12186.0]
    assert walk.primary and not found[None, "Walk/size=1M-2 B/op"].primary
    assert found[None, "Walk/size=1M-2 MB/s"].metric.better == "higher"


def test_benchstats_tables_are_refused() -> None:
    with pytest.raises(DataError, match="no values of single runs") as caught:
        read("benchstat.txt")
    assert "medians" in str(caught.value.hint)


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
        ("go-benchmark", "BenchmarkX 10 1 ns/op\nBenchmarkX 10 y ns/op\n", "line 2: 'y' is no number"),
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
