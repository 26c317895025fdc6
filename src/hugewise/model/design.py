"""Designs: what each can lay out at once, and the question that it answers. Pure.

sequential   the arms of a block one after the other, in the coin's order (and on the coin's CPU)
interleaved  the processes of all arms are there at once, and one arm at a time works for a slice of 50 ms while all
             others are frozen: drift that is slower than a round of turns cancels, and each arm finds the caches as the
             others left them
duet         in stored runs alone, and guests that run together: all arms of a block at the same time, each on a CPU of
             its own (Bulej et al., ICPE 2020)
crossover    in stored runs alone: one process held the memory of all arms, and worked on them in turns
resident     in stored runs alone: interleaved, when this design had to be calibrated
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from hugewise.model.pages import THP
from hugewise.model.policy import ThpDisable, Treatment
from hugewise.model.procedure import Places, Step
from hugewise.model.reason import UnderDesign, Withheld
from hugewise.model.results import Comparison
from hugewise.model.results import Kind as Kind  # noqa: PLC0414  (designs are named here)
from hugewise.model.workload import Direct, Filled, Launch, ParameterValue, Workload

# What a ratio means beyond "arm/baseline": nothing for processes of their own.
ESTIMANDS: Mapping[Kind, str] = {
    "sequential": "",
    "duet": "under mutual contention (the arms ran at the same time)",
    "crossover": "switching within one process, with all layouts resident",
    "resident": "with the processes of all arms resident and one of them working at a time",
    "interleaved": "of arms side by side, which take turns of some milliseconds",
}
WITHIN_A_BOOT = "within a boot of the guest that its attempts share"
SEQUENTIAL = '[design] kind = "sequential"'
"""Study's setting for a cell that no other design can lay out."""

# Freezing and thawing take some milliseconds on a busy machine; and some seconds more do no harm.
_TO_SWITCH_S, _SPARE_S = 0.01, 2.0
_SCAN_SLEEP, _FOREVER_MS = f"{THP}/khugepaged/scan_sleep_millisecs", str((1 << 32) - 1)
MOST_IN_TURNS = 10
"""Processes that take turns at most: each is one digit in the order of turns."""


@runtime_checkable
class TakingTurns(Workload, Protocol):
    """A workload whose attempts can take turns with those of other arms, each frozen while others have theirs."""

    def turns_refused(self, values: Mapping[str, ParameterValue]) -> str | None:
        """Return why attempts with these values cannot take turns with those of other arms, or None."""
        ...


@runtime_checkable
class Visited(TakingTurns, Protocol):
    """A staged workload of which one client visits the servers of all arms in turns, and none is frozen.

    of_servers  the parameters that arms may have of their own: all others are the one client's
    """

    of_servers: Collection[str]

    def visited(self, values: Mapping[str, ParameterValue]) -> bool:
        """Return whether one client visits the arms in turn with these values; else the arms are frozen in turn."""
        ...

    def fill(self, values: Mapping[str, ParameterValue], places: Places) -> tuple[Step, ...]:
        """Return the steps that fill an arm's own servers when they answer: untimed, under the arm's own treatment."""
        ...

    def visit(
        self,
        values: Mapping[str, ParameterValue],
        places: Sequence[Places],
        turns: str,
        slice_s: float,
        wash_out: float,
    ) -> Launch:
        """Return the timed client of all arms' servers.

        places    of each arm, in the order of the digits of `turns`
        turns     a digit a turn: whose servers are asked
        slice_s   about how many seconds a turn has; all have as many operations
        wash_out  the share of a turn, from its begin, that does not count
        """
        ...


@runtime_checkable
class FixedWork(TakingTurns, Filled, Protocol):
    """A staged workload whose timed command does its work and ends, and is timed as a whole. In turns it has as many as
    it needs, its servers with it; no part of it counts more than another.
    """


def faults_while_timed(workload: Workload, values: Mapping[str, ParameterValue]) -> bool:
    """Return whether an attempt takes its memory while it is timed: commands, but for micro-workloads that touch theirs
    before, and services without a fill.
    """
    return not workload.filled(values) if isinstance(workload, Filled) else isinstance(workload, Direct)


