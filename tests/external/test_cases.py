"""Outputs that were once misread: the right answer, worked out by hand, or an error with a cure that works."""

import subprocess
from pathlib import Path

import pytest

from hugewise.errors import UserError
from hugewise.external.analyze import analyze
from hugewise.external.compare import AnalysisPlan, ArmFigures, ExternalComparison, ExternalResults, MetricResults
from hugewise.external.reader import Ask
from hugewise.model.metric import Metric

CASES = Path(__file__).parent / "cases"


def read(*names: str, metric: str | None = None, ask: Ask | None = None, arms: tuple[str, ...] = ()) -> ExternalResults:
    plan = AnalysisPlan(metrics=() if metric is None else (metric,))
    return analyze([CASES / name for name in names], ask=ask, arms=arms, plan=plan)


def pair(folder: str, what: str = "", metric: str | None = None, ask: Ask | None = None) -> MetricResults:
    """base against thp."""
    names = sorted(path.name for path in (CASES / folder).iterdir() if path.stem in (f"base{what}", f"thp{what}"))
    (found,) = read(*(f"{folder}/{name}" for name in names), metric=metric, ask=ask).metrics
    return found


def side(comparison: ExternalComparison, metric: Metric) -> str:
    """The direction in which the whole interval of the estimate lies, if it does."""
    assert comparison.verdict == "none"
    if comparison.low is None or comparison.high is None or comparison.low <= 1 <= comparison.high:
        return "nothing"
    return "better" if (comparison.low > 1) == (metric.better == "higher") else "worse"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def only(results: ExternalResults) -> ArmFigures:
    ((arm,),) = [metric.arms for metric in results.metrics]
    return arm


# folder, which files, metric, unit and direction, then n and mean of each arm, and the side of the interval
Pair = tuple[str, str, str | None, tuple[str, str], tuple[int, float], tuple[int, float], str]
PAIRS: list[Pair] = [
    ("01-perf-csv-comma-locale", "", None, ("ms", "lower"), (5, 1235.59), (5, 987.82), "better"),
    ("02-perf-events-repeated", "-groups", "cycles", ("count", "lower"), (5, 4.00325e9), (5, 3.20325e9), "better"),
    (
        "02-perf-events-repeated",
        "-hybrid",
        "cpu_core/cycles/",
        ("count", "lower"),
        (5, 4.003e9),
        (5, 3.203e9),
        "better",
    ),
    ("04-perf-json", "", None, ("ms", "lower"), (5, 1501.0), (5, 1201.0), "better"),
    ("05-memtier-nan", "", None, ("operations/s", "higher"), (1, 154000.5), (1, 171000.5), "nothing"),
    ("05-memtier-nan", "", "interval_ops_per_s", ("operations/s", "higher"), (5, 154000), (5, 136800), "nothing"),
    ("07-pgbench-reconnect", "", None, ("transactions/s", "higher"), (4, 74.1), (4, 82.1), "better"),
    ("07-pgbench-reconnect", "-noprogress", None, ("transactions/s", "higher"), (4, 74.1), (4, 82.1), "better"),
    ("07-pgbench-reconnect", "-one", None, ("transactions/s", "higher"), (1, 72.6), (1, 80.6), "nothing"),
    ("10-sysbench-versions", "-1.1", None, ("events/s", "higher"), (4, 8_952_970), (4, 9_952_970), "better"),
    ("10-sysbench-versions", "-0.4", None, ("MB/s", "higher"), (4, 1207.13), (4, 1507.13), "better"),
    ("11-go-units-packages", "-one", None, ("ns/op", "lower"), (6, 255), (6, 205), "better"),
    *(
        ("11-go-units-packages", "-one", f"Get/keys=1e6/value=64-8 {unit}", (unit, "higher"), base, thp, said)
        for unit, base, thp, said in (
            ("ops/sec", (6, 3_999_950), (6, 4_999_950), "better"),
            ("hit%", (6, 91.0), (6, 95.0), "nothing"),  # no spread in six values: no interval
        )
    ),
]


@pytest.mark.parametrize("row", PAIRS)
def test_the_right_values_count_and_direction(row: Pair) -> None:
    folder, what, metric, measured, base, thp, said = row
    arms = (base, thp)
    found = pair(folder, what, metric)
    assert (found.metric.unit, found.metric.better) == measured
    assert [arm.figures.n for arm in found.arms] == [n for n, _ in arms]
    assert [arm.figures.mean for arm in found.arms] == pytest.approx([mean for _, mean in arms])
    assert [side(comparison, found.metric) for comparison in found.comparisons] == [said]


