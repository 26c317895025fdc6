"""The checks checked: five known faults are put in the method's place, and each must be found out.

The battery is a small version of the checks themselves. The method without a fault must pass all of it, so that
catching means something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hugewise.verification import ledger, magnitudes, replay, size
from hugewise.verification.candidate import Candidate
from hugewise.verification.faults import FAULTS
from hugewise.verification.finding import CheckResult, Task
from hugewise.verification.metamorphic import metamorphic

__all__ = ["battery", "caught", "clean", "tasks"]


def battery(candidate: Candidate, seed: int) -> Sequence[CheckResult]:
    """Size over all sign vectors of 10 pairs, the ledger over 60, metamorphic relations, and a short null replay."""
    findings: list[CheckResult] = []
    for kind in magnitudes.KINDS:
        for alpha in (0.2, 0.05):
            findings += size.size(candidate, kind, magnitudes.draw(kind, 10, seed), alpha)
        findings += ledger.recomputed(candidate, kind, magnitudes.draw(kind, 60, seed), 0.05, 60)
        findings += ledger.counted(candidate, kind, magnitudes.draw(kind, 8, seed), 0.2)
    findings += metamorphic(candidate, seed, 2)
    for family in ("normal", "ties"):
        findings += [
            finding
            for finding in replay.replay(candidate, family, seed, 200, 200)
            if finding.check != "control"  # naive tests are not on trial here, and streams this short let them off
        ]
    return findings


def caught(candidate: Candidate, seed: int) -> Sequence[CheckResult]:
    """Which checks find this fault out."""
    failed = Counter(finding.check for finding in battery(candidate, seed) if not finding.passed)
    by = ", ".join(f"{check} ({count})" for check, count in failed.items())
    seen = f"caught by {by}" if failed else "not caught"
    return [CheckResult("self-test", f"fault: {candidate.name}", seen, "caught", bool(failed))]


def clean(candidate: Candidate, seed: int) -> Sequence[CheckResult]:
    """The method itself passes the same battery."""
    failed = [finding for finding in battery(candidate, seed) if not finding.passed]
    seen = "passes" if not failed else f"fails: {failed[0].check}, {failed[0].case}"
    return [CheckResult("self-test", "the method itself, by the same checks", seen, "passes", not failed)]


def tasks(candidate: Candidate, seed: int) -> list[Task]:
    """One task a fault, and one for the method."""
    return [Task("self-test: the method", clean, (candidate, seed))] + [
        Task(f"self-test: {fault.name}", caught, (fault, seed)) for fault in FAULTS
    ]
