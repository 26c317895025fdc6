"""An arm against the baseline of measurements made elsewhere, as far as their layout carries it.

A verdict needs two things: replicates, and a coin that separates the arm from everything else. Each `Caveat` names what
is missing, and by how much where the data show it. Randomised blocks, declared as such, are judged by a run's own
method (`stats.sequential`), which holds however often somebody looked. All other data get Welch's estimate (or
Student's of pairs) with its assumptions by name: no verdict, no p, and no suggestion of either.

`ExternalResults` is the documented JSON of `hugewise analyze`, and all that its reports are made from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from hugewise.errors import UserError
from hugewise.external.reader import Labels, Series
from hugewise.model.metric import Metric
from hugewise.model.pages import PageTarget
from hugewise.model.reason import Crossed, Known, Reason
from hugewise.model.results import Reach, Tier, Verdict
from hugewise.model.trial import Attempt, Block, Delivery
from hugewise.stats.classical import Figures
from hugewise.stats.method import Contrast, Integers, Numbers

LayoutKind = Literal["randomised blocks", "blocks", "unpaired"]
Threat = Literal["drift", "coin", "replication", "confounded", "missing"]

_CHANCE = 1e-4  # an order as regular as this is none that a coin made
_TOLERATED = 0.01  # share of values that may be missing before no verdict is given (as in a study)


class Caveat(msgspec.Struct, frozen=True):
    """Limit of what the data's layout supports. `fatal`: the numbers do not even estimate a difference of the arms."""

    threat: Threat
    sentence: str
    fatal: bool = False


class DataLayout(msgspec.Struct, frozen=True):
    """Layout of one comparison's data. `replicates` is what a statistic may count: pairs, runs, or values."""

    kind: LayoutKind
    caveats: tuple[Caveat, ...]

    @property
    def carries_verdict(self) -> bool:
        return self.kind == "randomised blocks" and not self.caveats

    @property
    def fatal(self) -> Caveat | None:
        return next((caveat for caveat in self.caveats if caveat.fatal), None)


class Paired(msgspec.Struct, frozen=True):
    """Values of an arm and its baseline by block, in the order of the blocks; NaN where a side failed.

    differences     log(arm) - log(baseline); infinite where one side failed, 0 where both did
    arm_first       where the order is known: whether the arm was first in the block
    incomplete      blocks without a value of both sides; `repeated`: blocks with more than one of a side
    """

    arm: Numbers
    baseline: Numbers
    differences: Numbers
    failures_arm: int
    failures_baseline: int
    arm_first: NDArray[np.bool_] | None
    incomplete: int
    repeated: int


def pair(arm: Series, baseline: Series) -> Paired | None:
    """Return the pairs of two series in the blocks' order; None without blocks, or for a value without ratio."""
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
        incomplete=len(over.keys() | under.keys()) - len(a),
        repeated=over_repeated + under_repeated,
    )


def examine(arm: Series, baseline: Series, paired: Paired | None, *, randomised: bool, same_source: bool) -> DataLayout:
    """Return the layout of one comparison. `same_source`: orders of the two series are on one scale."""
    caveats = [*_missing(arm), *_missing(baseline), *_confounded(arm, baseline)]
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
    places: dict[int, int] = {}
    assert series.block is not None
    for place, block in enumerate(series.block.tolist()):
        places.setdefault(block, place)
    return places, len(series.values) - len(places)


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


def _confounded(arm: Series, baseline: Series) -> Iterator[Caveat]:
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
    from scipy.special import bdtr  # noqa: PLC0415  (slow to load)

    return min(1.0, 2 * float(bdtr(min(count, n - count), n, 0.5)))


