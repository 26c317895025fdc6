"""The ledger of alpha spent, recomputed: by an independent implementation, and by counting sign vectors.

Both need the magnitudes alone. It must agree with the independent one at every pair, never exceed what may be spent by
then, and, for few pairs, be the share of the sign vectors whose verdict falls by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from hugewise.stats.method import Numbers
from tools.verification import independent, magnitudes
from tools.verification.candidate import Candidate, CheckResult, Task

ALPHAS = (0.2, 0.05, 0.01, 0.0001)
AGREE = 1e-9  # relative difference that rounding may make


def recomputed(candidate: Candidate, what: str, vector: Numbers, alpha: float, budget: int) -> Sequence[CheckResult]:
    """The candidate's ledger against the independent one, pair by pair."""
    n = len(vector)
    claimed = candidate.spent(vector, alpha, budget)
    _, exact = independent.boundaries(vector.tolist(), alpha, budget)
    apart = max((abs(float(claimed[t] - exact[t])) for t in range(n)), default=0.0)
    over = False
    for t in range(n):
        allowed = independent.allowed(t + 1, alpha, budget)
        over |= exact[t] > Fraction(allowed) or claimed[t] > min(alpha, allowed * (1 + AGREE))
    case, seen = f"{what}, n {n}/{budget}, alpha {alpha:g}", f"{float(claimed[-1]):.4g} (off {apart:.0e})"
    return [CheckResult("ledger", case, seen, "recomputed", apart <= AGREE * alpha and not over)]


def counted(candidate: Candidate, what: str, vector: Numbers, alpha: float) -> Sequence[CheckResult]:
    """The candidate's ledger against the verdicts that really fall by each pair, over all sign vectors."""
    n = len(vector)
    fallen = np.zeros(n)
    for each in magnitudes.signed(vector):
        pairs, verdict = candidate.stop(each, alpha, n)
        if verdict:
            fallen[pairs - 1 :] += 1
    claimed = candidate.spent(vector, alpha, n)
    apart = float(np.max(np.abs(claimed - fallen / 2**n)))
    case, seen = f"{what}, n {n}, alpha {alpha:g}: counted", f"{float(claimed[-1]):.4g} (off {apart:.0e})"
    return [CheckResult("ledger", case, seen, "counted", apart <= AGREE * alpha)]


def tasks(candidate: Candidate, seed: int, pairs: int, own: Numbers | None) -> list[Task]:
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
