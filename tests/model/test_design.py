from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from hugewise.model.design import (
    FixedWork,
    Kind,
    Layered,
    Slicing,
    TakingTurns,
    Visited,
    at_once,
    in_turns,
    lasting,
    must_agree,
    qualified,
    quiet,
    refusal,
)
from hugewise.model.pages import THP, PageTarget
from hugewise.model.policy import Treatment
from hugewise.model.workload import ParameterValue
from hugewise.workloads import discover
from tests.build.results import comparison
from tests.build.workloads import given

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
    return refusal(kind, arm, PLAIN, found, values, taken=taken, slots=slots, metrics=[metric])


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
        *("command", "memcached", "mysql-ro", "pgbench", "redis", "service", "tpcc")
    }
    assert {name for name, each in found.items() if isinstance(each, FixedWork)} == {"service"}
    assert {name for name, each in found.items() if isinstance(each, Visited)} == {"memcached", "redis"}
    assert {name for name, each in found.items() if isinstance(each, Layered)} == {"chase", "gups", "spin", "stream"}


def test_the_probe_is_told_every_layout() -> None:
    chase = discover()["chase"]
    pool = msgspec.structs.replace(PLAIN, map_hugetlb=2 << 20)
    launch = chase.launch_together([pool, ADVISED, PLAIN], {"bytes": 4096, "loads": 6}, "012210")  # type: ignore[attr-defined]
    told = " ".join(launch.argv)
    assert told.startswith("chase --bytes 4096 --loads 6 --map hugetlb:2097152")
    assert "--beside anon,huge --beside anon,none --turns 012210" in told


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("duet", "mutual contention"),
        ("crossover", "within one process"),
        ("resident", "the processes of all arms resident and one of them working at a time"),
    ],
)
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


def resident(
    workload: str, values: Mapping[str, Any] = {}, *, taken: int = 1, knobs: Mapping[str, str] = {}
) -> str | None:
    """Why an arm with these knobs, beside a baseline that has none, cannot take turns."""
    found = discover()[workload]
    values = {**values, "argv": ("true",)} if workload == "command" else values
    arm, baseline = (msgspec.structs.replace(PLAIN, knobs=each) for each in (knobs, {}))
    return refusal("resident", arm, baseline, found, given(found, **values), taken=taken, slots=0, metrics=["wall_s"])


def test_residents_are_at_once_and_in_turns_and_must_agree_with_pairs() -> None:
    assert at_once("resident")
    assert in_turns("resident")
    assert must_agree("resident")


@pytest.mark.parametrize(
    ("workload", "values", "words"),
    [
        ("chase", {}, "no workload whose arms can be resident together"),
        ("x264", {}, "no workload whose arms can be resident together"),
        ("tpcc", {}, "PostgreSQL's backends with it"),
        ("tpcc", {"server": "mariadb"}, "give all arms the same work"),
        ("redis", {"mode": "sla"}, "mode = 'sla' searches a rate"),
        ("redis", {"mode": "rate"}, "mode = 'rate' sends requests on time"),
        ("redis", {"operations": 100}, "name a duration"),
        ("redis", {"bgsave": True}, "a background save"),
        ("redis", {"lead": "0s"}, "lead must be above 0"),
        ("pgbench", {"mode": "tpcb"}, "the data grow with every transaction"),
        ("command", {"proof": "twin"}, "a second time"),
        ("command", {"proof": "counters"}, "cannot tell arms apart"),
    ],
)
def test_what_cannot_take_turns_is_not_resident(workload: str, values: dict[str, Any], words: str) -> None:
    assert words in (resident(workload, values) or "")


def test_servers_are_each_brought_up_under_their_own_setting_and_commands_share_one() -> None:
    thp = {f"{THP}/enabled": "always", f"{THP}/hugepages-64kB/enabled": "always", f"{THP}/defrag": "always"}
    for workload, values in (("redis", {}), ("memcached", {}), ("pgbench", {"mode": "select-only"}), ("mysql-ro", {})):
        assert resident(workload, values, knobs=thp) is None, workload
    assert f"{THP}/defrag is always here, as found for the baseline" in (resident("command", knobs=thp) or "")
    assert resident("command") is None


@pytest.mark.parametrize("knob", [f"{THP}/khugepaged/pages_to_scan", "/proc/sys/vm/compaction_proactiveness", "/k"])
def test_a_knob_that_matters_to_servers_in_their_turns_must_be_the_same(knob: str) -> None:
    said = resident("redis", knobs={knob: "7"})
    assert said is not None
    assert said.startswith("it would have to go on while the arms take turns, under one setting, and ")
    assert said.endswith(f"{knob} is 7 here, as found for the baseline")


def test_more_than_ten_arms_do_not_take_turns() -> None:
    assert resident("redis", taken=9) is None
    assert resident("redis", taken=10) == "at most 10 arms take turns"


def test_what_lasts_is_not_where_memory_is_taken_from() -> None:
    kept = {f"{THP}/khugepaged/defrag": "1", "/proc/sys/vm/swappiness": "0"}
    gone = {f"{THP}/enabled": "always", f"{THP}/hugepages-64kB/enabled": "inherit", f"{THP}/shmem_enabled": "force"}
    assert lasting({**kept, **gone}) == kept


def test_when_it_is_quiet_nothing_becomes_huge_any_more() -> None:
    turned = (f"{THP}/enabled", f"{THP}/hugepages-64kB/enabled", f"{THP}/shmem_enabled")
    others = (f"{THP}/defrag", f"{THP}/khugepaged/pages_to_scan", "/sys/other/enabled", f"{THP}/use_zero_page")
    assert quiet((*turned, *others)) == dict.fromkeys(turned, "never")


@pytest.mark.parametrize(
    ("length", "wash_out", "counted", "rounds"),
    [(0.25, 0.2, 2.0, 10), (0.25, 0.2, 2.01, 11), (0.1, 0.0, 0.3, 3), (0.1, 0.5, 0.3, 6), (5.0, 0.2, 1.0, 1)],
)
def test_there_are_rounds_enough_for_what_is_to_count(
    length: float, wash_out: float, counted: float, rounds: int
) -> None:
    slicing = Slicing(3, length, wash_out)
    assert slicing.rounds(counted) == rounds
    assert rounds * length * (1 - wash_out) >= counted - 1e-9


def test_a_client_outlasts_the_turns_of_all() -> None:
    """All have their lead one after the other, then their turns: it is at rest for what is not its own."""
    slicing = Slicing(3, 0.25, 0.2)
    for lead in (1.0, 60.0):
        others = 2 * (lead + 10 * 0.25) + 10 * 0.25 * 0.2
        assert others < slicing.idle(lead, 2.0) < others + 5


def test_what_is_of_the_one_client_or_of_everybodys_time_is_the_same_in_all_arms() -> None:
    found = discover()
    for workload, own, shared in (("redis", "allocator", "pipeline"), ("pgbench", "seed", "duration")):
        values = given(found[workload], **({"mode": "select-only"} if workload == "pgbench" else {}))
        for name, refused_as in ((own, None), (shared, f"{shared} must be the same in all arms that take turns")):
            arm = msgspec.structs.replace(PLAIN, parameters={name: values[name]})
            for one, other in ((arm, PLAIN), (PLAIN, arm)):
                said = refusal("resident", one, other, found[workload], values, taken=1, slots=0, metrics=["wall_s"])
                assert said == refused_as, (workload, name)