def test_two_raw_events_are_two(tmp_path: Path) -> None:
    for what in ("-raw", "-raw-semicolon"):
        with pytest.raises(UserError, match="whether more or less of 'cpu/event=0x08,umask=0x01/' is better") as caught:
            pair("02-perf-events-repeated", what)
        assert "--better lower" in str(caught.value.hint)
        for umask, ratio in (("0x01", 6.03e6 / 6.003e7), ("0x10", 3.203e8 / 4.003e8)):
            event = f"cpu/event=0x08,umask={umask}/"
            found = pair("02-perf-events-repeated", what, event, Ask(better="lower"))
            (comparison,) = found.comparisons
            assert comparison.ratio == pytest.approx(ratio) and side(comparison, found.metric) == "better"


def test_threads_of_one_run_are_one_run() -> None:
    logs = [f"08-pgbench-thread-logs/{arm}/{log.name}" for arm in ("base", "thp") for log in _logs(arm)]
    (metric,) = read(*logs, arms=("base",) * 4 + ("thp",) * 4).metrics
    assert [(arm.runs, arm.figures.n) for arm in metric.arms] == [(1, 200), (1, 200)]
    (comparison,) = metric.comparisons
    assert comparison.layout.fatal is not None and comparison.low is None
    assert any("threads of one run" in note for note in metric.arms[0].notes)


def _logs(arm: str) -> list[Path]:
    return sorted((CASES / "08-pgbench-thread-logs" / arm).iterdir())


def test_packages_are_not_merged() -> None:
    results = read("11-go-units-packages/base.txt", "11-go-units-packages/thp.txt")
    means = {metric.metric.name: [arm.figures.mean for arm in metric.arms] for metric in results.metrics}
    assert means == {
        "example.org/kv/mem Get/keys=1e6/value=64-8 ns/op": [255, 205],
        "example.org/kv/disk Get/keys=1e6/value=64-8 ns/op": [10050, 8050],
    }
    assert all(arm.figures.n == 6 for metric in results.metrics for arm in metric.arms)


# file, metric, options, n, missing, failed, mean
SINGLE = [
    ("01-perf-csv-comma-locale/perf-r-comma.csv", None, None, 1, 0, 0, 1234.56),
    ("01-perf-csv-comma-locale/perf-semicolon-fr.csv", None, None, 1, 0, 0, 0.31),
    ("02-perf-events-repeated/interval-summary.csv", None, None, 6, 0, 0, 1000.35),
    ("08-pgbench-thread-logs/failures-detailed.log", None, None, 57, 3, 3, 8861.15789),
    ("08-pgbench-thread-logs/failures-plain.log", None, None, 57, 3, 3, 8861.15789),
    ("08-pgbench-thread-logs/progress-stall-nan.txt", None, None, 12, 0, 0, 905.0),
    ("08-pgbench-thread-logs/progress-stall-nan.txt", "interval_latency_us", None, 9, 3, 0, 3067.66667),
    ("08-pgbench-thread-logs/progress-stall-zero.txt", None, None, 20, 0, 0, 600.55),
    ("08-pgbench-thread-logs/progress-stall-zero.txt", "interval_latency_us", None, 10, 10, 0, 3021.0),
    ("08-pgbench-thread-logs/aggregated-16.log", None, None, 6, 0, 0, 560.25),
    ("10-sysbench-versions/no-header.txt", None, None, 3, 0, 0, 7269.3045),
    ("11-go-units-packages/logging.txt", None, None, 6, 0, 0, 255.0),
    ("13-other-tools/google-benchmark.csv", None, Ask(value="real_time"), 3, 0, 0, 17.11),
    ("13-other-tools/google-benchmark.json", None, None, 3, 0, 0, 17.11),
]


