"""What a name tells of unit and direction, and what it does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise.external.reader import unit_and_direction

RATES = {
    "ops_per_s": "ops/s",
    "mib_per_s": "mib/s",
    "throughput_MB_s": "MB/s",
    "throughputMBps": "MBps",
    "Throughput[MiB/s]": "MiB/s",
    "Requests/sec": "Requests/s",
    "requests per second": "requests/s",
    "opsPerSec": "ops/s",
    "ops_s": "ops/s",
    "ops/ms": "ops/ms",
    "bytes_per_second": "bytes/s",
    "widgets_per_second": "widgets/s",
    "gbit_per_s": "gbit/s",
    "queries_per_hour": "queries/hour",
    "tx/min": "tx/min",
    "tps": "tps",
    "QPS": "QPS",
    "kIOPS": "kIOPS",
    "Mbps": "Mbps",
    "tpmC": "tpmC",
}
TIMES = {
    "seconds": "s",
    "wall_s": "s",
    "latency_us": "us",
    "latency_p99_ms": "ms",
    "Time (ms)": "ms",
    "timeMs": "ms",
    "elapsedSeconds": "s",
    "query_s": "s",
    "time_per_op_ns": "ns",
    "Time per request (ms)": "ms",
    "ns/op": "ns/op",
    "ms_per_request": "ms/request",
    "sec/op": "s/op",
}
UNKNOWN = [
    *("hit%", "score", "ops", "ps", "latency_ps", "min", "size_bytes", "mem_MB", "cycles_per_op", "steps", "maps", ""),
    *(
        "page_faults_per_s",
        "misses/s",
        "errors/sec",
        "retries_per_second",
        "err/s",
        "gc_per_s",
        "ms/s",
        "bytes/op",
        "per",
        "/",
        "s_per",
    ),
    *("mb/s_per_core", "MB_per_s_per_core", "req/s/core", "ops_per_sec_per_thread"),
    *("time_saved_ms", "headroom_ms", "deadline_s", "timeout_ms", "think_time_ms", "delta_us", "speedup_s"),
    *("uptime_s", "start_s", "widgets_s", "req_s", "throughput_s", "latency_us_stddev", "throughput", "time"),
]


@pytest.mark.parametrize(("name", "unit"), RATES.items())
def test_a_rate_is_better_higher(name: str, unit: str) -> None:
    assert unit_and_direction(name) == (unit, "higher")


@pytest.mark.parametrize(("name", "unit"), TIMES.items())
def test_a_time_is_better_lower(name: str, unit: str) -> None:
    assert unit_and_direction(name) == (unit, "lower")


@pytest.mark.parametrize("name", UNKNOWN)
def test_anything_else_has_no_direction(name: str) -> None:
    assert unit_and_direction(name)[1] == "neutral"


@given(st.sampled_from(sorted(RATES)), st.sampled_from(["mean", "Stddev", "run 1", "thp"]))
def test_what_stands_before_a_unit_is_not_the_unit(name: str, before: str) -> None:
    assert unit_and_direction(f"{before}_{name}")[1] in ("higher", "neutral")


@given(st.text(max_size=40))
def test_any_name_has_an_answer(name: str) -> None:
    unit, better = unit_and_direction(name)
    assert better in ("lower", "higher", "neutral") and len(unit) <= len(name) + 6
