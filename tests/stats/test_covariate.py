"""A covariate: its model, and size, consistency, falsification and gain in a sequential comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise.errors import StudyError
from hugewise.model.reason import BiasOpen, CovariateUsed
from hugewise.model.results import Comparison
from hugewise.model.trial import Block
from hugewise.report.reasons import in_words
from hugewise.stats import inversion, signflip
from hugewise.stats.covariate import Controlled, ControlVariate, falsification, variance_ratio
from hugewise.stats.sequential import Sequential
from hugewise.study.load import parse
from tests.build import known
from tests.build.trials import CONTRAST, attempt, block, ends

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
    found = falsification(moved, 0.01, budget=100)
    assert found.moved
    assert in_words(found).startswith("the covariate is larger under the arm (exact test at 0.01, pair ")
    # Why: adjusting for it makes up an effect that the treatment has not.
    effectless = [0.5 * (c - 1.0) for c in moved]
    assert signflip.verdict(effectless, 0.01, 100) == 0
    noise = generator.normal(0, 0.5, 100)
    assert signflip.verdict(adjusted((noise + effectless).tolist(), moved), 0.01, 100) == -1
    refused = sum(bool(falsification(generator.normal(size=60).tolist(), 0.1, budget=60).moved) for _ in range(200))
    assert 0 < refused <= 32
    none = falsification([], 0.01)
    assert not none.moved
    assert "not been observed" in in_words(none)


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


def method(covariate: str | None = "load_before", planned: int = 200, alpha: float = 0.01) -> Sequential:
    return Sequential(CONTRAST, planned=planned, alpha=alpha, margin=0.005, covariate=covariate)


def blocks(differences: Sequence[float], moved: Sequence[float | None]) -> list[Block]:
    made = []
    for number, (difference, by) in enumerate(zip(differences, moved, strict=True), 1):
        before = {} if by is None else {"load_before": 3.0 + by, "canary": 0.001 * math.exp(by)}
        base = attempt("base", 100.0, covariates={"load_before": 3.0, "canary": 0.001})
        made.append(block(number, base, attempt("thp", 100.0 * math.exp(difference), covariates=before)))
    return made


def found(made: Sequential, given: Sequence[Block]) -> Comparison:
    for each in given:
        made.observe(each)
    return made.comparison()


def correlated(seed: int, count: int, effect: float = 0.0, share: float = 0.9) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(seed)
    c = rng.normal(size=count)
    d = effect + 0.05 * (math.sqrt(share) * c + math.sqrt(1 - share) * rng.normal(size=count))
    return d.tolist(), c.tolist()


def _exhausted(theta: float, pairs: int) -> int:
    """False verdicts over all coins of the pairs, at the true log-ratio `theta`, by the test that is inverted."""
    noise, c = (np.array(each) for each in correlated(1, pairs, share=0.99))
    verdicts = 0
    for signs in product((1.0, -1.0), repeat=pairs):
        controlled = Controlled()
        for s, e, x in zip(signs, noise.tolist(), c.tolist(), strict=True):
            controlled.add(theta + s * e, s * x)
        values, weights = np.array(controlled.values), np.array(controlled.weights)
        verdicts += signflip.verdict((values - theta * weights).tolist(), 0.1, pairs) != 0
    return verdicts


@pytest.mark.parametrize("theta", [0.0, 0.3])
def test_every_coin_enumerated_keeps_to_alpha_at_any_true_ratio(theta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the covariate taken out from the third pair on, so that eight of ten pairs have it taken out."""
    monkeypatch.setattr("hugewise.stats.covariate._FIRST", 2)
    assert 0 < _exhausted(theta, 10) <= 0.1 * 2**10


def test_the_whole_method_keeps_to_alpha_over_every_coin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hugewise.stats.covariate._FIRST", 2)
    noise, c = correlated(2, 8, share=0.99)
    verdicts = crossed = 0
    for signs in product((1.0, -1.0), repeat=8):
        given = blocks(
            [s * e for s, e in zip(signs, noise, strict=True)], [s * x for s, x in zip(signs, c, strict=True)]
        )
        made = method(planned=8, alpha=0.2)
        for each in given:
            made.observe(each)
        verdicts += made.decision().verdict in ("better", "worse")
        crossed += isinstance(said := made.decision().reason, BiasOpen) and said.crossed
    assert verdicts == 0  # how far the arm moves the covariate is not known after eight pairs
    assert 0 < crossed <= 0.2 * 2**8


def test_swapped_labels_flip_values_about_any_ratio_and_nothing_else() -> None:
    d, c = (np.array(each) for each in correlated(3, 40))
    swaps = np.random.default_rng(4).choice([1.0, -1.0], 40)
    c[20] = 50.0  # cut off

    def walked(signs: np.ndarray) -> np.ndarray:
        controlled = Controlled()
        for e, x in zip((0.3 + signs * d).tolist(), (signs * c).tolist(), strict=True):
            controlled.add(e, x)
        return np.array(controlled.values) - 0.3 * np.array(controlled.weights)

    assert walked(swaps) == pytest.approx(swaps * walked(np.ones(40)), abs=1e-12)


def width(one: Comparison) -> float:
    low, high = ends(one)
    return high - low


