"""The verdicts of a whole study: how its comparisons share the error rate.

`sequential` and `exact` have a fixed split: each judged comparison has an equal share from the start, and so has each
end point of a cell's own metric (metrics beside it have none). So each can stop on its own at any time, and the chance
of any wrong verdict is at most their sum (Bonferroni).
Arms that a study names `unjudged` are in no split, and `screening` claims nothing.

`fixed-n` has Holm's procedure over all comparisons, with intervals that agree with it. Let m be the number of judged
comparisons (fixed by the plan; neutral metrics are not judged, and a comparison without data counts with p = 1) and
a = 1 - confidence.

Differences. Holm's step-down (Holm 1979, Scand. J. Statist. 6:65-70) on the m two-sided p values: the r-th smallest
is held against a/(m-r+1), and the first that is above its level ends it. *The chance that any comparison without a
difference is called better or worse is at most a*, for any dependence between comparisons (arms share a baseline).
Calling a true difference in the wrong direction is within the same bound for independent statistics (Shaffer 1980,
Ann. Statist. 8:1342); for dependent ones no general proof is known.

Intervals. A comparison that Holm rejects at step r is shown with its interval at confidence 1 - a/(m-r+1), all others
with the level at which the procedure ended. As the interval at level l excludes 1 exactly when p <= l, an interval
excludes 1 exactly when Holm rejects. Each interval alone covers its ratio with its stated confidence; they do not all
cover together with probability 1 - a, since the levels are chosen by the data (compare Benjamini and Yekutieli 2005,
JASA 100:71; Strassburger and Bretz 2008, Stat. Med. 27:4914). The intervals at 1 - a/m would. p is the
largest of several tests and the interval shown is Student's of the usable pairs (see `fixed`): it may then exclude 1
where Holm does not reject, and the verdict is undecided.

Equivalence. An interval within the margin is a pair of one-sided tests at half its level (Schuirmann 1987; Berger and
Hsu 1996, Statist. Sci. 11:283). The levels above are ordered by the wrong p values for it, so equivalence has a Holm
procedure of its own on the larger of the two one-sided p values (Lauzon and Caffo 2009, Am. Stat. 63:147): *the
chance that any comparison whose true ratio lies on or outside the margin is called equivalent is at most a*. Where an
interval lies within the margin but this procedure does not agree, the interval is widened to twice the level at which
it ended: it then reaches beyond the margin, and the verdict is read off what is shown. This can take the claim of a
difference from an effect smaller than the margin; it happens only where most comparisons of a study are rejected.

Both kinds of claim together: the chance of any wrong one is at most 2a, where each p value is valid: see the method.
The levels hold at the planned number of pairs only; before it p counts as 1 and the interval is provisional.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Protocol

from hugewise.model.metric import Metric
from hugewise.model.results import Comparison
from hugewise.model.trial import DeliveryThreshold
from hugewise.stats.end_points import EndPoint
from hugewise.stats.exact import Exact
from hugewise.stats.fixed import FixedN
from hugewise.stats.method import Contrast, Method
from hugewise.stats.screening import Screened, Screening
from hugewise.stats.sequential import Sequential, Unjudged
from hugewise.study.study import Study


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class ComparedCell(Protocol):
    """Properties of a cell that a comparison needs: a planned one, or one read back from a run."""

    @property
    def id(self) -> str: ...
    @property
    def metric(self) -> Metric: ...
    @property
    def also(self) -> Sequence[Metric]: ...
    @property
    def baseline(self) -> str: ...
    @property
    def delivery(self) -> DeliveryThreshold: ...
    @property
    def copies(self) -> int: ...
    @property
    def arms(self) -> Sequence[_Named]: ...


def methods_for(study: Study, cells: Sequence[ComparedCell], *, coins: bool = True) -> tuple[Method, ...]:
    """Return a fresh method for every arm against the baseline of its cell, in the order of the plan: of the cell's
    metric first, then of each that is judged beside it. A screening has the first alone: it chooses, and claims
    nothing. `coins`: see `store.records.Opened`.
    """
    contrasts = [
        Contrast(cell.id, arm.name, cell.baseline, metric, cell.delivery.share > 0, cell.copies)
        for cell in cells
        for metric in (cell.metric, *(() if study.method == "screening" else cell.also))
        for arm in cell.arms
        if arm.name != cell.baseline
    ]
    firsts = {(cell.id, cell.metric.name) for cell in cells}
    claimed = [each for each in contrasts if each.metric.better != "neutral" and each.arm not in study.unjudged]
    judged = max(1, len(claimed))
    alpha, planned, margin = 1 - study.confidence, study.budget.blocks, study.margin
    if study.method == "sequential":
        return tuple(_sequential(study, contrasts, firsts, alpha / max(1, _claims(study, claimed, firsts))))
    if study.method == "exact":
        return tuple(Exact(each, planned=planned, alpha=alpha / judged, margin=margin) for each in contrasts)
    if study.method == "screening":
        return tuple(_screened(contrasts, planned, alpha, margin))
    return tuple(
        FixedN(contrast, planned=planned, confidence=study.confidence, margin=margin, family=judged, coins=coins)
        for contrast in contrasts
    )


def claims(study: Study, cells: Sequence[ComparedCell], judged: Iterable[Contrast]) -> int:
    """Return the claims of these `judged` comparisons that share the study's error rate, end points among them."""
    return _claims(study, judged, {(cell.id, cell.metric.name) for cell in cells})


