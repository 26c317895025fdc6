"""Which pairs reach the test, and what stands behind a verdict when something went wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
import numpy as np
import pytest

from hugewise.model.trial import Block
from hugewise.stats.pairs import Inference, Pairs, against
from hugewise.stats.sequential import Sequential
from tests.build import known
from tools.verification.block_streams import CONTRAST, Fate, pair


def noise(count: int, mean: float = 0.0, sd: float = 0.05, seed: int = 1) -> list[float]:
    return list(np.random.default_rng(seed).normal(mean, sd, count))


def played(blocks: Iterable[Block], *, planned: int = 200, alpha: float = 0.01, margin: float = 0.005) -> Sequential:
    made = Sequential(CONTRAST, planned=planned, alpha=alpha, margin=margin)
    for block in blocks:
        made.observe(block)
    return made


def taken(*blocks: Block) -> Pairs:
    pairs = Pairs(CONTRAST, spared=1)
    for block in blocks:
        pairs.take(block)
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
    fast = [pair(n, value, 0.0) for n, value in enumerate(noise(60, -0.3))]
    cut = [msgspec.structs.replace(one, redone=("arm",)) if one.number % 3 == 0 else one for one in fast]
    assert played(fast).decision().verdict == "better"
    made = played(cut)
    assert made.decision().verdict == "undecided"
    assert made.pairs.refusal(200) is None  # the share of undelivered pages is another thing
    assert made.comparison().spread == msgspec.structs.replace(made._spread.finding(), shown=None, pairs=None)


def test_an_effect_of_the_margin_itself_is_not_equivalent() -> None:
    for margin in (0.001, 0.02, 0.03, 0.05):
        for ratio in (1 + margin, 1 / (1 + margin)):
            made = played([pair(n, math.log(ratio), 0.0) for n in range(60)], margin=margin)
            assert made.decision().verdict != "equivalent"


def test_the_share_counts_what_was_made_and_one_is_always_allowed() -> None:
    one = taken(pair(1, 0.0, 0.0, ("undelivered", None)), *(pair(n, 0.1, 0.0) for n in range(2, 13)))
    assert one.refusal(2000) is None
    two = taken(*(pair(n, 0.1, 0.0, ("undelivered" if n < 3 else None, None)) for n in range(1, 200)))
    assert two.refusal(2000) == "pages of arm not delivered in 2 of 199 attempts: no room"
    two.take(pair(200, 0.1, 0.0))
    assert two.refusal(2000) is None


def test_a_start_that_fails_counts_with_undelivered_pages() -> None:
    fates: list[Fate | None] = ["undelivered", "unstarted", "absent"]
    pairs = taken(*(pair(n, 0.1, 0.0, (fate, None)) for n, fate in enumerate(fates)), pair(9, 0.1, 0.0))
    assert pairs.refusal(2000) == (
        "pages of arm not delivered in 1 of 4 attempts: no room; arm could not be started in 1 of 4 blocks: no room; "
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
    made = Sequential(CONTRAST, planned=2000, alpha=0.01, margin=0.005)
    status = [made.observe(block).status for block in blocks]
    assert status.index("stop") == 29


def test_a_verdict_needs_the_kept_in_pairs_and_says_so() -> None:
    """Blocks that broke off: the usable pairs are clear, and those that are not known may all have said otherwise."""
    blocks = [
        pair(2 * n + k, value, 0.0, ("incomplete" if k else None, None))
        for n, value in enumerate(noise(60, -0.3))
        for k in (0, 1)
    ]
    made = played(blocks)
    assert made.decision().verdict == "undecided"
    assert made.decision().reason.startswith("the test has crossed, but with all pairs kept in it has not (nothing is")
    assert len(made.pairs.usable) == 60
    found = made.comparison()
    assert found.high is not None and found.high < 1
    assert any("60 of them as their block was not completed" in warning for warning in found.warnings)


def test_late_starts_count_with_undelivered_pages() -> None:
    made = played([pair(n, value, 0.0, ("late", None)) for n, value in enumerate(noise(60, -0.3))])
    assert made.decision().verdict == "none"
    assert made.decision().reason == "arm started only at a later try in 30 of 30 blocks"
    assert len(made.pairs.usable) == 30


def test_one_undelivered_pair_changes_no_clear_verdict_and_is_told() -> None:
    blocks = [pair(n, value, 0.0) for n, value in enumerate(noise(40, -0.3))]
    blocks[3] = pair(3, 0.4, 0.0, ("undelivered", None))
    found = played(blocks).comparison()
    assert found.verdict == "better"
    assert found.n_all == found.n + 1
    assert "; also with all pairs kept in (pages of arm not delivered in 1 of" in found.reason


def test_an_arm_that_could_not_be_started_is_never_equivalent() -> None:
    blocks = [pair(n, value, 0.0) for n, value in enumerate(noise(200, sd=0.0005))]
    assert played(blocks).decision().verdict == "equivalent"
    for fates in (("unstarted", None), (None, "unstarted")):
        lost = [pair(0, 0.0, 0.0, fates), *blocks]
        made = played(lost)
        assert made.decision().verdict == "undecided"
        assert made.comparison().unstarted_arm + made.comparison().unstarted_baseline == 1


def test_equivalent_needs_the_kept_in_pairs_too() -> None:
    blocks = [pair(n, value, 0.0) for n, value in enumerate(noise(400, sd=0.002))]
    whole = played(blocks, planned=400).comparison()
    assert whole.verdict == "equivalent"
    late = [msgspec.structs.replace(one, redone=("arm",)) for one in blocks]
    assert played(late, planned=400).decision().verdict == "undecided"


def test_equivalence_is_held_against_the_average_too() -> None:
    """+3% in 62% of pairs and -3% in the others: the typical pair is near 0, and the average is not."""
    up = np.random.default_rng(5).random(300) < 0.62
    blocks = [pair(n, 0.03 if more else -0.03, 0.0) for n, more in enumerate(up.tolist())]
    blocks = [msgspec.structs.replace(one, number=n) for n, one in enumerate(blocks)]
    made = played(blocks, planned=300, alpha=0.05)
    assert made.decision().verdict != "equivalent"


def test_after_a_difference_the_two_tests_go_on_alike() -> None:
    """An undelivered pair with the same difference as its neighbour: two walks, of 60 and of 59 pairs."""
    values = noise(60, 0.02)
    blocks = [pair(n, value, 0.0, ("undelivered" if n == 7 else None, None)) for n, value in enumerate(values)]
    made = played(blocks, alpha=1e-4)
    assert (made._larger.test.pairs, made.usable.test.pairs) == (60, 59)
    bare = played([b for n, b in enumerate(blocks) if n != 7], alpha=1e-4)
    assert made.usable.test.walk == bare._larger.test.walk


def test_the_corrected_ratio_lies_between_none_and_what_was_seen() -> None:
    found = played([pair(n, value, 0.0) for n, value in enumerate(noise(200, 0.03))]).comparison()
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