@pytest.mark.parametrize("seeds", [range(4, 6), pytest.param(range(4, 7), marks=pytest.mark.soak)])
def test_its_interval_is_narrower_and_says_what_it_bought(seeds: range) -> None:
    streams = [blocks(*correlated(seed, 120, effect=-0.002)) for seed in seeds]
    plain = [found(method(None), given) for given in streams]
    every = [found(method(), given) for given in streams]
    assert sum(width(one) for one in every) < 0.5 * sum(width(one) for one in plain)
    helped = every[0]
    assert plain[0].warnings == ()
    bought, checked = map(in_words, helped.warnings)
    assert "load_before was taken out" in bought
    assert "0." in bought
    assert "no difference of the covariate" in checked
    assert helped.ratio == pytest.approx(math.exp(-0.002), abs=0.015)
    assert plain[0].bias is None
    assert helped.bias is not None and 0.005 < helped.bias < 0.1


@pytest.mark.parametrize("seeds", [range(4, 6), pytest.param(range(4, 8), marks=pytest.mark.soak)])
def test_a_verdict_comes_where_the_effect_exceeds_the_bias_that_was_not_excluded(seeds: range) -> None:
    for seed in seeds:
        said = found(method(), blocks(*correlated(seed, 200, effect=-0.05)))
        assert said.verdict == "better"
        assert known(said.high) * (1 + known(said.bias)) < 1


@pytest.mark.parametrize(("seeds", "pairs"), [([3], 150), pytest.param(range(5), 250, marks=pytest.mark.soak)])
def test_a_covariate_that_the_arm_before_it_moved_makes_no_verdict_of_equal_times(
    seeds: Sequence[int], pairs: int
) -> None:
    """A canary 0.4% longer after the arm, at equal times: taken out of the differences it makes an effect of 0.4%."""
    crossed = 0
    for seed in seeds:
        rng = np.random.default_rng([9, seed])
        noise = 0.03 * rng.normal(size=250)
        d, c = noise + 0.02 * rng.normal(size=250), noise + 0.004
        made = method("canary", planned=250)
        for each in blocks(d.tolist(), c.tolist())[:pairs]:
            made.observe(each)
            assert made.decision().verdict in ("undecided", "none")
            crossed += isinstance(said := made.decision().reason, BiasOpen) and said.covariate == "canary"
    assert crossed


@pytest.mark.parametrize(
    ("seed", "past_the_stop"),
    [(0, False), (2, False), *(pytest.param(seed, True, marks=pytest.mark.soak) for seed in range(6))],
)
def test_no_verdict_contradicts_the_interval_shown(seed: int, past_the_stop: bool) -> None:
    made = method(planned=60, alpha=0.05)
    d, c = correlated(seed, 60, effect=0.006 * (seed % 5 - 2), share=0.9)
    c[30] = 40.0
    for each in blocks(d, c):
        made.observe(each)
        said = made.comparison()
        low, high = said.low or 0.0, said.high or math.inf
        if said.verdict == "better":
            assert high < 1
        elif said.verdict == "worse":
            assert low > 1
        elif said.verdict == "equivalent":
            assert 1 / 1.005 < low <= high < 1.005
        elif said.verdict == "undecided" and not low <= 1 <= high:
            assert isinstance(said.reason, BiasOpen) and said.reason.crossed
        assert low <= known(said.ratio) <= high
        if made.decision().status == "stop" and not past_the_stop:
            break


def test_a_covariate_that_the_arm_moves_takes_the_verdict_away() -> None:
    d, c = correlated(6, 60, effect=-0.3)
    said = found(method(), blocks(d, [x + 5 for x in c]))
    assert said.verdict == "none"
    assert in_words(said.reason).startswith("load_before: the covariate is larger under the arm (exact test at 0.01")
    assert (said.low, said.high, said.tiers, said.warnings) == (None, None, (), ())
    assert said.n < 60


def test_a_covariate_that_is_missing_takes_nothing_out() -> None:
    d, c = correlated(7, 40)
    none = found(method(planned=40), blocks(d, [None] * 40))
    assert none.warnings == (CovariateUsed("load_before", 40, 40, constant=True),)
    same = found(method(planned=40), blocks(d, [0.0] * 40))
    assert same.warnings == (CovariateUsed("load_before", 40, 0, constant=True),)
    plain = found(method(None, planned=40), blocks(d, c))
    assert (none.low, none.high, none.verdict) == (plain.low, plain.high, plain.verdict)
    some = found(method(planned=40), blocks(d, [None if i % 4 == 0 else x for i, x in enumerate(c)]))
    assert "missing in 10 of 40 pairs" in in_words(some.warnings[0])


def test_weights_of_one_change_no_interval() -> None:
    d, _ = correlated(8, 40)
    assert inversion.interval(d, 0.01, 40, weights=[1.0] * 40) == inversion.interval(d, 0.01, 40)


STUDY = """
format = 1
name = "s"
policies = ["base", "thp"]
method = "{method}"
covariate = "{covariate}"
[[workload]]
name = "chase"
"""


def test_the_study_names_it() -> None:
    said = {"method": "sequential", "covariate": "canary"}
    assert parse(STUDY.format(**said), "s.toml").covariate == "canary"
    for change, hint in (
        ({"covariate": "canari"}, "canary"),
        ({"method": "fixed-n"}, 'method = "sequential"'),
    ):
        with pytest.raises(StudyError) as caught:
            parse(STUDY.format(**(said | change)), "s.toml")
        assert caught.value.key == "covariate"
        assert hint in (caught.value.hint or "")
