from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise.stats import signflip
from hugewise.stats.covariate import ControlVariate, falsification, variance_ratio

PAIRS = st.lists(st.tuples(st.floats(-1, 1) | st.sampled_from([math.inf, 0.0]), st.none() | st.floats(-10, 10)))


def adjusted(differences: Sequence[float], covariates: Sequence[float | None]) -> list[float]:
    control = ControlVariate()
    return [control.add(*each) for each in zip(differences, covariates, strict=True)]


def test_by_definition() -> None:
    generator = np.random.default_rng(1)
    c = generator.normal(size=50)
    d = 0.3 * c + generator.normal(size=50)
    products, squares = np.cumsum(d * c), np.cumsum(c * c)
    expected = d - np.concatenate(([0], products[:-1] / squares[:-1])) * c
    assert adjusted(d.tolist(), c.tolist()) == pytest.approx(expected.tolist())
    control = ControlVariate()
    for pair in zip(d.tolist(), c.tolist(), strict=True):
        control.add(*pair)
    assert control.coefficient == pytest.approx(np.linalg.lstsq(c[:, None], d, rcond=None)[0][0])


@given(PAIRS, st.integers(0, 2**32))
def test_swapped_labels_flip_the_adjusted_difference_and_nothing_else(
    pairs: list[tuple[float, float | None]], seed: int
) -> None:
    swaps = np.random.default_rng(seed).choice([1, -1], len(pairs)).tolist()
    plain = adjusted([d for d, _ in pairs], [c for _, c in pairs])
    other = adjusted(
        [s * d for s, (d, _) in zip(swaps, pairs, strict=True)],
        [None if c is None else s * c for s, (_, c) in zip(swaps, pairs, strict=True)],
    )
    assert other == [s * x for s, x in zip(swaps, plain, strict=True)]


def test_it_buys_what_the_correlation_promises() -> None:
    generator = np.random.default_rng(4)
    c = generator.normal(size=4000)
    d = math.sqrt(0.7) * c + math.sqrt(0.3) * generator.normal(size=4000)
    ratio = variance_ratio(d.tolist(), adjusted(d.tolist(), c.tolist()))
    assert ratio == pytest.approx(0.3, abs=0.03)
    useless = generator.normal(size=4000).tolist()
    assert variance_ratio(d.tolist(), adjusted(d.tolist(), useless)) == pytest.approx(1, abs=0.02)
    assert variance_ratio([0.1, 0.1, math.inf], [0.1, 0.1, math.inf]) is None
    assert variance_ratio([0.1], [0.1]) is None


def test_a_mediator_is_refused_and_a_covariate_is_not() -> None:
    generator = np.random.default_rng(5)
    moved = generator.normal(1.0, 1, 100).tolist()
    ok, sentence = falsification(moved, 0.01, budget=100)
    assert not ok
    assert sentence.startswith("the covariate is larger under the arm (exact test at 0.01, pair ")
    # Why: adjusting for it makes up an effect that the treatment has not.
    effectless = [0.5 * (c - 1.0) for c in moved]
    assert signflip.verdict(effectless, 0.01, 100) == 0
    noise = generator.normal(0, 0.5, 100)
    assert signflip.verdict(adjusted((noise + effectless).tolist(), moved), 0.01, 100) == -1
    refused = sum(not falsification(generator.normal(size=60).tolist(), 0.1, budget=60)[0] for _ in range(200))
    assert 0 < refused <= 32
    ok, sentence = falsification([], 0.01)
    assert ok
    assert "not been observed" in sentence


def test_errors_and_what_is_left_alone() -> None:
    control = ControlVariate()
    assert control.add(0.5, 1.0) == 0.5
    assert control.add(0.25, None) == 0.25
    assert control.add(math.inf, 1.0) == math.inf
    assert control.coefficient == 0.5
    with pytest.raises(ValueError, match="finite"):
        control.add(0.5, math.inf)
    with pytest.raises(ValueError, match="NaN"):
        control.add(math.nan, 1.0)
    with pytest.raises(ValueError, match="NaN|number"):
        falsification([math.nan], 0.05)
