"""Pairs that the sequential sign-flip test needs, and effects that given pairs can show.

Differences D are taken for normal with mean `shift` times their standard deviation; heavier tails need fewer pairs than
that (Chernoff and Savage 1958, Ann. Math. Statist. 29:972). `paired.scale` is the deviation that the test itself sees.

Up to 2,000 pairs: the law of the walk by dynamic programming against the real boundary, with coins that lean (a
magnitude x has sign +1 with chance 1/(1 + exp(-2 shift x))) over the magnitudes of a typical sequence (quantiles by the
van der Corput sequence). Walks have shifts 0.1 sinh(k/5); between two of these the chance's normal score is taken for
straight. Beyond: a Brownian motion against b sqrt(n), with b phi(b) exp(-0.583 b/sqrt(n)) = alpha / log((N + 1)/n0)
(Siegmund 1985, Sequential Analysis, ch. 4 and 10.5), crossed by n with the chance of the boundary's tangent,
Phi(r - b) + exp(b r - b^2/2) Phi(-r), r = drift sqrt(n) (Ferebee 1982, Z. Wahrsch. 61:309). The number of pairs is
within 8% (or one pair) of simulations (`tests/stats/test_power.py`).

With two copies of each side in a block, the differences of its three placings are independent: that of the drawn one is
normal with mean `shift` times sqrt(2), those of the two others with mean 0, in units of their deviation, which is that
of a pair over sqrt(2). Given the three magnitudes x, a placing was drawn with sign +-1 with a chance in proportion to
exp(+-shift x). Chances are averaged over 1 to 8 typical sequences: Halton's points (1960, Numer. Math. 2:84), shifted
at random (Cranley and Patterson 1976, SIAM J. Numer. Anal. 13:904). Pairs are within a tenth or two blocks of
simulations.

Assurance. A pilot gives the deviation s of a pair, not sigma, so chances are averaged over sigma = s / sqrt(chi^2_f/f),
f the pilot's degrees of freedom (O'Hagan, Stevens and Campbell 2005, Pharm. Stat. 4:187), by Gauss-Hermite quadrature
with 7 points. The promise is kept over repeated pilots too (`tools.verification.planning`). A shift is an effect in
units of s; only the spread is averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache

import numpy as np

from hugewise.stats.method import Numbers
from hugewise.stats.signflip import Boundary, Placings, Scores, first_crossing

MOST = 1_000_000
"""More pairs than this are not forecast."""

MOST_DECLARED = 1000
_LEAST_DECLARED = 24

WALKED = 2_000
"""Up to here the walk is followed exactly; beyond it is taken for a Brownian motion."""
PIECES = (250, WALKED)
"""Numbers of pairs that are followed first, as these often suffice."""
_SHORT = {1: 400, 2: 100}  # pairs up to which walks cost little, by copies


def declared(fitting: int) -> int:
    """Return the pairs that a test is declared for: twice as many as seem to fit into its time after a first look."""
    return min(MOST_DECLARED, max(_LEAST_DECLARED, 2 * fitting))


_AGREEING = {1: (1,), 2: (2, 1, 1)}  # scores of a block whose drawn placing has the largest difference


@cache
def least_pairs(alpha: float, budget: int, copies: int = 1) -> int | None:
    """Return the fewest pairs after which a verdict is possible: all differences with one sign. None where none is.

    2 * 2^-n has to fit into what is spent by then: somewhat later than 2 * 2^-n <= alpha. With the
    scores of real data it can be one pair later. `copies`: of either side in a block.
    """
    boundary, agreeing = Boundary(alpha, budget, copies=copies), _AGREEING[copies]
    for pairs in range(copies, min(budget, WALKED) + 1, copies):
        if boundary.step(*agreeing) is not None:
            return pairs
    return None


def power(shift: float, pairs: int, alpha: float, budget: int | None = None, copies: int = 1) -> float:
    """Return the chance of a verdict in the right direction within `pairs` pairs of the declared `budget` (default:
    `pairs`), in blocks of `copies`.

    `shift` is |mean| / standard deviation of the pair difference. Raises ValueError on numbers out of range.
    """
    budget = pairs if budget is None else budget
    if shift < 0 or pairs < 1 or budget < pairs:
        raise ValueError("power needs shift >= 0 and 1 <= pairs <= budget")
    if pairs <= WALKED:
        return float(_walked(shift, alpha, budget, pairs, copies)[pairs - 1])
    return float(brownian(drift_of(shift), pairs, alpha, budget, copies))


def power_curve(shift: float, alpha: float, budget: int, pairs: int = WALKED, copies: int = 1) -> Numbers:
    """The chance of a verdict in the right direction after each of the first `pairs`, at most `WALKED`, of `budget`."""
    return _walked(shift, alpha, budget, min(budget, pairs, WALKED), copies)


def first_enough(enough: Callable[[int], bool], start: int, most: int) -> int | None:
    """Return the least n from `start` to `most` that is enough, where enough for n is enough for all that are larger.

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


