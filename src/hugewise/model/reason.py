"""Reasons for a verdict, or for none: the findings, with their figures.

`hugewise.report.reasons` makes the words of it, and nothing else does. A `str` stands where words are all that there
is: in what earlier versions stored, and in what a program or a machine said.
"""

from __future__ import annotations

from typing import Literal

import msgspec

TAG = "_reason"
"""The key by which a reason is told in what is stored."""


class Base(msgspec.Struct, frozen=True, tag_field=TAG, tag=True):
    """A reason: all that `Reason` names."""


class Lack(msgspec.Struct, frozen=True):
    """Lack of something in `count` of the `of` attempts (or blocks) of a side, with the most frequent cause `why`."""

    what: Literal["not delivered", "unproven", "absent", "not started", "late", "lost"]
    side: str
    metric: str
    count: int
    of: int
    why: str


class LeftOut(msgspec.Struct, frozen=True):
    """Reasons that take pairs out of the usable ones; kept-in pairs of which nothing is known."""

    lacks: tuple[Lack, ...] = ()
    unknown: Unknown | None = None


Fact = Literal[
    "budget used",
    "average open",
    "not crossed",
    "no pairs",
    "one side",
    "not excluded",
    "no change in interval",
    "beyond margin",
    "mean excludes no change",
    "other sign",
    "no test",
    "beside",
    "of its pairs",
    "failed session",
    "work unknown",
    "no sessions",
    "mean of pairs",
    "mean of sessions",
    "no policy",
    "no cell",
    "other family",
    "one level",
    "interval missing",
    "zero",
    "no work at first",
    "no work",
    "no direction",
    "emulated",
]


class Known(Base, frozen=True):
    """A reason without a figure."""

    fact: Fact


class NotJudged(Base, frozen=True):
    """The metric is better neither high nor low."""

    metric: str


class Absent(Base, frozen=True):
    """The metric is in no pair."""

    metric: str
    why: str


class NotPositive(Base, frozen=True):
    """A value without a logarithm."""

    metric: str
    value: float
    arm: str


class Lacking(Base, frozen=True):
    """Too many attempts lack something."""

    lacks: tuple[Lack, ...]


class FewPairs(Base, frozen=True):
    """Fewer pairs than planned; `least`: what a verdict takes at least, where there are fewer than that."""

    pairs: int
    planned: int
    lacks: tuple[Lack, ...] = ()
    least: int | None = None


class BudgetTooSmall(Base, frozen=True):
    """The planned pairs can decide nothing at this error rate."""

    pairs: int
    planned: int


class Crossed(Base, frozen=True):
    """The exact test of no difference has crossed, at this pair.

    average   the average over the run: the same direction, not known (`open`), the other one, or not made (None)
    apart     what was left out of the usable pairs, and counted against the claim; None where nothing was
    """

    pair: int | None
    average: Literal["agrees", "open", "contradicts"] | None = None
    apart: LeftOut | None = None


class WithinMargin(Base, frozen=True):
    """The whole interval lies within the margin; `average`: that of the mean too, with the tail counted in. `unseen`: a
    kind of run (a stall) may be that share of all and in none of these pairs; None in what earlier versions stored.
    """

    margin: float | None = None
    average: bool = False
    apart: LeftOut | None = None
    unseen: float | None = None


class MeanWithin(Base, frozen=True):
    """The interval of the mean lies within the margin; `bounded`: also if the share `unseen` of runs, which may be of a
    kind that is in none of these pairs, took twice as long.
    """

    unseen: float
    bounded: bool


class CoinOpen(Base, frozen=True):
    """Student's t claims what the coins of so many blocks do not bear out; `least`: the fewest whose coins could."""

    blocks: int
    least: int


class NotShown(Base, frozen=True):
    """The exact test has not crossed in so many pairs."""

    pairs: int


class NotWithAll(Base, frozen=True):
    """The usable pairs have crossed, and all pairs together have not."""

    apart: LeftOut


class NoOneEffect(Base, frozen=True):
    """The estimate lies outside of its interval."""

    crossed: bool = False


