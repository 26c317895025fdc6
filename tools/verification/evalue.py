"""The open-ended e-process, exhaustively: over all sign vectors its value has mean 1, and reaches 1/alpha rarely.

Both follow from the coins alone, given the magnitudes; both are counted here with nothing left to chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hugewise.stats.evidence import EProcess
from hugewise.stats.method import Numbers
from tools.verification import magnitudes
from tools.verification.candidate import CheckResult, Task

ALPHA = 0.05


def exhaustive(what: str, vector: Numbers) -> Sequence[CheckResult]:
    """Mean value and share of rejections over all sign vectors."""
    n = len(vector)
    values, rejected = [], 0
    for each in magnitudes.signed(vector):
        process = EProcess()
        for difference in each.tolist():
            process.add(difference)
        values.append(process.value)
        rejected += process.rejects(ALPHA)
    mean = math.fsum(values) / 2**n
    return [
        CheckResult(
            "e-process",
            f"{what}, n {n}: mean, how many reach {1 / ALPHA:g}",
            f"{mean:.6f}, {rejected} of {2**n}",
            f"1, <= {int(ALPHA * 2**n)}",
            abs(mean - 1) < 1e-9 and rejected <= ALPHA * 2**n,
        )
    ]


def tasks(seed: int, pairs: int) -> list[Task]:
    """One task a kind of magnitudes."""
    return [
        Task(f"e-process: {kind}", exhaustive, (kind, magnitudes.draw(kind, pairs, seed))) for kind in magnitudes.KINDS
    ]
