"""A screening on simulated blocks: whom it drops, when it ends, whom it chooses, and how often wrongly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from hugewise.model.reason import BestEstimate, InFront, NotClearlyBeaten, NothingChosen, NotJudged
from hugewise.model.trial import Block
from hugewise.report.reasons import in_words
from hugewise.stats import signflip
from hugewise.stats.family import conclude
from hugewise.stats.method import Contrast
from hugewise.stats.screening import Screened, Screening
from tests.build import known
from tests.build.trials import HIGHER, LOWER, NEUTRAL, attempt, block, delivery

ARMS = ("base", "a", "b", "c")


def screening(
    arms: Sequence[str] = ARMS, *, metric: object = LOWER, planned: int = 200, alpha: float = 0.1
) -> Screening:
    contrasts = [Contrast("chase", arm, arms[0], metric) for arm in arms[1:]]  # type: ignore[arg-type]
    return Screening(contrasts, planned=planned, alpha=alpha, margin=0.02)


def drawn(levels: Mapping[str, float], seed: int, count: int, sd: float = 0.02, drift: float = 0.1) -> list[Block]:
    """Blocks in which an arm takes exp(level) times as long, with a drift that is common to a block."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(1, count + 1):
        common = random.normal(0, drift)
        values = {arm: 100 * math.exp(level + common + random.normal(0, sd)) for arm, level in levels.items()}
        found.append(block(number, values))
    return found


def fed(made: Screening, blocks: Sequence[Block]) -> int:
    """How many of the blocks it takes; arms that dropped out are in none of the later ones."""
    for number, each in enumerate(blocks, 1):
        kept = tuple(one for one in each.attempts if one.arm not in made.dropped)
        made.observe(block(each.number, *kept))
        if made.ended:
            return number
    return len(blocks)


def test_who_is_beaten_drops_out_and_the_best_goes_on() -> None:
    made = screening()
    taken = fed(made, drawn({"base": 0.0, "a": -0.2, "b": 0.3, "c": 0.02}, 1, 100))
    assert made.chosen().arm == "a"
    assert not made.chosen().unsure
    assert taken < 20
    assert "is better" in in_words(made.dropped["b"])
    assert "a" not in made.dropped
    assert "base" not in made.dropped, "it is in every block all the same"


@pytest.mark.parametrize("arms", [ARMS[:2], ARMS])
def test_the_rivals_of_an_arm_share_the_error_rate(arms: Sequence[str]) -> None:
    """One-sided, as the best alone can be passed over: each of its tests has 2 alpha over the number of its rivals."""
    rising = [1 + 0.01 * number for number in range(60)]
    blocks = [
        block(number, {arm: 100 * math.exp(-gain if arm == "a" else 0.0) for arm in arms})
        for number, gain in enumerate(rising, 1)
    ]
    share = 2 * 0.1 / (len(arms) - 1)
    assert fed(screening(arms, planned=60), blocks) == signflip.run(rising, share, 60).crossed_at
    assert signflip.run(rising, 2 * share, 60).crossed_at != signflip.run(rising, share, 60).crossed_at


def test_of_those_that_are_alike_the_first_in_the_study_goes_on() -> None:
    made = screening()
    fed(made, drawn({"base": 0.0, "a": -0.201, "b": -0.2, "c": -0.204}, 2, 200))
    assert made.chosen().arm == "a"
    assert in_words(made.chosen().reason).startswith("no other is better by more than 2%")


def test_the_margin_is_a_share_of_what_the_baseline_takes() -> None:
    """15% of the time, or 15.1%: either saves 85% of it, and who wants to know 2% does not wait to know which."""
    made = screening()
    taken = fed(made, drawn({"base": 0.0, "a": math.log(0.151), "b": math.log(0.15), "c": 0.0}, 2, 200, sd=0.05))
    assert made.ended
    assert made.chosen() == ("a", False, InFront(0.02))
    assert taken < 60


def test_where_nothing_gains_the_baseline_itself_is_chosen() -> None:
    made = screening()
    taken = fed(made, drawn({"base": 0.0, "a": 0.001, "b": -0.002, "c": 0.1}, 3, 200))
    assert made.chosen().arm == "base"
    assert taken < 60


