from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise.model.trial import commitment, draw_order, draw_some, draw_turns, new_seed, next_cell
from tests.build import known

ARMS = ("base", "thp", "mthp-64k", "hugetlb-2m")
seeds = st.binary(min_size=16, max_size=16)
blocks = st.integers(0, 1 << 40)
KNOWN = [("mthp-64k", 0, 1477), ("hugetlb-2m", 0, 3079), ("thp", 0, 1855), ("base", 0, 1642)]


def test_a_seed_is_fresh_and_its_hash_commits_to_it() -> None:
    one, other = new_seed(), new_seed()
    assert len(one) == 16
    assert one != other
    assert commitment(one) == hashlib.sha256(one).hexdigest()


def test_the_documented_construction_does_not_change() -> None:
    """Stored runs are checked against their revealed seed: this order may never become another one."""
    trials = draw_order(bytes(range(16)), 7, ARMS, cell="c")
    assert [(t.arm, t.slot, t.environment_pad) for t in trials] == KNOWN
    assert [(t.order, t.block, t.cell) for t in trials] == [(n, 7, "c") for n in range(4)]


def test_the_order_can_be_made_again_from_the_documentation_alone() -> None:
    seed, block = b"s" * 16, 3
    drawn = words(b"hugewise/order/1", seed, block)
    expected = [(arm, below(drawn, 2), below(drawn, 101)) for arm in shuffled(drawn, sorted(ARMS))]
    assert [(t.arm, t.slot, t.environment_pad) for t in draw_order(seed, block, ARMS, 2, 100)] == expected


@given(
    seeds,
    blocks,
    st.lists(st.text(max_size=5).filter(lambda name: "#" not in name), unique=True, max_size=9),
    st.integers(1, 9),
    st.integers(0, 9999),
)
def test_a_block_holds_every_arm_once(seed: bytes, block: int, arms: list[str], slots: int, pad: int) -> None:
    trials = draw_order(seed, block, arms, slots, pad)
    assert sorted(trial.arm for trial in trials) == sorted(arms)
    assert [trial.order for trial in trials] == list(range(len(arms)))
    assert all(0 <= trial.slot < slots and 0 <= trial.environment_pad <= pad for trial in trials)


@given(seeds, st.lists(blocks, min_size=1, max_size=6), blocks)
def test_a_block_depends_on_no_other(seed: bytes, others: list[int], block: int) -> None:
    alone = draw_order(seed, block, ARMS)
    for other in others:
        draw_order(seed, other, ARMS[:3])
    assert draw_order(seed, block, tuple(reversed(ARMS))) == alone


def test_every_permutation_is_as_probable_as_the_others() -> None:
    """Chi-squared with 23 degrees of freedom: below 55 for all but 2 in 10,000 seeds, and the seed is fixed."""
    n = 7200
    seen = Counter(tuple(t.arm for t in draw_order(b"u" * 16, k, ARMS)) for k in range(n))
    expected = n / 24
    assert len(seen) == 24
    assert sum((seen[p] - expected) ** 2 / expected for p in itertools.permutations(ARMS)) < 55


def test_successive_blocks_are_not_alike() -> None:
    """The first arms of blocks k and k+1 agree in one quarter of the cases, as coins would."""
    first = [draw_order(b"v" * 16, k, ARMS)[0].arm for k in range(4000)]
    assert 0.22 < sum(a == b for a, b in itertools.pairwise(first)) / 3999 < 0.28


def test_pads_and_slots_are_spread() -> None:
    trials = [t for k in range(1500) for t in draw_order(b"w" * 16, k, ARMS, 2, 4096)]
    assert 0.47 < sum(t.slot for t in trials) / len(trials) < 0.53
    assert 1950 < sum(t.environment_pad for t in trials) / len(trials) < 2150


@pytest.mark.parametrize(("arms", "slots", "pad"), [(("a", "a"), 1, 1), (("a",), 0, 1), (("a",), 1, -1)])
def test_impossible_blocks_are_refused(arms: tuple[str, ...], slots: int, pad: int) -> None:
    with pytest.raises(ValueError, match="block"):
        draw_order(b"", 0, arms, slots, pad)


