"""Paired times matched to what was published about three benchmarks, for the power replay.

Published are mean, standard deviation, least and greatest time of each arm, and for the builds how many lay beyond 3
and 6 standard deviations (Benchmarking transparent versus 1GiB static huge page performance in Linux virtual machines,
Red Hat Developer, 2021-04-27; `published/redhat-2021-vm-1gib.toml`). Each arm has its own mean and standard deviation;
the shape is one per benchmark: a normal, log-normal or Weibull bulk, and rare stalls of Pareto length, capped. Its
moments are known in closed form, so that mean and standard deviation are met exactly; the published extremes are
nothing special among those of as many draws.

What was not published is how the two times of a pair correlate, and whether a stall strikes both. The correlation is an
argument here; stalls are shared in the same degree, so that all of a time correlates by it. `OTHER_SHAPES` shows what
the choice amounts to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.random import Generator

from hugewise import published
from hugewise.stats.method import Numbers
from tools.verification.generators import PairedTimes

SOURCE = "redhat-2021-vm-1gib"


@dataclass(frozen=True)
class Moments:
    """One arm's published figures, in the unit of its benchmark."""

    n: int
    mean: float
    sd: float
    least: float
    greatest: float


@dataclass(frozen=True)
class Shape:
    """A standardised marginal: `side` says to which side it is skewed and its stalls lie.

    bulk       normal; log-normal (`parameter`: its standard deviation on the log scale); Weibull (its exponent)
    stalls     share of times with a stall; its length is Pareto from `shortest` bulk standard deviations with exponent
               `tail`, capped at `longest`
    shared     a stall strikes both times of a pair alike in a share `rho` of the stalls; False: always one time alone
    """

    side: int
    bulk: Literal["normal", "log-normal", "Weibull"]
    parameter: float = 1.0
    stalls: float = 0.0
    shortest: float = 2.0
    tail: float = 1.75
    longest: float = 36.0
    shared: bool = True

    def draw(self, random: Generator, shape: tuple[int, int], rho: float) -> tuple[Numbers, Numbers]:
        """Draw two times of each pair: values of mean 0 and variance 1 that correlate by `rho` within their pair."""
        normal = self.normal_correlation(rho)
        common = random.standard_normal(shape)
        both = self._stalls(random, shape, rho * self.stalls if self.shared else 0.0)
        alone = (1 - rho) * self.stalls if self.shared else self.stalls
        sides = []
        for _ in range(2):
            own = random.standard_normal(shape)
            bulk = self._bulk(math.sqrt(normal) * common + math.sqrt(1 - normal) * own)
            sides.append(self._standard(bulk + both + self._stalls(random, shape, alone)))
        return sides[0], sides[1]

    def normal_correlation(self, rho: float) -> float:
        """Return the correlation of two normals whose bulks correlate by `rho` (Weibull: by at most 0.005 less)."""
        if self.bulk != "log-normal":
            return rho
        variance = self.parameter**2
        return float(math.log1p(rho * math.expm1(variance)) / variance)

    def _stalls(self, random: Generator, shape: tuple[int, int], share: float) -> Numbers:
        struck = random.random(shape) < share
        length = np.minimum(self.shortest * (1 - random.random(shape)) ** (-1 / self.tail), self.longest)
        return np.where(struck, length, 0.0)

    def _standard(self, values: Numbers) -> Numbers:
        # that two stalls may meet in one pair is left out (a share of 1e-5)
        first, second = self._moment(1) * self.stalls, self._moment(2) * self.stalls
        return np.asarray(self.side * (values - first) / math.sqrt(1 + second - first**2), dtype=np.float64)

    def _bulk(self, normal: Numbers) -> Numbers:
        if self.bulk == "normal":
            return normal
        if self.bulk == "log-normal":
            variance = self.parameter**2
            return np.asarray((np.exp(self.parameter * normal - variance / 2) - 1) / math.sqrt(math.expm1(variance)))
        from scipy.special import log_ndtr  # noqa: PLC0415  (slow to load)

        mean, square = math.gamma(1 + 1 / self.parameter), math.gamma(1 + 2 / self.parameter)
        return np.asarray(((-log_ndtr(-normal)) ** (1 / self.parameter) - mean) / math.sqrt(square - mean**2))

    def _moment(self, k: int) -> float:
        """Return E[length^k] of the capped Pareto distribution (tail not 1 or 2)."""
        low, high, a = self.shortest, self.longest, self.tail
        capped = high**k * (low / high) ** a
        return float(a * low**a * (low ** (k - a) - high ** (k - a)) / (a - k) + capped)


# Chosen so that the least and the greatest of the published number of draws, and the counts beyond 3 and 6 standard
# deviations, come near the published ones; tests/verification/test_checks.py holds them to it.
SHAPES = {
    "sysbench-memory": Shape(side=-1, bulk="normal", stalls=4 / 5_000, shortest=3.0, tail=2.5, longest=8.0),
    "gdb-build": Shape(side=1, bulk="log-normal", parameter=0.12, stalls=150 / 24_000, tail=2.2),
    "iperf3": Shape(side=-1, bulk="Weibull", parameter=2.2, stalls=6 / 37_000, shortest=4.0, tail=2.5, longest=9.0),
}
OTHER_SHAPES = {
    "gdb-build": replace(SHAPES["gdb-build"], shared=False),
    "iperf3": Shape(side=-1, bulk="log-normal", parameter=0.365),
}
"""Shapes that meet the published figures as well; what was published does not tell them apart. For the builds: no stall
strikes both (their times then correlate less than the bulk); for the bandwidth: no stalls, but a longer tail."""


@dataclass(frozen=True)
class MatchedBenchmark:
    """A published comparison: the baseline's figures, the arm's, and whether less is better."""

    name: str
    baseline: Moments
    arm: Moments
    shape: Shape

    @property
    def n(self) -> int:
        """Samples of each arm in the article."""
        return self.baseline.n

    @property
    def direction(self) -> int:
        """1 if the arm's mean is larger, -1 if smaller."""
        return 1 if self.arm.mean > self.baseline.mean else -1

    def draw(self, random: Generator, streams: int, pairs: int, rho: float) -> PairedTimes:
        """Return pairs whose times correlate by `rho`, not below a hundredth of the published least: logs exist."""
        drawn = self.shape.draw(random, (streams, pairs), rho)
        sides = [
            np.maximum(moments.mean + moments.sd * standard, moments.least / 100)
            for moments, standard in zip((self.arm, self.baseline), drawn, strict=True)
        ]
        return PairedTimes(sides[0], sides[1])


def benchmarks(shapes: Mapping[str, Shape] = SHAPES) -> tuple[MatchedBenchmark, ...]:
    """Return the benchmarks of the article that `shapes` names, from the published figures in the package."""
    known = {benchmark.name: benchmark for benchmark in published.load(SOURCE).benchmarks}
    found = []
    for name, shape in shapes.items():
        (_, baseline), (_, arm) = known[name].pair
        found.append(MatchedBenchmark(name, _moments(baseline), _moments(arm), shape))
    return tuple(found)


def _moments(sample: published.Sample) -> Moments:
    assert sample.n is not None
    assert sample.sd is not None
    assert sample.min is not None
    assert sample.max is not None
    return Moments(sample.n, sample.mean, sample.sd, sample.min, sample.max)
