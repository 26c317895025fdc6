from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hugewise.model.metric import Metric
from hugewise.model.pages import PageSizes
from hugewise.plan.plan import plan
from hugewise.report.reasons import in_words
from hugewise.stats.family import conclude, holm, methods_for
from hugewise.stats.fixed import FixedN
from hugewise.stats.method import Contrast
from hugewise.stats.paired import Student
from hugewise.stats.sequential import Sequential
from hugewise.stats.signflip import chance
from tests.analysis.test_forecast import cell
from tests.build import known
from tests.build.studies import SIZES, KnobFiles, policies, study_of, workloads
from tests.build.trials import LOWER, NEUTRAL, attempt, block, ends, fed, pair

probabilities = st.lists(st.floats(0, 1), max_size=12)


def sample(generator: np.random.Generator, centre: float, sd: float = 0.02, n: int = 12, **more: Any) -> FixedN:
    ratios = np.exp(generator.normal(math.log(centre), sd, n))
    return fed([pair(k, float(r)) for k, r in enumerate(ratios)], planned=12, **more)


@given(probabilities, st.sampled_from([0.01, 0.05, 0.2]))
def test_holm_rejects_exactly_what_its_adjusted_p_values_say(p_values: list[float], alpha: float) -> None:
    """Adjusted p by the textbook: the running maximum of (m - r + 1) p over the sorted p values."""
    m, running, expected = len(p_values), 0.0, [False] * len(p_values)
    for rank, index in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        running = max(running, (m - rank) * p_values[index])
        expected[index] = running <= alpha
    rejected, levels = holm(p_values, alpha)
    close = any(math.isclose((m - r) * p, alpha) for p in p_values for r in range(m))
    assert rejected == expected or close
    assert rejected == [p <= level for p, level in zip(p_values, levels, strict=True)]
    assert all(alpha / m <= level <= alpha for level in levels)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.sampled_from([0.9, 0.97, 1.0, 1.005, 1.03]), min_size=1, max_size=6))
def test_a_verdict_of_holm_has_the_coins_too(seed: int, centres: list[float]) -> None:
    generator = np.random.default_rng(seed)
    methods = [sample(generator, centre, float(generator.choice([0.002, 0.02, 0.1]))) for centre in centres]
    for method, one in zip(methods, conclude(methods, 0.95, 0.03), strict=True):
        values = [known(pair.log_ratio) for pair in method.pairs.usable]
        level, sign = 1 - one.confidence, 1 if known(one.ratio) > 1 else -1
        if one.verdict in ("better", "worse"):
            assert 2 * chance(sign * value for value in values) <= level
        elif one.verdict == "equivalent":
            bound = math.log1p(0.03)
            assert max(chance(bound - v for v in values), chance(bound + v for v in values)) <= level / 2


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.sampled_from([0.9, 0.97, 1.0, 1.005, 1.03, 1.2]), min_size=1, max_size=6))
def test_intervals_verdicts_and_holm_agree(seed: int, centres: list[float]) -> None:
    """Of Student's t, which the intervals are."""
    generator = np.random.default_rng(seed)
    methods = [sample(generator, c, float(generator.choice([0.002, 0.02, 0.1])), coins=False) for c in centres]
    found = conclude(methods, 0.95, 0.03)
    rejected, levels = holm([m.p_difference() for m in methods], 0.05)
    confirmed, _ = holm([m.p_equivalence(0.03) for m in methods], 0.05)
    for one, difference, equivalence, level in zip(found, rejected, confirmed, levels, strict=True):
        low, high = ends(one)
        excludes = low > 1 or high < 1
        inside = low >= 1 / 1.03 and high <= 1.03
        assert (one.verdict == "equivalent") == inside
        assert (one.verdict in ("better", "worse")) == (excludes and not inside)
        assert excludes == (known(one.p) <= 1 - one.confidence)
        assert difference or not excludes
        assert equivalence or not inside
        widened = 1 - one.confidence < level * (1 - 1e-9)  # for the sake of equivalence
        assert excludes == difference or widened


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.sampled_from([0.9, 0.99, 1.0, 1.01, 1.2]), min_size=1, max_size=6))
def test_a_verdict_of_a_method_is_never_taken_back(seed: int, centres: list[float]) -> None:
    generator = np.random.default_rng(seed)
    methods = [
        sample(generator, c, float(generator.choice([0.002, 0.02])), confidence=0.95, margin=0.03, family=len(centres))
        for c in centres
    ]
    for method, one in zip(methods, conclude(methods, 0.95, 0.03), strict=True):
        decided = method.decision().verdict
        assert decided in ("undecided", one.verdict) or (decided in ("better", "worse") and one.verdict == "equivalent")


@pytest.mark.parametrize("many", [0, 1, 5])
def test_more_comparisons_widen_the_intervals(many: int) -> None:
    generator = np.random.default_rng(2)
    found = conclude([sample(generator, 1.0) for _ in range(many)], 0.99, 0.005)
    assert [one.confidence for one in found] == pytest.approx([1 - 0.01 / max(1, many)] * many)


def test_before_the_planned_number_nothing_is_claimed() -> None:
    generator = np.random.default_rng(3)
    found = conclude([sample(generator, 0.5, n=11), sample(generator, 0.5)], 0.99, 0.005)
    assert [(one.verdict, one.final) for one in found] == [("undecided", False), ("better", True)]
    assert in_words(found[0].reason) == "11 of 12 planned pairs"
    assert found[0].change is not None
    assert found[1].confidence == pytest.approx(1 - 0.01 / 2)


