"""The knee of gain against memory, on simulated blocks: whether its interval has the true one, and keeps to no gain.

The planted fault beside it takes the first share whose mean keeps the gain, as a reader of a table would: that share
must be seen to keep too little too often, or the streams would prove nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from hugewise.stats.knee import KEEP, knee
from hugewise.stats.method import Numbers
from tools.verification.candidate import CheckResult, Task
from tools.verification.generators import generator
from tools.verification.screenings import limit

ALPHA, BLOCKS = 0.1, 10
SHARES = (0.05, 0.1, 0.25, 0.5, 1.0)

_NOISE: Mapping[str, float] = {"normal": np.inf, "Student's t, 3 df": 3.0}
_SD = 0.02  # standard deviation of one attempt's log-time; blocks drift by ten times as much, in common
_SHAPES: Mapping[str, Sequence[float]] = {
    "no gain": (0.0, 0.0, 0.0, 0.0, 0.0),
    "a gain that levels off": (0.05, 0.09, 0.17, 0.19, 0.2),
    "a gain with the first pages": (0.15, 0.18, 0.19, 0.195, 0.2),
    "a gain in proportion": (0.01, 0.02, 0.05, 0.1, 0.2),
    "a gain up to the half": (0.02, 0.04, 0.1, 0.2, 0.201),
}


class KneeCase(NamedTuple):
    """The true curve and the noise, by name."""

    shape: str
    noise: str


CASES = tuple(KneeCase(shape, noise) for shape in _SHAPES for noise in _NOISE)


def _gains(case: KneeCase, random: Generator) -> Numbers:
    """Draw the gains of a run's blocks at each share; all shares have the noise of the base arm in common."""
    size = (BLOCKS, len(SHARES) + 1)
    freedom = _NOISE[case.noise]
    shocks = random.standard_normal(size) if np.isinf(freedom) else random.standard_t(freedom, size)
    times = _SD * shocks - np.array([0.0, *_SHAPES[case.shape]]) + 10 * _SD * random.standard_normal((BLOCKS, 1))
    return np.asarray(times[:, :1] - times[:, 1:], dtype=np.float64)


def together(case: KneeCase, seed: int, streams: int) -> Sequence[CheckResult]:
    """Curve after curve of one case."""
    random = generator(seed, "knee", *case)
    true = _SHAPES[case.shape]
    whole = true[-1]
    at = float(np.interp(KEEP * whole, [0.0, *true], [0.0, *SHARES])) if whole else 1.0
    claimed = lost = beyond = hasty = 0
    for _ in range(streams):
        gains = _gains(case, random)
        found = knee(SHARES, gains.tolist(), ALPHA)
        means = gains.mean(axis=0)
        first = int(np.argmax(means >= KEEP * means[-1]))
        hasty += true[first] < KEEP * whole - 1e-9
        if found.low is None or found.high is None:
            continue
        claimed += 1
        lost += not found.low <= at <= found.high
        beyond += found.high < at
    what = f"{case.shape}, {case.noise}"
    if not whole:
        most = limit(ALPHA / 2, streams)
        return [CheckResult("knee", f"{what}: a knee is claimed", f"{claimed} of {streams}", f"<= {most:.3f}",
                            claimed / streams <= most)]  # fmt: skip
    most, half = limit(ALPHA, streams), limit(ALPHA / 2, streams)
    results = [
        CheckResult("knee", f"{what}: the true knee is not in its interval", f"{lost} of {streams}", f"<= {most:.3f}",
                    lost / streams <= most),
        CheckResult("knee", f"{what}: the share that is recommended keeps too little", f"{beyond} of {streams}",
                    f"<= {half:.3f}", beyond / streams <= half),
    ]  # fmt: skip
    if case == ("a gain that levels off", "normal"):
        results.append(
            CheckResult("control", f"{what}: so does the first share that seems to keep it", f"{hasty} of {streams}",
                        f"> {half:.3f}", hasty / streams > half)
        )  # fmt: skip
    return results


def tasks(seed: int, streams: int) -> list[Task]:
    """Return one task a case."""
    return [Task(f"knee: {', '.join(case)}", together, (case, seed, streams)) for case in CASES]
