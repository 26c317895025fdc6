"""Designs, calibration and planted effects on the real kernel."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hugewise
from hugewise.analysis.calibration import load
from hugewise.attempt.runner import STEPS
from hugewise.host import cgroup
from hugewise.host.local_host import LocalHost
from hugewise.model.pages import THP
from hugewise.model.results import Results
from hugewise.report.reasons import in_words
from hugewise.session import session
from hugewise.session.calibrate import calibrate
from hugewise.session.feasibility import make_plan
from hugewise.session.identity import withheld
from hugewise.study.load import parse, part
from hugewise.study.study import Study
from tests.build import known
from tests.requirements import need, need_root
from tests.wait import until

pytestmark = pytest.mark.usefixtures("unchanged")

TEXT = """
format = 1
name = "designs"
policies = {policies}
confidence = 0.9

[budget]
blocks = {blocks}

[design]
{design}

[between]
settle = "0ms"

[[workload]]
name = "{workload}"
timeout = "30s"
parameters = {parameters}
"""
SMALL = '{ bytes = "8m", loads = 100000 }'
OFF = '[{ name = "off", from = "madvise", thp_disable = true }, "thp-advised"]'


def cpus() -> list[int]:
    found = sorted(os.sched_getaffinity(0))[:2]
    need(len(found) == 2, "two CPUs")
    return found


def study(
    design: str, policies: str, *, parameters: str = SMALL, workload: str = "chase", blocks: int = 3, more: str = ""
) -> Study:
    text = TEXT.format(design=design, policies=policies, parameters=parameters, workload=workload, blocks=blocks)
    return parse(text + more, "designs.toml")


def events(results: Results, block: int, arm: str) -> list[dict[str, Any]]:
    (path,) = Path(results.folder).glob(f"attempts/b{block:05d}-*-{arm}-1")
    return [json.loads(line) for line in (path / "events.jsonl").read_bytes().splitlines()]


def spec(results: Results, block: int, arm: str) -> dict[str, Any]:
    (path,) = Path(results.folder).glob(f"attempts/b{block:05d}-*-{arm}-1")
    found: dict[str, Any] = json.loads((path / "spec.json").read_bytes())
    return found


def test_slots_are_where_attempts_run_and_no_arm_has_one_of_its_own(tmp_path: Path) -> None:
    pair = cpus()
    twice = '["as-is", { name = "b", from = "as-is", environment = { A = "1" } }]'
    results = hugewise.run(study(f"slots = {pair}", twice, blocks=8), results=tmp_path, seed=bytes(16))
    assert results.state == "finished"
    for attempt in results.attempts:
        assert spec(results, attempt.block, attempt.arm)["cpus"] == [pair[attempt.slot]]
    for block in range(1, 9):
        assert {a.slot for a in results.attempts if a.block == block} == {0, 1}
    assert {a.slot for a in results.attempts if a.arm == "b"} == {0, 1}


def test_the_arms_of_a_duet_run_at_the_same_time_and_each_has_its_pages(tmp_path: Path) -> None:
    need_root()
    pair = cpus()
    asked = study(f'kind = "duet"\nslots = {pair}', OFF, parameters='{ bytes = "8m", loads = 3000000 }')
    results = hugewise.run(asked, results=tmp_path)
    counted = [a for a in results.attempts if a.state == "accepted"]
    assert len(counted) == 6
    assert all(a.delivery.delivered for a in counted), [a.delivery for a in counted]
    for block in (1, 2, 3):
        spans = []
        for arm in ("off", "thp-advised"):
            phases = {e["name"]: e["t_ns"] for e in events(results, block, arm) if e["ev"] == "phase"}
            assert phases["ready"] <= phases["timed"]
            spans.append((phases["ready"], phases["timed"]))
        # Neither begins before both are ready. That both go on at once is shown by the next test.
        assert max(ready for ready, _ in spans) <= min(timed for _, timed in spans)
    (comparison,) = results.cells[0].comparisons
    assert comparison.verdict == "none"
    assert "withheld: a duet must be calibrated" in in_words(comparison.reason)
    assert "under mutual contention" in comparison.estimand
    assert comparison.n == 3


# Whoever comes first waits for the other, which would be for ever if that came after its end.
MEET = 'if mkdir "$0/first"; then read -r _ < "$0/pipe"; rmdir "$0/first"; else echo > "$0/pipe"; fi'


def test_commands_in_a_duet_are_launched_together(tmp_path: Path) -> None:
    need_root()
    pair = cpus()
    os.mkfifo(tmp_path / "pipe")
    parameters = json.dumps(["sh", "-c", MEET, str(tmp_path)]).join(("{ argv = ", " }"))
    more = "\ndelivery = { share = 0.0 }\n"
    asked = study(f'kind = "duet"\nslots = {pair}', OFF, parameters=parameters, workload="command", blocks=2, more=more)
    results = hugewise.run(asked, results=tmp_path / "results")
    assert [(a.state, a.reason) for a in results.attempts] == [("accepted", None)] * 4
    assert not (tmp_path / "first").exists()


@pytest.mark.parametrize("step", ["launch", pytest.param("store", marks=pytest.mark.soak)])
def test_a_duet_that_is_interrupted_is_resumed_whole(tmp_path: Path, step: str) -> None:
    need_root()
    pair = cpus()
    seen = 0

    def interrupt(name: str) -> None:
        nonlocal seen
        seen += name == step
        if name == step and seen == 2:
            raise KeyboardInterrupt

    folder = session.run(study(f'kind = "duet"\nslots = {pair}', OFF), tmp_path, on_step=interrupt)
    results = hugewise.resume(folder.path)
    assert results.state == "finished"
    assert results.blocks_complete == 3
    assert {"apply", step} <= {each.__name__ for each in STEPS}


def test_an_arm_with_more_iterations_takes_longer_by_as_much(tmp_path: Path) -> None:
    more = '["as-is", { name = "more", from = "as-is", parameters = { iterations = 4000000 } }]'
    asked = study("", more, workload="spin", parameters="{ iterations = 1000000 }", blocks=5)
    results = hugewise.run(asked, results=tmp_path)
    for arm, iterations in (("as-is", "1000000"), ("more", "4000000")):
        assert iterations in spec(results, 1, arm)["argv"]
    (comparison,) = results.cells[0].comparisons
    assert 2 < known(comparison.ratio) < 8  # four times as much work, at whatever pace


def test_a_thp_flip_while_an_attempt_runs_is_flagged_within_its_pair(tmp_path: Path) -> None:
    need_root()
    knob = Path(f"{THP}/enabled")
    need(knob.exists(), "transparent huge pages")
    held, there = tmp_path / "held", tmp_path / "there"
    flips: list[threading.Thread] = []
    flipped: list[float] = []
    launches = 0

    def hold(step: str) -> None:
        nonlocal launches
        launches += step == "launch"
        if step == "launch" and launches == 3:  # the second block's first attempt
            there.unlink()
            held.touch()
            flips.append(threading.Thread(target=flip))
            flips[0].start()

    def flip() -> None:
        try:
            until(there.exists, "the attempt is under way")
            knob.write_text("never")
            flipped.append(time.time())
        finally:
            held.unlink()

    before = next(word.strip("[]") for word in knob.read_text().split() if word.startswith("["))
    script = f': > "{there}"; while [ -e "{held}" ]; do :; done'
    asked = study("", '["thp", { name = "b", from = "thp", environment = { A = "1" } }]', workload="command",
                  parameters=f"{{ argv = {json.dumps(['sh', '-c', script])} }}", blocks=3,
                  more="\ndelivery = { share = 0.0 }\n")  # fmt: skip
    try:
        results = hugewise.open_results(session.run(asked, tmp_path / "results", on_step=hold).path)
    finally:
        for thread in flips:
            thread.join()
        knob.write_text(before)
    (moment,) = flipped
    assert results.blocks_disturbed == 1
    assert results.blocks_complete == 3
    struck = [a for a in results.attempts if a.started <= moment <= a.ended]
    assert [(a.block, a.state) for a in struck] == [(2, "abandoned")]
    assert any("block 2" in said and str(knob) in said for said in results.disturbances)


@pytest.mark.soak
def test_calibration_passes_finds_what_is_planted_and_lets_verdicts_stand(tmp_path: Path) -> None:
    text = """
        format = 1
        name = "quick"
        policies = ["as-is", { name = "more", from = "as-is", parameters = { iterations = 4000000 } }]
        confidence = 0.9
        calibration = { required = true }
        budget = { blocks = 8 }
        between = { settle = "0ms" }
        workload = [{ name = "spin", parameters = { iterations = 2000000 } }]
    """.replace("\n        ", "\n")
    asked = parse(text, "quick.toml")
    (before,) = hugewise.run(asked, results=tmp_path).cells[0].comparisons
    assert before.verdict == "none"
    assert "there is none of this workload on this host (hugewise calibrate quick.toml)" in in_words(before.reason)
    found, path = calibrate(asked, tmp_path, pairs=20, planted=0.5, seed=bytes(16))
    assert [stream.verdict for stream in found.cells[0].streams] == [1]
    # What its relabelled streams show is a matter of a coin, which may fail it.
    assert found.passed or "relabelled" in found.cells[0].reason
    assert path.is_file()
    record, _ = calibrate(asked, tmp_path, pairs=20, seed=bytes(16))
    assert load(tmp_path / "calibration")[0] == record
    (cell,) = record.cells
    kinds = ["sequential", "duet"] if len(os.sched_getaffinity(0)) > 1 else ["sequential"]
    assert [stream.kind for stream in cell.streams] == kinds
    assert all(stream.pairs == 20 for stream in cell.streams)
    assert {"blocked", "alternating", "coin pairs"} < {bought.design for bought in cell.purchases}
    (after,) = hugewise.run(asked, results=tmp_path).cells[0].comparisons
    # One A/A stream in a hundred is called different: then it says so, and withholds.
    assert after.verdict == "worse" if cell.passed else "failed" in in_words(after.reason)


@pytest.mark.soak
def test_one_cell_of_a_factor_is_calibrated_of_each_metric_that_it_judges(tmp_path: Path) -> None:
    text = """
        format = 1
        name = "factor"
        policies = ["as-is", { name = "again", from = "as-is", environment = { A = "1" } }]
        between = { settle = "0ms" }
        workload = [{ name = "spin", also = ["wall_s"], parameters = { iterations = [1000000, 2000000] } }]
    """.replace("\n        ", "\n")
    asked = part(parse(text, "factor.toml"), ["spin-iterations=1000000"])
    record, _ = calibrate(asked, tmp_path, pairs=12)
    assert [(cell.cell, cell.metric) for cell in record.cells] == [
        ("spin-iterations=1000000", "loop_cpu_s"),
        ("spin-iterations=1000000", "wall_s"),
    ]
    first, second = record.cells
    assert first.key != second.key
    assert first.streams[0].differences != second.streams[0].differences
    runs = {Path(run).parent.name for run in record.runs}
    assert (runs, len(record.runs)) == ({"factor"}, len(first.streams)), "both are of the same streams"


@pytest.mark.soak
def test_what_is_calibrated_for_a_design_that_is_left_open_counts_for_it(tmp_path: Path) -> None:
    """Under `auto` no turns were noted, so that no calibration of such a study was ever believed."""
    need_root()
    cgroups = cgroup.unavailable()
    need(cgroups is None, f"cgroups that can be made: {cgroups}")
    text = """
        format = 1
        name = "open"
        policies = ["as-is", { name = "off", from = "as-is", thp_disable = true }]
        design = { kind = "auto", slice = "20ms" }
        between = { settle = "0ms" }
        [[workload]]
        name = "command"
        parameters = { argv = ["/bin/sh", "-c", "LOOP"] }
        delivery = { share = 0.0 }
    """.replace("\n        ", "\n").replace("LOOP", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done")
    asked = parse(text, "open.toml")
    record, _ = calibrate(asked, tmp_path, pairs=12)
    (cell,) = record.cells
    assert cell.streams[-1].kind == "interleaved"
    (found,) = cell.agreements
    assert (found.kind, found.arm, found.slice, found.wash_out) == ("interleaved", "off", 0.02, 0.2)
    resident = msgspec.structs.replace(asked, design=msgspec.structs.replace(asked.design, kind="interleaved"))
    said = withheld(resident, make_plan(resident), tmp_path / "calibration", LocalHost(), lambda _: None)
    assert said == {}, "turns need no calibration; one that was made is told beside the verdict"
