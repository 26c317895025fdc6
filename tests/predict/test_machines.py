"""The described machines: each is whole, and says where its figures stand."""

from __future__ import annotations

import pytest

from hugewise.errors import UserError
from hugewise.predict import machines


def test_all_that_the_issue_of_prediction_names_are_described() -> None:
    expected = {"golden-cove", "neoverse-n1", "neoverse-v1", "neoverse-v2", "zen-2", "zen-3", "zen-4", "zen-5"}
    assert set(machines.names()) == expected
    assert sum(len(machines.load(name).page) for name in machines.DEFAULT) == 16


@pytest.mark.parametrize("name", machines.names())
def test_each_has_base_pages_and_sources(name: str) -> None:
    machine = machines.load(name)
    assert {page.granule for page in machine.page if page.policy == "base"} == set(machine.granule)
    assert all(source.says and source.text for source in machine.source)
    assert sum(source.assumed for source in machine.source) == 1


@pytest.mark.parametrize(
    ("machine", "page", "granule", "walk", "shifts"),
    [
        ("neoverse-n1", "4K", "4k", (39, 30, 21, 12), (12, 12)),
        ("neoverse-n1", "64K", "4k", (39, 30, 21, 12), (16, 16)),  # sixteen entries of the last level
        ("neoverse-n1", "2M", "4k", (39, 30, 21), (21, 21)),
        ("neoverse-n1", "2M", "16k", (47, 36, 25, 14), (21, 21)),
        ("neoverse-n1", "32M", "16k", (47, 36, 25), (21, 25)),  # the first level has no entry of 32M
        ("neoverse-n1", "512M", "64k", (42, 29), (29, 29)),
        ("zen-5", "1G", "4k", (39, 30), (30, 21)),
    ],
)
def test_a_page_is_asked_for_in_powers_of_two(
    machine: str, page: str, granule: str, walk: tuple[int, ...], shifts: tuple[int, int]
) -> None:
    described = machines.load(machine)
    (found,) = (each for each in described.page if (each.name, each.granule) == (page, granule))
    asked = described.configuration(found)
    assert asked["walk"] == walk
    assert asked["cached"] == described.granule[granule].cached[: len(walk) - 1]
    assert isinstance(asked["l1"], dict)
    assert isinstance(asked["l2"], dict)
    assert (asked["l1"]["shift"], asked["l2"]["shift"]) == shifts


def test_another_name_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(UserError, match="--machine zen-9: no such machine is described") as refused:
        machines.load("zen-9")
    assert "neoverse-n1" in str(refused.value.hint)
