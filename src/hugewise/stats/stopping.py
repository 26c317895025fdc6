"""The winner's curse: an estimate made when a test has just stopped is too large on average, and by how much.

Whitehead's bias adjustment (1986, Biometrika 73:573) answers with the theta whose own expected estimate, over all ends
of a comparison, is the one that was seen; differences are normal with mean theta and deviation 1 (in units of `scale`).
The expectation is found by simulation: 1,000 to 2,000 streams from a fixed seed, the same ones for every theta, each
with the test's scores (sequential ranks up to 32 pairs, then their limit) and the boundary of a typical sequence
(`power.typical`), as a share of its own sum of scores. The sum of (D - theta) up to the stop has mean 0 (Wald 1944,
Ann. Math. Statist. 15:283) and is a control variate (Lavenberg and Welch 1981, Manage. Sci. 27:322). Thetas are those
of a grid with steps of 4%, straight in between. Walks are followed for five times the pairs that there were, one by one
within 2,000 pairs; beyond, k pairs make one (a Brownian motion; Siegmund 1985, Sequential Analysis, ch. 4).

With two copies of each side in a block a step is a block: its deviation is that of a pair over sqrt(2), its score is
that of its rank among the placings of all blocks in the end, and its boundary that of an average block.

`scale` should be `paired.scale` of the differences of pairs, which the test itself sees: an outlier would make the
correction too large. Corrected estimates average 0.99 to 1.04 of the truth at 1% to 20%
(`tools.verification.stopping`). That is over all stops, not given an early one, nor a verdict: where few comparisons
end in one, those read far too large, corrected or not. The corrected value has no interval of its own: that by
inversion holds at every look.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from hugewise.stats.method import Integers, Numbers
from hugewise.stats.power import WALKED, sizes, typical
from hugewise.stats.signflip import STEPS, first_crossing, log_spending, magnitudes

_STREAMS = 2000
_WORK = 2_000_000  # pairs of all streams together, at most
_STEP = 32  # pairs followed at once; the ranks of the first of these are real
_REACH = 5  # walks are followed to so many times the pairs at the crossing
_GRID = 0.04  # between two thetas, in their logarithm
_COARSE = 4  # as many of these between two thetas of a law
_LEAST, _FARTHEST = 0.4, 4.0  # standard errors of all pairs; deviations: all of the first pairs agree there


def corrected(
    centre: float,
    scale: float | None,
    crossed_at: int | None,
    alpha: float,
    budget: int,
    *,
    pairs: int | None = None,
    copies: int = 1,
) -> float | None:
    """Return the log-ratio `centre`, estimated at the stop, corrected for the stopping; between 0 and `centre`.

    `scale` is the deviation of a pair's difference (log-ratio; `paired.scale`), `crossed_at` the pair at which the test
    of `alpha` over `budget` pairs, in blocks of `copies`, crossed, `pairs` the number at which the comparison ended,
    where it went on. None
    where there is nothing to correct: no crossing, no scale, or an estimate that is infinite. About a second at most,
    and to 2% of the estimate. Raises ValueError on an alpha or a budget out of range, or fewer pairs than were crossed
    at.
    """
    pairs = crossed_at if pairs is None else pairs
    if crossed_at is None or pairs is None or scale is None or not math.isfinite(centre):
        return None
    if not 1 <= crossed_at <= pairs <= budget:
        raise ValueError("the correction needs 1 <= crossed_at <= pairs <= budget")
    if scale == 0 or centre == 0:
        return centre
    stop = _stop(1 if pairs == crossed_at else pairs, pairs, alpha, budget, copies)
    unit = scale / math.sqrt(stop.group)
    return math.copysign(_solve(stop, abs(centre) / unit) * unit, centre)


class EndLaw:
    """Law of the estimates where comparisons end, over all ends, whatever they were; in units of `scale`.

    It is made of the same walks as `corrected`, at thetas between which all is taken to be straight. About a second to
    make.
    """

    def __init__(self, stop: _Stop) -> None:
        lowest = math.log(_LEAST * math.sqrt(stop.group / stop.last))
        highest = math.log(_FARTHEST * math.sqrt(stop.group))
        places = range(math.floor(lowest / _GRID), math.ceil(highest / _GRID), _COARSE)
        self._unit = math.sqrt(stop.group)
        self._thetas = np.array([0.0, *(math.exp(_GRID * place) for place in places)])
        ended = [_walks(stop, theta) for theta in self._thetas[1:].tolist()]
        expected = [_mean(theta, *found) for theta, found in zip(self._thetas[1:].tolist(), ended, strict=True)]
        self._expected = np.maximum.accumulate([0.0, *expected])
        errors = [self._spread(theta, *found) for theta, found in zip(self._thetas[1:], ended, strict=True)]
        self._errors = np.array([errors[0], *errors])

    def corrected(self, estimate: float) -> float:
        """Return the theta whose expected estimate is this one; as `corrected`, to 2% of the estimate."""
        size = abs(estimate) * self._unit
        size_corrected = min(size, float(np.interp(size, self._expected, self._thetas, right=size)))
        return math.copysign(size_corrected / self._unit, estimate)

    def error(self, theta: float) -> float:
        """Return the standard deviation of the corrected estimate where theta is true."""
        return float(np.interp(abs(theta) * self._unit, self._thetas, self._errors)) / self._unit

    def _spread(self, theta: float, ends: Numbers, sums: Numbers) -> float:
        plain = theta + sums / ends
        inverse = np.interp(np.abs(plain), self._expected, self._thetas, right=math.inf)
        return float(np.std(np.sign(plain) * np.minimum(np.abs(plain), inverse)))


@lru_cache(maxsize=64)
def end_law(alpha: float, budget: int, last: int, copies: int = 1) -> EndLaw:
    """Return the law for a test of `alpha` over `budget` pairs that is given up after `last` pairs at the latest. Far
    more of them than there were make it coarse: beyond 2,000 pairs come in groups.

    Raises ValueError on an alpha or a budget out of range, and unless 1 <= last <= budget.
    """
    if not 1 <= last <= budget:
        raise ValueError("the law needs 1 <= last <= budget")
    return EndLaw(_until(1, last, alpha, budget, copies))


class _Stop(NamedTuple):
    """Rule of a walk's end: at the crossing, not before step `least`, and at `last` at the latest. A step is a group of
    pairs, or a block of two `copies`, which are two pairs.
    """

    alpha: float
    budget: int
    least: int
    last: int
    group: int
    copies: int = 1


def _stop(least: int, pairs: int, alpha: float, budget: int, copies: int) -> _Stop:
    # In powers of two, so that walks once made serve for many a crossing.
    return _until(least, min(budget, _power_of_two(_REACH * pairs)), alpha, budget, copies)


def _power_of_two(pairs: int) -> int:
    return math.ceil(WALKED * 2.0 ** math.ceil(math.log2(pairs / WALKED)))


def _until(least: int, last: int, alpha: float, budget: int, copies: int) -> _Stop:
    if copies == 2 and last <= WALKED:
        return _Stop(alpha, budget, -(-least // 2), max(1, last // 2), 2, 2)
    group = -(-last // WALKED)
    if group == 1:
        return _Stop(alpha, budget, least, last, 1)
    # Spending runs over log n: the same rate over fewer steps is that of another alpha.
    first, fewer = first_crossing(alpha), budget // group
    alpha *= math.log((fewer + 1) / first) / math.log((budget + 1) / first)
    return _Stop(alpha, fewer, least // group, last // group, group)


def _solve(stop: _Stop, estimate: float) -> float:
    place = math.ceil(math.log(estimate) / _GRID)
    high, above = math.inf, math.inf
    while True:
        theta = math.exp(_GRID * place)
        expected = _expected(stop, place)
        if expected <= estimate:
            break
        high, above, place = theta, expected, place - 1
    solution = theta + (high - theta) * (estimate - expected) / (above - expected) if math.isfinite(high) else theta
    return min(estimate, solution)  # beyond it lies the simulation's own error: a correction never makes more of it


@lru_cache(maxsize=4096)
def _expected(stop: _Stop, place: int) -> float:
    theta = math.exp(_GRID * place)
    return _mean(theta, *_walks(stop, theta))


def _mean(theta: float, ends: Numbers, sums: Numbers) -> float:
    error = sums / ends  # of the estimate
    spread = float(np.var(sums))
    slope = float(np.mean(error * (sums - np.mean(sums)))) / spread if spread > 0 else 0.0
    return theta + float(np.mean(error) - slope * np.mean(sums))


def _walks(stop: _Stop, theta: float) -> tuple[Numbers, Numbers]:
    law = _Blocks(stop, theta) if stop.copies == 2 else _Pairs(stop, theta)
    streams = min(_STREAMS, _WORK // stop.last)
    ends, sums = np.empty((2, streams))
    going = np.arange(streams)
    crossed = np.zeros(streams, dtype=np.bool_)
    walk, size, total = np.zeros((3, streams))
    for start in range(0, stop.last, _STEP):
        numbers = np.arange(start + 1, min(start + _STEP, stop.last) + 1)
        noise = _noise(start)[going, : len(numbers)]
        scores = law.scores(np.abs(noise + theta), start)
        walks = walk[:, None] + np.cumsum(np.where(noise > -theta, scores, -scores), axis=1)
        whole = size[:, None] + np.cumsum(scores, axis=1)
        totals = total[:, None] + np.cumsum(noise, axis=1)
        beyond = np.logical_or.accumulate(np.abs(walks) >= law.levels(whole, start), axis=1) | crossed[:, None]
        over = (beyond & (numbers >= stop.least)) | (numbers == stop.last)
        ended, at = over.any(axis=1), over.argmax(axis=1)
        ends[going[ended]], sums[going[ended]] = numbers[at[ended]], totals[ended, at[ended]]
        left = ~ended
        going, crossed = going[left], beyond[left, -1]
        walk, size, total = walks[left, -1], whole[left, -1], totals[left, -1]
        if not len(going):
            break
    return ends, sums


class _Pairs:
    """Scores of the sizes of steps from `start` on, and levels from the sums of scores: of pairs, or groups of them."""

    def __init__(self, stop: _Stop, theta: float) -> None:
        grid, below = sizes(theta)
        self._edges, self._shares = np.interp(STEPS, below, grid), _shares(stop.alpha, stop.budget, stop.last)

    def scores(self, absolute: Numbers, start: int) -> Integers:
        return np.searchsorted(self._edges, absolute, "right") if start else _ranked(absolute)

    def levels(self, whole: Numbers, start: int) -> Numbers:
        return self._shares[start : start + whole.shape[1]] * whole


@lru_cache(maxsize=64)
def _shares(alpha: float, budget: int, pairs: int) -> Numbers:
    steps = typical(alpha, budget, pairs)
    sums = np.cumsum([scores for scores, _ in steps])
    levels = np.array([math.inf if boundary is None else boundary for _, boundary in steps])
    shares: Numbers = levels / np.maximum(sums, 1)
    return shares - 1e-9  # where all have to agree, the share is 1 whatever the rounding


class _Blocks:
    """The same of blocks with two copies."""

    def __init__(self, stop: _Stop, theta: float) -> None:
        (grid, moved), (at_rest, resting) = sizes(theta), sizes(0.0)
        every = (moved + 2 * np.interp(grid, at_rest, resting, right=1.0)) / 3
        self._edges, self._levels = np.interp(STEPS, every, grid), _block_levels(stop.alpha, stop.budget, stop.last)

    def scores(self, absolute: Numbers, start: int) -> Integers:
        highest = [_highest_score(number) for number in range(start + 1, start + 1 + absolute.shape[1])]
        return np.minimum(np.searchsorted(self._edges, absolute, "right"), highest)

    def levels(self, whole: Numbers, start: int) -> Numbers:
        return self._levels[start : start + whole.shape[1]]


def _highest_score(blocks: int) -> int:
    """Return the highest score that a placing can have among those of so many blocks."""
    return bisect_right(STEPS, 1 - 1 / (6 * blocks))


@lru_cache(maxsize=64)
def _block_levels(alpha: float, budget: int, blocks: int) -> Numbers:
    """Return the boundary after each block, on average: of a walk by any placing, with either sign. Infinite while
    nothing can cross.
    """
    ranks = np.diff(np.append(STEPS, 1.0)) / 2
    spending, spent = log_spending(alpha, budget, 2), 0.0
    null, levels = np.ones(1), np.full(blocks, math.inf)  # the walk's law at -reach, ..., reach
    for index in range(blocks):
        most = _highest_score(index + 1)
        half = np.append(ranks[: most - 1], ranks[most - 1 :].sum())
        null = np.convolve(null, np.concatenate((half[::-1], [0.0], half)))
        reach = len(null) // 2
        tail = np.cumsum(null[:reach:-1])
        level = reach + 1 - int(np.searchsorted(2 * tail, alpha * spending(2 * index + 2) - spent, "right"))
        if level <= reach:
            spent += 2 * float(tail[reach - level])
            null, levels[index] = null[reach - level + 1 : reach + level], level
    return levels


@lru_cache(maxsize=-(-WALKED // _STEP))
def _noise(start: int) -> Numbers:
    half = np.random.default_rng((_STREAMS, start)).standard_normal((_STREAMS // 2, _STEP))
    return np.stack((half, -half), axis=1).reshape(_STREAMS, _STEP)


def _ranked(rows: Numbers) -> Integers:
    ranks = np.empty(rows.shape, dtype=np.int64)
    for place, table in enumerate(_by_rank()[: rows.shape[1]]):
        ranks[:, place] = table[np.count_nonzero(rows[:, :place] < rows[:, place : place + 1], axis=1)]
    return ranks


@cache
def _by_rank() -> tuple[Integers, ...]:
    return tuple(
        np.array([magnitudes([*range(1, pairs), rank + 0.5])[-1] for rank in range(pairs)])
        for pairs in range(1, _STEP + 1)
    )
