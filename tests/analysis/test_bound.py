"""The upper end of what page sizes can win, on recorded vectors; the vendor's own formulas beside it.

The reference formulas are those of intel/perfmon (6dadedf3aa48), as they stand there, clips and all: DTLB_Load, Page
Walks Utilization, and Load_STLB_Hit, which is what DTLB_Load has beyond the cycles of walks.
"""

import dataclasses

import pytest

from hugewise.analysis.causes import ModeCounts, bound, lost, tlb_cost
from hugewise.machine import pmu
from hugewise.machine.pmu import ProcessorFamily
from hugewise.model.cause import Bound, FaultTime
from hugewise.model.metric import SUMS
from tests.build import known

NO_FAULTS = FaultTime(faults=0, low=0.0, typical=0.0, high=0.0)

# A pointer chase: most cycles walk, and nearly all of them wait for the cache as well.
CHASE = ModeCounts(
    cycles=1e9,
    instructions=2e8,
    walk_cycles=3e8,
    walks=1e7,
    fetch_walks=1e4,
    stlb_hits=2e7,
    fetch_stlb_hits=1e5,
    fetch_stalls=2e6,
    nested_walk_cycles=1e8,
    walkers_busy=4e8,
)
QUIET = ModeCounts(
    cycles=1e8, walk_cycles=1e6, walks=1e4, fetch_walks=1e3, stlb_hits=1e5, fetch_stalls=0, nested_walk_cycles=0
)


def family(name: str) -> ProcessorFamily:
    return next(one for one in pmu.every() if one.name == name)


def recorded(name: str, counts: ModeCounts = CHASE) -> ModeCounts:
    """Of the counts those that the family has events of."""
    events = {*family(name).events, "cycles", "instructions"}
    sums = {one.metric.name.removesuffix("_user"): one.roles for one in SUMS if one.mode == "user"}
    lacking = {field: None for field, roles in sums.items() if not events & set(roles)}
    return dataclasses.replace(counts, **{key: value for key, value in lacking.items() if hasattr(counts, key)})


def dtlb_load(c: float, hits: float, walk_active: float, *, mem_any: float, l1d_miss: float, clocks: float) -> float:
    """Intel's TMA, Skylake and later."""
    return min(c * hits + walk_active, max(mem_any - l1d_miss, 0)) / clocks


def of(
    name: str, user: ModeCounts = CHASE, kernel: ModeCounts = QUIET, *, guest: bool = False, **changes: object
) -> Bound:
    given: dict[str, object] = {"times": (0.9, 0.1), "faults": NO_FAULTS, "won": 0.2, **changes}
    mine = recorded(name, user), recorded(name, kernel)
    return bound(family(name), *mine, guest=guest, **given)  # type: ignore[arg-type]


def shares(name: str, counts: ModeCounts = CHASE, *, guest: bool = False) -> dict[str, float]:
    found = lost(family(name), recorded(name, counts), guest=guest)
    assert not isinstance(found, str), found
    return {key: round(value, 6) for key, value in found.items()}


def test_the_vendors_clip_makes_no_bound_and_a_negative_part() -> None:
    own = sum(shares("Sapphire Rapids").values())
    clipped = dtlb_load(7, 2e7, 3e8, mem_any=5e8, l1d_miss=4.5e8, clocks=1e9)
    assert clipped == 0.05, "memory is waited for anyway, so that little is left to TMA"
    assert clipped - 3e8 / 1e9 == pytest.approx(-0.25), "Load_STLB_Hit is negative"
    assert dtlb_load(7, 2e7, 3e8, mem_any=4e8, l1d_miss=4.5e8, clocks=1e9) == 0, "and all of it can be clipped"
    unclipped = dtlb_load(7, 2e7, 3e8, mem_any=1e9, l1d_miss=0, clocks=1e9)
    assert own >= unclipped == pytest.approx(0.44)


