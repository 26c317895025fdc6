"""What a plan needs of the machine's memory, with workloads that say a number."""

from collections.abc import Mapping
from typing import Literal

import msgspec
import pytest

from hugewise.errors import HugewiseError
from hugewise.model.guest import Backing, Pages
from hugewise.model.metric import Metric
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Mechanism, Treatment
from hugewise.model.trial import DeliveryThreshold
from hugewise.model.workload import ParameterValue
from hugewise.plan.arms import Arm
from hugewise.plan.memory import as_begun, by_size, bytes_to_touch, fitting, pool_pages, without_short_pools
from hugewise.plan.plan import Cell, Plan

MIB, GIB = 1 << 20, 1 << 30


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
        cpus=None,
        together=together,
    )


PLAN = Plan((cell("small", 3 * MIB, arm("2m", 2 * MIB)), cell("large", 9 * MIB, arm("2m", 2 * MIB))), ())


def test_pools_are_for_the_largest_need_in_whole_pages() -> None:
    assert pool_pages(PLAN) == {(2 * MIB, None): 5}
    assert bytes_to_touch(PLAN) == 9 * MIB


def test_arms_that_run_at_once_add_up() -> None:
    both = Plan((cell("one", 4 * MIB, arm("a", 2 * MIB), arm("b", 2 * MIB), together=True),), ())
    assert pool_pages(both) == {(2 * MIB, None): 4}
    assert bytes_to_touch(both) == 4 * MIB  # the pool is filled already


