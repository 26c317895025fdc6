"""Events of processor families as data, and sets of them that fit a PMU: proven on one that is made of a few lines."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pytest

from hugewise.attempt import outcome
from hugewise.machine import pmu
from hugewise.machine.pmu import ROLES, CounterPlan, ProcessorFamily, requests, schedule
from hugewise.machine.probe import Count
from hugewise.model.metric import BUNDLES, COMMON, GENERIC, SUMS
from tests.build import known

ISSUE = (
    *("Haswell", "Broadwell", "Broadwell-DE", "Broadwell server", "Skylake", "Skylake server", "Cascade Lake"),
    *("Ice Lake", "Ice Lake server", "Sapphire Rapids", "Emerald Rapids", "Granite Rapids", "Sierra Forest"),
    *("Zen 1", "Zen 2", "Zen 3", "Zen 4", "Zen 5"),
    *("Neoverse N1", "Neoverse N2", "Neoverse N3", "Neoverse V1", "Neoverse V2", "Neoverse V3"),
)


def family(name: str) -> ProcessorFamily:
    return next(one for one in pmu.every() if one.name == name)


@dataclass
class FakePmu:
    """A PMU that counts so many events at once, and gives each group its turn, as the kernel does (perf_event_open(2)).

    A group runs whole or not at all; a fixed counter holds its event in one mode; every event happens `rate` times a
    tick of a nanosecond.
    """

    general: int
    fixed: frozenset[str] = frozenset()
    rate: int = 7

    def fits(self, labels: Iterable[str]) -> bool:
        free, needed = set(self.fixed), 0
        for label in labels:
            name = label.partition(":")[0]
            if name in free:
                free.discard(name)
            else:
                needed += 1
        return needed <= self.general

    def count(self, groups: Iterable[str], ticks: int = 60) -> Mapping[str, Count]:
        """What the probe says of these groups after so many ticks."""
        waiting = [[one.partition("=")[0] for one in group.split("+")] for group in groups]
        ran = [0] * len(waiting)
        for tick in range(ticks):
            on: list[str] = []
            turn = [(place + tick) % len(waiting) for place in range(len(waiting))]
            for place in turn:
                if self.fits([*on, *waiting[place]]):
                    on += waiting[place]
                    ran[place] += 1
        found = {}
        for labels, running in zip(waiting, ran, strict=True):
            for label in labels:
                scaled = None if running == 0 else running * self.rate * ticks // running
                reason = None if running else "never ran (not scheduled on a PMU)"
                found[label] = Count(scaled, reason, ticks, running)
        return found


def test_every_family_of_the_issue_is_there_with_its_source() -> None:
    names = [one.name for one in pmu.every()]
    assert set(ISSUE) <= set(names)
    assert len(names) == len(set(names))
    for one in pmu.every():
        assert one.events.keys() <= ROLES.keys(), one.name
        assert re.search(r"(intel/perfmon [0-9a-f]{12}, \w|Linux tools/perf/pmu-events/arch/)", one.source), one.name
        assert all(event.event for events in one.events.values() for event in events)
        if one.stlb_cycles is not None:
            assert one.formulas, f"{one.name}: where its constants were read is not told"
        # Of an upper end, or of why there is none.
        assert (one.stlb_cycles is None) <= bool(one.no_bound or one.name == "Sierra Forest"), one.name


@pytest.mark.parametrize(
    ("cpu", "name"),
    [
        (("GenuineIntel", "6", "63", "2"), "Haswell server"),
        (("GenuineIntel", "6", "86", "3"), "Broadwell-DE"),
        (("GenuineIntel", "6", "85", "4"), "Skylake server"),
        (("GenuineIntel", "6", "85", "7"), "Cascade Lake"),
        (("GenuineIntel", "6", "85", "11"), "Cascade Lake"),
        (("GenuineIntel", "6", "106", "6"), "Ice Lake server"),
        (("GenuineIntel", "6", "143", "8"), "Sapphire Rapids"),
        (("GenuineIntel", "6", "173", "1"), "Granite Rapids"),
        (("GenuineIntel", "6", "175", "3"), "Sierra Forest"),
        (("AuthenticAMD", "23", "1", "2"), "Zen 1"),
        (("AuthenticAMD", "23", "49", "0"), "Zen 2"),
        (("AuthenticAMD", "25", "1", "1"), "Zen 3"),
        (("AuthenticAMD", "25", "17", "1"), "Zen 4"),
        (("AuthenticAMD", "26", "2", "1"), "Zen 5"),
        (("0x41", None, "0xd0c", "1"), "Neoverse N1"),
        (("0x41", None, "0xd8e", "0"), "Neoverse N3"),
        (("0xc0", None, "0xac4", "0"), "AmpereOneX"),
        (("GenuineIntel", "6", "42", "7"), None),
        (("0x51", None, "0x001", "0"), None),
        ((None, None, None, None), None),
    ],
)
def test_a_processor_is_found_by_what_cpuinfo_says(cpu: tuple[str | None, ...], name: str | None) -> None:
    found = pmu.of(dict(zip(("vendor", "family", "model_number", "stepping"), cpu, strict=True)))
    assert (None if found is None else found.name) == name


def test_an_event_is_what_the_manuals_say_a_config_is() -> None:
    # perf stat -v -e cpu/event=0x08,umask=0x10,cmask=1/ says config 0x1001008.
    assert family("Skylake server").config("load_walk_cycles") == (0x1001008,)
    assert family("Sapphire Rapids").config("load_walk_cycles") == (0x1001012,)
    assert family("Haswell").config("load_walk_cycles") == (0x1008,)
    assert family("Broadwell server").config("load_walk_cycles") == (0x1001008,), "one of its two walkers is busy"
    assert family("Zen 4").config("load_walks") == (
        0xF045,
    )  # as arch/x86/events/amd/core.c has it for dTLB-load-misses
    assert family("Neoverse N3").config("walk_steps") == (0x8136,)
    assert len(family("Haswell").config("walk_steps")) == 4
    assert family("Zen 5").config("load_walk_cycles") == ()


def test_nested_walks_are_where_the_processor_has_an_event_of_them() -> None:
    having = {one.name for one in pmu.every() if "nested_walk_cycles" in one.events}
    assert having == {
        *("Haswell", "Haswell server", "Broadwell", "Broadwell-DE", "Broadwell server"),
        *("Skylake", "Skylake server", "Cascade Lake"),
    }
    later = ("Ice Lake", "Ice Lake server", "Sapphire Rapids", "Emerald Rapids", "Granite Rapids")
    assert {family(name).nested for name in later} == {"unknown"}


def test_every_bundle_makes_metrics_that_are_known() -> None:
    known_names = {metric.name for metric in COMMON}
    assert {name for bundle in BUNDLES for name in bundle.metrics} <= known_names
    assert {role for one in SUMS for role in (*one.roles, *one.less)} <= ROLES.keys() | set(GENERIC)


@pytest.mark.parametrize("slots", [2, 4, 6, 8])
@pytest.mark.parametrize("name", [*ISSUE, None])
def test_whatever_is_counted_in_a_block_runs_all_of_the_time(name: str | None, slots: int) -> None:
    one = None if name is None else family(name)
    plan, pmu = schedule(one, slots), FakePmu(slots, frozenset() if one is None else one.fixed)
    seen: set[str] = set()
    for block in range(len(plan.sets)):
        found = pmu.count(plan.groups(block))
        assert all(count.whole for count in found.values())
        metrics, absent = outcome.counter_metrics(found, plan.elsewhere(block))
        assert metrics.keys() >= absent.keys()
        seen |= {name for name, value in metrics.items() if value is not None}
    # What no set has is told, and nothing is lost in silence.
    never = {label for label in requests(one) if label not in {o.partition("=")[0] for s in plan.sets for o in s}}
    assert never <= plan.left_out.keys()
    assert {"cycles", "instructions"} <= seen


def test_events_that_are_divided_by_each_other_are_counted_together() -> None:
    plan = schedule(family("Skylake server"), 4)
    for metric, part, whole in (
        ("walk_share_user", "load_walk_cycles:u", "cycles:u"),
        ("walk_share_kernel", "store_walk_cycles:k", "cycles:k"),
        ("walks_pki_user", "load_walks:u", "instructions:u"),
        ("dtlb_mpki", "dTLB-load-misses", "instructions"),
    ):
        labels = [{one.partition("=")[0] for one in each} for each in plan.sets]
        assert any({part, whole} <= label for label in labels), metric


def test_all_at_once_share_their_counters_and_nothing_is_made_of_that() -> None:
    plan, pmu = schedule(family("Skylake server"), 4), FakePmu(4, frozenset({"cycles", "instructions"}))
    found = pmu.count(["+".join(each) for each in plan.sets])
    metrics, absent = outcome.counter_metrics(found)
    assert metrics["walk_cycles_user"] is None
    assert re.search(r"it ran \d+% of the time.*is an estimate, and not judged", absent["walk_cycles_user"])


def test_what_is_judged_is_counted_in_every_block() -> None:
    plan = schedule(family("Skylake server"), 4, pinned={"walk_share_user"})
    labels = [{one.partition("=")[0] for one in each} for each in plan.sets]
    assert all({"cycles:u", "load_walk_cycles:u", "store_walk_cycles:u"} <= label for label in labels)
    crowded = [why for why in plan.left_out.values() if "what is judged leaves no counter" in why]
    assert crowded, "three of four counters are taken"
    assert len(schedule(family("Skylake server"), 4).sets) > 1


def test_what_the_pmu_refuses_is_left_out_with_its_reason() -> None:
    stays = "it stays 0 over work that must make it count"
    refused = dict.fromkeys(("load_walk_cycles:u", "store_walk_cycles:u", "fetch_walk_cycles:u"), stays)
    plan = schedule(family("Skylake server"), 4, refused)
    assert plan.elsewhere(0)["load_walk_cycles:u"] == stays
    metrics, absent = outcome.counter_metrics({}, plan.elsewhere(0))
    assert (metrics["walk_cycles_user"], absent["walk_cycles_user"]) == (None, stays)
    assert not any("load_walk_cycles:u" in one for each in plan.sets for one in each)


def test_without_a_pmu_nothing_is_asked_for_and_steps_say_why() -> None:
    assert CounterPlan().groups(3) == ()
    assert "Zen 4" in known(schedule(family("Zen 4"), 6).left_out.get("walk_steps"))
    assert "this processor" in known(schedule(None, 4).left_out.get("walk_steps"))
