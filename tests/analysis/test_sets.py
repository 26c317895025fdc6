"""The geometric mean over the programs of a set, and its interval."""

import math
from collections.abc import Mapping

import msgspec
import pytest

from hugewise.analysis.changes import overall
from hugewise.model.results import CellResult, Comparison
from tests.build.results import plain

PATTERN = plain().cells[0]


def cell(
    program: str, arms: Mapping[str, tuple[float | None, float | None, float | None]], **more: object
) -> CellResult:
    """A program's cell: ratio, low and high by arm."""
    comparisons = tuple(
        msgspec.structs.replace(
            PATTERN.comparisons[0], arm=arm, ratio=ratio, low=low, high=high, confidence=0.99, method="sequential"
        )
        for arm, (ratio, low, high) in arms.items()
    )
    parameters = {"program": program, "size": 1.0}
    return msgspec.structs.replace(
        PATTERN, cell=f"set program={program}", workload="integer-set", parameters=parameters, comparisons=comparisons
    )


def test_each_arm_has_a_mean_over_the_programs_with_an_interval_by_all_of_theirs() -> None:
    found = overall([cell("gcc", {"thp": (0.9, 0.8, 1.0)}), cell("xz", {"thp": (0.4, 0.2, 0.8)})])
    (one,) = found
    assert (one.arm, one.programs, one.lacking, one.reason) == ("thp", ("gcc", "xz"), (), "")
    assert one.ratio == pytest.approx(0.6)
    assert one.low == pytest.approx(0.4)
    assert one.high == pytest.approx(math.sqrt(0.8))
    assert one.confidence == pytest.approx(0.98)


def test_a_program_that_cannot_take_the_policy_is_named() -> None:
    both, one = (0.9, 0.8, 1.0), (0.5, 0.4, 0.6)
    found = {
        each.arm: each for each in overall([cell("gcc", {"thp": both}), cell("xz", {"thp": both, "hugetlb-2m": one})])
    }
    assert (found["hugetlb-2m"].programs, found["hugetlb-2m"].lacking) == (("xz",), ("gcc",))
    assert found["hugetlb-2m"].ratio == pytest.approx(0.5)
    assert found["thp"].lacking == ()


def test_what_is_not_known_is_no_number() -> None:
    known, unknown = (0.9, 0.8, 1.0), (None, None, None)
    (one,) = overall([cell("gcc", {"thp": known}), cell("xz", {"thp": unknown})])
    assert (one.ratio, one.low, one.confidence, one.reason) == (None, None, None, "no estimate for xz")
    (one,) = overall([cell("gcc", {"thp": known}), cell("xz", {"thp": (0.9, 0.0, math.inf)})])
    assert (one.low, one.reason) == (None, "the interval of a program is not bounded yet")
    assert one.ratio == pytest.approx(0.9)


@pytest.mark.parametrize("low", [None, 0.0])
def test_an_end_that_one_program_does_not_bound_is_open(low: float | None) -> None:
    (one,) = overall([cell("gcc", {"thp": (0.9, 0.8, 1.0)}), cell("xz", {"thp": (0.4, low, 0.64)})])
    assert one.low is None
    assert one.high == pytest.approx(0.8)
    assert one.confidence == pytest.approx(0.98)
    (one,) = overall([cell("gcc", {"thp": (0.5, low, 0.64)}), cell("xz", {"thp": (0.5, 0.2, None)})])
    assert (one.low, one.high, one.reason) == (None, None, "the interval of a program is not bounded yet")


def test_levels_that_the_data_chose_give_no_interval() -> None:
    def holm(found: CellResult) -> CellResult:
        comparisons: tuple[Comparison, ...] = tuple(
            msgspec.structs.replace(one, method="fixed-n") for one in found.comparisons
        )
        return msgspec.structs.replace(found, comparisons=comparisons)

    cells = [holm(cell(program, {"thp": (0.9, 0.8, 1.0)})) for program in ("gcc", "xz")]
    (one,) = overall(cells)
    assert one.ratio == pytest.approx(0.9)
    assert (one.low, one.high) == (None, None)
    assert "needs the method sequential" in one.reason


def test_another_label_is_another_set_and_other_workloads_are_none() -> None:
    arms = {"thp": (0.9, 0.8, 1.0)}
    pool = [msgspec.structs.replace(each, cell=f"pool-{each.cell}") for each in (cell("gcc", arms), cell("xz", arms))]
    assert [one.name for one in overall([cell("gcc", arms), cell("xz", arms), *pool])] == ["set", "pool-set"]
    assert overall([cell("gcc", arms), pool[1]]) == ()
    other = [msgspec.structs.replace(cell(program, arms), workload="command") for program in ("gcc", "xz")]
    assert overall(other) == ()
