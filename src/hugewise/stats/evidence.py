"""Several runs' evidence together: e-values multiply over runs, and e-Holm judges the comparisons.

An e-process is a test of the same null as `signflip`, open-ended. Under fair coins E[exp(l * s_t)] = cosh(l * a_t)
given the magnitude a_t and the past. So for each l

    M_t(l) = prod_i exp(l * s_i) / cosh(l * a_i)

is a martingale with mean 1 (with the mean of cosh over all placings in place of cosh, where a block has copies), and so
is any mean of these over l: here over a geometric grid of 16 rates between 0.02
and 3 (shifts between about 1/50 and three standard deviations), for an arm that is larger (up: +l) and one that is
smaller (down: -l), and their mean. By Ville's inequality it ever reaches 1/alpha with chance at most alpha; no budget
is declared. (Mixture martingales: Robbins 1970; symmetry: de la Pena 1999; Vovk and Wang 2022, arXiv 2208.08925.)
There are two, by what the amounts s_t are; both are exact under the sharp null, whatever the noise.

EProcess      normal scores (over 10, see `signflip`), for the typical ratio: an outlier counts little more than others
SumEProcess   the differences arm - baseline themselves, over the largest magnitude so far, for a mean: an outlier
              counts as much as it is large

Each run gives a comparison two e-values: `larger` against "the arm is not larger", `smaller` against "the arm is not
smaller". The first null says that each pair, given its size |D| and the past, is at least as likely to fall below 0 as
above; "no difference" belongs to both nulls. A direction needs one-sided values: the product of two-sided ones grows
too where one host finds an arm larger and another finds it smaller.

Product. Given all that was seen before, the coins of a run are fresh; so the product over runs of one side's values has
a mean of at most 1 under its null, whenever each run stopped, and also where a run was started because of what an
earlier one showed (Vovk and Wang 2021, Ann. Statist. 49:1736, section 4: sequential e-values). It needs separate coins:
the same run twice, or two runs of one seed, are refused. A run left out because of its result makes it invalid.

e-Holm. The m comparisons, each end point one of its own, have 2m one-sided nulls. Holm's procedure for e-values is
closed testing with the arithmetic mean, valid for any dependence (Vovk and Wang 2021, section 6; Hartog and Lei 2025,
arXiv 2501.09015): the adjusted value of a null is

    e* = min over sets of nulls that hold it of the mean of their e-values

and it is rejected where e* >= 1/alpha. *The chance that any comparison is called larger or smaller wrongly, a wrong
direction included, is at most alpha*, over all comparisons together. Only like is put together (`Carried.identity`). A
comparison that is refused still counts among the m, with values of 0: to drop it by what its data look like would be a
selection. What the product says is that the arm is larger (or smaller) in at least one of the runs.

Over strata, the family has the products of the hosts of each stratum and of all hosts (where there is one stratum it
is not counted twice). A host whose comparison has no e-value makes its stratum's product, and that over all, refused.
Hosts that were left out before they measured are not among them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from hugewise.model.reason import Differ, EValue, NoEValue, Reason
from hugewise.model.results import Verdict
from hugewise.stats.method import Numbers
from hugewise.stats.signflip import COPIES_BY_PLACINGS, UNIT, Drawn, Scores

GRID: tuple[float, ...] = tuple(float(rate) for rate in np.geomspace(0.02, 3.0, 16))
"""The rates l, per unit of the amounts: a standard normal score, or the largest difference."""


class _Mixture:
    """The mixture over the rates for signed amounts, which the two classes below make of differences."""

    def __init__(self, grid: Iterable[float], unit: float) -> None:
        rates = np.array(sorted(grid), dtype=np.float64)
        if not len(rates) or not np.isfinite(rates).all() or rates[0] <= 0:
            raise ValueError("the grid needs at least one rate, and all of them positive")
        self._rates: Numbers = rates / unit
        self._drift = np.zeros(len(rates))  # sum of log cosh(l * a)
        self._walk = 0.0
        self._log_largest = 0.0
        self.pairs = 0

    def _bet(self, amount: float, *others: float) -> None:
        # `others`: the amounts of the block's other placings.
        placed = [np.logaddexp(self._rates * each, -self._rates * each) for each in (amount, *others)]
        self._walk += amount
        self._drift += (np.logaddexp.reduce(placed) - math.log(len(placed)) if others else placed[0]) - math.log(2)
        self.pairs += COPIES_BY_PLACINGS[len(placed)]
        # The value is a mean over rates and sides, and so no larger than the largest of them: most are not worked out.
        most = float((self._rates * abs(self._walk) - self._drift).max())
        if most + 1e-9 > self._log_largest:  # rounding
            self._log_largest = max(self._log_largest, self.log_value)

    @property
    def log_up(self) -> float:
        """Natural logarithm of the evidence that the arm is larger."""
        return self._log_mean(self._walk)

    @property
    def log_down(self) -> float:
        """Natural logarithm of the evidence that the arm is smaller."""
        return self._log_mean(-self._walk)

    @property
    def log_value(self) -> float:
        return float(np.logaddexp(self.log_up, self.log_down)) - math.log(2)

    @property
    def up(self) -> float:
        return _exp(self.log_up)

    @property
    def down(self) -> float:
        return _exp(self.log_down)

    @property
    def value(self) -> float:
        """The e-value now, two-sided; infinite beyond the range of a double."""
        return _exp(self.log_value)

    def rejects(self, alpha: float) -> bool:
        """Return whether the value has ever been 1/alpha or more. Raises ValueError unless 0 < alpha < 1."""
        if not 0 < alpha < 1:
            raise ValueError("alpha must be within 0 and 1")
        return self._log_largest >= -math.log(alpha)

    def _log_mean(self, walk: float) -> float:
        exponents = self._rates * walk - self._drift
        most = float(exponents.max())
        return most + math.log(float(np.add.reduce(np.exp(exponents - most))) / len(exponents))


class EProcess(_Mixture):
    """Evidence against fair coins, as pairs come. `grid`: the rates, positive; they share their weight equally."""

    def __init__(self, grid: Iterable[float] = GRID) -> None:
        super().__init__(grid, UNIT)
        self._scores = Scores()

    def add(self, drawn: Drawn) -> None:
        """Take a pair's difference, log(arm) - log(baseline), or a block's placings. Raises ValueError on a NaN."""
        self._bet(*self._scores.add(drawn))


class SumEProcess(_Mixture):
    """Evidence against fair coins from the differences arm - baseline themselves, in the metric's unit.

    A pair's amount x_t is its difference over the largest magnitude of the pairs up to and including its own, within
    -1 and 1. That scale is made of magnitudes alone, which no coin moves: given |d_t| and the past, x_t is +-|x_t|. A
    failed side counts as the largest magnitude there has been (amount +-1); where both are equal, or both failed, the
    amount is 0.

    log(exp(l x)/cosh(l x)) is at most l x, so that `up` exceeds 1 only where the amounts add up to more than 0 and
    `down` only where to less: it cannot speak against the sum, which a test by ranks can. (The scale grows, so that
    early pairs weigh a little more in this sum than in the mean.) Exactness is that of the coins. Where no coin chose
    and only the means are equal, a skewed difference may give it a mean above 1.
    """

    def __init__(self, grid: Iterable[float] = GRID) -> None:
        super().__init__(grid, 1)
        self._largest = 0.0

    def add(self, difference: float) -> None:
        """Take a pair's difference, arm - baseline; infinite where one side failed. Raises ValueError on a NaN."""
        if math.isnan(difference):
            raise ValueError("a difference must be a number or infinite")
        if math.isinf(difference):
            self._bet(math.copysign(1.0, difference))
            return
        self._largest = max(self._largest, abs(difference))
        self._bet(difference / self._largest if self._largest else 0.0)


