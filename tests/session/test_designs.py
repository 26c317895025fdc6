"""Slots, calibration and planted effects on the real kernel."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import hugewise
from hugewise.host import cgroup
from hugewise.model.pages import THP
from hugewise.model.results import Results
from hugewise.session import session
from hugewise.session.calibrate import calibrate
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


def cpus() -> list[int]:
    found = sorted(os.sched_getaffinity(0))[:2]
    need(len(found) == 2, "two CPUs")
    return found


def study(
    design: str, policies: str, *, parameters: str = SMALL, workload: str = "chase", blocks: int = 3, more: str = ""
) -> Study:
    text = TEXT.format(design=design, policies=policies, parameters=parameters, workload=workload, blocks=blocks)
    return parse(text + more, "designs.toml")


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


def test_an_arm_with_more_iterations_takes_longer_by_as_much(tmp_path: Path) -> None:
    more = '["as-is", { name = "more", from = "as-is", parameters = { iterations = 4000000 } }]'
    asked = study("", more, workload="spin", parameters="{ iterations = 1000000 }", blocks=5)
    results = hugewise.run(asked, results=tmp_path)
    for arm, iterations in (("as-is", "1000000"), ("more", "4000000")):
        assert iterations in spec(results, 1, arm)["argv"]
    (comparison,) = results.cells[0].comparisons
    assert known(comparison.ratio) > 2  # four times as much work, at whatever pace


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
def test_calibration_finds_what_is_planted_and_nothing_else(tmp_path: Path) -> None:
    text = """
        format = 1
        name = "quick"
        policies = ["as-is", { name = "more", from = "as-is", parameters = { iterations = 4000000 } }]
        between = { settle = "0ms" }
        workload = [{ name = "spin", parameters = { iterations = 2000000 } }]
    """.replace("\n        ", "\n")
    asked = parse(text, "quick.toml")
    found = calibrate(asked, tmp_path, pairs=20, planted=0.5, seed=bytes(16))
    (planted,) = found.metrics
    assert [stream.verdict for stream in planted.streams] == [1]
    # What its relabelled streams show is a matter of a coin, which may fail it.
    assert found.passed or "relabelled" in planted.reason
    (metric,) = calibrate(asked, tmp_path, pairs=20, seed=bytes(16)).metrics
    assert [(stream.kind, stream.pairs) for stream in metric.streams] == [("sequential", 20)]


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
    found = calibrate(asked, tmp_path, pairs=12)
    first, second = found.metrics
    assert [(one.cell, one.metric) for one in found.metrics] == [
        ("spin-iterations=1000000", "loop_cpu_s"),
        ("spin-iterations=1000000", "wall_s"),
    ]
    assert first.streams[0].differences != second.streams[0].differences
    assert {run.parent for run in found.runs} == {found.folder / "factor"}
    assert len(found.runs) == len(first.streams), "both are of the same streams"


@pytest.mark.soak
def test_an_arm_is_held_in_turns_against_its_sequential_pairs(tmp_path: Path) -> None:
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
    (metric,) = calibrate(parse(text, "open.toml"), tmp_path, pairs=12).metrics
    assert metric.streams[-1].kind == "interleaved"
    (found,) = metric.agreements
    assert (found.kind, found.arm) == ("interleaved", "off")
