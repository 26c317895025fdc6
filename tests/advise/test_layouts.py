"""Layouts in an advice: which arm has the library alone, and what of a gain is its own."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hugewise.advise import layouts
from hugewise.advise.candidates import SettingCandidate
from hugewise.advise.layouts import GainPart, alone, command_of, is_layout, layout_blocks, told_apart, unlaid
from hugewise.advise.question import Question, command, comparison_study, service
from hugewise.advise.text import details
from hugewise.model.metric import Metric
from tests.advise.test_advice import found, last
from tests.build.results import cell_result, comparison, summary

HEAP = SettingCandidate(
    name="heap-thp", use={"name": "heap-thp", "from": "layout-thp", "mechanism": "process"}, reach="process", reason="r"
)
POOL = SettingCandidate(
    name="heap-2m",
    use={"name": "heap-2m", "from": "layout-hugetlb-2m", "mechanism": "process"},
    reach="pool",
    reason="r",
)
WALL = Metric("wall_s", "s", "lower", "time")


def test_the_arm_beside_a_layout_has_the_library_and_no_huge_page() -> None:
    assert alone(HEAP, "madvise")["layout"] == "none"
    assert alone(HEAP, "always")["layout"] == "base", "without advice it would have huge pages by itself"
    assert (alone(POOL, "always")["from"], alone(POOL, "always")["layout"]) == ("layout-base", "none")


def test_it_differs_from_the_layout_by_the_pages_alone() -> None:
    asked = Question(workload=command(("true",)))
    for chosen in (HEAP, POOL):
        study = comparison_study(
            "advise-apart", asked, [alone(chosen, "madvise"), "as-is", chosen.use], 64 << 20, 6, baseline="library"
        )
        assert (study.method, study.budget.blocks, study.confidence, study.compared_with) == (
            "fixed-n",
            6,
            0.99,
            "library",
        )
        library, as_is, laid = study.policies
        assert (library.mechanism, laid.mechanism, as_is.name) == ("process", "process", "as-is")
        assert library.layout == "none"
        assert study.workload[0].parameters["pool_bytes"] == 64 << 20, "the heap is of the same size in each"


def test_a_layout_is_known_by_its_policy() -> None:
    assert is_layout(HEAP)
    assert is_layout(POOL)
    assert not is_layout(SettingCandidate(name="off", use={"name": "off", "from": "base"}, reach="process", reason="r"))
    assert not is_layout(SettingCandidate(name="thp", use="thp", reach="host", reason="r"))


def test_only_commands_that_load_a_library_have_layouts(tmp_path: Path) -> None:
    asked = Question(workload={"name": "redis", "parameters": {}})
    assert (command_of(asked), unlaid(asked)) == (
        (),
        "layouts are for commands, and for services by --server and --load",
    )
    static = tmp_path / "static"
    static.write_bytes(b"no program")
    static.chmod(0o755)
    assert "a layout does not reach" in str(unlaid(Question(workload=command(("nice", str(static))))))
    served = service((str(static), "{port}"), ("sort",), seconds=60.0)
    assert "a layout does not reach" in str(unlaid(Question(workload=served)))
    assert unlaid(Question(workload={**served, "parameters": {**served["parameters"], "server": ["sort"]}})) is None


@pytest.mark.parametrize(
    ("seconds", "block_s", "number"), [(100.0, 2.0, 24), (25.0, 2.0, 8), (17.0, 2.0, 0), (18.1, 2.0, 6), (5.0, 0.0, 24)]
)
def test_as_many_blocks_as_fit(seconds: float, block_s: float, number: int) -> None:
    assert layout_blocks(seconds, block_s) == number


def test_the_gain_is_told_apart() -> None:
    arms = [summary(name, [], "wall_s") for name in ("library", "as-is", "heap-thp")]
    one = comparison("as-is", "wall_s", "worse", baseline="library", ratio=1.25, low=1.0, high=2.0, n=8)
    two = comparison("heap-thp", "wall_s", "better", baseline="library", ratio=0.5, low=0.4, high=0.6, n=7)
    made = told_apart("r/1", cell_result("command", "command", WALL, {}, arms, [one, two]), "heap-thp")
    assert made is not None
    assert (made.library, made.n) == (GainPart(ratio=0.8, low=0.5, high=1.0), 7)
    assert made.pages == GainPart(ratio=0.5, low=0.4, high=0.6)
    said = layouts.layout_sentence(made)
    assert said.startswith(
        "Of that, wall_s: the library alone −20% (−50% to 0%), its pages −50% (−60% to −40%) (7 blocks"
    )
    assert said in list(details(msgspec.structs.replace(last(), apart=made)))
    assert told_apart("r/1", cell_result("command", "command", WALL, {}, arms, [one]), "heap-thp") is None
    assert found().apart is None


def test_intervals_without_an_end_stay_so() -> None:
    one = comparison("as-is", "wall_s", "worse", baseline="library", ratio=2.0, low=1.0, high=None, n=8)
    two = comparison("heap-thp", "wall_s", "none", baseline="library", ratio=None, low=None, high=None, n=7)
    made = told_apart(
        "r/1", cell_result("command", "command", WALL, {}, [summary("library", [], "wall_s")], [one, two]), "heap-thp"
    )
    assert made is not None
    assert (made.library, made.pages.ratio) == (GainPart(ratio=0.5, low=None, high=1.0), None)