class Unknown(Base, frozen=True):
    """Kept-in pairs of which nothing is known; `broken_off`: as their block was not completed."""

    pairs: int
    broken_off: int


class Exactly(Base, frozen=True):
    """Test by the coin of each block alone; `apart`: on the usable pairs, where there are others."""

    apart: bool


class ByCounts(Base, frozen=True):
    """Verdict by counts that are the same in each of `boots` boots."""

    boots: int


class AverageOf(Base, frozen=True):
    """The average over the pairs, with an error of its own."""

    alpha: float


class OverSessions(Base, frozen=True):
    """The mean over sessions, with an error of its own."""

    sessions: int
    alpha: float


class FewForAverage(Base, frozen=True):
    """Too few pairs for the average; `least`: how many it takes, where that is known."""

    pairs: int
    least: int | None = None


class FewSessions(Base, frozen=True):
    """Too few sessions to say anything beyond them."""

    sessions: int
    least: int
    confidence: float


class FewToPlan(Base, frozen=True):
    """Too few pairs for a forecast, some with a failure."""

    pairs: int
    failures: int
    least: int


class Failures(Base, frozen=True):
    """Attempts failed in so many pairs: these are not equivalent, and have no average (`of`)."""

    pairs: int
    of: Literal["equivalence", "average"] = "equivalence"


class FewForInterval(Base, frozen=True):
    """Too few pairs for an interval; `constant`: all have the same ratio."""

    pairs: int
    constant: bool


class FailuresAlone(Base, frozen=True):
    """Nothing but failures tells the two apart, in so many pairs with one failure."""

    pairs: int
    few: bool


class NotKeptIn(Base, frozen=True):
    """Verdict of the usable pairs that does not hold with all pairs kept in: these say `whole`, or have another
    verdict.
    """

    usable: Reason
    whole: Reason


class OfUsable(Base, frozen=True):
    """Estimate and interval are of the usable pairs."""

    rest: Reason
    usable: int
    all: int


class SameCounts(Base, frozen=True):
    """Counts that are the same in every boot.

    needed   boots of each that show that they are different, or `within` the margin; None where these are enough
    unseen   boots that differ by more than the margin may be that share of all and none of these
    """

    arm: str
    arm_count: float
    baseline: str
    baseline_count: float
    boots: int
    within: float | None = None
    needed: int | None = None
    planned: int = 0
    unseen: float | None = None


class CountsVary(Base, frozen=True):
    """Counts of a side that differ from boot to boot (without a `side`: not every boot gave one), so that the
    sequential test judges.
    """

    rest: Reason
    side: str = ""
    least: float = 0.0
    most: float = 0.0


class MeanNeeds(Base, frozen=True):
    """A ratio of means takes 100 pairs without failure."""

    pairs: int


class SlowShare(Base, frozen=True):
    """The share of slow runs less the baseline's; None while it is not known."""

    share: tuple[float, float, float] | None
    crossed: bool


class WorstHundredth(Base, frozen=True):
    """Verdict on the worst hundredth of the runs."""

    crossed: bool


class Beaten(Base, frozen=True):
    """An arm of a screening that dropped out."""

    by: str
    pairs: int


class InFront(Base, frozen=True):
    """No other arm of the screening is better by more than the margin."""

    margin: float


class BestEstimate(Base, frozen=True):
    """The screening was over before it was sure."""


class NotClearlyBeaten(Base, frozen=True):
    """The screening was over before it was sure; the arm comes before the best one, and may be as good."""

    best: str


class NothingChosen(Base, frozen=True):
    """The screening could not choose."""

    why: Reason


class OfScreening(Base, frozen=True):
    """A screening claims nothing; what it says of the arm (None: it is not the one that goes on)."""

    said: Reason | None
    chosen: bool = False


class Withheld(Base, frozen=True):
    """There is a verdict, and it is not given: for the want of a `calibration`, or since the `work` differs."""

    why: Literal["calibration", "work"]
    said: Reason = ""
    rest: Reason = ""


class WorkDiffers(Base, frozen=True):
    """The arm did another amount of work than its baseline in these pairs."""

    arm: str
    baseline: str
    ratio: float
    pairs: int


