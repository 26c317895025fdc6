"""Every reader reads what its tool really wrote, and refuses what it cannot use by file, place and cure."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from hugewise.external.analyze import analyze, load, recognise
from hugewise.external.reader import Ask, DataError, Series
from hugewise.external.readers import discover
from tests import golden
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


def told(name: str) -> str:
    """What is read of a file, a line for each of its series, or why it is refused."""
    try:
        series = recognise(DATA / name, READERS).read(DATA / name, Ask())
    except DataError as error:
        return f"refused: {error.message.replace(f'{DATA}/', '')}\n  cure: {error.hint}\n"
    return "".join(map(described, series))


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
    (series,) = READERS["pgbench"].read(path, Ask())
    assert series.failed is not None and series.failed.tolist() == [False, True]
    assert series.values[0] == 1529.0 and np.isnan(series.values[1])


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
    series = load(files, Ask(), arms=["a", "a"])["sysbench"]
    runs = [one.run.tolist() for one in series if one.metric.name == "total_time_s" and one.run is not None]
    assert runs == [[0, 1, 2], [3]]


def read(tmp_path: Path, text: str) -> list[Series]:
    path = tmp_path / "given"
    path.write_text(text)
    return recognise(path, READERS).read(path, Ask())


def test_sysbench_1_1_prints_the_rate_of_cpu_twice(tmp_path: Path) -> None:
    report = (
        "sysbench 1.1.0 (using bundled LuaJIT 2.1.0-beta3)\n\nRunning the test with following options:\n"
        "CPU speed:\n    events per second:  {0}.16\n\nThroughput:\n    events/s (eps):                      {0}.1604\n"
        "    time elapsed:                        10.0010s\n    total number of events:              52277\n"
    )
    series = read(tmp_path, report.format(5227) * 2)
    assert [(one.metric.name, one.values.tolist()) for one in series if one.primary] == [
        ("events_per_s", [5227.1604, 5227.1604])
    ]


def test_perf_counts_of_control_groups_are_of_different_processes(tmp_path: Path) -> None:
    line = (
        '{{"counter-value" : "{}", "unit" : "", "event" : "page-faults", "cgroup" : "/{}", "pcnt-running" : 100.00}}\n'
    )
    series = read(tmp_path, line.format("12.0", "a") + line.format("13.0", "b"))
    assert {one.metric.name: (one.values.tolist(), one.metric.better) for one in series} == {
        "page-faults (cgroup /a)": ([12.0], "lower"),
        "page-faults (cgroup /b)": ([13.0], "lower"),
    }


@pytest.mark.parametrize(("separator", "mark"), [(",", "."), (",", ","), (";", ","), ("|", "."), ("\t", ".")])
def test_every_column_that_perf_stat_puts_around_a_count_is_told_from_it(
    tmp_path: Path, separator: str, mark: str
) -> None:
    """perf-stat(1), CSV FORMAT: [time] [CPU, core, socket... and their number] value unit event [cgroup] [variance]
    runtime share metric unit.
    """
    starts: tuple[list[str], ...] = ([], ["     1.000166996"], ["         summary"])
    parts: tuple[list[str], ...] = (
        [],
        ["S0-D0-C1", "2"],
        ["S0", "8"],
        ["S0-D1", "8"],
        ["N1", "8"],
        ["CPU3"],
        ["S0-D0-L3-ID0", "4"],
    )
    parts = (*parts, ["S0-D0-CLS2", "4"], ["Web Content-4711"])
    cgroups: tuple[list[str], ...] = ([], ["/"], ["user.slice/user-1000.slice"], ["5"], [""])
    for start, part, cgroup, noise in itertools.product(starts, parts, cgroups, ([], [f"1{mark}24%"])):
        line = [f"203{mark}89", "msec", "task-clock", *cgroup, *noise, "738245", f"97{mark}50", f"2{mark}001", "CPUs"]
        count = ["49", "", "faults", *cgroup, *noise, "738245", f"100{mark}00", "", ""]
        missing = ["<not counted>", "", "cycles", *cgroup, *noise, "0", f"100{mark}00", "", ""]
        rows = [separator.join([*start, *part, *fields]) for fields in (line, count, missing)]
        found = {one.metric.name: one for one in read(tmp_path, "\n".join(rows) + "\n")}
        suffix = f" (cgroup {cgroup[0]})" if cgroup and cgroup[0] else ""
        assert list(found) == [f"task-clock{suffix}", f"faults{suffix}", f"cycles{suffix}"], rows
        clock, faults, cycles = found.values()
        assert (clock.values.tolist(), clock.metric.unit, clock.metric.better) == ([203.89], "ms", "lower"), rows
        assert (faults.values.tolist(), faults.metric.unit, faults.metric.better) == ([49.0], "count", "lower"), rows
        assert np.isnan(cycles.values).all() and clock.primary and not faults.primary
        assert any("97.5%" in note for note in clock.notes)


def test_perf_counts_of_parts_of_one_control_group_are_added_and_groups_are_not(tmp_path: Path) -> None:
    lines = [f"CPU{cpu},{10 + cpu},,faults,{group},9,100.00,," for group in ("a", "b/c") for cpu in (0, 1)]
    series = read(tmp_path, "\n".join(lines) + "\n")
    assert {one.metric.name: (one.values.tolist(), one.primary) for one in series} == {
        "faults (cgroup a)": ([21.0], True),
        "faults (cgroup b/c)": ([21.0], True),
    }


def test_pgbench_summaries_tell_failed_and_skipped_transactions_and_a_rate_that_was_set(tmp_path: Path) -> None:
    summary = (
        "transaction type: <builtin: select only>\nduration: 10 s\n"
        "number of transactions actually processed: 12000\nnumber of failed transactions: {} (0.1%)\n"
        "number of transactions skipped: {} (0.2%)\nrate limit schedule lag: avg 0.1 (max 3.0) ms\n"
        "tps = 1200.1 (without initial connection time)\n"
    )
    (series,) = read(tmp_path, summary.format(12, 20) + summary.format(1, 0))
    assert len(series.values) == 2
    assert "Left out of 'given': 13 rows (transactions that failed, of its summaries)." in series.notes
    assert "Left out of 'given': 20 rows (transactions that were skipped, of its summaries)." in series.notes
    assert any("--rate" in note for note in series.notes)


def test_runs_of_different_numbers_of_threads_or_clients_are_no_sample(tmp_path: Path) -> None:
    report = (
        "sysbench 1.0.20 (using x)\n\nRunning the test with following options:\nNumber of threads: {}\n\n"
        "General statistics:\n    total time:      10.0010s\n    total number of events:              52277\n"
    )
    assert len(read(tmp_path, report.format(4) * 2)[0].values) == 2
    with pytest.raises(DataError, match="line 12: runs with number of threads '1' and '16'"):
        read(tmp_path, report.format(1) + report.format(16))
    summary = "transaction type: x\nnumber of clients: {}\ntps = 1200.1 (without initial connection time)\n"
    assert len(read(tmp_path, summary.format(4) * 2)[0].values) == 2
    with pytest.raises(DataError, match="runs with number of clients '1' and '16'"):
        read(tmp_path, summary.format(1) + summary.format(16))


MEMTIER = '{"configuration": {"data_size_": 1, %s}, "ALL STATS": {"Totals": {"Ops/sec": 5.0}}}'
SYSBENCH = "sysbench 1.0\n{}\nGeneral statistics:\n total time: 10.0s\n total number of events: 500\n"
PGBENCH = "transaction type: {}\nscaling factor: {}\nquery mode: {}\ntps = 12.1 (without initial connection time)\n"


@pytest.mark.parametrize(
    ("one", "other", "setting"),
    [
        (SYSBENCH.format("Number of threads: 1"), SYSBENCH.format("Number of threads: 8"), "number of threads"),
        (
            SYSBENCH.format("Prime numbers limit: 100"),
            SYSBENCH.format("Prime numbers limit: 200"),
            "prime numbers limit",
        ),
        (SYSBENCH.format("  block size: 1KiB"), SYSBENCH.format("  block size: 1024KiB"), "block size"),
        (SYSBENCH.format("  operation: write"), SYSBENCH.format("  operation: read"), "operation"),
        (SYSBENCH.format("CPU speed:"), SYSBENCH.format("SQL statistics:"), "test"),
        (PGBENCH.format("x", 1, "simple"), PGBENCH.format("y", 1, "simple"), "transaction type"),
        (PGBENCH.format("x", 1, "simple"), PGBENCH.format("x", 9, "simple"), "scaling factor"),
        (PGBENCH.format("x", 1, "simple"), PGBENCH.format("x", 1, "prepared"), "query mode"),
        ("pkg: a\nBenchmarkX-8 100 250 ns/op\n", "pkg: b\nBenchmarkX-8 100 260 ns/op\n", "pkg"),
        ("cpu: A 7\nBenchmarkX-8 100 250 ns/op\n", "cpu: B 7\nBenchmarkX-8 100 260 ns/op\n", "cpu"),
        ("workload,wall_s\na,1.5\na,1.6\n", "workload,wall_s\nb,1.1\nb,1.2\n", "workload"),
        *(
            (MEMTIER % (f'"{key}": 1'), MEMTIER % (f'"{key}": 16'), key)
            for key in ("clients", "threads", "pipeline", "data_size")
        ),
    ],
)
def test_runs_of_different_settings_in_files_of_one_arm_are_no_sample(
    tmp_path: Path, one: str, other: str, setting: str
) -> None:
    """Both files are named; of two arms the report says in what else they differ."""
    paths = [tmp_path / "few", tmp_path / "many", tmp_path / "more"]
    for path, text in zip(paths, (one, other, other), strict=True):
        path.write_text(text)
    with pytest.raises(DataError, match=f"many: its runs have {setting} .*, those of .*few ") as refused:
        analyze(paths[:2], arms=["a", "a"])
    assert "--arm" in (refused.value.hint or "")
    base, arm = analyze(paths[:2], arms=["a", "b"]).metrics[0].arms
    assert any(note.startswith(f"The runs of b have {setting} ") for note in arm.notes)
    assert not any(note.startswith("The runs of a have") for note in base.notes)
    paths[2].write_text(other.replace("1.1", "1.3").rstrip() if other[-1] == "\n" else f"{other}\n")
    (both,) = analyze(paths[1:], arms=["a", "a"]).metrics[0].arms
    assert both.figures.n == 2 * base.figures.n


def google(rows: str) -> str:
    header = "name,iterations,real_time,cpu_time,time_unit,bytes_per_second,items_per_second,label,error_occurred"
    lines = [f"{name},{of},{time},{time},{unit},,,,," for name, of, time, unit in map(str.split, rows.splitlines())]
    return "\n".join([f"{header},error_message", *lines, ""]).replace(",-,", ",,")


def test_aggregates_that_a_google_benchmark_defines_are_no_repetitions(tmp_path: Path) -> None:
    """The names of src/statistics.cc and of ComputeStatistics; other benchmarks whose names begin alike are none."""
    aggregates = "{0}_mean 3 11 ns\n{0}_median 3 11 ns\n{0}_stddev 3 1 ns\n{0}_cv 3 0.09 -\n{0}_p95 3 12 ns\n"
    repeated = "{0} 1000 10 ns\n{0} 1000 11 ns\n{0} 1000 12 ns\n" + aggregates
    fit = "BM_get_BigO - 3.1 N\nBM_get_RMS - 4 %\n"
    rows = "".join(repeated.format(name) for name in ("BM_get", "BM_get_fast", "BM_get_max/repeats:3")) + fit
    series = [one for one in read(tmp_path, google(rows.replace(" %", " -"))) if one.primary]
    assert {one.metric.name: one.values.tolist() for one in series} == {
        f"{name} real_time": [10.0, 11.0, 12.0] for name in ("BM_get", "BM_get_fast", "BM_get_max/repeats:3")
    }
    assert "Left out of 'given': 17 rows (aggregates of the repetitions)." in series[0].notes
    with pytest.raises(DataError):
        read(tmp_path, google(aggregates.format("BM_get")))  # --benchmark_report_aggregates_only


def test_single_repetitions_of_google_benchmarks_are_no_aggregates_of_each_other(tmp_path: Path) -> None:
    series = read(tmp_path, google("BM_geo 1000 10 ns\nBM_geo_mean 1000 11 ns\nBM_geo_p95 1000 11 ns\n"))
    assert [one.metric.name for one in series if one.primary] == [
        f"{name} real_time" for name in ("BM_geo", "BM_geo_mean", "BM_geo_p95")
    ]


FILEIO = """sysbench 1.1.0 (using system LuaJIT 2.1.0-beta3)

