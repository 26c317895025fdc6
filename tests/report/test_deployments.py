"""Settings that several cells share are told once, in every format."""

from __future__ import annotations

import io

from msgspec.structs import replace
from rich.console import Console

from hugewise.policy import Deployment
from hugewise.report.deployments import deployed
from hugewise.report.html import html
from hugewise.report.markdown import markdown
from hugewise.report.sentences import winners
from hugewise.report.terminal import show
from hugewise.results import Results
from tests.results_example import plain

THP = "echo always &gt; /sys/kernel/mm/transparent_hugepage/enabled"
POOL = "echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"


def twice(other: int | None = None) -> Results:
    """The first cell two times; in the second the pool is of another size if one is given."""
    results = plain()
    first = results.cells[0]
    arms = first.arms
    if other is not None:
        pool = Deployment((POOL.replace("512", str(other)),), (), "")
        arms = tuple(replace(arm, deployment=pool) if arm.arm == "hugetlb-2m" else arm for arm in arms)
    return replace(results, cells=(first, replace(first, cell="again", arms=arms)))


def test_cells_that_share_a_setting_are_named_with_it() -> None:
    assert [(one.arm, one.cells) for one in deployed(winners(twice()))] == [
        (arm, ("chase bytes=1g", "again")) for arm in ("mthp-64k", "thp", "hugetlb-2m")
    ]
    assert [(one.arm, one.cells) for one in deployed(winners(twice(64)))][2:] == [
        *(("hugetlb-2m", ("chase bytes=1g",)), ("hugetlb-2m", ("again",)))
    ]


def test_commands_stand_once_in_every_format() -> None:
    results = twice()
    page, text = html(results, {}), markdown(results, {})
    assert page.count(THP) == 1
    assert 'thp <span class="quiet">for chase bytes=1g, again</span>' in page
    assert text.count(f"    {POOL}\n") == 1
    assert "**hugetlb-2m**, for chase bytes=1g, again: the boot line" in text
    assert "**mthp-64k**, for chase bytes=1g, again: no commands are known; what it did: asks for" in text
    out = io.StringIO()
    show(results, None, Console(file=out, width=80, force_terminal=False))
    assert out.getvalue().count(POOL) == 1
    assert "  hugetlb-2m, for chase bytes=1g, again:\n" in out.getvalue()


def test_settings_that_differ_stand_apart() -> None:
    page = markdown(twice(64), {})
    assert page.count("**hugetlb-2m**, for") == 2
    assert POOL.replace("512", "64") in page
