"""Two runs compared, as types: the JSON of `hugewise compare`."""

from __future__ import annotations

from typing import Literal

import msgspec

from hugewise.model.reason import Reason
from hugewise.model.results import ArmSummary, Verdict


class ArmLevel(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one arm: in the metric's unit, over its accepted attempts in complete blocks. `low` and `high` are
    the 5% and the 95% quantile.
    """

    arm: str
    n: int
    failed: int
    median: float | None
    low: float | None
    high: float | None
    delivered_share: float | None

    @classmethod
    def of(cls, one: ArmSummary) -> ArmLevel:
        return cls(
            arm=one.arm,
            n=one.n,
            failed=one.failed,
            median=one.median,
            low=one.quantiles.get("0.05"),
            high=one.quantiles.get("0.95"),
            delivered_share=one.delivered_share,
        )


Aspect = Literal["study", "host", "page settings", "versions", "run"]
Relation = Literal["higher", "lower", "alike", "not told apart", "spread unknown", "not comparable"]


class RunDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Key that is not the same in both runs; null where a run has none.

    aspect   study: what was asked; host: its fingerprint, the kernel included; page settings: as they were before the
             run; versions: of programs; run: by which mechanism, on which client
    """

    aspect: Aspect
    key: str
    first: str | None
    second: str | None


class RunOfTwo(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs. Times are UTC epoch seconds; `blocks` are complete ones; `hash` its last running hash."""

    run: str
    folder: str
    study: str
    study_digest: str
    state: str
    started: float
    ended: float
    host: str
    kernel: str | None
    mechanism: str
    confidence: float
    margin: float
    blocks: int
    hash: str | None


class EffectOfRun(msgspec.Struct, frozen=True, kw_only=True):
    """Effect of a comparison in one run: arm/baseline with its interval (an end is null where it is not bounded), its
    pairs, and the run's own verdict. Ratio and ends are null where it gives none.
    """

    n: int
    ratio: float | None
    low: float | None
    high: float | None
    verdict: Verdict
    reason: Reason


class TwoEffects(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison that both runs have.

    end_point   of the metric: "typical ratio", or a name of the studies' `end_points`
    runs        of the first and of the second kind, with the two named: earlier runs that differ from one of these in
                nothing but keys of the study in which both agree
    ratio, low, high   the second run's ratio over the first's; the interval at the `confidence` of `TwoRuns`. With two
                runs of each at least both are of all these runs, and the interval has the spread between runs; else of
                the pairs of the two runs alone
    relation    higher, lower: the second's ratio is, as its interval leaves out 1; alike: all of the interval is within
                the margin; spread unknown: there are not two runs of each, and nothing is claimed; not comparable: see
                `unlike`, or `reason`
    unlike      in what the two are no measurements of one thing, in words: nothing is concluded then
    """

    cell: str
    arm: str
    baseline: str
    metric: str
    unit: str
    better: str
    end_point: str
    first: EffectOfRun
    second: EffectOfRun
    runs: tuple[int, int]
    ratio: float | None
    low: float | None
    high: float | None
    relation: Relation
    reason: Reason = ""
    unlike: tuple[str, ...] = ()


class MetricBeside(msgspec.Struct, frozen=True, kw_only=True):
    """A metric that no run judges: the arm's median over the baseline's in each, and the second's over the first's.
    There is no interval and no conclusion. Null with its reason where a run has no such ratio.
    """

    cell: str
    arm: str
    baseline: str
    metric: str
    unit: str
    first: float | None
    second: float | None
    ratio: float | None
    reason: Reason = ""


class LevelBeside(msgspec.Struct, frozen=True, kw_only=True):
    """The level of one arm in both runs; and the second's median over the first's, which nothing has randomised: null
    with its `reason` where the two did other work.
    """

    cell: str
    metric: str
    unit: str
    first: ArmLevel
    second: ArmLevel
    ratio: float | None
    reason: str = ""


class TwoRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs held against each other. `confidence`: of all intervals of `effects` together; `margin`: the larger of
    the two studies'. `alone`: comparisons that only one of the runs has, in words.
    """

    format: int = 1
    first: RunOfTwo
    second: RunOfTwo
    same_study: bool
    same_host: bool | None
    differences: tuple[RunDifference, ...]
    confidence: float
    margin: float
    effects: tuple[TwoEffects, ...]
    levels: tuple[LevelBeside, ...]
    others: tuple[MetricBeside, ...]
    alone: tuple[str, ...]
