"""The rows of a forecast: what each end point of a comparison needs, by the study's method and share of the error rate.

The typical ratio is planned from the spread of the pilot's pairs (`stats.assurance`), the other end points from the
values of their runs (`stats.end_power`). All chances are averaged over what the pilot leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import pvariance, stdev

import msgspec

from hugewise.analysis.pilots import Pilot
from hugewise.stats import assurance, end_power, spread
from hugewise.stats.method import Contrast
from hugewise.stats.pairs import Pair, Pairs
from hugewise.stats.sessions import components, pairs_per_session
from hugewise.stats.tail import Better

__all__ = ["CHANCE", "FEWEST", "TYPICAL", "Planner", "Row", "made"]

CHANCE = 0.9
"""The chance of a verdict that pairs and smallest effects are given for."""
FEWEST = 6
"""Fewer pairs have no spread worth planning with."""
TYPICAL = "typical"
"""The end point that every study has, and the only one that decides when to stop."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One end point of one comparison. Spreads are of the log-ratio of a pair (0.01 is about 1%), effects |ratio - 1|.

    The spreads, the range of `needed` and `per_session` are those of the typical ratio alone.

    end_point                   typical, or one of those that the study declares: mean, slow, p99
    pairs, failures, sessions   what the runs have of it
    sd, sd_low, sd_high         standard deviation of the pair difference, with its 95% interval
    scale                       the deviation that the test sees (outliers count less)
    correlation (low, high)     within pairs, of the logarithms of the two sides, with its 95% interval
    variance_ratio              var(D) / (var(arm) + var(baseline)): what pairing leaves of the variance
    needed                      pairs for the asked effect at 90%, averaged over what the pilot leaves open: of the
                                declared ones where these are enough, else the fewest to declare
    needed_low, needed_high     what would do if the spread were known to be at an end of the sd's interval
    typical                     pairs after which half of such campaigns have ended
    seconds                     of a pair, hugewise's own share included
    budget                      pairs that the declared blocks and time have room for
    smallest                    the effect that these show with 90%
    hidden                      the effect that they show with 10% only: one as small is missed nine times in ten
    per_session                 pairs per session by the rule of Kalibera and Jones, or None with the reason
    reason                      why there is no forecast, or None
    """

    cell: str
    arm: str
    baseline: str
    metric: str
    end_point: str = TYPICAL
    pairs: int
    failures: int
    sessions: int
    sd: float | None = None
    sd_low: float | None = None
    sd_high: float | None = None
    scale: float | None = None
    correlation: float | None = None
    correlation_low: float | None = None
    correlation_high: float | None = None
    variance_ratio: float | None = None
    needed: int | None = None
    needed_low: int | None = None
    needed_high: int | None = None
    typical: int | None = None
    seconds: float | None = None
    budget: int | None = None
    smallest: float | None = None
    hidden: float | None = None
    per_session: int | None = None
    per_session_reason: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Planner:
    """Pairs and effects at the `level` of an end point, for an `effect` as |ratio - 1|.

    declared      the study's blocks
    budget        those of them that its time has room for
    end_points    those beside the typical ratio
    session_cost  seconds that a new session takes
    """

    method: str
    level: float
    declared: int
    budget: int
    effect: float
    end_points: tuple[str, ...]
    session_cost: float

    def needed(self, shift: float, freedom: float) -> int | None:
        """Pairs of the declared ones where these are enough, else the fewest to declare."""
        if self.method == "fixed-n":
            return assurance.student_needed(shift, freedom, self.level, chance=CHANCE)
        within = assurance.pairs_needed(shift, freedom, self.level, chance=CHANCE, budget=self.declared)
        return within or assurance.pairs_needed(shift, freedom, self.level, chance=CHANCE)

    def known(self, shift: float) -> int | None:
        """The same if the spread were known."""
        return self.needed(shift, assurance.KNOWN)

    def typical(self, shift: float, freedom: float, needed: int | None) -> int | None:
        """Pairs after which half have ended."""
        if needed is None or self.method == "fixed-n":
            return needed
        return assurance.pairs_needed(shift, freedom, self.level, chance=0.5, budget=max(needed, self.declared))

    def shown(self, freedom: float, chance: float) -> float | None:
        """The shift that the budget shows with this chance."""
        if self.method == "fixed-n":
            return assurance.student_shift(self.budget, freedom, self.level, chance=chance) if self.budget > 1 else None
        return assurance.shift_shown(self.budget, freedom, self.level, chance=chance) if self.budget > 0 else None


def made(contrast: Contrast, pilot: Pilot, planner: Planner) -> tuple[Row, ...]:
    """The rows of a comparison: of its typical ratio first."""
    key = contrast.arm, contrast.metric.name
    known = pilot.pairs.get(key) or Pairs(contrast)
    empty = Row(
        cell=contrast.cell,
        arm=contrast.arm,
        baseline=contrast.baseline,
        metric=contrast.metric.name,
        pairs=len(known.usable),
        failures=known.failures,
        sessions=len(pilot.groups.get(key, {})),
        seconds=pilot.cost(contrast.arm) + pilot.cost(contrast.baseline) or None,
        budget=planner.budget,
    )
    higher = contrast.metric.better == "higher"
    finite = [pair for pair in known.usable if pair.log_ratio is not None]
    differences = [pair.difference(higher_is_better=higher) for pair in known.usable]
    scale = spread.scale(differences)
    reason = known.refusal(known.seen)
    if reason is None and (scale is None or len(finite) < FEWEST):
        what = f"{empty.failures} of {empty.pairs} pairs have a failure" if empty.failures else f"{empty.pairs} pairs"
        reason = f"too few pairs to plan with ({what}; {FEWEST} are the least)"
    own = contrast.metric.name == pilot.record.metric.name
    ends = tuple(msgspec.structs.replace(empty, end_point=kind) for kind in planner.end_points if own)
    if reason is not None or scale is None:
        return tuple(msgspec.structs.replace(row, reason=reason) for row in (empty, *ends))
    first = _pairs(_spreads(empty, finite, scale), planner, spread.freedom(len(differences)))
    if first.reason is None:
        first = _sessions(first, list(pilot.groups[key].values()), planner.session_cost)
    return (first, *(_end(row, finite, planner, higher_is_better=higher) for row in ends))


def _spreads(row: Row, finite: Sequence[Pair], scale: float) -> Row:
    logs = [pair.log_ratio for pair in finite if pair.log_ratio is not None]
    arm = [math.log(pair.arm) for pair in finite if pair.arm is not None]
    baseline = [math.log(pair.baseline) for pair in finite if pair.baseline is not None]
    low, high = spread.deviation_interval(logs) or (None, None)
    both = pvariance(arm) + pvariance(baseline)
    together = spread.correlated(arm, baseline)
    return msgspec.structs.replace(
        row,
        sd=stdev(logs),
        sd_low=low,
        sd_high=high,
        scale=scale,
        correlation=together[0] if together else None,
        correlation_low=together[1] if together else None,
        correlation_high=together[2] if together else None,
        variance_ratio=pvariance(logs) / both if both > 0 else None,
    )


def _pairs(row: Row, planner: Planner, freedom: float) -> Row:
    """Pairs for the effect, and the effects for the budget's pairs, of the typical ratio."""
    assert row.scale is not None and row.sd is not None
    if row.scale <= 0 or row.sd <= 0:
        return msgspec.structs.replace(row, reason="all pairs have the same ratio: any number of them will do")
    shift = math.log1p(planner.effect) / row.scale
    needed = planner.needed(shift, freedom)
    low = None if not row.sd_low else planner.known(shift * row.sd / row.sd_low)
    high = None if not row.sd_high else planner.known(shift * row.sd / row.sd_high)
    return msgspec.structs.replace(
        row,
        needed=needed,
        needed_low=low,
        needed_high=high,
        typical=planner.typical(shift, freedom, needed),
        smallest=_effect(planner.shown(freedom, CHANCE), row.scale),
        hidden=_effect(planner.shown(freedom, 1 - CHANCE), row.scale),
    )


