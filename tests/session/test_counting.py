"""What a session finds of the processor and of the cost of a page fault: of this machine, and of one with a PMU."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest

from hugewise.errors import ProbeError
from hugewise.host.local_host import LocalHost
from hugewise.machine import probe
from hugewise.model.metric import COMMON, Metric
from hugewise.session.steps import counted_events
from tests.build.studies import KnobFiles

SKYLAKE = KnobFiles(
    {"/proc/cpuinfo": "vendor_id : GenuineIntel\ncpu family : 6\nmodel : 85\nstepping : 4\n"},
)


@dataclass
class Judged:
    """As much of a cell as is looked at."""

    metric: Metric
    also: tuple[Metric, ...] = ()


class Probe:
    """A probe on a machine with a PMU: some labels it refuses, one stays 0."""

    def __init__(self, slots: int | None, reasons: dict[str, str]) -> None:
        self.slots, self.reasons, self.asked = slots, reasons, list[tuple[str, ...]]()
        self.partial = frozenset[str]()

    def ask(self, *arguments: str) -> probe.Event:
        self.asked.append(arguments)
        if arguments[0] == "fault-cost":
            rounds = [probe.FaultRound(32 << 20, 8192, 16_384_000), probe.FaultRound(32 << 20, 16, 3_200_000)]
            return probe.FaultCost(rounds)
        tried = [word.partition("=")[0] for flag, word in itertools.pairwise(arguments) if flag == "--try"]
        counters: dict[str, str | None] = dict.fromkeys(tried)
        return probe.Available({**counters, "cycles": None, **self.reasons}, self.slots, self.partial)


def asked(monkeypatch: pytest.MonkeyPatch, slots: int | None, **reasons: str) -> Probe:
    made = Probe(slots, {name.replace("_U", ":u"): why for name, why in reasons.items()})
    monkeypatch.setattr(probe, "ask", made.ask)
    return made


def test_what_the_pmu_accepts_is_scheduled_and_the_rest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    zero = "it stays 0 over work that must make it count"
    said = asked(monkeypatch, 4, load_walk_cycles_U=zero, cycles="user mode only: kernel.perf_event_paranoid is 2")
    said.partial = frozenset({"cycles"})
    facts, plan = counted_events(SKYLAKE, [])
    pmu: dict[str, Any] = facts["pmu"]
    assert (pmu["family"], pmu["slots"], pmu["processor"]) == ("Skylake server", 4, "GenuineIntel-6-55-4")
    assert "skylakex_core.json" in pmu["source"]
    assert plan.left_out["load_walk_cycles:u"] == zero
    assert any("cycles" in each for each in plan.sets), "it is counted, in user mode alone"
    assert "--silent" in said.asked[1] and "nested_walk_cycles:u" in said.asked[1]
    assert [one["size"] for one in facts["fault_costs"]] == [4096, 2 << 20]


def test_a_machine_without_a_pmu_says_the_probes_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    said = asked(monkeypatch, None, cycles="not offered by this processor or its hypervisor")
    facts, plan = counted_events(SKYLAKE, [])
    assert (facts["pmu"]["slots"], facts["pmu"]["why"]) == (None, "not offered by this processor or its hypervisor")
    assert plan.sets == ()
    assert [arguments[0] for arguments in said.asked] == ["counters", "fault-cost"], "nothing is tried"


def test_a_probe_that_fails_costs_the_counters_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: str) -> probe.Event:
        raise ProbeError(f"hugewise-probe {arguments[0]} failed")

    monkeypatch.setattr(probe, "ask", fails)
    facts, plan = counted_events(SKYLAKE, [])
    assert (facts["pmu"]["why"], facts["fault_costs"], plan.sets) == ("hugewise-probe counters failed", [], ())


def test_what_is_judged_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, 4)
    walking = next(metric for metric in COMMON if metric.name == "walk_share_user")
    wall = next(metric for metric in COMMON if metric.name == "wall_s")
    for cell in (Judged(walking), Judged(wall, also=(walking,))):
        _, plan = counted_events(SKYLAKE, [cell])  # type: ignore[list-item]
        assert plan.sets
        assert all(any(one.startswith("load_walk_cycles:u=") for one in each) for each in plan.sets)


def test_here_the_probe_answers() -> None:
    facts, plan = counted_events(LocalHost(), [])
    pmu = facts["pmu"]
    assert (pmu["slots"] is None) == bool(pmu["why"]) == (not plan.sets)
    base = facts["fault_costs"][0]
    assert base["size"] == facts["pages"]["base"]
    assert 0 < base["low"] <= base["typical"] <= base["high"]
