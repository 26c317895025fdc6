"""What stands behind a comparison: on attempts whose times and counts are known, and on what others published."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from hugewise.analysis.causes import Processor, causes, cpu_split, fault_time
from hugewise.machine import pmu
from hugewise.model.cause import Cause, FaultPrice
from hugewise.model.metric import NO_CGROUP, NOT_IN_EMULATION, Metric
from hugewise.model.over_time import ArmStall, Stall
from hugewise.model.results import Verdict
from hugewise.model.trial import Block
from tests.build.results import comparison, summary
from tests.build.trials import LOWER, attempt, delivery

COSTS = (FaultPrice(4096, 1.5e3, 2e3, 2.5e3), FaultPrice(2 << 20, 1.5e5, 2e5, 2.5e5))
NO_PMU = Processor(costs=COSTS, uncounted="not offered by this processor or its hypervisor")


def machine(name: str, **changes: Any) -> Processor:
    return Processor(family=next(one for one in pmu.every() if one.name == name), costs=COSTS, **changes)


def blocks(base: Mapping[str, float], arm: Mapping[str, float], *, count: int = 30, sd: float = 0.005) -> list[Block]:
    """Pairs with these metrics, the times of which are spread a little."""
    random = np.random.default_rng(5)

    def spread(metrics: Mapping[str, float]) -> dict[str, float | None]:
        return {
            name: value * float(1 + random.normal(0, sd)) if name.endswith("_s") else value
            for name, value in metrics.items()
        }

    def one(name: str, metrics: Mapping[str, float], number: int, size: int) -> Any:
        backed = delivery(coverage={f"anon:{size}": 64 << 20})
        wall = {"wall_s": metrics.get("user_s", 0.0) + metrics.get("system_s", 0.0)}  # one busy thread
        return attempt(
            name, 1.0, block=number, metrics={"ns_per_load": 1.0, **wall, **spread(metrics)}, delivery=backed
        )

    return [
        Block(
            number=number,
            cell="chase",
            state="complete",
            reason=None,
            attempts=(one("base", base, number, 4096), one("thp", arm, number, 2 << 20)),
        )
        for number in range(count)
    ]


def cause(
    base: Mapping[str, float],
    arm: Mapping[str, float],
    of: Processor = NO_PMU,
    *,
    verdict: Verdict = "better",
    ratio: float = 0.8,
    metric: Metric = LOWER,
    **changes: Any,
) -> Cause:
    made = blocks(base, arm, **changes)
    attempts = [one for block in made for one in block.attempts]
    arms = {name: summary(name, attempts, "ns_per_load") for name in ("base", "thp")}
    compared = comparison("thp", "ns_per_load", verdict, ratio=ratio, low=ratio - 0.05, high=ratio + 0.05, planned=30)
    return causes(metric, (compared,), made, arms, of)[0]


def test_memory_that_was_touched_before_the_clock_leaves_walks() -> None:
    found = cause(
        {"user_s": 1.0, "system_s": 0.001, "page_faults": 0}, {"user_s": 0.6, "system_s": 0.001, "page_faults": 2}
    )
    assert (found.told, found.by, found.share) == ("walks", "memory touched before", 0.0)
    assert found.delivered[0] == 0
    assert found.delivered[1] == pytest.approx(1.0)
    assert found.bound.won == pytest.approx(0.15), "at least: the end of its interval"


@pytest.mark.parametrize(
    ("metric", "verdict", "won"),
    [
        (LOWER, "better", 0.15),
        (LOWER, "undecided", None),
        (LOWER, "worse", None),
        (Metric("ops_per_s", "ops/s", "higher", ""), "better", 1 - 1 / 0.75),
        (Metric("p999_us", "us", "lower", ""), "better", None),
        (Metric("latency_p99_ms", "ms", "lower", ""), "better", None),
        (Metric("footprint_bytes", "bytes", "lower", ""), "better", None),
        (Metric("page_faults", "faults", "lower", ""), "better", None),
        (Metric("dtlb_mpki", "misses/1000", "lower", ""), "better", None),
    ],
)
def test_what_was_won_is_time_and_only_where_a_gain_is_shown(
    metric: Metric, verdict: Verdict, won: float | None
) -> None:
    found = cause({"user_s": 1.0, "system_s": 0.1}, {"user_s": 0.8, "system_s": 0.1}, verdict=verdict, metric=metric)
    assert found.bound.won == (None if won is None else pytest.approx(won))


def test_the_kernels_part_of_what_is_saved_is_told_with_its_interval() -> None:
    found = cause(
        {"user_s": 1.0, "system_s": 0.5, "page_faults": 200_000}, {"user_s": 1.0, "system_s": 0.1, "page_faults": 500}
    )
    assert (found.told, found.by) == ("faults", "CPU time")
    assert found.low is not None and found.high is not None
    assert found.low < 1 < found.high + 0.1
    assert found.faults[0].typical == pytest.approx(0.4), "200,000 at 2 us"
    assert found.faults[1].typical == pytest.approx((32 * 2e5 + 468 * 2e3) / 1e9), "32 of 2 MiB, the others small"
    assert [one.what for one in found.unseen] == ["page walks and their cycles"]


def test_few_pairs_are_told_by_what_a_fault_costs() -> None:
    base, arm = {"user_s": 0.01, "system_s": 0.4, "page_faults": 180_000}, {"user_s": 0.01, "system_s": 0.03}
    found = cause(base, {**arm, "page_faults": 500}, count=4)
    assert (found.told, found.by) == ("faults", "cost of a fault")
    assert found.low is not None and found.high is not None
    assert 0.5 < found.low < found.high
    cheap = cause({**base, "page_faults": 1000}, {**arm, "page_faults": 500}, count=4)
    assert (cheap.told, "of what differs" in cheap.why) == ("not told apart", True), "nor is it walks"
    wide = cause({**base, "page_faults": 100_000}, {**arm, "page_faults": 500}, count=4)
    assert wide.told == "not told apart", "the spread of the cost reaches over half"


def test_counters_tell_walks_from_faults() -> None:
    base = {"user_s": 1.0, "system_s": 0.2, "page_faults": 90_000, "cycles_user": 3e9, "cycles_kernel": 6e8}
    arm = {"user_s": 0.7, "system_s": 0.19, "page_faults": 80_000, "cycles_user": 2.1e9, "cycles_kernel": 5.7e8}
    skylake = machine("Skylake server")
    walking = {"walk_cycles_user": 1e9, "walk_share_user": 1 / 3, "stlb_hits_user": 1e7, "fetch_stalls_user": 0.0}
    resting = {"walk_cycles_user": 1e8, "walk_share_user": 0.05, "stlb_hits_user": 1e5, "fetch_stalls_user": 0.0}
    found = cause({**base, **walking}, {**arm, **resting}, skylake)
    assert (found.told, found.by) == ("walks", "counters")
    assert found.user[0].walk_share == pytest.approx(1 / 3)
    assert found.bound.upper is not None
    assert found.bound.upper > found.bound.parts["walks in user mode"] > 0.2
    nothing = cause({**base, **walking}, {**arm, **walking, "cycles_kernel": 6e8}, skylake)
    assert nothing.told == "neither", "what was saved is in neither of the two"


def test_no_difference_is_explained_by_nothing() -> None:
    same = {"user_s": 1.0, "system_s": 0.0, "page_faults": 0}
    assert cause(same, same, verdict="equivalent", ratio=1.0).told == "neither"
    open_ = cause(same, same, verdict="undecided", ratio=1.0)
    assert (open_.told, "not seen to differ" in open_.why) == ("not told apart", True)


def test_what_was_not_counted_is_named_with_its_reason() -> None:
    found = cause({}, {}, machine("Zen 4"))
    whats = {one.what: one.why for one in found.unseen}
    assert "AMD processors count page walks, not their cycles" in whats["cycles of page walks"]
    assert "the kernel's part of the CPU time" in whats
    bare = cause({}, {}, Processor(uncounted="no PMU"))
    assert {one.what for one in bare.unseen} >= {"page walks and their cycles", "the time of a page fault"}


@pytest.mark.parametrize(("why", "cured"), [(NO_CGROUP, True), ("its CPU time was counted as a whole", False)])
def test_a_cgroup_is_the_cure_where_there_was_none_alone(why: str, cured: bool) -> None:
    (one,) = blocks({}, {}, count=1)
    uncounted = tuple(replace(each, absent={"system_s": why}) for each in one.attempts)
    (found,) = causes(
        LOWER, (comparison("thp", "ns_per_load", "undecided"),), [replace(one, attempts=uncounted)], {}, NO_PMU
    )
    assert found.why.endswith(f"({why})")
    assert ("a control group of its own" in found.would) == cured


def test_the_slowest_operations_stand_with_what_fell_into_their_seconds() -> None:
    def stall(arm: str, *unusual: str, events: bool = True) -> ArmStall:
        seen = Stall(at_s=1.0, latency_s=0.1, server="", operations=1, events={"begun": 1.0} if events else {})
        return ArmStall(arm=arm, block=1, number=1, stall=seen, unusual=unusual)

    stalls = (
        stall("thp", "huge_bytes_cleared", "begun"),
        stall("thp", "huge_bytes_cleared"),
        stall("thp", events=False),
        stall("base", "compaction_pages"),
    )
    compared = comparison("thp", "ns_per_load", "worse", ratio=1.2)
    (found,) = causes(LOWER, (compared,), [], {}, NO_PMU, stalls=stalls)
    assert found.slowest == 2, "one was not lined up with anything"
    assert sorted(found.slow_with.values()) == [1, 2]
    assert found.slow_with["bytes in huge pages of any size that faults were given"] == 2


def test_what_was_won_of_time_is_no_share_of_cpu_time_where_threads_idle() -> None:
    busy = {"user_s": 1.0, "system_s": 0.1}
    assert cause(busy, busy).bound.won is not None
    assert cause({**busy, "wall_s": 4.0}, busy).bound.won is None, "it waited for most of its time"
    assert cause({**busy, "wall_s": 0.2}, busy).bound.won is None, "five threads"


def test_of_an_emulated_guest_nothing_is_asked_that_no_run_could_give() -> None:
    made = [
        Block(number=number, cell="chase", state="complete", reason=None, attempts=tuple(
            attempt(name, 1.0, block=number, metrics={"ns_per_load": 1.0, "system_s": None, "user_s": None},
                    absent={"system_s": NOT_IN_EMULATION, "user_s": NOT_IN_EMULATION})
            for name in ("base", "thp")
        ))
        for number in range(3)
    ]  # fmt: skip
    compared = comparison("thp", "ns_per_load", "better", ratio=0.8)
    (found,) = causes(LOWER, (compared,), made, {}, Processor.of({}, guests=True))
    assert found.told == "not told apart"
    assert (NOT_IN_EMULATION in found.why, found.would) == (True, "")
    assert NOT_IN_EMULATION in {one.why for one in found.unseen}


def test_the_age_of_the_memory_stands_in_each_cause_unless_it_was_fresh() -> None:
    compared = comparison("thp", "ns_per_load", "better", ratio=0.8)
    aged = causes(LOWER, (compared,), [], {}, NO_PMU, memory_age="fragmented")
    assert "the time of a page fault" in {one.what for one in aged[0].unseen}, "it waits for compaction there"
    assert (aged[0].memory_age, causes(LOWER, (compared,), [], {}, NO_PMU)[0].memory_age) == ("fragmented", "")


def test_a_machine_is_what_the_run_recorded() -> None:
    host = {
        "cpu": {"vendor": "GenuineIntel", "family": "6", "model_number": "85", "stepping": "4"},
        "virtualisation": {"hypervisor": True},
        "pages": {"base": 16384},
        "pmu": {"slots": 4, "why": None},
        "fault_costs": [{"size": 16384, "low": 1.0, "typical": 2.0, "high": 3.0}],
    }
    found = Processor.of(host)
    assert found.family is not None
    assert (found.family.name, found.guest, found.uncounted, found.base) == ("Skylake server", True, "", 16384)
    assert found.costs == (FaultPrice(16384, 1.0, 2.0, 3.0),)
    older = Processor.of({"cpu": {"vendor": "AuthenticAMD", "family": "26", "model_number": "2"}})
    assert (older.uncounted, older.costs) == ("its run did not ask the processor", ())
    broken = Processor.of({"pmu": "no", "cpu": 3, "pages": None, "fault_costs": [{"size": "x"}]})
    assert (broken.family, broken.costs, broken.base) == (None, (), 4096)
    assert Processor.of(host, guests=True).uncounted.startswith("the processor of its guests")


def test_faults_cost_what_their_size_costs() -> None:
    small = fault_time(1000, {"anon:4096": 4_096_000}, COSTS)
    assert (small.low, small.typical, small.high) == pytest.approx((1.5e-3, 2e-3, 2.5e-3))
    mixed = fault_time(110, {"anon:2097152": 10 * (2 << 20), "anon:4096": 409_600, "hugetlb:2097152": 1 << 30}, COSTS)
    assert mixed.typical == pytest.approx((10 * 2e5 + 100 * 2e3) / 1e9)
    between = fault_time(1, {"anon:65536": 65536}, COSTS)
    assert between.typical == pytest.approx((2e3 + (65536 - 4096) / ((2 << 20) - 4096) * (2e5 - 2e3)) / 1e9)
    assert fault_time(None, {}, COSTS).typical is None
    assert fault_time(5, {}, ()).typical is None


def test_costs_are_by_the_size_that_faults_were_served_with() -> None:
    rounds = [(32 << 20, 8192, 16_384_000), (32 << 20, 8193, 24_579_000), (32 << 20, 16, 3_200_000), (32 << 20, 700, 9)]
    base, huge = FaultPrice.of(rounds)
    assert (base.size, base.low, base.high) == (4096, 2000.0, 3000.0)
    assert (huge.size, huge.typical) == (2 << 20, 200_000.0)
    assert FaultPrice.of([(32 << 20, 0, 5)]) == []


# What others published of counters on two layouts of memory: (name, family, before, after, time after / before).
# Sources: unordered_dense #231, #269 and #270; two reports of 2026 with perf's native events on AMD; a scan of files on
# Intel ("80% of the gain is faults, 20% TLB").
PUBLISHED = [
    ("chase on Genoa-X", "Zen 4", {"walks_user": 1.18e9}, {"walks_user": 4.9e6}, 17.3 / 20.5),
    (
        "loader on Threadripper",
        "Zen 5",
        {"walks_user": 5.668e6, "stlb_hits_user": 11.603e6 - 5.668e6, "cycles_user": 11.208e9},
        {"walks_user": 2.152e6, "stlb_hits_user": 7.788e6 - 2.152e6, "cycles_user": 10.382e9},
        0.879 / 1.054,
    ),
    (
        "look-up in a table of 800,000",
        "Zen 4",
        {"stlb_hits_user": 1_595_516_981.0},
        {"stlb_hits_user": 14_881_142.0},
        13.32 / 17.10,
    ),
    (
        "scan of files on Intel",
        "Skylake server",
        {"page_faults": 16_086.0, "walk_cycles_user": 21.3e6, "walks_user": 830_539.0},
        {"page_faults": 586.0, "walk_cycles_user": 0.7e6, "walks_user": 18_733.0},
        0.8,
    ),
]


@pytest.mark.parametrize(
    ("name", "processor", "before", "after", "ratio"), PUBLISHED, ids=[row[0] for row in PUBLISHED]
)
def test_published_counts_move_the_way_that_the_time_does(
    name: str, processor: str, before: dict[str, float], after: dict[str, float], ratio: float
) -> None:
    timed = {"user_s": 1.0, "system_s": 0.0}
    found = cause({**timed, **before}, {**timed, "user_s": ratio, **after}, machine(processor), ratio=ratio)
    assert found.bound.won is not None and found.bound.won > 0
    first, then = found.user
    counted = [(first.walks, then.walks), (first.stlb_hits, then.stlb_hits)]
    moved = [(one, other) for one, other in counted if one is not None and other is not None]
    assert moved, "a cost that is hits of the second level alone must be seen too"
    assert all(other < one for one, other in moved)
    if processor.startswith("Zen"):
        assert (found.bound.upper, "not their cycles" in found.bound.why) == (None, True)


def test_of_the_published_scan_faults_are_the_larger_part() -> None:
    # 103 M cycles were saved, as 20% of it are the 20.6 M of walks; at 3 GHz. A fault costs what it costs here.
    base = {"user_s": 0.021, "system_s": 0.040, "page_faults": 16_086, "walk_cycles_user": 21.3e6}
    arm = {"user_s": 0.0141, "system_s": 0.0126, "page_faults": 586, "walk_cycles_user": 0.7e6}
    cycles = [{"cycles_user": 3e9 * side["user_s"], "cycles_kernel": 3e9 * side["system_s"]} for side in (base, arm)]
    found = cause({**base, **cycles[0]}, {**arm, **cycles[1]}, machine("Skylake server"))
    assert found.share is not None
    assert found.told in ("faults", "both")
    assert found.share > 0.5, "faults before walks, as published"
    estimate = found.faults[0], found.faults[1]
    assert estimate[0].low is not None and estimate[1].high is not None
    assert estimate[0].low - estimate[1].high > 20.6e6 / 3e9, "what the faults saved is more than all walks"


def test_a_control_within_one_percent_is_explained_by_nothing() -> None:
    # `iterate` over 125 KB, Zen 4: 0.999 to 1.000 of the time.
    same = {"user_s": 1.0, "system_s": 0.0, "page_faults": 0, "stlb_hits_user": 1000.0}
    found = cause(same, {**same, "user_s": 0.9995}, machine("Zen 4"), verdict="equivalent", ratio=0.9995)
    assert found.told == "neither"
    assert abs(found.bound.won or 0.0) < 0.01


def pairs(kernel: float, all_: float, *, count: int = 40, sd: float = 0.01) -> list[tuple[float, float]]:
    random = np.random.default_rng(3)
    return [
        ((system := kernel + float(random.normal(0, sd))), system + all_ - kernel + float(random.normal(0, sd)))
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("kernel", "all_", "told"), [(0.4, 0.4, "faults"), (0.0, 0.4, "walks"), (0.2, 0.4, "both"), (-0.4, -0.4, "faults")]
)
def test_the_larger_part_is_told(kernel: float, all_: float, told: str) -> None:
    found = cpu_split(pairs(kernel, all_), 40)
    assert found.told == told
    assert found.low is not None and found.high is not None and found.saved is not None
    assert found.low <= kernel / all_ <= found.high
    assert found.saved == pytest.approx(all_, abs=0.01)


def test_what_the_pairs_do_not_show_is_not_told() -> None:
    nothing = cpu_split(pairs(0.0, 0.0), 40)
    assert (nothing.told, nothing.why, nothing.would) == (
        "",
        "its CPU time is not seen to differ",
        "more than 40 pairs",
    )
    few = cpu_split(pairs(0.4, 0.4, count=2), 2)
    assert few.told == ""
    assert cpu_split([], 40).why == "the kernel's part of its CPU time was not counted"