class CarryOver(Base, frozen=True):
    """Bias by what a turn does to the next one, as ratios that are not excluded; None where these blocks bound none."""

    low: float | None
    high: float | None
    blocks: int


class UnderDesign(Base, frozen=True):
    """A design's question: what the ratio is one of, and of how many boots of one guest (None: of none that stays)."""

    rest: Reason
    condition: str = ""
    boots: int | None = None


class EValue(Base, frozen=True):
    """The adjusted e-value has reached the level, or is below it."""

    reached: bool
    level: float


class OverHosts(Base, frozen=True):
    """The verdict on a typical effect: p of no difference by Student's t over hosts, and by the signs of the hosts.

    fewest   hosts that a difference takes, where there are fewer; else 0
    """

    verdict: str
    p: float
    p_signs: float
    fewest: int = 0


class Differ(Base, frozen=True):
    """Runs that are no repetitions of one another: `what` they differ in."""

    what: str
    first: str
    second: str


class FewRuns(Base, frozen=True):
    """So many runs of each of two kinds do not show how far runs of one kind spread."""

    first: int
    second: int


class NoEstimate(Base, frozen=True):
    """Reason why a run has no estimate to be pooled."""

    why: Literal["no pair", "failed", "no spread", "method"]
    pairs: int = 0
    failures: int = 0
    method: str = ""


class FewSeconds(Base, frozen=True):
    """Too few whole seconds to tell how far a throughput moved."""

    seconds: int
    least: int


class NoVerdictOf(Base, frozen=True):
    """The run gives no verdict."""

    run: str
    why: Reason


class NoEValue(Base, frozen=True):
    """The run has no e-value of it."""

    run: str
    why: Reason


class OtherBaseline(Base, frozen=True):
    """The cell's baseline stands for another published arm than that of the claim (None: for none)."""

    baseline: str
    stands_for: str | None
    against: str


class NotInCell(Base, frozen=True):
    """The policy was not `run`, or not `compared`, in this cell."""

    policy: str
    what: Literal["run", "compared"]


class OneLevel(Base, frozen=True):
    """The parameter has one level here; `within`: one of those that the source speaks of."""

    parameter: str
    within: bool


class NotPlanned(Base, frozen=True):
    """Reason why an entry was left out of the run."""

    why: str


class NoMetric(Base, frozen=True):
    """No metric of the cell measures it."""

    wanted: tuple[str, ...]


class ZeroMedian(Base, frozen=True):
    """The median of this arm is 0, and there is no ratio to it."""

    arm: str


class Overlap(Base, frozen=True):
    """The intervals at two levels overlap."""

    first: str
    last: str


class Together(Base, frozen=True):
    """Several reasons."""

    parts: tuple[Reason, ...]


_OfPairs = Known | NotJudged | Absent | NotPositive | Lacking | FewPairs | BudgetTooSmall | Crossed | WithinMargin
_OfTest = MeanWithin | NotShown | NotWithAll | NoOneEffect
_OfReach = Unknown | Exactly | ByCounts | AverageOf | OverSessions | FewForAverage | FewSessions | FewToPlan
_OfSides = Failures | FewForInterval | FailuresAlone | NotKeptIn | OfUsable | SameCounts | CountsVary | CoinOpen
_OfScreening = Beaten | InFront | BestEstimate | NotClearlyBeaten | NothingChosen | OfScreening
_OfRuns = Withheld | WorkDiffers | CarryOver | UnderDesign | NoVerdictOf | NoEValue | Together | EValue | Differ
_OfClaims = OtherBaseline | NotInCell | OneLevel | NotPlanned | NoMetric | ZeroMedian | Overlap
_OfMeans = MeanNeeds | SlowShare | WorstHundredth
_OfHosts = FewRuns | NoEstimate | OverHosts | FewSeconds
Reason = _OfPairs | _OfTest | _OfReach | _OfSides | _OfScreening | _OfMeans | _OfRuns | _OfClaims | _OfHosts | str
"""`str`: words, where there is nothing else."""
