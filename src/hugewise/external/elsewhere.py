"""Outputs that are known by name and not read: each with what to export instead."""

from __future__ import annotations

import re
from pathlib import Path

from hugewise.external.reader import DataError

__all__ = ["refuse"]

_KNOWN = (
    (
        r"^[ #]*Performance counter stats for |^#\s+time\s+counts unit events|^ +[\d.,]+ .{0,40}seconds time elapsed",
        "perf stat's table for people",
        "run it again: LC_ALL=C perf stat -x, -o FILE --append COMMAND, once for each run",
    ),
    (
        r"^Benchmark( #?\d+)?: .*\n\s*Time \(mean ± σ\):|^\| *Command *\| *Mean|^\|===\n\| Command",
        "hyperfine's table for people, which holds means",
        "export the single runs: hyperfine --export-json FILE COMMAND...",
    ),
    (
        r"\Acommand,mean,stddev,median,user,system,min,max",
        "hyperfine's CSV, which holds means",
        "export the single runs: hyperfine --export-json FILE COMMAND...",
    ),
    (
        r"^Type +Ops/sec +|^Totals +[\d.]+ +[\d.-]+ ",
        "memtier_benchmark's table for people",
        "write its JSON: memtier_benchmark --json-out-file FILE, once for each run",
    ),
    (
        r"^-+\nBenchmark +Time +CPU +Iterations",
        "google-benchmark's table for people",
        "export it: --benchmark_out=FILE --benchmark_out_format=json --benchmark_repetitions=20",
    ),
    (
        r'\A[\s\[]*\{\s*"jmhVersion"|\A"?Benchmark"?[,;]"?Mode"?[,;]|^Benchmark +(\(\w+\) +)*Mode +Cnt +Score',
        "JMH's result",
        "export its JSON (-rf json -rff jmh.json) and make a CSV of it, a row for each fork: "
        "jq -r '.[0].primaryMetric | .scoreUnit, (.rawData[] | add / length)' jmh.json > FILE.csv",
    ),
    (
        r'\A\s*\{\s*"(mean|median|median_abs_dev|slope|std_dev)"\s*:\s*\{\s*"confidence_interval"',
        "criterion's estimates, which are aggregates",
        'make a CSV of the sample.json beside it: jq -r \'"iteration_ns", ([.times, .iters] | transpose[] | '
        ".[0] / .[1])' sample.json > FILE.csv",
    ),
    (
        r"^.{0,200}time: +\[[\d.]+ \S+ [\d.]+ \S+ [\d.]+ \S+\]",
        "criterion's table for people",
        "make a CSV of target/criterion/NAME/new/sample.json: "
        "jq -r '\"iteration_ns\", ([.times, .iters] | transpose[] | .[0] / .[1])' sample.json > FILE.csv",
    ),
    (
        r'\A\s*\{\s*"sampling_mode"\s*:',
        "criterion's sample, which holds the time of growing numbers of iterations",
        "divide the times by them: jq -r '\"iteration_ns\", ([.times, .iters] | transpose[] | .[0] / .[1])' "
        "sample.json > FILE.csv",
    ),
    (
        r"\Agroup,function,value,throughput_num,throughput_type,sample_measured_value,unit,iteration_count",
        "criterion's raw.csv, which holds the time of growing numbers of iterations",
        "divide them: awk -F, 'NR == 1 {print \"iteration_ns\"} NR > 1 {print $6 / $8}' raw.csv > FILE.csv",
    ),
    (
        r'\A"test","rps"|\A"[A-Z_ ]+( \([^"\n]*\))?","[\d.]+"$|^====== \w+ ======|'
        r"^(SET|GET|PING_INLINE|INCR|LPUSH): [\d.]+ requests per second",
        "redis-benchmark's output, which holds one run of several tests",
        "gather the runs of one test in a file: echo rps > FILE.csv; for each run: redis-benchmark --csv -t get | "
        "awk -F'\"' '$2 == \"GET\" {print $4}' >> FILE.csv",
    ),
    (
        r"\APercentage served,Time in ms|\Astarttime\tseconds\tctime\tdtime\tttime\twait",
        "ab's table of the requests of one run (-e, -g)",
        "gather the rate of each run in a file: echo requests_per_s > FILE.csv; for each run: ab ... | "
        "awk '/^Requests per second/ {print $4}' >> FILE.csv",
    ),
    (
        r'^\{"(Time|ImportPath|Action)":.*"(Action|Package)":',
        "the JSON of go test -json",
        "give the output of: go test -run=- -bench=. -count=20, without -json",
    ),
    (
        r"^[0-9a-f]+-[0-9a-f]+ [r-][w-][x-][ps] [0-9a-f]+ .*\n(Size|Rss):|^(Rss|AnonHugePages): +\d+ kB",
        "a capture of /proc/PID/smaps, which measures no run",
        "read it with: hugewise inspect --smaps FILE",
    ),
)
_PATTERNS = [(re.compile(pattern, re.MULTILINE), name, cure) for pattern, name, cure in _KNOWN]


def refuse(head: bytes, path: Path) -> None:
    """Raise DataError where the file is the output of a tool that is not read in this form."""
    text = head.decode("utf-8-sig", "replace").replace("\r\n", "\n")
    for pattern, name, cure in _PATTERNS:
        if pattern.search(text) is not None:
            raise DataError(f"it is {name}", file=path, hint=cure)