@pytest.mark.parametrize("row", SINGLE)
def test_every_row_is_what_it_is(row: tuple[str, str | None, Ask | None, int, int, int, float]) -> None:
    name, metric, ask, *counts, mean = row
    arm = only(read(name, metric=metric, ask=ask))
    assert [arm.figures.n, arm.missing, arm.failed] == counts
    assert arm.figures.mean == pytest.approx(mean)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("02-perf-events-repeated/interval-summary.csv", "2 rows (the summary after the intervals"),
        ("04-perf-json/base.json", "5 rows (metrics that perf derives"),
        ("11-go-units-packages/logging.txt", "1 row (the benchmark prints between its name and its result"),
        ("13-other-tools/google-benchmark.csv", "4 rows (aggregates of the repetitions)"),
    ],
)
def test_what_is_left_out_is_told(name: str, told: str) -> None:
    assert any(told in note for note in only(read(name)).notes)


def test_a_count_of_part_of_the_time_is_told() -> None:
    notes = only(read("04-perf-json/base.json", metric="cycles")).notes
    assert any("cycles was counted during 10% of the time" in note for note in notes)


@pytest.mark.parametrize(
    ("name", "why", "cure"),
    [
        ("01-perf-csv-comma-locale/perf-j-fr.json", "line 2", "LC_ALL=C"),
        ("01-perf-csv-comma-locale/perf-mixed.csv", "line 5: no counter", "LC_ALL=C perf stat -x,"),
        ("03-perf-text/base.txt", "perf stat's table", "LC_ALL=C perf stat -x, -o FILE --append"),
        ("03-perf-text/interval-comma.txt", "perf stat's table", "LC_ALL=C perf stat -x, -o FILE --append"),
        ("08-pgbench-thread-logs/aggregated-one.log", "one interval", "-T"),
        ("12-hyperfine/stdout.txt", "hyperfine's table", "--export-json"),
        ("12-hyperfine/export.csv", "hyperfine's CSV, which holds means", "--export-json"),
        ("12-hyperfine/notimes.json", "no times of single runs", "--export-json"),
        ("13-other-tools/jmh.json", "JMH's result", "-rf json"),
        ("13-other-tools/criterion-estimates.json", "criterion's estimates", "sample.json"),
        ("13-other-tools/memtier.txt", "memtier_benchmark's table", "--json-out-file"),
        ("13-other-tools/redis-benchmark.csv", "one run of several tests", "redis-benchmark --csv"),
        ("13-other-tools/excel-de.csv", "row 1 (line 2): Zeit_ms is '1.234,5'", "a comma"),
        ("13-other-tools/excel-de2.csv", "which column", "Lauf, Zeit_ms"),
        ("13-other-tools/excel-en.csv", "row 1 (line 2): time_ms is '1,234.5'", "a comma"),
        ("20-smaps-capture/smaps.txt", "a capture of /proc/PID/smaps", "hugewise inspect --smaps"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_cure(name: str, why: str, cure: str) -> None:
    with pytest.raises(UserError) as caught:
        read(name)
    assert str(CASES / name) in caught.value.message and why in caught.value.message
    assert cure in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "unit", "better", "said"),
    [
        ("rates", "ops/s", "higher", "better"),
        ("mbs", "MB/s", "higher", "better"),
        ("rps", "Requests/s", "higher", "better"),
        ("lat", "us", "lower", "worse"),
    ],
)
def test_a_rate_in_a_column_is_no_time(name: str, unit: str, better: str, said: str) -> None:
    (metric,) = read(f"21-csv-units/{name}.csv").metrics
    assert (metric.metric.unit, metric.metric.better) == (unit, better)
    (comparison,) = metric.comparisons
    assert comparison.ratio == pytest.approx(1.11037, rel=1e-4) and side(comparison, metric.metric) == said


CURED = [
    # what another tool wrote, what makes a file of it that is read, and the values in it
    (
        "sample.json",
        '{"sampling_mode":"Linear","iters":[1.0,2.0,3.0],"times":[10.0,22.0,33.0]}',
        "jq -r '\"iteration_ns\", ([.times, .iters] | transpose[] | .[0] / .[1])' sample.json > FILE.csv",
        32 / 3,
    ),
    (
        "raw.csv",
        "group,function,value,throughput_num,throughput_type,sample_measured_value,unit,iteration_count\n"
        "g,f,,,,10.0,ns,1\ng,f,,,,22.0,ns,2\ng,f,,,,33.0,ns,3\n",
        "awk -F, 'NR == 1 {print \"iteration_ns\"} NR > 1 {print $6 / $8}' raw.csv > FILE.csv",
        32 / 3,
    ),
    (
        "jmh.json",
        '[{"jmhVersion": "1.37", "benchmark": "a", "forks": 2, "primaryMetric": {"scoreUnit": "ops/ms", '
        '"rawData": [[123.0, 125.0], [126.0, 128.0]]}}]',
        "jq -r '.[0].primaryMetric | .scoreUnit, (.rawData[] | add / length)' jmh.json > FILE.csv",
        125.5,
    ),
]


@pytest.mark.parametrize(("name", "content", "cure", "mean"), CURED)
def test_a_cure_makes_a_file_that_is_read(tmp_path: Path, name: str, content: str, cure: str, mean: float) -> None:
    path = written(tmp_path / name, content)
    with pytest.raises(UserError) as caught:
        analyze([path])
    assert cure in str(caught.value.hint)
    if subprocess.run(["sh", "-c", cure], cwd=tmp_path, check=False, capture_output=True).returncode == 127:
        pytest.skip("jq is not installed here")
    arm = only(results := analyze([tmp_path / "FILE.csv"]))
    assert arm.figures.mean == pytest.approx(mean)
    assert results.metrics[0].metric.better != "neutral"


def test_aggregated_logs_of_threads_are_added_up_by_the_cure(tmp_path: Path) -> None:
    for thread in range(2):
        rows = [f"{1772000000 + 10 * i} {100 + thread} 90000 81000000 800 1000" for i in range(4)]
        written(tmp_path / f"log.{thread}", "\n".join(rows) + "\n")
    logs = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match="its times overlap") as caught:
        analyze(logs, arms=("base", "base"))
    command = str(caught.value.hint).removeprefix("add up their counts: ").replace("LOGS", "log.0 log.1")
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    arm = only(analyze([tmp_path / "FILE"]))
    assert (arm.figures.n, arm.runs) == (4, 1) and arm.figures.mean == pytest.approx(20.1)


