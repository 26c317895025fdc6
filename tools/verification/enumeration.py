"""Size, ledger and e-process by exhaustion: for given magnitudes every sign vector is tried.

Under the null the coins make all 2^n sign vectors equally likely given the magnitudes. So chances are
shares of them, exactly, with no simulation and no assumption.

size       the share with a verdict is at most alpha. Every vector goes through the public function, whole; the budget
           is n, at which all of alpha may be spent
ledger     the error spent agrees with an independent implementation at every pair, never exceeds what may be spent by
           then, and, for few pairs, is the share of the sign vectors whose verdict falls by then
e-process  over all sign vectors its value has mean 1, and reaches 1/alpha rarely
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from hugewise.stats.evidence import EProcess
from hugewise.stats.method import Numbers
from tools.verification import independent
from tools.verification.candidate import Candidate, CheckResult, Task
from tools.verification.generators import generator

KINDS = ("random", "ties", "zeros", "outliers", "trend", "failures")


def draw(kind: str, pairs: int, seed: int) -> Numbers:
    """Return a vector of the built-in kind; zeros, ties and outliers stand at places that the seed decides."""
    random = generator(seed, "magnitudes", kind, pairs)
    values = np.abs(random.standard_normal(pairs))
    if kind == "ties":
        values = np.ceil(values * 2)
    elif kind == "zeros":
        values[random.permutation(pairs)[: pairs // 4]] = 0.0
    elif kind == "outliers":
        values[random.permutation(pairs)[: max(1, pairs // 8)]] *= 1e6
    elif kind == "trend":
        values = np.arange(1.0, pairs + 1)
    elif kind == "failures":
        values[random.permutation(pairs)[: max(2, pairs // 6)]] = np.inf
    return values


def signed(vector: Numbers) -> Iterator[Numbers]:
    """Yield the vector under all signs that coins may give it."""
    bits = np.arange(len(vector))
    for number in range(2 ** len(vector)):
        yield vector * (1 - 2 * (number >> bits & 1))


SIZE_ALPHAS = (0.2, 0.05, 0.01)


def size(candidate: Candidate, what: str, vector: Numbers, alpha: float) -> Sequence[CheckResult]:
    """Verdicts over all sign vectors."""
    n = len(vector)
    most = alpha * 2**n
    verdicts = sum(candidate.verdict(each, alpha, n) != 0 for each in signed(vector))
    case, seen = f"{what}, n {n}, alpha {alpha:g}", f"{verdicts} of {2**n}"
    return [CheckResult("exhaustive size", case, seen, f"<= {int(most)}", verdicts <= most)]


def size_tasks(candidate: Candidate, seed: int, lengths: Sequence[int]) -> list[Task]:
    """Return one task for each kind, length and alpha."""
    vectors = [(kind, draw(kind, n, seed)) for n in lengths for kind in KINDS]
    return [
        Task(f"exhaustive size: {what}, {len(vector)} pairs", size, (candidate, what, vector, alpha))
        for what, vector in vectors
        for alpha in SIZE_ALPHAS
    ]


LEDGER_ALPHAS = (0.2, 0.05, 0.01, 0.0001)
AGREE = 1e-9  # relative difference that rounding may make


def recomputed(candidate: Candidate, what: str, vector: Numbers, alpha: float, budget: int) -> Sequence[CheckResult]:
    """Compare the candidate's ledger with the independent one, pair by pair."""
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
    """Compare the candidate's ledger with the verdicts that fall by each pair, over all sign vectors."""
    n = len(vector)
    fallen = np.zeros(n)
    for each in signed(vector):
        pairs, verdict = candidate.stop(each, alpha, n)
        if verdict:
            fallen[pairs - 1 :] += 1
    claimed = candidate.spent(vector, alpha, n)
    apart = float(np.max(np.abs(claimed - fallen / 2**n)))
    case, seen = f"{what}, n {n}, alpha {alpha:g}: counted", f"{float(claimed[-1]):.4g} (off {apart:.0e})"
    return [CheckResult("ledger", case, seen, "counted", apart <= AGREE * alpha)]


def ledger_tasks(candidate: Candidate, seed: int, pairs: int) -> list[Task]:
    """Long vectors against the independent ledger (with the budget reached, and with a hundredth of it), short ones
    by counting too.
    """
    found = []
    for kind in KINDS:
        long, short = draw(kind, pairs, seed), draw(kind, 10, seed)
        looks = [(alpha, pairs) for alpha in LEDGER_ALPHAS] + [(0.0001, 100 * pairs)]
        found += [Task(f"ledger: {kind}", recomputed, (candidate, kind, long, *look)) for look in looks]
        found.append(Task(f"ledger: {kind}", counted, (candidate, kind, short, 0.05)))
    return found


E_ALPHA = 0.05


def e_process(what: str, vector: Numbers) -> Sequence[CheckResult]:
    """Mean value and share of rejections over all sign vectors."""
    n = len(vector)
    values, rejected = [], 0
    for each in signed(vector):
        process = EProcess()
        for difference in each.tolist():
            process.add(difference)
        values.append(process.value)
        rejected += process.rejects(E_ALPHA)
    mean = math.fsum(values) / 2**n
    return [
        CheckResult(
            "e-process",
            f"{what}, n {n}: mean, how many reach {1 / E_ALPHA:g}",
            f"{mean:.6f}, {rejected} of {2**n}",
            f"1, <= {int(E_ALPHA * 2**n)}",
            abs(mean - 1) < 1e-9 and rejected <= E_ALPHA * 2**n,
        )
    ]


def e_process_tasks(seed: int, pairs: int) -> list[Task]:
    """Return one task a kind of magnitudes."""
    return [Task(f"e-process: {kind}", e_process, (kind, draw(kind, pairs, seed))) for kind in KINDS]