def multiply_e_values(values: Iterable[float]) -> float:
    """Return the e-value of several together, from separate coins: their product, 1 for none.

    Take each one's value now (or where it stopped), never its largest. Raises ValueError on a value below 0 or NaN.
    """
    logs = []
    for value in values:
        if not value >= 0:
            raise ValueError("an e-value is a number from 0 on")
        logs.append(math.log(value) if value else -math.inf)
    if -math.inf in logs:
        return 0.0
    return _exp(math.fsum(logs))


def finite(value: float) -> float:
    """Return an e-value for JSON, which has no infinity: at most the largest double, which is still an e-value."""
    return min(value, sys.float_info.max)


def e_values(verdict: str, larger: float, smaller: float) -> dict[str, float | None]:
    """Return the fields of a comparison that has these one-sided e-values; null where no verdict is possible."""
    known = verdict != "none"
    return {
        "evidence": finite((larger + smaller) / 2) if known else None,
        "evidence_larger": finite(larger) if known else None,
        "evidence_smaller": finite(smaller) if known else None,
    }


def _exp(log: float) -> float:
    try:
        return math.exp(log)
    except OverflowError:
        return math.inf


CombinedDirection = Literal["larger", "smaller", "undecided", "refused"]
ComparisonKey = tuple[str, str, str, str, str]
"""Cell, arm, baseline, metric, end point."""

TYPICAL = "typical ratio"
"""The end point that every comparison has."""


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence of one run on one comparison. Two with the same five names are put together if their identities agree.

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
    absent: Reason = ""
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
    reason: Reason
    end_point: str = TYPICAL

    @property
    def key(self) -> ComparisonKey:
        return self.cell, self.arm, self.baseline, self.metric, self.end_point


def not_separate(sources: Sequence[RunEvidence]) -> str | None:
    """Return why the runs' coins are not separate, or None when they are."""
    for number, later in enumerate(sources):
        for earlier in sources[:number]:
            if later.run == earlier.run:
                return f"run {later.run} is given twice"
            if later.seed_hash == earlier.seed_hash:
                return f"runs {earlier.run} and {later.run} have the same seed, and so the same coins"
    return None


