"""Counts that are the same in every boot: when they are a verdict, how often wrongly, and what judges others."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

from hugewise.errors import StudyError
from hugewise.model.trial import Block
from hugewise.stats.exact import Exact, boots_needed
from hugewise.stats.family import methods_for
from hugewise.stats.fixed import FixedN
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


def booted(number: int, base: float | None, thp: float | None, *, seeds: Sequence[int] = (), **changes: Any) -> Block:
    """A block of two boots, with these seeds (default: one for both)."""
    first, second = seeds or (number, number)
    sides = (("base", base, first), ("thp", thp, second))
    made = [
        attempt(arm, value, block=number, guest={"guest_seed": seed}, state="accepted" if value else "failed")
        for arm, value, seed in sides
    ]
    return msgspec.structs.replace(block(number, *made), **changes)


def exact(*, alpha: float = 0.01, planned: int = 40, counting: bool = False, margin: float = 0.005) -> Exact:
    return Exact(CONTRAST, planned=planned, alpha=alpha, margin=margin, counting=counting)


def fed(method: Sequential, blocks: Iterable[Block]) -> list[str]:
    """The verdict after each block, until the method stops."""
    said: list[str] = []
    for each in blocks:
        decision = method.observe(each)
        said.append(decision.verdict)
        if decision.status == "stop":
            break
    return said


def test_the_defect_two_equal_counts_of_guests_that_count_are_a_verdict() -> None:
    """-73.19% twice, which five pairs under fixed n leave undecided while a noisier -87.3% is better."""
    method = exact(counting=True)
    assert fed(method, [booted(n, 100_000, 26_810) for n in range(40)]) == ["undecided", "better"]
    found = method.comparison()
    # With one seed on both sides no chance has part in that they differ; two seeds do not bound the typical ratio.
    assert (found.method, found.n, found.ratio, found.low, found.high, found.p) == (
        "exact",
        2,
        0.2681,
        None,
        None,
        None,
    )
    assert found.tiers[0].reason.endswith("of these 2 seeds")
    assert found.reason == "26,810 under thp and 100,000 under base in each of 2 boots, both sides with the same seed"
    before = FixedN(CONTRAST, planned=2, confidence=0.99, margin=0.005)
    for n in range(2):
        before.observe(booted(n, 100_000, 26_810))
    said = before.decision()
    assert (said.verdict, 'method = "exact"' in said.reason) == ("undecided", True)


def test_without_one_seed_for_both_sides_it_takes_boots_enough_to_be_no_chance() -> None:
    """Also where a study says that its guests count: the seeds of the records are what counts."""
    blocks = [booted(n, 100, 25, seeds=(n, n + 1000)) for n in range(40)]
    for method in (exact(counting=False), exact(counting=True)):
        assert fed(method, blocks) == ["undecided"] * 4 + ["better"]
        found = method.comparison()
        assert found.p == pytest.approx(2.0**-9)
        assert known(found.p) <= known(found.alpha) == 0.005
    few = exact(planned=3)
    fed(few, blocks[:3])
    assert few.decision().reason == (
        "25 under thp and 100 under base in each of 3 boots; 5 of each show that they are"
        " different (declare so many blocks: 3 are)"
    )


@pytest.mark.parametrize("alpha", [0.2, 0.05, 0.01, 0.01 / 9])
def test_the_chance_of_a_wrong_verdict_is_at_most_its_share(alpha: float) -> None:
    """Every outcome of boots that know no label, at two and three equally likely counts: enumerated, none sampled."""
    needed = boots_needed(alpha / 2)
    for values in ((1.0, 2.0), (1.0, 2.0, 3.0)):
        if len(values) ** (2 * needed) > 300_000:
            continue
        every = list(itertools.product(values, repeat=2 * needed))
        wrong = sum(len(set(o[:needed])) == len(set(o[needed:])) == 1 != len(set(o)) for o in every)
        assert 0 < wrong / len(every) <= alpha / 2
    assert 2.0 ** (1 - 2 * needed) <= alpha / 2 < 2.0 ** (3 - 2 * needed) or needed == 2
    assert 2.0 ** -boots_needed(alpha, within=True) <= alpha


def test_equal_counts_on_both_sides_are_equivalent_when_the_median_pair_must_be() -> None:
    method = exact()
    assert fed(method, [booted(n, 100, 100) for n in range(40)]) == ["undecided"] * 7 + ["equivalent"]
    small = exact()
    # 0.1% apart in every boot: within the margin, and so never called worse before.
    assert set(fed(small, [booted(n, 1000, 1001) for n in range(40)])) == {"undecided", "equivalent"}
    assert small.comparison().ratio == pytest.approx(1.001)


def test_a_rate_is_better_where_it_is_higher() -> None:
    assert fed(exact(counting=True), [booted(n, 100, 120) for n in range(2)])[-1] == "worse"


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
    method, plain = exact(counting=False), Sequential(CONTRAST, planned=40, alpha=0.005, margin=0.005)
    said, others = fed(method, blocks), fed(plain, blocks)
    assert said == others
    found, expected = method.comparison(), plain.comparison()
    assert found.reason.startswith(why)
    assert (found.method, found.verdict, found.low, found.high) == (
        "sequential",
        expected.verdict,
        expected.low,
        expected.high,
    )


def test_a_study_of_guests_shares_the_error_rate_and_one_without_has_none() -> None:
    text = 'format = 1\nname = "s"\nmethod = "exact"\nconfidence = 0.999\npolicies = ["base", "thp", "mthp-64k"]\n'
    for counting, needed in (("true", 2), ("false", 7)):
        study = parse(text + _GUEST.format(counting=counting), "s.toml")
        cell = cell_of(workloads()["chase"], *(an_arm(use.name) for use in study.policies), metric=CONTRAST.metric)
        made = methods_for(study, [cell])
        assert [type(one) for one in made] == [Exact, Exact]
        (first, _) = made
        assert isinstance(first, Exact)
        blocks = [msgspec.structs.replace(booted(n, 100, 25), cell=cell.id) for n in range(12)]
        assert len(fed(first, blocks)) == needed
    with pytest.raises(StudyError, match="booted anew"):
        parse(text + '[[workload]]\nname = "fault"\n', "s.toml")


def test_an_interval_of_no_width_takes_pairs_enough_for_the_typical_ratio() -> None:
    """Boots enough to show a difference are too few to say that most boots would have this very ratio."""
    few, many = exact(alpha=0.2), exact(alpha=0.001)
    assert fed(few, [booted(n, 100, 25) for n in range(40)])[-1] == "better"
    assert (few.comparison().n, few.comparison().low) == (3, None)  # 2^-2 is above 0.1
    for n in range(3, 5):  # a run goes on where another comparison of its cell does
        few.pairs.take(booted(n, 100, 25))
    found = few.comparison()
    assert (found.n, found.low, found.high) == (5, 0.25, 0.25)
    assert fed(many, [booted(n, 100, 25) for n in range(40)])[-1] == "better"
    assert many.comparison().low is None