def _effect(shift: float | None, scale: float) -> float | None:
    return None if shift is None else math.expm1(min(700.0, shift * scale))


def _end(row: Row, finite: Sequence[Pair], planner: Planner, *, higher_is_better: bool) -> Row:
    """The same of an end point beside it. Failures have no value: they make a mean impossible, and fill no tail."""
    if row.failures and row.end_point == "mean":
        reason = f"{row.failures} of {row.pairs} pairs have a failure, with which there is no mean"
        return msgspec.structs.replace(row, reason=reason)
    arm = [pair.arm for pair in finite if pair.arm is not None]
    baseline = [pair.baseline for pair in finite if pair.baseline is not None]
    better: Better = "higher" if higher_is_better else "lower"
    try:
        end = end_power.of_values(row.end_point, arm, baseline, planner.level, better=better)
    except end_power.UnplannableError as error:
        return msgspec.structs.replace(row, reason=str(error))
    needed = end_power.pairs_needed(end, planner.effect, planner.declared, chance=CHANCE)
    declared = planner.declared if needed is None else max(needed, planner.declared)
    return msgspec.structs.replace(
        row,
        needed=needed,
        typical=None if needed is None else end_power.pairs_needed(end, planner.effect, declared, chance=0.5),
        smallest=end_power.effect_shown(end, planner.budget, chance=CHANCE),
        hidden=end_power.effect_shown(end, planner.budget, chance=1 - CHANCE),
    )


def _sessions(row: Row, groups: Sequence[Sequence[float]], session_cost: float) -> Row:
    if sum(len(group) > 1 for group in groups) < 2:
        reason = "the spread between sessions takes two sessions of two pairs: give more runs with --from"
        return msgspec.structs.replace(row, per_session_reason=reason)
    between, within = components(groups)
    if between == 0:
        reason = f"the {len(groups)} sessions do not differ more than their pairs do: as many as a session has time for"
        return msgspec.structs.replace(row, per_session_reason=reason)
    return msgspec.structs.replace(
        row, per_session=pairs_per_session(between, within, session_cost, row.seconds or 1.0)
    )