def test_cells_take_turns() -> None:
    closed = dict.fromkeys("abc", 0)
    turns = []
    for _ in range(7):
        cell = known(next_cell(["b", "a", "c"], closed))
        turns.append(cell)
        closed[cell] += 1
    assert "".join(turns) == "bacbacb"
    assert next_cell(["c"], closed) == "c"
    assert next_cell([], closed) is None
    assert next_cell(["a", "new"], {"a": 2}) == "new"


@given(seeds, blocks, st.integers(2, 6), st.integers(0, 3))
def test_where_there_are_slots_enough_no_two_arms_share_one(seed: bytes, block: int, arms: int, more: int) -> None:
    trials = draw_order(seed, block, ARMS[:arms] if arms <= 4 else tuple("abcdef"[:arms]), arms + more)
    assert len({trial.slot for trial in trials}) == len(trials)


def test_no_arm_belongs_to_a_slot_and_no_position_either() -> None:
    """All four pairings of (order of the arms, order of the slots) come equally often; chi-squared with 3 degrees."""
    n = 4000
    seen = Counter(
        (trials[0].arm, trials[0].slot) for trials in (draw_order(b"x" * 16, k, ["a", "b"], 2) for k in range(n))
    )
    assert len(seen) == 4
    assert sum((count - n / 4) ** 2 / (n / 4) for count in seen.values()) < 16.3


def words(domain: bytes, seed: bytes, block: int) -> Iterator[int]:
    """The coin's 64-bit words, from the documentation alone."""
    digests = (
        hashlib.sha256(domain + seed + block.to_bytes(8, "big") + n.to_bytes(8, "big")).digest()
        for n in itertools.count()
    )
    return (int.from_bytes(digest[i : i + 8], "big") for digest in digests for i in (0, 8, 16, 24))


def below(drawn: Iterator[int], n: int) -> int:
    """A number below n, without modulo bias."""
    return next(word for word in drawn if word < 2**64 - 2**64 % n) % n


def shuffled(drawn: Iterator[int], items: Iterable[str]) -> list[str]:
    """Durstenfeld's permutation by those words."""
    found = list(items)
    for i in range(len(found) - 1, 0, -1):
        j = below(drawn, i + 1)
        found[i], found[j] = found[j], found[i]
    return found


@given(seeds, blocks, st.integers(1, 10))
def test_the_order_of_turns_can_be_made_again_from_the_documentation_alone(seed: bytes, block: int, arms: int) -> None:
    drawn = words(b"hugewise/turns/2", seed, block)
    first = "".join(shuffled(drawn, "0123456789"[:arms]))
    assert draw_turns(seed, block, arms) == first + (first[::-1] if next(drawn) % 2 else first)


def test_both_placings_and_both_first_places_are_as_frequent() -> None:
    seen = Counter(draw_turns(b"y" * 16, block, 2) for block in range(2000))
    assert {*seen} == {"0101", "1010", "0110", "1001"} and min(seen.values()) > 430
    with pytest.raises(ValueError, match="1 to 10 take turns, not 11"):
        draw_turns(b"", 0, 11)


@given(seeds, blocks, st.integers(0, 4))
def test_who_takes_part_can_be_made_again_from_the_documentation_alone(seed: bytes, block: int, count: int) -> None:
    found = draw_some(seed, block, ARMS, count)
    assert found == shuffled(words(b"hugewise/some/1", seed, block), sorted(ARMS))[:count]
    assert found == draw_some(seed, block, tuple(reversed(ARMS)), count)


def test_each_arm_takes_part_as_often_as_the_others() -> None:
    """Chi-squared with 3 degrees of freedom: below 16.3 for all but one in a thousand seeds, and the seed is fixed."""
    n = 4000
    seen = Counter(arm for k in range(n) for arm in draw_some(b"z" * 16, k, ARMS, 1))
    assert sum((seen[arm] - n / 4) ** 2 / (n / 4) for arm in ARMS) < 16.3
    pairs = Counter(frozenset(draw_some(b"z" * 16, k, ARMS, 2)) for k in range(n))
    assert len(pairs) == 6
    assert min(pairs.values()) > 0.85 * n / 6


def test_who_takes_part_has_no_place_for_it_in_the_order() -> None:
    """Of arms that were drawn by one coin, each comes first in the block as often, as that is another one."""
    n = 2000
    first = sum(
        draw_order(b"y" * 16, k, [*draw_some(b"y" * 16, k, ARMS[1:], 1), "base"])[0].arm == "base" for k in range(n)
    )
    assert 0.46 < first / n < 0.54
