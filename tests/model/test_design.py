from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from hugewise.model.design import Kind, Layered, TakingTurns, Visited, at_once, qualified, refusal
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment
from hugewise.model.workload import ParameterValue
from hugewise.workloads import discover
from tests.build.results import comparison

PLAIN = Treatment(policy="madvise", mechanism="system", target=PageTarget("any", 4096), knobs={"/k": "madvise"})
ADVISED = msgspec.structs.replace(PLAIN, policy="thp-advised", target=PageTarget("thp", 2 << 20), advice="huge")
OTHER = msgspec.structs.replace(PLAIN, policy="thp", knobs={"/k": "always"})
OFF = msgspec.structs.replace(PLAIN, policy="off", thp_disable="all")


ONE = comparison("thp", "ns_per_load", "better", ratio=0.8, low=0.7, high=0.9, reason="the interval excludes 1")


def refused(
    kind: Kind, arm: Treatment, *, workload: str = "chase", taken: int = 1, slots: int = 2, metric: str = "ns_per_load"
) -> str | None:
    found = discover()[workload]
    command: Mapping[str, ParameterValue] = {"argv": ("true",), "proof": "counters"}
    values = command if workload == "command" else {"bytes": 1 << 20, "loads": 10}
    return refusal(kind, arm, PLAIN, found, values, taken=taken, slots=slots, metric=metric)


def test_sequential_pairs_take_every_arm() -> None:
    for arm in (ADVISED, OTHER, OFF):
        assert refused("sequential", arm, slots=0) is None
    assert not at_once("sequential")
    assert at_once("duet")
    assert at_once("crossover")


def test_what_has_its_own_machine_wide_setting_cannot_run_beside_another() -> None:
    kinds: tuple[Kind, ...] = ("duet", "crossover")
    for kind in kinds:
        assert refused(kind, ADVISED) is None
        assert "/k is always here, madvise for the baseline" in (refused(kind, OTHER) or "")


def test_a_duet_needs_a_cpu_for_each_arm_and_a_proof_that_tells_them_apart() -> None:
    assert refused("duet", OFF) is None
    assert "slots names 2" in (refused("duet", OFF, taken=2) or "")
    assert "tell the arms apart" in (refused("duet", ADVISED, workload="command") or "")


def test_a_crossover_needs_a_workload_that_holds_layouts_and_treatments_of_memory_alone() -> None:
    assert "cannot hold two layouts" in (refused("crossover", ADVISED, workload="mmap-perf") or "")
    assert "thp_disable" in (refused("crossover", OFF) or "")
    changed = msgspec.structs.replace(ADVISED, parameters={"loads": 11})
    assert "same parameters" in (refused("crossover", changed) or "")
    assert "whole process" in (refused("crossover", ADVISED, metric="page_faults") or "")
    assert refused("crossover", ADVISED, metric="cpu_s") is None
    assert "at most 10" in (refused("crossover", ADVISED, taken=10) or "")


def test_workloads_that_take_turns_are_those_that_say_so() -> None:
    found: dict[str, object] = dict(discover())
    assert {name for name, each in found.items() if isinstance(each, TakingTurns)} == {
        *("command", "memcached", "mysql-ro", "pgbench", "redis")
    }
    assert {name for name, each in found.items() if isinstance(each, Visited)} == {"memcached", "redis"}
    assert {name for name, each in found.items() if isinstance(each, Layered)} == {"chase", "gups", "spin", "stream"}


def test_the_probe_is_told_every_layout() -> None:
    chase = discover()["chase"]
    pool = msgspec.structs.replace(PLAIN, map_hugetlb=2 << 20)
    launch = chase.launch_together([pool, ADVISED, PLAIN], {"bytes": 4096, "loads": 6}, "012210")  # type: ignore[attr-defined]
    told = " ".join(launch.argv)
    assert told.startswith("chase --bytes 4096 --loads 6 --map hugetlb:2097152")
    assert "--beside anon,huge --beside anon,none --turns 012210" in told


@pytest.mark.parametrize(("kind", "words"), [("duet", "mutual contention"), ("crossover", "within one process")])
def test_a_ratio_says_which_question_it_answers(kind: Kind, words: str) -> None:
    said = qualified(ONE, kind, None)
    assert said.verdict == "better"
    assert words in said.estimand
    assert said.reason.startswith("the interval excludes 1; ")
    assert words in said.reason
    assert qualified(ONE, "sequential", None) == ONE


def test_a_withheld_verdict_is_none_and_keeps_its_numbers() -> None:
    said = qualified(ONE, "sequential", "no calibration")
    assert (said.verdict, said.reach) == ("none", None)
    assert said.reason == "withheld: no calibration; the interval excludes 1"
    assert (said.ratio, said.low, said.high) == (ONE.ratio, ONE.low, ONE.high)