def test_the_direction_of_the_metric_decides() -> None:
    made = screening(metric=HIGHER)
    fed(made, drawn({"base": 0.0, "a": -0.2, "b": 0.2, "c": 0.02}, 4, 100))
    assert made.chosen().arm == "b"
    found = made.comparison(Contrast("chase", "b", "base", HIGHER))
    assert found.verdict == "none"
    assert known(found.low) < math.exp(0.2) < known(found.high)
    assert found.ratio == pytest.approx(math.exp(0.2), rel=0.03)
    assert in_words(found.reason) == "a screening claims nothing; chosen: no other is better by more than 2%"


def test_whose_pages_are_not_delivered_has_no_part_in_it() -> None:
    made = screening(planned=60)
    for each in drawn({"base": 0.0, "a": -0.05, "b": -0.5, "c": 0.02}, 5, 60):
        lost = [
            attempt(
                one.arm, one.metrics["ns_per_load"], block=each.number, delivery=delivery(False, reason="not delivered")
            )
            if one.arm == "b"
            else one
            for one in each.attempts
        ]
        made.observe(block(each.number, *(one for one in lost if one.arm not in made.dropped)))
    assert "not delivered" in in_words(made.dropped["b"])
    assert made.chosen().arm == "a"


def test_when_the_time_is_over_it_says_that_it_is_unsure() -> None:
    made = screening()
    fed(made, drawn({"base": 0.0, "a": -0.02, "b": -0.03, "c": 0.0}, 6, 5))
    assert not made.ended
    assert made.chosen().unsure
    assert screening().chosen() == screening().chosen()


def test_it_ends_at_the_declared_pairs() -> None:
    made = screening(planned=12)
    fed(made, drawn({"base": 0.0, "a": -0.02, "b": 0.0, "c": 0.0}, 7, 40, sd=0.5))
    assert made.ended
    assert made.chosen().unsure


def test_it_ends_at_the_declared_pairs_of_those_that_are_left() -> None:
    """What dropped out has no more pairs, and was waited for without end."""
    made = screening(planned=40)
    taken = fed(made, drawn({"base": 0.0, "a": -0.011, "b": 0.2, "c": -0.01}, 9, 90, sd=0.06))
    assert made.dropped.keys() == {"b"}
    assert (made.ended, taken) == (True, 40)


def test_arms_that_never_meet_in_a_block_do_not_keep_it_from_ending() -> None:
    """A resident block with room for the baseline and one other: no pair of two others is ever seen."""
    made = screening(planned=20)
    for number, each in enumerate(drawn({"base": 0.0, "a": -0.03, "b": -0.03, "c": -0.03}, 10, 400, sd=0.05), 1):
        mine = ("base", "abc"[number % 3])
        made.observe(block(each.number, *(one for one in each.attempts if one.arm in mine)))
        if made.ended:
            break
    assert (made.ended, number) == (True, 60)
    assert made.chosen().unsure


def unproven(each: Block, *arms: str) -> Block:
    """The block, in which pages of these arms were not delivered."""
    lost = delivery(False, reason="the pool is short")
    return block(
        each.number,
        *(
            attempt(one.arm, one.metrics["ns_per_load"], block=each.number, delivery=lost) if one.arm in arms else one
            for one in each.attempts
        ),
    )


def test_where_the_fault_is_the_baselines_nothing_is_chosen() -> None:
    """All arms were dropped for what the baseline lacked, and it was chosen as if it had been in front."""
    made = screening(planned=60)
    for each in drawn({"base": 0.3, "a": -0.05, "b": -0.5, "c": 0.02}, 11, 60):
        if not made.ended:
            made.observe(unproven(each, "base"))
    assert made.ended
    assert made.chosen().unsure
    assert in_words(made.chosen().reason).startswith("nothing can be chosen: pages of base not delivered in 3 of 3")
    zero = screening(planned=60)
    for each in drawn({"base": 0.0, "a": -0.05, "b": 0.0, "c": 0.0}, 12, 60, sd=0.5):
        values = {one.arm: one.metrics["ns_per_load"] or 0.0 for one in each.attempts}
        zero.observe(block(each.number, values | ({"base": 0.0} if each.number == 2 else {})))
    assert zero.chosen().unsure
    assert "base: such a value has no ratio" in in_words(zero.chosen().reason)