class Slicing(msgspec.Struct, frozen=True):
    """Turns of the arms of a resident block.

    arms      how many
    length    of a turn, in seconds
    wash_out  the share of it, from its begin, that does not count
    """

    arms: int
    length: float
    wash_out: float

    def rounds(self, counted: float) -> int:
        return max(1, math.ceil(counted / (self.length * (1 - self.wash_out)) - 1e-9))

    def idle(self, lead: float, counted: float) -> float:
        """Return seconds for which one is at rest while all have had a lead and take their turns; rather too many."""
        whole = self.arms * (lead + self.rounds(counted) * (self.length + _TO_SWITCH_S)) + _SPARE_S
        return max(0.0, whole - lead - counted)


def at_once(kind: Kind) -> bool:
    """Return whether all arms of a block need their memory at the same time."""
    return kind != "sequential"


def interleaved(kind: Kind) -> bool:
    """Return whether the arms of a block have processes of their own, and one arm at a time works."""
    return kind in ("resident", "interleaved")


def beside_its_own(cell: str, metric: str) -> str:
    """Return the key of a metric beside the cell's own, where reasons are kept by cell (no cell's name has a colon)."""
    return f"{cell}:{metric}"


def qualified(comparison: Comparison, kind: Kind, withheld: str | None, boots: int | None = None) -> Comparison:
    """Return the comparison with the question that the design answers, and without its verdict where that is withheld.

    `boots`: of how many boots of one guest its attempts were, where that stays; None where each has a machine anew, or
    is on this host.
    """
    condition = ESTIMANDS[kind]
    estimand = ", ".join(filter(None, (comparison.estimand, WITHIN_A_BOOT if boots is not None else "", condition)))
    if boots is not None or condition:
        reason = UnderDesign(comparison.reason, condition, boots)
        comparison = msgspec.structs.replace(comparison, estimand=estimand, reason=reason, design=kind)
    if withheld is None:
        return comparison
    reason_ = Withheld("calibration", withheld, comparison.reason)
    return msgspec.structs.replace(comparison, verdict="none", reason=reason_, reach=None)


def refusal(
    kind: Kind,
    arm: Treatment,
    baseline: Treatment,
    workload: Workload,
    values: Mapping[str, ParameterValue],
    *,
    taken: int,
) -> str | None:
    """Return why `arm` cannot be laid out beside its baseline, or None when it can. `taken`: how many arms (the
    baseline among them) have a place already.
    """
    if kind == "sequential":
        return None
    values = {**values, **arm.parameters}
    if not isinstance(workload, TakingTurns):
        return f"{workload.name} is no workload whose arms can take turns ({SEQUENTIAL})"
    if (refused := workload.turns_refused(values)) is not None:
        return f"{refused} ({SEQUENTIAL})"
    if shared := sorted({*arm.parameters, *baseline.parameters} & {*_shared(workload, values)}):
        return f"{shared[0]} must be the same in all arms that take turns"
    if faults_while_timed(workload, values):  # the knobs of an arm are turned for each of its turns
        if differing := _differing(*(lasting(each.knobs) for each in (arm, baseline))):
            return f"the arms take turns under one such setting, and {differing}"
    elif isinstance(workload, FixedWork) and not _differing(arm.knobs, baseline.knobs):
        pass  # nothing is turned
    elif "process" in (arm.mechanism, baseline.mechanism):
        return f"the page settings are turned while arms are started, which needs root ({SEQUENTIAL})"
    elif differing := _differing(*(lasting(each.knobs) for each in (arm, baseline))):
        return f"it would have to go on while the arms take turns, under one setting, and {differing}"
    if taken >= MOST_IN_TURNS:
        return f"at most {MOST_IN_TURNS} arms take turns"
    return None


def _shared(workload: TakingTurns, values: Mapping[str, ParameterValue]) -> Iterable[str]:
    if isinstance(workload, Visited) and workload.visited(values):
        return (name for name in values if name not in workload.of_servers)
    return ("duration", "lead", "transactions")


def lasting(knobs: Mapping[str, str]) -> dict[str, str]:
    """Return the knobs that matter also after memory was taken."""
    return {
        path: value
        for path, value in knobs.items()
        if not path.startswith(f"{THP}/") or path.startswith(f"{THP}/khugepaged/")
    }


class TurnSettings(msgspec.Struct, frozen=True):
    """The page settings of commands that take turns.

    shared       knobs that hold in all turns
    own          of each arm, the knobs that are turned for its turns: the same paths for all arms
    thp_disable  of each arm, PR_SET_THP_DISABLE in its processes
    """

    shared: Mapping[str, str]
    own: tuple[Mapping[str, str], ...]
    thp_disable: tuple[ThpDisable, ...]

    @property
    def without_khugepaged(self) -> bool:
        return _SCAN_SLEEP in self.shared


