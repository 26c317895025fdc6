"""Plans of studies whose arms run in guests: each kernel with its own pages, and only what emulation counts exactly."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from hugewise.errors import StudyError
from hugewise.guests.counted import Survey, SurveyedHost
from hugewise.host.knob import NODES
from hugewise.host.pool import pool_folder
from hugewise.machine import programs
from hugewise.model.guest import Backing
from hugewise.model.pages import THP
from hugewise.model.results import LeftOut
from hugewise.plan.arms import Platform
from hugewise.plan.plan import EVERY, Cell, Plan, plan
from hugewise.workloads.command import WORKLOAD as COMMAND
from tests.build import known
from tests.build.studies import SIZES, FakeWorkload, KnobFiles, policies, study_of, workloads

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# Of the host: QEMU's advice has an effect, and it has pools.
ADVISED = {f"{THP}/enabled": "always [madvise] never"}
POOLS = {f"{pool_folder(size)}/nr_hugepages": "0" for size in (2 * MIB, GIB)}
KERNELS = [{"name": "4k", "package": "linux-image-arm64"}, {"name": "16k", "package": "linux-image-arm64-16k"}]


def survey(page: int, pmd: int, *mthp: int) -> Survey:
    by_name = {
        f"{THP}/enabled": "always [madvise] never",
        f"{THP}/defrag": "always defer defer+madvise [madvise] never",
        f"{THP}/hpage_pmd_size": str(pmd),
    }
    for size in (*mthp, pmd):
        by_name[f"{THP}/hugepages-{size >> 10}kB/enabled"] = "always inherit madvise [never]"
    return Survey(release="6.12.0", page_size=page, files=by_name)


@dataclass
class House:
    """A `arms.GuestHouse`: kernels by name, as their surveys found them, or why there is none."""

    surveys: dict[str, Survey | str] = field(
        default_factory=lambda: {
            "4k": survey(4 * KIB, 2 * MIB, 16 * KIB, 64 * KIB),
            "16k": survey(16 * KIB, 32 * MIB, 64 * KIB, 2 * MIB),
        }
    )
    emulated: bool = True
    counting: bool = False
    pending: bool = False
    memory: int = GIB
    inside: bool = False

    def machine(self, kernel: str) -> Platform | str:
        found = self.surveys[kernel]
        return found if isinstance(found, str) else Platform(SurveyedHost(found, kernel), found.sizes, "system")

    @contextmanager
    def within(self) -> Iterator[None]:
        self.inside = True
        yield
        self.inside = False


def planned(
    house: House | None = None,
    *,
    use: list[Any] | None = None,
    workload: dict[str, Any] | None = None,
    guest: dict[str, Any] | None = None,
    registry: dict[str, Any] | None = None,
    host: KnobFiles | None = None,
    **more: Any,
) -> Plan:
    study = study_of(
        policies=use or ["base", {"name": "base-16k", "from": "base", "kernel": "16k"}],
        guest={"arch": "arm64", **(guest or {})},
        kernel=KERNELS,
        workload=[workload or {"name": "fault", "parameters": {"bytes": "64m"}}],
        **more,
    )
    # The host's policies would be these; guests have those of their kernels.
    host = host or KnobFiles(ADVISED | POOLS)
    return plan(study, policies(), registry or workloads(), host, SIZES, "process", house or House())


def only(made: Plan) -> Cell:
    (cell,) = made.cells
    return cell


def test_an_arm_has_the_policies_and_pages_of_its_kernel() -> None:
    use = [
        "base",
        "mthp-64k",
        {"name": "16k", "from": "base", "kernel": "16k"},
        {"name": "16k-2m", "from": "mthp-2m", "kernel": "16k"},
        {"name": "16k-thp", "from": "thp", "kernel": "16k"},
    ]
    made = planned(use=use)
    assert made.left_out == ()
    arms = only(made).arms
    assert [(a.name, a.kernel, a.treatment.target.kind, a.treatment.target.size) for a in arms] == [
        ("base", "4k", "base", 4 * KIB),
        ("mthp-64k", "4k", "mthp", 64 * KIB),
        ("16k", "16k", "base", 16 * KIB),
        ("16k-2m", "16k", "mthp", 2 * MIB),
        ("16k-thp", "16k", "thp", 32 * MIB),
    ]
    # Whoever runs hugewise, its guests' knobs can be turned.
    assert {arm.treatment.mechanism for arm in only(made).arms} == {"system"}
    assert only(made).arm("16k-2m").treatment.knobs[f"{THP}/hugepages-2048kB/enabled"] == "always"


def test_a_policy_that_one_kernel_lacks_or_whose_kernel_is_not_there_is_left_out_alone() -> None:
    made = planned(use=["base", "mthp-16k", {"name": "16k-16k", "from": "mthp-16k", "kernel": "16k"}])
    assert [arm.name for arm in only(made).arms] == ["base", "mthp-16k"]
    reason = "the kernel has no transparent huge pages (mTHP) of 16k (it has: 64k, 2m)"
    assert made.left_out == (LeftOut(EVERY, "16k-16k", reason),)
    house = House()
    house.surveys["16k"] = "the kernel 16k was not booted yet"
    made = planned(house, use=["base", "thp", {"name": "16k", "from": "base", "kernel": "16k"}])
    assert [arm.name for arm in only(made).arms] == ["base", "thp"]
    assert made.left_out == (LeftOut(EVERY, "16k", "the kernel 16k was not booted yet"),)


def test_an_arm_says_what_its_guests_memory_is_made_of() -> None:
    pool = {"name": "shp1g", "from": "base", "backing": {"pages": "hugetlb-1g", "source": "file"}}
    cell = only(planned(use=["base", pool]))
    assert cell.arm("base").backing == Backing(pages="thp")
    assert cell.arm("shp1g").backing == Backing(pages="hugetlb-1g", source="file")
    assert cell.arm("shp1g").treatment.target == cell.arm("base").treatment.target


def test_alone_and_together_are_cells_of_their_own() -> None:
    used = {"name": "fault", "parameters": {"bytes": ["32m", "64m"]}, "concurrency": ["alone", "together"]}
    made = planned(workload=used, design={"slots": [0, 1]})
    assert [(cell.id, cell.together) for cell in made.cells] == [
        ("fault-alone-bytes=32m", False),
        ("fault-together-bytes=32m", True),
        ("fault-alone-bytes=64m", False),
        ("fault-together-bytes=64m", True),
    ]
    (both,) = planned(workload={"name": "fault", "concurrency": "together"}, design={"slots": [0, 1]}).cells
    assert (both.id, both.together) == ("fault", True)  # the one way to run needs no word


def test_guests_that_run_together_have_a_slot_each() -> None:
    """A study that says too few is refused; a baseline that stands last finds its slot all the same."""
    use = ["base", "thp", {"name": "16k", "from": "base", "kernel": "16k"}]
    together = {"name": "fault", "concurrency": "together"}
    with pytest.raises(StudyError, match="3 guests at once need 3 slots"):
        planned(use=use, workload=together, design={"slots": [0, 1]})
    cell = only(planned(use=use, workload=together, design={"slots": [0, 1, 3]}, baseline="16k"))
    assert [arm.name for arm in cell.arms] == ["base", "thp", "16k"]
    two = {**together, "policies": ["base", "16k"]}
    assert [arm.name for arm in only(planned(use=use, workload=two, design={"slots": [0, 1]})).arms] == ["base", "16k"]


@pytest.mark.parametrize(
    ("said", "counting", "judged"),
    [
        ({}, False, "page_faults"),  # a time is not judged of an emulated guest
        ({"metric": "rate"}, False, "page_faults"),
        ({"metric": "footprint_bytes"}, False, "footprint_bytes"),
        ({"metric": "rate", "counted": "peak_bytes"}, False, "peak_bytes"),
        ({"metric": "instructions"}, False, "page_faults"),  # nothing counts them there
        ({"counted": "instructions"}, False, "page_faults"),
        ({"metric": "instructions"}, True, "instructions"),
        ({"counted": "instructions"}, True, "instructions"),
        ({}, True, "page_faults"),
    ],
)
def test_what_is_judged_of_an_emulated_guest_is_counted_exactly(
    said: dict[str, Any], counting: bool, judged: str
) -> None:
    made = planned(House(counting=counting), workload={"name": "fault", **said}, guest={"counting": counting})
    assert only(made).metric.name == judged


def test_under_kvm_the_studys_metric_is_judged() -> None:
    kvm = House(emulated=False)
    assert only(planned(kvm)).metric.name == "ns_per_load"
    assert only(planned(kvm, workload={"name": "fault", "metric": "rate"})).metric.name == "rate"
    # `counted` is of emulated guests: a study says both, and either host takes its own.
    both = {"name": "fault", "metric": "rate", "counted": "peak_bytes"}
    assert only(planned(kvm, workload=both)).metric.name == "rate"


def test_a_time_cannot_be_named_as_a_count() -> None:
    with pytest.raises(StudyError) as caught:
        planned(workload={"name": "fault", "counted": "rate"})
    assert caught.value.key == "workload[1].counted"
    assert "page_faults" in (caught.value.hint or "")


def test_memory_is_the_guests_and_not_the_hosts() -> None:
    used = {"name": "fault", "parameters": {"bytes": ["512m", "2g"]}}
    made = planned(House(memory=GIB), workload=used)
    assert [cell.id for cell in made.cells] == ["fault-bytes=512m"]
    assert made.left_out == (LeftOut("fault-bytes=2g", EVERY, "needs 2 GiB, the machine has 1 GiB"),)
    assert len(planned(House(memory=4 * GIB), workload=used).cells) == 2


def test_guests_that_run_at_once_share_the_memory_of_the_host() -> None:
    use = ["base", "thp", {"name": "16k", "from": "base", "kernel": "16k"}]
    host = KnobFiles({**ADVISED, "/proc/meminfo": f"MemTotal:       {7 * MIB // 2} kB\n"})
    together = {"name": "fault", "concurrency": ["alone", "together"]}
    slots = {"slots": [0, 1, 3]}

    def of(memory: int) -> Plan:
        return planned(House(memory=memory), use=use, workload=together, design=slots, host=host, baseline="16k")

    assert [len(cell.arms) for cell in of(GIB).cells] == [3, 3]
    assert of(GIB).left_out == ()
    made = of(GIB + (1 << 29))
    assert [(cell.id, [arm.name for arm in cell.arms]) for cell in made.cells] == [
        ("fault-alone", ["base", "thp", "16k"]),
        ("fault-together", ["base", "16k"]),
    ]
    reason = "3 guests at once need 4.5 GiB, the host has 3.5 GiB, of which 512 MiB stay its own"
    assert made.left_out == (LeftOut("fault-together", "thp", reason),)
    made = of(2 * GIB)  # two are too many: the cell goes, with the reason of its arms
    assert [cell.id for cell in made.cells] == ["fault-alone"]
    assert {left.reason for left in made.left_out if left.policy != EVERY} == {
        "2 guests at once need 4 GiB, the host has 3.5 GiB, of which 512 MiB stay its own"
    }
    made = of(4 * GIB)
    assert made.cells == ()
    assert {left.reason for left in made.left_out} == {
        "a guest needs 4 GiB, the host has 3.5 GiB, of which 512 MiB stay its own"
    }


def test_programs_are_looked_for_in_the_image_unless_it_is_still_to_be_made() -> None:
    house = House()
    seen: list[bool] = []

    class Looking(FakeWorkload):
        def missing(self, values: Any) -> Any:
            seen.append(house.inside)
            return super().missing(values)

    planned(house, registry={**workloads(), "fault": Looking("fault", workloads()["fault"].parameters)})
    assert seen == [True]
    assert not house.inside
    absent = planned(house, workload={"name": "absent"})
    assert absent.left_out[-1].packages == ("redis-server", "gcc", "libc6-dev", "make")  # what the image must have
    made = planned(House(pending=True), workload={"name": "absent"})
    no_package = "the folder of SPEC CPU is not named"  # what no package brings is a lack all the same
    assert made.left_out == (LeftOut("absent", EVERY, no_package),)


def test_slots_are_cpus_of_this_host() -> None:
    online = KnobFiles({**ADVISED, "/sys/devices/system/cpu/online": "0-1"})
    used = {"name": "fault", "concurrency": "together"}
    made = planned(host=online, workload=used, design={"slots": [0, 5]})
    assert made.cells == ()
    assert made.left_out == (LeftOut("fault", EVERY, "CPU 5 of the design's slots is not online here"),)


def test_a_backing_that_this_host_cannot_give_is_left_out_before_anything_boots() -> None:
    use = ["base", "thp", *({"name": name, "from": "base", "backing": name} for name in ("hugetlb-2m", "hugetlb-1g"))]
    use[0] = {"name": "base", "backing": "base"}
    assert planned(use=use).left_out == ()
    made = planned(use=use, host=KnobFiles(ADVISED, root=False))
    assert [arm.name for arm in only(made).arms] == ["base", "thp"]
    assert {left.policy: "needs root" in left.reason for left in made.left_out} == {
        "hugetlb-2m": True,
        "hugetlb-1g": True,
    }
    for host, reason in (
        (KnobFiles(POOLS), "the kernel of this host has no transparent huge pages"),
        (KnobFiles({f"{THP}/enabled": "always madvise [never]"} | POOLS), "QEMU's advice has no effect"),
    ):
        made = planned(use=[use[0], "thp", use[2]], host=host)
        assert [arm.name for arm in only(made).arms] == ["base", "hugetlb-2m"]
        assert reason in made.left_out[0].reason
    small = {path: text for path, text in POOLS.items() if "2048kB" in path}
    made = planned(use=use, host=KnobFiles(ADVISED | small))
    assert [arm.name for arm in only(made).arms] == ["base", "thp", "hugetlb-2m"]
    assert made.left_out == (LeftOut(EVERY, "hugetlb-1g", "this host has no pool of 1g pages"),)


def test_a_host_without_thp_leaves_out_only_who_asked_for_them() -> None:
    """Backing is no factor of a study in which no arm names one: a guest that counts has what the host gives."""
    never = KnobFiles({f"{THP}/enabled": "always madvise [never]"} | POOLS)
    for host in (never, KnobFiles(POOLS)):
        for counting in (True, False):
            made = planned(House(counting=counting), use=["base", "thp"], host=host)
            assert made.left_out == ()
            assert [known(arm.backing).pages for arm in only(made).arms] == ["base", "base"]
    assert [known(arm.backing).pages for arm in only(planned(use=["base", "thp"])).arms] == ["thp", "thp"]
    made = planned(use=["base", "thp", {"name": "small", "from": "base", "backing": "base"}], host=never)
    assert made.cells == ()
    reason = made.left_out[0].reason
    assert f"echo madvise > {THP}/enabled" in reason and 'backing = "base"' in reason


def test_a_program_of_the_users_may_come_with_packages_that_the_study_names() -> None:
    """Which of them has it nobody knows before the image is made: a dry run refuses nothing for it."""
    command = {"name": "command", "parameters": {"argv": ["stress-ng", "--version"]}, "user": "root"}
    real = {**workloads(), "command": COMMAND}
    for pending, packages, runs in (
        (True, ["stress-ng"], True),
        (True, [], False),
        (False, ["stress-ng"], False),
    ):
        house = Image(pending=pending)
        made = planned(house, registry=real, workload=command, guest={"packages": packages})
        assert bool(made.cells) == runs, (pending, packages)
        if not runs:
            assert "no such program in the guests' image: name the Debian package" in made.left_out[-1].reason


class Image(House):
    """One in whose image is nothing."""

    @contextmanager
    def within(self) -> Iterator[None]:
        with programs.looking_in(()):
            yield


def test_a_node_that_this_host_lacks_is_left_out_before_anything_boots() -> None:
    def on(node: int, pages: str) -> dict[str, Any]:
        return {"name": f"{pages}-{node}", "from": "base", "backing": {"pages": pages, "nodes": [0, node]}}

    use = ["base", *(on(node, pages) for node in (0, 1, 2) for pages in ("base", "hugetlb-2m"))]
    for each in use[1:3]:
        assert isinstance(each, dict)
        each["backing"]["nodes"] = [0]
    nodes = {f"{NODES}/node0": "", f"{NODES}/node1": "", f"{pool_folder(2 * MIB, 0)}/nr_hugepages": "0"}
    made = planned(use=use, host=KnobFiles(ADVISED | POOLS | nodes))
    assert [arm.name for arm in only(made).arms] == ["base", "base-0", "hugetlb-2m-0", "base-1"]
    absent = "this host has no NUMA node 2 to bind a guest's memory to"
    assert {left.policy: left.reason for left in made.left_out} == {
        "hugetlb-2m-1": "NUMA node 1 of this host has no pool of 2m pages",  # it has no memory
        "base-2": absent,
        "hugetlb-2m-2": absent,
    }