def test_two_runs_of_two_threads_are_two_runs(tmp_path: Path) -> None:
    logs = []
    for run in range(2):
        for thread in range(2):
            rows = [f"{thread} {i} {900 + 10 * run + i} 0 {1772000000 + 100 * run + i} 500" for i in range(5)]
            logs.append(written(tmp_path / f"log.{run}.{thread}", "\n".join(rows) + "\n"))
    arm = only(analyze(logs, arms=["base"] * 4))
    assert (arm.runs, arm.figures.n) == (2, 20)
    assert arm.run_means is not None and arm.run_means.n == 2


GOOGLE = '"name": "BM", "run_type": "iteration", "real_time": {}, "cpu_time": 1.0, "time_unit": "{}"'


def test_repetitions_that_failed_are_counted_and_units_are_not_mixed(tmp_path: Path) -> None:
    header = "name,iterations,real_time,cpu_time,time_unit,label,error_occurred,error_message\n"
    rows = '"BM",,,,,,true,"no memory"\n"BM",9,1.5,1.5,ms,,,\n"BM",9,2.5,1.5,ms,,,\n'
    arm = only(analyze([written(tmp_path / "a.csv", header + rows)]))
    assert (arm.figures.n, arm.figures.mean, arm.failed) == (2, 2.0, 1)
    mixed = ", ".join("{" + GOOGLE.format(1.0, unit) + "}" for unit in ("ns", "us"))
    with pytest.raises(UserError, match=r"benchmarks\[1\]: BM real_time is in us, and before in ns"):
        analyze([written(tmp_path / "b.json", '{"context": {}, "benchmarks": [' + mixed + "]}")])


def test_threads_logs_without_an_arm_are_no_arms() -> None:
    logs = [f"08-pgbench-thread-logs/base/{log.name}" for log in _logs("base")]
    with pytest.raises(UserError, match="overlap in time: are they logs of threads of one run") as caught:
        read(*logs[:2])
    assert "--arm base --arm base" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "ask", "why", "cure"),
    [
        ("arm,ms\nbase,1,5\nthp,1,6\n", None, "line 2", "a decimal comma"),
        (
            "test,ms\nget,1.5\nset,2.5\n",
            Ask(value="ms"),
            "different kinds: test is 'get', 'set'",
            "(--arm-column test)",
        ),
        ("unit,time\nms,1.5\nus,2.5\n", Ask(value="time"), "unit is 'ms', 'us'", "write all rows in one unit"),
        ("iterations,total_ns\n10,101\n20,199\n40,405\n", Ask(value="total_ns"), "grows as iterations does", "divide"),
        ("arm,score\na,1\na,2\nb,3\nb,4\n", Ask(value="score"), "more or less of 'score'", "--better lower"),
        ("arm,ops\na,1\na,2\nb,3\nb,4\n", None, "more or less of 'ops'", "--better higher"),
    ],
)
def test_columns_that_are_no_sample_are_refused(
    tmp_path: Path, text: str, ask: Ask | None, why: str, cure: str
) -> None:
    with pytest.raises(UserError) as caught:
        analyze([written(tmp_path / "data.csv", text)], ask=ask)
    assert why in caught.value.message and cure in str(caught.value.hint)