def test_what_is_taken_from_a_pool_is_not_touched_beside_it() -> None:
    """Of an arm of which only a part is in the pool, the rest is; a pool is of whole pages, which may be more."""

    class Partly(Wants):
        def pool(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> int:
            return super().pool(treatment, values) // 3

    one = cell("one", 9 * MIB, arm("2m", 2 * MIB), together=True)
    partly = msgspec.structs.replace(one, workload=Partly(9 * MIB))
    assert bytes_to_touch(Plan((partly,), ())) == (9 + 9 - 4) * MIB  # 3 MiB are two pages
    assert bytes_to_touch(Plan((one,), ())) == 9 * MIB  # 9 MiB are five


def test_an_ordinary_user_reserves_nothing() -> None:
    assert pool_pages(Plan((cell("one", MIB, arm("2m", 2 * MIB, "process")),), ())) == {}


def test_root_fills_the_pool_whatever_the_mechanism() -> None:
    """An arm of the mechanism `process` under root found its pool empty, and malloc took base pages without a word."""
    alone = Plan((cell("one", 5 * MIB, arm("2m", 2 * MIB, "process"), arm("other")),), ())
    wanted = pool_pages(alone, privileged=True)
    assert wanted == {(2 * MIB, None): 3}
    (kept,) = without_short_pools(alone, wanted, {(2 * MIB, None): 2}, privileged=True).cells
    assert [each.name for each in kept.arms] == ["base", "other"]
    assert without_short_pools(alone, wanted, wanted, privileged=True) == alone


def test_what_was_granted_in_part_serves_who_it_can() -> None:
    three = Plan((*PLAN.cells, cell("other", 9 * MIB, arm("2m", 2 * MIB), arm("thp"))), ())
    kept = without_short_pools(three, {(2 * MIB, None): 5}, {(2 * MIB, None): 2})
    assert [(each.id, [one.name for one in each.arms]) for each in kept.cells] == [
        ("small", ["base", "2m"]),
        ("other", ["base", "thp"]),
    ]
    reasons = {(left.cell, left.policy): left.reason for left in kept.left_out}
    assert reasons["large", "2m"] == "needs 5 pages of 2m; the kernel granted 2"
    assert "nothing is left" in reasons["large", "*"]


def test_nothing_left_is_an_error_with_a_cure() -> None:
    with pytest.raises(HugewiseError, match="the kernel granted 0") as caught:
        without_short_pools(PLAN, {(2 * MIB, None): 5}, {})
    assert caught.value.hint


def in_guest(
    name: str, pages: Pages, size: int = 4096, source: Literal["memfd", "file"] = "memfd", nodes: tuple[int, ...] = ()
) -> Arm:
    """An arm in a guest whose memory is made of `pages`; its policy promises pages of `size` inside."""
    backing = Backing(pages=pages, source=source, nodes=nodes or None)
    return msgspec.structs.replace(arm(name, size), kernel="k", backing=backing)


def guests(*arms: Arm, together: bool = False, baseline: Pages = "thp") -> Plan:
    made = cell("one", 3 * MIB, *arms, together=together)
    return Plan((msgspec.structs.replace(made, arms=(in_guest("base", baseline), *arms)),), ())


def test_a_guest_takes_its_whole_memory_from_a_pool_of_the_host() -> None:
    plan = guests(in_guest("2m", "hugetlb-2m"), in_guest("file", "hugetlb-2m", source="file"), in_guest("0", "base"))
    assert pool_pages(plan, GIB) == {(2 * MIB, None): 512}
    assert pool_pages(guests(in_guest("1g", "hugetlb-1g"), in_guest("2m", "hugetlb-2m")), 2 * GIB) == {
        (GIB, None): 2,
        (2 * MIB, None): 1024,
    }
    assert pool_pages(guests(in_guest("0", "base"))) == {}


def test_what_a_workload_takes_from_a_pool_is_the_guests_own() -> None:
    assert pool_pages(guests(in_guest("2m", "thp", 2 * MIB)), GIB) == {}
    assert pool_pages(guests(in_guest("2m", "hugetlb-1g", 2 * MIB)), GIB) == {(GIB, None): 1}


def test_guests_that_run_together_need_their_pools_at_once() -> None:
    both = (in_guest("a", "hugetlb-1g"), in_guest("b", "hugetlb-1g"))
    assert pool_pages(guests(*both, together=True), GIB) == {(GIB, None): 2}
    assert pool_pages(guests(*both), GIB) == {(GIB, None): 1}
    plain = in_guest("plain", "base", 2 * MIB)  # its workload takes pages of the guest's own pool
    assert bytes_to_touch(guests(*both, plain, together=True), GIB) == 2 * GIB
    assert bytes_to_touch(guests(*both), GIB) == GIB
    assert bytes_to_touch(guests(*both, together=True, baseline="hugetlb-2m"), GIB) == 0


def test_a_pool_that_was_granted_in_part_serves_as_many_guests_as_it_can() -> None:
    both = (in_guest("a", "hugetlb-1g"), in_guest("b", "hugetlb-1g"))
    together, alone = guests(*both, together=True), guests(*both)
    kept = without_short_pools(together, {(GIB, None): 2}, {(GIB, None): 1}, GIB)
    assert [one.name for one in kept.cells[0].arms] == ["base", "a"]
    assert [left.reason for left in kept.left_out] == ["needs 2 pages of 1g; the kernel granted 1"]
    assert without_short_pools(alone, {(GIB, None): 1}, {(GIB, None): 1}, GIB) == alone
    with pytest.raises(HugewiseError, match="the kernel granted 0"):
        without_short_pools(guests(in_guest("a", "thp"), baseline="hugetlb-1g"), {(GIB, None): 1}, {}, GIB)


def test_a_guest_that_is_bound_takes_its_pages_from_its_nodes() -> None:
    arms = (in_guest("far", "hugetlb-1g", nodes=(1,)), in_guest("both", "hugetlb-1g", nodes=(0, 1)))
    assert pool_pages(guests(*arms), 5 * GIB) == {(GIB, 0): 3, (GIB, 1): 5}
    together = pool_pages(guests(*arms, in_guest("any", "hugetlb-1g"), together=True), 5 * GIB)
    assert together == {(GIB, 0): 3, (GIB, 1): 7, (GIB, None): 5}
    assert by_size({**together, (2 * MIB, 1): 4}) == {GIB: 15, 2 * MIB: 4}
    # Not more nodes than pages; and no pool, no pages.
    assert pool_pages(guests(arms[1], in_guest("thp", "thp", nodes=(1,))), GIB) == {(GIB, 0): 1}


def test_an_arm_is_held_against_what_its_own_nodes_gave() -> None:
    arms = (
        in_guest("far", "hugetlb-1g", nodes=(1,)),
        in_guest("both", "hugetlb-1g", nodes=(0, 1)),
        in_guest("any", "hugetlb-1g"),
    )
    plan = guests(*arms)
    wanted = pool_pages(plan, 4 * GIB)
    kept = without_short_pools(plan, wanted, {(GIB, 0): 2, (GIB, 1): 3, (GIB, None): 4}, 4 * GIB)
    assert [one.name for one in kept.cells[0].arms] == ["base", "both", "any"]
    assert [left.reason for left in kept.left_out] == ["needs 4 pages of 1g on node 1; the kernel granted 3"]
    kept = without_short_pools(plan, wanted, {(GIB, 1): 4, (GIB, None): 3}, 4 * GIB)
    assert [one.name for one in kept.cells[0].arms] == ["base", "far"]
    assert [left.reason for left in kept.left_out] == [
        "needs 2 pages of 1g on node 0; the kernel granted 0",
        "needs 4 pages of 1g; the kernel granted 3",
    ]
    # At once, the first has what the second would need of it.
    together = msgspec.structs.replace(plan.cells[0], together=True)
    kept = without_short_pools(Plan((together,), ()), wanted, {(GIB, 0): 2, (GIB, 1): 5, (GIB, None): 4}, 4 * GIB)
    assert [one.name for one in kept.cells[0].arms] == ["base", "far", "any"]
    assert [left.reason for left in kept.left_out] == ["needs 6 pages of 1g on node 1; the kernel granted 5"]


def residents(wants: int = 4 * MIB) -> Plan:
    """A block of a baseline, an arm on base pages and two of a pool, which are there together."""
    made = cell("one", wants, arm("thp"), arm("2m", 2 * MIB), arm("more", 2 * MIB), together=True)
    return Plan((msgspec.structs.replace(made, kind="interleaved"),), ())


def test_arms_that_all_fit_are_all_resident() -> None:
    plan = residents()
    assert fitting(plan, 20 * MIB) == (plan, ())  # 16 MiB, of 80% that may be used
    assert fitting(plan, None) == (plan, ()), "of memory that is not known nothing is said"


def test_where_not_all_fit_a_block_has_two_and_says_so() -> None:
    plan, (told,) = fitting(residents(), 19 * MIB)
    assert plan.cells[0].at_most == 2
    assert [each.name for each in plan.cells[0].arms] == ["base", "thp", "2m", "more"], "all of them have their blocks"
    for said in ("one: 4 arms at once need 16 MiB", "19 MiB are free", "base and one other arm, which the coin draws"):
        assert said in told


def test_a_run_that_goes_on_has_as_many_in_a_block_as_when_it_began() -> None:
    """Whatever is free by then: whom the coin draws can be made again from what is recorded."""
    whole = residents()
    plan, _ = fitting(whole, 19 * MIB)
    assert as_begun(whole, {"one": (2, 1)}) == plan
    assert as_begun(plan, {"one": (None, 1)}) == whole
    assert as_begun(whole, {"one": (None, 2)}).cells[0].copies == 2
    assert as_begun(_twice(whole), {}).cells[0].copies == 1, "runs of before had one"


def _twice(plan: Plan) -> Plan:
    return Plan(tuple(msgspec.structs.replace(each, copies=2) for each in plan.cells), plan.left_out)


@pytest.mark.parametrize(("free", "copies"), [(40 * MIB, 2), (39 * MIB, 1), (None, 2)])
def test_where_two_copies_of_each_have_no_room_a_block_has_one_and_says_so(free: int | None, copies: int) -> None:
    """Of 80% that may be used: 4 arms of 4 MiB are 32 MiB twice."""
    plan, told = fitting(_twice(residents()), free)
    assert plan.cells[0].copies == copies
    assert plan.cells[0].at_most is None
    assert told == (
        ("one: a block has one copy of each arm, and no control: two of each need 32 MiB, and 39 MiB are free",)
        if copies == 1
        else ()
    )


def test_two_copies_of_more_than_five_arms_cannot_take_turns() -> None:
    many = [arm(f"arm-{number}") for number in range(5)]
    made = msgspec.structs.replace(cell("one", MIB, *many, together=True), kind="interleaved", copies=2)
    plan, (told,) = fitting(Plan((made,), ()), None)
    assert plan.cells[0].copies == 1
    assert told == "one: a block has one copy of each arm, and no control: 10 processes take turns at most"


def test_copies_that_are_there_at_once_have_pages_and_memory_of_their_own() -> None:
    plan = _twice(residents())
    assert pool_pages(plan) == {(2 * MIB, None): 8}
    assert bytes_to_touch(plan) == 16 * MIB
    kept = without_short_pools(plan, pool_pages(plan), {(2 * MIB, None): 7})
    assert [one.name for one in kept.cells[0].arms] == ["base", "thp", "2m"]
    (in_turn,) = _twice(Plan((cell("one", 4 * MIB, arm("2m", 2 * MIB)),), ())).cells
    assert pool_pages(Plan((in_turn,), ())) == {(2 * MIB, None): 2}, "one after the other they have the same pages"
    assert without_short_pools(Plan((in_turn,), ()), {(2 * MIB, None): 2}, {(2 * MIB, None): 2}).left_out == ()


def test_only_residents_of_more_than_two_arms_are_made_fewer() -> None:
    sequential = Plan((cell("one", 4 * MIB, arm("thp"), arm("2m", 2 * MIB)),), ())
    duet = Plan((cell("one", 4 * MIB, arm("thp"), arm("2m", 2 * MIB), together=True),), ())
    pair = cell("one", 4 * MIB, arm("thp"), together=True)
    two = Plan((msgspec.structs.replace(pair, kind="interleaved"),), ())
    for plan in (sequential, duet, two):
        assert fitting(plan, 9 * MIB) == (plan, ())


def test_with_fewer_arms_at_a_time_the_largest_block_is_what_counts() -> None:
    assert pool_pages(residents()) == {(2 * MIB, None): 4}
    assert bytes_to_touch(residents()) == 8 * MIB
    plan, _ = fitting(residents(), 12 * MIB)
    assert pool_pages(plan) == {(2 * MIB, None): 2}, "of two arms of a pool one at a time is there"
    assert bytes_to_touch(plan) == 8 * MIB, "the baseline, and the largest other"
    assert [one.name for one in without_short_pools(plan, pool_pages(plan), {(2 * MIB, None): 2}).cells[0].arms] == [
        *("base", "thp", "2m", "more")
    ]
    all_of_them = without_short_pools(residents(), pool_pages(residents()), {(2 * MIB, None): 2})
    assert [one.name for one in all_of_them.cells[0].arms] == ["base", "thp", "2m"]


def resident(*arms: Arm) -> Cell:
    """A cell whose arms want 9 GiB each and are there at once."""
    return msgspec.structs.replace(cell("r", 9 * GIB, *arms, together=True), kind="interleaved")


def test_who_has_no_room_beside_the_baseline_is_left_out_with_the_cure() -> None:
    """Else both are touched, and the kernel kills whom it likes; one after the other they would have had the room."""
    pooled = arm("2m", 2 * MIB)  # whose pool is asked for by itself
    found, _ = fitting(Plan((resident(arm("thp"), pooled),), ()), 16 * GIB)
    assert [each.name for each in found.cells[0].arms] == ["base", "2m"]
    (left,) = found.left_out
    assert (left.policy, left.reason) == (
        "thp",
        "beside base it needs 18 GiB in all, and 16 GiB are free: in the interleaved design both are there at once;"
        ' [design] kind = "sequential" has one at a time',
    )
    with pytest.raises(HugewiseError, match=r"beside base .* nothing is left to compare") as caught:
        fitting(Plan((resident(arm("thp")),), ()), 16 * GIB)
    assert caught.value.hint == 'free memory; [design] kind = "sequential" has one arm at a time'


def test_one_after_the_other_nobody_has_to_have_room_beside_the_baseline() -> None:
    plan, at_once = Plan((cell("r", 9 * GIB, arm("thp")),), ()), Plan((resident(arm("thp")),), ())
    assert fitting(plan, 16 * GIB) == (plan, ())
    assert fitting(at_once, None) == (at_once, ())
    assert fitting(at_once, 18 * GIB) == (at_once, ())