@pytest.mark.parametrize(
    ("name", "walks", "hits"),
    [
        # C x hits: 8 Haswell and Broadwell, 9 Skylake and Cascade Lake, 7 from Ice Lake on; fetches 14 a hit, later the
        # cycles in which they wait.
        ("Haswell server", 0.3, 8 * 0.02 + 14 * 0.0001),
        ("Broadwell server", 0.3 + 7 * (0.01 + 0.00001), 8 * 0.02 + 14 * 0.0001),
        ("Skylake server", 0.3, 9 * 0.02 + 0.002),
        ("Cascade Lake", 0.3, 9 * 0.02 + 0.002),
        ("Ice Lake server", 0.3, 7 * 0.02 + 0.002),
        ("Sapphire Rapids", 0.3, 7 * 0.02 + 0.002),
        ("Granite Rapids", 0.3, 7 * 0.02 + 0.002),
    ],
)
def test_the_constants_are_the_familys(name: str, walks: float, hits: float) -> None:
    assert shares(name) == {"walks": round(walks, 6), "hits": round(hits, 6)}
    told = of(name)
    assert (told.stlb_cycles, told.family) == (family(name).stlb_cycles, name)


@pytest.mark.parametrize(
    ("name", "busy"),
    [
        ("Haswell server", 0.3),  # one walker, which is busy while a walk is under way
        ("Broadwell server", (0.4 + 0.1 + 7 * 0.01) / 2),
        ("Skylake server", (0.4 + 0.1) / 2),
        ("Sapphire Rapids", 0.4 / 4),
    ],
)
def test_walkers_are_busy_by_how_many_there_are(name: str, busy: float) -> None:
    assert tlb_cost(family(name), recorded(name)).busy == pytest.approx(busy)
    assert tlb_cost(family("Zen 4"), CHASE).busy is None


def test_a_sum_over_walks_is_no_time_with_a_walk_under_way() -> None:
    for name in ("Neoverse N3", "Neoverse V3", "Sierra Forest"):
        assert "load_walk_cycles" not in family(name).events, "1.7 walks at once would be 170% of the cycles"
        found = tlb_cost(family(name), ModeCounts(cycles=100.0, walkers_busy=170.0))
        assert (found.under_way, found.busy, found.walk_share) == (1.7, None, None)


def test_nested_walks_are_added_where_an_event_counts_them_and_only_in_a_guest() -> None:
    assert "nested walks" not in shares("Skylake server")
    assert shares("Skylake server", guest=True)["nested walks"] == 0.1
    assert shares("Haswell", guest=True)["nested walks"] == 0.1
    there = of("Skylake server", guest=True)
    here = of("Skylake server")
    assert known(there.upper) - known(here.upper) == pytest.approx(0.09)
    assert known(there.nested) == pytest.approx(0.09)
    assert here.nested is None
    without = of("Skylake server", ModeCounts(cycles=1e9, walk_cycles=1, stlb_hits=1), guest=True)
    assert (without.upper, without.why) == (None, "not all of its nested walks were counted")


@pytest.mark.parametrize(
    ("name", "guest", "why"),
    [
        ("Zen 4", False, "AMD processors count page walks, not their cycles"),
        ("Zen 1", True, "AMD processors count page walks, not their cycles"),
        ("Ice Lake server", True, "in a guest on Ice Lake server walks go through the hypervisor's page tables too"),
        ("Sapphire Rapids", True, "in a guest on Sapphire Rapids"),
        ("Granite Rapids", True, "in a guest on Granite Rapids"),
        ("Neoverse N1", False, "Arm processors have no event of the cycles with a walk under way"),
        ("Neoverse N3", False, "Arm processors have no event of the cycles with a walk under way"),
        ("Sierra Forest", False, "no cost of a hit in the second level of the TLB is published for Sierra Forest"),
    ],
)
def test_where_no_bound_can_be_had_that_is_said(name: str, guest: bool, why: str) -> None:
    found = of(name, guest=guest)
    assert found.upper is None
    assert found.why.startswith(why)
    assert found.parts == {"kernel": 0.1}, "of faults it is known: no more than the time in the kernel"
    assert found.won == 0.2


