"""Whether arms did the same work: told where they did not, and no verdict on a time that less work explains."""

from typing import Any

import msgspec
import pytest

from hugewise.analysis.analysis import with_carry_over, with_work
from hugewise.model.metric import COMMON, WALL_US
from hugewise.model.reason import CarryOver
from hugewise.model.results import Comparison
from hugewise.model.trial import Block
from hugewise.report.reasons import in_words
from hugewise.store.records import CellRecord
from tests.analysis.test_forecast import cell
from tests.build import known
from tests.build.results import comparison
from tests.build.trials import attempt, block

COUNTED = ("operations,neutral=regex:did ([0-9]+)",)


def of(workload: str, values: tuple[str, ...] = ()) -> CellRecord:
    return msgspec.structs.replace(cell("chase", "thp"), workload=workload, values={"values": values}, metric=COMMON[0])


def blocks(*pairs: tuple[float | None, float | None], **changes: Any) -> list[Block]:
    """Of the work of thp and of base."""
    return [
        block(
            number,
            attempt("thp", 1.0, block=number, metrics={"operations": arm}, **changes),
            attempt("base", 1.0, block=number, metrics={"operations": base}),
        )
        for number, (arm, base) in enumerate(pairs)
    ]


def better(metric: str = "wall_s") -> Comparison:
    return comparison("thp", metric, "better", n=12, ratio=0.5, low=0.4, high=0.6, reason="by the test")


def found(pairs: list[Block], metric: str = "wall_s", workload: str = "service", margin: float = 0.02) -> Comparison:
    return with_work(better(metric), of(workload, COUNTED), pairs, margin)


@pytest.mark.parametrize("workload", ["service", "command"])
def test_less_work_is_no_better_time(workload: str) -> None:
    one = found(blocks(*[(1000.0, 2000.0)] * 3), workload=workload)
    assert one.verdict == "none" and one.reach is None
    assert in_words(one.reason).startswith(
        "withheld: under thp it did 50% less work than under base (operations, 3 pairs)"
    )
    assert "metric wall_us" in in_words(one.reason) and in_words(one.reason).endswith("; by the test")
    assert one.ratio == 0.5, "what was measured stands"
    none = found(blocks(*[(0.0, 2000.0)] * 3), workload=workload)
    assert none.verdict == "none" and "100% less work" in in_words(none.reason)


def test_as_much_work_changes_nothing() -> None:
    assert found(blocks(*[(2000.0, 2000.0)] * 12)) == better()
    by_chance = [(2000.0 + (-1) ** number * (number % 5), 2000.0) for number in range(30)]
    assert found(blocks(*by_chance)) == better()


def test_a_little_less_work_than_the_margin_is_told() -> None:
    one = found(blocks(*[(1990.0, 2000.0)] * 5))
    assert one.verdict == "better"
    assert tuple(map(in_words, one.warnings)) == (
        "under thp it did 0.5% less work than under base (operations, 5 pairs)",
    )
    assert found(blocks(*[(1990.0, 2000.0)] * 5), margin=0.001).verdict == "none"


def test_work_that_varies_is_less_where_the_signs_say_so() -> None:
    pairs = [(1800.0 + 7 * number, 2000.0 + 9 * (number % 4)) for number in range(14)]
    assert found(blocks(*pairs)).verdict == "none"
    assert found(blocks(*pairs[:4])).verdict == "better", "four pairs are no proof"


def test_who_does_more_is_told_as_well() -> None:
    assert "49% more work" in in_words(found(blocks(*[(2980.0, 2000.0)] * 3)).reason)


def test_what_is_of_each_operation_or_said_by_the_load_needs_no_equal_work() -> None:
    less = blocks(*[(1000.0, 2000.0)] * 5)
    for metric in (WALL_US.name, "server_cpu_us", "operations"):
        assert found(less, metric).verdict == "better"


def test_pairs_without_both_counts_say_nothing() -> None:
    assert found(blocks((1000.0, None), (None, 2000.0), (1000.0, 2000.0))) == better()
    assert found(blocks(*[(1000.0, 2000.0)] * 4, state="failed")) == better()


def test_a_load_that_tells_no_count_is_said_to_be_unknown() -> None:
    one = with_work(better(), of("service"), [], 0.02)
    assert one.verdict == "better"
    (said,) = one.warnings
    told = in_words(said)
    assert told.startswith("whether the load did as much work under both is not known") and "--value" in told
    assert with_work(better("rate"), of("service", ("rate,higher=json:.x",)), [], 0.02).warnings == ()
    assert with_work(better(), of("command"), [], 0.02) == better()
    assert with_work(better(), of("chase"), [], 0.02) == better()


def test_the_bias_that_turns_do_not_exclude_is_told_of_blocks_that_kept_their_turns() -> None:
    def in_turns(count: int, **changes: Any) -> list[Block]:
        """The arm reads 2% lower where turns alternate."""
        return [
            block(
                n, {"thp": 100.0 * (1 + n % 3 / 1e4) * (0.98 if n % 2 else 1.0), "base": 100.0},
                arms=("thp", "base"), turns="0101" if n % 2 else "0110", **changes,
            )
            for n in range(count)
        ]  # fmt: skip

    one = better("ns_per_load")
    (said,) = with_carry_over(one, in_turns(20)).warnings
    assert in_words(said).startswith("not excluded is a bias of ")
    assert in_words(said).endswith(" by what a turn does to the next one (20 blocks)")
    assert isinstance(said, CarryOver) and known(said.low) < 0.98**0.5 < known(said.high)
    mean = msgspec.structs.replace(one, end_point="mean")
    assert with_carry_over(mean, in_turns(20)) == mean
    assert in_words(CarryOver(1e-9, 1e9, 4)) == (
        "these 4 blocks do not bound the bias by what a turn does to the next one"
    )
    (few,) = with_carry_over(one, in_turns(3)).warnings
    assert in_words(few) == "these 3 blocks do not bound the bias by what a turn does to the next one"
    old = [msgspec.structs.replace(each, turns="") for each in in_turns(20)]
    assert with_carry_over(one, old) == with_carry_over(one, in_turns(20, state="disturbed")) == one
