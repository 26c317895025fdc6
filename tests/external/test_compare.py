"""What a layout cannot support is said, and by how much."""

import math
from dataclasses import replace

import numpy as np

from hugewise.external.compare import DataLayout, examine, pair
from hugewise.external.reader import Series
from hugewise.model.metric import Metric
from tests.build import known

METRIC = Metric("wall_s", "s", "lower", "time")
RNG = np.random.default_rng(1)


def series(arm: str, values: list[float], **more: object) -> Series:
    arrays = {
        name: np.array(told, dtype=np.float64 if name == "order" else np.bool_ if name == "failed" else np.int64)
        for name, told in more.items()
    }
    return replace(Series(arm, METRIC, np.array(values), "file"), **arrays)  # type: ignore[arg-type]


def blocks(n: int, coin: list[bool], **more: object) -> tuple[Series, Series]:
    late = [2.0 * block + (not first) for block, first in enumerate(coin)]
    early = [2.0 * block + first for block, first in enumerate(coin)]
    arm = series("thp", [1.0] * n, block=list(range(n)), order=late, **more)
    base = series("base", [2.0] * n, block=list(range(n)), order=early, **more)
    return arm, base


def look(arm: Series, base: Series, *, randomised: bool = False, same: bool = True) -> DataLayout:
    return examine(arm, base, pair(arm, base), randomised=randomised, same_source=same)


def said(layout: DataLayout) -> str:
    return " ".join(caveat.sentence for caveat in layout.caveats)


def test_an_order_that_no_coin_made_is_seen_through() -> None:
    always = look(*blocks(20, [True] * 20), randomised=True)
    assert "thp was first in 20 of 20 blocks" in said(always) and not always.carries_verdict
    turns = look(*blocks(20, [True, False] * 10), randomised=True)
    assert "changes 19 times in 20 blocks" in said(turns) and not turns.carries_verdict


def test_pairs_follow_the_order_of_their_blocks_and_score_failures_as_the_worst() -> None:
    arm = series("thp", [4.0, 2.0, 9.0, 5.0], block=[3, 1, 2, 4], failed=[0, 0, 1, 1])
    base = series("base", [2.0, 2.0, 1.0, 5.0, 1.0], block=[3, 1, 2, 4, 9], failed=[0, 0, 0, 1, 0])
    comparison = known(pair(arm, base))
    assert comparison.differences.tolist() == [0.0, math.inf, math.log(2.0), 0.0]
    assert (comparison.failures_arm, comparison.failures_baseline, comparison.incomplete) == (2, 1, 1)
    higher = replace(arm, metric=Metric("tps", "1/s", "higher", ""))
    worst = known(pair(higher, base))
    assert worst.differences[1] == -math.inf


def test_a_value_without_a_ratio_makes_no_pairs() -> None:
    assert pair(series("a", [0.0, 1.0], block=[1, 2]), series("b", [1.0, 1.0], block=[1, 2])) is None


def test_all_of_one_before_all_of_the_other() -> None:
    arm, base = series("thp", [1.0, 2.0], order=[3, 4]), series("base", [1.0, 2.0], order=[1, 2])
    assert "All values of base were taken before all values of thp (AAAA..BBBB)" in said(look(arm, base))
    assert "order between the arms is not known" in said(look(arm, base, same=False))
    mixed = series("thp", [1.0, 2.0], order=[1.5, 4])
    assert "took turns 3 times in 4 values" in said(look(mixed, base))


def test_parts_of_a_run_are_no_replicates() -> None:
    arm, base = series("thp", [1.0, 2.0, 3.0], run=[0, 0, 1]), series("base", [1.0, 2.0, 3.0], run=[2, 2, 2])
    layout = look(arm, base)
    assert "3 values of thp come from 2 runs, 3 values of base come from 1 run" in said(layout)
    assert layout.fatal is not None and "one run of base" in layout.fatal.sentence


def test_an_arm_fixed_to_its_slot_is_confounded_whatever_else_is_right() -> None:
    arm, base = blocks(40, RNG.integers(0, 2, 40).astype(bool).tolist())
    fixed = replace(arm, slot=np.ones(40, np.int64)), replace(base, slot=np.zeros(40, np.int64))
    layout = look(*fixed, randomised=True)
    assert layout.fatal is not None and "never shared a slot" in layout.fatal.sentence
    assert not layout.carries_verdict
    swapped = np.tile([0, 1], 20)
    assert look(replace(arm, slot=swapped), replace(base, slot=1 - swapped), randomised=True).carries_verdict


def test_what_is_missing_or_failed_is_counted() -> None:
    arm = series("thp", [1.0, math.nan, 2.0, 3.0])
    base = series("base", [1.0, 2.0, 2.5, 3.0], failed=[0, 1, 0, 0])
    text = said(look(arm, base))
    assert "1 of 4 values of thp are missing" in text and "1 of 4 runs of base failed" in text
