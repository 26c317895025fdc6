"""Arms that lay a heap out: for commands that a library can be loaded into, and left out with the reason elsewhere."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hugewise.errors import StudyError
from hugewise.machine import loader, programs
from hugewise.model.host import Host
from hugewise.model.pages import PageSizes
from hugewise.model.workload import Direct, Launch
from hugewise.plan.memory import pool_pages
from hugewise.plan.plan import Plan, plan
from hugewise.policies import discover
from hugewise.workloads import discover as workloads
from tests.build.hosts import FakeHost
from tests.build.studies import study_of
from tests.requirements import need_program

POLICIES = ["layout-base", "layout-thp", "layout-hugetlb-2m"]


@pytest.fixture(autouse=True)
def library(reached: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = reached / "libhugewise-layout.so"
    path.touch(mode=0o644)
    monkeypatch.setenv(loader.LIBRARY, str(path))
    for name in ("LD_PRELOAD", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    return str(path.resolve())


def planned(*workload: dict[str, Any], use: list[Any] | None = None) -> Plan:
    host: Host = FakeHost()
    sizes = PageSizes.discover(host, 4096)
    study = study_of(policies=use or POLICIES, workload=list(workload))
    return plan(study, discover(sizes), workloads(), host, sizes, "system")


def launches(made: Plan) -> dict[str, Launch]:
    (cell,) = made.cells
    assert isinstance(cell.workload, Direct)
    return {arm.name: cell.workload.launch(arm.treatment, cell.given(arm)) for arm in cell.arms}


def command(*argv: str, **parameters: Any) -> dict[str, Any]:
    return {"name": "command", "parameters": {"argv": list(argv), **parameters}}


def test_all_arms_load_the_same_library_over_the_same_settings_of_the_system(library: str) -> None:
    made = planned(command("ls", pool_bytes="3m"))
    told = {name: launch.environment for name, launch in launches(made).items()}
    heap = "heap=4m"  # whole pages
    assert told == {
        f"layout-{words}": {"LD_PRELOAD": library, "HUGEWISE_LAYOUT": f"{words},{heap}"}
        for words in ("base", "thp", "hugetlb-2m")
    }
    (cell,) = made.cells
    assert [arm.treatment.layout for arm in cell.arms] == ["base", "thp", "hugetlb-2m"]
    assert cell.arm("layout-base").treatment.knobs == cell.arm("layout-thp").treatment.knobs


def test_without_a_pool_only_the_arm_from_the_pool_is_left_out() -> None:
    made = planned(command("ls"))
    assert {name: launch.environment["HUGEWISE_LAYOUT"] for name, launch in launches(made).items()} == {
        "layout-base": "base",
        "layout-thp": "thp",
    }
    (left,) = made.left_out
    assert left.policy == "layout-hugetlb-2m"
    assert "set pool_bytes" in left.reason


def test_a_policy_without_a_layout_loads_nothing() -> None:
    launched = launches(planned(command("ls"), use=["layout-base", "thp", "as-is"]))
    assert launched["thp"].environment == {}
    assert "LD_PRELOAD" in launched["layout-base"].environment


def test_what_a_layout_does_not_reach_is_left_out_by_name(tmp_path: Path) -> None:
    source = tmp_path / "static.c"
    source.write_text("int main(void) { return 0; }\n")
    need_program("cc", "gcc")
    subprocess.run(["cc", "-static", "-o", str(tmp_path / "static"), str(source)], check=True)
    made = planned(command(str(tmp_path / "static")), use=["thp", "as-is", "layout-thp"])
    assert [arm.name for arm in made.cells[0].arms] == ["thp", "as-is"]
    (left,) = made.left_out
    assert (
        left.reason
        == f"a layout does not reach {tmp_path}/static: it is statically linked: no library can be loaded into it"
    )
    chase = planned({"name": "chase"}, use=["thp", "as-is", "layout-thp"])
    assert "layouts are for commands" in chase.left_out[0].reason


def test_a_library_that_is_gone_is_a_reason_with_its_cure(library: str) -> None:
    Path(library).unlink()
    made = planned(command("ls"))
    assert made.cells == ()
    assert "is not there; build it: make setup" in made.left_out[0].reason


def test_in_a_guest_there_is_none() -> None:
    with programs.looking_in({shutil.which("ls") or "/bin/ls"}):
        made = planned(command("ls"))
    assert "not those in guests" in made.left_out[0].reason


def test_a_study_s_own_layout_promises_only_what_it_names() -> None:
    mosaic = {"name": "quarter", "from": "layout-thp", "layout": "mosaic:0-25%=thp,heap=1g"}
    sized = {"name": "sized", "from": "layout-thp", "layout": "thp,heap=64m"}
    made = planned(command("ls", pool_bytes="3m"), use=["layout-base", mosaic, sized])
    (cell,) = made.cells
    assert [(arm.name, arm.treatment.layout) for arm in cell.arms] == [
        ("layout-base", "base"),
        ("quarter", "mosaic:0-25%=thp,heap=1g"),
        ("sized", "thp,heap=64m"),
    ]
    assert [arm.treatment.target.kind for arm in cell.arms] == ["base", "any", "thp"]
    words = {name: launch.environment["HUGEWISE_LAYOUT"] for name, launch in launches(made).items()}
    assert words["quarter"] == "mosaic:0-25%=thp,heap=1g"  # its own heap


def test_a_mosaic_of_pages_of_a_pool_has_the_pool_filled() -> None:
    mosaic = {"name": "quarter", "from": "layout-base", "layout": "mosaic:0-25%=hugetlb-2m,heap=64m"}
    made = planned(command("ls", pool_bytes="64m"), use=["layout-base", mosaic])
    assert pool_pages(made, privileged=True) == {(2 << 20, None): 8}
    whole = planned(command("ls", pool_bytes="64m"), use=["layout-base", mosaic, "layout-hugetlb-2m"])
    assert pool_pages(whole, privileged=True) == {(2 << 20, None): 32}
    (cell,) = whole.cells
    assert [cell.workload.pool(arm.treatment, cell.given(arm)) >> 20 for arm in cell.arms] == [0, 16, 64]


@pytest.mark.parametrize("source", ["thp", "layout-hugetlb-2m"])
def test_a_layout_changes_a_policy_that_has_one(source: str) -> None:
    with pytest.raises(StudyError, match="is for the policies layout-thp and layout-base"):
        planned(command("ls"), use=["layout-base", {"name": "mine", "from": source, "layout": "thp"}])