def least_effect(enough: Callable[[float], bool], low: float, high: float, *, to: float) -> float | None:
    """Return the least effect between `low` and `high` that is enough, to this ratio; None where `high` is not."""
    if not enough(high):
        return None
    while high / low > to:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def least_own_budget(
    near: Callable[[int], float], exact: Callable[[int], float], alpha: float, *, chance: float, copies: int = 1
) -> int | None:
    """Return the least n that gives this chance when it is the budget, up to `MOST`.

    `near` is the chance by the Brownian approximation, `exact` that of the walk. Where walks are long, one of them says
    by how much the other is wrong in normal scores, which changes slowly with n.
    """
    from scipy.special import ndtr, ndtri  # noqa: PLC0415  (slow to load)

    least = first_crossing(alpha, copies)
    guess = first_enough(lambda n: near(n) >= chance, least, MOST)
    if guess is None or guess > WALKED:
        return guess
    if guess <= _SHORT[copies]:
        return first_enough(lambda n: exact(n) >= chance, least, MOST)
    target = float(ndtr(ndtri(chance) + ndtri(near(guess)) - ndtri(exact(guess))))
    return first_enough(lambda n: near(n) >= target, least, MOST)


_LARGEST = 700.0  # of what has a finite exponential
_BASES = (2, 3, 5)  # of the van der Corput sequences, one for each placing
_SEQUENCES = 8  # of blocks with copies, at most
_BLOCKS = 600  # of all sequences together: long ones are fewer, as they differ less
_STRAIGHT, _GRID = 0.1, 0.2  # of the shifts that are followed

Step = tuple[tuple[int, ...], int | None]  # scores of a block's placings, and the boundary after it


@cache
def _quantiles(placings: int) -> Numbers:
    """Return points in the unit cube, shape (sequences, blocks, placings). The one sequence of pairs is not shifted."""
    shifts = np.zeros((1, 1, 1)) if placings == 1 else np.random.default_rng(0).random((_SEQUENCES, 1, placings))
    points: Numbers = np.array([_corput(base) for base in _BASES[:placings]]).T
    return (points + shifts) % 1


def _corput(base: int) -> Numbers:
    rest, step, quantiles = np.arange(1, WALKED + 1), 1.0, np.zeros(WALKED)
    while rest.any():
        step /= base
        quantiles += step * (rest % base)
        rest //= base
    return quantiles


@lru_cache(maxsize=64)
def typical(alpha: float, budget: int, pairs: int) -> tuple[Step, ...]:
    """Score and boundary of each pair of the typical sequence."""
    return tuple(_steps(_quantiles(1)[0, :pairs], Boundary(alpha, budget)))


def _steps(magnitudes: Numbers, boundary: Boundary) -> Iterator[Step]:
    scored = Scores()
    for block in magnitudes.tolist():
        scores = scored.add(Placings(tuple(block)))
        yield scores, boundary.step(*scores)


