"""Cells of aged memory: what they are called, how their arms are judged, and what they ask of the machine."""

from collections import Counter
from typing import Any

import pytest

from hugewise.model.pages import THP
from hugewise.plan import memory
from hugewise.plan.plan import Plan, ageing_refusal, plan
from tests.build.memory import memory_files
from tests.build.studies import SIZES, KnobFiles, policies, study_of, workloads

FILES = {
    **memory_files(normal=[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4000]),
    f"{THP}/hpage_pmd_size": str(2 << 20),
    "/proc/swaps": "Filename Type",
    "/proc/self/cgroup": "4:memory:/\n1:cpu:/",
}


def planned(host: KnobFiles | None = None, use: list[Any] | None = None, **workload: Any) -> Plan:
    study = study_of(policies=use or ["base", "thp"], workload=[{"name": "chase", **workload}])
    return plan(study, policies(), workloads(), host or KnobFiles(FILES), SIZES, "system")


def test_each_age_is_a_cell_in_which_settings_are_judged() -> None:
    made = planned(memory_age=["fresh", "fragmented", "fragmented+pressure"], memory="1g")
    assert [(cell.id, cell.memory_age) for cell in made.cells] == [
        ("chase-fresh", "fresh"),
        ("chase-fragmented", "fragmented"),
        ("chase-fragmented+pressure", "fragmented+pressure"),
    ]
    judged = {cell.id: {arm.judged for arm in cell.arms} for cell in made.cells}
    assert judged == {
        "chase-fresh": {"backing"},
        "chase-fragmented": {"setting"},
        "chase-fragmented+pressure": {"setting"},
    }
    fresh, aged, _ = made.cells
    assert fresh.threshold(fresh.arm("thp")).share == fresh.delivery.share > 0
    assert aged.threshold(aged.arm("thp")).share == 0
    assert aged.proof_wanted(aged.arm("thp"))
    assert [cell.id for cell in planned().cells] == ["chase"]


@pytest.mark.parametrize(
    ("age", "changed", "why"),
    [
        ("fragmented", {f"{THP}/hpage_pmd_size": None}, "no transparent huge pages"),
        ("fragmented", {"/proc/buddyinfo": None}, "/proc/buddyinfo cannot be read"),
        ("fragmented", {"/proc/meminfo": "MemTotal: 2097152 kB\n"}, "has 2 GiB of memory: fragmenting it is for 4 GiB"),
        ("pressure", {"/proc/swaps": None}, "CONFIG_SWAP"),
        ("pressure", {"/proc/self/cgroup": "0::/"}, "no memory cgroup"),
        ("fragmented+pressure", {"/proc/swaps": None}, "CONFIG_SWAP"),
        ("pressure", {"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/cgroup.controllers": "cpu memory"}, None),
        ("fresh", {"/proc/swaps": None, "/proc/buddyinfo": None}, None),
    ],
)
def test_a_host_that_cannot_have_it_says_why(age: Any, changed: dict[str, str | None], why: str | None) -> None:
    files = {path: text for path, text in {**FILES, **changed}.items() if text is not None}
    found = ageing_refusal(age, KnobFiles(files))
    assert (found is None) == (why is None)
    assert found is None or (why or "") in found


def test_what_is_refused_is_left_out_and_the_rest_runs() -> None:
    files = {path: text for path, text in FILES.items() if path != "/proc/swaps"}
    made = planned(KnobFiles(files), memory_age=["fresh", "pressure"], memory="1g")
    assert [cell.id for cell in made.cells] == ["chase-fresh"]
    assert [(left.cell, left.reason) for left in made.left_out] == [
        ("chase-pressure", "the kernel has no swap (CONFIG_SWAP)")
    ]
    user = planned(KnobFiles(FILES, root=False), memory_age="fragmented")
    assert "needs root" in user.left_out[0].reason


def test_swap_holds_what_the_limit_does_not() -> None:
    made = planned(memory_age=["fresh", "pressure"], memory="64m")
    (_, pressed) = made.cells
    known = pressed.workload.memory(pressed.arms[0].treatment, pressed.values)
    assert memory.swap_bytes(made.cells) >= max(64 << 20, known)
    assert memory.swap_bytes(made.cells) % (1 << 20) == 0
    assert memory.swap_bytes(made.cells[:1]) == 0
    assert memory.need(pressed) == min(known, 64 << 20) or known == 0


def test_cells_of_one_age_have_some_blocks_in_a_row_and_all_are_served() -> None:
    cells = planned(memory_age=["fragmented", "fresh"]).cells
    closed: Counter[str] = Counter()
    order = []
    for _ in range(20):
        order.append(memory.due(cells, closed).memory_age)
        closed[memory.due(cells, closed).id] += 1
    assert order == [*["fresh"] * 4, *["fragmented"] * 4] * 2 + ["fresh"] * 4
    fresh = planned(parameters={"loads": [5, 7]}).cells
    closed.clear()
    for _ in range(4):
        closed[memory.due(fresh, closed).id] += 1
    assert set(closed.values()) == {2}  # block by block, as ever


def test_what_it_costs_is_told_before() -> None:
    host = KnobFiles(FILES)
    assert memory.costs(planned().cells, host) == ()
    told = memory.costs(planned(memory_age=["fresh", "fragmented+pressure"], memory="64m").cells, host)
    assert "fragmented for chase-fragmented+pressure: about 40 s the first time, and again after" in told[0]
    assert "6 GiB of available memory stay for others" in told[0]
    assert told[1].startswith("a swap file of ")