def _runs(arm: Series, baseline: Series) -> Iterator[Caveat]:
    # values that are parts of the same run are no replicates
    counts = {
        str(side.arm): (len(np.unique(side.run)), len(side.values)) for side in (arm, baseline) if side.run is not None
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
    known = [(str(side.arm), np.isfinite(side.values).sum()) for side in (arm, baseline) if side.run is None]
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


@dataclass(frozen=True)
class AnalysisPlan:
    """Decisions about the analysis; `budget` is the number of pairs declared before the first one, or None."""

    confidence: float = 0.99
    margin: float = 0.005
    baseline: str | None = None
    randomised: bool = False
    budget: int | None = None
    metrics: tuple[str, ...] = ()


class TierLine(msgspec.Struct, frozen=True):
    """Reach of a statement: its name, and what these data show at that reach. Ratios; None where they carry nothing."""

    name: Reach
    low: float | None
    high: float | None
    sentence: Reason


class ExternalComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Arm against the baseline; all ratios are arm/baseline.

    n            replicates that the statistic counts: pairs, or (for Welch) the smaller side's effective number
    verdict      better, worse, equivalent, undecided; `none` where the layout carries no verdict
    shared       correlation of the logarithms within pairs: what pairing takes out
    """

    arm: str
    baseline: str
    method: str
    estimand: str
    n: float
    ratio: float | None
    low: float | None
    high: float | None
    confidence: float
    verdict: Verdict
    reason: Reason
    assumptions: tuple[str, ...]
    layout: DataLayout
    tiers: tuple[TierLine, ...] = ()
    shared: float | None = None
    failures_arm: int = 0
    failures_baseline: int = 0


class ArmFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Arm: its figures over successful runs, and what stands behind them.

    runs             distinct program runs that the values come from; None: each value is one
    run_means        figures of the runs' means, where values are parts of runs and there are two runs or more
    session_share    variance component between sessions, as a share; None where sessions are not known
    sampled          at most 1,500 values in time order, for drawing: (place, value)
    """

    arm: str
    sources: tuple[str, ...]
    missing: int
    failed: int
    order_known: bool
    runs: int | None
    figures: Figures
    run_means: Figures | None
    session_share: float | None
    sampled: tuple[tuple[int, float], ...]
    notes: tuple[str, ...]


class MetricResults(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on one metric."""

    metric: Metric
    baseline: str
    arms: tuple[ArmFigures, ...]
    comparisons: tuple[ExternalComparison, ...]


class ExternalResults(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `hugewise analyze`: the documented JSON, and what its reports are made from."""

    format: int = 1
    files: tuple[str, ...]
    formats: tuple[str, ...]
    confidence: float
    margin: float
    randomised: bool
    budget: int | None
    metrics: tuple[MetricResults, ...]
    others: tuple[str, ...]  # metrics in the files that were not asked about


_FEWEST_FOR_ORDER = 50  # values below which an autocorrelation is noise
_MOST_BLOCKS = 30_000  # that the exact test is inverted over


def compare(
    arm: Series, base: Series, known: tuple[ArmFigures, ArmFigures], plan: AnalysisPlan, alpha: float
) -> ExternalComparison:
    """Return the comparison at error rate `alpha`, its share of the plan's. Raises UserError for wrong declarations."""
    paired = pair(arm, base)
    same = arm.source == base.source or arm.own_arm
    layout = examine(arm, base, paired, randomised=plan.randomised, same_source=same)
    if layout.kind == "unpaired":
        layout = msgspec.structs.replace(layout, caveats=(*layout.caveats, *_dependent(known)))
    if plan.randomised and (paired is None or not len(paired.differences)):
        no_pairs = "--randomised says that a coin chose the order within blocks, but no block holds both arms"
        raise UserError(f"{no_pairs}: {arm.arm} against {base.arm}", hint="name the column of blocks with --block")
    if paired is not None and len(paired.differences):
        own = _exact((arm, base), layout, plan, alpha) if plan.randomised else _student(paired, layout, alpha)
        own |= {
            "shared": _shared(paired),
            "failures_arm": paired.failures_arm,
            "failures_baseline": paired.failures_baseline,
        }
    else:
        own = _welch(known, layout, alpha)
    return ExternalComparison(
        arm=str(arm.arm),
        baseline=str(base.arm),
        confidence=1 - alpha,
        layout=layout,
        **own,
    )


def effective(arm: ArmFigures) -> float:
    """Return the effective number of independent values of an arm, by its autocorrelation; n where unknown."""
    dependence = arm.figures.dependence
    return float(arm.figures.n) if dependence is None or arm.figures.n < _FEWEST_FOR_ORDER else dependence.effective


def _dependent(known: Sequence[ArmFigures]) -> Iterator[Caveat]:
    for arm in known:
        n, worth = arm.figures.n, effective(arm)
        if worth < 0.8 * n:
            yield Caveat(
                "replication",
                f"The {n:,} values of {arm.arm} depend on those before them: for the mean they are worth "
                f"{worth:,.0f} independent ones, which makes its margin of error {math.sqrt(n / worth):.1f} times what "
                "n suggests.",
            )


def _exact(sides: tuple[Series, Series], layout: DataLayout, plan: AnalysisPlan, alpha: float) -> dict[str, Any]:
    from hugewise.stats.sequential import Sequential  # noqa: PLC0415

    arm, base = sides
    assert arm.block is not None and base.block is not None
    if (number := len(np.union1d(arm.block, base.block))) > _MOST_BLOCKS:
        raise UserError(
            f"--randomised: there are {number:,} blocks of {arm.arm} and {base.arm}, and {_MOST_BLOCKS:,} at most are"
            " judged exactly",
            hint=f"give the first {_MOST_BLOCKS:,} in the order in which they were run; or leave --randomised out, for"
            " an estimate",
        )
    budget, played = plan.budget, list(closed_blocks(arm, base))
    if budget is not None and len(played) > budget:
        raise UserError(
            f"--budget {budget}: there are {len(played)} blocks of {arm.arm} and {base.arm}",
            hint="the budget is what was declared before the first block; leave it out if nothing was",
        )
    method = Sequential(
        contrast(arm, base),
        planned=budget or len(played),
        alpha=alpha,
        margin=plan.margin,
        open_ended=budget is None,
    )
    for block in played:
        method.take(block)
    found = method.comparison()
    verdict, reason = found.verdict, found.reason
    if not layout.carries_verdict:
        verdict, reason = "none", _why_not(layout)
    elif arm.metric.better == "neutral":
        verdict, reason = "none", Known("no direction")
    elif isinstance(reason, Crossed):
        reason = msgspec.structs.replace(reason, pair=None)  # that it stopped there, nobody says
    return {
        "method": "sequential sign-flip test on randomised blocks",
        "estimand": "typical ratio of a pair (Hodges and Lehmann)",
        "n": found.n,
        "ratio": found.ratio if found.ratio is not None and 0 < found.ratio < math.inf else None,
        "low": found.low,
        "high": found.high,
        "verdict": verdict,
        "reason": reason,
        "assumptions": (
            "a fair coin chose the order (and the slot) in each block, as was declared",
            "blocks stand in the order in which they were run",
            "open-ended: holds however often one looked and whenever one stopped"
            if budget is None
            else f"a budget of {budget:,} pairs was declared before the first; holds however often one looked",
        ),
        "tiers": tuple(_tier(tier, sessions=arm.session is not None) for tier in found.tiers),
    }


# Randomised blocks of elsewhere as a study's closed blocks, so that a run's own method judges them.
_CELL = "elsewhere"
ATTEMPT = Attempt(
    run="",
    session=0,
    block=0,
    cell=_CELL,
    arm="",
    baseline=False,
    policy="",
    mechanism="process",
    order=0,
    slot=0,
    number=1,
    state="accepted",
    reason=None,
    started=0.0,
    ended=0.0,
    wall_s=None,
    cpu_s=None,
    overhead_s=None,
    steal_s=0.0,
    pressure={},
    boot_id="",
    delivery=Delivery(target=PageTarget("any", 0), delivered=None, share=None, coverage={}, proof="ranges", source=""),
    knobs={},
    metrics={},
    absent={},
    disturbances=(),
    environment_pad=0,
    peak_bytes=None,
    pool_bytes=0,
    exit_code=None,
    signal=None,
)


def contrast(arm: Series, baseline: Series) -> Contrast:
    """Return the comparison; of its pages nothing is known, and nothing is demanded."""
    return Contrast(_CELL, str(arm.arm), str(baseline.arm), arm.metric, proof_demanded=False)


def closed_blocks(arm: Series, baseline: Series) -> Iterator[Block]:
    """Yield every block of two series in order; a missing value, or row, of a side is absent."""
    sides = [(series, _places(series)) for series in (arm, baseline)]
    labels = list({label: None for _, places in sides for label in places})
    if arm.order is not None and baseline.order is not None:
        labels.sort(key=lambda label: (min(_began(*side, label) for side in sides), label))
    else:
        labels.sort()
    for number, label in enumerate(labels, 1):
        at = sides[0][1].get(label)
        session = 0 if arm.session is None or at is None else int(arm.session[at])
        yield Block(
            number=number,
            cell=_CELL,
            state="complete",
            reason=None,
            attempts=tuple(_attempt(series, places.get(label), number, session) for series, places in sides),
        )


def _places(series: Series) -> dict[int, int]:
    assert series.block is not None
    return {block: place for place, block in reversed([*enumerate(series.block.tolist())])}


def _began(series: Series, places: dict[int, int], label: int) -> float:
    assert series.order is not None
    return float(series.order[places[label]]) if label in places else math.inf


def _attempt(series: Series, place: int | None, block: int, session: int) -> Attempt:
    failed = place is not None and series.failed is not None and bool(series.failed[place])
    value = None if place is None or failed or not np.isfinite(series.values[place]) else float(series.values[place])
    name = series.metric.name
    return msgspec.structs.replace(
        ATTEMPT,
        arm=str(series.arm),
        block=block,
        session=session,
        state="failed" if failed else "accepted",
        metrics={name: value},
        absent={} if value is not None else {name: "the files have no value"},
    )


def _tier(tier: Tier, *, sessions: bool) -> TierLine:
    unknown = tier.name == "beyond these sessions" and not sessions
    return TierLine(tier.name, tier.low, tier.high, Known("no sessions") if unknown else tier.reason)


def _student(paired: Paired, layout: DataLayout, alpha: float) -> dict[str, Any]:
    from hugewise.stats.paired import paired as tests_of  # noqa: PLC0415

    finite = paired.differences[np.isfinite(paired.differences)]
    tests = tests_of(finite.tolist())
    interval = tests.interval(alpha) if tests is not None and len(finite) > 1 else None
    low, high = interval or (-math.inf, math.inf)
    centre = None if tests is None else tests.centre
    return {
        "method": "Student's t on pairs, at this fixed n",
        "estimand": "ratio of geometric means",
        "n": len(finite),
        "ratio": None if centre is None else math.exp(centre),
        "low": _exp(low),
        "high": _exp(high),
        "verdict": "none",
        "reason": _why_not(layout),
        "assumptions": (
            "differences of pairs are independent of each other and their mean is near normal",
            "nothing but the arm goes with the order within the pairs",
            "the number of pairs was chosen before looking: no guarantee for anybody who looked and stopped",
        ),
    }


def _welch(known: tuple[ArmFigures, ArmFigures], layout: DataLayout, alpha: float) -> dict[str, Any]:
    from hugewise.stats.paired import SampleMean, welch  # noqa: PLC0415

    samples, counted = [], []
    for arm in known:
        if arm.run_means is not None and arm.run_means.sd is not None:
            samples.append(SampleMean(arm.run_means.mean, arm.run_means.sd, arm.run_means.n))
            counted.append(f"{arm.run_means.n:,} runs of {arm.arm}, each by its mean")
            continue
        shown, n = arm.figures, effective(arm)
        worth = f", worth {n:,.0f} independent ones by their autocorrelation" if n < 0.95 * shown.n else ""
        samples.append(SampleMean(shown.mean, shown.sd or 0.0, n))
        counted.append(f"{shown.n:,} values of {arm.arm}{worth}")
    single = [arm.arm for arm in known if arm.runs == 1 or arm.figures.n < 2]
    ratio = None if single else welch(samples[0], samples[1], 1 - alpha)
    unknown = " and ".join(arm.arm for arm in known if not arm.order_known)
    unchecked = f" (of {unknown} the order in time is not known, so it cannot be checked)" if unknown else ""
    return {
        "method": "Welch's t, at this fixed n",
        "estimand": "ratio of arithmetic means",
        "n": min(sample.n for sample in samples),
        "ratio": samples[0].mean / samples[1].mean if min(sample.mean for sample in samples) > 0 else None,
        "low": None if ratio is None else ratio.low,
        "high": None if ratio is None else ratio.high,
        "verdict": "none",
        "reason": _why_not(layout),
        "assumptions": (
            f"what is counted: {counted[0]}; {counted[1]}",
            f"these are independent, within each arm and between the arms{unchecked}",
            "nothing but the arm differs between the two sets of runs",
            "their number was chosen before looking: no guarantee for anybody who looked and stopped",
        ),
    }


def _why_not(layout: DataLayout) -> str:
    chosen = layout.fatal or next(iter(layout.caveats), None)
    return chosen.sentence if chosen is not None else "No coin is known to have chosen the order"


def _shared(paired: Paired) -> float | None:
    good = np.isfinite(paired.arm) & np.isfinite(paired.baseline)
    if int(good.sum()) < 10:
        return None
    first, second = np.log(paired.arm[good]), np.log(paired.baseline[good])
    if not (first.std() > 0 and second.std() > 0):
        return None
    return float(np.corrcoef(first, second)[0, 1])


def _exp(value: float) -> float | None:
    return math.exp(value) if math.isfinite(value) and abs(value) < 700 else None


def usable(series: Series) -> NDArray[np.bool_]:
    """Return which values come from a successful run."""
    good = np.isfinite(series.values)
    return good if series.failed is None else good & ~series.failed


def grouped(labels: Integers, values: Numbers) -> list[Numbers]:
    """Return the values of each label, in the order of the labels."""
    order = np.argsort(labels, kind="stable")
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    return np.split(values[order], cuts)