def test_without_a_pmu_the_reason_is_the_probes() -> None:
    found = of("Zen 4", uncounted="not offered by this processor or its hypervisor")
    assert (found.upper, found.why) == (None, "not offered by this processor or its hypervisor")
    unknown = bound(None, CHASE, QUIET, times=(1.0, 0.0), faults=NO_FAULTS, guest=False, won=None)
    assert unknown.why == "the events of its processor are not in the table of families"
    skylake, user = family("Skylake server"), recorded("Skylake server")
    timeless = bound(skylake, user, ModeCounts(), times=(None, None), faults=NO_FAULTS, guest=False, won=None)
    assert timeless.why.startswith("how its time divides")


def test_modes_are_weighted_by_their_time_and_faults_are_added() -> None:
    price = FaultTime(faults=9, low=0.02, typical=0.04, high=0.06)
    found = of("Skylake server", times=(1.8, 0.2), faults=price)  # seconds, of which the parts are shares
    assert found.parts["walks in user mode"] == pytest.approx(0.9 * 0.3)
    assert found.parts["hits in user mode"] == pytest.approx(0.9 * 0.182)
    assert found.parts["walks in the kernel"] == pytest.approx(0.1 * 0.01)
    assert found.parts["hits in the kernel"] == pytest.approx(0.1 * 0.009)
    assert found.parts["faults by the most that one cost here"] == pytest.approx(0.03)
    assert found.upper == pytest.approx(sum(found.parts.values()))
    untold = of("Skylake server", times=(None, None))
    assert untold.parts["walks in user mode"] == pytest.approx(10 / 11 * 0.3), "by the cycles of each mode"
    hits = ModeCounts(cycles=1e9, walk_cycles=9e8, stlb_hits=1e9, fetch_stalls=0)
    assert known(of("Skylake server", hits, times=(1.0, 0.0)).upper) == pytest.approx(1.0), "no more than all"


def test_what_the_kernel_cost_is_never_more_than_its_time() -> None:
    heavy = of("Skylake server", kernel=CHASE, faults=FaultTime(faults=9, low=1, typical=1, high=1))
    in_kernel = sum(share for name, share in heavy.parts.items() if "user" not in name)
    assert in_kernel == pytest.approx(0.1)
    uncounted = of("Skylake server", kernel=ModeCounts())
    assert uncounted.parts["all of the kernel's time"] == 0.1


def test_what_was_not_counted_makes_no_bound() -> None:
    partial = ModeCounts(cycles=1e9, walk_cycles=3e8)
    reason = "not all of its cycles, walks, hits and waits of fetching were counted"
    assert lost(family("Skylake server"), partial, guest=False) == reason
    # Nothing that is missing stands for 0: the end would be far too low.
    waits = recorded("Skylake server", dataclasses.replace(CHASE, fetch_stalls=None))
    assert lost(family("Skylake server"), waits, guest=False) == reason
    hits = recorded("Haswell", dataclasses.replace(CHASE, fetch_stlb_hits=None))
    assert lost(family("Haswell"), hits, guest=False) == reason
    assert tlb_cost(family("Skylake server"), dataclasses.replace(CHASE, nested_walk_cycles=None)).busy is None
    assert tlb_cost(family("Broadwell"), dataclasses.replace(CHASE, walks=None)).busy is None
    no_walks = ModeCounts(cycles=1e9, walk_cycles=3e8, stlb_hits=1.0, fetch_stalls=0.0, fetch_stlb_hits=0.0)
    assert isinstance(lost(family("Skylake server"), no_walks, guest=False), dict)
    assert isinstance(lost(family("Broadwell server"), no_walks, guest=False), str), "7 a completed walk"
