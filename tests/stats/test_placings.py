"""Blocks with two copies of the arm and of the baseline: scores, boundary, interval, evidence and the pairs behind."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from hugewise.model.trial import Block
from hugewise.stats.evidence import EProcess
from hugewise.stats.inversion import interval, point
from hugewise.stats.method import Contrast
from hugewise.stats.power import least_pairs
from hugewise.stats.sequential import Sequential
from hugewise.stats.signflip import (
    Boundary,
    Drawn,
    Placings,
    Scores,
    first_crossing,
    less,
    magnitudes,
    placings,
    rows,
    run,
    signed,
    stopped,
    verdict,
)
from tests.build.trials import LOWER, attempt

PLACES = list(itertools.combinations(range(4), 2))
Values = Sequence[float]


def drawn(values: Values, places: tuple[int, ...]) -> Drawn:
    """A block with these logarithms on its places, the arm on two of them."""
    return placings([values[at] for at in places], [values[at] for at in range(4) if at not in places])


def noise(seed: int, blocks: int, effect: float = 0.0) -> list[Drawn]:
    values = np.random.default_rng(seed).normal(0, 0.03, (blocks, 4))
    values[:, :2] += effect
    return [drawn(row, (0, 1)) for row in values.tolist()]


def test_a_block_has_the_differences_of_all_its_placings() -> None:
    assert placings([0.5], [0.2]) == 0.3
    found = placings([0.5, 0.1], [0.2, 0.3])
    assert found == Placings((0.05, 0.15, 0.25))
    with pytest.raises(ValueError, match="one or two copies of either side, not 2 and 1"):
        placings([1.0, 2.0], [1.0])


def test_a_failure_is_infinitely_far_on_its_side() -> None:
    inf = math.inf
    assert placings([inf, 0.1], [0.2, 0.3]) == Placings((inf, inf, inf))
    assert placings([0.2, 0.3], [0.1, inf]) == Placings((-inf, -inf, inf))
    with pytest.raises(ValueError, match="more than one failure: show the block pair by pair"):
        placings([inf, 0.1], [0.3, inf])


def test_an_effect_taken_off_the_arm_moves_the_drawn_difference_alone() -> None:
    block = placings([0.5, 0.1], [0.2, 0.3])
    moved = less(block, 0.05)
    assert isinstance(moved, Placings)
    assert moved.differences == pytest.approx((0.0, 0.15, 0.25))
    assert less(0.3, 0.1) == pytest.approx(0.2)


def test_scores_one_by_one_are_those_of_the_table() -> None:
    blocks = [*noise(1, 30), 0.01, -0.02, placings([math.inf, 0.0], [0.1, 0.2])]
    scores, table = Scores(), rows(blocks)
    expected = [scores.add(block) for block in blocks]
    for row, sizes, several in zip(signed(table.differences), magnitudes(table.differences), expected, strict=True):
        assert row.tolist() == [*several, *[-1] * (3 - len(several))]
        assert sizes.tolist() == [abs(several[0]), *several[1:], *[-1] * (3 - len(several))]


CASES: dict[str, NDArray[np.float64]] = {
    "normal": np.random.default_rng(3).normal(0, 1, (4, 4)).round(3),
    "ties": np.array([[1, 1, 2, 3], [5, 5, 5, 5], [0, 0, 1, 1], [2, 1, 2, 1]], dtype=float),
    "failures": np.array([[0, 1, math.inf, 2], [0, 0, math.inf, 1], [3, 1, 2, 0], [math.inf, 0, 0, 0]]),
    "drift": np.arange(16, dtype=float).reshape(4, 4),
    "one outlier": np.array([[0, 0.1, 0.2, 9], [0.3, 0, 0.1, 0.2], [8, 0, 0.1, 0.3], [0, 0.2, 0.4, 0.1]]),
}


@pytest.mark.parametrize("alpha", [0.05, 0.2])
@pytest.mark.parametrize("kind", CASES)
def test_of_all_orders_no_more_than_alpha_end_in_a_verdict(kind: str, alpha: float) -> None:
    """All 6^4 orders of four blocks, whatever the values."""
    cases = list(itertools.product(PLACES, repeat=4))
    ended = sum(stopped(map(drawn, CASES[kind].tolist(), places), alpha, 8, copies=2).sign != 0 for places in cases)
    assert 0 < ended <= alpha * len(cases) or (kind == "ties" and ended == 0)


@pytest.mark.parametrize("kind", CASES)
def test_what_is_spent_is_the_chance_of_having_crossed(kind: str) -> None:
    values = CASES[kind].tolist()
    ended = sum(
        stopped(map(drawn, values, places), 0.2, 8, copies=2).sign != 0
        for places in itertools.product(PLACES, repeat=4)
    )
    spent = run([drawn(row, (0, 1)) for row in values], 0.2, 8, copies=2).spent
    assert spent == pytest.approx(ended / 6**4, abs=1e-12)


def test_blocks_of_one_pair_stand_among_those_of_two() -> None:
    """A lost copy takes its pair along: both signs of what is left, 2 of 12 orders with six of a whole block."""
    whole, left = [0.3, 0.1, 0.0, 0.2], 0.4
    ended = 0
    for places, sign, other in itertools.product(PLACES, (1, -1), PLACES):
        blocks = [drawn(whole, places), sign * left, drawn([1.0, 2.0, 3.0, 5.0], other)]
        ended += stopped(blocks, 0.3, 5, copies=2).sign != 0
    assert 0 < ended <= 0.3 * 72


def test_the_boundary_counts_pairs_and_knows_its_least() -> None:
    law = Boundary(0.01, 24, copies=2)
    assert [law.step(2, 1, 1) is not None for _ in range(4)] == [False, False, False, True]
    assert law.pairs == 8
    assert least_pairs(0.01, 24, 2) == 8
    assert (first_crossing(0.01), first_crossing(0.01, 2), first_crossing(1e-4, 2)) == (8, 6, 12)
    with pytest.raises(ValueError, match="between 0 and 31"):
        law.step(1, 32, 1)


def test_probabilities_stay_right_over_hundreds_of_blocks() -> None:
    """Beyond what a double holds exactly, and through two divisions by 2^512."""
    law, generator = Boundary(0.05, 1000, copies=2), np.random.default_rng(7)
    walks = np.zeros(20_000, dtype=np.int64)
    ended = np.zeros(20_000, dtype=bool)
    for _ in range(420):
        sizes = generator.integers(0, 32, 3)
        level = law.step(*sizes.tolist())
        walks += sizes[generator.integers(0, 3, 20_000)] * generator.choice((1, -1), 20_000)
        if level is not None:
            ended |= np.abs(walks) >= level
    assert ended.mean() == pytest.approx(law.spent, abs=0.006)  # four standard errors
    assert law.spent <= 0.05


@pytest.mark.parametrize("effect", [0.0, 0.05])
def test_interval_and_point_belong_to_the_test(effect: float) -> None:
    blocks = noise(5, 30, effect)
    low, high = interval(blocks, 0.05, 80, 1e-5, copies=2)
    for theta, kept in ((low - 1e-4, False), (low + 1e-4, True), (high - 1e-4, True), (high + 1e-4, False)):
        assert (stopped([less(block, theta) for block in blocks], 0.05, 80, copies=2).sign == 0) == kept
    centre = point(blocks)
    assert low < centre < high
    assert abs(run([less(block, centre) for block in blocks], 0.05, 80).walk) <= 2
    table = rows(blocks)
    assert verdict(table.less(low - 1e-4), 0.05, 80, copies=2) == 1
    assert verdict(table.less(centre), 0.05, 80, copies=2) == 0


def test_the_e_value_is_one_on_average_over_all_orders() -> None:
    values = CASES["normal"].tolist()[:3]
    found = []
    for places in itertools.product(PLACES, repeat=3):
        process = EProcess()
        for row, place in zip(values, places, strict=True):
            process.add(drawn(row, place))
        found.append(process.up)
        assert process.pairs == 6
    assert np.mean(found) == pytest.approx(1.0, abs=1e-12)


ORDER = ("thp#2", "base", "base#2", "thp")


def block_of(number: int, thp: Values, base: Values, **changes: Any) -> Block:
    """A block with both copies of either side, in `ORDER`; NaN: the attempt failed."""
    sides = {"thp": thp[0], "thp#2": thp[1], "base": base[0], "base#2": base[1]}
    attempts = [
        attempt(
            name.partition("#")[0],
            None if math.isnan(value) else value,
            block=number,
            order=ORDER.index(name),
            copy=2 if name.endswith("#2") else 1,
            state="failed" if math.isnan(value) else "accepted",
        )
        for name, value in sides.items()
    ]
    made = Block(number=number, cell="chase", state="complete", reason=None, attempts=tuple(attempts), arms=ORDER)
    return msgspec.structs.replace(made, **changes)


def judged(blocks: Iterator[Block] | Sequence[Block], planned: int = 40) -> Sequential:
    made = Sequential(Contrast("chase", "thp", "base", LOWER, copies=2), planned=planned, alpha=0.01, margin=0.02)
    for block in blocks:
        made.take(block)
    return made


def measured(seed: int, count: int, effect: float) -> list[Block]:
    values = np.exp(np.random.default_rng(seed).normal(0, 0.02, (count, 4)))
    values[:, :2] *= 1 + effect
    return [block_of(number, row[:2], row[2:]) for number, row in enumerate(values.tolist(), 1)]


def test_a_strong_effect_is_decided_by_four_blocks() -> None:
    method = judged(measured(1, 4, -0.2), planned=24)
    assert method.decision().verdict == "better"
    found = method.comparison()
    assert (found.n, found.verdict, method.usable.test.crossed_at) == (8, "better", 8)
    assert found.low is not None and found.high is not None and found.ratio is not None
    assert found.low < found.ratio < found.high < 1
    assert found.ratio == pytest.approx(0.8, abs=0.02)
    assert found.alpha_spent is not None and found.alpha_spent <= 0.01
    with_pairs_alone = Sequential(Contrast("chase", "thp", "base", LOWER), planned=24, alpha=0.01, margin=0.02)
    for block in measured(1, 4, -0.2):
        with_pairs_alone.take(msgspec.structs.replace(block, arms=("thp", "base")))
    assert with_pairs_alone.decision().verdict == "undecided"


def test_no_effect_is_equivalent() -> None:
    found = judged(measured(2, 30, 0.0), planned=60).comparison()
    assert (found.verdict, found.n) == ("equivalent", 60)


CHANGES: dict[str, tuple[Callable[[Block], Block], int, int]] = {
    # what happens to a block: the usable pairs that are left, and pairs of which nothing is known
    "nothing": (lambda block: block, 2, 0),
    "lost": (lambda block: _without(block, "thp#2", lost={"thp#2": "gone"}), 1, 1),
    "unstarted": (lambda block: _without(block, "base", unstarted={"base": "no pool"}), 1, 1),
    "late": (lambda block: msgspec.structs.replace(block, late=("thp",)), 2, 1),
    "disturbed": (lambda block: msgspec.structs.replace(block, state="disturbed"), 0, 2),
}


def _without(block: Block, labelled: str, **changes: Any) -> Block:
    left = tuple(one for one in block.attempts if one.label != labelled)
    return msgspec.structs.replace(block, attempts=left, **changes)


@pytest.mark.parametrize("kind", CHANGES)
def test_a_lost_copy_loses_its_pair_and_not_the_block(kind: str) -> None:
    change, usable, lost = CHANGES[kind]
    blocks = [*measured(1, 2, -0.2), change(measured(4, 3, -0.2)[2])]
    method = judged(blocks)
    assert (len(method.pairs.usable), method.pairs.lost, len(method.pairs.kept)) == (4 + usable, lost, 6)
    assert method.usable.test.walk == _walk([*blocks[:2], blocks[2]][: 3 if usable else 2], usable)


def _walk(blocks: Sequence[Block], usable: int) -> int:
    """The walk of these blocks, of which the last has so many usable pairs."""
    found: list[Drawn] = []
    for block in blocks:
        values = {one.label: math.log(one.metrics["ns_per_load"] or 0) for one in block.attempts}
        copies = [copy for copy in ("", "#2") if f"thp{copy}" in values and f"base{copy}" in values]
        found.append(placings([values[f"thp{copy}"] for copy in copies], [values[f"base{copy}"] for copy in copies]))
    assert usable == 0 or len(found) == 3
    return run(found, 0.01, 40, copies=2).walk


def test_what_is_lost_speaks_against_every_claim() -> None:
    blocks = [*measured(1, 3, -0.2), _without(measured(6, 4, -0.2)[3], "base", lost={"base": "gone"})]
    method = judged(blocks, planned=24)
    assert (method.decision().verdict, method.usable.test.sign) == ("undecided", 0)
    assert method._larger.test.walk < method._smaller.test.walk


def test_failures_of_one_side_decide() -> None:
    """Two failures in a block are shown pair by pair, so that it takes as many pairs as without copies."""
    blocks = [block_of(number, (math.nan, math.nan), (100.0, 101.0)) for number in range(1, 7)]
    assert [judged(blocks[:count], planned=24).decision().verdict for count in (4, 6)] == ["undecided", "worse"]


@pytest.mark.parametrize("sessions", [(1, 1, 2, 2), (1, 2, 1, 2)])
def test_a_block_of_two_sessions_is_shown_pair_by_pair(sessions: tuple[int, ...]) -> None:
    """Whether its pairs are known then hangs on the copies' numbers, so that not all placings are as likely."""
    (block,) = measured(1, 1, -0.2)
    attempts = tuple(
        msgspec.structs.replace(one, session=session)
        for one, session in zip(sorted(block.attempts, key=lambda one: one.order), sessions, strict=True)
    )
    method = judged([msgspec.structs.replace(block, attempts=attempts)])
    together = {one.copy: {each.session for each in attempts if each.copy == one.copy} for one in attempts}
    split = sum(len(each) > 1 for each in together.values())
    assert (method.pairs.lost, len(method.pairs.kept)) == (split, 2)
    assert all(isinstance(one, float) for one in method._larger.pairs.values)