Running the test with following options:
Number of threads: 1
Doing random read test
[ 1s ] reads: 152.31 MiB/s writes: 0.00 MiB/s fsyncs: 0.00/s latency (ms,95%): 0.130

Throughput:
         read:  IOPS=9747.42 152.30 MiB/s (159.70 MB/s)
"""
INTERRUPTED = (
    '{"configuration": {"data_size": 1}, "ALL STATS": {"Runtime": {"Interrupted": "true"}, "Totals": {"Ops/sec": 5}}}'
)
ABORTED = "pgbench: error: Run was aborted; the above results are incomplete.\n"
STARTED = "# started on Sat Nov 28 10:00:00 2026\n\n"


@pytest.mark.parametrize(
    ("content", "reason", "cure"),
    [
        (FILEIO, "line 9: a report of fileio by sysbench 1.1", "read_iops"),
        (
            f"{SYSBENCH.format('')}FATAL: mysql_stmt_execute() returned error 1205\n",
            "line 6: a run that failed",
            "again",
        ),
        (f"[ 5s ] Checkpoint report:\n{SYSBENCH.format('')}", "line 1: a report of a part of a run", "checkpoints"),
        ("pgbench (17.2)\ntps = 610.5 (ohne initiale Verbindungszeit)\n", "line 2: no figure", "LC_ALL=C"),
        (f"{PGBENCH.format('x', 1, 'y')}{ABORTED}", "line 5: a run that was aborted", ""),
        (INTERRUPTED, "ALL STATS.Runtime.Interrupted: a run that was interrupted", "run it again"),
        (
            '{"configuration": {"data_size": 32}, "AGGREGATED AVERAGE RESULTS (3 runs)": {}}',
            "only the best, the worst and the mean",
            "--print-all-runs",
        ),
        ("BenchmarkGet-8 100 250 ns/op 3 ns/op\n", "line 1: BenchmarkGet-8 has a unit twice", ""),
        (google("BM_x_mean 3 11 ns\nBM_x_stddev 3 1 ns\n"), "of 2 rows (aggregates of the repetitions) none is a", ""),
        (f"{STARTED}1.234,57,msec,task-clock,1234570000,100,00,,\n", "line 3: no counter", "LC_ALL=C"),
        ("     1,234.57 msec task-clock\n\n       1.236 seconds time elapsed\n", "perf stat's table", "-x,"),
        ('"Benchmark";"Mode";"Threads"\n"B";"avgt";1\n', "JMH's result", "-rf json"),
        ('"PING_INLINE","98039.22"\n"SET","98000.1"\n', "redis-benchmark's output", "redis-benchmark --csv"),
        ("Percentage served,Time in ms\n0,0.120\n1,0.121\n", "ab's table", "Requests per second"),
        ("starttime\tseconds\tctime\tdtime\tttime\twait\nx\t17\t0\t1\t1\t1\n", "ab's table", "Requests per second"),
    ],
)
def test_what_is_no_whole_run_or_not_in_a_form_that_is_read_is_refused_with_its_cure(
    tmp_path: Path, content: str, reason: str, cure: str
) -> None:
    (tmp_path / "given").write_text(content)
    with pytest.raises(DataError, match=re.escape(reason)) as refused:
        load([tmp_path / "given"], Ask())
    assert cure in (refused.value.hint or "")


def test_intervals_of_a_run_of_sysbench_that_was_killed_are_not_those_of_the_next(tmp_path: Path) -> None:
    killed = "sysbench 1.0.20\n[ 1s ] thds: 1 eps: {} lat (ms,95%): 1.0\n"
    series = {one.metric.name: one for one in read(tmp_path, killed.format(5) + killed.format(7) + SYSBENCH.format(""))}
    assert series["events_per_s"].values.tolist() == [50.0]
    assert known(series["interval_per_s"].run).tolist() == [0, 1]


def test_names_of_counters_of_google_benchmark_hold_commas(tmp_path: Path) -> None:
    content = 'name,iterations,real_time,cpu_time,time_unit,"hit,rate"\n"BM<int, 4>",10,1.5,1.5,ns,3\n'
    assert read(tmp_path, content)[0].values.tolist() == [1.5]


def test_connection_errors_of_memtier_are_told(tmp_path: Path) -> None:
    content = '{"configuration": {"data_size": 1}, "ALL STATS": {"Totals": {"Ops/sec": 5, "Connection Errors": 3}}}'
    assert "Left out of 'given': 3 rows (connection errors)." in read(tmp_path, content)[0].notes
