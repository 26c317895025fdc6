"""A run of redis whose server is stopped for a second in one attempt, while memory is compacted: it is the worst stall,
in the right second, with the compaction beside it, in the store, in report.json and in the report.
"""

import json
import os
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import hugewise
from hugewise.attempt.service import ServiceDriver
from hugewise.model.trial import Attempt
from hugewise.store.dataset import FILE, folder_of, samples
from hugewise.store.folder import RunFolder
from tests.drive import only_run
from tests.requirements import need, need_program, need_root
from tests.servers.trying import alongside

pytestmark = [pytest.mark.usefixtures("unchanged"), pytest.mark.soak]

COMPACT = Path("/proc/sys/vm/compact_memory")
STOPPED_S = 1.0  # longer than whatever else may stop a server here
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

[[workload]]
name = "redis"
timeout = "60s"
delivery = { share = 0.0 }
parameters = { keys = 20000, duration = "2200ms", lead = "100ms", connections = 4, instances = 1, bgsave = true }
"""


def stall(pid: int) -> tuple[float, float]:
    """Stop the server in its measured part, and compact meanwhile; from when to when that was."""
    time.sleep(0.5)  # its lead is over
    begin = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        COMPACT.write_text("1")
        time.sleep(max(0.0, begin + STOPPED_S - time.monotonic()))
    finally:
        end = time.monotonic()
        os.kill(pid, signal.SIGCONT)
    return begin, end


def test_a_planted_stall_is_the_worst_in_its_second_with_what_the_kernel_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_root()
    need_program("redis-server", "redis-server")
    need(COMPACT.exists(), "compaction by hand (/proc/sys/vm/compact_memory)")
    study = tmp_path / "stalled.toml"
    study.write_text(STUDY)
    with ThreadPoolExecutor(1) as beside:
        planted: list[Future[tuple[float, float]]] = []

        def plant(play: ServiceDriver) -> None:
            if not planted:
                (pid,) = play.procedure_runner.tested.processes()
                planted.append(beside.submit(stall, pid))

        alongside(monkeypatch, plant)
        hugewise.run(hugewise.load(study), results=tmp_path / "results")
        begin, end = planted[0].result()
    folder = only_run(tmp_path / "results")
    attempts = RunFolder(folder).read().attempts
    events = [json.loads(line) for line in (folder_of(folder, attempts[0]) / "events.jsonl").read_text().splitlines()]
    # The series lies beside them.
    assert not any(event["ev"] == "series" for event in events)
    (load,) = [each for each in events if each["ev"] == "load"]
    start = load["timed"]["start_ns"] * 1e-9
    the_stall_is_where_it_was_planted(attempts[0], begin - start, end - start)
    for attempt in attempts:
        what_is_kept_is_whole(folder, attempt)
    readers_are_shown_it(folder, attempts[0])
    what_was_altered_is_told_and_not_shown(folder)


def the_stall_is_where_it_was_planted(attempt: Attempt, begin: float, end: float) -> None:
    """Its time by the launcher's clock: no answer came meanwhile. The compaction is between the readings around it."""
    worst = attempt.stalls[0]
    assert begin > 0, "it was stopped before its measured part"
    assert worst.at_s < end <= worst.at_s + worst.latency_s
    assert worst.latency_s == pytest.approx(end - begin, rel=0.5)
    assert worst.operations >= 4  # each connection waited
    assert worst.from_s is not None
    assert worst.to_s is not None
    assert worst.from_s <= worst.at_s
    assert worst.at_s + worst.latency_s <= worst.to_s
    assert worst.events["compaction_pages"] > 0


def what_is_kept_is_whole(folder: Path, attempt: Attempt) -> None:
    """The series of the whole attempt, its filling too; each operation in a second."""
    series = samples(folder, attempt)
    assert attempt.unsampled == ""
    assert series is not None
    assert series.seconds is not None
    assert series.t_s[0] < -0.1
    assert series.t_s[-1] > series.length_s
    assert attempt.facts["operations"] == sum(series.seconds.operations)
    assert max(each or 0 for each in series.column("vmstat.pgfault") or ()) > 0
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
    assert {each["arm"] for each in told["over_time"]} == {"base", "thp"}
    assert told["sampler"]["n"] == 4
    text = paths["markdown"].read_text()
    for words_ in ("pages scanned by compaction", "the worst stalls", "the tail", "Reading the machine's counters"):
        assert words_ in text
    for name in ("latencies", "pages"):
        assert (folder / "figures" / f"1-redis_{name}.svg").stat().st_size > 1000


def what_was_altered_is_told_and_not_shown(folder: Path) -> None:
    results = hugewise.open_results(folder)
    middle = next(one for one in results.cells[0].over_time if one.arm == "thp")
    altered = next(attempt for attempt in results.attempts if (attempt.arm, attempt.block) == ("thp", middle.block))
    (folder_of(folder, altered) / FILE).write_bytes(b"")
    again = hugewise.open_results(folder)
    assert [one.arm for one in again.cells[0].over_time] == ["base"]
    assert any("what thp did over time is not shown" in disturbance for disturbance in again.disturbances)
