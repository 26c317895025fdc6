"""What a design can lay out at once, and the question that each design answers. Pure.

sequential   the arms of a block one after the other, in the coin's order (and on the coin's CPU)
duet         all arms of a block at the same time, each on a CPU of its own (Bulej et al., ICPE 2020): noise that
             hits all CPUs alike cancels, and the arms compete with each other, which changes the question
crossover    one process holds the memory of all arms and works on them in turns of milliseconds: drift that is
             slower than a turn cancels, and each layout finds the caches as the others left them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

import msgspec

from hugewise.model.policy import Treatment
from hugewise.model.results import Comparison
from hugewise.model.scene import Places, Step
from hugewise.model.workload import Direct, Launch, ParameterValue, Workload

__all__ = ["ESTIMANDS", "Kind", "Layered", "TakingTurns", "Visited", "at_once", "qualified", "refusal"]

Kind = Literal["sequential", "duet", "crossover"]

# What a ratio means beyond "arm/baseline": nothing for processes of their own.
ESTIMANDS: Mapping[Kind, str] = {
    "sequential": "",
    "duet": "under mutual contention (the arms ran at the same time)",
    "crossover": "switching within one process, with all layouts resident",
}
_MOST_LAYOUTS = 10  # the probe writes a layout as one digit


@runtime_checkable
class Layered(Protocol):
    """A workload that can hold several layouts of its memory in one process."""

    def launch_together(
        self, treatments: Sequence[Treatment], values: Mapping[str, ParameterValue], turns: str
    ) -> Launch:
        """The command for one attempt of all treatments; `turns` has a digit a turn, the index of its treatment."""
        ...


@runtime_checkable
class TakingTurns(Workload, Protocol):
    """A workload whose attempts can take turns with those of other arms, each frozen while others have theirs."""

    def turns_refused(self, values: Mapping[str, ParameterValue]) -> str | None:
        """Why attempts with these values cannot take turns with those of other arms, or None when they can."""
        ...


@runtime_checkable
class Visited(TakingTurns, Protocol):
    """A staged workload of which one client visits the servers of all arms in turns, and none is frozen."""

    def visited(self, values: Mapping[str, ParameterValue]) -> bool:
        """Whether it is so with these values; else they take turns by being frozen."""
        ...

    def fill(self, values: Mapping[str, ParameterValue], places: Places) -> tuple[Step, ...]:
        """What fills an arm's own servers when they answer: untimed, and under the arm's own treatment."""
        ...

    def visit(
        self,
        values: Mapping[str, ParameterValue],
        places: Sequence[Places],
        turns: str,
        slice_s: float,
        wash_out: float,
    ) -> Launch:
        """The timed client of all arms' servers.

        places    of each arm, in the order of the digits of `turns`
        turns     a digit a turn: whose servers are asked
        slice_s   about how many seconds a turn has; all have as many operations
        wash_out  the share of a turn, from its begin, that does not count
        """
        ...


def at_once(kind: Kind) -> bool:
    """Whether all arms of a block need their memory at the same time."""
    return kind != "sequential"


def qualified(comparison: Comparison, kind: Kind, withheld: str | None) -> Comparison:
    """The comparison with the question that the design answers, and without its verdict where that is withheld."""
    if condition := ESTIMANDS[kind]:
        comparison = msgspec.structs.replace(
            comparison,
            estimand=f"{comparison.estimand}, {condition}",
            reason="; ".join(part for part in (comparison.reason, f"the ratio is one {condition}") if part),
        )
    if withheld is None:
        return comparison
    return msgspec.structs.replace(
        comparison, verdict="none", reason=f"withheld: {withheld}; {comparison.reason}", reach=None
    )


def refusal(
    kind: Kind,
    arm: Treatment,
    baseline: Treatment,
    workload: Workload,
    values: Mapping[str, ParameterValue],
    *,
    taken: int,
    slots: int,
    metric: str,
) -> str | None:
    """Why `arm` cannot be laid out beside its baseline, or None when it can.

    `taken` is how many arms (the baseline among them) have a place already, `slots` how many CPUs there are.
    """
    if kind == "sequential":
        return None
    if differing := _differing(arm.knobs, baseline.knobs):
        return f"a {kind} has one machine-wide setting at a time, and {differing}"
    if kind == "duet":
        if taken >= slots:
            return f"a duet runs every arm on a CPU of its own, and slots names {slots}"
        if not isinstance(workload, Direct):
            return f"{workload.name} has servers or data of its own, and a duet runs single commands"
        if workload.launch(arm, {**values, **arm.parameters}).proof == "counters":
            return "in a duet the kernel's fault counters cannot tell the arms apart"
        return None
    if not isinstance(workload, Layered):
        return f"{workload.name} cannot hold two layouts in one process"
    if arm.thp_disable != baseline.thp_disable:
        return "in a crossover all layouts are in one process, and thp_disable holds for all of it"
    if arm.parameters or baseline.parameters:
        return "in a crossover all layouts have the same parameters"
    if metric not in {known.name for known in workload.metrics} | {"wall_s", "cpu_s"}:
        return f"{metric} is of the whole process, which a crossover shares"
    if taken >= _MOST_LAYOUTS:
        return f"a crossover has at most {_MOST_LAYOUTS} layouts"
    return None


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """The first knob in which two treatments differ, in words; empty when they agree."""
    for path in sorted({*one, *other}):
        if one.get(path) != other.get(path):
            here, there = one.get(path, "as found"), other.get(path, "as found")
            return f"{path} is {here} here, {there} for the baseline"
    return ""
