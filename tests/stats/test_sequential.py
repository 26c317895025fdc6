"""The method `sequential` on simulated blocks: verdicts, error rates, tiers, and the pairs that reach it."""

from __future__ import annotations

import copy
import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from hugewise.analysis import analysis
from hugewise.model.reason import LeftOut, NoOneEffect, NotWithAll, Unknown
from hugewise.model.results import Comparison
from hugewise.model.trial import Block, DeliveryThreshold, draw_order
from hugewise.plan.plan import plan
from hugewise.report.reasons import in_words
from hugewise.report.summary import summary
from hugewise.report.terminal import show
from hugewise.stats.evidence import EProcess
from hugewise.stats.family import conclude, methods_for
from hugewise.stats.method import Contrast, Method
from hugewise.stats.pairs import Inference, Pairs, against
from hugewise.stats.sequential import Sequential, Unjudged
from hugewise.stats.signflip import (
    Boundary,
    chance,
    first_crossing,
    log_spending,
    magnitudes,
    open_ended,
    verdict,
)
from hugewise.study.load import parse
from hugewise.study.study import Study
from tests.analysis.test_forecast import cell, write_run
from tests.build import known
from tests.build.studies import SIZES, KnobFiles, policies, study_of, workloads
from tests.build.trials import CONTRAST, HIGHER, LOWER, NEUTRAL, attempt, block, ends
from tools.verification import independent
from tools.verification.block_streams import CONTRAST as STREAM_CONTRAST
from tools.verification.block_streams import Fate, pair


def method(alpha: float = 0.01, planned: int = 200, margin: float = 0.005, contrast: Contrast = CONTRAST) -> Sequential:
    return Sequential(contrast, planned=planned, alpha=alpha, margin=margin)


def pairs(differences: Iterable[float]) -> list[Block]:
    return [block(n, {"base": 100.0, "thp": 100.0 * math.exp(d)}) for n, d in enumerate(differences, 1)]


def fed(blocks: Iterable[Block], made: Sequential | None = None) -> Sequential:
    made = made or method()
    for each in blocks:
        made.observe(each)
    return made


def noise(seed: int, count: int, mean: float = 0.0, sd: float = 0.05) -> list[float]:
    return list(np.random.default_rng(seed).normal(mean, sd, count))


def width(found: Comparison) -> float:
    low, high = ends(found)
    return high - low


def test_a_clear_effect_stops_early_and_says_how_far_it_reaches() -> None:
    made = fed(pairs(noise(1, 200, mean=-0.3)))
    found = made.comparison()
    assert found.verdict == "better"
    assert 8 <= found.n <= 18
    assert found.reach == "this campaign"
    assert known(found.high) < 1
    assert 0 < known(found.alpha_spent) <= 0.01
    here, average, beyond = found.tiers
    assert here.supported
    assert not average.supported
    assert "100" in in_words(average.reason)
    assert not beyond.supported


def test_a_claim_that_no_one_effect_fits_is_withheld_and_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = pairs(noise(1, 60, mean=-0.3))
    monkeypatch.setattr(Sequential, "_fits", lambda *_: False)
    made = fed(blocks[:40])
    assert (made.comparison().verdict, made.decision().reason) == ("undecided", NoOneEffect(crossed=True))
    monkeypatch.undo()
    assert fed(blocks[40:], made).comparison().verdict == "better"


def test_the_direction_of_the_metric_decides_what_is_better() -> None:
    higher = Contrast("chase", "thp", "base", HIGHER)
    assert fed(pairs(noise(1, 200, mean=-0.3)), method(contrast=higher)).decision().verdict == "worse"


def test_after_the_stop_nothing_is_taken_in() -> None:
    made = fed(pairs(noise(1, 200, mean=-0.3)))
    before = made.comparison()
    fed(pairs(noise(2, 50, mean=+3.0)), made)
    assert made.comparison() == before


def test_rebuilt_from_stored_blocks_it_says_the_same() -> None:
    blocks = pairs(noise(3, 60, mean=-0.01))
    whole, resumed = fed(blocks), fed(blocks[30:], fed(blocks[:30]))
    assert whole.comparison() == resumed.comparison()


@pytest.mark.parametrize("seeds", [10, pytest.param(20, marks=pytest.mark.soak)])
def test_it_says_what_the_public_test_says(seeds: int) -> None:
    for seed in range(seeds):
        differences = noise(seed, 100, mean=0.01 * (seed % 5 - 2))
        found = fed(pairs(differences), method(planned=100, margin=1e-6)).comparison()
        sign = {"better": -1, "worse": 1}.get(found.verdict, 0)
        logs = [math.log(100.0 * math.exp(d)) - math.log(100.0) for d in differences]
        assert sign == verdict(logs, 0.01, 100)


def test_tight_pairs_are_equivalent_within_the_margin() -> None:
    found = fed(pairs(noise(4, 200, sd=0.002)), method(margin=0.01)).comparison()
    assert found.verdict == "equivalent"
    low, high = ends(found)
    assert 1 / 1.01 <= low < high <= 1.01


