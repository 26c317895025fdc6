"""A command's heap in runs: of base pages, of huge pages, from the pool; each arm proven by its pages."""

from pathlib import Path

import pytest

from tests.machine.layouts.programs import compiled, library
from tests.servers.trying import accepted, need_pages, quick

pytestmark = pytest.mark.whole

ARMS = ["layout-base", "layout-thp", "layout-hugetlb-2m"]


def test_each_arm_has_its_pages(reached: Path, tmp_path: Path) -> None:
    need_pages()
    library()
    # Every arm's heap is of 96 MiB; beside it there is what any process has.
    parameters = {"argv": [compiled("heap", reached), "90"], "pool_bytes": "96m"}
    found = quick(tmp_path, "command", ARMS, parameters)
    assert set(found) == set(ARMS)
    accepted(found)
    assert {arm: attempt.delivery.delivered for arm, attempt in found.items()} == dict.fromkeys(ARMS, True)


def test_what_the_pool_does_not_have_is_not_taken_for_it(reached: Path, tmp_path: Path) -> None:
    """The program needs more than was reserved: the rest is of base pages, which is seen."""
    need_pages()
    library()
    parameters = {"argv": [compiled("heap", reached), "90"], "pool_bytes": "32m"}
    found = quick(tmp_path, "command", ["layout-base", "layout-hugetlb-2m"], parameters)
    accepted(found)
    assert found["layout-base"].delivery.delivered is True
    assert found["layout-hugetlb-2m"].delivery.delivered is False