def test_a_direction_that_is_declared_is_taken(tmp_path: Path) -> None:
    path = written(tmp_path / "data.csv", "arm,score\na,1\na,2\nb,3\nb,4\n")
    for better in ("higher", "neutral"):
        (metric,) = analyze([path], ask=Ask(value="score", better=better)).metrics
        assert metric.metric.better == better


GO = "BenchmarkX-8 100 {} ns/op {} req/sec {} hit%\n"


@pytest.mark.parametrize(
    ("unit", "declared", "better"),
    [
        ("req/sec", "", "higher"),
        ("req/sec", "Unit req/sec better=lower\n", "lower"),
        ("hit%", "Unit hit% assume=exact better=higher\n", "higher"),
        ("ns/op", "Unit sec/op better=higher\n", "higher"),
        ("hit%", "", "neutral"),
    ],
)
def test_units_of_go_have_the_direction_that_the_file_says(
    tmp_path: Path, unit: str, declared: str, better: str
) -> None:
    path = written(tmp_path / "a.txt", GO.format(5, 6, 7) * 3 + declared)
    (metric,) = analyze([path], plan=AnalysisPlan(metrics=(f"X-8 {unit}",))).metrics
    assert metric.metric.better == better


def test_units_of_go_that_are_said_both_ways_are_refused(tmp_path: Path) -> None:
    text = "Unit x better=lower\nUnit x better=higher\n" + GO.format(5, 6, 7)
    with pytest.raises(UserError, match="line 2: better=higher of the unit 'x', which was better=lower before"):
        analyze([written(tmp_path / "a.txt", text)])


@pytest.mark.parametrize(
    ("lines", "n", "mean"),
    [
        ("     1.001123456,1234,57,msec,task-clock,1234570000,100,00,0,998,CPUs utilized", 1, 1234.57),
        ("     1,001123456;1234,57;msec;task-clock;1234570000;100,00;0,998;CPUs utilized", 1, 1234.57),
        ("CPU0,10,50,msec,cpu-clock,1,100,00,,\nCPU1,10,25,msec,cpu-clock,1,100,00,,", 1, 20.75),
        ("S0,4,10,50,msec,cpu-clock,1,100,00,,\nS1,4,10,25,msec,cpu-clock,1,100,00,,", 1, 20.75),
        ("a-1,0.5,msec,task-clock,1,100.00,,\nb-2,0.25,msec,task-clock,1,100.00,,", 1, 0.75),
        ("1234,57,msec,task-clock:u,0,31%,1234567,100,00,0,998,CPUs utilized", 1, 1234.57),
        ("# started on\n<not counted>,,task-clock,0,0.00,,\n# started on\n2.5,msec,task-clock,1,100.00,,", 1, 2.5),
        ("12.5|msec|task-clock|1|100.00|0.9|CPUs utilized", 1, 12.5),
        ("12.5\tmsec\ttask-clock\t1\t100.00\t0.9\tCPUs utilized", 1, 12.5),
        ("12.5,msec,task-clock,1,100.00,0.9,CPUs utilized\n,,,,,,1.75,insn per cycle", 1, 12.5),
        (
            "1.0,12.5,msec,task-clock,1,100.00,,\n2.0,13.5,msec,task-clock,1,100.00,,\n26.0,msec,task-clock,1,100.00,,",
            2,
            13,
        ),
    ],
)
def test_perf_under_any_locale_separator_and_flag(tmp_path: Path, lines: str, n: int, mean: float) -> None:
    arm = only(analyze([written(tmp_path / "perf", lines + "\n")]))
    assert arm.figures.n == n and arm.figures.mean == pytest.approx(mean)