def test_a_failure_counts_as_the_worst_and_forbids_equivalence() -> None:
    blocks = pairs(noise(4, 60, sd=0.002))
    failing = [
        msgspec.structs.replace(b, attempts=(b.attempts[0], attempt("thp", None, block=b.number, state="failed")))
        for b in pairs(noise(5, 40))
    ]
    found = fed([*blocks[:10], failing[0], *blocks[11:]], method(margin=0.01, planned=60)).comparison()
    assert found.verdict != "equivalent"
    assert found.failures_arm == 1
    worse = fed(failing).comparison()
    assert worse.verdict == "worse"
    assert worse.ratio == math.inf


def test_a_budget_without_a_crossing_is_undecided_with_the_largest_effect() -> None:
    found = fed(pairs(noise(6, 40)), method(planned=40)).comparison()
    assert found.verdict == "undecided"
    assert 0.005 < known(found.change) < 0.2


@pytest.mark.parametrize("alpha", [0.05, 0.01])
@pytest.mark.parametrize("contrast", [CONTRAST, Contrast("chase", "thp", "base", HIGHER)])
@pytest.mark.parametrize("count", [3, 5])
def test_until_there_is_an_interval_a_t_interval_of_the_pairs_is_provisional(
    count: int, contrast: Contrast, alpha: float
) -> None:
    differences = noise(7, count, mean=0.3)
    found = fed(pairs(differences), method(alpha, contrast=contrast)).comparison()
    assert (found.verdict, found.low, found.high) == ("undecided", None, None)
    ends_ = scipy.stats.t.interval(
        1 - alpha, count - 1, loc=np.mean(differences), scale=np.std(differences, ddof=1) / math.sqrt(count)
    )
    assert found.provisional == pytest.approx(tuple(np.exp(ends_)))
    assert found.confidence == pytest.approx(1 - alpha)
    assert fed(pairs(differences[:2]), method(alpha, contrast=contrast)).comparison().provisional is None


def test_pairs_that_are_all_the_same_or_of_which_one_failed_have_no_provisional_interval() -> None:
    assert fed(pairs([0.3] * 5)).comparison().provisional is None
    *good, last = pairs(noise(7, 5, mean=0.3))
    assert fed([*good, last]).comparison().provisional is not None
    lost = msgspec.structs.replace(
        last, attempts=(last.attempts[0], attempt("thp", None, block=last.number, state="failed"))
    )
    found = fed([*good, lost]).comparison()
    assert (found.verdict, found.n, found.provisional) == ("undecided", 5, None)
    wide = fed(pairs([-700.0, 0.0, 700.0])).comparison()
    assert (wide.verdict, wide.provisional) == ("undecided", None), "its upper end is beyond all numbers"


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_the_exact_interval_takes_the_provisional_one_away(step: int) -> None:
    blocks, seen = pairs(noise(6, 40)), set()
    for count in range(3, 41, step):
        found = fed(blocks[:count], method(planned=40)).comparison()
        exact = found.low is not None and found.high is not None
        assert found.verdict == "undecided"
        assert (found.provisional is None) == exact, count
        seen.add(exact)
    assert seen == {False, True}


