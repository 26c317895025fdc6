from __future__ import annotations

import numpy as np
import pytest

from hugewise.stats.method import Numbers
from tools.verification.generators import generator
from tools.verification.matched import OTHER_SHAPES, SHAPES, MatchedBenchmark, Moments, benchmarks

DRAWS = 30
SIDES = [(benchmark, side) for benchmark in benchmarks() for side in ("arm", "baseline")]


def drawn(benchmark: MatchedBenchmark, side: str, rho: float = 0.8) -> Numbers:
    values: Numbers = getattr(benchmark.draw(generator(7, benchmark.name), DRAWS, benchmark.n, rho), side)
    return values


@pytest.mark.parametrize(("benchmark_", "side"), SIDES, ids=lambda value: getattr(value, "name", value))
def test_generators_meet_the_published_moments_and_extremes(benchmark_: MatchedBenchmark, side: str) -> None:
    published: Moments = getattr(benchmark_, side)
    values = drawn(benchmark_, side)
    assert values.mean() == pytest.approx(published.mean, rel=0.002)
    assert values.std() == pytest.approx(published.sd, rel=0.03)
    # An extreme hangs on one or two samples: the published one must be nothing special among those drawn, within 1%.
    least, greatest = values.min(axis=1), values.max(axis=1)
    assert 0.99 * least.min() <= published.least <= 1.01 * least.max()
    assert 0.99 * greatest.min() <= published.greatest <= 1.01 * greatest.max()


def test_the_builds_have_as_many_outliers_as_published() -> None:
    builds = next(benchmark for benchmark in benchmarks() if benchmark.name == "gdb-build")
    values = drawn(builds, "baseline")
    away = (values - values.mean()) / values.std()
    assert np.count_nonzero(away > 3) / DRAWS == pytest.approx(135, rel=0.15)
    assert 5 <= np.count_nonzero(away > 6) / DRAWS <= 16


@pytest.mark.parametrize("rho", [0.8, 0.95])
def test_pairs_correlate_as_stated(rho: float) -> None:
    for benchmark in benchmarks():
        raw = benchmark.draw(generator(5, benchmark.name), 10, 20_000, rho)
        assert np.corrcoef(raw.arm.ravel(), raw.baseline.ravel())[0, 1] == pytest.approx(rho, abs=0.012)


def test_the_effects_are_the_articles() -> None:
    effects = {known.name: known.arm.mean / known.baseline.mean - 1 for known in benchmarks()}
    assert effects == pytest.approx({"sysbench-memory": -0.0244, "gdb-build": -0.0112, "iperf3": 0.0037}, abs=1e-4)
    assert {known.name: known.n for known in benchmarks()} == {
        "sysbench-memory": 5000,
        "gdb-build": 24000,
        "iperf3": 37000,
    }
    assert [known.direction for known in benchmarks()] == [-1, -1, 1]


def test_other_shapes_have_the_same_moments() -> None:
    for benchmark in benchmarks(OTHER_SHAPES):
        values = drawn(benchmark, "baseline")
        assert values.mean() == pytest.approx(benchmark.baseline.mean, rel=0.002)
        assert values.std() == pytest.approx(benchmark.baseline.sd, rel=0.03)
        assert SHAPES[benchmark.name] != benchmark.shape