def test_one_block_that_started_late_is_allowed() -> None:
    """All of its attempts started late, two of either side."""
    blocks = [*measured(1, 12, -0.3)]
    blocks[0] = msgspec.structs.replace(blocks[0], late=ORDER)
    assert judged(blocks, planned=48).decision().verdict == "better"
    blocks[1] = msgspec.structs.replace(blocks[1], late=ORDER)
    assert judged(blocks, planned=48).decision().verdict == "none"


@pytest.mark.parametrize("bad", ["thp", "thp#2", "base", "base#2"])
def test_a_loss_that_hangs_on_the_coin_makes_no_more_wrong_verdicts(bad: str) -> None:
    """All 6^4 orders of four blocks whose attempt at the slowest place is lost whenever that label stands there."""
    values = np.exp(np.random.default_rng(9).normal(0, 0.02, (4, 4))).tolist()
    wrong = 0
    for places in itertools.product(PLACES, repeat=4):
        method = Sequential(Contrast("chase", "thp", "base", LOWER, copies=2), planned=8, alpha=0.2, margin=0.02)
        method.pairs._spared = 99
        for number, (row, place) in enumerate(zip(values, places, strict=True), 1):
            thp = [row[at] for at in place]
            base = [row[at] for at in range(4) if at not in place]
            block = block_of(number, thp, base)
            slowest = max(block.attempts, key=lambda one: one.metrics["ns_per_load"] or 0).label
            method.take(_without(block, bad, lost={bad: "gone"}) if slowest == bad else block)
            if method.decision().verdict in ("better", "worse"):
                wrong += 1
                break
    assert wrong <= 0.2 * 6**4