def _typical_sizes(shift: float, blocks: int, placings: int) -> Numbers:
    """Return |D| of the placings of typical blocks, the drawn one's first, in the shape of `_quantiles`."""
    (grid, moved), (at_rest, resting) = sizes(shift), sizes(0.0)
    found: Numbers = _quantiles(placings)[: max(1, _BLOCKS // max(1, blocks)), :blocks].copy()
    found[..., 0] = np.interp(found[..., 0], moved, grid)
    found[..., 1:] = np.interp(found[..., 1:], resting, at_rest)
    return found


@lru_cache(maxsize=256)
def _walked(shift: float, alpha: float, budget: int, pairs: int, copies: int = 1) -> Numbers:
    from scipy.special import ndtr, ndtri  # noqa: PLC0415  (slow to load)

    mark = math.floor(math.asinh(shift / _STRAIGHT) / _GRID)
    low, high = (_STRAIGHT * math.sinh(_GRID * each) for each in (mark, mark + 1))
    below, above = (ndtri(_marked(each, alpha, budget, pairs // copies, copies)) for each in (low, high))
    chances = ndtr(below + (shift - low) / (high - low) * (above - below))
    return np.concatenate((np.zeros(copies - 1), np.repeat(chances, copies)))[:pairs]


@lru_cache(maxsize=1024)
def _marked(shift: float, alpha: float, budget: int, blocks: int, copies: int) -> Numbers:
    """Return the chance after each block, on average over typical sequences, where its normal score is finite."""
    effect, curves = shift * math.sqrt(copies), list[Numbers]()
    for each in _typical_sizes(effect, blocks, 2 * copies - 1):
        own: Iterable[Step] = _steps(each, Boundary(alpha, budget, copies=copies))
        curves.append(_followed(effect, each, typical(alpha, budget, blocks) if copies == 1 else own))
    chances: Numbers = np.clip(np.mean(curves, axis=0), 1e-12, 1 - 1e-12)
    return chances


def _followed(shift: float, magnitudes: Numbers, steps: Iterable[Step]) -> Numbers:
    """Return the chance of having crossed upwards after each of these blocks, given all magnitudes."""
    chances, mass, crossed = np.empty(len(magnitudes)), np.ones(1), 0.0  # of the walk at -reach, ..., reach
    upward = _upward(shift, magnitudes)
    leaning = np.hstack((upward, upward * np.exp(-2 * shift * magnitudes)))[..., None]
    for index, ((scores, level), lean) in enumerate(zip(steps, leaning, strict=True)):
        most, width = max(scores), len(mass)
        moved = np.zeros(width + 2 * most)
        for score, part in zip((*scores, *(-score for score in scores)), lean * mass, strict=True):
            place = moved[most + score : most + score + width]
            place += part
        mass, reach = moved, len(moved) // 2
        if level is not None:
            crossed += float(mass[reach + level :].sum())
            mass = mass[max(0, reach - level + 1) : reach + level]
        chances[index] = crossed
        if crossed > 1 - 1e-9:
            chances[index:] = crossed
            break
    return chances


def _upward(shift: float, magnitudes: Numbers) -> Numbers:
    """Return the chance that each placing was the drawn one with the sign +1, given the magnitudes of its block."""
    apart = magnitudes[:, None, :] - magnitudes[:, :, None]  # of the others from each
    together = magnitudes[:, None, :] + magnitudes[:, :, None]
    total: Numbers = (np.exp(np.minimum(shift * apart, _LARGEST)) + np.exp(-shift * together)).sum(axis=2)
    return 1 / total


def sizes(shift: float) -> tuple[Numbers, Numbers]:
    """Return a grid of |D| in standard deviations, and its distribution function there."""
    from scipy.special import ndtr  # noqa: PLC0415  (slow to load)

    grid = np.linspace(0.0, shift + 9.0, 4001)
    return grid, ndtr(grid - shift) - ndtr(-grid - shift)


@lru_cache(maxsize=256)
def drift_of(shift: float) -> float:
    """Return the expected score of a pair, in units of the scores' standard deviation under the null."""
    from scipy.special import ndtri  # noqa: PLC0415  (slow to load)

    grid, below = sizes(shift)
    score = ndtri((1 + np.minimum(below, 1 - 1e-15)) / 2)
    return float(np.sum(score[:-1] * np.tanh(shift * grid[:-1]) * np.diff(below)))


def _height(moved: Numbers, spent: float) -> Numbers:
    low, high = np.full_like(moved, 1.0), np.full_like(moved, 40.0)
    for _ in range(27):  # to 1e-6
        b = (low + high) / 2
        rate = b * np.exp(-b * b / 2 - 0.583 * b / np.sqrt(moved)) / math.sqrt(2 * math.pi)
        above = rate > spent
        low, high = np.where(above, b, low), np.where(above, high, b)
    return high


def brownian(drift: Numbers | float, pairs: int, alpha: float, budget: int, copies: int = 1) -> Numbers:
    """Return the chance of having crossed upwards by `pairs`, by the tangent of the boundary there.

    `drift` is the walk's in a pair, in standard deviations of its step; it may be a row.
    """
    from scipy.special import erfcx, ndtr  # noqa: PLC0415  (slow to load)

    moved = np.asarray(pairs, dtype=np.float64)
    b = _height(moved, alpha / math.log((budget + 1) / first_crossing(alpha, copies)))
    r = drift * np.sqrt(moved)
    # exp(r^2/2) Phi(-r) is finite where its factors are not.
    chance = ndtr(r - b) + np.exp(np.minimum(0.0, b * r - b * b / 2 - r * r / 2)) * erfcx(r / math.sqrt(2)) / 2
    return np.asarray(np.minimum(1.0, chance))


def student_power(shift: float, pairs: int, level: float) -> float:
    """The chance that a two-sided paired t test at a fixed number of pairs finds this shift, in its direction."""
    from scipy.special import nctdtr, stdtrit  # noqa: PLC0415  (slow to load)

    freedom = pairs - 1
    return 1 - float(nctdtr(freedom, shift * math.sqrt(pairs), stdtrit(freedom, 1 - level / 2)))


KNOWN = math.inf
"""Degrees of freedom of a spread that is known: s is sigma."""

_NODES = 7


@lru_cache(maxsize=64)
def nodes(freedom: float) -> tuple[tuple[float, float], ...]:
    """Weights, and the values of s/sigma that have them. Raises ValueError unless freedom > 0."""
    if freedom == KNOWN:
        return ((1.0, 1.0),)
    from scipy.special import chdtri, ndtr  # noqa: PLC0415  (slow to load)

    if not freedom > 0:
        raise ValueError("a spread needs some degrees of freedom")
    points, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    factors = np.sqrt(chdtri(freedom, ndtr(-points)) / freedom)
    return tuple(zip((weights / weights.sum()).tolist(), factors.tolist(), strict=True))


def averaged(chance: Callable[[float], float], freedom: float) -> float:
    """The mean of `chance(s/sigma)` over what a deviation s with so many degrees of freedom leaves open of sigma."""
    return math.fsum(weight * chance(factor) for weight, factor in nodes(freedom))


@lru_cache(maxsize=1024)
def pairs_for_assurance(
    shift: float, freedom: float, alpha: float, *, chance: float = 0.9, budget: int | None = None, copies: int = 1
) -> int | None:
    """Return pairs after which the sequential test has a verdict with this chance, on average over sigma.

    Of the declared `budget`; without one, the smallest budget that gives this chance when it is the one declared. None
    where that is beyond the budget, or `power.MOST`.
    """
    if shift <= 0:
        return None
    if budget is None:
        return _undeclared(shift, freedom, alpha, chance, copies)
    for pairs in PIECES:
        curves = [
            weight * power_curve(shift * factor, alpha, budget, pairs, copies) for weight, factor in nodes(freedom)
        ]
        curve = np.sum(curves, axis=0)
        if curve[-1] >= chance:
            return int(np.searchsorted(curve, chance)) + 1
    if budget <= WALKED:
        return None
    return first_enough(
        lambda n: averaged(lambda factor: power(shift * factor, n, alpha, budget, copies), freedom) >= chance,
        WALKED + 1,
        budget,
    )


@lru_cache(maxsize=256)
def shift_shown(pairs: int, freedom: float, alpha: float, *, chance: float = 0.9, copies: int = 1) -> float | None:
    """Return the shift that `pairs` declared pairs show with this chance, on average over sigma, to 0.5%.

    None where even differences that all agree would not.
    """
    if least_pairs(alpha, pairs, copies) is None:
        return None
    return _shown(lambda shift: power(shift, pairs, alpha, copies=copies), freedom, chance, 16.0)


@lru_cache(maxsize=256)
def student_needed(shift: float, freedom: float, level: float, *, chance: float = 0.9) -> int | None:
    """Return the pairs that a paired t test at a fixed number of them needs, at least those whose coins allow a
    verdict; None beyond `power.MOST`.
    """
    if shift <= 0:
        return None
    return first_enough(
        lambda n: averaged(lambda factor: student_power(shift * factor, n, level), freedom) >= chance,
        first_crossing(level),
        MOST,
    )


@lru_cache(maxsize=256)
def student_shift(pairs: int, freedom: float, level: float, *, chance: float = 0.9) -> float | None:
    """Return the shift that a paired t test shows with this chance, to 0.5%; None where it is beyond 1,000, and where
    the coins of so many pairs allow no verdict.
    """
    if pairs < first_crossing(level):
        return None
    return _shown(lambda shift: student_power(shift, pairs, level), freedom, chance, 1e3)


def _shown(power_of: Callable[[float], float], freedom: float, chance: float, most: float) -> float | None:
    return least_effect(
        lambda shift: averaged(lambda factor: power_of(shift * factor), freedom) >= chance, 1e-4, most, to=1.005
    )


def _undeclared(shift: float, freedom: float, alpha: float, chance: float, copies: int) -> int | None:
    weights, drifts = np.array([(weight, drift_of(shift * factor)) for weight, factor in nodes(freedom)]).T
    return least_own_budget(
        lambda n: float(weights @ brownian(drifts, n, alpha, n, copies)),
        lambda n: averaged(lambda factor: power(shift * factor, n, alpha, copies=copies), freedom),
        alpha,
        chance=chance,
        copies=copies,
    )
