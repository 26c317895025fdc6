"""Settings that several cells share are told once, in every format."""

from __future__ import annotations

from msgspec.structs import replace

from hugewise.deployment import configuration as host_files
from hugewise.model.policy import Deployment
from hugewise.model.results import Results
from hugewise.report import document as doc
from hugewise.report.document import Commands
from hugewise.report.write import report
from tests.build.results import plain
from tests.report.told import blocks, page, text

THP = "echo always &gt; /sys/kernel/mm/transparent_hugepage/enabled"
PATH = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
POOL = f"echo 512 > {PATH}"


def twice(other: int | None = None) -> Results:
    """The first cell two times; in the second the pool is of another size if one is given."""
    results = plain()
    first = results.cells[0]
    arms = first.arms
    if other is not None:
        pool = Deployment(files=(host_files.now({PATH: str(other)}),), note="")
        arms = tuple(replace(arm, deployment=pool) if arm.arm == "hugetlb-2m" else arm for arm in arms)
    return replace(results, cells=(first, replace(first, cell="again", arms=arms)))


def places(results: Results) -> list[tuple[str, str]]:
    (told, *_) = (one for one in report(results).sections if one.key == "settings")
    assert all(isinstance(one, Commands) for one in told.blocks[:-1])
    return [(one.arm, one.place) for one in blocks(doc.Document("", (), (told,)), Commands)]


def test_cells_that_share_a_setting_are_named_with_it() -> None:
    both = "chase bytes=1g, again"
    dear = "chase bytes=1g (yours to weigh), again (yours to weigh)"
    assert places(twice()) == [("hugetlb-2m", dear), ("thp", both), ("mthp-64k", both)], "the best first"
    assert places(twice(64))[:2] == [("hugetlb-2m", each) for each in dear.split(", ")]


def test_commands_stand_once_in_every_format() -> None:
    results = twice()
    assert page(results).count(THP) == 1
    assert 'thp <span class="quiet">for chase bytes=1g, again</span>' in page(results)
    assert text(results).count(f"    {POOL}\n") == 1
    dear = "chase bytes=1g (yours to weigh), again (yours to weigh)"
    assert f"**hugetlb-2m**, for {dear}: the program must map" in text(results)
    assert "**mthp-64k**, for chase bytes=1g, again: no commands are known; what it did: asks for" in text(results)


def test_settings_that_differ_stand_apart() -> None:
    told = text(twice(64))
    assert told.count("**hugetlb-2m**, for") == 2
    assert POOL.replace("512", "64") in told
