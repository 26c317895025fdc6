"""A run of redis whose server is stopped for 250 ms in one attempt, while memory is compacted: it is the worst stall,
in the right second, with the compaction beside it, in the store, in report.json and in the report.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hugewise
from hugewise.model.trial import Attempt
from hugewise.store.folder import RunFolder
from hugewise.store.samples import FILE, folder_of, samples
from tests.drive import only_run, words
from tests.requirements import need, need_program, need_root

pytestmark = [pytest.mark.usefixtures("unchanged"), pytest.mark.whole]

COMPACT = Path("/proc/sys/vm/compact_memory")
STOPPED_S = 0.25
STUDY = """
format = 1
name = "stalled"
policies = ["base", "thp"]
confidence = 0.9

[budget]
blocks = 2

[between]
settle = "0ms"

[sampling]
period = "100ms"
idle = "5s"

[[workload]]
name = "redis"
timeout = "60s"
delivery = { share = 0.0 }
parameters = { keys = 20000, duration = "2200ms", lead = "100ms", connections = 4, instances = 1, bgsave = true }
"""


def under_way(results: Path) -> Iterator[Path]:
    """The folder of an attempt whose client is about to begin."""
    for path in results.glob("stalled/*/attempts/.*/events.jsonl"):
        if '"ready"' in path.read_text():
            yield path.parent


def stall(results: Path, run: subprocess.Popen[str]) -> float:
    """Stop the server of the first attempt in its second second, and compact meanwhile; when that was."""
    until = time.monotonic() + 60
    while not (found := list(under_way(results))):
        assert run.poll() is None, run.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.005)
    (line,) = [each for each in (found[0] / "redis-0.jsonl").read_text().splitlines() if '"start"' in each]
    pid = json.loads(line)["pid"]
    time.sleep(0.7)
    stopped = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        COMPACT.write_text("1")
        time.sleep(max(0.0, stopped + STOPPED_S - time.monotonic()))
    finally:
        os.kill(pid, signal.SIGCONT)
    return stopped


def test_a_planted_stall_is_the_worst_in_its_second_with_what_the_kernel_did(tmp_path: Path) -> None:
    need_root()
    need_program("redis-server", "redis-server")
    need(COMPACT.exists(), "compaction by hand (/proc/sys/vm/compact_memory)")
    results = tmp_path / "results"
    study = tmp_path / "stalled.toml"
    study.write_text(STUDY)
    command = words("run", study, results)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        stopped = stall(results, run)
        _, said = run.communicate(timeout=200)
    assert run.returncode == 0, said
    folder = only_run(results)
    attempts = RunFolder(folder).read().attempts
    events = [json.loads(each) for each in (folder_of(folder, attempts[0]) / "events.jsonl").read_text().splitlines()]
    # The series lies beside them.
    assert not any(each["ev"] == "series" for each in events)
    (load,) = [each for each in events if each["ev"] == "load"]
    the_stall_is_where_it_was_planted(attempts[0], stopped - load["timed"]["start_ns"] * 1e-9)
    for attempt in attempts:
        what_is_kept_is_whole(folder, attempt)
    # khugepaged does not run under `base`, and has passed twice under `thp` where it had the time to.
    for attempt in attempts:
        size, why = attempt.metrics["idle_footprint_bytes"], attempt.absent.get("idle_footprint_bytes", "")
        assert size or (attempt.arm == "thp" and "passes within" in why)
    readers_are_shown_it(folder, attempts[0])
    what_was_altered_is_told_and_not_shown(folder)


def the_stall_is_where_it_was_planted(attempt: Attempt, at_s: float) -> None:
    """Its length, its time by the launcher's clock, and the compaction between the readings around it."""
    worst = attempt.stalls[0]
    assert worst.latency_s >= STOPPED_S - 0.01
    assert worst.operations >= 4  # each connection waited
    assert worst.at_s == pytest.approx(at_s, abs=0.1)
    assert worst.from_s is not None
    assert worst.to_s is not None
    assert worst.from_s <= worst.at_s
    assert worst.at_s + worst.latency_s <= worst.to_s
    assert worst.events["compaction_pages"] > 0


def what_is_kept_is_whole(folder: Path, attempt: Attempt) -> None:
    """The series of the whole attempt, its filling too; each operation in the histogram, and in a second."""
    series = samples(folder, attempt)
    assert attempt.unsampled == ""
    assert series is not None
    assert series.latency is not None
    assert series.seconds is not None
    assert series.t_s[0] < -0.1
    assert series.t_s[-1] > series.length_s
    assert sum(series.latency.counts) == attempt.facts["operations"] == sum(series.seconds.operations)
    assert max(each or 0 for each in series.column("vmstat.pgfault") or ()) > 0
    assert attempt.metrics["p50_us"] == quantile(series.latency.up_to_ns, series.latency.counts, 0.5)
    assert attempt.metrics.get("p9999_us") is not None or "too few" in attempt.absent["p9999_us"]
    worst = max(attempt.stalls, key=lambda each: each.latency_s)
    second = series.seconds.max_ns[int(worst.at_s + worst.latency_s)]
    assert second == pytest.approx(worst.latency_s * 1e9)


def readers_are_shown_it(folder: Path, first: Attempt) -> None:
    paths = hugewise.write_reports(hugewise.open_results(folder))
    told = json.loads(paths["json"].read_text())["cells"][0]
    shown = next(each for each in told["stalls"] if each["arm"] == first.arm)
    assert (shown["block"], shown["stall"]["at_s"]) == (first.block, first.stalls[0].at_s)
    assert "compaction_pages" in shown["unusual"]
    assert {each["metric"] for each in told["tail"]} >= {"p50_us", "p90_us", "p99_us"}
    assert {each["arm"] for each in told["over_time"]} == {each["arm"] for each in told["idle"]} == {"base", "thp"}
    assert told["sampler"]["n"] == 4
    text = paths["markdown"].read_text()
    for words_ in ("pages scanned by compaction", "the worst stalls", "the tail", "Reading the machine's counters"):
        assert words_ in text
    for name in ("latencies", "pages"):
        assert (folder / "figures" / f"1-redis_{name}.svg").stat().st_size > 1000


def what_was_altered_is_told_and_not_shown(folder: Path) -> None:
    results = hugewise.open_results(folder)
    middle = next(one for one in results.cells[0].over_time if one.arm == "thp")
    altered = next(one for one in results.attempts if (one.arm, one.block) == ("thp", middle.block))
    (folder_of(folder, altered) / FILE).write_bytes(b"")
    again = hugewise.open_results(folder)
    assert [one.arm for one in again.cells[0].over_time] == ["base"]
    assert any("what thp did over time is not shown" in each for each in again.disturbances)


def quantile(up_to: tuple[int, ...], counts: tuple[int, ...], share: float) -> float:
    """An HDR histogram's own rule, written once more."""
    wanted, seen = share * sum(counts), 0
    for value, count in zip(up_to, counts, strict=True):
        seen += count
        if seen >= wanted:
            return value / 1e3
    raise AssertionError