def _claims(study: Study, judged: Iterable[Contrast], firsts: Collection[tuple[str, str]]) -> int:
    return sum(1 + len(study.end_points) * ((one.cell, one.metric.name) in firsts) for one in judged)


def _sequential(
    study: Study, contrasts: Sequence[Contrast], firsts: Collection[tuple[str, str]], share: float
) -> Iterator[Method]:
    """Yield each comparison with its share and its end points; what is unjudged has neither, and ends with its cell.

    `firsts`: cell and metric of those whose end points are judged; the other metrics have their typical ratio alone.
    """
    planned, margin = study.budget.blocks, study.margin
    judging: dict[str, list[Method]] = {}
    for contrast in contrasts:
        beside = judging.setdefault(contrast.cell, [])
        if contrast.arm in study.unjudged:
            whole = 1 - study.confidence
            yield Unjudged(contrast, beside, planned=planned, alpha=whole, margin=margin)
            continue
        width = study.budget.width
        made = Sequential(contrast, planned=planned, alpha=share, margin=margin, width=width)
        beside.append(made)
        yield made
        for kind in study.end_points if (contrast.cell, contrast.metric.name) in firsts else ():
            yield EndPoint(kind, contrast, planned=planned, alpha=share, margin=margin)


def _screened(contrasts: Sequence[Contrast], planned: int, alpha: float, margin: float) -> Iterator[Method]:
    for _, of_cell in groupby(contrasts, key=lambda contrast: contrast.cell):
        mine = tuple(of_cell)
        screening = Screening(mine, planned=planned, alpha=alpha, margin=margin)
        yield from (Screened(contrast, screening) for contrast in mine)


def conclude(methods: Sequence[Method], confidence: float, margin: float) -> tuple[Comparison, ...]:
    """Return the comparisons of a study, in the order of `methods`, each with interval and verdict."""
    fixed = [method for method in methods if isinstance(method, FixedN)]
    levels = _holm_levels(fixed, 1 - confidence, margin)
    concluded = []
    for method in methods:
        if isinstance(method, FixedN):
            concluded.append(method.comparison(levels.get(id(method), 1 - confidence), margin))
        elif isinstance(method, Sequential | EndPoint | Screened | Unjudged):
            concluded.append(method.comparison())
    return tuple(concluded)


def _holm_levels(methods: Sequence[FixedN], alpha: float, margin: float) -> dict[int, float]:
    judged = [method for method in methods if method.contrast.metric.better != "neutral"]
    equivalence = [method.p_equivalence(margin) for method in judged]
    _, levels = holm([method.p_difference() for method in judged], alpha)
    confirmed, ends = holm(equivalence, alpha)
    return {
        id(method): level if agreed or p > level / 2 else min(level, 2 * end)
        for method, level, p, agreed, end in zip(judged, levels, equivalence, confirmed, ends, strict=True)
    }


def holm(p_values: Sequence[float], alpha: float) -> tuple[list[bool], list[float]]:
    """Return which hypotheses Holm rejects at familywise level `alpha`, and the level that each was tested at.

    Those after the first that is not rejected are held against the level at which the procedure ended.
    """
    m = len(p_values)
    rejected, levels = [False] * m, [alpha] * m
    ended: float | None = None
    for rank, index in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        level = alpha / (m - rank) if ended is None else ended
        levels[index] = level
        if ended is None and p_values[index] <= level:
            rejected[index] = True
        else:
            ended = level
    return rejected, levels
