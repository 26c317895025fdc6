"""Evidence: e-processes, scores, products over runs and strata, e-Holm, refusals, and the error rate of it all."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from ville import BettingTest
from ville.evalues import combine as villes_product

from hugewise.report.reasons import in_words
from hugewise.stats import signflip
from hugewise.stats.evidence import (
    ALL,
    GRID,
    Carried,
    EProcess,
    RunEvidence,
    adjusted,
    combine,
    e_bh,
    multiply_e_values,
    not_separate,
    over_strata,
)
from hugewise.stats.signflip import CAP, Scores, magnitudes, signed
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
    sets = [
        combination for size in range(1, len(values) + 1) for combination in itertools.combinations(everything, size)
    ]
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
    assert in_words(both[1].reason) == "a has no e-value: pages not delivered"


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


def run(number: int, larger: float | None, smaller: float | None, absent: str = "") -> RunEvidence:
    made = Carried(
        cell="c", arm="thp", baseline="base", metric="s", higher_is_better=False, identity={"design": "d"}, pairs=20,
        larger=larger, smaller=smaller, absent=absent,
    )  # fmt: skip
    return RunEvidence(run=f"r{number}", seed_hash=f"{number:x}", host=f"h{number}", comparisons=(made,))


def test_values_multiply_within_strata_and_over_all() -> None:
    found = over_strata({"a": [run(1, 0.1, 30), run(2, 0.1, 40)], "b": [run(3, 0.5, 2)]}, 0.05)
    assert {name: (one.larger, one.smaller) for name, (one,) in found.items()} == {
        "a": (pytest.approx(0.01), pytest.approx(1200)),
        "b": (0.5, 2),
        ALL: (pytest.approx(0.005), pytest.approx(2400)),
    }
    assert {name: one.verdict for name, (one,) in found.items()} == {"a": "better", "b": "undecided", ALL: "better"}
    # Six nulls: the set with the least mean that holds it is it with all but the 1,200.
    assert found[ALL][0].adjusted == pytest.approx((2400 + 2 + 0.5 + 0.01 + 0.005) / 5)


@pytest.mark.parametrize(("smaller", "verdict"), [(119.0, "undecided"), (121.0, "better")])
def test_over_strata_the_value_that_decides_is_that_of_the_whole_family(smaller: float, verdict: str) -> None:
    """Six nulls at 5%, all other values 0: the adjusted value is a sixth, and 20 decides."""
    found = over_strata({"a": [run(1, 0.0, smaller)], "b": [run(2, 0.0, 0.0)]}, 0.05)
    assert found["a"][0].verdict == verdict


def test_one_stratum_is_not_counted_twice() -> None:
    found = over_strata({"a": [run(1, 0.1, 30)]}, 0.05)
    assert found["a"] == found[ALL]
    assert found["a"][0].adjusted == pytest.approx((30 + 0.1) / 2)


def test_what_one_stratum_lacks_refuses_it_and_the_whole_alone() -> None:
    lacking = run(3, None, None, "pages were not delivered")
    found = over_strata({"a": [run(1, 0.1, 30), run(2, 0.1, 40)], "b": [lacking]}, 0.05)
    assert {name: one.direction for name, (one,) in found.items()} == {"a": "smaller", "b": "refused", ALL: "refused"}
    assert "pages were not delivered" in in_words(found[ALL][0].reason)


def test_the_same_coins_in_two_strata_are_refused() -> None:
    with pytest.raises(ValueError, match="given twice"):
        over_strata({"a": [run(1, 1, 1)], "b": [run(1, 1, 1)]}, 0.05)
    with pytest.raises(ValueError, match="name"):
        over_strata({"": [run(1, 1, 1)]}, 0.05)


ROWS = st.lists(st.sampled_from([0.0, math.inf, -math.inf]) | st.floats(-1e6, 1e6), max_size=30)


def after(differences: list[float]) -> EProcess:
    process = EProcess()
    for difference in differences:
        process.add(difference)
    return process


def test_by_definition() -> None:
    process = after([0.5, -0.2, 0.9])
    scores = np.array([7, -3, 14]) / 10  # u = 1/2, 1/4, 5/6
    up = np.mean([np.prod(np.exp(r * scores) / np.cosh(r * scores)) for r in GRID])
    down = np.mean([np.prod(np.exp(-r * scores) / np.cosh(r * scores)) for r in GRID])
    assert (process.up, process.down) == pytest.approx((up, down))
    assert process.value == pytest.approx((up + down) / 2)
    assert process.log_value == pytest.approx(math.log((up + down) / 2))


def test_one_rate_on_equal_magnitudes_is_villes_betting_on_a_coin() -> None:
    """exp(l s)/cosh(l) = 1 + s tanh(l): a fixed stake on heads or tails, as ville bets when its stake is capped."""
    generator = np.random.default_rng(3)
    heads = generator.random(60) < 0.6
    magnitude = 0.7  # each of equal magnitudes is at mid-rank: score 7
    rate = math.atanh(0.02) / magnitude
    ours, log_values = EProcess([rate]), []
    for head in heads:
        ours.add(1.0 if head else -1.0)
        log_values.append(ours.log_value)
    theirs = BettingTest(0.5, c=0.02).update(heads.astype(float))
    assert log_values == pytest.approx(theirs.log_e_values_.tolist(), rel=1e-9)
    assert ours.rejects(0.75) == (theirs.stopping_time(0.75) is not None)


@settings(deadline=None)
@given(ROWS)
def test_swapped_labels_swap_up_and_down(differences: list[float]) -> None:
    one, other = after(differences), after([-d for d in differences])
    assert (one.log_up, one.log_down) == pytest.approx((other.log_down, other.log_up), abs=1e-9)
    assert one.rejects(0.05) == other.rejects(0.05)


@settings(deadline=None)
@given(st.lists(st.integers(-5, 9).map(float), max_size=30), st.integers(-30, 30))
def test_units_do_not_matter(differences: list[float], power: int) -> None:
    assert after([math.ldexp(d, power) for d in differences]).log_value == after(differences).log_value


def test_a_rejection_stays() -> None:
    process = after([])
    assert process.value == 1
    assert not process.rejects(0.5)
    values = []
    for difference in [1.0 + 0.01 * i for i in range(40)]:
        process.add(difference)
        values.append(process.value)
    first = next(i for i, value in enumerate(values, 1) if value >= 1e4)
    assert 15 <= first <= 24
    assert process.rejects(1e-4)
    assert process.up > process.down
    for _ in range(120):
        process.add(-1.0)
    assert process.value < 1e4
    assert process.rejects(1e-4)
    assert process.pairs == 160


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_the_largest_value_is_not_missed(shift: float) -> None:
    """Against the value after every pair."""
    process, largest = EProcess(), 1.0
    for difference in (np.random.default_rng(7).standard_normal(300) + shift).tolist():
        process.add(difference)
        largest = max(largest, process.value)
        assert process._log_largest == pytest.approx(math.log(largest), rel=1e-12, abs=1e-12)


def test_hosts_multiply() -> None:
    one, other = after([1.0, 2.0, -0.5, 3.0]), after([0.4, 0.3, 0.8])
    assert multiply_e_values([one.value, other.value]) == pytest.approx(one.value * other.value)
    assert multiply_e_values([one.value, other.value]) == pytest.approx(
        float(villes_product([one.value, other.value], method="product"))
    )
    assert multiply_e_values([]) == 1
    assert multiply_e_values([0.0, math.inf]) == 0
    assert multiply_e_values([1e300, 1e300]) == math.inf
    for bad in (-1.0, math.nan):
        with pytest.raises(ValueError, match="from 0 on"):
            multiply_e_values([1.0, bad])


def test_very_long_evidence_does_not_overflow() -> None:
    process = after([1.0 + i for i in range(1200)])
    assert process.value == math.inf
    assert process.log_value > 700
    assert process.rejects(1e-4)


def test_bad_arguments_are_refused() -> None:
    for grid in ([], [0.0, 1.0], [-1.0], [math.inf], [math.nan]):
        with pytest.raises(ValueError, match="grid"):
            EProcess(grid)
    for alpha in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="alpha"):
            after([]).rejects(alpha)
    with pytest.raises(ValueError, match="number or infinite"):
        after([math.nan])


LEVELS = st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, 1e6, -1e6, math.inf, -math.inf])
LEVEL_ROWS = st.lists(LEVELS | st.floats(-1e9, 1e9), max_size=40)


def one_by_one(differences: list[float]) -> list[int]:
    made = Scores()
    return [made.add(difference)[0] for difference in differences]


def by_definition(differences: list[float]) -> list[int]:
    """From scipy's ranks and the quantile function itself."""
    found = []
    for t in range(1, len(differences) + 1):
        ranks = stats.rankdata(np.abs(differences[:t]))
        share = (ranks[-1] - 0.5) / t
        score = max(1, min(CAP, round(10 * NormalDist().inv_cdf((1 + share) / 2))))
        found.append(score * int(np.sign(differences[t - 1])))
    return found