def turn_settings(treatments: Sequence[Treatment], found: Mapping[str, str], pmd: int | None) -> TurnSettings:
    """Return how commands under these treatments take turns, where the knobs were `found` so and a PMD maps `pmd`
    bytes.

    A frozen process has no page faults, so that each arm takes its memory under its own setting. Two things in the
    kernel could still carry the setting of one arm over to another:

    - Under `never` the kernel stops khugepaged, and changes vm.min_free_kbytes. An arm whose sizes are all `never`
      therefore has the sizes of another arm and PR_SET_THP_DISABLE, which has the same effect on its processes.
    - khugepaged would collapse the memory of a frozen arm under the setting of the arm whose turn it is. It sleeps
      instead: `scan_sleep_millisecs` is the highest that the kernel takes.

    Where one arm has huge pages of the PMD size and another only smaller ones, and no arm has huge pages of shared
    memory, `shmem_enabled` of the PMD size is `advise` in all turns, which keeps the kernel from stopping and starting
    khugepaged.

    Source: hugepage_pmd_enabled and start_stop_khugepaged in mm/khugepaged.c, Linux 6.18.
    """
    paths = sorted({path for treatment in treatments for path in treatment.knobs})
    knobs = [{path: treatment.knobs.get(path, found.get(path, "")) for path in paths} for treatment in treatments]
    disabled = [treatment.thp_disable for treatment in treatments]
    # The prctl also disables huge pages of shared memory.
    off = [_all_never({**found, **each}) and _no_shared({**found, **each}) for each in knobs]
    if not all(off):
        allowing = knobs[off.index(False)]
        for number, each in enumerate(knobs):
            if off[number]:
                each |= {path: value for path, value in allowing.items() if _is_size(path)}
                disabled[number] = "all"
    shared: dict[str, str] = {}
    if len(set(disabled)) > 1 or any(each != knobs[0] for each in knobs):
        shared = {_SCAN_SLEEP: _FOREVER_MS} if _SCAN_SLEEP in found else {}
        kept_on = f"{THP}/hugepages-{(pmd or 0) >> 10}kB/shmem_enabled"
        private = all(_no_shared({**found, **each}) for each in knobs)
        if kept_on in found and private and len({_has_khugepaged({**found, **each}, pmd) for each in knobs}) > 1:
            shared[kept_on] = "advise"
    differ = [path for path in paths if path not in shared and len({each[path] for each in knobs}) > 1]
    shared = {path: value for path, value in knobs[0].items() if path not in differ} | shared
    own = tuple({path: each[path] for path in differ} for each in knobs)
    return TurnSettings(shared, own, tuple(disabled))


def _is_size(path: str) -> bool:
    return path.startswith(f"{THP}/") and path.endswith("/enabled")


def _all_never(knobs: Mapping[str, str]) -> bool:
    top = knobs.get(f"{THP}/enabled", "never")
    sizes = [value for path, value in knobs.items() if _is_size(path) and path != f"{THP}/enabled"]
    if not sizes:  # a kernel before multi-size THP: the PMD size follows the top level
        return top == "never"
    return all(value == "never" or (value == "inherit" and top == "never") for value in sizes)


def _no_shared(knobs: Mapping[str, str]) -> bool:
    shared = {path: value for path, value in knobs.items() if path.endswith("/shmem_enabled")}
    top = shared.pop(f"{THP}/shmem_enabled", "never")
    off = ("never", "deny", *(("inherit",) if top in ("never", "deny") else ()))
    return top in ("never", "deny") and all(value in off for value in shared.values())


def _has_khugepaged(knobs: Mapping[str, str], pmd: int | None) -> bool:
    top = knobs.get(f"{THP}/enabled", "never")
    own = knobs.get(f"{THP}/hugepages-{(pmd or 0) >> 10}kB/enabled", "inherit")
    return (top if own == "inherit" else own) != "never"


def quiet(knobs: Iterable[str]) -> dict[str, str]:
    """Return the setting under which nobody's pages change any more, of those knobs that say how large pages may be:
    all are off, so that khugepaged is too. What has huge pages keeps them, and what is mapped anew has base pages.

    Source: Documentation/admin-guide/mm/transhuge.rst.
    """
    return {path: "never" for path in knobs if path.startswith(f"{THP}/") and path.endswith("enabled")}


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    for path in sorted({*one, *other}):
        if one.get(path) != other.get(path):
            here, there = one.get(path, "as found"), other.get(path, "as found")
            return f"{path} is {here} here, {there} for the baseline"
    return ""