@pytest.mark.parametrize("ends_", [(-math.inf, 0.7), (-0.7, math.inf)])
def test_one_end_of_the_exact_interval_is_enough_for_that(
    ends_: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fed(pairs(noise(7, 5, mean=0.3)))
    assert made.comparison().provisional is not None
    monkeypatch.setattr(type(made.usable), "interval", lambda _: ends_)
    found = made.comparison()
    assert [found.low, found.high].count(None) == 1
    assert (found.verdict, found.provisional) == ("undecided", None)


def test_where_no_verdict_is_possible_there_is_no_provisional_interval() -> None:
    shown = Contrast("chase", "thp", "base", NEUTRAL)
    found = fed(pairs(noise(7, 5)), method(contrast=shown)).comparison()
    assert (found.verdict, found.low, found.high, found.provisional) == ("none", None, None, None)


def test_the_campaign_average_is_named_from_100_pairs_on() -> None:
    found = fed(pairs(noise(8, 600, mean=-0.009)), method(planned=600)).comparison()
    assert found.n > 100
    assert found.verdict == "better"
    average = found.tiers[1]
    assert average.supported
    assert known(average.high) < 1
    assert found.reach == "campaign average"


STUDY = """
format = 1
name = "s"
policies = ["base", "thp"]
method = "sequential"
confidence = 0.98
end_points = ["mean", "slow"]
[budget]
blocks = 300
[[workload]]
name = "chase"
"""


class Cell:
    id = "chase"
    metric = LOWER
    also = ()
    copies = 1
    baseline = "base"
    delivery = DeliveryThreshold(0.95, 0.01)

    class Arm:
        def __init__(self, name: str) -> None:
            self.name = name

    arms = (Arm("base"), Arm("thp"))


def family(differences: Iterable[float]) -> tuple[Comparison, ...]:
    study = parse(STUDY, "s.toml")
    methods = methods_for(study, [Cell()])
    for each in pairs(differences):
        for one in methods:
            one.observe(each)
    return conclude(methods, study.confidence, study.margin)


def test_end_points_share_alpha_equally_and_are_judged_on_the_same_pairs() -> None:
    found = family(noise(9, 300, mean=-0.05, sd=0.3))
    assert found[0].estimand == "typical ratio"
    assert len(found) == 3
    assert [one.alpha for one in found] == [pytest.approx(0.02 / 3)] * 3
    typical, mean, slow = found
    assert mean.ratio is not None
    assert mean.n >= typical.n
    assert slow.ratio is None
    assert "slow runs" in in_words(slow.reason)


def test_a_mean_below_100_pairs_says_so() -> None:
    _, mean, _ = family(noise(9, 50, mean=-0.05, sd=0.3))
    assert mean.verdict == "undecided"
    assert "needs 100 pairs" in in_words(mean.reason)


@pytest.mark.parametrize(("asked", "few"), [(0.05, 24), pytest.param(0.03, 60, marks=pytest.mark.soak)])
def test_a_width_that_is_asked_for_is_waited_for_and_costs_no_verdict(asked: float, few: int) -> None:
    blocks = pairs(noise(1, 200, mean=-0.3))
    early = fed(blocks).comparison()
    made = fed(blocks, Sequential(CONTRAST, planned=200, alpha=0.01, margin=0.005, width=asked))
    waited = made.comparison()
    assert width(early) > asked >= width(waited)
    assert early.n < waited.n < 200
    assert (waited.verdict, made.decision().status) == ("better", "stop")
    never = fed(blocks, Sequential(CONTRAST, planned=few, alpha=0.01, margin=0.005, width=0.0001))
    assert (never.comparison().n, never.comparison().verdict) == (few, "better")


@pytest.mark.parametrize("asked", [0.05, pytest.param(0.03, marks=pytest.mark.soak)])
def test_the_studys_width_reaches_its_methods(asked: float) -> None:
    text = (
        'format = 1\nname = "s"\npolicies = ["base", "thp"]\nmethod = "sequential"\nmargin = "0.5%"\n'
        f'[budget]\nblocks = 200\nwidth = "{asked:.0%}"\n[[workload]]\nname = "chase"\n'
    )
    (made,) = methods_for(parse(text, "t"), [Cell()])
    for each in pairs(noise(1, 200, mean=-0.3)):
        made.observe(each)
    assert made.decision().status == "stop"
    (found,) = conclude([made], 0.99, 0.005)
    assert width(found) <= asked


def test_the_evidence_is_the_open_ended_one_on_the_pairs_up_to_the_stop() -> None:
    differences = noise(1, 200, mean=-0.3)
    found = fed(pairs(differences)).comparison()
    process = EProcess()
    for difference in differences[: found.n]:
        process.add(math.log(100.0 * math.exp(difference)) - math.log(100.0))
    assert found.evidence == pytest.approx(process.value)
    assert found.evidence_larger == pytest.approx(process.up)
    assert found.evidence_smaller == pytest.approx(process.down)
    assert process.down > 100
    assert process.up < 1


def test_there_is_no_evidence_without_a_possible_verdict() -> None:
    shown = Contrast("chase", "thp", "base", NEUTRAL)
    found = fed(pairs(noise(1, 20)), method(contrast=shown)).comparison()
    assert (found.verdict, found.evidence, found.evidence_larger, found.evidence_smaller) == ("none", None, None, None)


MAGNITUDES = st.lists(st.integers(0, 31), min_size=1, max_size=45)
ALPHAS = st.sampled_from([0.5, 0.2, 0.05, 0.01, 1e-4])


@settings(deadline=None)
@given(MAGNITUDES, ALPHAS, st.integers(1, 60))
def test_the_boundary_is_the_smallest_that_alpha_allows(scores: list[int], alpha: float, budget: int) -> None:
    ours = Boundary(alpha, budget)
    found = [ours.step(a) for a in scores]
    boundaries, spent = independent.crossings(scores, alpha, budget)
    # The same states cross: the numbers may differ by states that no walk can be in.
    assert [b is None for b in found] == [b is None for b in boundaries]
    assert all(mine <= theirs for mine, theirs in zip(found, boundaries, strict=True) if mine and theirs)
    assert [Fraction(x) for x in ours.ledger] == pytest.approx(spent, rel=1e-12)
    assert ours.ledger[-1] <= alpha


def test_long_walks_stay_within_the_share() -> None:
    """Against the same recursion in whole numbers, past the pairs where doubles are exact and past a rescaling."""
    scores = (magnitudes(np.random.default_rng(2).normal(size=700)) // 8).tolist()  # small: so is the exact law
    alpha, budget = 0.05, 700
    ours = Boundary(alpha, budget)
    for a in scores:
        ours.step(a)
    _, spent = independent.crossings(scores, alpha, budget)
    assert [float(x) for x in spent] == pytest.approx(ours.ledger, rel=1e-10)
    share = log_spending(alpha, budget)
    assert all(Fraction(x) <= Fraction(alpha) * Fraction(share(t)) for t, x in enumerate(ours.ledger, 1))
    assert ours.spent > 0.99 * alpha


@pytest.mark.parametrize(("alpha", "first"), [(1e-4, 15), (1e-2, 8), (0.05, 6), (0.2, 4), (0.5, 2)])
def test_the_first_pair_that_could_decide(alpha: float, first: int) -> None:
    assert first_crossing(alpha) == first
    assert 2 * 2.0**-first <= alpha < 2 * 2.0 ** (1 - first)
    share = log_spending(alpha, 2000)
    assert share(first - 1) == 0 < share(first) < share(1999) < share(2000) == share(5000) == 1
    assert log_spending(alpha, first)(first) == 1
    assert log_spending(alpha, first - 1)(10**6) == 0


def test_shares_are_the_formulas() -> None:
    assert log_spending(1e-4, 24000)(1000) == pytest.approx(math.log(1001 / 15) / math.log(24001 / 15))
    share = open_ended(1e-4)
    assert share(10) == 0
    assert share(15 * 16 - 1) == pytest.approx(0.5)
    assert share(15 * 1024 - 1) == pytest.approx(10 / 14)
    walk = Boundary(0.05, None)
    for _ in range(300):
        walk.step(5)
    assert walk.spent <= 0.05 * open_ended(0.05)(300)
    assert walk.spent > 0.8 * 0.05 * open_ended(0.05)(300)


def test_zeros_move_the_clock_alone() -> None:
    law = Boundary(0.05, 100)
    assert [law.step(0) for _ in range(40)] == [None] * 40
    assert law.spent == 0
    assert law.pairs == 40


def test_a_copy_goes_its_own_way() -> None:
    scores = magnitudes(np.random.default_rng(3).normal(size=700)).tolist()
    whole, one, other = (Boundary(0.05, 700) for _ in range(3))
    for a in scores[:600]:
        one.step(a)
    twin = copy.copy(one)
    for _ in range(100):
        one.step(31)  # what one does leaves the other alone
    assert [other.step(a) for a in scores[:600]][-1] == [whole.step(a) for a in scores[:600]][-1]
    assert [twin.step(a) for a in scores[600:]] == [whole.step(a) for a in scores[600:]]
    assert twin.ledger == whole.ledger
    assert one.ledger[:600] == whole.ledger[:600]


def test_bad_arguments_are_refused() -> None:
    for alpha, budget in ((0.0, 10), (1.0, 10), (math.nan, 10), (0.05, 0)):
        with pytest.raises(ValueError, match=r"alpha|budget"):
            Boundary(alpha, budget)
    for magnitude in (-1, 32):
        with pytest.raises(ValueError, match="magnitude"):
            Boundary(0.05, 10).step(magnitude)


def methods(**keys: object) -> tuple[Method, ...]:
    study = study_of(policies=["base", "thp", "mthp-64k"], method="sequential", **{"budget": {"blocks": 300}, **keys})
    return methods_for(study, plan(study, policies(), workloads(), KnobFiles(), SIZES, "system").cells)


def drawn(levels: Mapping[str, float], seed: int, count: int) -> list[Block]:
    random = np.random.default_rng(seed)
    times = [{arm: math.exp(level + random.normal(0, 0.02)) for arm, level in levels.items()} for _ in range(count)]
    return [block(number, values) for number, values in enumerate(times, 1)]


def conducted(made: Sequence[Method], blocks: Sequence[Block]) -> int:
    """As a run does: blocks as long as something is open; how many there were."""
    for number, each in enumerate(blocks):
        if all(method.decision().status == "stop" for method in made):
            return number
        for method in made:
            method.observe(each)
    return len(blocks)


def of(made: Sequence[Method], arm: str) -> Comparison:
    return next(one for one in conclude(made, 0.99, 0.005) if one.arm == arm)


LEVELS = {"base": 0.0, "thp": -0.1, "mthp-64k": -0.001}


def test_it_ends_with_what_is_judged_and_takes_nothing_of_its_error_rate() -> None:
    blocks = drawn(LEVELS, 1, 300)
    alone, beside, both = methods(unjudged=[]), methods(unjudged=["mthp-64k"]), methods(unjudged=["thp"])
    took = conducted(beside, blocks)
    assert took == conducted(
        [Sequential(alone[0].contrast, planned=beside[0].planned, alpha=0.01, margin=0.005)], blocks
    )
    assert took < conducted(alone, blocks), "an arm that makes next to no difference prolongs it where it is judged"
    assert of(beside, "thp").verdict == "better"
    assert of(beside, "thp").alpha == pytest.approx(0.01)
    conducted(both, blocks)
    assert of(both, "thp").verdict == "none"
    assert of(both, "mthp-64k").alpha == pytest.approx(0.01)


def test_it_claims_nothing_however_clear_it_is() -> None:
    made = methods(unjudged=["mthp-64k"])
    conducted(made, drawn({"base": 0.0, "thp": -0.02, "mthp-64k": -0.5}, 2, 300))
    found = of(made, "mthp-64k")
    assert (found.verdict, found.method, found.reach, found.tiers, found.evidence) == (
        "none",
        "unjudged",
        None,
        (),
        None,
    )
    assert found.alpha_spent is None
    assert found.confidence == pytest.approx(0.99)
    low, high = ends(found)
    assert low < math.exp(-0.5) < high < 0.7
    assert "claims nothing" in in_words(found.reason)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([-0.3, 0.0, 0.2]), st.booleans())
def test_what_is_judged_is_as_it_would_be_without_it(seed: int, level: float, failing: bool) -> None:
    """The same blocks, with and without the unjudged arm in them: verdict, interval and end are those of the judged."""
    blocks = drawn({"base": 0.0, "thp": -0.03, "mthp-64k": level}, seed, 60)
    if failing:
        broken = [attempt("mthp-64k", None, block=each.number, state="failed") for each in blocks]
        blocks = [
            block(each.number, *(one for one in each.attempts if one.arm != "mthp-64k"), bad)
            for each, bad in zip(blocks, broken, strict=True)
        ]
    without = [block(each.number, *(one for one in each.attempts if one.arm != "mthp-64k")) for each in blocks]
    beside, alone = methods(unjudged=["mthp-64k"]), methods()[:1]
    lone = Sequential(alone[0].contrast, planned=alone[0].planned, alpha=1 - 0.99, margin=0.005)
    assert conducted(beside, blocks) == conducted([lone], without)
    assert of(beside, "thp") == of([lone], "thp")


def test_an_arm_that_never_gets_its_pages_is_not_measured_to_the_end() -> None:
    judged = Sequential(CONTRAST, planned=200, alpha=0.01, margin=0.005)
    made = Unjudged(CONTRAST, [judged], planned=200, alpha=0.01, margin=0.005)
    for number in range(1, 60):
        made.observe(block(number, attempt("base", 1.0), attempt("thp", 1.0, delivered=False)))
    assert judged.decision().status == "continue"
    assert made.decision().status == "stop"
    assert "not delivered" in in_words(made.comparison().reason)
    assert made.comparison().ratio is None


def test_it_takes_no_pair_beyond_the_budget_though_what_is_judged_goes_on() -> None:
    made = methods(unjudged=["mthp-64k"], budget={"blocks": 20})
    for each in drawn({"base": 0.0, "thp": 0.0, "mthp-64k": 0.0}, 3, 24):
        lacking = [
            attempt("thp", 1.0, block=each.number, delivered=False) if one.arm == "thp" and each.number == 3 else one
            for one in each.attempts
        ]
        for method in made:
            method.observe(block(each.number, *lacking))
    assert (of(made, "thp").n, of(made, "mthp-64k").n) == (20, 20)
    assert made[1].decision().status == "stop"


def played(blocks: Iterable[Block], *, planned: int = 200, alpha: float = 0.01, margin: float = 0.005) -> Sequential:
    made = Sequential(STREAM_CONTRAST, planned=planned, alpha=alpha, margin=margin)
    for played_block in blocks:
        made.observe(played_block)
    return made


def taken(*blocks: Block) -> Pairs:
    pairs = Pairs(STREAM_CONTRAST, spared=1)
    for taken_block in blocks:
        pairs.take(taken_block)
    return pairs


LOST = math.nan
FATES: list[tuple[tuple[Fate | None, Fate | None], float, bool]] = [
    ((None, None), 0.5, True),
    (("undelivered", None), 0.5, False),
    ((None, "unproven"), 0.5, False),
    (("failed", None), math.inf, True),
    ((None, "failed"), -math.inf, True),
    (("failed", "failed"), LOST, True),
    (("absent", None), LOST, False),
    (("absent", "absent"), LOST, False),
    (("unstarted", None), LOST, False),
    ((None, "unstarted"), LOST, False),
    (("unstarted", "failed"), LOST, False),
    (("unstarted alone", None), LOST, False),
    (("late", None), LOST, True),
    (("late", "late"), LOST, True),
    (("incomplete", None), LOST, False),
]


@pytest.mark.parametrize(("fates", "kept", "usable"), FATES)
def test_every_turn_is_kept_in_and_its_labels_can_be_exchanged(
    fates: tuple[Fate | None, Fate | None], kept: float, usable: bool
) -> None:
    """A pair of which nothing is known speaks against whatever is claimed, whichever label lost it."""
    pairs, exchanged = taken(pair(1, 0.5, 0.0, fates)), taken(pair(1, 0.0, 0.5, fates[::-1]))
    assert len(pairs.usable) == len(exchanged.usable) == usable
    (one,), (other,) = pairs.kept, exchanged.kept
    assert one.lost == other.lost == math.isnan(kept)
    for better in (False, True):
        for claim in (1, -1):
            ((scored),) = against(pairs.kept, claim, higher_is_better=better)
            assert not scored.lost
            if one.lost:
                assert scored.difference(higher_is_better=better) == -claim * math.inf
    if not one.lost:
        assert one.difference(higher_is_better=False) == pytest.approx(kept)
        assert other.difference(higher_is_better=False) == pytest.approx(-kept)


def test_a_block_whose_coin_drew_only_one_of_them_says_nothing() -> None:
    lost = msgspec.structs.replace(pair(1, 0.0, 0.0, (None, "unstarted")), arms=("base", "another"))
    pairs = taken(lost)
    assert (list(pairs.kept), pairs.seen) == ([], 0)
    assert taken(msgspec.structs.replace(lost, arms=("base", "arm"))).seen == 1


def test_an_attempt_that_was_under_way_when_hugewise_ended_speaks_against_every_claim() -> None:
    fast = [pair(n, value, 0.0) for n, value in enumerate(noise(1, 60, -0.3))]
    cut = [msgspec.structs.replace(one, redone=("arm",)) if one.number % 3 == 0 else one for one in fast]
    assert played(fast).decision().verdict == "better"
    made = played(cut)
    assert made.decision().verdict == "undecided"
    assert made.pairs.refusal(200) is None  # the share of undelivered pages is another thing
    assert made.comparison().spread == msgspec.structs.replace(made._spread.finding(), shown=None, pairs=None)


@given(st.lists(st.sampled_from([0.0, 0.1, -0.1, 0.25, -0.4, 1.5, -2.0, math.inf]), max_size=9))
def test_the_chance_at_a_fixed_number_of_pairs_is_that_of_all_coins(differences: list[float]) -> None:
    scores = magnitudes(differences).tolist()
    walk = sum(math.copysign(size, each) for size, each in zip(scores, differences, strict=True))
    walks = [sum(map(operator.mul, signs, scores)) for signs in itertools.product((1, -1), repeat=len(scores))]
    assert chance(differences) == pytest.approx(sum(each >= walk for each in walks) / len(walks))


@pytest.mark.parametrize(("count", "share", "reach"), [(12, "32%", "this campaign"), (400, "1.1%", "campaign average")])
def test_equivalence_names_the_stalls_that_it_cannot_exclude_and_reaches_the_mean_when_they_are_few(
    count: int, share: str, reach: str
) -> None:
    made = method(margin=0.02)
    for each in pairs(np.random.default_rng(9).normal(0, 0.002, count).tolist()):
        made.take(each)
    found = made.comparison()
    assert (found.verdict, found.reach) == ("equivalent", reach)
    said = in_words(found.reason)
    assert f"; up to {share} of runs may stall, though none of these pairs shows a stall, " in said
    assert ("nothing is claimed of the mean" in said) == (reach == "this campaign")


def test_an_effect_of_the_margin_itself_is_not_equivalent() -> None:
    for margin in (0.001, 0.02, 0.03, 0.05):
        for ratio in (1 + margin, 1 / (1 + margin)):
            made = played([pair(n, math.log(ratio), 0.0) for n in range(60)], margin=margin)
            assert made.decision().verdict != "equivalent"


def test_the_share_counts_what_was_made_and_one_is_always_allowed() -> None:
    one = taken(pair(1, 0.0, 0.0, ("undelivered", None)), *(pair(n, 0.1, 0.0) for n in range(2, 13)))
    assert one.refusal(2000) is None
    two = taken(*(pair(n, 0.1, 0.0, ("undelivered" if n < 3 else None, None)) for n in range(1, 200)))
    assert in_words(two.refusal(2000) or "") == "pages of arm not delivered in 2 of 199 attempts: no room"
    two.take(pair(200, 0.1, 0.0))
    assert two.refusal(2000) is None


def test_a_start_that_fails_counts_with_undelivered_pages() -> None:
    fates: list[Fate | None] = ["undelivered", "unstarted", "absent"]
    pairs = taken(*(pair(n, 0.1, 0.0, (fate, None)) for n, fate in enumerate(fates)), pair(9, 0.1, 0.0))
    assert in_words(pairs.refusal(2000) or "") == (
        "pages of arm not delivered in 1 of 4 attempts: no room; arm could not be started in 1 of 4 attempts: no room; "
        "wall_s of arm absent from 1 of 4 attempts: it was not reported"
    )
    assert pairs.comparison("m", 10, Inference("none", ""), ratio_all=None, confidence=0.99).unstarted_arm == 1


def test_half_undelivered_is_no_verdict_whatever_was_declared() -> None:
    blocks = [pair(n, -0.5, 0.0, ("undelivered" if n % 2 else None, None)) for n in range(24)]
    made = played(blocks, planned=2000)
    assert made.decision().verdict == "none"
    assert made.decision().status == "continue"  # all of 2,000 could still be delivered but for these
    assert made.comparison().evidence is None


def test_what_can_have_no_verdict_any_more_ends_after_thirty_blocks() -> None:
    blocks = [pair(n, -0.5, 0.0, ("undelivered", None)) for n in range(40)]
    made = Sequential(STREAM_CONTRAST, planned=2000, alpha=0.01, margin=0.005)
    status = [made.observe(block).status for block in blocks]
    assert status.index("stop") == 29


def test_a_verdict_needs_the_kept_in_pairs_and_says_so() -> None:
    """Blocks that broke off: the usable pairs are clear, and those that are not known may all have said otherwise."""
    blocks = [
        pair(2 * n + k, value, 0.0, ("incomplete" if k else None, None))
        for n, value in enumerate(noise(1, 60, -0.3))
        for k in (0, 1)
    ]
    made = played(blocks)
    assert made.decision().verdict == "undecided"
    assert made.decision().reason == NotWithAll(LeftOut((), Unknown(60, 60)))
    assert len(made.pairs.usable) == 60
    found = made.comparison()
    assert found.high is not None and found.high < 1
    assert any("60 of them as their block was not completed" in in_words(warning) for warning in found.warnings)


def test_late_starts_count_with_undelivered_pages() -> None:
    made = played([pair(n, value, 0.0, ("late", None)) for n, value in enumerate(noise(1, 60, -0.3))])
    assert made.decision().verdict == "none"
    assert in_words(made.decision().reason) == "arm started only at a later try in 30 of 30 attempts"
    assert len(made.pairs.usable) == 30


def test_one_undelivered_pair_changes_no_clear_verdict_and_is_told() -> None:
    blocks = [pair(n, value, 0.0) for n, value in enumerate(noise(1, 40, -0.3))]
    blocks[3] = pair(3, 0.4, 0.0, ("undelivered", None))
    found = played(blocks).comparison()
    assert found.verdict == "better"
    assert found.n_all == found.n + 1
    assert (
        ", also with the pairs that had to be left out counted against it (pages of arm not delivered in 1 of"
        in in_words(found.reason)
    )


def test_an_arm_that_could_not_be_started_is_never_equivalent() -> None:
    blocks = [pair(n, value, 0.0) for n, value in enumerate(noise(1, 200, sd=0.0005))]
    assert played(blocks).decision().verdict == "equivalent"
    for fates in (("unstarted", None), (None, "unstarted")):
        lost = [pair(0, 0.0, 0.0, fates), *blocks]
        made = played(lost)
        assert made.decision().verdict == "undecided"
        assert made.comparison().unstarted_arm + made.comparison().unstarted_baseline == 1


def test_equivalent_needs_the_kept_in_pairs_too() -> None:
    blocks = [pair(n, value, 0.0) for n, value in enumerate(noise(1, 400, sd=0.002))]
    whole = played(blocks, planned=400).comparison()
    assert whole.verdict == "equivalent"
    late = [msgspec.structs.replace(one, redone=("arm",)) for one in blocks]
    assert played(late, planned=400).decision().verdict == "undecided"


def test_an_estimate_outside_its_interval_is_no_verdict() -> None:
    """+10% in the first 60 pairs and -4% in the 240 that follow: the test has crossed, and no one effect is left."""
    differences = [
        effect + noised for effect, noised in zip([0.1] * 60 + [-0.04] * 240, noise(6, 300, sd=0.002), strict=True)
    ]
    found = fed(
        pairs(differences), Sequential(CONTRAST, planned=300, alpha=0.05, margin=0.005, width=1e-4)
    ).comparison()
    assert found.verdict == "undecided"
    assert "the effect changed in the course of the run" in in_words(found.reason)


def test_an_average_on_the_other_side_keeps_the_verdict_back() -> None:
    """9 in 10 pairs are 3% slower and the tenth takes a third of the time: the typical pair is slower, the average
    faster. `width` is what has the comparison go on until there is an average.
    """
    differences = [(-1.0 if n % 10 == 0 else 0.03) + noised for n, noised in enumerate(noise(1, 300, sd=0.002), 1)]
    found = fed(
        pairs(differences), Sequential(CONTRAST, planned=300, alpha=0.01, margin=0.005, width=1e-4)
    ).comparison()
    assert (found.verdict, found.reach) == ("undecided", None)
    assert "the average over the run says the opposite" in in_words(found.reason)
    assert known(found.low) > 1


def test_equivalence_is_held_against_the_average_too() -> None:
    """+3% in 62% of pairs and -3% in the others: the typical pair is near 0, and the average is not."""
    up = np.random.default_rng(5).random(300) < 0.62
    made = played(
        [pair(n, 0.03 if more else -0.03, 0.0) for n, more in enumerate(up.tolist())], planned=300, alpha=0.05
    )
    assert made.decision().verdict != "equivalent"


def test_after_a_difference_the_two_tests_go_on_alike() -> None:
    """An undelivered pair with the same difference as its neighbour: two walks, of 60 and of 59 pairs."""
    values = noise(1, 60, 0.02)
    blocks = [pair(n, value, 0.0, ("undelivered" if n == 7 else None, None)) for n, value in enumerate(values)]
    made = played(blocks, alpha=1e-4)
    assert (made._larger.test.pairs, made.usable.test.pairs) == (60, 59)
    bare = played([b for n, b in enumerate(blocks) if n != 7], alpha=1e-4)
    assert made.usable.test.walk == bare._larger.test.walk


def test_the_corrected_ratio_lies_between_none_and_what_was_seen() -> None:
    found = played([pair(n, value, 0.0) for n, value in enumerate(noise(1, 200, 0.03))]).comparison()
    assert found.verdict == "worse"
    assert 1 < known(found.corrected) < known(found.ratio)
    assert played([pair(1, 0.1, 0.0)]).comparison().corrected is None


def test_tenfold_noise_is_a_finding_of_its_own() -> None:
    random = np.random.default_rng(6)
    blocks = [pair(n, 0.1 * random.normal(), 0.01 * random.normal()) for n in range(150)]
    found = played(blocks).comparison()
    assert found.verdict == "undecided"
    assert found.spread is not None
    assert found.spread.shown == "wider"
    assert found.spread.ratio == pytest.approx(10, rel=0.4)


def test_a_pair_made_in_two_sessions_is_lost() -> None:
    """Whoever ended the run between its attempts knew which label came next."""
    one = pair(1, 0.5, 0.0)
    moved = msgspec.structs.replace(one.attempts[1], session=2)
    pairs = taken(msgspec.structs.replace(one, attempts=(one.attempts[0], moved)))
    assert [each.lost for each in pairs.kept] == [True]
    assert len(pairs.usable) == 1


ARMS = ("base", "madvise", "mthp-64k", "thp")


def the_study(confidence: float = 0.99, blocks: int = 60, **changes: object) -> Study:
    keys: dict[str, object] = {"policies": list(ARMS), "budget": {"blocks": blocks}, **changes}
    return study_of(margin="2%", method="sequential", confidence=confidence, **keys)


def campaign(of: Study, seed: int, effects: dict[str, float]) -> tuple[Method, ...]:
    """The methods after a campaign that looked after every block and dropped the arms that were decided."""
    random = np.random.default_rng(seed)
    methods = methods_for(of, [cell("chase", *ARMS[1:])])
    level = 0.0
    for number in range(1, of.budget.blocks + 1):
        undecided = [method.contrast.arm for method in methods if method.decision().status == "continue"]
        if not undecided:
            break
        values = {}
        for trial in draw_order(seed.to_bytes(16), number, ["base", *undecided], cell="chase"):
            level = 0.95 * level + random.normal(0, 0.02)
            stall = random.exponential(1.0) if random.random() < 0.02 else 0.0
            noise = random.normal(0, 0.01) + (0.02 if trial.order == 0 else 0.0)
            values[trial.arm] = 100 * math.exp(level + stall + noise + effects.get(trial.arm, 0.0))
        for method in methods:
            method.observe(block(number, values))
    return methods


def test_effects_are_found_in_their_direction_and_decided_arms_leave() -> None:
    of = the_study(blocks=400)
    methods = campaign(of, 7, {"thp": -0.3, "mthp-64k": 0.03})
    found = {one.arm: one for one in conclude(methods, of.confidence, of.margin)}
    assert (found["thp"].verdict, found["mthp-64k"].verdict) == ("better", "worse")
    assert found["thp"].n < found["mthp-64k"].n < found["madvise"].n
    assert found["madvise"].verdict in ("equivalent", "undecided")
    for name, effect in (("thp", -0.3), ("mthp-64k", 0.03), ("madvise", 0.0)):
        one = found[name]
        low, high = ends(one)
        assert low <= math.exp(effect) <= high
    assert {one.reach for one in found.values() if one.n < 100 and one.verdict != "undecided"} == {"this campaign"}
    # The ledger: shares fixed beforehand, and no more spent than they are.
    assert sum(one.alpha or 0.0 for one in found.values()) == pytest.approx(1 - of.confidence)
    assert all(0 < (one.alpha_spent or 0.0) <= (one.alpha or 0.0) for one in found.values())


def test_a_stored_run_says_what_the_live_methods_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = the_study(blocks=30, policies=["base", "thp"], end_points=["mean"])
    random = np.random.default_rng(3)
    differences = [float(x) for x in random.normal(-0.1, 0.02, 20)]
    path = write_run(tmp_path, of, [*differences, None], cells=(cell("chase", "thp"),))
    results = analysis.analyze(path)
    (one,) = results.cells[0].comparisons
    (mean,) = results.cells[0].end_points
    assert (one.verdict, one.method, one.estimand, one.reach) == (
        "better",
        "sequential",
        "typical ratio",
        "this campaign",
    )
    live = methods_for(of, [cell("chase", "thp")])
    for number, difference in enumerate(differences, 1):
        for method in live:
            method.observe(block(number, {"base": 100.0, "thp": 100 * math.exp(difference)}))
    told, _ = conclude(live, of.confidence, of.margin)
    # The run stopped taking pairs in when it was decided; ratios agree to the rounding of the logarithms.
    assert (told.verdict, told.n, in_words(told.reason)) == (one.verdict, one.n, in_words(one.reason))
    for ours, theirs in ((told.ratio, one.ratio), (told.low, one.low), (told.high, one.high)):
        assert ours == pytest.approx(theirs)
    assert mean.verdict in ("undecided", "none") and "100" in in_words(mean.reason)
    show(summary(results))
    assert "better" in capsys.readouterr().out


def test_an_attempt_of_another_cell_or_a_broken_block_changes_nothing() -> None:
    of = the_study()
    once, twice = campaign(of, 5, {"thp": -0.3}), campaign(of, 5, {"thp": -0.3})
    for method in twice:
        method.observe(block(900, {"base": 1.0, "thp": 9.0}, cell="other"))
        method.observe(block(901, {"base": 1.0, "thp": 9.0}, state="disturbed"))
        method.observe(block(902, {"base": 1.0}))
    assert [m.decision() for m in once] == [m.decision() for m in twice]
