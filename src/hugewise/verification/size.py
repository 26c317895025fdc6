"""The exhaustive size proof: for given magnitudes every sign vector is tried, and verdicts are counted.

Under the null the coins make all 2^n sign vectors equally likely given the magnitudes. So the chance of a verdict is
their share, exactly, with no simulation and no assumption, and it must be at most alpha. Every vector goes through the
public function, whole. The budget is n, at which all of alpha may be spent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hugewise.verification import magnitudes
from hugewise.verification.candidate import Candidate
from hugewise.verification.finding import Finding, Task
from hugewise.verification.generators import Floats

__all__ = ["ALPHAS", "size", "tasks"]

ALPHAS = (0.2, 0.05, 0.01)


def size(candidate: Candidate, what: str, vector: Floats, alpha: float) -> Sequence[Finding]:
    """Verdicts over all sign vectors."""
    n = len(vector)
    bits = np.arange(n)
    verdicts = 0
    for number in range(2**n):
        signs = 1 - 2 * (number >> bits & 1)
        verdicts += candidate.verdict(vector * signs, alpha, n) != 0
    return [
        Finding(
            check="exhaustive size",
            case=f"{what}, n {n}, alpha {alpha:g}",
            seen=f"{verdicts} of {2**n}",
            required=f"<= {int(alpha * 2**n)}",
            passed=verdicts <= alpha * 2**n,
        )
    ]


def tasks(candidate: Candidate, seed: int, lengths: Sequence[int], own: Floats | None) -> list[Task]:
    """One task a vector and alpha: the caller's vector if there is one, and the built-in kinds at each length."""
    vectors = [(kind, magnitudes.draw(kind, n, seed)) for n in lengths for kind in magnitudes.KINDS]
    if own is not None:
        vectors.insert(0, ("own vector", own))
    return [
        Task(f"exhaustive size: {what}, {len(vector)} pairs", size, (candidate, what, vector, alpha))
        for what, vector in vectors
        for alpha in ALPHAS
    ]
