"""The checks checked: five known faults of such tests are put in the method's place, and each must be found out.

The battery is a small version of the checks themselves. The method without a fault must pass all of it, so that
catching means something. The faults are built from the same public parts: each differs from the real method in its
fault alone.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from hugewise.stats import signflip
from hugewise.stats.method import Numbers
from hugewise.stats.signflip import Boundary, Spending, first_crossing
from tools.verification import enumeration, replay
from tools.verification.candidate import FIRST_LOOK, Candidate, CheckResult, Task
from tools.verification.metamorphic import metamorphic


class _Fault(Candidate):
    """A faulty test: its verdict is what it stopped with."""

    def verdict(self, differences: Numbers, alpha: float, budget: int) -> int:
        return self.stop(differences, alpha, budget)[1]


class OffByOneSpending(_Fault):
    """Each pair may already spend what belongs to the next one."""

    name = "off-by-one spending"

    def stop(self, differences: Numbers, alpha: float, budget: int) -> tuple[int, int]:
        test = signflip.stopped(differences, alpha, budget, _next_share(alpha, budget))
        return test.pairs, test.sign

    def spent(self, magnitudes: Numbers, alpha: float, budget: int) -> Numbers:
        return np.array(signflip.run(magnitudes, alpha, budget, _next_share(alpha, budget)).ledger)


class SignDependentRank(_Fault):
    """The rank of D among the differences, where it should be that of |D| among their magnitudes."""

    name = "sign-dependent rank"

    def stop(self, differences: Numbers, alpha: float, budget: int) -> tuple[int, int]:
        boundary = Boundary(alpha, budget)
        seen: list[float] = []
        walk = 0
        for difference in differences.tolist():
            below, upto = bisect_left(seen, difference), bisect_right(seen, difference)
            insort(seen, difference)
            score = _normal_score((below + upto + 1) / (2 * len(seen))) if difference else 0
            walk += score if difference > 0 else -score
            reach = boundary.step(score)
            if reach is not None and abs(walk) >= reach:
                return boundary.pairs, 1 if walk > 0 else -1
        return boundary.pairs, 0


class DroppedZero(_Fault):
    """Pairs without a difference are left out before anything is counted."""

    name = "dropped zero"

    def stop(self, differences: Numbers, alpha: float, budget: int) -> tuple[int, int]:
        kept = np.flatnonzero(differences)
        pairs, verdict = super().stop(differences[kept], alpha, budget)
        return (int(kept[pairs - 1]) + 1, verdict) if verdict else (len(differences), 0)

    def spent(self, magnitudes: Numbers, alpha: float, budget: int) -> Numbers:
        kept = magnitudes != 0
        ledger = np.concatenate(([0.0], super().spent(magnitudes[kept], alpha, budget)))
        return np.asarray(ledger[np.cumsum(kept)], dtype=np.float64)


class DoubledAlpha(_Fault):
    """Alpha is spent on each side, where it should be halved."""

    name = "doubled alpha"

    def stop(self, differences: Numbers, alpha: float, budget: int) -> tuple[int, int]:
        return super().stop(differences, 2 * alpha, budget)

    def spent(self, magnitudes: Numbers, alpha: float, budget: int) -> Numbers:
        return super().spent(magnitudes, 2 * alpha, budget)


class PeekedT(_Fault):
    """A paired t test at level alpha after every pair from the fifth on; its ledger claims that all is well."""

    name = "peeked t"

    def stop(self, differences: Numbers, alpha: float, budget: int) -> tuple[int, int]:
        from scipy.special import stdtrit  # noqa: PLC0415  (slow to load)

        n = np.arange(FIRST_LOOK, len(differences) + 1)
        finite = np.clip(differences, -1e9, 1e9)
        sums, squares = np.cumsum(finite)[FIRST_LOOK - 1 :], np.cumsum(finite**2)[FIRST_LOOK - 1 :]
        variance = np.maximum(squares - sums**2 / n, 0) / (n - 1)
        crossed = np.flatnonzero(np.abs(sums) > -stdtrit(n - 1, alpha / 2) * np.sqrt(variance * n))
        if not len(crossed):
            return len(differences), 0
        return int(n[crossed[0]]), int(np.sign(sums[crossed[0]]))


FAULTS = (OffByOneSpending(), SignDependentRank(), DroppedZero(), DoubledAlpha(), PeekedT())


def _next_share(alpha: float, budget: int) -> Spending:
    first = first_crossing(alpha)
    whole = math.log((budget + 1) / first)
    return lambda pairs: max(0.0, math.log((pairs + 2) / first) / whole) if whole > 0 else 0.0


def _normal_score(share: float) -> int:
    return max(1, min(31, round(10 * NormalDist().inv_cdf((1 + share) / 2))))


def battery(candidate: Candidate, seed: int) -> Sequence[CheckResult]:
    """Size over all sign vectors of 10 pairs, the ledger over 60, metamorphic relations, and a short null replay."""
    findings: list[CheckResult] = []
    for kind in enumeration.KINDS:
        for alpha in (0.2, 0.05):
            findings += enumeration.size(candidate, kind, enumeration.draw(kind, 10, seed), alpha)
        findings += enumeration.recomputed(candidate, kind, enumeration.draw(kind, 60, seed), 0.05, 60)
        findings += enumeration.counted(candidate, kind, enumeration.draw(kind, 8, seed), 0.2)
    findings += metamorphic(candidate, seed, 2)
    for family in ("normal", "ties"):
        findings += [
            finding
            for finding in replay.replay(candidate, family, seed, 200, 200)
            if finding.check != "control"  # naive tests are not on trial here, and streams this short let them off
        ]
    return findings


def caught(candidate: Candidate, seed: int) -> Sequence[CheckResult]:
    """Return the checks that find this fault."""
    failed = Counter(finding.check for finding in battery(candidate, seed) if not finding.passed)
    by = ", ".join(f"{check} ({count})" for check, count in failed.items())
    seen = f"caught by {by}" if failed else "not caught"
    return [CheckResult("self-test", f"fault: {candidate.name}", seen, "caught", bool(failed))]


def clean(candidate: Candidate, seed: int) -> Sequence[CheckResult]:
    """Check that the method itself passes the same battery."""
    failed = [finding for finding in battery(candidate, seed) if not finding.passed]
    seen = "passes" if not failed else f"fails: {failed[0].check}, {failed[0].case}"
    return [CheckResult("self-test", "the method itself, by the same checks", seen, "passes", not failed)]


def tasks(candidate: Candidate, seed: int) -> list[Task]:
    """Return one task a fault, and one for the method."""
    return [Task("self-test: the method", clean, (candidate, seed))] + [
        Task(f"self-test: {fault.name}", caught, (fault, seed)) for fault in FAULTS
    ]
