"""Object under test, with the functions that make verdicts. The checks know no more of a method than this.

`PUBLIC` hands on to the public functions of `hugewise.stats`, with nothing in between; the self-test puts faulty ones
in its place. A `CheckResult` is one line of the report.

The tests that people use, looked at after every pair, must be seen to fail, or the harness proves nothing. All are
two-sided at a level, looked at from the fifth pair on, on log-times. Of the two t tests Welch's (1947, Biometrika
34:28) takes the two arms for independent samples, the paired one takes differences. The F test is that of the two
variances (Fisher 1924).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from hugewise.stats import signflip
from hugewise.stats.method import Numbers
from tools.verification.generators import PairedTimes


class Candidate:
    """A sequential test of "the arm makes no difference": the sign-flip test as everybody gets it.

    `differences` are log(arm) - log(baseline), one per pair, in the order of the pairs; `budget` is the declared
    largest number of pairs; `alpha` the two-sided error that may be made by stopping at any time up to then.
    """

    name = "signflip"
    """Name in the report."""

    def verdict(self, differences: Numbers, alpha: float, budget: int) -> int:
        """1 the arm is larger, -1 smaller, 0 no verdict up to and including the last pair."""
        return signflip.verdict(differences, alpha, budget)

    def stop(self, differences: Numbers, alpha: float, budget: int) -> tuple[int, int]:
        """Return the number of pairs at which the verdict falls, and the verdict; (all, 0) where none falls."""
        test = signflip.stopped(differences.tolist(), alpha, budget)
        return test.pairs, test.sign

    def spent(self, magnitudes: Numbers, alpha: float, budget: int) -> Numbers:
        """Return the error spent up to and including each pair, from |differences| alone; shape (pairs,)."""
        return np.array(signflip.run(magnitudes, alpha, budget).ledger, dtype=np.float64)


PUBLIC = Candidate()


class CheckResult(msgspec.Struct, frozen=True):
    """One thing checked.

    check     the check's name
    case      what it was tried on
    seen      what came out, in words and figures
    required  what it must be
    passed    whether it is
    """

    check: str
    case: str
    seen: str
    required: str
    passed: bool


class Task(msgspec.Struct, frozen=True):
    """A piece of a check that runs in a process of its own: a module-level function and its arguments."""

    name: str
    function: Callable[..., Sequence[CheckResult]]
    arguments: tuple[Any, ...]

    def run(self) -> Sequence[CheckResult]:
        """Run this piece and return its findings."""
        return self.function(*self.arguments)


FIRST_LOOK = 5


def paired_t(pairs: PairedTimes, level: float) -> float:
    """Return share of the streams in which the paired t test falls below `level` at any look."""
    from scipy.special import stdtrit  # noqa: PLC0415  (slow to load)

    n, mean, variance = _running(np.log(pairs.arm) - np.log(pairs.baseline))
    threshold = -stdtrit(n - 1, level / 2)
    return _share(mean**2 * n >= threshold**2 * variance)


def welch(pairs: PairedTimes, level: float) -> float:
    """Return share of the streams in which Welch's test falls below `level` at any look."""
    from scipy.special import stdtr  # noqa: PLC0415  (slow to load)

    n, mean, variance = _running(np.log(pairs.arm))
    _, other_mean, other_variance = _running(np.log(pairs.baseline))
    squared_error = (variance + other_variance) / n
    freedom = (variance + other_variance) ** 2 * (n - 1) / (variance**2 + other_variance**2)
    p = 2 * stdtr(freedom, -np.abs(mean - other_mean) / np.sqrt(squared_error))
    return _share(p <= level)


def peeked_f(pairs: PairedTimes, level: float) -> float:
    """Return share of the streams in which the F test of the two variances falls below `level` at any look."""
    from scipy.special import fdtri  # noqa: PLC0415  (slow to load)

    n, _, variance = _running(np.log(pairs.arm))
    _, _, other_variance = _running(np.log(pairs.baseline))
    threshold = fdtri(n - 1, n - 1, 1 - level / 2)
    return _share(np.maximum(variance, other_variance) >= threshold * np.minimum(variance, other_variance))


def _running(values: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    n = np.arange(1.0, values.shape[1] + 1)
    mean = np.cumsum(values, axis=1) / n
    centred = np.cumsum(values**2, axis=1) - n * mean**2
    from_first = slice(FIRST_LOOK - 1, None)
    return n[from_first], mean[:, from_first], centred[:, from_first] / (n[from_first] - 1)


def _share(rejected: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> float:
    return float(np.mean(np.any(rejected, axis=1)))
