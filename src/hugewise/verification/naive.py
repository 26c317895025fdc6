"""The tests that people use, looked at after every pair: the harness must see them fail, or it proves nothing.

All are two-sided tests at a level, looked at from the fifth pair on, on log-times. Of the two t tests Welch's (1947,
Biometrika 34:28) takes the two arms for independent samples, the paired one takes differences. The F test is that of
the two variances (Fisher 1924).
"""

from __future__ import annotations

import numpy as np

from hugewise.stats.numbers import Numbers
from hugewise.verification.generators import PairedTimes

__all__ = ["FIRST_LOOK", "paired_t", "peeked_f", "welch"]

FIRST_LOOK = 5


def paired_t(pairs: PairedTimes, level: float) -> float:
    """Share of the streams in which the paired t test falls below `level` at any look."""
    from scipy.special import stdtrit  # noqa: PLC0415  (slow to load)

    n, mean, variance = _running(np.log(pairs.arm) - np.log(pairs.baseline))
    threshold = -stdtrit(n - 1, level / 2)
    return _share(mean**2 * n >= threshold**2 * variance)


def welch(pairs: PairedTimes, level: float) -> float:
    """Share of the streams in which Welch's test falls below `level` at any look."""
    from scipy.special import stdtr  # noqa: PLC0415  (slow to load)

    n, mean, variance = _running(np.log(pairs.arm))
    _, other_mean, other_variance = _running(np.log(pairs.baseline))
    squared_error = (variance + other_variance) / n
    freedom = (variance + other_variance) ** 2 * (n - 1) / (variance**2 + other_variance**2)
    p = 2 * stdtr(freedom, -np.abs(mean - other_mean) / np.sqrt(squared_error))
    return _share(p <= level)


def peeked_f(pairs: PairedTimes, level: float) -> float:
    """Share of the streams in which the F test of the two variances falls below `level` at any look."""
    from scipy.special import fdtri  # noqa: PLC0415  (slow to load)

    n, _, variance = _running(np.log(pairs.arm))
    _, _, other_variance = _running(np.log(pairs.baseline))
    threshold = fdtri(n - 1, n - 1, 1 - level / 2)
    return _share(np.maximum(variance, other_variance) >= threshold * np.minimum(variance, other_variance))


def _running(values: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """n, mean and variance after each pair from the first look on."""
    n = np.arange(1.0, values.shape[1] + 1)
    mean = np.cumsum(values, axis=1) / n
    centred = np.cumsum(values**2, axis=1) - n * mean**2
    from_first = slice(FIRST_LOOK - 1, None)
    return n[from_first], mean[:, from_first], centred[:, from_first] / (n[from_first] - 1)


def _share(rejected: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> float:
    return float(np.mean(np.any(rejected, axis=1)))
