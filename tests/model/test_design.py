from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from hugewise.model.design import (
    FixedWork,
    Kind,
    Slicing,
    TakingTurns,
    TurnSettings,
    Visited,
    at_once,
    interleaved,
    lasting,
    qualified,
    quiet,
    refusal,
    turn_settings,
)
from hugewise.model.pages import THP, PageTarget
from hugewise.model.policy import Treatment
from hugewise.model.workload import ParameterValue
from hugewise.report.reasons import in_words
from hugewise.workloads import discover
from tests.build.results import comparison
from tests.build.workloads import given

PLAIN = Treatment(policy="madvise", mechanism="system", target=PageTarget("any", 4096), knobs={"/k": "madvise"})
ADVISED = msgspec.structs.replace(PLAIN, policy="thp-advised", target=PageTarget("thp", 2 << 20), advice="huge")
OTHER = msgspec.structs.replace(PLAIN, policy="thp", knobs={"/k": "always"})
OFF = msgspec.structs.replace(PLAIN, policy="off", thp_disable="all")


ONE = comparison("thp", "ns_per_load", "better", ratio=0.8, low=0.7, high=0.9, reason="the interval excludes 1")


def test_sequential_pairs_take_every_arm() -> None:
    for arm in (ADVISED, OTHER, OFF):
        assert refusal("sequential", arm, PLAIN, discover()["chase"], {"bytes": 1 << 20, "loads": 10}, taken=9) is None
    assert not at_once("sequential")


def test_workloads_that_take_turns_are_those_that_say_so() -> None:
    found: dict[str, object] = dict(discover())
    assert {name for name, each in found.items() if isinstance(each, TakingTurns)} == {
        *("build", "command", "integer-set", "memcached", "mysql-ro", "pgbench", "redis", "service", "tpcc", "x264")
    }
    fixed = {name for name, each in found.items() if isinstance(each, FixedWork)}
    assert fixed == {"build", "integer-set", "service", "x264"}
    assert {name for name, each in found.items() if isinstance(each, Visited)} == {"memcached", "redis"}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("duet", "mutual contention"),
        ("crossover", "within one process"),
        ("resident", "the processes of all arms resident and one of them working at a time"),
        ("interleaved", "of arms side by side, which take turns of some milliseconds"),
    ],
)
def test_a_ratio_says_which_question_it_answers(kind: Kind, words: str) -> None:
    said = qualified(ONE, kind, None)
    assert said.verdict == "better"
    assert words in said.estimand
    assert in_words(said.reason).startswith("the interval excludes 1; ")
    assert words in in_words(said.reason)
    assert qualified(ONE, "sequential", None) == ONE


def test_a_withheld_verdict_is_none_and_keeps_its_numbers() -> None:
    said = qualified(ONE, "sequential", "no calibration")
    assert (said.verdict, said.reach) == ("none", None)
    assert in_words(said.reason) == "withheld: no calibration; the interval excludes 1"
    assert (said.ratio, said.low, said.high) == (ONE.ratio, ONE.low, ONE.high)


def not_in_turns(
    workload: str, values: Mapping[str, Any] = {}, *, taken: int = 1, knobs: Mapping[str, str] = {}
) -> str | None:
    """Why an arm with these knobs, beside a baseline that has none, cannot take turns."""
    found = discover()[workload]
    values = {**values, "argv": ("true",)} if workload == "command" else values
    arm, baseline = (msgspec.structs.replace(PLAIN, knobs=each) for each in (knobs, {}))
    return refusal("interleaved", arm, baseline, found, given(found, **values), taken=taken)


@pytest.mark.parametrize("kind", ["resident", "interleaved"])
def test_arms_that_take_turns_are_there_at_once(kind: Kind) -> None:
    assert at_once(kind) and interleaved(kind)