def test_whom_an_arm_without_a_part_had_beaten_is_in_again() -> None:
    """`a` beats `b`, and then gets its pages no more: of those that have a part in it `b` is the best by far."""
    made, beaten = screening(planned=60), False
    noise = drawn({"c": 0.0}, 14, 150, sd=3.0)  # nobody can be held against it, so that it goes on
    for each, noisy in zip(drawn({"base": 0.0, "a": -0.5, "b": -0.3}, 13, 150), noise, strict=True):
        late = ("a",) if beaten else ()
        kept = (one for one in (*each.attempts, *noisy.attempts) if one.arm not in made.dropped)
        made.observe(unproven(block(each.number, *kept), *late))
        beaten = beaten or "a is better" in in_words(made.dropped.get("b", ""))
    assert beaten
    assert "not delivered" in in_words(made.dropped["a"])
    assert made.dropped.keys() == {"a"}
    assert made.chosen().arm == "b"
    assert made.ended


def test_a_metric_without_a_direction_chooses_nothing() -> None:
    made = screening(metric=NEUTRAL)
    assert made.ended
    assert fed(made, drawn({"base": 0.0, "a": -0.5, "b": 0.5, "c": 0.0}, 14, 30)) == 1
    assert made.dropped == {}
    assert made.chosen().unsure
    assert made.chosen().reason == NothingChosen(NotJudged("ns_per_load"))


def test_each_arm_is_a_method_and_all_of_a_cell_share_what_they_see() -> None:
    made = screening()
    methods = [Screened(Contrast("chase", arm, "base", LOWER), made) for arm in ARMS[1:]]
    blocks = drawn({"base": 0.0, "a": -0.2, "b": 0.3, "c": 0.02}, 1, 30)
    for each in blocks:
        for method in methods:
            method.observe(each)
            assert method.observe(block(each.number, {"base": 1.0}, cell="other")) == method.decision()
    assert {method.decision().status for method in methods} == {"stop"}
    found = conclude(methods, 0.9, 0.02)
    assert [one.verdict for one in found] == ["none"] * 3
    assert [one.final for one in found] == [True] * 3


def test_resumed_it_chooses_the_same() -> None:
    blocks = drawn({"base": 0.0, "a": -0.03, "b": -0.02, "c": 0.02}, 8, 60)
    whole, resumed = screening(), screening()
    fed(whole, blocks)
    for each in blocks[:10]:
        resumed.observe(each)
    for each in blocks[:60]:  # what it has seen changes nothing
        resumed.observe(each)
    assert whole.chosen() == resumed.chosen()


def test_an_unsure_screening_takes_the_first_arm_that_is_not_clearly_behind_the_best() -> None:
    """b is 1% ahead of a in pairs that differ by 5%; c is ahead of base by far more than the pairs differ."""
    made = screening()
    pairs = [(-0.30, -0.37), (-0.36, -0.32), (-0.31, -0.34)]
    for number, (a, b) in enumerate(pairs, 1):
        made.observe(block(number, {"base": 100.0, "a": 100 * math.exp(a), "b": 100 * math.exp(b), "c": 101.0}))
    assert made.chosen() == ("a", True, NotClearlyBeaten("b"))
    assert in_words(made.chosen().reason) == "b is not clearly better, and comes later among the candidates"


@pytest.mark.parametrize(
    ("count", "chosen"), [(1, ("a", True, NotClearlyBeaten("b"))), (2, ("b", True, BestEstimate()))]
)
def test_an_unsure_screening_takes_the_best_estimate_of_two_pairs(count: int, chosen: object) -> None:
    a = -0.2
    made = screening()
    for number in range(1, count + 1):
        off = 0.01 * number
        levels = {"base": 100.0, "a": 100 * math.exp(a + off), "b": 100 * math.exp(-0.33 - off), "c": 101.0}
        made.observe(block(number, levels))
    assert made.chosen() == chosen


def test_two_pairs_do_not_make_an_arm_alike_that_is_far_behind() -> None:
    """a is `off` of a program that has huge pages: a quarter slower in both pairs, and the first in the study."""
    made = screening(("base", "a", "b"))
    for number, (a, b) in enumerate([(0.20, -0.02), (0.25, -0.05)], 1):
        made.observe(block(number, {"base": 100.0, "a": 100 * math.exp(a), "b": 100 * math.exp(b)}))
    assert made.chosen() == ("b", True, BestEstimate())
    same = screening(("base", "a", "b"))
    for number in (1, 2):
        same.observe(block(number, {"base": 100.0, "a": 125.0, "b": 97.0}))
    assert same.chosen() == ("b", True, BestEstimate()), "a coarse metric: twice the same"


