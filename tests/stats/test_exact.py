"""Counts that are the same in every boot: when they are a verdict, how often wrongly, and what judges others."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from hugewise.errors import StudyError
from hugewise.model.trial import Block
from hugewise.report.reasons import in_words
from hugewise.stats.exact import Exact, boots_needed
from hugewise.stats.family import methods_for
from hugewise.stats.sequential import Sequential
from hugewise.study.load import parse
from tests.build import known
from tests.build.studies import an_arm, cell_of, workloads
from tests.build.trials import CONTRAST, attempt, block

_GUEST = """
[guest]
arch = "x86-64"
memory = "256m"
counting = {counting}
[[kernel]]
name = "k"
build = "pv-none"
[[workload]]
name = "fault"
"""


def booted(number: int, base: float | None, thp: float | None, **changes: Any) -> Block:
    """A block of two boots."""
    made = [
        attempt(arm, value, block=number, state="accepted" if value else "failed")
        for arm, value in (("base", base), ("thp", thp))
    ]
    return msgspec.structs.replace(block(number, *made), **changes)


def exact(*, alpha: float = 0.01, planned: int = 40, margin: float = 0.005) -> Exact:
    return Exact(CONTRAST, planned=planned, alpha=alpha, margin=margin)


def fed(method: Sequential, blocks: Iterable[Block]) -> list[str]:
    """The verdict after each block, until the method stops."""
    said: list[str] = []
    for each in blocks:
        decision = method.observe(each)
        said.append(decision.verdict)
        if decision.status == "stop":
            break
    return said


def test_counts_that_repeat_are_a_verdict_when_the_coins_of_their_blocks_are_one() -> None:
    """-73.19% in every block, of which Student's t can say nothing, as nothing varies."""
    method = exact()
    assert fed(method, [booted(n, 100_000, 26_810) for n in range(40)]) == ["undecided"] * 8 + ["better"]
    found = method.comparison()
    assert (found.method, found.n, found.ratio, found.low, found.high) == ("exact", 9, 0.2681, 0.2681, 0.2681)
    assert found.p == 2.0**-8 <= known(found.alpha) == 0.005
    assert in_words(found.tiers[0].reason).endswith("of these 9 seeds")
    assert in_words(found.reason) == "26,810 under thp and 100,000 under base in each of 9 boots"
    few = exact(planned=3)
    fed(few, [booted(n, 100, 25) for n in range(3)])
    assert in_words(few.decision().reason) == (
        "25 under thp and 100 under base in each of 3 boots; 9 of each show that they are"
        " different (declare so many blocks: 3 are)"
    )


@pytest.mark.parametrize("alpha", [0.2, 0.05, 0.01])
def test_counts_that_hang_on_the_place_in_the_block_are_wrong_for_the_coins_share(alpha: float) -> None:
    """Every row of coins, up to the pair at which equal counts are a verdict: the label changes nothing, and the place
    everything.
    """
    needed = boots_needed(alpha / 2)
    wrong = 0
    for coins in itertools.product((False, True), repeat=needed):
        blocks = [booted(n, *((100, 101) if first else (101, 100))) for n, first in enumerate(coins)]
        wrong += fed(exact(alpha=alpha, planned=needed, margin=0.001), blocks)[-1] != "undecided"
    assert 0 < wrong / 2**needed <= alpha / 2 < 2 * wrong / 2**needed
    assert boots_needed(alpha, within=True) == boots_needed(2 * alpha)


def test_equal_counts_on_both_sides_are_equivalent_when_the_median_pair_must_be() -> None:
    method = exact()
    assert fed(method, [booted(n, 100, 100) for n in range(40)]) == ["undecided"] * 7 + ["equivalent"]
    small = exact()
    # 0.1% apart in every boot: within the margin, and so never called worse before.
    assert set(fed(small, [booted(n, 1000, 1001) for n in range(40)])) == {"undecided", "equivalent"}
    assert small.comparison().ratio == pytest.approx(1.001)
    assert in_words(small.decision().reason) == (
        "1,001 under thp and 1,000 under base in each of 8 boots: within the margin of 0.005; up to 48% of boots may"
        " differ by more, and none of these"
    )


def test_a_rate_is_better_where_it_is_higher() -> None:
    assert fed(exact(), [booted(n, 100, 120) for n in range(9)])[-1] == "worse"


def varied(count: int = 40) -> list[Block]:
    """One boot in the middle says another count."""
    return [booted(n, 100 + (n == 3), 25) for n in range(count)]


@pytest.mark.parametrize(
    ("blocks", "why"),
    [
        (varied(), "counts of base vary from boot to boot (100 to 101), so that the sequential test judges"),
        (
            [booted(n, 100 if n != 1 else None, 25) for n in range(40)],
            "not every boot of both sides gave a count that can be used, so that the sequential test judges",
        ),
        (
            [booted(n, 100, 25, late=("thp",) if n == 1 else ()) for n in range(40)],
            "not every boot of both sides gave a count that can be used, so that the sequential test judges",
        ),
    ],
)
def test_one_boot_that_says_otherwise_leaves_the_sequential_test(blocks: list[Block], why: str) -> None:
    method, plain = exact(), Sequential(CONTRAST, planned=40, alpha=0.005, margin=0.005)
    said, others = fed(method, blocks), fed(plain, blocks)
    assert said == others
    found, expected = method.comparison(), plain.comparison()
    assert in_words(found.reason).startswith(why)
    assert (found.method, found.verdict, found.low, found.high) == (
        "sequential",
        expected.verdict,
        expected.low,
        expected.high,
    )


def test_a_study_of_guests_shares_the_error_rate_and_one_without_has_none() -> None:
    text = 'format = 1\nname = "s"\nmethod = "exact"\nconfidence = 0.999\npolicies = ["base", "thp", "mthp-64k"]\n'
    for counting, needed in (("true", 12), ("false", 12)):
        study = parse(text + _GUEST.format(counting=counting), "s.toml")
        cell = cell_of(workloads()["chase"], *(an_arm(use.name) for use in study.policies), metric=CONTRAST.metric)
        made = methods_for(study, [cell])
        assert [type(one) for one in made] == [Exact, Exact]
        (first, _) = made
        assert isinstance(first, Exact)
        blocks = [msgspec.structs.replace(booted(n, 100, 25), cell=cell.id) for n in range(20)]
        assert len(fed(first, blocks)) == needed
    with pytest.raises(StudyError, match="booted anew"):
        parse(text + '[[workload]]\nname = "fault"\n', "s.toml")


def test_an_interval_of_no_width_takes_a_pair_more_than_equivalence() -> None:
    """Pairs enough to lie within the margin are too few to say that most boots would have this very ratio."""
    equal = exact()
    assert fed(equal, [booted(n, 1000, 1001) for n in range(40)])[-1] == "equivalent"
    assert (equal.comparison().n, equal.comparison().low) == (8, None)  # 2^-7 is above 0.005
    equal.take(booted(8, 1000, 1001))  # a run goes on where another comparison of its cell does
    found = equal.comparison()
    assert (found.n, found.low, found.high) == (9, 1.001, 1.001)
