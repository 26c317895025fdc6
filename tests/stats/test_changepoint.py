from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from scipy.signal import lfilter

from hugewise.stats.changepoint import _SEGMENT, FEWEST, _changes, host_changes


def noise(generator: np.random.Generator, n: int, memory: float) -> npt.NDArray[np.float64]:
    """Autoregressive noise of standard deviation 1, past its start."""
    white = generator.normal(size=n + 500)
    return np.asarray(lfilter([1.0], [1.0, -memory], white))[500:] * math.sqrt(1 - memory**2)


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9, 0.98])
@pytest.mark.parametrize("n", [60, 300])
@pytest.mark.parametrize(("hosts", "most"), [(80, 9), pytest.param(150, 16, marks=pytest.mark.soak)])
def test_false_alarms_on_a_steady_host(memory: float, n: int, hosts: int, most: int) -> None:
    """At an error of 5%: of 80 hosts 4 alarms expected at most, 9 with three standard errors; of 150, 7.5 and 16."""
    generator = np.random.default_rng(n)
    alarms = sum(bool(host_changes((0.1 * noise(generator, n, memory)).tolist(), error=0.05)) for _ in range(hosts))
    assert alarms <= most


def test_stalls_are_no_change() -> None:
    generator = np.random.default_rng(1)
    alarms = sum(bool(host_changes(generator.standard_t(2, 300).tolist(), error=0.05)) for _ in range(100))
    assert alarms <= 11


@pytest.mark.parametrize("memory", [0.0, 0.5])
def test_a_change_is_found_where_it_is(memory: float) -> None:
    generator = np.random.default_rng(2)
    found = 0
    for _ in range(40):
        sums = 10 + 0.02 * noise(generator, 600, memory)
        sums[400:] += 0.06
        changes = host_changes(sums.tolist())
        found += len(changes) == 1 and abs(changes[0].pair - 401) <= 5
    assert found >= 36


def test_what_is_said() -> None:
    sums: list[float | None] = (10 + 0.01 * np.random.default_rng(3).normal(size=200)).tolist()
    for number in range(120, 200):
        sums[number] = (sums[number] or 0) + 2 * math.log(1.1)
    (change,) = host_changes(sums)
    assert change.pair == 121
    assert change.ratio == pytest.approx(1.1, rel=0.01)
    assert change.sentence.startswith("from pair 121 on, both sides together are ")
    assert "% higher than before: the host changed" in change.sentence
    # A failure is left out and still counted in the pair numbers; units and scale change nothing.
    sums[5], sums[50] = None, math.inf
    assert [c.pair for c in host_changes(sums)] == [121]
    other = [None if s is None else 7 - 3 * s for s in sums]
    (change,) = host_changes(other)
    assert change.pair == 121
    assert "% lower than before" in change.sentence


def test_what_cannot_be_said() -> None:
    step = [0.0] * 19 + [9.0] * 20
    assert len(step) == FEWEST - 1
    assert host_changes(step) == []
    assert host_changes([1.0] * 200) == []
    with pytest.raises(ValueError, match="NaN"):
        host_changes([math.nan])
    with pytest.raises(ValueError, match="error rate"):
        host_changes([], error=0)


def test_no_other_segments_cost_less() -> None:
    """Against every partition into at most three segments, on noise with and without a step."""
    generator = np.random.default_rng(4)
    found = []
    for step in (0.0, 1.5, 3.0):
        values = generator.normal(size=45)
        values[20:] += step

        def cost(edges: tuple[int, ...], values: npt.NDArray[np.float64] = values) -> float:
            inner = [values[a:b] for a, b in pairwise((0, *edges, len(values)))]
            return sum(float(((one - one.mean()) ** 2).sum()) for one in inner) + 8.0 * len(edges)

        places = range(_SEGMENT, len(values) - _SEGMENT + 1)
        every = [(), *((place,) for place in places), *((a, b) for a in places for b in places if b - a >= _SEGMENT)]
        found.append(tuple(_changes(values, 8.0)))
        assert cost(found[-1]) == pytest.approx(min(map(cost, every)))
    assert found[0] == () and len(found[2]) == 1
