"""What holds of every reader, whatever the values: no row is lost, merged with another, or counted as more than one."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hugewise.errors import UserError
from hugewise.external.analyze import analyze
from hugewise.external.compare import AnalysisPlan, ArmFigures, ExternalResults
from hugewise.external.reader import Ask
from hugewise.external.readers import discover

Maker = Callable[[Sequence[float]], str]


def perf(values: Sequence[float]) -> str:
    return "".join(
        f"# started on Tue Mar  3 10:0{i}:01 2026\n\n{value:.2f},msec,task-clock,1,100.00,0.9,CPUs utilized\n"
        "12,,faults,1,100.00,,\n"
        for i, value in enumerate(values)
    )


def perf_comma(values: Sequence[float]) -> str:
    def line(value: float) -> str:
        return f"{value:.2f},msec,task-clock,1,100.00,0.998,CPUs utilized".replace(".", ",")

    return "".join(f"# started on Tue\n\n{line(value)}\n12,,faults,1,100,00,,\n" for value in values)


def perf_json(values: Sequence[float]) -> str:
    return "".join(
        "# started on Tue\n"
        + json.dumps({"counter-value": f"{value:.6f}", "unit": "msec", "event": "task-clock"})
        + "\n"
        for value in values
    )


def pgbench(values: Sequence[float]) -> str:
    return "".join(
        f"pgbench (15.8)\nprogress: 1.0 s, 5.0 tps, lat 2.000 ms stddev 0.1, 0 failed\n"
        f"transaction type: <builtin: TPC-B (sort of)>\nlatency average = 1.000 ms\n"
        f"tps = {value:.6f} (without initial connection time)\n"
        for value in values
    )


def pgbench_c(values: Sequence[float]) -> str:
    return pgbench(values).replace("without initial connection", "including reconnection")


def pgbench_13(values: Sequence[float]) -> str:
    return "".join(
        f"transaction type: x\nlatency average = 1.000 ms\ntps = 1.0 (including connections establishing)\n"
        f"tps = {value:.6f} (excluding connections establishing)\n"
        for value in values
    )


def sysbench(
    values: Sequence[float], rate: str = "    events per second: {value:.4f}\n", head: str = "sysbench 1.0.20\n"
) -> str:
    return "".join(
        f"{head}{rate.format(value=value)}General statistics:\n    total time:                100.0000s\n"
        f"    total number of events:    {round(value * 100)}\n\nLatency (ms):\n         avg:           1.00\n"
        for value in values
    )


def sysbench_no_rate(values: Sequence[float]) -> str:
    return sysbench(values, rate="")


def sysbench_no_head(values: Sequence[float]) -> str:
    return sysbench(values, rate="Throughput:\n    events/s (eps):   {value:.4f}\n", head="")


def hyperfine(values: Sequence[float]) -> str:
    return json.dumps({"results": [{"command": "a", "times": list(values), "exit_codes": [0] * len(values)}]})


def memtier(values: Sequence[float]) -> str:
    runs = {f"RUN #{i} RESULTS": {"Totals": {"Ops/sec": value}} for i, value in enumerate(values, 1)}
    best = {"BEST RUN RESULTS": {"Totals": {"Ops/sec": max(values)}}, "ALL STATS": {"Totals": {"Ops/sec": values[0]}}}
    return json.dumps({"configuration": {"data_size": 32}, **runs, **best})


def go(values: Sequence[float]) -> str:
    return "pkg: a\n" + "".join(f"BenchmarkX-8 \t 1000 \t {value:.4f} ns/op \t 64 B/op\n" for value in values)


def google(values: Sequence[float]) -> str:
    rows = [{"name": "BM", "run_type": "iteration", "real_time": v, "cpu_time": v, "time_unit": "ns"} for v in values]
    mean = {"name": "BM_mean", "run_type": "aggregate", "real_time": 1.0, "cpu_time": 1.0, "time_unit": "ns"}
    return json.dumps({"context": {}, "benchmarks": [*rows, mean]})


def google_csv(values: Sequence[float]) -> str:
    rows = [f'"BM",10,{value},{value},ns,,' for value in values]
    more = [f'"BM_{kind}",3,1.0,1.0,ns,,' for kind in ("mean", "median", "stddev", "cv")]
    return "\n".join(["name,iterations,real_time,cpu_time,time_unit,label,error_occurred", *rows, *more]) + "\n"


def columns(values: Sequence[float]) -> str:
    return "wall_ms\n" + "".join(f"{value}\n" for value in values)


MAKERS: dict[str, tuple[str, Maker]] = {
    maker.__name__: (reader, maker)
    for reader, makers in {
        "perf-stat": (perf, perf_comma, perf_json),
        "pgbench": (pgbench, pgbench_c, pgbench_13),
        "sysbench": (sysbench, sysbench_no_rate, sysbench_no_head),
        "hyperfine": (hyperfine,),
        "memtier": (memtier,),
        "go-benchmark": (go,),
        "google-benchmark": (google, google_csv),
        "columns": (columns,),
    }.items()
    for maker in makers
}
VALUES = st.lists(st.integers(1000, 99_999).map(lambda value: value / 100), min_size=2, max_size=8)
each = pytest.mark.parametrize("name", MAKERS)
fuzzed = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(path: Path, text: str, ask: Ask | None = None) -> ExternalResults:
    path.write_text(text)
    return analyze([path], ask=ask)


def arm_of(path: Path, text: str) -> ArmFigures:
    (metric,) = read(path, text).metrics
    return metric.arms[0]


def test_every_reader_has_a_maker() -> None:
    assert {reader for reader, _ in MAKERS.values()} == set(discover())


@each
def test_scaling_and_permuting_do_that_and_nothing_else(name: str, tmp_path: Path) -> None:
    reader, maker = MAKERS[name]

    @fuzzed
    @given(VALUES, st.randoms(use_true_random=False))
    def every(values: list[float], chance: random.Random) -> None:
        results = read(tmp_path / "file", maker(values))
        (metric,) = results.metrics
        (arm,) = metric.arms
        assert results.formats == (reader,)
        assert arm.figures.n == len(values) and arm.runs in (None, len(values))
        assert arm.figures.mean == pytest.approx(sum(values) / len(values), rel=1e-3)
        (scaled,) = read(tmp_path / "file", maker([value * 10 for value in values])).metrics
        assert scaled.metric == metric.metric
        assert scaled.arms[0].figures.mean == pytest.approx(10 * arm.figures.mean, rel=1e-3)
        assert (scaled.arms[0].figures.n, scaled.arms[0].missing) == (arm.figures.n, arm.missing)
        mixed = list(values)
        chance.shuffle(mixed)
        assert arm_of(tmp_path / "file", maker(mixed)).figures.mean == pytest.approx(arm.figures.mean)

    every()


UNITS = {
    "perf": (",msec,", ",,"),
    "perf_comma": (",msec,", ",,"),
    "pgbench": (" (without initial connection time)", ""),
    "sysbench": ("100.0000s", "100.0000"),
    "go": (" ns/op \t 64 B/op", ""),
    "google": ('"time_unit": "ns"', '"x": 1'),
    "google_csv": (",ns,", ",,"),
    "columns": ("wall_ms", "wall"),
}


@pytest.mark.parametrize("name", UNITS)
def test_without_its_unit_nothing_is_compared(name: str, tmp_path: Path) -> None:
    for arm in ("base", "thp"):
        (tmp_path / arm).write_text(MAKERS[name][1]([10.5, 11.5, 12.5]).replace(*UNITS[name]))
    with pytest.raises(UserError) as caught:
        analyze([tmp_path / "base", tmp_path / "thp"])
    assert caught.value.hint


def width(path: Path, texts: tuple[str, str], ask: Ask | None = None, metric: str | None = None) -> float:
    """Of the interval of thp against base; endless without one."""
    for arm, text in zip(("base", "thp"), texts, strict=True):
        (path / arm).write_text(text)
    plan = AnalysisPlan(metrics=() if metric is None else (metric,))
    (found,) = analyze([path / "base", path / "thp"], ask=ask, plan=plan).metrics
    (comparison,) = found.comparisons
    return float("inf") if comparison.low is None or comparison.high is None else comparison.high - comparison.low


def doubled(text: str, beginning: str) -> str:
    return "".join(line * (2 if line.startswith(beginning) else 1) for line in text.splitlines(keepends=True))


@fuzzed
@given(VALUES, VALUES)
def test_parts_of_runs_taken_twice_narrow_nothing(tmp_path: Path, base: list[float], thp: list[float]) -> None:
    runs = [
        "run,wall_ms\n" + "".join(f"{i},{value}\n{i},{value + 1}\n" for i, value in enumerate(values))
        for values in (base, thp)
    ]
    ask = Ask(value="wall_ms", run="run")
    once = width(tmp_path, (runs[0], runs[1]), ask)
    twice = [text + text.split("\n", 1)[1] for text in runs]
    assert width(tmp_path, (twice[0], twice[1]), ask) >= once * (1 - 1e-9)
    counted = (perf(base), perf(thp))
    repeated = tuple(doubled(doubled(text, "12,"), "1") for text in counted)
    assert width(tmp_path, (repeated[0], repeated[1])) >= width(tmp_path, counted) * (1 - 1e-9)
    progress = (pgbench(base), pgbench(thp))
    more = (doubled(progress[0], "progress"), doubled(progress[1], "progress"))
    assert width(tmp_path, more) == width(tmp_path, progress)


@each
def test_a_copy_of_a_file_is_no_further_run(name: str, tmp_path: Path) -> None:
    for copy in ("a", "b"):
        (tmp_path / copy).write_text(MAKERS[name][1]([10.5, 11.5]))
    with pytest.raises(UserError, match="the runs would count twice"):
        analyze([tmp_path / "a", tmp_path / "b"], arms=["base", "base"])


@pytest.mark.parametrize("line", ["    events per second: 10.5000\n", "    total time:                100.0000s\n"])
def test_a_report_with_a_line_twice_is_refused(line: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a report without its"):
        read(tmp_path / "file", sysbench([10.5]).replace(line, line * 2))
