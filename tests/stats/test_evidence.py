"""Evidence of several runs: products, e-Holm, refusals, and the error rate of it all."""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise.stats.evidence import Carried, EProcess, RunEvidence, adjusted, combine, not_separate
from tests.build import known

LIKE = {"workload": "chase", "parameters": "{}"}


def carried(larger: float | None, smaller: float | None, arm: str = "thp", **changes: object) -> Carried:
    made = Carried(
        cell="chase",
        arm=arm,
        baseline="base",
        metric="ns",
        higher_is_better=False,
        identity=LIKE,
        pairs=12,
        larger=larger,
        smaller=smaller,
    )
    return msgspec.structs.replace(made, **changes)


def source(name: str, *comparisons: Carried, seed: str | None = None) -> RunEvidence:
    return RunEvidence(run=name, seed_hash=seed or f"seed of {name}", host="", comparisons=comparisons)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=6))
def test_adjusted_is_closed_testing_with_the_mean(values: list[float]) -> None:
    everything = range(len(values))
    sets = [each for size in range(1, len(values) + 1) for each in itertools.combinations(everything, size)]
    expected = [min(math.fsum(values[i] for i in each) / len(each) for each in sets if at in each) for at in everything]
    assert adjusted(values) == pytest.approx(expected)


def test_one_comparison_of_two_runs() -> None:
    (found,) = combine([source("a", carried(0.1, 30)), source("b", carried(0.2, 40))], 0.01)
    assert found.larger == pytest.approx(0.02)
    assert found.smaller == pytest.approx(1200)
    assert found.adjusted == pytest.approx((1200 + 0.02) / 2)
    assert (found.direction, found.verdict) == ("smaller", "better")
    assert [part.run for part in found.parts] == ["a", "b"]


def test_the_metric_says_which_direction_is_better() -> None:
    runs = [source(name, carried(0.1, 30, higher_is_better=True)) for name in "ab"]
    assert combine(runs, 0.01)[0].verdict == "worse"


def test_opposite_directions_do_not_add_up() -> None:
    (found,) = combine([source("a", carried(1e3, 0.01)), source("b", carried(0.01, 1e3))], 0.01)
    assert (found.direction, found.verdict) == ("undecided", "undecided")


def test_more_comparisons_ask_for_more() -> None:
    values = carried(0.0, math.sqrt(250)), [carried(1.0, 1.0, arm=f"other {n}") for n in range(3)]
    runs = [source(name, values[0], *values[1]) for name in "ab"]
    assert combine([source(name, values[0]) for name in "ab"], 0.01)[0].verdict == "better"
    assert [one.verdict for one in combine(runs, 0.01)] == ["undecided"] * 4


def test_a_refused_comparison_still_counts_in_the_family() -> None:
    strong, lost = carried(0.0, 16.0), carried(None, None, arm="lost", absent="pages not delivered")
    alone = combine([source(name, strong) for name in "ab"], 0.01)
    both = combine([source(name, strong, lost) for name in "ab"], 0.01)
    assert alone[0].adjusted == pytest.approx(128)
    assert both[0].adjusted == pytest.approx(64)
    assert (both[1].direction, both[1].verdict, both[1].larger) == ("refused", "none", None)
    assert both[1].reason == "a has no e-value: pages not delivered"


def test_the_end_points_of_one_metric_are_comparisons_of_their_own() -> None:
    """Typical ratio and mean disagree: neither enters the other's product, and both share the error rate."""
    made = [carried(0.01, 20.0), carried(30.0, 0.01, end_point="mean"), carried(1.0, 1.0, end_point="slow")]
    found = combine([source(name, *made) for name in "ab"], 0.01)
    assert [one.end_point for one in found] == ["typical ratio", "mean", "slow"]
    assert [one.key[-1] for one in found] == ["typical ratio", "mean", "slow"]
    assert [(one.larger, one.smaller) for one in found] == [
        pytest.approx(each) for each in ((1e-4, 400.0), (900.0, 1e-4), (1.0, 1.0))
    ]
    assert [(one.direction, one.verdict) for one in found] == [
        ("undecided", "undecided"),
        ("larger", "worse"),
        ("undecided", "undecided"),
    ]
    assert found[0].adjusted == pytest.approx((400 + 1 + 1 + 2e-4) / 5)
    (alone,) = combine([source(name, made[0]) for name in "ab"], 0.01)
    assert alone.verdict == "better"


def test_an_end_point_without_e_values_is_refused_and_the_others_are_not() -> None:
    kept = carried(0.0, 1e3, end_point="mean", absent="")
    lost = msgspec.structs.replace(kept, larger=None, smaller=None, absent="none was kept of its mean")
    runs = [source("a", carried(0.0, 1e3), lost), source("b", carried(0.0, 1e3), kept)]
    typical, mean = combine(runs, 0.01)
    assert (typical.verdict, mean.direction, mean.verdict) == ("better", "refused", "none")
    assert mean.reason == "a has no e-value: none was kept of its mean"


def test_what_differs_is_refused_by_its_name() -> None:
    other = carried(0.1, 1e9, identity=LIKE | {"parameters": '{"bytes":1}'})
    (found,) = combine([source("a", carried(0.1, 1e9)), source("b", other)], 0.01)
    assert (found.direction, found.reason) == ("refused", "the parameters of a and b differ")


def test_what_only_one_run_has_is_no_combination() -> None:
    assert combine([source("a", carried(1, 1)), source("b", carried(1, 1, arm="other"))], 0.01) == ()


def test_the_same_coins_twice_are_refused() -> None:
    first = source("a", carried(1, 1))
    assert not_separate([first, source("b")]) is None
    with pytest.raises(ValueError, match="a is given twice"):
        combine([first, first], 0.01)
    with pytest.raises(ValueError, match="runs a and b have the same seed"):
        combine([first, source("b", carried(1, 1), seed=first.seed_hash)], 0.01)


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="alpha"):
        combine([], 1.0)
    with pytest.raises(ValueError, match="from 0 on"):
        adjusted([1.0, math.nan])


def test_products_beyond_a_double_stay_numbers() -> None:
    (found,) = combine([source(name, carried(0.0, 1e300)) for name in "ab"], 0.01)
    assert math.isfinite(known(found.smaller))
    assert found.verdict == "better"


def test_wrong_directions_stay_within_alpha_under_the_null() -> None:
    """Two runs of two comparisons that share their baseline's noise, each stopped once its evidence is large.

    At alpha 0.2 three standard errors above are 0.2 + 3 * sqrt(0.16 / 250) = 0.276.
    """
    random = np.random.default_rng(11)
    wrong = 0
    for _ in range(250):
        runs = []
        for name in "ab":
            baseline = random.standard_t(3, 16)
            carries = []
            for arm in ("x", "y"):
                process = EProcess()
                for difference in random.standard_t(3, 16) - baseline:
                    process.add(difference)
                    if process.value >= 4:
                        break
                carries.append(carried(process.up, process.down, arm=arm))
            runs.append(source(name, *carries))
        wrong += any(one.direction != "undecided" for one in combine(runs, 0.2))
    assert wrong / 250 <= 0.276
