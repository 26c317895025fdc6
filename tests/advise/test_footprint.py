from __future__ import annotations

import numpy as np
import pytest

from hugewise.advise.decision import blocks_of, footprint, footprint_change
from hugewise.model.trial import Attempt
from tests.build import known
from tests.build.trials import attempt, delivery

MIB = 1 << 20


def taken(arm: str, resident: int | None, *, block: int = 1, pool: int = 0, used: int | None = None) -> Attempt:
    coverage = {"unproven": MIB} if used is None else {"anon:4096": MIB, "hugetlb:2097152": used}
    return attempt(
        arm, 1.0, block=block, peak_bytes=resident, pool_bytes=pool, delivery=delivery(coverage=coverage),
        metrics={"wall_s": 1.0, "charged_peak_bytes": None if resident is None else float(resident)},
    )  # fmt: skip


def test_a_footprint_is_resident_memory_and_the_pool_used_or_not() -> None:
    found = footprint([taken("a", 5 * MIB, pool=110 * MIB, used=90 * MIB), taken("a", 6 * MIB, pool=110 * MIB, used=0)])
    assert (found.total, found.unused, found.pool_used) == (116 * MIB, 20 * MIB, 90 * MIB)
    assert found.charged


def test_what_nobody_saw_is_not_known_and_never_nothing() -> None:
    gone = footprint([taken("a", None)])
    assert (gone.resident, gone.total, gone.charged) == (None, None, False)
    assert footprint([]).total is None
    unseen = footprint([attempt("a", 1.0, pool_bytes=MIB, delivery=delivery(coverage={}))])
    assert (unseen.pool, unseen.pool_used, unseen.unused) == (MIB, None, None)
    none = footprint([taken("a", MIB)])
    assert (none.pool, none.pool_used, none.unused) == (0, 0, 0), "that no pool was reserved is known"


def test_what_a_command_had_given_back_when_it_ended_is_not_taken_for_unused() -> None:
    ended = attempt("a", 1.0, pool_bytes=MIB, delivery=delivery(coverage={"hugetlb:2097152": 4096}, proof="exit"))
    assert (footprint([ended]).pool_used, footprint([ended]).unused) == (None, None)


def test_page_tables_are_counted_where_the_cgroup_was() -> None:
    largest = attempt("a", 1.0, peak_bytes=MIB, metrics={"wall_s": 1.0, "charged_peak_bytes": None})
    assert not footprint([largest]).charged
    assert not footprint([largest, taken("a", MIB)]).charged


def test_its_change_is_of_attempts_of_the_same_blocks() -> None:
    random = np.random.default_rng(1)
    mine = [taken("thp", int(127 * MIB * random.normal(1, 0.01)), block=number) for number in range(1, 25)]
    theirs = [taken("base", int(100 * MIB * random.normal(1, 0.01)), block=number) for number in range(1, 25)]
    pairs = blocks_of([*mine, *theirs[:20], attempt("base", 1.0, block=23, state="failed")], "thp", "base")
    assert [one.block for one, _ in pairs] == list(range(1, 21))
    change = known(footprint_change(pairs, 100, 0.99))
    assert change.pairs == 20
    assert change.ratio == pytest.approx(1.27, abs=0.02)
    assert 1.2 < known(change.low) < change.ratio < known(change.high) < 1.31


def test_a_change_that_drifts_has_no_interval() -> None:
    pairs = [(taken("thp", (130 + number) * MIB), taken("base", (100 + number) * MIB)) for number in range(1, 21)]
    change = known(footprint_change(pairs, 100, 0.99))
    assert (change.low, change.high) == (None, None)


def test_few_pairs_bound_nothing_and_none_say_nothing() -> None:
    pairs = [(taken("thp", 2 * MIB), taken("base", MIB))]
    change = known(footprint_change(pairs, 100, 0.99))
    assert change.ratio == pytest.approx(2.0)
    assert (change.low, change.high) == (None, None)
    assert footprint_change([(taken("thp", None), taken("base", MIB))], 100, 0.99) is None
    assert footprint_change([], 100, 0.99) is None
