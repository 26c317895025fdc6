"""How many pairs the sequential sign-flip test needs, and what it can see with those that there are.

The forecast is for differences D that are normal with mean `shift` times their standard deviation. With heavier tails
fewer pairs are needed than forecast from the standard deviation, as the scores lose nothing to the t test (Chernoff and
Savage 1958, Ann. Math. Statist. 29:972); `spread.scale` is the deviation that the test itself sees.

Up to 2,000 pairs. The law of the walk by dynamic programming, as for the boundary but with coins that lean: a
magnitude x standard deviations large has sign +1 with chance 1/(1 + exp(-2 shift x)). Magnitudes are those of a typical
sequence: their quantiles are the van der Corput sequence in base 2, which fills the unit interval evenly at every
length. The boundary is the real one (`boundary.Boundary`) over the real scores of these magnitudes.

Beyond. The walk is taken for a Brownian motion with the drift of the expected score, against a boundary b * sqrt(n)
of constant b: spending over log n crosses it at the rate b phi(b) per unit of log n for continuous looks, times
exp(-0.583 b/sqrt(n)) for one a pair (Siegmund 1985, Sequential Analysis, ch. 4 and 10.5), so that b solves
b phi(b) exp(-0.583 b/sqrt(n)) = alpha / log((N + 1)/n0). The chance of having crossed by n is that of the boundary's
tangent at n (Ferebee 1982, Z. Wahrsch. 61:309): Phi(r - b) + exp(b r - b^2/2) Phi(-r), r = drift sqrt(n).

Error: the number of pairs is within 8% (or one pair) of simulations of the real test on normal differences, at
medians and 90% points (`tests/stats/test_power.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np

from hugewise.stats.boundary import Boundary, first_crossing
from hugewise.stats.numbers import Numbers
from hugewise.stats.scores import magnitudes

__all__ = [
    "MOST",
    "PIECES",
    "WALKED",
    "brownian",
    "curve",
    "drift_of",
    "first_enough",
    "least",
    "least_pairs",
    "power",
    "sizes",
    "student_power",
    "typical",
    "undeclared",
]

MOST = 1_000_000
"""More pairs than this are not forecast."""

WALKED = 2_000
"""Up to here the walk is followed exactly; beyond it is taken for a Brownian motion."""
PIECES = (250, WALKED)
"""So far it is followed first, as that is often far enough."""
_SHORT = 400  # pairs up to which walks cost nothing


@cache
def least_pairs(alpha: float, budget: int) -> int | None:
    """The fewest pairs after which a verdict is possible: all differences with one sign. None where none is.

    2 * 2^-n has to fit into what is spent by then: somewhat later than 2 * 2^-n <= alpha. With the
    scores of real data it can be one pair later.
    """
    boundary = Boundary(alpha, budget)
    for pairs in range(1, min(budget, WALKED) + 1):
        if boundary.step(1) is not None:
            return pairs
    return None


def power(shift: float, pairs: int, alpha: float, budget: int | None = None) -> float:
    """The chance of a verdict in the right direction within `pairs` pairs of the declared `budget` (default: `pairs`).

    `shift` is |mean| / standard deviation of the pair difference. Raises ValueError on numbers out of range.
    """
    budget = pairs if budget is None else budget
    if shift < 0 or pairs < 1 or budget < pairs:
        raise ValueError("power needs shift >= 0 and 1 <= pairs <= budget")
    if pairs <= WALKED:
        return float(_walked(shift, alpha, budget, pairs)[pairs - 1])
    return float(brownian(drift_of(shift), pairs, alpha, budget))


def curve(shift: float, alpha: float, budget: int, pairs: int = WALKED) -> Numbers:
    """The chance of a verdict in the right direction after each of the first `pairs`, at most `WALKED`, of `budget`."""
    return _walked(shift, alpha, budget, min(budget, pairs, WALKED))


def first_enough(enough: Callable[[int], bool], start: int, most: int) -> int | None:
    """The least n from `start` to `most` that is enough, where enough for n is enough for all that are larger.

    To 1 in 500.
    """
    below, above = start - 1, start
    while not enough(above):
        if above >= most:
            return None
        below, above = above, min(2 * above, most)
    while above - below > max(1, above // 500):
        middle = (below + above) // 2
        below, above = (below, middle) if enough(middle) else (middle, above)
    return above


def least(enough: Callable[[float], bool], low: float, high: float, *, to: float) -> float | None:
    """The least effect between `low` and `high` that is enough, to this ratio; None where `high` is not."""
    if not enough(high):
        return None
    while high / low > to:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def undeclared(
    near: Callable[[int], float], exact: Callable[[int], float], alpha: float, *, chance: float
) -> int | None:
    """The least n that gives this chance when it is the budget, up to `MOST`.

    `near` is the chance by the Brownian approximation, `exact` that of the walk. Where walks are long, one of them says
    by how much the other is wrong in normal scores, which changes slowly with n.
    """
    from scipy.special import ndtr, ndtri  # noqa: PLC0415  (slow to load)

    least = first_crossing(alpha)
    guess = first_enough(lambda n: near(n) >= chance, least, MOST)
    if guess is None or guess > WALKED:
        return guess
    if guess <= _SHORT:
        return first_enough(lambda n: exact(n) >= chance, least, MOST)
    target = float(ndtr(ndtri(chance) + ndtri(near(guess)) - ndtri(exact(guess))))
    return first_enough(lambda n: near(n) >= target, least, MOST)


@cache
def _quantiles() -> Numbers:
    """The van der Corput sequence in base 2 (1935): 1/2, 1/4, 3/4, 1/8, ..."""
    found = np.zeros(WALKED)
    for index in range(1, WALKED + 1):
        rest, step = index, 0.5
        while rest:
            found[index - 1] += step * (rest & 1)
            rest, step = rest >> 1, step / 2
    return found


@lru_cache(maxsize=64)
def typical(alpha: float, budget: int, pairs: int) -> tuple[tuple[int, int | None], ...]:
    """Score and boundary of each pair of the typical sequence."""
    boundary = Boundary(alpha, budget)
    return tuple((int(score), boundary.step(int(score))) for score in magnitudes(_quantiles()[:pairs]))


@lru_cache(maxsize=256)
def _walked(shift: float, alpha: float, budget: int, pairs: int) -> Numbers:
    """The chance of having crossed upwards after each of `pairs` pairs."""
    steps = typical(alpha, budget, pairs)
    grid, below = sizes(shift)
    lean = 1 / (1 + np.exp(-2 * shift * np.interp(_quantiles()[:pairs], below, grid)))
    middle = sum(score for score, _ in steps) + 1
    mass = np.zeros(2 * middle + 1)
    mass[middle] = 1.0
    low = high = middle
    crossed, chances = 0.0, np.empty(pairs)
    for index, ((score, boundary), up) in enumerate(zip(steps, lean, strict=True)):
        if score:
            before = mass[low : high + 1].copy()
            mass[low : high + 1] = 0.0
            mass[low + score : high + score + 1] += up * before
            mass[low - score : high - score + 1] += (1 - up) * before
            low, high = low - score, high + score
        if boundary is not None:
            top, bottom = middle + boundary, middle - boundary
            crossed += float(mass[top : high + 1].sum())
            mass[top : high + 1] = 0.0
            mass[low : bottom + 1] = 0.0
            low, high = max(low, bottom + 1), min(high, top - 1)
        chances[index] = crossed
        if low > high or crossed > 1 - 1e-9:
            chances[index:] = crossed
            break
    return chances


def sizes(shift: float) -> tuple[Numbers, Numbers]:
    """A grid of |D| in standard deviations, and its distribution function there."""
    from scipy.special import ndtr  # noqa: PLC0415  (slow to load)

    grid = np.linspace(0.0, shift + 9.0, 4001)
    return grid, ndtr(grid - shift) - ndtr(-grid - shift)


@lru_cache(maxsize=256)
def drift_of(shift: float) -> float:
    """The expected score of a pair, in units of the scores' standard deviation under the null."""
    from scipy.special import ndtri  # noqa: PLC0415  (slow to load)

    grid, below = sizes(shift)
    score = ndtri((1 + np.minimum(below, 1 - 1e-15)) / 2)
    return float(np.sum(score[:-1] * np.tanh(shift * grid[:-1]) * np.diff(below)))


