"""The ledger of alpha spent, recomputed: by an independent implementation, and by counting sign vectors.

Both need the magnitudes alone. It must agree with the independent one at every pair, never exceed what may be spent by
then, and, for few pairs, be the share of the sign vectors whose verdict falls by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from hugewise.verification import independent, magnitudes
from hugewise.verification.candidate import Candidate
from hugewise.verification.finding import Finding, Task
from hugewise.verification.generators import Floats

__all__ = ["counted", "recomputed", "tasks"]

ALPHAS = (0.2, 0.05, 0.01, 0.0001)
AGREE = 1e-9  # relative difference that rounding may make


def recomputed(candidate: Candidate, what: str, vector: Floats, alpha: float, budget: int) -> Sequence[Finding]:
    """The candidate's ledger against the independent one, pair by pair."""
    n = len(vector)
    claimed = candidate.spent(vector, alpha, budget)
    _, exact = independent.boundaries(vector.tolist(), alpha, budget)
    over = [t for t in range(n) if exact[t] > Fraction(independent.allowed(t + 1, alpha, budget))]
    apart = max((abs(float(claimed[t] - exact[t])) for t in range(n)), default=0.0)
    claimed_over = [
        t
        for t in range(n)
        if claimed[t] > independent.allowed(t + 1, alpha, budget) * (1 + AGREE) or claimed[t] > alpha
    ]
    return [
        Finding(
            check="ledger",
            case=f"{what}, n {n}/{budget}, alpha {alpha:g}",
            seen=f"{float(claimed[-1]):.4g} (off {apart:.0e})",
            required="recomputed",
            passed=apart <= AGREE * alpha and not over and not claimed_over,
        )
    ]


def counted(candidate: Candidate, what: str, vector: Floats, alpha: float) -> Sequence[Finding]:
    """The candidate's ledger against the verdicts that really fall by each pair, over all sign vectors."""
    n = len(vector)
    bits = np.arange(n)
    fallen = np.zeros(n)
    for number in range(2**n):
        pairs, verdict = candidate.stop(vector * (1 - 2 * (number >> bits & 1)), alpha, n)
        if verdict:
            fallen[pairs - 1 :] += 1
    claimed = candidate.spent(vector, alpha, n)
    apart = float(np.max(np.abs(claimed - fallen / 2**n)))
    return [
        Finding(
            check="ledger",
            case=f"{what}, n {n}, alpha {alpha:g}: counted",
            seen=f"{float(claimed[-1]):.4g} (off {apart:.0e})",
            required="counted",
            passed=apart <= AGREE * alpha,
        )
    ]


def tasks(candidate: Candidate, seed: int, pairs: int, own: Floats | None) -> list[Task]:
    """Long vectors against the independent ledger (with the budget reached, and with a hundredth of it), short ones
    by counting too.
    """
    found = []
    for kind in magnitudes.KINDS:
        long, short = magnitudes.draw(kind, pairs, seed), magnitudes.draw(kind, 10, seed)
        looks = [(alpha, pairs) for alpha in ALPHAS] + [(0.0001, 100 * pairs)]
        found += [Task(f"ledger: {kind}", recomputed, (candidate, kind, long, *look)) for look in looks]
        found.append(Task(f"ledger: {kind}", counted, (candidate, kind, short, 0.05)))
    if own is not None:
        found += [
            Task("ledger: own vector", recomputed, (candidate, "own vector", own, alpha, len(own))) for alpha in ALPHAS
        ]
    return found
