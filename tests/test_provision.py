"""What a plan needs of the machine's memory, with workloads that say a number."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hugewise.errors import HugewiseError
from hugewise.metric import Metric
from hugewise.pages import PageTarget
from hugewise.plan import Arm, Cell, DeliveryThreshold, Plan
from hugewise.policy import Mechanism, Treatment
from hugewise.provision import bytes_to_touch, pool_pages, without_short_pools
from hugewise.workload import ParameterValue

MIB = 1 << 20


class Wants:
    def __init__(self, size: int) -> None:
        self.size = size

    def memory(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> int:
        return self.size

    def pool(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> int:
        return self.size if treatment.target.kind == "hugetlb" else 0


def arm(name: str, size: int = 4096, mechanism: Mechanism = "system") -> Arm:
    kind = "hugetlb" if size > 4096 else "base"
    treatment = Treatment(policy=name, mechanism=mechanism, target=PageTarget(kind, size))  # type: ignore[arg-type]
    return Arm(name, None, treatment)  # type: ignore[arg-type]


def cell(name: str, wants: int, *arms: Arm, together: bool = False) -> Cell:
    return Cell(
        id=name,
        workload=Wants(wants),  # type: ignore[arg-type]
        values={},
        metric=Metric("m", "s", "lower", ""),
        baseline="base",
        arms=(arm("base"), *arms),
        timeout=1.0,
        delivery=DeliveryThreshold(0.95, 0.01),
        user=None,
        cpus=None,
        together=together,
    )


PLAN = Plan((cell("small", 3 * MIB, arm("2m", 2 * MIB)), cell("large", 9 * MIB, arm("2m", 2 * MIB))), ())


def test_pools_are_for_the_largest_need_in_whole_pages() -> None:
    assert pool_pages(PLAN) == {2 * MIB: 5}
    assert bytes_to_touch(PLAN) == 9 * MIB


def test_arms_that_run_at_once_add_up() -> None:
    both = Plan((cell("one", 4 * MIB, arm("a", 2 * MIB), arm("b", 2 * MIB), together=True),), ())
    assert pool_pages(both) == {2 * MIB: 4}
    assert bytes_to_touch(both) == 12 * MIB


def test_an_ordinary_user_reserves_nothing() -> None:
    assert pool_pages(Plan((cell("one", MIB, arm("2m", 2 * MIB, "process")),), ())) == {}


def test_what_was_granted_in_part_serves_who_it_can() -> None:
    three = Plan((*PLAN.cells, cell("other", 9 * MIB, arm("2m", 2 * MIB), arm("thp"))), ())
    kept = without_short_pools(three, {2 * MIB: 5}, {2 * MIB: 2})
    assert [(each.id, [one.name for one in each.arms]) for each in kept.cells] == [
        ("small", ["base", "2m"]),
        ("other", ["base", "thp"]),
    ]
    reasons = {(left.cell, left.policy): left.reason for left in kept.left_out}
    assert reasons["large", "2m"] == "needs 5 pages of 2m; the kernel granted 2"
    assert "nothing is left" in reasons["large", "*"]


def test_nothing_left_is_an_error_with_a_cure() -> None:
    with pytest.raises(HugewiseError, match="the kernel granted 0") as caught:
        without_short_pools(PLAN, {2 * MIB: 5}, {})
    assert caught.value.hint