@pytest.mark.parametrize(
    ("workload", "values", "words"),
    [
        ("chase", {}, "no workload whose arms can take turns"),
        ("sysbench-memory", {}, "no workload whose arms can take turns"),
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
def test_what_cannot_take_turns_says_why(workload: str, values: dict[str, Any], words: str) -> None:
    assert words in (not_in_turns(workload, values) or "")


def test_arms_may_differ_in_the_knobs_under_which_memory_is_taken() -> None:
    thp = {f"{THP}/enabled": "always", f"{THP}/hugepages-64kB/enabled": "always", f"{THP}/defrag": "always"}
    for workload, values in (("redis", {}), ("memcached", {}), ("pgbench", {"mode": "select-only"}), ("mysql-ro", {})):
        assert not_in_turns(workload, values, knobs=thp) is None, workload
    for workload in ("command", "build", "x264", "integer-set"):
        assert not_in_turns(workload, knobs=thp) is None, workload
        assert not_in_turns(workload) is None, workload
    said = not_in_turns("command", knobs={f"{THP}/khugepaged/defrag": "0"})
    assert said is not None and "khugepaged/defrag is 0 here, as found for the baseline" in said


@pytest.mark.parametrize("knob", [f"{THP}/khugepaged/pages_to_scan", "/proc/sys/vm/compaction_proactiveness", "/k"])
def test_a_knob_that_matters_to_servers_in_their_turns_must_be_the_same(knob: str) -> None:
    said = not_in_turns("redis", knobs={knob: "7"})
    assert said is not None
    assert said.startswith("it would have to go on while the arms take turns, under one setting, and ")
    assert said.endswith(f"{knob} is 7 here, as found for the baseline")


def test_more_than_ten_arms_do_not_take_turns() -> None:
    assert not_in_turns("redis", taken=9) is None
    assert not_in_turns("redis", taken=10) == "at most 10 arms take turns"


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
                said = refusal("interleaved", one, other, found[workload], values, taken=1)
                assert said == refused_as, (workload, name)


# -- the page settings of commands that take turns

PMD = f"{THP}/hugepages-2048kB"
FOUND = {
    f"{THP}/enabled": "madvise",
    f"{THP}/khugepaged/scan_sleep_millisecs": "10000",
    f"{PMD}/enabled": "inherit",
    f"{PMD}/shmem_enabled": "inherit",
    f"{THP}/hugepages-64kB/enabled": "never",
}
ASLEEP = {f"{THP}/khugepaged/scan_sleep_millisecs": "4294967295"}


def setting(top: str, pmd: str = "inherit", small: str = "never") -> Treatment:
    knobs = {f"{THP}/enabled": top, f"{PMD}/enabled": pmd, f"{THP}/hugepages-64kB/enabled": small}
    return msgspec.structs.replace(PLAIN, knobs=knobs)


BASE, HUGE, ADVISED_ONLY, SMALL = (
    setting("never", "never"), setting("always"), setting("madvise"), setting("never", "never", "always"),
)  # fmt: skip


def test_base_pages_beside_huge_ones_are_by_prctl_and_no_knob_is_turned() -> None:
    found = turn_settings([BASE, HUGE], FOUND, 2 << 20)
    assert found.thp_disable == ("all", "none")
    assert found.own == ({}, {})
    assert found.shared == {**HUGE.knobs, **ASLEEP}


def test_a_knob_in_which_arms_differ_is_turned_for_each_turn() -> None:
    found = turn_settings([ADVISED_ONLY, BASE, HUGE], FOUND, 2 << 20)
    assert found.thp_disable == ("none", "all", "none")
    assert found.own == ({f"{THP}/enabled": "madvise"}, {f"{THP}/enabled": "madvise"}, {f"{THP}/enabled": "always"})
    assert found.shared[f"{PMD}/enabled"] == "inherit"


def test_khugepaged_is_neither_stopped_nor_started_between_turns() -> None:
    found = turn_settings([SMALL, HUGE], FOUND, 2 << 20)
    assert found.shared[f"{PMD}/shmem_enabled"] == "advise"
    assert found.shared.items() >= ASLEEP.items()
    assert [dict(own) for own in found.own] == [
        {f"{THP}/enabled": "never", f"{THP}/hugepages-64kB/enabled": "always", f"{PMD}/enabled": "never"},
        {f"{THP}/enabled": "always", f"{THP}/hugepages-64kB/enabled": "never", f"{PMD}/enabled": "inherit"},
    ]


def test_what_an_arm_does_not_name_is_as_it_was_found() -> None:
    as_found = msgspec.structs.replace(PLAIN, knobs={})
    found = turn_settings([as_found, HUGE], FOUND, 2 << 20)
    assert found.own == ({f"{THP}/enabled": "madvise"}, {f"{THP}/enabled": "always"})
    off = turn_settings([as_found, HUGE], {**FOUND, f"{THP}/enabled": "never"}, 2 << 20)
    assert off.thp_disable == ("all", "none") and off.own == ({}, {})


def test_who_has_huge_pages_of_shared_memory_keeps_them() -> None:
    """PR_SET_THP_DISABLE would take them away, and so would `advise` in all turns."""
    knobs = {**BASE.knobs, f"{THP}/shmem_enabled": "always", f"{PMD}/shmem_enabled": "always"}
    kept = msgspec.structs.replace(BASE, knobs=knobs)
    found = turn_settings([kept, HUGE, SMALL], {**FOUND, f"{THP}/shmem_enabled": "never"}, 2 << 20)
    assert found.thp_disable == ("none", "none", "none")
    assert [own[f"{PMD}/shmem_enabled"] for own in found.own] == ["always", "inherit", "inherit"]
    assert [own[f"{THP}/shmem_enabled"] for own in found.own] == ["always", "never", "never"]


def test_arms_without_huge_pages_have_their_own_knobs() -> None:
    found = turn_settings([BASE, BASE], FOUND, 2 << 20)
    assert (found.thp_disable, found.own, found.shared) == (("none", "none"), ({}, {}), dict(BASE.knobs))
    user = msgspec.structs.replace(PLAIN, knobs={}, mechanism="process")
    off = msgspec.structs.replace(user, thp_disable="all")
    assert turn_settings([user, off], {}, 2 << 20) == TurnSettings({}, ({}, {}), ("none", "all"))


def test_commands_of_an_ordinary_user_take_turns_by_prctl() -> None:
    user = msgspec.structs.replace(PLAIN, knobs={}, mechanism="process")
    off = msgspec.structs.replace(user, thp_disable="all")
    values: Mapping[str, ParameterValue] = {"argv": ("true",)}
    assert refusal("interleaved", off, user, discover()["command"], values, taken=1) is None


def test_a_kernel_with_one_size_has_one_knob() -> None:
    old = {f"{THP}/enabled": "madvise", f"{THP}/khugepaged/scan_sleep_millisecs": "10000"}
    never, always = (msgspec.structs.replace(PLAIN, knobs={f"{THP}/enabled": word}) for word in ("never", "always"))
    found = turn_settings([never, always], old, 2 << 20)
    assert (found.thp_disable, found.own) == (("all", "none"), ({}, {}))
