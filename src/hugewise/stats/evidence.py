"""Several runs' evidence together: e-values multiply over runs, and e-Holm judges the comparisons.

Each run gives a comparison two e-values (`eprocess`): `larger` against "the arm is not larger", `smaller` against "the
arm is not smaller". The first null says that each pair, given its size |D| and the past, is at least as likely to fall
below 0 as above; "no difference" belongs to both nulls. One-sided values are what a direction needs: the product of
two-sided ones grows too where one host finds an arm larger and another finds it smaller.

Product. Given all that was seen before, the coins of a run are fresh; so the product over runs of one side's values has
a mean of at most 1 under its null, whenever each run stopped, and also where a run was started because of what an
earlier one showed (Vovk and Wang 2021, Ann. Statist. 49:1736, section 4: sequential e-values). It needs separate coins:
the same run twice, or two runs of one seed, are refused. A run left out because of its result makes it invalid.

e-Holm. The m comparisons have 2m one-sided nulls. Holm's procedure for e-values is closed testing with the arithmetic
mean, valid for any dependence (Vovk and Wang 2021, section 6; Hartog and Lei 2025, arXiv 2501.09015): the adjusted
value of a null is

    e* = min over sets of nulls that hold it of the mean of their e-values

and it is rejected where e* >= 1/alpha. *The chance that any comparison is called larger or smaller wrongly, a wrong
direction included, is at most alpha*, over all comparisons together. A comparison that is refused still counts among
the m, with values of 0: to drop it by what its data look like would be a selection.

End points. The typical ratio, the mean, the rate of slow runs and p99 of one metric are comparisons of their own: each
has its two nulls among the 2m and shares the error rate as any other does. They are made of the same pairs, and e-Holm
asks for no independence. For each of them "larger" is said of the metric: more slow runs of a time, fewer of a
throughput.

Only like is put together. What makes two comparisons the same is in `Carried.identity`; where it differs, and where a
run has no e-value, the comparison is refused and the reason said. What the product says is that the arm is larger (or
smaller) in at least one of the runs by the coin alone; how much, or that it is everywhere so, it does not say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from hugewise.model.results import Verdict
from hugewise.stats.eprocess import combine as product
from hugewise.stats.eprocess import finite

__all__ = [
    "TYPICAL",
    "Carried",
    "Combined",
    "CombinedDirection",
    "ComparisonKey",
    "Multiplied",
    "RunEvidence",
    "RunShare",
    "adjusted",
    "combine",
    "judged",
    "not_separate",
    "products",
]

CombinedDirection = Literal["larger", "smaller", "undecided", "refused"]
ComparisonKey = tuple[str, str, str, str, str]
"""Cell, arm, baseline, metric, end point."""

TYPICAL = "typical ratio"
"""The end point that every comparison has."""


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """What one run says of one comparison. Two with the same five names are put together if their identities agree.

    end_point  what is judged of the metric: the typical ratio, or a name of a study's `end_points`
    identity   what must be the same, by its name in words: mechanism, workload, parameters, treatments, design ...
    larger, smaller   the e-values where the run stopped; None with the reason in `absent`
    """

    cell: str
    arm: str
    baseline: str
    metric: str
    higher_is_better: bool
    identity: Mapping[str, str]
    pairs: int
    larger: float | None
    smaller: float | None
    absent: str = ""
    end_point: str = TYPICAL

    @property
    def key(self) -> ComparisonKey:
        return self.cell, self.arm, self.baseline, self.metric, self.end_point


class RunEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """A run: its id, the hash of its seed, the host's name for the reader, and its judged comparisons."""

    run: str
    seed_hash: str
    host: str
    comparisons: tuple[Carried, ...]


class RunShare(msgspec.Struct, frozen=True, kw_only=True):
    """A run's share of a combined comparison."""

    run: str
    host: str
    pairs: int
    larger: float | None
    smaller: float | None


