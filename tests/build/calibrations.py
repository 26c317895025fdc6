"""Calibrations: streams of pairs that are drawn."""

import math
import random

from hugewise.analysis.calibration import Stream, stream


def noise(n: int, seed: int, *, sd: float = 0.02, shift: float = 0.0, drift: float = 0.0) -> Stream:
    """A stream of n pairs in which `drift` is common to a pair."""
    coins = random.Random(seed)  # noqa: S311
    first, second, in_time = [], [], []
    level = 0.0
    for _ in range(n):
        level += coins.gauss(0, drift)
        a, b = (math.exp(level + coins.gauss(0, sd)) for _ in range(2))
        b *= math.exp(shift)
        first.append(a)
        second.append(b)
        in_time += [a, b] if coins.random() < 0.5 else [b, a]
    return stream("sequential", first, second, in_time, 0.5)
