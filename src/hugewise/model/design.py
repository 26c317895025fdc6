"""What a design can lay out at once, and the question that each design answers. Pure.

sequential   the arms of a block one after the other, in the coin's order (and on the coin's CPU)
duet         all arms of a block at the same time, each on a CPU of its own (Bulej et al., ICPE 2020): noise that
             hits all CPUs alike cancels, and the arms compete with each other, which changes the question
crossover    one process holds the memory of all arms and works on them in turns of milliseconds: drift that is
             slower than a turn cancels, and each layout finds the caches as the others left them
resident     the processes of all arms are there at once, and one arm at a time works for a slice: the same, of servers
             and commands. What each arm brought up under its own treatment is not changed any more
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

import msgspec

from hugewise.model.pages import THP
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Places, Step
from hugewise.model.results import Comparison
from hugewise.model.workload import Direct, Launch, ParameterValue, Workload

Kind = Literal["sequential", "duet", "crossover", "resident"]

# What a ratio means beyond "arm/baseline": nothing for processes of their own.
ESTIMANDS: Mapping[Kind, str] = {
    "sequential": "",
    "duet": "under mutual contention (the arms ran at the same time)",
    "crossover": "switching within one process, with all layouts resident",
    "resident": "with the processes of all arms resident and one of them working at a time",
}
WITHIN_A_BOOT = "within a boot of the guest that its attempts share"
SEQUENTIAL = '[design] kind = "sequential"'
"""What is written in a study for what no other design can lay out."""

# Freezing and thawing take some milliseconds on a busy machine; and some seconds more do no harm.
_TO_SWITCH_S, _SPARE_S = 0.01, 2.0
_MOST_LAYOUTS = 10  # the probe writes a layout, or a group of servers, as one digit


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
    """A staged workload of which one client visits the servers of all arms in turns, and none is frozen.

    of_servers  the parameters that arms may have of their own: all others are the one client's
    """

    of_servers: Collection[str]

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


@runtime_checkable
class FixedWork(TakingTurns, Protocol):
    """A staged workload whose timed command does its work and ends, and is timed as a whole. In turns it has as many as
    it needs, its servers with it; no part of it counts more than another.
    """

    def filled(self, values: Mapping[str, ParameterValue]) -> bool:
        """Whether its servers have their memory before the timed command begins."""
        ...


class Slicing(msgspec.Struct, frozen=True):
    """How the arms of a resident block take turns.

    arms      how many
    length    of a turn, in seconds
    wash_out  the share of it, from its begin, that does not count
    """

    arms: int
    length: float
    wash_out: float

    def rounds(self, counted: float) -> int:
        """How many turns each has, so that at least `counted` seconds of them count."""
        return max(1, math.ceil(counted / (self.length * (1 - self.wash_out)) - 1e-9))

    def idle(self, lead: float, counted: float) -> float:
        """Seconds for which one is at rest while all have had a lead and take their turns; rather too many."""
        whole = self.arms * (lead + self.rounds(counted) * (self.length + _TO_SWITCH_S)) + _SPARE_S
        return max(0.0, whole - lead - counted)


def at_once(kind: Kind) -> bool:
    """Whether all arms of a block need their memory at the same time."""
    return kind != "sequential"


def in_turns(kind: Kind) -> bool:
    """Whether the arms of a block take turns, in an order drawn by the coin."""
    return kind in ("crossover", "resident")


def must_agree(kind: Kind) -> bool:
    """Whether it gives verdicts only where a calibration showed that it finds what sequential pairs find."""
    return kind in ("duet", "resident")


def beside_its_own(cell: str, metric: str) -> str:
    """The key of a metric that is judged beside the cell's own, where reasons are kept by cell: no cell's name has a
    colon.
    """
    return f"{cell}:{metric}"


def qualified(comparison: Comparison, kind: Kind, withheld: str | None, boots: int | None = None) -> Comparison:
    """The comparison with the question that the design answers, and without its verdict where that is withheld.

    `boots`: of how many boots of one guest its attempts were, where that stays; None where each has a machine anew, or
    is on this host.
    """
    if boots is not None:
        this = "this boot of its guest" if boots == 1 else f"these {boots} boots of its guest"
        comparison = msgspec.structs.replace(
            comparison,
            estimand=f"{comparison.estimand}, {WITHIN_A_BOOT}",
            reason="; ".join(part for part in (comparison.reason, f"it is for {this}: another may differ") if part),
        )
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
    metrics: Sequence[str],
) -> str | None:
    """Why `arm` cannot be laid out beside its baseline, or None when it can.

    `taken` is how many arms (the baseline among them) have a place already, `slots` how many CPUs there are.
    """
    if kind == "sequential":
        return None
    if kind == "resident":
        return _not_in_turns(arm, baseline, workload, {**values, **arm.parameters}, taken)
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
    own = {known.name for known in workload.metrics} | {"wall_s", "cpu_s"}
    if shared := [metric for metric in metrics if metric not in own]:
        return f"{shared[0]} is of the whole process, which a crossover shares"
    if taken >= _MOST_LAYOUTS:
        return f"a crossover has at most {_MOST_LAYOUTS} layouts"
    return None


def _not_in_turns(
    arm: Treatment, baseline: Treatment, workload: Workload, values: Mapping[str, ParameterValue], taken: int
) -> str | None:
    """Why an arm cannot be resident beside its baseline, or None."""
    if not isinstance(workload, TakingTurns):
        return f"{workload.name} is no workload whose arms can be resident together and take turns ({SEQUENTIAL})"
    if (refused := workload.turns_refused(values)) is not None:
        return f"{refused} ({SEQUENTIAL})"
    if shared := sorted({*arm.parameters, *baseline.parameters} & {*_shared(workload, values)}):
        return f"{shared[0]} must be the same in all arms that take turns"
    if isinstance(workload, Direct):  # it takes its memory while it works
        if differing := _differing(arm.knobs, baseline.knobs):
            return f"commands that take turns have one machine-wide setting, and {differing}"
    elif isinstance(workload, FixedWork) and not (differing := _differing(arm.knobs, baseline.knobs)):
        pass  # nothing is turned
    elif isinstance(workload, FixedWork) and not workload.filled(values):
        return f"its servers take their memory while they are asked, under one machine-wide setting, and {differing}"
    elif "process" in (arm.mechanism, baseline.mechanism):
        return f"the page settings are turned while arms are started, which needs root ({SEQUENTIAL})"
    elif differing := _differing(*(lasting(each.knobs) for each in (arm, baseline))):
        return f"it would have to go on while the arms take turns, under one setting, and {differing}"
    if taken >= _MOST_LAYOUTS:
        return f"at most {_MOST_LAYOUTS} arms take turns"
    return None


def _shared(workload: TakingTurns, values: Mapping[str, ParameterValue]) -> Iterable[str]:
    """The parameters that arms cannot have of their own: of the one client, or of the time or work that all have in
    turns.
    """
    if isinstance(workload, Visited) and workload.visited(values):
        return (name for name in values if name not in workload.of_servers)
    return ("duration", "lead", "transactions")


def lasting(knobs: Mapping[str, str]) -> dict[str, str]:
    """Those that matter not only while memory is taken."""
    return {
        path: value
        for path, value in knobs.items()
        if not path.startswith(f"{THP}/") or path.startswith(f"{THP}/khugepaged/")
    }


def quiet(knobs: Iterable[str]) -> dict[str, str]:
    """The setting under which nobody's pages change any more, of those knobs that say how large pages may be: all are
    off, so that khugepaged is too. What has huge pages keeps them, and what is mapped anew has base pages.

    Source: Documentation/admin-guide/mm/transhuge.rst.
    """
    return {path: "never" for path in knobs if path.startswith(f"{THP}/") and path.endswith("enabled")}


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """The first knob in which two treatments differ, in words; empty when they agree."""
    for path in sorted({*one, *other}):
        if one.get(path) != other.get(path):
            here, there = one.get(path, "as found"), other.get(path, "as found")
            return f"{path} is {here} here, {there} for the baseline"
    return ""
