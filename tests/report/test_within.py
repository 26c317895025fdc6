"""What was recorded within attempts: remarks."""

import pytest
from msgspec.structs import replace

from hugewise.model.results import FactDifference, Results, Steadiness
from hugewise.report.document import Line, Note
from hugewise.report.sections.over_time import common, remarks
from hugewise.report.write import report
from tests.build.results import HOSTILE, plain
from tests.report.told import blocks


@pytest.fixture
def results() -> Results:
    return plain()


def test_what_all_attempts_share_is_one_line(results: Results) -> None:
    facts = {
        "data_sha256": "1791566411b72023" * 4,
        "data_bytes": 404_079_760,
        "storage": "/dev/shm (tmpfs)",
        "scale": 12,
        "keys": 6_200_000,
        "moved_mib": 2048.5,
        "grid": "x" * 200,
    }
    line = common(replace(results.cells[0], facts=facts))
    assert line == (
        "The same in every attempt: data SHA-256 1791566411b7…, data bytes 385 MiB, storage /dev/shm (tmpfs), "
        f"scale 12, keys 6,200,000, moved MiB 2,048.5, grid {'x' * 79}…."
    )
    assert common(results.cells[0]) == ""


def test_an_arm_that_had_not_settled_is_a_remark(results: Results) -> None:
    cell = replace(
        results.cells[0],
        steadiness=(
            Steadiness(arm="base", n=8, change=-0.14, settled=False),
            Steadiness(arm="thp", n=8, change=0.02, settled=True),
            Steadiness(arm="mthp-64k", n=1, change=2.5, settled=False),
            Steadiness(arm="hugetlb-2m", n=2, change=None, settled=False, reason="no work was done in its first third"),
            Steadiness(arm="hugetlb-1g", n=0, change=None, reason="2 whole seconds at most: 6 are needed"),
        ),
    )
    assert list(remarks(cell)) == [
        "Throughput of base fell by 14% within the measured part (last third of its seconds against the first; median "
        "of 8 attempts): it had not settled.",
        "Throughput of mthp-64k rose by 250% within the measured part (last third of its seconds against the first; "
        "median of 1 attempt): it had not settled.",
        "Throughput of hugetlb-2m rose from nothing within the measured part (median of 2 attempts): it had not "
        "settled.",
    ]


def test_facts_that_differ_are_named_with_their_arms(results: Results) -> None:
    differing = (
        FactDifference(name="data_sha256", values={"base": ("ab" * 32,), "thp": ("cd" * 32,)}),
        FactDifference(name="storage", values={"base": ("a", "b", "c", "d", None), "thp": (None,)}),
        FactDifference(name="database_bytes", values={"base": (1_073_741_824,), "thp": (1_073_741_825,)}),
    )
    assert list(remarks(replace(results.cells[0], differing=differing))) == [
        "Data SHA-256 differs between arms, which should have it in common: base abababababab…, thp cdcdcdcdcdcd….",
        "Storage differs between attempts, which should have it in common: base a and b and c and 2 more, thp none.",
        "Database bytes differs between arms, which should have it in common: base 1,073,741,824, thp 1,073,741,825.",
    ]


def test_the_reports_have_them(results: Results) -> None:
    cell = replace(
        results.cells[0],
        facts={"storage": HOSTILE, "<b>": 1},
        steadiness=(Steadiness(arm=HOSTILE, n=3, change=-0.2, settled=False),),
    )
    whole = replace(results, cells=(cell, *results.cells[1:]))
    assert common(cell) in [one.text for one in blocks(report(whole), Line)]
    notes = [one.text for one in blocks(report(whole), Note)]
    assert notes[1:] == list(remarks(cell)), "behind who was compared with whom"
