"""The winner's curse and its correction: streams with a known effect, stopped at the crossing, and what they say then.

The earliest tenth of the stops is shown and not judged: `hugewise.stats.stopping` does not promise it. The control is
the estimate as it is: it must be seen to be too large, or the streams would prove nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from hugewise.stats import inversion, paired, stopping
from hugewise.stats.method import Numbers
from hugewise.stats.signflip import stopped
from tools.verification.candidate import CheckResult, Task
from tools.verification.generators import generator

BUDGET = 2000
DEVIATION = 0.05  # standard deviation of a pair's log-ratio
ROOM = 0.1  # allowed distance of the mean of the corrected estimates from the truth, as a share of it


class StoppingCase(NamedTuple):
    """Differences of this noise around the logarithm of `ratio`, tested at `alpha`."""

    noise: str
    ratio: float
    alpha: float


CONTROL = StoppingCase("normal", 1.02, 0.01)
"""Case in which the plain estimate must be seen to be wrong."""

_CASES = (
    *(StoppingCase("normal", ratio, alpha) for alpha in (0.01, 0.0025) for ratio in (1.02, 1.05, 1.2)),
    StoppingCase("normal", 1.01, 0.01),
    StoppingCase("Student's t, 3 df", 1.02, 0.01),
    StoppingCase("Student's t, 3 df", 1.05, 0.01),
)


def corrected(case: StoppingCase, seed: int, streams: int) -> Sequence[CheckResult]:
    """Return the mean of the corrected estimates over the streams that crossed, over the truth."""
    random = generator(seed, "stopping", *case)
    truth = math.log(case.ratio)
    stops = []
    for _ in range(streams):
        differences = truth + DEVIATION * _NOISE[case.noise](random)
        test = stopped(differences.tolist(), case.alpha, BUDGET)
        if test.crossed_at is not None:
            seen = differences[: test.crossed_at].tolist()
            typical = inversion.point(seen)
            after = stopping.corrected(typical, paired.scale(seen), test.crossed_at, case.alpha, BUDGET)
            assert after is not None  # it crossed, with more pairs than a scale needs
            stops.append((test.crossed_at, typical / truth, after / truth))
    pairs, plain_, after_ = np.array(stops).T
    early = pairs <= np.quantile(pairs, 0.1)
    what = f"{case.noise}, true ratio {case.ratio:g}, alpha {case.alpha:g}"
    seen = (
        f"{np.mean(after_):.3f} ({len(stops)} of {streams} crossed, median pair {np.median(pairs):g}; "
        f"earliest tenth {np.mean(after_[early]):.2f}, before {np.mean(plain_[early]):.2f})"
    )
    within, off = f"{1 - ROOM:g} to {1 + ROOM:g}", abs(np.mean(after_) - 1)
    found = [CheckResult("stopping", f"{what}: corrected over true", seen, within, bool(off <= ROOM))]
    if case == CONTROL:
        plain = float(np.mean(plain_))
        planted = f"{what}: uncorrected over true"
        found.append(CheckResult("control", planted, f"{plain:.3f}", f"> {1 + ROOM:g}", plain > 1 + ROOM))
    return found


def tasks(seed: int, streams: int) -> list[Task]:
    """Return one task a case."""
    return [
        Task(f"stopping: {case.noise}, {case.ratio:g}, {case.alpha:g}", corrected, (case, seed, streams))
        for case in _CASES
    ]


_NOISE: dict[str, Callable[[Generator], Numbers]] = {
    "normal": lambda random: random.standard_normal(BUDGET),
    "Student's t, 3 df": lambda random: random.standard_t(3, BUDGET) / math.sqrt(3),  # variance 1
}
