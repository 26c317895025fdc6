"""Beyond these sessions: the effect that another session (restart, re-allocation, boot) of this host would show.

Each session gives one number, the mean log-ratio of its pairs. Sessions are the sample; pairs within a session are
not, however many there are (Kalibera and Jones 2013, ISMM: Rigorous benchmarking in reasonable time).

Interval. Sequential t: session means are taken as independent normal with unknown mean m and variance. Against the
alternative m/sd ~ N(0, 1/phi), with the right-Haar prior on sd, the Bayes factor after n sessions depends on Student's
t alone (Lindon, Ham, Tingley and Bojinov, arXiv 2210.08589; Wang and Ramdas, arXiv 2310.03722, section 4: a
martingale in the filtration of the scale-invariant statistics):

    B = sqrt(q) ((1 + t^2/(n-1)) / (1 + q t^2/(n-1)))^(n/2),    q = phi / (phi + n).

All means with B < 1/alpha are the interval: it holds for all n together, is exact for normal session means whatever
their variance, and scales with the unit. Simulated at nominal 5% with up to 60 sessions, it missed by 1.9% (normal),
1.5% and 1.1% (Student's t with 5 and 2.5 degrees of freedom), but 9.6% for session means as skewed as an exponential
(0.4% at nominal 0.01%). Means over many pairs are less skewed than the pairs; sessions of which a few are very bad are
not. Sessions that drift together (one afternoon, one placement) are not independent: the interval then speaks of
such sessions only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from hugewise.model.reason import FewSessions, Known, Reason

_PRECISION = 0.5  # phi: tightest for 8 to 20 sessions
_WIDEST = 1.5  # half-width, in standard deviations between sessions, above which an interval says nothing


def interval(session_means: Sequence[float], alpha: float) -> tuple[float, float] | None:
    """Bounds of the mean log-ratio over sessions like these; None where `reason` says why.

    `session_means` are mean log-ratios, one per session; `alpha` is two-sided and holds at all numbers of sessions.
    """
    if reason(session_means, alpha):
        return None
    n = len(session_means)
    centre = fmean(session_means)
    sd = math.sqrt(math.fsum((mean - centre) ** 2 for mean in session_means) / (n - 1))
    half = half_width(n, alpha) * sd
    return centre - half, centre + half


def reason(session_means: Sequence[float], alpha: float) -> Reason | None:
    """Return why nothing can be said beyond these sessions, or None.

    Raises ValueError for a NaN or an alpha outside (0, 1).
    """
    if any(math.isnan(mean) for mean in session_means):
        raise ValueError("a session mean is NaN: a session without pairs is no session")
    least = needed(alpha)
    if len(session_means) < least:
        return FewSessions(len(session_means), least, 1 - alpha)
    if not all(math.isfinite(mean) for mean in session_means):
        return Known("failed session")
    return None


def needed(alpha: float) -> int:
    """Sessions for a bounded interval of at most 1.5 standard deviations each side: 8 at 95%, 20 at 99.99%.

    The interval is valid for any number of sessions; below this one it is too wide to be worth showing.
    Raises ValueError for an alpha outside (0, 1).
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be between 0 and 1, not {alpha}")
    n = 2
    while half_width(n, alpha) > _WIDEST:
        n += 1
    return n


def components(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Variance between sessions and within them, from the log-ratios of each session.

    Unbiased moments of the one-way layout with unequal group sizes (Searle, Casella and McCulloch 1992, Variance
    Components, 3.6); a negative estimate of the variance between is given as 0. The variance of a session's mean of n
    pairs is `between + within/n`.

    Raises ValueError with fewer than two sessions, an empty one, or no session of two pairs.
    """
    sizes = [len(group) for group in groups]
    total, count = sum(sizes), len(groups)
    if count < 2 or min(sizes) < 1 or total == count:
        raise ValueError("variance components need two sessions with pairs, and one of them at least two pairs")
    means = [fmean(group) for group in groups]
    centre = math.fsum(n * mean for n, mean in zip(sizes, means, strict=True)) / total
    within = math.fsum((x - mean) ** 2 for group, mean in zip(groups, means, strict=True) for x in group)
    within /= total - count
    between = math.fsum(n * (mean - centre) ** 2 for n, mean in zip(sizes, means, strict=True)) / (count - 1)
    typical = (total - sum(n * n for n in sizes) / total) / (count - 1)
    return max(0.0, (between - within) / typical), within


def half_width(n: int, alpha: float) -> float:
    """Half-width of the interval of a mean of n >= 2, in sample standard deviations; infinite while unbounded."""
    q = _PRECISION / (_PRECISION + n)
    level = math.exp((2 * math.log(alpha) + math.log(q)) / n)
    return math.inf if level <= q else math.sqrt((n - 1) * (1 - level) / (level - q) / n)