def test_a_neutral_metric_is_shown_and_not_counted() -> None:
    neutral = fed([pair(k, 0.5 + k / 100) for k in range(12)], NEUTRAL)
    found = conclude([neutral, sample(np.random.default_rng(4), 0.5)], 0.99, 0.005)
    assert [one.verdict for one in found] == ["none", "better"]
    assert found[1].confidence == pytest.approx(0.99)
    assert found[0].ratio is not None


def test_an_undelivered_arm_still_counts_in_the_family() -> None:
    bad = fed([block(k, attempt("thp", 1.0, delivered=False), attempt("base", 2.0)) for k in range(12)])
    found = conclude([bad, sample(np.random.default_rng(4), 1.0)], 0.99, 0.005)
    assert found[0].verdict == "none"
    assert found[1].confidence == pytest.approx(1 - 0.01 / 2)


class Known(FixedN):
    """A finished comparison whose log-ratio was estimated with a known standard error of 1/1000 (10,000 pairs)."""

    def __init__(self, centre: float) -> None:
        super().__init__(Contrast("chase", "thp", "base", LOWER), planned=2, confidence=0.9, margin=0.1, coins=False)
        self._known = Student(10_000, centre, 0.001)

    def _tests(self, pairs: object) -> Student:
        return self._known

    def _final(self) -> bool:
        return True


def test_familywise_error_of_equivalence_with_every_difference_found() -> None:
    """Ten effects on the edge of the margin, all of them found, at 90%: at most 10% of 600 such studies may call any of
    them equivalent. Reading the verdicts off plain Holm intervals would do so in far more: the smallest estimate gets
    the narrowest interval. (Plus or minus 3 standard errors; the seed is fixed.)"""
    generator = np.random.default_rng(22)
    margin, wrong, plain, undecided = math.expm1(0.006), 0, 0, 0
    for _ in range(600):
        methods = [Known(float(centre)) for centre in generator.normal(0.006, 0.001, 10)]
        found = conclude(methods, 0.9, margin)
        wrong += any(one.verdict == "equivalent" for one in found)
        undecided += sum(one.verdict == "undecided" for one in found)
        _, levels = holm([m.p_difference() for m in methods], 0.1)
        read = [m.comparison(level, margin) for m, level in zip(methods, levels, strict=True)]
        plain += any(one.verdict == "equivalent" for one in read)
    assert wrong / 600 < 0.1 + 3 * math.sqrt(0.09 / 600)
    assert plain / 600 > 0.2
    assert undecided / 6000 < 0.02


def test_methods_follow_the_plan() -> None:
    use = [{"name": "chase"}, {"name": "mmap-perf", "delivery": {"share": 0}}]
    study = study_of(policies=["base", "thp", "hugetlb-2m"], budget={"blocks": 5}, workload=use)
    made = methods_for(study, plan(study, policies(), workloads(), KnobFiles(), SIZES, "system").cells)
    assert [(m.contrast.cell, m.contrast.arm, m.contrast.proof_demanded) for m in made] == [
        ("chase", "thp", True),
        ("chase", "hugetlb-2m", True),
        ("mmap-perf", "thp", False),
    ]
    assert {(m.name, m.planned) for m in made} == {("fixed-n", 5)}
    bare = plan(study, {"base": policies()["base"]}, workloads(), KnobFiles(), PageSizes(4096, None, (), ()), "system")
    assert methods_for(study, bare.cells) == ()


def test_metrics_that_are_judged_beside_the_first_have_shares_of_the_same_error_rate() -> None:
    asked = study_of(method="sequential", end_points=["mean"], budget={"blocks": 40})
    record = cell(
        "chase", "thp", "mthp", also=(Metric("cost", "us", "lower", ""), Metric("faults", "faults", "lower", ""))
    )
    methods = methods_for(asked, [record])
    told = [(method.contrast.metric.name, method.contrast.arm, type(method).__name__) for method in methods]
    assert told == [
        ("ns_per_load", "thp", "Sequential"),
        ("ns_per_load", "thp", "EndPoint"),
        ("ns_per_load", "mthp", "Sequential"),
        ("ns_per_load", "mthp", "EndPoint"),
        *((name, arm, "Sequential") for name in ("cost", "faults") for arm in ("thp", "mthp")),
    ]
    shares = [one.alpha for one in conclude(methods, asked.confidence, asked.margin)]
    assert sum(map(known, shares)) == pytest.approx(1 - asked.confidence)
    assert len({*shares}) == 1, "each has as much, and metrics beside the first pay for no end point"
    alone = methods_for(asked, [msgspec.structs.replace(record, also=())])
    assert len(alone) == 4
    assert known(conclude(alone, 0.99, 0.01)[0].alpha) == pytest.approx(2 * known(shares[0]))


@pytest.mark.parametrize("method", ["sequential", "exact", "fixed-n"])
def test_each_of_three_comparisons_has_a_third_of_the_error_rate(method: str) -> None:
    asked = msgspec.structs.replace(study_of(), method=method)

    def level(*arms: str) -> float:
        first = methods_for(asked, [cell("chase", *arms)])[0]
        assert isinstance(first, Sequential | FixedN)
        return first._level if isinstance(first, FixedN) else first.alpha

    assert level("thp", "mthp", "other") == pytest.approx(level("thp") / 3)


def test_a_screening_chooses_by_the_first_metric_alone() -> None:
    asked = msgspec.structs.replace(study_of(), method="screening")
    record = cell("chase", "thp", also=(Metric("cost", "us", "lower", ""),))
    assert [each.contrast.metric.name for each in methods_for(asked, [record])] == ["ns_per_load"]
