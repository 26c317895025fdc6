"""sysbench's text (0.4 to 1.1): each report is one run; `[ 1s ] thds: ...` lines are intervals within it.

Format: github.com/akopytov/sysbench, src/sysbench.c and src/tests/memory/sb_memory.c. A report's lines come in one
order, so that a line that belongs before the last one begins the next report, with the program's head or without.
Where no rate is printed it is the number of events over the total time, however the run was ended.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from hugewise.external.reader import Ask, DataError, Rows, Series, text_of
from hugewise.model.metric import Metric

NAME = "sysbench"

_MEBIBYTES = Metric("mib_per_s", "MiB/s", "higher", "memory transferred a second in each run (sysbench memory)")
_MEGABYTES = Metric("mb_per_s", "MB/s", "higher", "memory transferred a second in each run (sysbench 0.4 memory)")
_EVENTS = Metric("events_per_s", "events/s", "higher", "events a second of each run (sysbench)")
_TOTAL = Metric("total_time_s", "s", "lower", "total time of each run (sysbench)")
_AVERAGE = Metric("latency_average_ms", "ms", "lower", "mean latency of each run (sysbench)")
_INTERVAL = Metric("interval_per_s", "events/s", "higher", "rate of each reporting interval (sysbench)")

_RATE = r"(\d+(?:\.\d+)?|[+-]?nan)"
_HEAD = re.compile(r"sysbench v?\d")
# In the order of a report; of lines of one name the first counts.
_LINES = (
    (
        "operations",
        re.compile(rf"\s*(?:Total operations|Operations performed): \d+ \(\s*{_RATE} (?:per second|ops/sec)\)"),
    ),
    ("mib", re.compile(rf"[\d.]+ MiB transferred \({_RATE} MiB/sec\)")),
    ("mb", re.compile(rf"[\d.]+ MB transferred \({_RATE} MB/sec\)")),
    ("transactions", re.compile(rf"\s*transactions:\s+\d+\s+\({_RATE} per sec\.\)")),
    ("events per second", re.compile(rf"\s*events per second:\s+{_RATE}")),
    ("events/s", re.compile(rf"\s*events/s \(eps\):\s+{_RATE}")),  # 1.1 prints both for cpu
    ("time", re.compile(rf"\s*(?:total time:|time elapsed:)\s+{_RATE}s")),
    ("events", re.compile(r"\s*total number of events:\s+(\d+)")),
    ("spent", re.compile(rf"\s*total time taken by event execution:\s+{_RATE}")),
    ("average", re.compile(rf"\s*avg:\s+{_RATE}(?:ms)?\s*$")),
    ("average_s", re.compile(rf"\s*avg:\s+{_RATE}s\s*$")),
    ("sum", re.compile(rf"\s*sum:\s+{_RATE}")),
)
_PLACES = {name: place for place, (name, _) in enumerate(_LINES)}
_REPORTED = re.compile(rf"\[\s*\d+s\s*\] (?:(?:thds|threads): \d+,? (?:eps|tps): {_RATE}|{_RATE} MiB/sec)")
_INTERVALS = re.compile(r"\[\s*\d+s\s*\] ")
_SETTING = re.compile(
    r"\s*(Number of threads|Prime numbers limit|Maximum prime number checked in CPU test|(?:Memory )?block size|"
    r"(?:Memory )?operation(?: type)?|(?:Memory )?scope(?: type)?): +(\S+)",
    re.IGNORECASE,
)
_TESTS = re.compile(r"(?:Running|Doing) (memory|CPU|thread|mutex)\b|(CPU) speed:|(SQL) statistics:|(File) operations:")
_MODE = re.compile(r"Doing (random|sequential) (.*) test")
_CHECKPOINT = re.compile(r"\[\s*\d+s\s*\] Checkpoint report")
_IOPS = re.compile(r"\s+read:\s+IOPS=")  # fileio of 1.1, whose report has neither events nor a total time
_IOPS_CURE = r"make a CSV: echo read_iops > FILE.csv; sed -n 's/.*read: *IOPS=\([0-9.]*\).*/\1/p' REPORTS >> FILE.csv"
_CURE = "give what sysbench prints, from its first line to its last"
_DERIVED = (
    "sysbench printed no rate of events: it is their number over the total time (fsyncs of fileio are events too)."
)

_Report = dict[str, tuple[float, int]]


def recognises(head: bytes) -> bool:
    """Return whether the file has the program's name before its report, or the report's own lines."""
    named = re.search(rb"^sysbench v?\d+\.\d+", head, re.MULTILINE) is not None and (
        b"Running the test with following options" in head or b"General statistics" in head
    )
    return named or re.search(rb"^[ \t]+total number of events:[ \t]+\d", head, re.MULTILINE) is not None


def read(path: Path, ask: Ask) -> list[Series]:
    """Bandwidth or rate, total time and mean latency of every run in the file; the rate of every interval."""
    del ask  # the file says it all
    gathered = Rows(path)
    report: _Report = {}
    run, place, reported = 0, -1, False

    def close() -> None:
        nonlocal report, run, place, reported
        if report:
            _take(gathered, report, run, path)
        if report or reported:
            run += 1
        report, place, reported = {}, -1, False

    for number, line in enumerate(text_of(path).splitlines(), 1):
        if _HEAD.match(line):
            close()
        elif _told_around(gathered, line, number, path):
            continue
        elif _INTERVALS.match(line):
            if report:
                close()
            reported = True
            if (match := _REPORTED.match(line)) is None:
                gathered.leave("an interval without a rate that is read")
            else:
                rate = gathered.number(match[1] or match[2], number)
                gathered.add(_INTERVAL, rate, line=number, run=run, kind="part")
        else:
            for name, pattern in _LINES:
                if (match := pattern.match(line)) is not None:
                    if _PLACES[name] <= place:
                        close()
                    report[name], place = (gathered.number(match[1], number), number), _PLACES[name]
                    break
    close()
    transferred = [metric.name for metric in (_MEBIBYTES, _MEGABYTES) if gathered.values(metric, 0)]
    return gathered.series(primary=lambda name: name in (transferred or [_EVENTS.name]), cure=_CURE)


def _told_around(gathered: Rows, line: str, number: int, path: Path) -> bool:
    if (match := _SETTING.match(line)) is not None:
        gathered.setting(match[1].lower(), match[2], number)
    elif (match := _TESTS.match(line)) is not None:
        gathered.setting("test", match[match.lastindex or 0].lower(), number)
    elif (match := _MODE.match(line)) is not None:
        gathered.setting("mode", f"{match[1]} {match[2]}", number)
    elif _IOPS.match(line):
        raise DataError("a report of fileio by sysbench 1.1", file=path, where=f"line {number}", hint=_IOPS_CURE)
    elif _CHECKPOINT.match(line):
        cure = "run it without --report-checkpoints, or delete these reports in a copy of the file"
        raise DataError("a report of a part of a run", file=path, where=f"line {number}", hint=cure)
    elif line.startswith("FATAL: "):
        cure = "run it again, or delete the lines of this run in a copy of the file"
        raise DataError("a run that failed", file=path, where=f"line {number}", hint=cure)
    else:
        return False
    return True


def _take(gathered: Rows, report: _Report, run: int, path: Path) -> None:
    lines = {name: line for name, (_, line) in report.items()}
    where = f"line {min(lines.values())}"
    for needed in ("time", "events"):
        if needed not in report:
            wanted = "total time" if needed == "time" else "total number of events"
            raise DataError(f"a report without its {wanted}", file=path, where=where, hint=_CURE)
    time, events = report["time"][0], report["events"][0]
    reckoned = events / time if time else math.nan
    printed = next(
        (report[name] for name in ("events/s", "events per second", "transactions", "operations") if name in report),
        None,
    )
    rate, at = printed or (reckoned, lines["time"])
    gathered.add(_EVENTS, rate, line=at, run=run)
    if printed is None and not run:
        gathered.note(_DERIVED, _EVENTS.name)
    for other, metric in (("mib", _MEBIBYTES), ("mb", _MEGABYTES), ("time", _TOTAL)):
        if other in report:
            gathered.add(metric, report[other][0], line=lines[other], run=run)
    spent = report["sum"][0] if "sum" in report else 1e3 * report["spent"][0] if "spent" in report else math.nan
    own = spent / events if events else math.nan
    for name, times in (("average", 1.0), ("average_s", 1e3)):
        if name in report:
            average, line = report[name]
            precise = own if average == 0 and math.isfinite(own) else average * times  # below the printed digits
            gathered.add(_AVERAGE, precise, line=line, run=run)
