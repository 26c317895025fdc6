"""Which events an attempt counts: sets that fit the processor's counters whole, which take turns from block to block.

    plan = schedule(family, slots=4)
    plan.groups(block=7)     # ("cycles+instructions+load_walk_cycles:u=r1001008:u+...",) as the probe takes them

An event that has to share a counter runs for a part of the time, and its value is a guess: so a set is no larger than
what the processor counts at once, and is one group of perf's, which runs whole or not at all. All attempts of a block
count the same set, so that pairs stay pairs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from hugewise.machine.pmu.families import ProcessorFamily
from hugewise.model.metric import BUNDLES, GENERIC, Mode, label

__all__ = ["ASSUMED_SLOTS", "CounterPlan", "requests", "schedule", "without_steps"]

ASSUMED_SLOTS = 4
"""General counters of a processor of which nobody could say: what every one since 2008 has for each thread."""


@dataclass(frozen=True)
class CounterPlan:
    """Sets of labelled events, each of which the processor counts at once; `left_out` says why others are in none.

    sets      what the probe is asked for, `LABEL=EVENT:MODE`, one tuple a set
    """

    sets: tuple[tuple[str, ...], ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    def groups(self, block: int) -> tuple[str, ...]:
        """What is counted in the attempts of a block: nothing, or one group."""
        return ("+".join(self.sets[block % len(self.sets)]),) if self.sets else ()

    def elsewhere(self, block: int) -> Mapping[str, str]:
        """By label why an event has no value in this block: it has its turn in another, or never."""
        if not self.sets:
            return self.left_out
        here = {_label(one) for one in self.sets[block % len(self.sets)]}
        turn = f"counted in 1 of {len(self.sets)} blocks: the processor counts only so many events at once"
        others = {_label(one): turn for each in self.sets for one in each if _label(one) not in here}
        return {**self.left_out, **others}


def requests(family: ProcessorFamily | None) -> Mapping[str, str]:
    """Every event that may be counted, by its label, as the probe is asked for it."""
    found: dict[str, str] = {}
    for bundle in BUNDLES:
        asked = [one for event in bundle.events for one in _ask(family, event, bundle.mode)]
        if not bundle.needs or any(_ask(family, event, bundle.mode) for event in bundle.needs):
            found |= {_label(one): one for one in asked}
    return found


def schedule(
    family: ProcessorFamily | None,
    slots: int,
    refused: Mapping[str, str] | None = None,
    pinned: Collection[str] = (),
) -> CounterPlan:
    """The sets for a processor of that family with so many general `slots`.

    refused  labels that the PMU does not accept, or that stay 0 where they must count, with the reason
    pinned   metrics that are judged: the events that they are made of are in every set
    """
    refused = {} if refused is None else refused
    out: dict[str, str] = {**without_steps(family), **refused}
    sets: list[list[str]] = []
    bundles = []
    for bundle in BUNDLES:
        asked = [one for event in bundle.events for one in _ask(family, event, bundle.mode)]
        accepted = [one for one in asked if _label(one) not in refused]
        needed = {_label(one) for event in bundle.needs for one in _ask(family, event, bundle.mode)}
        # A group without what it is divided by, or made of, would be counted for nothing.
        if not accepted or (bundle.needs and not any(_label(one) in needed for one in accepted)):
            continue
        if not _fits(family, accepted, slots):
            why = f"its group of {len(accepted)} does not fit {slots} counters"
            out |= {_label(one): why for one in accepted}
            continue
        bundles.append((bundle, accepted))
    base: list[str] = []
    for bundle, accepted in bundles:
        if set(bundle.metrics) & set(pinned):
            wider = _joined(base, accepted)
            if _fits(family, wider, slots):
                base = wider
    for _, accepted in bundles:
        for each in sets:
            if _fits(family, wider := _joined(each, accepted), slots):
                each[:] = wider
                break
        else:
            fresh = _joined(base, accepted)
            if _fits(family, fresh, slots):
                sets.append(fresh)
            else:
                why = f"what is judged leaves no counter for it: {slots} are there"
                out |= {_label(one): why for one in accepted if one not in base}
    kept = {_label(one) for each in sets for one in each}
    return CounterPlan(tuple(map(tuple, sets)), {name: why for name, why in out.items() if name not in kept})


def without_steps(family: ProcessorFamily | None) -> Mapping[str, str]:
    """Why there are no page-walk steps where the processor has no event of them: they are looked for anywhere."""
    if family is not None and "walk_steps" in family.events:
        return {}
    where = "this processor" if family is None else family.name
    return {"walk_steps": f"no event of page-walk steps is known for {where}"}


def _joined(one: list[str], other: Iterable[str]) -> list[str]:
    return [*one, *(each for each in other if each not in one)]


def _fits(family: ProcessorFamily | None, asked: Iterable[str], slots: int) -> bool:
    """Whether the processor can count all of it at once. A fixed counter holds its event in one mode."""
    general, special = 0, 0
    fixed = set() if family is None else set(family.fixed)
    for one in asked:
        name = _label(one).partition(":")[0]
        if name in fixed:
            fixed.discard(name)
            continue
        general += 1
        special += family is not None and (name.partition("/")[0] in family.events or name == "dTLB-load-misses")
    limit = family.restricted if family is not None and family.restricted else slots
    return general <= slots and special <= min(limit, slots)


def _ask(family: ProcessorFamily | None, event: str, mode: Mode) -> list[str]:
    """`LABEL=rCONFIG:MODE` for each event of a role of the family, perf's own name for any other."""
    if event in GENERIC:
        return [label(event, mode)]
    configs = () if family is None else family.config(event)
    return [f"{label(event, mode, index)}={label(f'r{config:x}', mode)}" for index, config in enumerate(configs)]


def _label(asked: str) -> str:
    return asked.partition("=")[0]