def _height(moved: Numbers, spent: float) -> Numbers:
    """The boundary after `moved` steps in standard deviations of the walk; `spent` is alpha per unit of log n."""
    low, high = np.full_like(moved, 1.0), np.full_like(moved, 40.0)
    for _ in range(27):  # to 1e-6
        b = (low + high) / 2
        rate = b * np.exp(-b * b / 2 - 0.583 * b / np.sqrt(moved)) / math.sqrt(2 * math.pi)
        above = rate > spent
        low, high = np.where(above, b, low), np.where(above, high, b)
    return high


def brownian(drift: Numbers | float, pairs: int, alpha: float, budget: int, moving: Numbers | float = 1.0) -> Numbers:
    """The chance of having crossed upwards by `pairs`, by the tangent of the boundary there.

    `drift` is the walk's in a pair that moves it, in standard deviations of its step; `moving` the share of such pairs.
    Both may be rows.
    """
    from scipy.special import erfcx, ndtr  # noqa: PLC0415  (slow to load)

    moved = pairs * np.asarray(moving, dtype=np.float64)
    b = _height(moved, alpha / math.log((budget + 1) / first_crossing(alpha)))
    r = drift * np.sqrt(moved)
    # exp(r^2/2) Phi(-r) is finite where its factors are not.
    chance = ndtr(r - b) + np.exp(np.minimum(0.0, b * r - b * b / 2 - r * r / 2)) * erfcx(r / math.sqrt(2)) / 2
    return np.asarray(np.minimum(1.0, chance))


def student_power(shift: float, pairs: int, level: float) -> float:
    """The chance that a two-sided paired t test at a fixed number of pairs finds this shift, in its direction."""
    from scipy.special import nctdtr, stdtrit  # noqa: PLC0415  (slow to load)

    freedom = pairs - 1
    return 1 - float(nctdtr(freedom, shift * math.sqrt(pairs), stdtrit(freedom, 1 - level / 2)))
