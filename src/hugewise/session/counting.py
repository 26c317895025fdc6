"""What this host's processor counts, and what a page fault costs on it: asked once, before the first attempt."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from hugewise.errors import ProbeError
from hugewise.machine import fingerprint, probe
from hugewise.machine.pmu import families
from hugewise.machine.pmu.schedule import CounterPlan, requests, schedule, without_steps
from hugewise.model.cause import FaultPrice
from hugewise.model.host import Host
from hugewise.plan.plan import Cell
from hugewise.session import identity

__all__ = ["CounterPlan", "found"]

# Outside a guest no nested page table is walked, and a retirement that never waits for the TLB is no fault of an event.
_MAY_BE_0 = ("nested_walk_cycles", "load_stall_cycles", "load_walk_stall_cycles")


def found(host: Host, cells: Iterable[Cell]) -> tuple[dict[str, Any], CounterPlan]:
    """The host's facts as a run keeps them, and the events of its processor that attempts count.

    What a cell is judged by is made of events that are counted in every block. What was found stands in the facts, as
    `pmu` and `fault_costs`.
    """
    facts = fingerprint.fingerprint(host, identity.cpu())
    plan, pmu = _planned(facts["cpu"], {metric.name for cell in cells for metric in (cell.metric, *cell.also)})
    return {**facts, "pmu": pmu, "fault_costs": _fault_costs()}, plan


def _planned(cpu: Mapping[str, Any], judged: Collection[str]) -> tuple[CounterPlan, dict[str, Any]]:
    """What is counted, and what the run keeps of how that was found."""
    family = families.of(cpu)
    told: dict[str, Any] = {
        "processor": families.processor(cpu),
        "family": None if family is None else family.name,
        "source": None if family is None else family.source,
    }
    try:
        here = probe.ask("counters")
        if not isinstance(here, probe.Available) or here.slots is None:
            why = here.counters.get("cycles") if isinstance(here, probe.Available) else None
            return CounterPlan(left_out=without_steps(family)), {**told, "slots": None, "why": why}
        asked = requests(family)
        silent = [label for label in asked if label.partition(":")[0] in _MAY_BE_0]
        words = [word for one in asked.values() for word in ("--try", one)]
        tried = probe.ask("counters", *words, *(word for label in silent for word in ("--silent", label)))
    except ProbeError as error:
        return CounterPlan(left_out=without_steps(family)), {**told, "slots": None, "why": error.message}
    assert isinstance(tried, probe.Available)
    refused = {label: why for label in asked if (why := tried.counters.get(label)) is not None and not _partly(why)}
    plan = schedule(family, here.slots, refused, judged)
    facts = {"slots": here.slots, "why": None, "sets": [list(each) for each in plan.sets], "left_out": plan.left_out}
    return plan, {**told, **facts}


def _partly(why: str) -> bool:
    """Whether it is counted all the same: in user mode alone, say, which the reason beside its value tells."""
    return why.startswith("user mode only")


def _fault_costs() -> list[Any]:
    """What page faults cost here by their size (`model.cause.FaultPrice`); empty where that cannot be had."""
    try:
        said = probe.ask("fault-cost")
    except ProbeError:
        return []
    if not isinstance(said, probe.FaultCost):
        return []
    rounds = [(one.bytes, one.faults, one.cpu_ns) for one in said.rounds]
    return [msgspec.to_builtins(cost) for cost in FaultPrice.of(rounds)]