@given(LEVEL_ROWS)
def test_one_by_one_all_at_once_and_by_definition(differences: list[float]) -> None:
    expected = by_definition(differences)
    assert one_by_one(differences) == expected
    for few in (signflip._FEW, 0):  # one by one, and all at once
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(signflip, "_FEW", few)
            assert signed(differences).tolist() == expected
            assert magnitudes(differences).tolist() == [abs(score) for score in expected]


@pytest.mark.parametrize("kind", ["normal", "ties", "failures"])
def test_blocks_of_pairs_agree_with_single_ones(kind: str) -> None:
    generator = np.random.default_rng(4)
    values = generator.standard_cauchy(1500)
    if kind == "ties":
        values = np.round(values)
    elif kind == "failures":
        values[generator.integers(0, 1500, 90)] = math.inf
        values[generator.integers(0, 1500, 90)] = -math.inf
    assert signed(values).tolist() == one_by_one([float(value) for value in values])


@given(LEVEL_ROWS, st.integers(0, 2**40 - 1))
def test_coins_set_signs_and_nothing_else(differences: list[float], coins: int) -> None:
    flipped = [-d if coins >> i & 1 else d for i, d in enumerate(differences)]
    before, after = one_by_one(differences), one_by_one(flipped)
    assert [abs(score) for score in after] == [abs(score) for score in before]
    assert after == [-s if coins >> i & 1 else s for i, s in enumerate(before)]


