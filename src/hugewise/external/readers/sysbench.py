"""sysbench's text (1.0): each report is one run; `[ 1s ] thds: ...` lines are intervals within it.

Format: github.com/akopytov/sysbench, src/sysbench.c and src/tests/memory/sb_memory.c.
"""

from __future__ import annotations

import re
from pathlib import Path

from hugewise.external.reader import Ask, Series, text_of
from hugewise.external.readers._text import Gathered
from hugewise.model.metric import Metric

NAME = "sysbench"
DESCRIPTION = "sysbench's text output, one or more runs in a file"

_BANDWIDTH = Metric("mib_per_s", "MiB/s", "higher", "memory transferred a second in each run (sysbench memory)")
_EVENTS = Metric("events_per_s", "events/s", "higher", "events a second of each run (sysbench)")
_TOTAL = Metric("total_time_s", "s", "lower", "total time of each run (sysbench)")
_AVERAGE = Metric("latency_average_ms", "ms", "lower", "mean latency of each run (sysbench)")
_INTERVAL = Metric("interval_per_s", "events/s", "higher", "rate of each reporting interval (sysbench)")

_RATE = r"(\d+(?:\.\d+)?)"
_NEW = re.compile(r"sysbench \d")
_LINES = (
    (re.compile(rf"[\d.]+ MiB transferred \({_RATE} MiB/sec\)"), _BANDWIDTH),
    (re.compile(rf"\s*events per second:\s+{_RATE}"), _EVENTS),
    (re.compile(rf"\s*transactions:\s+\d+\s+\({_RATE} per sec\.\)"), _EVENTS),
    (re.compile(rf"\s*total time:\s+{_RATE}s"), _TOTAL),
    (re.compile(rf"\s*avg:\s+{_RATE}"), _AVERAGE),
)
_REPORTED = re.compile(rf"\[ \d+s \] (?:thds: \d+ (?:eps|tps): {_RATE}|{_RATE} MiB/sec)")


def recognises(head: bytes) -> bool:
    """The program's name and version at the beginning, before its report."""
    return re.search(rb"^sysbench \d+\.\d+", head, re.MULTILINE) is not None and (
        b"Running the test with following options" in head or b"General statistics" in head
    )


def read(path: Path, ask: Ask) -> list[Series]:
    """Bandwidth or rate, total time and mean latency of every run in the file; the rate of every interval."""
    del ask  # the file says it all
    gathered = Gathered(path)
    run = -1
    for number, line in enumerate(text_of(path).splitlines(), 1):
        if _NEW.match(line):
            run += 1
            continue
        if (match := _REPORTED.match(line)) is not None:
            gathered.add(_INTERVAL, match[1] or match[2], max(run, 0), number, within=True)
            continue
        for pattern, metric in _LINES:
            if (match := pattern.match(line)) is not None:
                gathered.add(metric, match[1], max(run, 0), number)
                break
    first = _BANDWIDTH if gathered.has(_BANDWIDTH, max(run, 0)) else _EVENTS
    return gathered.series(primary=first, cure="give what sysbench prints, from its first line to its last")