def test_an_arm_in_front_does_not_pass_over_an_earlier_one_that_may_be_as_good() -> None:
    """No arm is better than b by more than 2%. Whether b is better than a by so much is open."""
    made = screening(("base", "a", "b"))
    fed(made, drawn({"base": 0.0, "a": -0.30, "b": -0.32}, 3, 12, sd=0.02))
    assert made.behind("a", "b") and made.behind("base", "b") and not made.behind("b", "a")
    assert made.chosen() == ("a", True, NotClearlyBeaten("b"))
    fed(made, drawn({"base": 0.0, "a": -0.30, "b": -0.40}, 3, 40, sd=0.02))
    assert made.chosen() == ("b", False, InFront(0.02))


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize(("first", "best", "chosen"), [(0.02, 0.08, "b"), (0.06, 0.08, "a"), (0.01, 0.04, "a")])
def test_an_arm_that_gains_nothing_is_not_as_good_as_one_that_gains(
    first: float, best: float, chosen: str, failed: bool
) -> None:
    """By a standard error, 5.5% here. Whether b is better than a is open. A failure of the baseline tells nothing."""
    made = screening(("base", "a", "b"))
    for number, noise in enumerate((-0.08, 0.08, -0.08, 0.08), 1):
        levels = {"base": 100.0, "a": 100 * math.exp(-first + noise), "b": 100 * math.exp(-best - noise)}
        made.observe(block(number, levels))
    if failed:
        kept = block(5, {"a": 100.0, "b": 100.0}).attempts
        made.observe(block(5, *kept, attempt("base", None, state="failed", block=5)))
    assert made.chosen().unsure
    assert made.chosen().arm == chosen


def test_of_arms_that_never_met_the_first_that_gains_goes_on() -> None:
    made = screening(("base", "a", "b", "c"))
    for number in range(1, 13):
        arm, level = [("a", 0.01), ("b", -0.10), ("c", -0.13)][number % 3]
        made.observe(block(number, {"base": 100.0, arm: 100 * math.exp(level + 0.01 * (-1) ** (number // 3))}))
    assert made.chosen() == ("b", True, NotClearlyBeaten("c"))


def test_failures_of_the_baseline_do_not_hide_that_arms_are_alike() -> None:
    made = screening(("base", "a", "b"))
    for number in range(1, 8):
        one = block(number, {"base": 100.0, "a": 70.0 + number % 3, "b": 70.0 + number % 2})
        if number in (2, 4, 6):
            kept = (each for each in one.attempts if each.arm != "base")
            one = block(number, *kept, attempt("base", None, state="failed"))
        made.observe(one)
    assert made.chosen().arm == "a"


def test_a_screening_may_end_early_though_an_arm_is_in_front() -> None:
    """b is in front, and a may be as good: neither can be shown in two more pairs, but in hundreds."""
    made = screening(("base", "a", "b"))
    fed(made, drawn({"base": 0.0, "a": -0.300, "b": -0.305}, 1, 8, sd=0.02))
    assert made.behind("a", "b") and not made.behind("b", "a") and made.chosen().arm == "a"
    assert (made.futile(2), made.futile(500)) == (True, False)


def test_an_unsure_screening_never_takes_an_arm_that_failed() -> None:
    made = screening()
    for number in range(1, 4):
        one = block(number, {"base": 100.0, "a": 69.0 + number, "b": 70.0, "c": 101.0})
        if number == 2:
            one = block(number, *(each for each in one.attempts if each.arm != "a"), attempt("a", None, state="failed"))
        made.observe(one)
    assert made.chosen().arm == "b"


def test_an_arm_that_another_beats_within_the_margin_alone_stays_before_it() -> None:
    """b takes 1% less than a in every pair, and reaches more."""
    made = screening(("base", "a", "b"))
    taken = fed(made, drawn({"base": 0.0, "a": -0.30, "b": -0.31}, 5, 200, sd=0.002))
    assert (made.chosen().arm, made.chosen().unsure, "a" in made.dropped) == ("a", False, False)
    assert taken < 30
    made = screening(("base", "a", "b"))
    fed(made, drawn({"base": 0.0, "a": -0.30, "b": -0.40}, 5, 200, sd=0.002))
    assert (made.chosen().arm, "a" in made.dropped) == ("b", True), "10% is more than the margin"
    made = screening(("base", "a", "b"))
    fed(made, drawn({"base": 0.0, "a": -0.31, "b": -0.30}, 5, 200, sd=0.002))
    assert "b" in made.dropped, "what comes behind may be beaten by less"