class Combined(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison over several runs.

    end_point           of the metric: "typical ratio", or a name of the study's `end_points`
    larger, smaller     products of the runs' e-values; None where refused
    adjusted            by e-Holm, of the direction that has more; held against 1/alpha
    direction, verdict  what is concluded of arm/baseline, and what that means for the metric
    """

    cell: str
    arm: str
    baseline: str
    metric: str
    parts: tuple[RunShare, ...]
    larger: float | None
    smaller: float | None
    adjusted: float | None
    direction: CombinedDirection
    verdict: Verdict
    reason: str
    end_point: str = TYPICAL

    @property
    def key(self) -> ComparisonKey:
        return self.cell, self.arm, self.baseline, self.metric, self.end_point


def not_separate(sources: Sequence[RunEvidence]) -> str | None:
    """Why the runs' coins are not separate, or None when they are."""
    for number, later in enumerate(sources):
        for earlier in sources[:number]:
            if later.run == earlier.run:
                return f"run {later.run} is given twice"
            if later.seed_hash == earlier.seed_hash:
                return f"runs {earlier.run} and {later.run} have the same seed, and so the same coins"
    return None


def combine(sources: Sequence[RunEvidence], alpha: float) -> tuple[Combined, ...]:
    """The comparisons that at least two of the runs have, in the order of their first run, judged at level `alpha`.

    Raises ValueError where the runs' coins are not separate, and for an alpha out of range.
    """
    if not 0 < alpha < 1:
        raise ValueError("alpha must be within 0 and 1")
    shared = [one for one in products(sources) if len(one.each) > 1]
    values = adjusted([side for one in shared for side in one.sides])
    return tuple(judged(one, (values[2 * at], values[2 * at + 1]), alpha) for at, one in enumerate(shared))


class Multiplied(NamedTuple):
    """A comparison with the products of the e-values of the runs that have it; 0 where it is refused."""

    each: Sequence[tuple[RunEvidence, Carried]]
    refused: str
    sides: tuple[float, float]


def products(sources: Sequence[RunEvidence]) -> list[Multiplied]:
    """Every comparison of the runs, in the order of their first run. Raises ValueError where coins are not separate."""
    if (same := not_separate(sources)) is not None:
        raise ValueError(same)
    found: dict[ComparisonKey, list[tuple[RunEvidence, Carried]]] = {}
    for source in sources:
        for one in source.comparisons:
            found.setdefault(one.key, []).append((source, one))
    return [_multiplied(each) for each in found.values()]


def _multiplied(each: Sequence[tuple[RunEvidence, Carried]]) -> Multiplied:
    if refused := _refusal(each):
        return Multiplied(each, refused, (0.0, 0.0))
    sides = product(one.larger or 0.0 for _, one in each), product(one.smaller or 0.0 for _, one in each)
    return Multiplied(each, "", sides)


def adjusted(values: Sequence[float]) -> list[float]:
    """Each e-value adjusted for all of them together by e-Holm, in their order. Raises ValueError below 0 or on a NaN.

    The set with the smallest mean that holds a value is the value itself with the k smallest of the others, for some
    k: Vovk and Wang 2021, algorithm 1.
    """
    if any(not value >= 0 for value in values):
        raise ValueError("an e-value is a number from 0 on")
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    for rank, index in enumerate(order):
        least, total = values[index], values[index]
        for count, other in enumerate(order[:rank], 2):
            total += values[other]
            least = min(least, total / count)
        found[index] = least
    return found


def _refusal(each: Sequence[tuple[RunEvidence, Carried]]) -> str:
    """Why these are not put together; empty when they may be."""
    first_source, first = each[0]
    for source, one in each[1:]:
        for name in sorted({*first.identity, *one.identity}):
            if first.identity.get(name) != one.identity.get(name):
                return f"the {name} of {first_source.run} and {source.run} differ"
    for source, one in each:
        if one.larger is None or one.smaller is None:
            return f"{source.run} has no e-value: {one.absent or 'no reason is known'}"
    return ""


def judged(multiplied: Multiplied, after: tuple[float, float], alpha: float) -> Combined:
    """The comparison with what is concluded from its products; `after`: both as adjusted for all of the family."""
    each, refused, sides = multiplied
    first = each[0][1]
    up = after[0] >= after[1]
    value = max(after)
    direction: CombinedDirection = "undecided" if value < 1 / alpha else "larger" if up else "smaller"
    if refused:
        direction, reason = "refused", refused
    elif direction == "undecided":
        reason = f"the adjusted e-value is below {1 / alpha:.6g}"
    else:
        reason = f"the adjusted e-value has reached {1 / alpha:.6g}"
    verdict: Verdict = "none" if refused else "undecided"
    if direction in ("larger", "smaller"):
        verdict = "better" if (direction == "larger") == first.higher_is_better else "worse"
    return Combined(
        cell=first.cell,
        arm=first.arm,
        baseline=first.baseline,
        metric=first.metric,
        parts=tuple(
            RunShare(run=source.run, host=source.host, pairs=one.pairs, larger=one.larger, smaller=one.smaller)
            for source, one in each
        ),
        larger=None if refused else finite(sides[0]),
        smaller=None if refused else finite(sides[1]),
        adjusted=None if refused else finite(value),
        direction=direction,
        verdict=verdict,
        reason=reason,
        end_point=first.end_point,
    )