def combine(sources: Sequence[RunEvidence], alpha: float) -> tuple[Combined, ...]:
    """Return the comparisons that at least two of the runs have, in the order of their first run, judged at level
    `alpha`.

    Raises ValueError where the runs' coins are not separate, and for an alpha out of range.
    """
    if not 0 < alpha < 1:
        raise ValueError("alpha must be within 0 and 1")
    shared = [product for product in products(sources) if len(product.each) > 1]
    values = adjusted([side for one in shared for side in one.sides])
    return tuple(with_conclusion(one, (values[2 * at], values[2 * at + 1]), alpha) for at, one in enumerate(shared))


class Multiplied(NamedTuple):
    """A comparison with the products of the e-values of the runs that have it; 0 where it is refused."""

    each: Sequence[tuple[RunEvidence, Carried]]
    refused: Reason
    sides: tuple[float, float]


def products(sources: Sequence[RunEvidence]) -> list[Multiplied]:
    """Every comparison of the runs, in the order of their first run. Raises ValueError where coins are not separate."""
    if (same := not_separate(sources)) is not None:
        raise ValueError(same)
    found: dict[ComparisonKey, list[tuple[RunEvidence, Carried]]] = {}
    for source in sources:
        for comparison in source.comparisons:
            found.setdefault(comparison.key, []).append((source, comparison))
    return [_multiplied(each) for each in found.values()]


def _multiplied(each: Sequence[tuple[RunEvidence, Carried]]) -> Multiplied:
    if refused := _refusal(each):
        return Multiplied(each, refused, (0.0, 0.0))
    sides = (
        multiply_e_values(one.larger or 0.0 for _, one in each),
        multiply_e_values(one.smaller or 0.0 for _, one in each),
    )
    return Multiplied(each, "", sides)


def adjusted(values: Sequence[float]) -> list[float]:
    """Return each e-value adjusted for all of them together by e-Holm, in their order. Raises ValueError below 0 or on
    a NaN.

    The set with the smallest mean that holds a value is the value itself with the k smallest of the others, for some
    k: Vovk and Wang 2021, algorithm 1.
    """
    if any(not value >= 0 for value in values):
        raise ValueError("an e-value is a number from 0 on")
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted_values = [0.0] * len(values)
    for rank, index in enumerate(order):
        least, total = values[index], values[index]
        for count, other in enumerate(order[:rank], 2):
            total += values[other]
            least = min(least, total / count)
        adjusted_values[index] = least
    return adjusted_values


def e_bh(values: Sequence[float], alpha: float) -> list[bool]:
    """Return which nulls are rejected, in their order: of these a share of at most `alpha` is true on average, whatever
    the dependence (e-BH; Wang and Ramdas 2022, J. R. Stat. Soc. B 84:822). Raises ValueError for an alpha out of range.
    """
    if not 0 < alpha < 1:
        raise ValueError("alpha must be within 0 and 1")
    order = sorted(range(len(values)), key=lambda at: -values[at])
    most = max((rank for rank, at in enumerate(order, 1) if rank * values[at] >= len(values) / alpha), default=0)
    return [at in {*order[:most]} for at in range(len(values))]


def _refusal(each: Sequence[tuple[RunEvidence, Carried]]) -> Reason:
    first_source, first = each[0]
    for source, one in each[1:]:
        for name in sorted({*first.identity, *one.identity}):
            if first.identity.get(name) != one.identity.get(name):
                return Differ(name, first_source.run, source.run)
    for source, one in each:
        if one.larger is None or one.smaller is None:
            return NoEValue(source.run, one.absent or "no reason is known")
    return ""


def with_conclusion(multiplied: Multiplied, after: tuple[float, float], alpha: float) -> Combined:
    """The comparison with what is concluded from its products; `after`: both as adjusted for all of the family."""
    each, refused, sides = multiplied
    first = each[0][1]
    up = after[0] >= after[1]
    value = max(after)
    reason: Reason
    direction: CombinedDirection = "undecided" if value < 1 / alpha else "larger" if up else "smaller"
    if refused:
        direction, reason = "refused", refused
    else:
        reason = EValue(direction != "undecided", 1 / alpha)
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


ALL = ""
"""The name of all hosts together."""


def over_strata(sources: Mapping[str, Sequence[RunEvidence]], alpha: float) -> dict[str, tuple[Combined, ...]]:
    """Judge the runs of hosts together at level `alpha`, by stratum, and under `ALL` over all.

    A comparison that one host of a stratum alone has is there too. Raises ValueError where two runs have the same
    coins, for an alpha out of range, and for a stratum named `ALL`.
    """
    if ALL in sources:
        raise ValueError("a stratum needs a name")
    groups = dict(sources)
    if len(sources) != 1:
        groups[ALL] = [run for runs in sources.values() for run in runs]
    per_stratum = {name: products(runs) for name, runs in groups.items()}
    sides = [side for each in per_stratum.values() for one in each for side in one.sides]
    values = adjusted(sides)
    answered: dict[str, tuple[Combined, ...]] = {}
    at = 0
    for name, each in per_stratum.items():
        answered[name] = tuple(
            with_conclusion(one, (values[at + 2 * place], values[at + 2 * place + 1]), alpha)
            for place, one in enumerate(each)
        )
        at += 2 * len(each)
    if ALL not in answered:
        (answered[ALL],) = answered.values()
    return answered