@given(st.lists(LEVELS | st.integers(-(10**6), 10**6).map(float), max_size=40), st.integers(-20, 20))
def test_the_unit_of_the_differences_does_not_matter(differences: list[float], power: int) -> None:
    assert one_by_one([math.ldexp(d, power) for d in differences]) == one_by_one(differences)


def test_small_examples() -> None:
    assert one_by_one([0.3]) == [7]  # u = 1/2: the quartile of the normal distribution, 0.674
    assert one_by_one([0.0, 0.0, -2.0]) == [0, 0, -14]  # zeros take the lower ranks: u = 5/6
    assert one_by_one([1.0, -1.0]) == [7, -7]  # tied: both at mid-rank
    assert one_by_one([1.0, 2.0, math.inf, -math.inf])[2:] == [14, -12]  # failures are tied at the top
    assert max(magnitudes(np.arange(1.0, 3000))) == CAP
    assert magnitudes([]).tolist() == []


def test_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="number or infinite"):
        Scores().add(math.nan)
    with pytest.raises(ValueError, match="one row of numbers"):
        magnitudes([1.0, math.nan])


def test_e_bh_rejects_the_largest_that_suffice_together() -> None:
    assert e_bh([], 0.05) == []
    assert e_bh([39.0, 1.0], 0.05) == [False, False]
    assert e_bh([1.0, 41.0], 0.05) == [False, True]
    assert e_bh([21.0, 20.5], 0.05) == [True, True]  # neither alone: 2/0.05 is 40
    with pytest.raises(ValueError, match="alpha"):
        e_bh([1.0], 1.0)
