"""The exhaustive size proof: for given magnitudes every sign vector is tried, and verdicts are counted.

Under the null the coins make all 2^n sign vectors equally likely given the magnitudes. So the chance of a verdict is
their share, exactly, with no simulation and no assumption, and it must be at most alpha. Every vector goes through the
public function, whole. The budget is n, at which all of alpha may be spent.
"""

from __future__ import annotations

from collections.abc import Sequence

from hugewise.stats.method import Numbers
from tools.verification import magnitudes
from tools.verification.candidate import Candidate, CheckResult, Task

ALPHAS = (0.2, 0.05, 0.01)


def size(candidate: Candidate, what: str, vector: Numbers, alpha: float) -> Sequence[CheckResult]:
    """Verdicts over all sign vectors."""
    n = len(vector)
    most = alpha * 2**n
    verdicts = sum(candidate.verdict(each, alpha, n) != 0 for each in magnitudes.signed(vector))
    case, seen = f"{what}, n {n}, alpha {alpha:g}", f"{verdicts} of {2**n}"
    return [CheckResult("exhaustive size", case, seen, f"<= {int(most)}", verdicts <= most)]


def tasks(candidate: Candidate, seed: int, lengths: Sequence[int], own: Numbers | None) -> list[Task]:
    """One task a vector and alpha: the caller's vector if there is one, and the built-in kinds at each length."""
    vectors = [(kind, magnitudes.draw(kind, n, seed)) for n in lengths for kind in magnitudes.KINDS]
    if own is not None:
        vectors.insert(0, ("own vector", own))
    return [
        Task(f"exhaustive size: {what}, {len(vector)} pairs", size, (candidate, what, vector, alpha))
        for what, vector in vectors
        for alpha in ALPHAS
    ]