@pytest.mark.parametrize(
    ("lines", "n", "missing", "mean"),
    [
        ("tps = 5.0 (without initial connection time)\ntps = 7.0 (without initial connection time)\n", 2, 0, 6.0),
        ("latency average: 5.000 ms\ntps = 5.0 (including connections establishing)\n", 1, 0, 5.0),
        (
            "progress: 1.0 s, 5.0 tps, lat 1.0 ms\nprogress: 2.0 s, 0.0 tps, lat NaN ms stddev NaN, 0 failed\n",
            2,
            0,
            2.5,
        ),
        ("progress: 1.0 s, 5.0 tps\nprogress: 1.0 s, 7.0 tps\n", 2, 0, 6.0),
    ],
)
def test_summaries_of_any_version_of_pgbench(tmp_path: Path, lines: str, n: int, missing: int, mean: float) -> None:
    arm = only(analyze([written(tmp_path / "pgbench", lines)]))
    assert [arm.figures.n, arm.missing] == [n, missing] and arm.figures.mean == pytest.approx(mean)


@pytest.mark.parametrize("line", ["progress: 5.0 s, many tps", "tps = 5.0", "latency average = 5 s"])
def test_a_line_of_pgbench_that_is_not_known_is_refused(tmp_path: Path, line: str) -> None:
    text = f"transaction type: x\n{line}\ntps = 5.0 (without initial connection time)\n"
    with pytest.raises(UserError, match="line 2"):
        analyze([written(tmp_path / "pgbench", text)])


def test_rates_with_connection_time_and_without_are_not_one_sample(tmp_path: Path) -> None:
    text = "tps = 5.0 (without initial connection time)\ntps = 6.0 (including reconnection times)\n"
    with pytest.raises(UserError, match="one includes the time of connecting"):
        analyze([written(tmp_path / "pgbench", text)])


@pytest.mark.parametrize(
    ("average", "mean"),
    [("8.80ms", 8.8), ("0.0088s", 8.8), ("8.80", 8.8), ("0.00\n         sum:  44.0", 0.0044)],
)
def test_latencies_of_sysbench_are_milliseconds(tmp_path: Path, average: str, mean: float) -> None:
    report = "sysbench 0.5:  x\n    total time:     10.0s\n    total number of events:    10000\n"
    text = f"{report}         avg:   {average}\n"
    path = written(tmp_path / "sysbench", text)
    arm = only(analyze([path], plan=AnalysisPlan(metrics=("latency_average_ms",))))
    assert arm.figures.mean == pytest.approx(mean)
    assert only(analyze([path])).figures.mean == pytest.approx(1000.0)  # events a second, though none is printed


def test_files_in_different_units_are_not_compared(tmp_path: Path) -> None:
    for arm, unit in (("base", "msec"), ("thp", "ns")):
        written(tmp_path / arm, f"12.5,{unit},task-clock,1,100.00,,\n")
    with pytest.raises(UserError, match="task-clock is in ns, and in .*base in ms"):
        analyze([tmp_path / "base", tmp_path / "thp"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("$ perf stat ./x\n\n Performance counter stats for './x':\n\n  1,5 msec task-clock\n", "perf stat's table"),
        ("# JMH version: 1.37\n\nBenchmark    Mode  Cnt   Score   Error  Units\n", "JMH's result"),
        ('"Benchmark","Mode","Threads","Samples","Score"\n"a","thrpt",1,5,123.4\n', "JMH's result"),
        (
            "---\nBenchmark      Time      CPU   Iterations\n---\nBM    17.1 ns   17.0 ns  1000\n",
            "google-benchmark's table",
        ),
        ("lookup/1024         time:   [17.001 ns 17.100 ns 17.200 ns]\n", "criterion's table"),
        ("| Command | Mean [ms] | Min [ms] |\n|:---|---:|---:|\n| `a` | 1 ± 2 | 1 |\n", "hyperfine's table"),
        ("====== GET ======\n  100000 requests completed in 0.61 seconds\n", "redis-benchmark's output"),
        ('{"Time":"2026-01-01T00:00:00Z","Action":"output","Package":"x","Output":"y"}\n', "go test -json"),
    ],
)
def test_outputs_of_tools_that_are_not_read_are_known_by_name(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        analyze([written(tmp_path / "file", text)])
    assert caught.value.hint
