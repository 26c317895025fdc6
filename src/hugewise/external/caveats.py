"""How measurements made elsewhere are laid out, and what such a layout cannot support.

A verdict rests on two things: replicates, and a coin that kept everything else from going with the arm. Each caveat
says which of them is missing, and by how much where the data show it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from hugewise.external.reader import Labels, Series
from hugewise.stats.method import Integers, Numbers

LayoutKind = Literal["randomised blocks", "blocks", "unpaired"]
Threat = Literal["drift", "coin", "replication", "confounded", "missing"]

_CHANCE = 1e-4  # an order as regular as this is none that a coin made
_TOLERATED = 0.01  # share of values that may be missing before no verdict is given (as in a study)


class Caveat(msgspec.Struct, frozen=True):
    """What the layout cannot support. `fatal`: no verdict, and not even a suggestion, can be drawn."""

    threat: Threat
    sentence: str
    fatal: bool = False


class DataLayout(msgspec.Struct, frozen=True):
    """Of one comparison. `replicates` is what a statistic may count: pairs, runs, or values."""

    kind: LayoutKind
    caveats: tuple[Caveat, ...]

    @property
    def carries_verdict(self) -> bool:
        return self.kind == "randomised blocks" and not self.caveats

    @property
    def fatal(self) -> Caveat | None:
        return next((one for one in self.caveats if one.fatal), None)


class Paired(msgspec.Struct, frozen=True):
    """Values of an arm and its baseline by block, in the order of the blocks; NaN where a side failed.

    differences     log(arm) - log(baseline); infinite where one side failed, 0 where both did
    arm_first       where the order is known: whether the arm was first in the block
    sessions        number of each pair's session; None: not known
    incomplete      blocks without a value of both sides; `repeated`: blocks with more than one of a side
    """

    arm: Numbers
    baseline: Numbers
    differences: Numbers
    failures_arm: int
    failures_baseline: int
    arm_first: NDArray[np.bool_] | None
    sessions: Integers | None
    incomplete: int
    repeated: int


def pair(arm: Series, baseline: Series) -> Paired | None:
    """The pairs of two series by block; None where a side has no blocks, or a value that has no ratio.

    Blocks stand in the order in which they began where the order is known, else in that of their labels.
    """
    if arm.block is None or baseline.block is None:
        return None
    over, over_repeated = _by_block(arm)
    under, under_repeated = _by_block(baseline)
    shared = [block for block in over if block in under]
    starts = {block: min(_at(arm.order, over[block]), _at(baseline.order, under[block])) for block in shared}
    ordered = arm.order is not None and baseline.order is not None
    shared.sort(key=lambda block: (starts[block], block) if ordered else (0.0, block))
    places = [(over[block], under[block]) for block in shared]
    first, second = (np.array([place[side] for place in places], dtype=np.int64) for side in (0, 1))
    a, b = arm.values[first], baseline.values[second]
    a_failed = np.zeros(len(a), np.bool_) if arm.failed is None else arm.failed[first]
    b_failed = np.zeros(len(b), np.bool_) if baseline.failed is None else baseline.failed[second]
    known = (np.isfinite(a) | a_failed) & (np.isfinite(b) | b_failed)
    a, b, a_failed, b_failed = a[known], b[known], a_failed[known], b_failed[known]
    first, second = first[known], second[known]
    if (a[~a_failed] <= 0).any() or (b[~b_failed] <= 0).any():
        return None
    bad = -1.0 if arm.metric.better == "higher" else 1.0
    with np.errstate(invalid="ignore"):
        differences = np.log(np.where(a_failed, 1.0, a)) - np.log(np.where(b_failed, 1.0, b))
    differences[a_failed & ~b_failed] = bad * math.inf
    differences[b_failed & ~a_failed] = -bad * math.inf
    differences[a_failed & b_failed] = 0.0
    return Paired(
        arm=np.where(a_failed, np.nan, a),
        baseline=np.where(b_failed, np.nan, b),
        differences=differences,
        failures_arm=int(a_failed.sum()),
        failures_baseline=int(b_failed.sum()),
        arm_first=None if arm.order is None or baseline.order is None else arm.order[first] < baseline.order[second],
        sessions=arm.session[first] if arm.session is not None else None,
        incomplete=len(over.keys() | under.keys()) - len(a),
        repeated=over_repeated + under_repeated,
    )


def examine(arm: Series, baseline: Series, paired: Paired | None, *, randomised: bool, same_source: bool) -> DataLayout:
    """The layout of one comparison. `same_source`: orders of the two series are on one scale."""
    caveats = [*_missing(arm), *_missing(baseline), *_shared(arm, baseline)]
    if paired is None or not len(paired.differences):
        caveats += [*_runs(arm, baseline), _order(arm, baseline, same_source=same_source)]
        return DataLayout("unpaired", tuple(caveats))
    caveats += _blocks(paired, arm.arm or "", randomised=randomised)
    return DataLayout("randomised blocks" if randomised else "blocks", tuple(caveats))


def _blocks(paired: Paired, name: str, *, randomised: bool) -> Iterator[Caveat]:
    if randomised:
        yield from _coin(paired, name)
    else:
        yield Caveat(
            "coin",
            "Values are paired by block, but nothing says that a coin chose the order within the blocks: what always "
            "goes with the first, or with the second, goes with its arm. If one did, say --randomised.",
        )
    if paired.repeated:
        yield Caveat(
            "replication",
            f"{paired.repeated} values are a further one of the same arm in the same block; the first counts.",
        )
    if paired.incomplete > _TOLERATED * (len(paired.differences) + paired.incomplete):
        yield Caveat(
            "missing",
            f"{paired.incomplete} blocks lack a value of one side: if they are missing because of how they went, the "
            "rest is a selection.",
        )


def _by_block(series: Series) -> tuple[dict[int, int], int]:
    """First place of each block in the series, and how many values are further ones."""
    found: dict[int, int] = {}
    assert series.block is not None
    for place, block in enumerate(series.block.tolist()):
        found.setdefault(block, place)
    return found, len(series.values) - len(found)


def _at(order: Numbers | None, place: int) -> float:
    return math.inf if order is None else float(order[place])


def _missing(series: Series) -> Iterator[Caveat]:
    failed = np.zeros(len(series.values), np.bool_) if series.failed is None else series.failed
    count = int((~np.isfinite(series.values) & ~failed).sum())
    if count > _TOLERATED * len(series.values):
        yield Caveat(
            "missing",
            f"{count} of {len(series.values)} values of {series.arm} are missing: if that depends on how the run went "
            "(a time-out, a crash), what is left is a selection.",
        )
    if failed.any() and series.block is None:
        yield Caveat(
            "missing",
            f"{int(failed.sum())} of {len(series.values)} runs of {series.arm} failed; their times are left out of all "
            "figures, which describe successful runs only.",
        )


def _shared(arm: Series, baseline: Series) -> Iterator[Caveat]:
    """Slots and sessions that go with the arm."""
    never = f"{arm.arm} and {baseline.arm} never shared a"
    if _apart(arm.slot, baseline.slot):
        yield Caveat(
            "confounded",
            f"{never} slot (CPU, VM, machine): a difference between the slots cannot be told from one between the "
            "arms, however many values there are.",
            fatal=True,
        )
    if _apart(arm.session, baseline.session):
        yield Caveat(
            "confounded",
            f"{never} session (boot, build, allocation): what differs between sessions goes with the arm.",
        )


def _apart(mine: Labels | None, other: Labels | None) -> bool:
    return mine is not None and other is not None and not set(mine.tolist()) & set(other.tolist())


def _coin(paired: Paired, name: str) -> Iterator[Caveat]:
    """Whether the order looks like one that a coin made, where it is known."""
    if paired.arm_first is None or len(paired.arm_first) < 2:
        return
    first, n = int(paired.arm_first.sum()), len(paired.arm_first)
    turns = int((paired.arm_first[1:] != paired.arm_first[:-1]).sum())
    if _lopsided(first, n) < _CHANCE:
        yield Caveat(
            "coin",
            f"{name} was first in {first} of {n} blocks: no fair coin does that. Whatever goes with being first goes "
            "with the arm.",
        )
    elif _lopsided(turns, n - 1) < _CHANCE:
        yield Caveat(
            "coin",
            f"The order within the blocks changes {turns} times in {n} blocks: a pattern, not a coin. A rhythm of the "
            "machine that fits it would go with the arm.",
        )


def _lopsided(count: int, n: int) -> float:
    """Chance of a split as uneven as this from a fair coin."""
    from scipy.special import bdtr  # noqa: PLC0415  (slow to load)

    return min(1.0, 2 * float(bdtr(min(count, n - count), n, 0.5)))


def _runs(arm: Series, baseline: Series) -> Iterator[Caveat]:
    """Values that are parts of the same run are no replicates."""
    counts = {
        str(one.arm): (len(np.unique(one.run)), len(one.values)) for one in (arm, baseline) if one.run is not None
    }
    within = [
        f"{values} values of {name} come from {runs:,} run{'' if runs == 1 else 's'}"
        for name, (runs, values) in counts.items()
        if runs < values
    ]
    if within:
        yield Caveat(
            "replication",
            f"Pseudo-replication: {', '.join(within)}. Parts of one run share its memory layout, its place on the "
            "machine and its moment: the run is the replicate, not its parts.",
        )
    if single := " and of ".join(name for name, (runs, _) in counts.items() if runs == 1):
        sentence = f"There is one run of {single}: nothing shows how far another run would lie from it."
        yield Caveat("replication", sentence, fatal=True)
    known = [(str(one.arm), np.isfinite(one.values).sum()) for one in (arm, baseline) if one.run is None]
    if few := " and of ".join(name for name, count in known if count < 2):
        yield Caveat("replication", f"There is one value of {few}: nothing shows its spread.", fatal=True)


def _order(arm: Series, baseline: Series, *, same_source: bool) -> Caveat:
    unpaired = "The values are unpaired: nothing says which of them met the same state of the machine."
    if arm.order is None or baseline.order is None or not same_source:
        return Caveat(
            "drift",
            f"{unpaired} Their order between the arms is not known either: drift of the machine, and whatever else "
            "changed between the two recordings, goes into the difference.",
        )
    order = np.concatenate([arm.order, baseline.order])
    mine = np.arange(len(order)) < len(arm.order)
    sorted_ = mine[np.argsort(order, kind="stable")]
    switches = int((sorted_[1:] != sorted_[:-1]).sum())
    if switches == 1:
        first, second = (arm.arm, baseline.arm) if sorted_[0] else (baseline.arm, arm.arm)
        return Caveat(
            "drift",
            f"All values of {first} were taken before all values of {second} (AAAA..BBBB): there is no defence "
            "against drift. In measurements of ours this layout found a difference that did not exist in 71-86% of "
            "cases, at a nominal 5%.",
        )
    return Caveat(
        "drift",
        f"{unpaired} The arms took turns {switches} times in {len(order)} values; whether by a coin is not known.",
    )
