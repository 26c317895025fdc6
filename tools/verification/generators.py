"""Streams of paired times: noise families in which the arms do not differ, and effects that are known.

A family draws what two places (or two positions in a pair) would have taken, and then a fair coin says, pair by pair,
which of them is the arm's: exactly the randomisation of a run. Times are in seconds around 1; `streams` of them, of
`pairs` pairs each, come as two arrays of shape (streams, pairs), arm and baseline.

The families: independent normal and heavy-tailed noise; strong correlation within pairs; noise that drifts with the
host or with the place (first-order autoregressions); a place that is always slower; level shifts; stalls that strike
both arms; ties from a coarse clock; two modes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator, SeedSequence

from hugewise.stats.method import Numbers

CV = 0.1  # coefficient of variation of one time


@dataclass(frozen=True)
class PairedTimes:
    """Raw times: `arm` and `baseline` in seconds, both of shape (streams, pairs)."""

    arm: Numbers
    baseline: Numbers


@dataclass(frozen=True)
class Family:
    """A null family: how its pairs are drawn, and which naive tests the harness must see fail on it.

    uncorrelated  the two times of a pair are independent, so that Welch's test (which ignores pairing) is not rescued
                  by correlation: peeking at it must show
    continuous    no ties: peeking at a paired t must show
    """

    name: str
    what: str
    draw: Callable[[Generator, int, int], PairedTimes]
    uncorrelated: bool = False
    continuous: bool = True


def generator(seed: int, *labels: object) -> Generator:
    """Return the random generator of one piece of the checks, by the seed and the labels alone."""
    text = "/".join(str(label) for label in labels)
    return np.random.default_rng(SeedSequence([seed, zlib.crc32(text.encode())]))


def log_ratios(pairs: PairedTimes) -> Numbers:
    """Return the differences that the package makes of raw times (`pairs.log_ratio`), all at once."""
    return np.round(np.log(pairs.arm) - np.log(pairs.baseline), 9)


def randomised(random: Generator, first: Numbers, second: Numbers) -> PairedTimes:
    """Return pairs from the log-times of two places: a fair coin per pair gives the arm its place."""
    coin = random.integers(0, 2, size=first.shape).astype(bool)
    return PairedTimes(np.exp(np.where(coin, first, second)), np.exp(np.where(coin, second, first)))


def autoregression(random: Generator, streams: int, pairs: int, memory: float) -> Numbers:
    """Stationary AR(1) noise of unit variance along the pairs."""
    shocks = random.standard_normal((streams, pairs))
    shocks[:, 1:] *= np.sqrt(1 - memory**2)
    for pair in range(1, pairs):
        shocks[:, pair] += memory * shocks[:, pair - 1]
    return shocks


def heavy(random: Generator, normal: Numbers) -> Numbers:
    """Return the normal noise made right-skewed, with rare stalls of Pareto length (up to 32 standard deviations)."""
    skewed = ((1 + 0.06 * normal) ** 3 - 1.0108) / 0.1813
    stall = random.random(normal.shape) < 0.0025
    length = np.minimum(2 * random.random(normal.shape) ** (-1 / 1.6), 32)
    return np.asarray(skewed + np.where(stall, length, 0.0), dtype=np.float64)


def _normal(random: Generator, streams: int, pairs: int) -> PairedTimes:
    noise = CV * random.standard_normal((2, streams, pairs))
    return randomised(random, noise[0], noise[1])


def _heavy(random: Generator, streams: int, pairs: int) -> PairedTimes:
    noise = CV * heavy(random, random.standard_normal((2, streams, pairs)))
    return randomised(random, noise[0], noise[1])


def _correlated(random: Generator, streams: int, pairs: int) -> PairedTimes:
    host = np.sqrt(0.95) * random.standard_normal((streams, pairs))
    own = np.sqrt(0.05) * random.standard_normal((2, streams, pairs))
    noise = CV * heavy(random, host + own)
    return randomised(random, noise[0], noise[1])


def _host_drift(memory: float) -> Callable[[Generator, int, int], PairedTimes]:
    def draw(random: Generator, streams: int, pairs: int) -> PairedTimes:
        host = np.sqrt(0.5) * autoregression(random, streams, pairs, memory)
        own = np.sqrt(0.5) * random.standard_normal((2, streams, pairs))
        noise = CV * (host + own)
        return randomised(random, noise[0], noise[1])

    return draw


def _place_drift(memory: float) -> Callable[[Generator, int, int], PairedTimes]:
    def draw(random: Generator, streams: int, pairs: int) -> PairedTimes:
        own = np.sqrt(0.5) * random.standard_normal((2, streams, pairs))
        places = [np.sqrt(0.5) * autoregression(random, streams, pairs, memory) for _ in range(2)]
        return randomised(random, CV * (places[0] + own[0]), CV * (places[1] + own[1]))

    return draw


def _place_bias(random: Generator, streams: int, pairs: int) -> PairedTimes:
    """Draw a second place that is slower by 0.5 to 5%, another figure in each stream; pairs correlate by 0.8."""
    host = np.sqrt(0.8) * random.standard_normal((streams, pairs))
    own = np.sqrt(0.2) * random.standard_normal((2, streams, pairs))
    bias = random.uniform(0.005, 0.05, size=(streams, 1))
    return randomised(random, CV * (host + own[0]), CV * (host + own[1]) + bias)


def _level_shifts(random: Generator, streams: int, pairs: int) -> PairedTimes:
    """Draw a host that changes its speed every hundred pairs or so, and how much the two places differ."""
    own = 0.5 * CV * random.standard_normal((2, streams, pairs))
    period = np.cumsum(random.random((streams, pairs)) < 0.01, axis=1, dtype=np.int64)
    levels = CV * random.standard_normal((2, streams, int(period.max()) + 1))
    host, apart = (np.take_along_axis(level, period, axis=1) for level in levels)
    return randomised(random, own[0] + host, own[1] + host + 0.5 * apart)


def _stalls(random: Generator, streams: int, pairs: int) -> PairedTimes:
    """Draw pairs of which one in fifty meets a stall, which costs both times nearly the same, up to 8 times."""
    own = 0.3 * CV * random.standard_normal((2, streams, pairs))
    struck = random.random((streams, pairs)) < 0.02
    stall = np.where(struck, random.uniform(0.2, 2, size=(streams, pairs)), 0.0)
    share = random.uniform(0.8, 1, size=(2, streams, pairs))
    return randomised(random, own[0] + stall * share[0], own[1] + stall * share[1])


def _ties(random: Generator, streams: int, pairs: int) -> PairedTimes:
    """Draw times of a clock that ticks in twentieths of the time: many ties, and a fifth or so of zeros."""
    pairs_ = _normal(random, streams, pairs)
    return PairedTimes(*(np.maximum(np.round(side * 20), 1) / 20 for side in (pairs_.arm, pairs_.baseline)))


def _two_modes(random: Generator, streams: int, pairs: int) -> PairedTimes:
    """Draw times in a fast or, one time in five, a slow mode (2 to 4 times as long: the host's backing)."""
    own = 0.2 * CV * random.standard_normal((2, streams, pairs))
    slow = random.random((2, streams, pairs)) < 0.2
    noise = own + np.where(slow, np.log(random.uniform(2, 4, size=(1, streams, 1))), 0.0)
    return randomised(random, noise[0], noise[1])


FAMILIES = (
    Family("normal", "independent normal", _normal, uncorrelated=True),
    Family("heavy-tail", "skewed, with rare stalls of up to 32 sd", _heavy, uncorrelated=True),
    Family("correlated", "the heavy tail, pairs correlate by .95", _correlated),
    Family("host-drift-.9", "host drifts, AR(.9)", _host_drift(0.9)),
    Family("host-drift-.99", "host drifts, AR(.99)", _host_drift(0.99)),
    Family("place-drift-.9", "each place drifts, AR(.9)", _place_drift(0.9)),
    Family("place-drift-.99", "each place drifts, AR(.99)", _place_drift(0.99)),
    Family("place-bias", "a place is 0.5 to 5% slower", _place_bias),
    Family("level-shifts", "speed jumps every 100 pairs", _level_shifts),
    Family("shared-stalls", "stalls strike both of a pair", _stalls),
    Family("ties", "a coarse clock: ties and zeros", _ties, continuous=False),
    Family("two-modes", "fast and slow modes", _two_modes),
)
