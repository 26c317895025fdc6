"""The integer set with the real programs through whole runs: delivered, not delivered, and right."""

from pathlib import Path

import pytest

from hugewise.model.trial import Attempt
from hugewise.workloads import _staged
from hugewise.workloads.integer_set import PROGRAMS
from tests.requirements import need
from tests.servers.trying import attempts, need_pages, quick

pytestmark = pytest.mark.whole

SIZE = 0.02


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all runs here: inputs are drawn once."""
    for name, program in PROGRAMS.items():
        need(_staged.find(name) is not None, f"{name} (apt install {program.package})")
    return tmp_path_factory.mktemp("integer-set")


def run(folder: Path, program: str, *policies: str) -> dict[str, Attempt]:
    return quick(folder, "integer-set", policies, {"program": program, "size": SIZE})


@pytest.mark.soak
def test_every_program_runs_and_gives_the_result_of_its_reference(folder: Path) -> None:
    need_pages()
    workload = {"name": "integer-set", "parameters": {"program": list(PROGRAMS), "size": SIZE}}
    # The setting alone is judged: inputs of this size need too little memory for large pages.
    policies = [{"name": "mthp-64k", "judged": "setting"}, "base"]
    found = attempts(folder, workload, policies, blocks=2, attempt={"retries": 0})  # each cell has its blocks in turn
    assert {(each.state, each.reason) for each in found} == {("accepted", None)}
    seen = {each.cell for each in found}
    assert len(seen) == len(PROGRAMS)
    for cell in seen:
        mine = [each for each in found if each.cell == cell]
        assert len({each.facts["result_sha256"] for each in mine}) == 1
        # Of so short a run of gcc most that is resident is the compiler itself: its twin proves too little.
        assert {each.delivery.proof for each in mine} == {"counters" if cell.endswith("gcc") else "twin"}
        assert all(each.delivery.coverage for each in mine)


@pytest.mark.soak
def test_the_pool_and_huge_pages_reach_a_program_that_takes_large_blocks(folder: Path) -> None:
    """The table of the chess engine, which it gives back before it leaves."""
    found = run(folder, "stockfish", "base", "thp", "hugetlb-2m")
    for arm, kind in (("base", "anon:4096"), ("thp", "anon:2097152"), ("hugetlb-2m", "hugetlb:2097152")):
        delivery = found[arm].delivery
        assert (found[arm].state, delivery.delivered) == ("accepted", True), (arm, delivery)
        assert delivery.coverage[kind] > 256 << 20
