"""The ledger once more, from the magnitudes alone, by code that shares nothing with the code under test.

Written from the description, not for speed: scores from `statistics.NormalDist`, the law of the walk as a dictionary
of whole numbers (how many of the 2^t sign vectors are at each sum and have not crossed), so that every probability is
exact. Nothing here imports from `hugewise.stats`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from statistics import NormalDist


def scores(magnitudes: Sequence[float]) -> list[int]:
    """Normal scores in tenths, from 1 to 31, from the mid-rank of each magnitude among those up to it; 0 for a zero."""
    found = []
    for t, new in enumerate(magnitudes, 1):
        seen = magnitudes[:t]
        rank = sum(old < new for old in seen) + (sum(old == new for old in seen) + 1) / 2
        share = (rank - 0.5) / t
        score = max(1, min(31, round(10 * NormalDist().inv_cdf((1 + share) / 2))))
        found.append(0 if new == 0 else score)
    return found


def allowed(pairs: int, alpha: float, budget: int) -> float:
    """Return the error that may be spent after so many pairs: log(t + 1) from ceil(log2(2/alpha)) up to the budget."""
    first = math.ceil(math.log2(2 / alpha))
    if budget + 1 <= first or pairs + 1 <= first:
        return 0.0
    return alpha * min(1.0, math.log((pairs + 1) / first) / math.log((budget + 1) / first))


def boundaries(magnitudes: Sequence[float], alpha: float, budget: int) -> tuple[list[int | None], list[Fraction]]:
    """Return the boundary after each pair (None where nothing can cross), and the exact error spent."""
    return crossings(scores(magnitudes), alpha, budget)


def crossings(scores: Sequence[int], alpha: float, budget: int) -> tuple[list[int | None], list[Fraction]]:
    """Return the ledger from the scores, in which the walk takes its steps."""
    walks = Counter({0: 1})
    crossed = 0
    found: list[int | None] = []
    spent: list[Fraction] = []
    for t, score in enumerate(scores, 1):
        moved: Counter[int] = Counter()
        for at, count in walks.items():
            moved[at + score] += count
            moved[at - score] += count
        walks, crossed = moved, 2 * crossed
        may_cross = Fraction(allowed(t, alpha, budget)) * 2**t - crossed
        boundary, beyond = None, 0
        for distance in sorted({abs(at) for at in walks} - {0}, reverse=True):
            beyond += walks[distance] + walks[-distance]
            if beyond > may_cross:
                break
            boundary = distance
        if boundary is not None:
            for at in [at for at in walks if abs(at) >= boundary]:
                crossed += walks.pop(at)
        found.append(boundary)
        spent.append(Fraction(crossed, 2**t))
    return found, spent
